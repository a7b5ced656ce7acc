"""The command that plans, makes and reports runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.lab import own

from posenc_lib import lab
from posenc_lib.__main__ import main
from posenc_lib.lab import command, experiments, schemes
from posenc_lib.lab.store import read
from posenc_lib.lab.sweep import Progress


@pytest.fixture(autouse=True)
def tables() -> Any:
    """A reader's file adds to the library's tables; the tests after it have theirs."""
    kept = [(table, dict(table)) for table in (lab.SCHEMES, lab.TASKS, lab.EXPERIMENTS)]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)
    for name in [name for name in sys.modules if name.startswith("posenc_lab_")]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(own(), encoding="utf-8")
    return tmp_path


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str, str]:
    try:
        status = main(["lab", *map(str, arguments)])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


OWN = ("own", "--with", "own.py")
RUN = ("run", *OWN, "--out", "runs.jsonl", "--jobs", "1")


def test_plan_run_and_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "plan", *OWN, "--seeds", "3", "--json")
    planned = json.loads(out)
    assert status == 0
    assert planned["left"] == 12
    assert planned["experiments"]["own"]["runs"] == 12
    assert 0 <= planned["hours"] < 0.1

    status, out, err = run(capsys, *RUN, "--seeds", "2")
    assert (status, out) == (0, "runs.jsonl: 8 new runs, 8 in all\n")
    assert "8 runs made, 0 left" in err
    status, out, _ = run(capsys, *RUN, "--seeds", "3", "--json")
    assert json.loads(out) == {
        "file": "runs.jsonl",
        "runs": 12,
        "new": 4,
        "failed": [],
        "left": 0,
    }
    rows = read(Path("runs.jsonl"))
    assert {row["settings"]["scheme"] for row in rows} == {"rope-7", "t5"}

    status, out, _ = run(
        capsys, "plan", *OWN, "--seeds", "4", "--out", "runs.jsonl", "--jobs", "2"
    )
    first, last = out.splitlines()
    assert re.fullmatch(r"own +16 runs, +4 left, \d+ s", first)
    assert re.fullmatch(
        r"4 runs to make: about \d+ s of one core, \d+ s on 2 cores", last
    )

    del lab.TASKS["two-back"]  # another process does not have it
    del lab.SCHEMES["rope-7"]
    status, out, _ = run(capsys, "report", "runs.jsonl", "--out", "report")
    assert (status, out) == (0, "12 runs: report/report.md and 2 other files\n")
    text = Path("report/report.md").read_text(encoding="utf-8")
    assert "rope-7" in text  # the reader's scheme, in the table …
    assert Path("report/01-two-back.png").stat().st_size > 5000  # … and the figure


def test_a_choice_of_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = (*RUN, "--seeds", "1")
    assert run(capsys, *call, "--scheme", "rope-7", "--task", "two-back")[0] == 0
    rows = read(Path("runs.jsonl"))
    assert [row["settings"]["scheme"] for row in rows] == ["rope-7", "rope-7"]
    status, out, _ = run(capsys, *call, "--minutes", "1e-9")
    assert (status, out.splitlines()[-1]) == (
        0,
        "2 runs are left; the same command makes them",
    )


def test_help_says_what_experiments_and_schemes_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(experiments.EXPERIMENTS_IN_WORDS) == list(lab.EXPERIMENTS)
    assert list(schemes.SCHEMES_IN_WORDS) == list(lab.SCHEMES)
    status, out, _ = run(capsys, "run", "--help")
    assert status == 0
    for words in (experiments.EXPERIMENTS_IN_WORDS, schemes.SCHEMES_IN_WORDS):
        for name, meaning in words.items():
            assert any(line.split("  ")[1:2] == [name] for line in out.splitlines())
            assert meaning in out
    assert "example: posenc lab run causal" in out
    for part in ("plan", "report"):
        assert run(capsys, part, "--help")[0] == 0


def test_the_sweep_is_what_it_is_called() -> None:
    sweep = [s for name in lab.EXPERIMENTS for s in lab.EXPERIMENTS[name]]
    assert len(set(sweep)) == len(sweep)
    causal = lab.EXPERIMENTS["causal"]
    assert len({s.scheme for s in causal}) >= 12
    assert len({s.task for s in causal}) == 6
    assert {s.recipe for s in sweep if s not in lab.EXPERIMENTS["chapters"]} == set(
        lab.RECIPES.values()
    )
    for s in sweep:
        assert 7 * s.length < max(s.lengths) <= 8 * s.length
    wide = [s for s in sweep if s.width == 64 and s.dtype == "float32"]
    assert {"sinusoid", "t5", "rope"} <= {s.scheme for s in wide}
    assert len({s.task for s in wide}) == 2
    command_line = command.duration
    assert [command_line(x) for x in (3, 600, 7200)] == ["3 s", "10 min", "2.0 h"]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("trained before the error was found")

    monkeypatch.setattr(sys.modules[lab.sweep.__module__], "run", fail)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--seeds", "0"), "seeds must be at least 1, got 0"),
        (("--seeds", "many"), "argument --seeds: invalid int value: 'many'"),
        (("--jobs", "-1"), "jobs must be at least 1, got -1"),
        (("--minutes", "0"), "minutes must be finite and above 0, got 0"),
        (("--scheme", "typo"), "scheme must be one of nope, sinusoid, "),
        (("--task", "typo"), "no run has this scheme and this task: the experiments"),
        (("--with", "missing.py"), "missing.py can't be read: No such file"),
        (("--with", "broken.py"), "NameError: name 'nothing' is not defined"),
        (("--with", "untidy.py"), "SyntaxError: '(' was never closed"),
        (("--out", "folder"), "folder is not a file, name one for the rows"),
        (("--out", "/dev/full"), "/dev/full is not a file, name one for the rows"),
        (("--out", "own.py/runs.jsonl"), "runs.jsonl can't be written: "),
        (("--out", "other.jsonl"), "other.jsonl line 1 is not a row of a run"),
        (("--device", "gpu"), "device must be cpu or cuda, as PyTorch names it"),
    ],
)
def test_errors_are_one_line_before_anything_is_trained(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    message: str,
) -> None:
    Path("folder").mkdir()
    Path("broken.py").write_text("nothing")
    Path("untidy.py").write_text("print(")
    Path("other.jsonl").write_text("{}\n")
    status, shown, err = run(capsys, *RUN, *given)
    assert (status, shown, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("run",), "the following arguments are required: --out"),
        ((), "the following arguments are required: COMMAND"),
        (("report", "typo.jsonl", "--out", "x"), "name must be a file of rows, typo"),
        (("plan", "typo"), "experiment must be one of chapters, causal, "),
    ],
)
def test_other_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], message: str
) -> None:
    status, shown, err = run(capsys, *given)
    assert (status, shown, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_runs_that_fail_are_named_and_the_exit_code_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.py").write_text(own() + "lab.SCHEMES['t5'] = lambda s, g: 1 / 0\n")
    status, out, _ = run(capsys, *RUN, "--seeds", "1")
    assert status == 1
    assert out.splitlines() == [
        "runs.jsonl: 2 new runs, 2 in all",
        *["failed: two-back, t5: ZeroDivisionError: division by zero"] * 2,
    ]


def test_an_interrupt_names_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[lab.sweep.__module__], "run", interrupt)
    status, _, err = run(capsys, *RUN)
    assert status == 130
    assert err.splitlines()[-1] == (
        "interrupted; finished runs are stored in runs.jsonl, "
        "and the same command makes the others"
    )


@pytest.mark.parametrize("package", ["joblib", "statsmodels"])
def test_a_package_that_is_missing_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
) -> None:
    assert run(capsys, *RUN, "--seeds", "1")[0] == 0  # on one core it needs neither
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    call = {
        "joblib": (*RUN, "--jobs", "2"),
        "statsmodels": ("report", "runs.jsonl", "--out", "report"),
    }[package]
    status, _, err = run(capsys, *call)
    assert status == 2
    assert err.splitlines()[-1] == (
        f"error: this needs {package}: pip install 'posenc-lib[lab]'"
    )


def test_progress_is_one_line_in_words() -> None:
    for progress, words in (
        (Progress(0, (), 40, 0.0, None), "0 runs made, 40 left"),
        (Progress(10, (), 30, 5.0, 15.0), "10 runs made, 30 left, about 15 s"),
        (
            Progress(10, ("why",), 20, 5.0, 7200.0),
            "10 runs made, 20 left, 1 groups failed, about 2.0 h",
        ),
    ):
        assert command.in_words(progress) == words
