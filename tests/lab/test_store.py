"""The file of rows: appended to, cut, full, shared, read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.lab import TINY, tiny

from posenc_lib import lab
from posenc_lib.lab.settings import as_stored
from posenc_lib.lab.store import Store, read


@pytest.fixture(scope="module")
def rows() -> list[lab.Row]:
    return lab.run(TINY, [0, 1, 2])


def test_rows_come_back(tmp_path: Path, rows: list[lab.Row]) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path).open() as opened:
        opened.add(rows[:2])
        opened.add(rows[2:])
        assert opened.rows == rows
    assert read(path) == lab.load(path) == rows
    assert path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("cut", [2, 5, 200])
def test_a_cut_line_is_a_run_that_is_not_done(
    tmp_path: Path, rows: list[lab.Row], cut: int
) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path).open() as opened:
        opened.add(rows)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read(path) == rows[:2]
    with Store(path).open() as opened:
        assert opened.rows == rows[:2]
        assert path.read_bytes().endswith(b"}\n")
        opened.add(rows[2:])
    assert read(path) == rows


def test_a_row_that_has_lost_its_line_end_is_kept(
    tmp_path: Path, rows: list[lab.Row]
) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path).open() as opened:
        opened.add(rows[:2])
    path.write_bytes(path.read_bytes()[:-1])
    assert read(path) == rows[:2]
    with Store(path).open() as opened:
        opened.add(rows[2:])
    assert read(path) == rows


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious.json"
    path.write_text('{"precious": 1}')
    with pytest.raises(ValueError, match="line 1 is not a row"), Store(path).open():
        raise AssertionError
    assert path.read_text() == '{"precious": 1}'


def test_a_link_is_the_file_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "runs.jsonl")
    with (
        Store(tmp_path / "runs.jsonl").open(),
        pytest.raises(OSError, match="by another process"),
        Store(tmp_path / "link.jsonl").open(),
    ):
        raise AssertionError


def test_a_full_disk_leaves_whole_rows(tmp_path: Path, rows: list[lab.Row]) -> None:
    """A limit on the size of files: a write that fails in the middle of a row."""
    resource = pytest.importorskip("resource")
    path, line = tmp_path / "runs.jsonl", len(json.dumps(rows[0]))
    code = f"""
