"""Longer runs: made by a command, stored with their settings, read by chapters."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks, embedding, scheme
from posenc_lib.bias import T5Bias
from posenc_lib.lab.model import TinyTransformer
from posenc_lib.lab.tasks import Task, common_token, k_back
from posenc_lib.lab.train import correct_by_position, train
from posenc_lib.scheme import PositionScheme

TASKS: dict[str, Task] = {"three-back": k_back(3), "common-token": common_token()}


@dataclass(frozen=True)
class Settings:
    """All that a run depends on besides its scheme and its seed.

    Args:
        task: a name in `TASKS`.
        length: T of the training sequences.
        lengths: T of the test sequences.
        sequences: test sequences of each length.
        steps, batch, lr: of `train`.
        width, heads, layers, masked: of `TinyTransformer`.

    Raises:
        TypeError, ValueError: the task is unknown; a number but `lr` is not an integer
            ≥ 1; `lengths` is empty; a length is too short for the task.

    Chapter: 06
    """

    task: str
    length: int = 32
    lengths: tuple[int, ...] = (32, 64, 128, 256)
    sequences: int = 256
    steps: int = 400
    batch: int = 64
    lr: float = 0.01
    width: int = 32
    heads: int = 1
    layers: int = 1
    masked: bool = False

    def __post_init__(self) -> None:
        _checks.one_of("task", self.task, tuple(TASKS))
        _checks.sizes(
            length=self.length,
            sequences=self.sequences,
            steps=self.steps,
            batch=self.batch,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
        )
        if not self.lengths:
            raise ValueError("lengths must name at least one length, got none")
        for length in (self.length, *self.lengths):
            TASKS[self.task].draw(1, length, torch.Generator())


EXPERIMENTS: dict[str, Settings] = {
    "three-back": Settings(
        "three-back", lengths=(32, 36, 40, 48, 64, 80, 96, 128, 192, 256)
    ),
    "common-token": Settings("common-token"),
    "rope-longer": Settings("three-back", sequences=64, masked=True),
}


def scrambled(positions: Tensor, dim: int) -> Tensor:
    """A deterministic formula without structure: positions' vectors are unrelated.

    Equation: PE(m, j) = √6 (frac(43758.5453 sin(12.9898 m + 78.233 j)) − ½)
    Shapes: positions (..., T) → (..., T, d)

    The fraction of a large multiple of a sine is a well-known cheap hash. The factor
    gives it the sinusoid's mean square, ½. Nobody uses it as an encoding; chapter 06
    needs one that can be computed and does not generalise.

    Args:
        positions: m.
        dim: d, at least 1.

    Raises:
        TypeError, ValueError: `positions` is not a tensor of integers, or `dim` is not
            an integer ≥ 1.

    Chapter: 06
    """
    m = _checks.position_tensor("positions", positions).to(torch.float64)
    _checks.whole_number("dim", dim, least=1)
    j = torch.arange(dim, dtype=torch.float64)
    large = 43758.5453 * torch.sin(12.9898 * m[..., None] + 78.233 * j)
    return (6**0.5 * (large - large.floor() - 0.5)).to(torch.float32)


def _redrawn(table: nn.Module, generator: torch.Generator) -> nn.Module:
    """A table with entries from N(0, 0.02²), in float64 as `train_run` explains."""
    for entries in table.double().parameters():
        nn.init.normal_(entries, std=0.02, generator=generator)
    return table


def _t5(
    settings: Settings, generator: torch.Generator, buckets: int, far: int
) -> PositionScheme:
    """T5's bias, in both directions where nothing is masked."""
    table = T5Bias(
        settings.heads,
        bidirectional=not settings.masked,
        num_buckets=buckets,
        max_distance=far,
        std=0.02,
    )
    return PositionScheme("bias", bias=_redrawn(table, generator))


