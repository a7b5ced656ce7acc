"""RoPE beyond the trained length: what a change of the model's scheme does."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch

from posenc_lib import _checks
from posenc_lib.attention import log_length_temperature, sliding_window, tempered
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.lab.runs import TASKS, Settings, evaluate, last_loss, train_run
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

    Equation: PI, NTK: ω′_i of `linear_interpolation`, `ntk_aware`;
        YaRN: of `yarn` with β = 32;  ramp: of `yarn` with β = 4;
        step: of `ntk_by_parts` with β = α = 1;
        window w: [|n − m| < w];  log n: q_m · max(1, ln(m + 1)/ln L)
    Shapes: → {name: scheme}

    The number in a name is the factor s, or w. YaRN's β = 32 belongs to models whose
    fastest pair makes hundreds of full turns within L. With L = 32 it makes five, and a
    ramp that ends at 32 turns spares no pair; β = 4 does.

    Args:
        settings: of the model: head width and trained length L.

    Raises:
        TypeError, ValueError: as the schedules.

    Chapter: 12
    """
    dim, length = settings.width // settings.heads, settings.length
    rope = RoPE(inverse_frequencies(dim, BASE))

    def with_schedule(name: str, schedule: Schedule) -> PositionScheme:
        return PositionScheme(name, transform=RoPE(**schedule._asdict()).transform)

    def logarithmic(
        q: torch.Tensor, k: torch.Tensor, m: torch.Tensor, n: torch.Tensor
    ) -> Any:
        return tempered(*rope.transform(q, k, m, n), m, n, temperature=temperature)

    temperature = partial(log_length_temperature, trained_length=length)
    schemes = [PositionScheme("as trained", transform=rope.transform)]
    schemes += [
        PositionScheme(
            f"window {size}",
            transform=rope.transform,
            mask=partial(sliding_window, size=size),
        )
        for size in (length // 2, length, 2 * length)
    ]
    schemes += [PositionScheme("log n", transform=logarithmic)]
    for s in FACTORS:
        by_parts = {"factor": s, "original_length": length}
        schemes += [
            with_schedule(f"PI {s}", linear_interpolation(dim, BASE, factor=s)),
            with_schedule(f"NTK {s}", ntk_aware(dim, BASE, factor=s)),
            with_schedule(f"YaRN {s}", yarn(dim, BASE, **by_parts)),
            with_schedule(f"ramp {s}", yarn(dim, BASE, **by_parts, beta=4.0)),
            with_schedule(f"step {s}", ntk_by_parts(dim, BASE, **by_parts, beta=1.0)),
        ]
    return {scheme.name: scheme for scheme in schemes}


def extension_run(
    settings: Settings, name: str, seed: int, *, progress: bool = False
) -> dict[str, Any]:
    """One run of "rope-longer": a model with RoPE, tested under `extension_methods`.

    Shapes: → {"scheme": "rope", "seed": seed, "loss": number, "total": {"T": n},
        "correct": {method: {"T": n}}, "tuning": {…},
        "tuned": {method: {"loss": number, "correct": {"T": n}}}}

    The model is that of `train_run`. All methods are tested on the same sequences.
    For the methods in `TUNED`, a copy is trained further with `TUNING` under the method
    and tested under it.

    Args:
        settings: the settings.
        name: "rope", the one scheme that these methods are for.
        seed: of everything random.
        progress: as in `train`.

    Raises:
        ValueError: the name is another one; then as `train_run`.

    Chapter: 12
    """
    _checks.one_of("name", name, ("rope",))
    model, losses = train_run(settings, name, seed, progress=progress)

    def totals(
        tested: Any, scheme: PositionScheme
    ) -> tuple[dict[str, int], dict[str, int]]:
        counts = evaluate(tested, settings, seed, scheme=scheme)
        correct, total = (
            {length: sum(by_position) for length, by_position in counts[key].items()}
            for key in ("correct", "total")
        )
        return correct, total

    methods, tuned = extension_methods(settings), {}
    correct = {method: totals(model, scheme)[0] for method, scheme in methods.items()}
    for method in TUNED:
        copy = deepcopy(model)
        copy.scheme = methods[method]
        generator = torch.Generator().manual_seed(2_000_000 + seed)
        _, after = train(
            copy, TASKS[settings.task], **TUNING, generator=generator, progress=progress
        )
        tuned[method] = {
            "loss": last_loss(after),
            "correct": totals(copy, methods[method])[0],
        }
    return {
        "scheme": name,
        "seed": seed,
        "loss": last_loss(losses),
        "total": totals(model, model.scheme)[1],
        "correct": correct,
        "tuning": TUNING,
        "tuned": tuned,
    }
