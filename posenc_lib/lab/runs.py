"""A run: how it is made, and the row that is stored of it."""

from __future__ import annotations

import math
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc_lib
from posenc_lib import _checks
from posenc_lib.lab.extending import METHODS
from posenc_lib.lab.model import TinyTransformer
from posenc_lib.lab.schemes import SCHEMES, drawn_in_float64
from posenc_lib.lab.settings import (
    DTYPES,
    POSITIONS,
    Settings,
    as_stored,
    coupled,
)
from posenc_lib.lab.tasks import TASKS, Task
from posenc_lib.lab.train import (
    ADAM,
    Positions,
    measure,
    sequential,
    train,
)
from posenc_lib.positions import randomised
from posenc_lib.scheme import PositionScheme

# A little more training, at four times the length that a model was trained on.
TUNING: dict[str, Any] = {"steps": 60, "batch": 16, "recipe": ADAM}


def positions_of(settings: Settings, task: Task) -> Positions:
    """`positions(length, generator)` of a run."""
    maximum = 2 * settings.longest

    def integers(length: int, generator: torch.Generator) -> Tensor:
        return randomised(length, maximum, generator=generator)

    def reals(length: int, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(length, dtype=torch.float64, generator=generator)
        return (maximum * drawn).sort().values

    def of_ranks(length: int, generator: torch.Generator) -> Tensor:
        positions = coupled(task, length)
        room = settings.last_position - int(positions.max()) + 1
        start = int(torch.randint(room, (), generator=generator))
        return coupled(task, length, start)

    return dict(zip(POSITIONS, (sequential, integers, reals, of_ranks), strict=True))[
        settings.positions
    ]


def check(settings: Iterable[Settings]) -> None:
    """Whether all names are known, and tasks have such lengths and positions.

    Args:
        settings: of runs; each task is drawn from once for each length.

    Raises:
        ValueError: an unknown task, scheme or test; a length that is too short for the
            task; a task that has no ranks to couple.

    Chapter: 21
    """
    wanted: dict[str, set[int]] = {}
    for one in settings:
        _checks.one_of("task", one.task, tuple(TASKS))
        _checks.one_of("scheme", one.scheme, tuple(SCHEMES))
        for name in (*one.tests, *one.tuned):
            _checks.one_of("tests", name, tuple(METHODS))
        wanted.setdefault(one.task, set()).update((one.length, *one.lengths))
        if one.positions == "coupled" and TASKS[one.task]().coupled is None:
            raise ValueError(
                f"positions can't be coupled in {one.task}, whose tokens have no rank"
            )
    for name, lengths in wanted.items():
        task = TASKS[name]()
        for length in sorted(lengths):
            task.draw(1, length, torch.Generator())


def model_of(
    settings: Settings, task: Task, generator: torch.Generator
) -> TinyTransformer:
    """The model of a run before it is trained.

    The generator draws the scheme's parameters, then the weights.
    """
    with drawn_in_float64():
        scheme = SCHEMES[settings.scheme](settings, generator)
    return TinyTransformer(
        task.vocabulary,
        scheme,
        width=settings.width,
        heads=settings.heads,
        layers=settings.layers,
        masked=settings.masked,
        dtype=DTYPES[settings.dtype],
        generator=generator,
    )


def trained(
    settings: Settings, seeds: Sequence[int], *, device: str = "cpu"
) -> tuple[list[TinyTransformer], Tensor]:
    """The models of some runs, trained as one.

    Shapes: → S models; (S, steps): the loss of each step

    One generator for each seed draws the scheme's parameters, then the weights, then
    the batches. So a run depends on its own seed, and not on the others, on their order
    or on where it is made.

    Args:
        settings: the settings.
        seeds: of everything random, one for each model.
        device: where the models are.

    Raises:
        ValueError: models that differ in more than their parameters and buffers: a
            scheme that draws a tensor must register it as one of these.

    Chapter: 21
    """
    check([settings])
    task = TASKS[settings.task]()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    models = [model_of(settings, task, g).to(device) for g in generators]
    _check_alike(models, task, settings)
    losses = train(
        models,
        task,
        length=settings.length,
        steps=settings.steps,
        batch=settings.batch,
        recipe=settings.recipe,
        generators=generators,
        positions=positions_of(settings, task),
    )
    return models, losses


@torch.no_grad()
def _check_alike(
    models: Sequence[TinyTransformer], task: Task, settings: Settings
) -> None:
    """Whether the first model with another's weights is that other model."""
    tokens, _ = task.draw(2, settings.length, torch.Generator().manual_seed(0))
    tokens = tokens.to(next(models[0].parameters()).device)
    positions = positions_of(settings, task)(settings.length, torch.Generator())
    for model in models[1:]:
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        as_one = torch.func.functional_call(models[0], weights, (tokens, positions))
        if not torch.allclose(as_one, model(tokens, positions), atol=1e-4):
            raise ValueError(
                f"scheme {settings.scheme!r} must hold all that it draws in parameters "
                "and buffers of its modules; it has another tensor that differs "
                "between seeds"
            )


def evaluate(
    models: Sequence[TinyTransformer],
    settings: Settings,
    seeds: Sequence[int],
    *,
    scheme: PositionScheme | None = None,
) -> list[dict[str, Any]]:
    """Test models at all lengths, and count the correct answers of each block.

    Equation: correct_m, total_m and loss of `measure`, for each length T, the first two
        summed over the `block` positions from each multiple of it on
    Shapes: → for each model {"correct": {"T": [n, …]}, "total": {"T": [n, …]},
        "loss": {"T": number}}, with the keys as strings, as in JSON

    The test sequences come from a separate generator, so that runs with one seed are
    tested on the same ones.

    Args:
        models: S models that differ in their parameters only.
        settings: task, lengths, positions and number of sequences.
        seeds: of the sequences, one for each model.
        scheme: as in `measure`.

    Raises:
        TypeError, ValueError: as `measure`.

    Chapter: 06
    """
    task = TASKS[settings.task]()
    generators = [torch.Generator().manual_seed(1_000_000 + seed) for seed in seeds]
    counts: list[dict[str, Any]] = [
        {"correct": {}, "total": {}, "loss": {}} for _ in models
    ]
    for length in settings.lengths:
        correct, total, loss = measure(
            models,
            task,
            length,
            sequences=settings.sequences,
            generators=generators,
            positions=positions_of(settings, task),
            scheme=scheme,
        )
        for s, one in enumerate(counts):
            one["correct"][str(length)] = _by_block(correct[s], settings.block)
            one["total"][str(length)] = _by_block(total[s], settings.block)
            one["loss"][str(length)] = _stored(loss[s].item(), 4)
    return counts


def _by_block(counts: Tensor, block: int) -> list[int]:
    return [int(part.sum()) for part in counts.split(block)]


def _last(losses: Tensor) -> float | None:
    """The mean loss of the last 20 steps."""
    return _stored(losses[-20:].mean().item(), 6)


def _stored(value: float, digits: int) -> float | None:
    """A number as it is stored; JSON knows no NaN."""
    return round(value, digits) if math.isfinite(value) else None


def run(
    settings: Settings, seeds: Sequence[int], *, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Runs of some seeds, each a row that is ready to be stored.

    Shapes: → for each seed {"settings": {…}, "seed": n, "trained": loss,
        "total": {"T": [n, …]}, "tests": {name: {"correct": {"T": [n, …]},
        "loss": {"T": number}}}, "versions": {…}, "seconds": …, "made": …}

    "trained" is the mean loss of the last 20 steps, None after a divergence. "tests"
    has an entry for each name in `tests`, and one with "tuned " before it for each in
    `tuned`. The seconds are those of the processor, a share of what all seeds took.

    Args:
        settings, seeds, device: as in `trained`.

    Raises:
        ValueError: as `trained`.

    Chapter: 06
    """
    start, commit = time.process_time(), _commit()  # that of the code that runs
    models, losses = trained(settings, seeds, device=device)
    schemes = {
        name: METHODS[name](settings, models[0].scheme)
        for name in dict.fromkeys((*settings.tests, *settings.tuned))
    }
    tests = {
        name: evaluate(models, settings, seeds, scheme=schemes[name])
        for name in settings.tests
    }
    task = TASKS[settings.task]()
    for name in settings.tuned:
        copies = deepcopy(models)
        for copy in copies:
            copy.scheme = METHODS[name](settings, copy.scheme)
        after = train(
            copies,
            task,
            length=4 * settings.length,
            generators=[torch.Generator().manual_seed(2_000_000 + s) for s in seeds],
            **TUNING,
        )
        tuned: list[dict[str, Any]] = evaluate(copies, settings, seeds)
        for s, counts in enumerate(tuned):
            counts["trained"] = _last(after[s])
        tests[f"tuned {name}"] = tuned
    seconds = (time.process_time() - start) / len(seeds)
    return [
        {
            "settings": as_stored(settings),
            "seed": seed,
            "trained": _last(losses[s]),
            "total": next(iter(tests.values()))[s]["total"],
            "tests": {
                name: {part: x for part, x in counts[s].items() if part != "total"}
                for name, counts in tests.items()
            },
            "versions": versions() | ({"text": task.data} if task.data else {}),
            "commit": commit,
            "device": device,
            "seconds": round(seconds, 2),
            "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        for s, seed in enumerate(seeds)
    ]


def versions() -> dict[str, str]:
    """What the numbers of a run may depend on besides its settings.

    Chapter: 06
    """
    return {
        "posenc_lib": posenc_lib.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _commit() -> str | None:
    """The commit that the library is at, if a repository has its files."""
    here = Path(__file__)
    git = partial(
        subprocess.run, cwd=here.parent, capture_output=True, text=True, check=True
    )
    try:
        # An environment may lie inside a repository that does not know it.
        git(["git", "ls-files", "--error-unmatch", here.name])
        found = git(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(found.stdout.strip())