# The scheme of a run. A learned table gets a row for every position that is tested, as
# training leaves them.
SCHEMES: dict[str, Callable[[Settings, torch.Generator], PositionScheme]] = {
    "nope": lambda s, g: scheme.NOPE,
    "sinusoid": lambda s, g: scheme.sinusoidal(s.width),
    "learned": lambda s, g: PositionScheme(
        "learned",
        embedding=_redrawn(
            embedding.LearnedEmbedding(max(s.length, *s.lengths), s.width), g
        ),
    ),
    "scrambled": lambda s, g: PositionScheme(
        "scrambled", embedding=partial(scrambled, dim=s.width)
    ),
    "bias": lambda s, g: _t5(s, g, 16, 12),
    "bias-128": lambda s, g: _t5(s, g, 32, 128),
    "rope": lambda s, g: scheme.rope(s.width // s.heads),
    "rope-100": lambda s, g: scheme.rope(s.width // s.heads, base=100.0),
    "rope-half": lambda s, g: scheme.rope(
        s.width // s.heads, rotary_dim=s.width // s.heads // 2
    ),
    "rope-half-100": lambda s, g: scheme.rope(
        s.width // s.heads, base=100.0, rotary_dim=s.width // s.heads // 2
    ),
}


def train_run(
    settings: Settings, name: str, seed: int, *, progress: bool = False
) -> tuple[TinyTransformer, list[float]]:
    """Build the model of a run and train it.

    Shapes: → the model, and the loss of each step

    One generator, seeded with `seed`, draws the scheme's parameters, then the weights,
    then the batches. Training runs in float64, so that another processor's rounding,
    which training magnifies, does not change the result.

    Args:
        settings: the settings.
        name: of the scheme, in `SCHEMES`.
        seed: of everything random.
        progress: as in `train`.

    Raises:
        ValueError: the scheme is unknown; then as `train`.

    Chapter: 06
    """
    _checks.one_of("name", name, tuple(SCHEMES))
    generator = torch.Generator().manual_seed(seed)
    task = TASKS[settings.task]
    model = TinyTransformer(
        task.vocabulary,
        SCHEMES[name](settings, generator),
        width=settings.width,
        heads=settings.heads,
        layers=settings.layers,
        masked=settings.masked,
        dtype=torch.float64,
        generator=generator,
    )
    return train(
        model,
        task,
        length=settings.length,
        steps=settings.steps,
        batch=settings.batch,
        lr=settings.lr,
        generator=generator,
        progress=progress,
    )


def evaluate(
    model: TinyTransformer,
    settings: Settings,
    seed: int,
    *,
    scheme: PositionScheme | None = None,
) -> dict[str, dict[str, list[int]]]:
    """Test a model at all lengths, and count the correct answers at each position.

    Equation: correct_m and total_m of `correct_by_position`, for each length T
    Shapes: → {"correct": {"T": [correct_0, …]}, "total": {"T": [total_0, …]}},
        with the keys as strings, as in JSON

    The test sequences come from a separate generator, so that runs with one seed are
    tested on the same ones.

    Args:
        model: the model.
        settings: task, lengths and number of sequences.
        seed: of the sequences.
        scheme: as in `correct_by_position`.

    Raises:
        TypeError, ValueError: as `correct_by_position`.

    Chapter: 06
    """
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    counts: dict[str, dict[str, list[int]]] = {"correct": {}, "total": {}}
    for length in settings.lengths:
        correct, total = correct_by_position(
            model,
            TASKS[settings.task],
            length,
            sequences=settings.sequences,
            generator=generator,
            scheme=scheme,
        )
        counts["correct"][str(length)] = correct.tolist()
        counts["total"][str(length)] = total.tolist()
    return counts


def last_loss(losses: list[float]) -> float:
    """The mean loss of the last 20 steps, as it is stored."""
    last = losses[-20:]
    return round(sum(last) / len(last), 6)


def run(
    settings: Settings, name: str, seed: int, *, progress: bool = False
) -> dict[str, Any]:
    """One run, ready to be stored: its last loss, and the counts of `evaluate`.

    Shapes: → {"scheme": name, "seed": seed, "loss": number,
        "correct": {…}, "total": {…}}

    Args:
        settings, name, seed, progress: as in `train_run`.

    Raises:
        ValueError: as `train_run`.

    Chapter: 06
    """
    model, losses = train_run(settings, name, seed, progress=progress)
    return {
        "scheme": name,
        "seed": seed,
        "loss": last_loss(losses),
        **evaluate(model, settings, seed),
    }


def versions() -> dict[str, str]:
    """What the numbers of a run may depend on besides its settings.

    Chapter: 06
    """
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
    }


def sweep(
    path: Path,
    settings: Settings,
    names: Iterable[str],
    seeds: Iterable[int],
    *,
    make: Callable[..., dict[str, Any]] = run,
    progress: bool = False,
) -> dict[str, Any]:
    """All runs of some schemes and seeds, stored in a file after each of them.

    Shapes: → {"settings": {…}, "versions": {…}, "runs": [run, …]}

    Args:
        path: the JSON file, made or added to; runs that it has are kept.
        settings: of all runs in the file.
        names: schemes, in `SCHEMES`.
        seeds: seeds.
        make: makes one run, as `run` and `extension_run` do.
        progress: as in `train`.

    Raises:
        ValueError: a scheme is unknown; the file is not one of runs, or it has other
            settings or versions. OSError: the file can't be written. All of it before
            anything is run.

    Chapter: 06
    """
    names = [_checks.one_of("names", name, tuple(SCHEMES)) for name in names]
    stored = stored_or_new(path, asdict(settings), versions())
    check_writable(path)
    done = {(r["scheme"], r["seed"]) for r in stored["runs"]}
    for name, seed in ((name, seed) for seed in seeds for name in names):
        if (name, seed) not in done:
            stored["runs"].append(make(settings, name, seed, progress=progress))
            stored["runs"].sort(key=lambda r: (r["scheme"], r["seed"]))
            write(path, stored)
    return stored


def load(name: str) -> dict[str, Any]:
    """Stored runs by name, as `sweep` left them, or what `lab.costs` measured.

    Shapes: → {"settings": Settings (a dict for "costs"), "versions": {…},
        "runs": [run, …]}

    Args:
        name: "three_back", "costs" or another file of the package.

    Raises:
        ValueError: there is no such file.

    Chapter: 06
    """
    folder = files("posenc_lib.lab").joinpath("data")
    known = tuple(
        sorted(
            file.name.removesuffix(".json")
            for file in folder.iterdir()
            if file.name.endswith(".json")
        )
    )
    _checks.one_of("name", name, known)
    stored: dict[str, Any] = json.loads(
        folder.joinpath(f"{name}.json").read_text(encoding="utf-8")
    )
    settings = stored["settings"]
    if "task" in settings:
        stored["settings"] = Settings(
            **{**settings, "lengths": tuple(settings["lengths"])}
        )
    return stored


def accuracies(
    stored: dict[str, Any],
    name: str,
    length: int,
    first: int = 0,
    last: int | None = None,
) -> Tensor:
    """For each stored run of a scheme, the share of correct answers at one test length.

    Equation: Σ_m correct_m / Σ_m total_m over positions m = first … last − 1
    Shapes: → (runs,), float64

    Args:
        stored: what `load` returned.
        name: the scheme of the runs.
        length: T of the test sequences.
        first: the first position that counts.
        last: one more than the last position that counts; None is T.

    Raises:
        ValueError: no run has this scheme, or none was tested at this length.

    Chapter: 06
    """
    runs = [run for run in stored["runs"] if run["scheme"] == name]
    if not runs:
        known = sorted({run["scheme"] for run in stored["runs"]})
        raise ValueError(f"name must be one of {', '.join(known)}; got {name!r}")
    key, tested = str(length), runs[0]["total"]
    if key not in tested:
        raise ValueError(f"length must be one of {', '.join(tested)}; got {length}")
    part = slice(first, last)
    shares = [
        sum(run["correct"][key][part]) / sum(run["total"][key][part]) for run in runs
    ]
    return torch.tensor(shares, dtype=torch.float64)


def stored_or_new(
    path: Path, settings: dict[str, Any], versions: dict[str, str]
) -> dict[str, Any]:
    """The file's runs, if it is of these settings and versions; none without a file."""
    expected = json.loads(json.dumps({"settings": settings, "versions": versions}))
    if not path.exists():
        return {**expected, "runs": []}
    stored = _read(path)
    for part, wanted in expected.items():
        found = stored[part]
        keys = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
        if keys:
            raise ValueError(
                f"{path} holds runs with {part} {_named(found, keys)}, "
                f"asked for {_named(wanted, keys)}: name another file"
            )
    return stored


def _named(values: dict[str, Any], keys: Iterable[str]) -> str:
    """Some of the values, each with its name."""
    return ", ".join(f"{key} = {values.get(key)!r}" for key in keys)


def _read(path: Path) -> dict[str, Any]:
    """A file of runs as `write` leaves it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, name a file in it")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not a whole file of runs ({error}): mend or remove it, "
            "or name another file"
        ) from error
    kinds = {"settings": dict, "versions": dict, "runs": list}
    if not isinstance(stored, dict) or not all(
        isinstance(stored.get(part), kind) for part, kind in kinds.items()
    ):
        raise ValueError(
            f"{path} is not a file of runs, which has {', '.join(kinds)}: "
            "name another file"
        )
    return stored


def check_writable(path: Path) -> None:
    """Whether `write` can store there, found out before hours of training."""
    part = _part(path)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise type(error)(f"{path} can't be written: {error.strerror}") from error


def write(path: Path, stored: dict[str, Any]) -> None:
    """One line for each run; a stop while writing leaves the old file whole."""
    runs = ",\n".join(json.dumps(r, separators=(",", ":")) for r in stored["runs"])
    head = json.dumps(
        {key: part for key, part in stored.items() if key != "runs"}, indent=1
    )
    text = f'{head[:-2]},\n "runs": [\n{runs}\n]}}\n'
    part = _part(path)
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _part(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".part")
