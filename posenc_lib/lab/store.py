"""Rows of runs in a file: one line each, appended when the run is done."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.lab.settings import AS_TRAINED, Settings, from_stored

Row = dict[str, Any]
START = b'{"settings":'  # how each row begins
ZIPPED = ".jsonl.gz"  # of the library's own stores: rows repeat one another
KINDS = {"settings": dict, "seed": int, "tests": dict, "total": dict, "versions": dict}


def read(path: Path) -> list[Row]:
    """The rows of a store.

    A last line that is the beginning of a row was cut while it was written, so that its
    run is not done: it is left out.

    Args:
        path: the file; without one there are no rows.

    Raises:
        ValueError: a line that is not a row, with its number. OSError: the file can't
            be read.

    Chapter: 21
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise OSError(f"{path} is not a file, name one for the rows")
    *lines, last = path.read_bytes().split(b"\n")
    if last and not _is_cut(last):
        lines.append(last)
    return [_row(path, number, line) for number, line in enumerate(lines, 1)]


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _is_cut(line: bytes) -> bool:
    """Whether a line without its end is the beginning of a row, and no whole one."""
    if not (line.startswith(START) or START.startswith(line)):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _row(path: Path, number: int, line: bytes) -> Row:
    """One line of a store, checked."""
    try:
        row = json.loads(line, parse_constant=_no_number)
    except ValueError as error:  # of JSON or of UTF-8
        raise ValueError(
            f"{path} line {number} is not a row of a run ({error}): mend or remove the "
            "line, or name another file"
        ) from error
    if not isinstance(row, dict) or not all(
        isinstance(row.get(part), kind) for part, kind in KINDS.items()
    ):
        raise ValueError(
            f"{path} line {number} is not a row of a run, which has "
            f"{', '.join(KINDS)}: name another file"
        )
    try:
        from_stored(row["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} line {number} has settings of no run ({error}): mend or remove "
            "the line, or name another file"
        ) from error
    return row


class Store:
    """A file of rows that one process adds to.

    Args:
        path: the file, made if it is not there.

    Raises:
        ValueError: as `read`. OSError: the file can't be written, or another process
            adds to it; before anything is run.

    Chapter: 21
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read(path)

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Keep the file for this process, and take a cut line away."""
        lock = FileLock(f"{self.path.resolve()}.lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise OSError(
                f"{self.path} is being added to by another process: wait for it, or "
                "name another file"
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self.rows = read(self.path)
            self._end_last_line()
            yield self
        finally:
            lock.release()

    def _end_last_line(self) -> None:
        """Take a cut line away, and end a whole one that has lost its end."""
        try:
            with self.path.open("ab+") as file:
                file.seek(0)
                *_, last = file.read().split(b"\n")
                if _is_cut(last):
                    file.truncate(file.tell() - len(last))
                elif last:
                    file.write(b"\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none: what a full disk cuts is taken back."""
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        left = text.encode()
        size = self.path.stat().st_size
        try:
            with self.path.open("ab", buffering=0) as file:
                try:
                    while left:
                        left = left[file.write(left) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.rows += rows


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(f"{path} can't be written: {error.strerror}")


def stored_names() -> tuple[str, ...]:
    """The stores that come with the library."""
    folder = files("posenc_lib.lab").joinpath("data")
    names = (file.name for file in folder.iterdir())
    return tuple(
        sorted(name[: -len(ZIPPED)] for name in names if name.endswith(ZIPPED))
    )


def load(name: str | Path = "sweep") -> list[Row]:
    """The rows of a store that comes with the library, or of a file.

    Shapes: → a row for each run, as `run` makes them

    Args:
        name: "sweep" or another one of the library's; or the path of a file.

    Raises:
        ValueError: there is no such store; a line of it is not a row.

    Chapter: 06
    """
    if isinstance(name, Path):
        if not name.exists():
            raise ValueError(f"name must be a file of rows, {name} is not there")
        return read(name)
    _checks.one_of("name", name, stored_names())
    zipped = files("posenc_lib.lab").joinpath("data", f"{name}{ZIPPED}").read_bytes()
    lines = gzip.decompress(zipped).splitlines()
    return [_row(Path(name), number, line) for number, line in enumerate(lines, 1)]


def select(rows: Iterable[Row], **settings: Any) -> list[Row]:
    """The rows with these settings.

    Args:
        rows: of `load`.
        settings: any fields of `Settings`, or `seed`; `recipe` is a `Recipe` or the
            name of its optimiser. A tuple of several values takes all of them, but for
            the fields that are tuples themselves.

    Raises:
        TypeError: `Settings` has no such field; ValueError: no row has them.

    Chapter: 06
    """
    known = {field.name for field in fields(Settings)} | {"seed"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise TypeError(
            f"{unknown[0]} is no setting of a run; there are {', '.join(sorted(known))}"
        )
    found = [row for row in rows if all(_has(row, *item) for item in settings.items())]
    if not found:
        raise ValueError(f"no row has {_named(settings)}")
    return found


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in settings.items())


def _has(row: Row, key: str, wanted: Any) -> bool:
    """Whether a row has a setting, or one of several."""
    value = row["seed"] if key == "seed" else row["settings"][key]
    if isinstance(value, list):
        return value == list(_checks.sequence(key, wanted))
    if isinstance(wanted, tuple | list | range | set):
        return any(_has(row, key, one) for one in wanted)
    if key == "recipe":
        recipe = wanted if isinstance(wanted, str) else vars(wanted)
        return recipe in (value, value["optimiser"])
    return bool(value == wanted)


def accuracies(
    rows: Iterable[Row],
    length: int,
    first: int = 0,
    last: int | None = None,
    *,
    test: str = AS_TRAINED,
) -> Tensor:
    """For each row, the share of correct answers at one test length.

    Equation: Σ_m correct_m / Σ_m total_m over positions m = first … last − 1
    Shapes: → (rows,), float64

    Args:
        rows: of `load` or `select`.
        length: T of the test sequences.
        first: the first position that counts.
        last: one more than the last position that counts; None is T. Both are multiples
            of the setting `block`.
        test: the test: "as trained", or another one that the rows have.

    Raises:
        ValueError: there is no row, a row was not tested like this, or a block is cut.

    Chapter: 06
    """
    shares = []
    for row in rows:
        key, block = str(length), row["settings"]["block"]
        tests = row["tests"]
        _checks.one_of("test", test, tuple(tests))
        if key not in row["total"]:
            raise ValueError(
                f"length must be one of {', '.join(row['total'])}; got {length}"
            )
        for name, value in (("first", first), ("last", last)):
            if value is not None and value % block:
                raise ValueError(f"{name} must be a multiple of {block}, got {value}")
        end = length if last is None else last
        if not 0 <= first < end <= length:
            raise ValueError(
                f"first and last must be 0 ≤ first < last ≤ {length}, got {first} and "
                f"{end}"
            )
        part = slice(first // block, -(-end // block))
        asked = sum(row["total"][key][part])
        if not asked:
            raise ValueError(
                "first and last must leave positions where something is asked, "
                f"{first} to {end} have none"
            )
        shares.append(sum(tests[test]["correct"][key][part]) / asked)
    if not shares:
        raise ValueError("rows must be at least one, got none")
    return torch.tensor(shares, dtype=torch.float64)
