from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from helpers import seeded
from torch import Tensor, nn

from posenc_lib import lab
from posenc_lib.bias import T5Bias
from posenc_lib.embedding import LearnedEmbedding
from posenc_lib.scheme import NOPE, PositionScheme

TINY = lab.Settings(
    "three-back",
    "nope",
    length=8,
    lengths=(8, 12),
    sequences=6,
    steps=2,
    batch=2,
    width=8,
)
# What a reader adds: one scheme, one task, one experiment.
OWN = """\
from functools import partial
from posenc_lib import lab, scheme

lab.SCHEMES["rope-7"] = lambda settings, generator: scheme.rope(settings.width, 7.0)
lab.TASKS["two-back"] = partial(lab.k_back, 2)
lab.EXPERIMENTS["own"] = tuple(
    lab.Settings("two-back", name, recipe=recipe, length=8, lengths=(8, 12),
                 sequences=6, steps=STEPS, batch=2, width=8)
    for name in ("rope-7", "t5") for recipe in lab.RECIPES.values()
)
"""


def own(steps: int = 2) -> str:
    """A reader's file, whose runs take so many steps."""
    return OWN.replace("STEPS", str(steps))


def outcome(row: lab.Row) -> dict[str, object]:
    """A row without when, where and how fast it was made."""
    return {k: v for k, v in row.items() if k not in ("seconds", "made", "commit")}


def tiny(**changed: object) -> lab.Settings:
    """Settings of a run that takes a moment."""
    return replace(TINY, **changed)


def model(
    position_scheme: PositionScheme = NOPE,
    vocabulary: int = 16,
    **how: int | bool | torch.dtype,
) -> lab.TinyTransformer:
    return lab.TinyTransformer(
        vocabulary,
        position_scheme,
        generator=seeded(),
        **{"width": 8, "heads": 2} | how,
    )


class Tabled(nn.Module):
    """A scheme of a module's method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return q * self.weight, k

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        return self.weight * (q @ k.mT)


def called(positions: Tensor, table: nn.Module) -> Tensor:
    return table(positions)


def trainable() -> dict[str, PositionScheme]:
    table, bias, tabled = (
        LearnedEmbedding(9, 8, generator=seeded()),
        T5Bias(2, bidirectional=True, std=1.0),
        Tabled(),
    )
    return {
        "a module": PositionScheme("learned", embedding=table),
        "a partial with a module": PositionScheme(
            "learned", embedding=partial(called, table=table)
        ),
        "a bias": PositionScheme("T5", bias=bias),
        "a method": PositionScheme("method", transform=tabled.transform),
        "two methods of one module": PositionScheme(
            "methods", transform=tabled.transform, scores=tabled.scores
        ),
    }
