"""The command that makes runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.lab import TINY

from posenc_lib import lab
from posenc_lib.__main__ import main
from posenc_lib.lab import command, extending

LENGTHS = lab.EXPERIMENTS["three-back"].lengths
SIZES = ("--steps", "2", "--batch", "2", "--width", "8", "--sequences", "4")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The command sets the number of threads; the tests after it have theirs."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str, str]:
    try:
        status = main(["lab", *map(str, arguments)])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    call = ("three-back", "--scheme", "nope", "--out", path, "--length", "8", *SIZES)
    status, out, _ = run(capsys, *call, "--seeds", "3", "3")
    assert (status, out) == (0, f"{path}: 1 new runs, 1 in all\n")
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert [(r["scheme"], r["seed"]) for r in stored["runs"]] == [("nope", 3)]
    assert stored["settings"] == json.loads(
        json.dumps(vars(replace(TINY, lengths=LENGTHS, sequences=4)))
    )
    assert stored["versions"]["torch"] == torch.__version__

    status, out, _ = run(capsys, *call, "--seeds", "3", "4", "--json")
    assert status == 0
    assert json.loads(out) == {"file": str(path), "runs": 2, "new": 1}


def test_the_command_takes_flags_and_knows_who_makes_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "runs.json"
    monkeypatch.setitem(extending.TUNING, "steps", 20)
    call = ("rope-longer", "--no-masked", "--seeds", "3", "--out", path, *SIZES)
    assert run(capsys, *call)[0] == 0
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["settings"]["masked"] is False
    (made,) = stored["runs"]
    assert made["scheme"] == "rope"
    assert set(made["tuned"]) == set(extending.TUNED) < set(made["correct"])


def test_help_says_what_experiments_and_schemes_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(command.EXPERIMENTS_IN_WORDS) == list(lab.EXPERIMENTS)
    assert list(command.SCHEMES_IN_WORDS) == list(lab.SCHEMES)
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for words in (command.EXPERIMENTS_IN_WORDS, command.SCHEMES_IN_WORDS):
        for name, meaning in words.items():
            assert any(line.split("  ")[1:2] == [name] for line in out.splitlines())
            assert meaning in out


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("trained before the error was found")

    monkeypatch.setattr(command, "run", fail)
    monkeypatch.setitem(command.RUNNERS, "rope-longer", fail)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--steps", "0"), "steps must be an integer ≥ 1, got 0"),
        (("--heads", "0"), "heads must be an integer ≥ 1, got 0"),
        (("--sequences", "-1"), "sequences must be an integer ≥ 1, got -1"),
        (("--lengths", "32", "2"), "length must be an integer ≥ 4, got 2"),
        (("--steps", "many"), "argument --steps: invalid int value: 'many'"),
        (("--scheme", "typo"), "argument --scheme: invalid choice: 'typo'"),
        (("--out", "missing/runs.json"), "runs.json can't be written: No such file"),
        (("--out", "folder"), "folder is a folder, name a file in it"),
        (("--out", "cut.json"), "cut.json is not a whole file of runs"),
        (("--out", "empty.json"), "empty.json is not a whole file of runs"),
        (("--out", "binary.json"), "binary.json is not a whole file of runs"),
        (("--out", "list.json"), "list.json is not a file of runs, which has"),
        (("--out", "parts.json"), "parts.json is not a file of runs, which has"),
        (
            ("--out", "other.json"),
            "other.json holds runs with settings length = 8, lengths = [8, 12], ",
        ),
    ],
)
def test_errors_are_one_line_before_anything_is_trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    whole = tmp_path / "other.json"
    lab.sweep(whole, replace(TINY, sequences=4), ["nope"], [0])
    text = whole.read_text(encoding="utf-8")
    (tmp_path / "cut.json").write_text(text[: len(text) // 2], encoding="utf-8")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "parts.json").write_text('{"settings": {}}')
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    out = () if "--out" in given else ("--out", "runs.json")
    status, shown, err = run(capsys, "three-back", *given, *out)
    assert (status, shown, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: ")
    assert message in err
    assert before == {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}


@pytest.mark.usefixtures("no_training")
def test_a_folder_that_can_not_be_written_is_found_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def denied(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", denied)  # the tests may run as root
    path = tmp_path / "runs.json"
    status, _, err = run(capsys, "three-back", "--out", path)
    assert (status, err) == (2, f"error: {path} can't be written: Permission denied\n")


@pytest.mark.usefixtures("no_training")
def test_rope_longer_has_one_scheme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.json"
    call = ("rope-longer", "--scheme", "rope", "nope", "--out", path)
    status, _, err = run(capsys, *call)
    assert (status, err) == (
        2,
        "error: scheme must be rope in rope-longer, got nope\n",
    )


def test_a_loss_that_is_not_finite_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def diverge(*_: Any, **__: Any) -> None:
        raise FloatingPointError("the loss is nan at step 3 of 400")

    monkeypatch.setattr(command, "run", diverge)
    status, _, err = run(capsys, "three-back", "--out", tmp_path / "runs.json")
    assert (status, err) == (2, "error: the loss is nan at step 3 of 400\n")


def test_an_interrupt_names_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupt)
    path = tmp_path / "runs.json"
    status, _, err = run(capsys, "three-back", "--out", path)
    assert status == 130
    assert err.splitlines()[-1] == (
        f"interrupted; finished runs are stored in {path}, "
        "and the same command makes the others"
    )
