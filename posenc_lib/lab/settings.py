"""What a run depends on besides its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.lab.tasks import TASKS, Task
from posenc_lib.lab.train import ADAM, Recipe

POSITIONS = ("in order", "randomised", "randomised reals", "coupled")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
AS_TRAINED = "as trained"
SIZES = (
    *("length", "sequences", "steps", "batch", "width", "heads", "layers", "block"),
)


@dataclass(frozen=True)
class Settings:
    """All that a run depends on besides its seed.

    Args:
        task: a name in `TASKS`.
        scheme: a name in `SCHEMES`; both are looked up when a run is made.
        recipe: optimiser and rate.
        length: T of the training sequences.
        lengths: T of the test sequences.
        sequences: test sequences of each length.
        steps, batch: of `train`.
        width, heads, layers, masked: of `TinyTransformer`.
        positions: of training and test: "in order", 0 … T−1; "randomised", an ordered
            sample of as many integers below twice the longest length; "randomised
            reals", of real numbers; "coupled", those that the task gives to tokens of
            equal rank.
        tests: names in `METHODS`: schemes under which the trained weights are tested.
        tuned: some of the same, under which copies are trained a little further, with
            `TUNING` at four times the length, before they are tested.
        dtype: "float64", in which another processor's rounding, which training
            magnifies, does not change the result; or "float32", in which it does.
        block: positions whose answers are counted together.

    Raises:
        TypeError, ValueError: an unknown dtype or kind of positions; a number that is
            not an integer ≥ 1; `lengths` without the trained length, `tests` without
            "as trained".

    Chapter: 06
    """

    task: str
    scheme: str
    recipe: Recipe = ADAM
    length: int = 32
    lengths: tuple[int, ...] = (32, 64, 128, 256)
    sequences: int = 256
    steps: int = 400
    batch: int = 64
    width: int = 32
    heads: int = 1
    layers: int = 1
    masked: bool = False
    positions: str = "in order"
    tests: tuple[str, ...] = (AS_TRAINED,)
    tuned: tuple[str, ...] = ()
    dtype: str = "float64"
    block: int = 1

    def __post_init__(self) -> None:
        _checks.one_of("positions", self.positions, POSITIONS)
        _checks.one_of("dtype", self.dtype, tuple(DTYPES))
        if not isinstance(self.recipe, Recipe):
            raise TypeError(f"recipe must be a Recipe, got {self.recipe!r}")
        for name in SIZES:  # Python's numbers and tuples, as rows have them
            size = _checks.whole_number(name, getattr(self, name), least=1)
            object.__setattr__(self, name, size)
        for name in ("lengths", "tests", "tuned"):
            object.__setattr__(
                self, name, tuple(_checks.sequence(name, getattr(self, name)))
            )
        lengths = [_checks.whole_number("lengths", T, least=1) for T in self.lengths]
        object.__setattr__(self, "lengths", tuple(lengths))
        if self.length not in self.lengths:
            raise ValueError(
                f"lengths must contain the trained length {self.length}, which says "
                f"whether a run has learned its task; got {self.lengths}"
            )
        if AS_TRAINED not in self.tests:
            raise ValueError(f"tests must contain {AS_TRAINED!r}, got {self.tests}")

    @property
    def longest(self) -> int:
        """The longest sequence of training and test."""
        return max(self.length, *self.lengths)

    @property
    def last_position(self) -> int:
        """The largest position there is."""
        if self.positions == "in order":
            return self.longest - 1
        if self.positions == "coupled":
            return int(coupled(TASKS[self.task](), self.longest).max())
        return 2 * self.longest - 1


def coupled(task: Task, length: int, start: int = 0) -> Tensor:
    """The task's positions for tokens of equal rank."""
    assert task.coupled is not None  # as `runs.check` has found out
    return task.coupled(length, start)


def as_stored(settings: Settings) -> dict[str, Any]:
    """Settings as a row has them, in the types of JSON."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(settings).items()
    }


def from_stored(stored: Mapping[str, Any]) -> Settings:
    """The settings of a row.

    Equation: settings of `from_stored(row["settings"])` make the row again

    Args:
        stored: row["settings"].

    Raises:
        TypeError, ValueError: as `Settings`; a key that is no setting.

    Chapter: 06
    """
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in stored.items()
    }
    return Settings(**{**given, "recipe": Recipe(**given["recipe"])})
