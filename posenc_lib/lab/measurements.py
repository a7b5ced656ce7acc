"""Measurements that are no runs: a JSON file for each kind of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from posenc_lib import _checks


def measured(name: str) -> dict[str, Any]:
    """What the library stores of measurements, which are no runs.

    Shapes: → {"settings": {…}, "versions": {…}, "runs": [{…}, …]}

    Args:
        name: "costs", what `lab.costs` measured of attention; or "performance", what
            the benchmarks measured.

    Raises:
        ValueError: there is no such file.

    Chapter: 08
    """
    _checks.one_of("name", name, ("costs", "performance"))
    file = files("posenc_lib.lab").joinpath("data", f"{name}.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


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
