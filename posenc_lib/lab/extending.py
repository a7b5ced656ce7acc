"""A model that was trained on short sequences with RoPE, on longer ones: what a change of its scheme does for it."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch

from posenc_lib import _checks
from posenc_lib.attention import log_length_temperature, sliding_window, tempered
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.lab.runs import TASKS, Settings, _last_loss, evaluate, train_run
from posenc_lib.lab.train import train
from posenc_lib.rotary import RoPE
from posenc_lib.rotary.scaling import (
    Schedule,
    linear_interpolation,
    ntk_aware,
    ntk_by_parts,
    yarn,
)
from posenc_lib.scheme import PositionScheme

BASE = 10000.0  # θ of the scheme "rope"
FACTORS = (2, 4, 8)

# A little more training, at four times the length that these models were trained on.
TUNING: dict[str, Any] = {"length": 128, "steps": 60, "batch": 16, "lr": 0.01}
TUNED = ("as trained", "PI 2", "PI 4", "NTK 4", "step 4")


def extension_methods(settings: Settings) -> dict[str, PositionScheme]:
    """Other schemes under which the weights of a model with RoPE can be run.

    Equation: PI, NTK: ω′_i of `linear_interpolation`, `ntk_aware`;  YaRN: of `yarn`
        with β = 32;  ramp: of `yarn` with β = 4;  step: of `ntk_by_parts` with β = α =
        1;  window w: [|n − m| < w];  log n: q_m · max(1, ln(m + 1)/ln L)
    Shapes: → {name: scheme}

    The number in a name is the factor s, or w. YaRN's β = 32 belongs to models whose
    fastest pair turns hundreds of times within L. With L = 32 it turns five times, and
    a ramp that ends at 32 turns spares no pair; β = 4 does.

    Args:
        settings: of the model: head width and trained length L.

    Raises:
        TypeError, ValueError: as the schedules.

    Chapter: 12
    """
    dim, length = settings.width // settings.heads, settings.length
    rope = RoPE(inverse_frequencies(dim, BASE))

    def turning(name: str, schedule: Schedule) -> PositionScheme:
        return PositionScheme(name, transform=RoPE(**schedule._asdict()).transform)

    def logarithmic(
        q: torch.Tensor, k: torch.Tensor, m: torch.Tensor, n: torch.Tensor
    ) -> Any:
        return tempered(*rope.transform(q, k, m, n), m, n, temperature=temperature)

    temperature = partial(log_length_temperature, trained_length=length)
    found = [PositionScheme("as trained", transform=rope.transform)]
    found += [
        PositionScheme(
            f"window {size}",
            transform=rope.transform,
            mask=partial(sliding_window, size=size),
        )
        for size in (length // 2, length, 2 * length)
    ]
    found += [PositionScheme("log n", transform=logarithmic)]
    for s in FACTORS:
        by_parts = {"factor": s, "original_length": length}
        found += [
            turning(f"PI {s}", linear_interpolation(dim, BASE, factor=s)),
            turning(f"NTK {s}", ntk_aware(dim, BASE, factor=s)),
            turning(f"YaRN {s}", yarn(dim, BASE, **by_parts)),
            turning(f"ramp {s}", yarn(dim, BASE, **by_parts, beta=4.0)),
            turning(f"step {s}", ntk_by_parts(dim, BASE, **by_parts, beta=1.0)),
        ]
    return {each.name: each for each in found}


def extension_run(
    settings: Settings, name: str, seed: int, *, progress: bool = False
) -> dict[str, Any]:
    """One run of "rope-longer": a model with RoPE, tested under each of `extension_methods`, and tuned under some.

    Shapes: → {"scheme": "rope", "seed": seed, "loss": number, "total": {"T": n},
        "correct": {remedy: {"T": n}}, "tuning": {…}, "tuned": {remedy: {"loss": number,
        "correct": {"T": n}}}}

    The model is that of `train_run`. All extension methods are asked the same. Tuning
    trains a copy, under the remedy and with `TUNING`, and tests it under the remedy.

    Args:
        settings: the settings.
        name: "rope", the one scheme that these extension_methods are for.
        seed: of everything random.
        progress: as in `train`.

    Raises:
        ValueError: another scheme; then as `train_run`.

    Chapter: 12
    """
    _checks.one_of("name", name, ("rope",))
    model, losses = train_run(settings, name, seed, progress=progress)

    def totals(
        tested: Any, scheme: PositionScheme
    ) -> tuple[dict[str, int], dict[str, int]]:
        found = evaluate(tested, settings, seed, scheme=scheme)
        return tuple(
            {length: sum(each) for length, each in found[part].items()}
            for part in ("correct", "total")
        )  # type: ignore[return-value]

    others, tuned = extension_methods(settings), {}
    correct = {remedy: totals(model, scheme)[0] for remedy, scheme in others.items()}
    for remedy in TUNED:
        copy = deepcopy(model)
        copy.scheme = others[remedy]
        generator = torch.Generator().manual_seed(2_000_000 + seed)
        _, after = train(
            copy, TASKS[settings.task], **TUNING, generator=generator, progress=progress
        )
        tuned[remedy] = {
            "loss": _last_loss(after),
            "correct": totals(copy, others[remedy])[0],
        }
    return {
        "scheme": name,
        "seed": seed,
        "loss": _last_loss(losses),
        "total": totals(model, model.scheme)[1],
        "correct": correct,
        "tuning": TUNING,
        "tuned": tuned,
    }