import json, resource, signal
from pathlib import Path
from posenc_lib.lab.store import Store
rows = json.loads({json.dumps(json.dumps(rows))})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({line * 3 // 2}, {line * 3 // 2}))
with Store(Path({str(path)!r})).open() as store:
    store.add(rows[:1])
    try:
        store.add(rows[1:])
    except OSError as error:
        print(error)
    assert store.rows == rows[:1]
"""
    assert resource
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{path} can't be written: File too large\n"
    assert read(path) == rows[:1]
    with Store(path).open() as opened:
        assert opened.rows == rows[:1]
        opened.add(rows[1:])
    assert read(path) == rows


def test_one_process_adds_at_a_time(tmp_path: Path, rows: list[lab.Row]) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path).open() as opened:
        with (
            pytest.raises(OSError, match=r"runs\.jsonl is being added to by another"),
            Store(path).open(),
        ):
            raise AssertionError
        opened.add(rows)
    with Store(path).open() as opened:
        assert opened.rows == rows


def test_select_and_accuracies() -> None:
    settings = [
        tiny(scheme=s, recipe=r) for s in ("nope", "t5") for r in (lab.ADAM, lab.SGD)
    ]
    found = [row for one in settings for row in lab.run(replace(one, block=4), [0, 1])]
    assert len(lab.select(found)) == 8
    assert len(lab.select(found, scheme="t5", recipe="sgd")) == 2
    assert lab.select(found, recipe=lab.SGD) == lab.select(found, recipe="sgd")
    assert lab.select(found, scheme=("nope", "t5"), seed=1, lengths=(8, 12)) == [
        row for row in found if row["seed"] == 1
    ]
    some = lab.select(found, scheme="t5", recipe="adam")
    counts = [row["tests"]["as trained"]["correct"]["12"] for row in some]
    assert lab.accuracies(some, 12).tolist() == [sum(c) / 54 for c in counts]
    assert lab.accuracies(some, 12, 4).tolist() == [sum(c[1:]) / 48 for c in counts]
    assert lab.accuracies(some, 12, last=8).tolist() == [
        sum(c[:2]) / 30 for c in counts
    ]
    assert lab.accuracies(some, 12).dtype == torch.float64


def test_the_librarys_runs_of_the_chapters_are_whole() -> None:
    found = lab.load("chapters")
    runs = {(lab.from_stored(row["settings"]), row["seed"]) for row in found}
    assert len(runs) == len(found)
    assert runs == {(s, seed) for s in lab.EXPERIMENTS["chapters"] for seed in range(5)}
    for row in found:
        settings = lab.from_stored(row["settings"])
        for length in settings.lengths:
            asked = row["total"][str(length)]
            unasked = 3 if settings.task == "three-back" else 0
            assert sum(asked) == settings.sequences * (length - unasked)
            for test in row["tests"].values():
                right = test["correct"][str(length)]
                assert all(0 <= a <= b for a, b in zip(right, asked, strict=True))


# ---- refused input

PARTS = {"seed": 0, "tests": {}, "total": {}, "versions": {}}
ROW = json.dumps({"settings": as_stored(TINY), **PARTS})
NO_RUN = json.dumps({"settings": {"task": "back"}, **PARTS})
BROKEN = {
    "no json": ("{}\nnonsense\n", "line 1 is not a row of a run, which has settings"),
    "cut inside": (f"{ROW}\n{ROW[:9]}\n{ROW}\n", "line 2 is not a row of a run "),
    "no settings": (f"{ROW}\n{NO_RUN}\n", "line 2 has settings of no run "),
    "no number": (f'{ROW[:-1]}, "x": NaN}}\n', "line 1 is not a row of a run "),
    "a list": ("[1]\n", "line 1 is not a row of a run, which has settings, seed"),
    "binary": ("\udcff\n", "line 1 is not a row of a run "),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, case: str) -> None:
    text, message = BROKEN[case]
    path = tmp_path / "runs.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"{path} {message}"), Store(path).open():
        raise AssertionError
    assert path.read_bytes() == before


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "load": (
        lambda: lab.load("typo"),
        ValueError,
        "name must be one of 'chapters'.*; got 'typo'",
    ),
    "measured": (
        lambda: lab.measured("typo"),
        ValueError,
        "name must be one of 'costs', 'performance'; got 'typo'",
    ),
    "path": (
        lambda: lab.load(Path("not there")),
        ValueError,
        "name must be a file of rows, not there is not there",
    ),
    "a setting": (
        lambda: lab.select([], colour="red"),
        TypeError,
        "colour is no setting of a run; there are batch, block, ",
    ),
    "no row": (
        lambda: lab.select(lab.load("chapters"), scheme="fire"),
        ValueError,
        "no row has scheme = 'fire'",
    ),
    "no rows": (
        lambda: lab.accuracies([], 32),
        ValueError,
        "rows must be at least one, got none",
    ),
    "length": (
        lambda: lab.accuracies(lab.load("chapters"), 33),
        ValueError,
        "length must be one of 32, .*; got 33",
    ),
    "block": (
        lambda: lab.accuracies(lab.run(tiny(block=4), [0]), 12, 3),
        ValueError,
        "first must be a multiple of 4, got 3",
    ),
    "test": (
        lambda: lab.accuracies(lab.load("chapters")[:1], 32, test="window 1"),
        ValueError,
        "test must be one of 'as trained'; got 'window 1'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not a file, name one for the rows"):
        read(tmp_path)
    file = tmp_path / "file"
    file.touch()
    store = Store(file / "runs.jsonl")
    with pytest.raises(OSError, match=r"runs\.jsonl can't be written: "), store.open():
        raise AssertionError
