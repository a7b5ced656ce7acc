"""The command line: what `posenc` prints, its JSON, its errors and its exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import posenc_lib
from posenc_lib import __main__ as command
from posenc_lib.__main__ import main
from posenc_lib._command import Answer
from posenc_lib.checkpoints import Checkpoint, read, shipped
from posenc_lib.zoo import find

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("inspect", "diff", "list", "zoo", "doctor", "lab")
# A small rotation as a module that can be named at the command line.
MODULE = """
import sys
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import RoPE
def apply(x, positions):
    print("called")
    return RoPE(inverse_frequencies(x.shape[-1]))(positions)(x)
def ends(x, positions):
    sys.exit(0)
def stops(x, positions):
    raise KeyboardInterrupt
def recurses(x, positions):
    raise RecursionError("too deep")
"""
Run = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Run:
    """Exit code, output and errors of a command, in this process."""
    try:
        status = main(list(arguments))
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def python(folder: Path, *arguments: str, **environment: str) -> list[Any]:
    """The command and the settings of a process that imports this library."""
    return [
        [sys.executable, *arguments],
        {
            "cwd": folder,
            "env": os.environ
            | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            | environment,
        },
    ]


def process(folder: Path, *arguments: str, **environment: str) -> Any:
    line, settings = python(folder, "-m", "posenc_lib", *arguments, **environment)
    return subprocess.run(line, capture_output=True, **settings)


def strict(text: str) -> Any:
    """Text as JSON without NaN and Infinity, which JSON does not have."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    assert text.isascii()
    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, new to each test."""
    name = f"mine_{len(sys.modules)}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


# ---- the program


def test_the_script_and_the_module_are_one_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"posenc": "posenc_lib.__main__:main"}
    done = process(tmp_path, "--version")
    version = f"posenc {posenc_lib.__version__}"
    assert (done.returncode, done.stdout.decode().splitlines()) == (0, [version])
    assert run(capsys, "--version") == (0, f"{version}\n", "")


def test_help_names_every_command_on_a_line_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert out.startswith("usage: posenc ")
    commands = out.split("COMMAND\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in commands] == list(NAMES)
    assert all(len(line.split()) > 3 for line in commands)
    for code in (0, 1, 2, 130):
        assert re.search(rf"^  {code} +\w", out, re.MULTILINE)


PARTS = ("lab run", "lab plan", "lab report")


@pytest.mark.parametrize("name", [*NAMES[:-1], *PARTS])
def test_help_of_a_command_has_its_exit_codes_json_keys_and_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, out, _ = run(capsys, *name.split(), "--help")
    assert status == 0
    assert out.startswith(f"usage: posenc {name} ")
    codes = re.findall(r"^exit codes: (.*)$", out, re.MULTILINE)
    one = "1 .*, " if name in ("diff", "doctor", "lab run") else ""
    assert re.fullmatch(rf"0 .*, {one}2 an error, 130 interrupted", *codes)
    assert "--json" in out
    assert f"example: posenc {name}" in out


def test_without_arguments_the_help_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shown, _ = run(capsys, "--help")
    assert run(capsys) == (2, "", shown)
    monkeypatch.setattr("sys.argv", ["posenc"])
    assert main() == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("inspect", "nonesuch"),
        ("inspect", "gpt2", "--plot", "x.none"),
        ("inspect", "gpt2", "--plot", "no/folder/x.png"),
        ("diff", "gpt2"),
        ("diff", "gpt2", "nonesuch"),
        ("look",),
        ("--loud",),
        ("list", "gpt2"),
        ("zoo",),
        ("zoo", "nonesuch"),
        ("doctor",),
        ("doctor", "no colon"),
        ("doctor", "no.such.module:apply"),
        ("doctor", "math:floor", "--base", "x"),
        ("lab", "nonesuch"),
    ],
)
def test_errors_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: ")


def test_an_interrupt_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_answer", stop)
    assert run(capsys, "list") == (130, "", "interrupted\n")
    monkeypatch.setattr(command, "parser", stop)  # while torch is imported
    assert run(capsys, "list") == (130, "", "interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    line, settings = python(tmp_path, "-m", "posenc_lib", "list")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(line, stdout=closed, stderr=subprocess.PIPE, **settings)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "encoding",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["cp1252", "C"],
)
def test_an_encoding_without_theta_loses_no_report(
    tmp_path: Path, encoding: dict[str, str]
) -> None:
    done = process(tmp_path, "inspect", "llama-3.1-8b", **encoding)
    shown = done.stdout.decode("cp1252")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "? = 500,000" in shown
    assert len(shown.splitlines()) == len(str(read("llama-3.1-8b")).splitlines())


def test_text_in_memory_is_as_good_as_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert main(["zoo", "alibi"]) == 0
    assert "ALiBi" in sys.stdout.getvalue()  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.stdout", None)  # closed, as by >&-
    assert main(["zoo", "alibi"]) == 0


def test_a_full_disk_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Full())
        status = main(["zoo", "alibi"])
    err = capsys.readouterr().err
    assert (status, err) == (2, "error: [Errno 28] No space left on device\n")


# ---- inspect, list, diff and zoo


def test_inspect_reads_a_name_a_path_a_folder_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {k: v for k, v in shipped()["smollm3-3b"].items() if k != "source"}
    body = json.dumps(config)
    (tmp_path / "config.json").write_text(body, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(body))
    bodies = []
    for source in ("smollm3-3b", str(tmp_path / "config.json"), str(tmp_path), "-"):
        status, out, err = run(capsys, "inspect", source)
        assert (status, err) == (0, "")
        lines = "\n".join(out.splitlines()[1:])
        bodies.append(lines.split("\n\nsource")[0].rstrip())
    assert len(set(bodies)) == 1
    monkeypatch.setattr("sys.stdin", None)
    status, _, err = run(capsys, "inspect", "-")
    assert (status, err) == (2, "error: source - is standard input, which is closed\n")


def test_inspect_json_and_plot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "picture.svg"
    status, out, _ = run(
        capsys, "inspect", "gpt-oss-20b", "--json", "--plot", str(target)
    )
    assert status == 0
    found = strict(out)
    assert list(found) == ["name", "model_type", "source", "notes", "stacks"]
    [rotation] = found["stacks"][0]["rotations"]
    assert rotation["unchanged_blended_divided"] == [9, 9, 14]
    assert "<svg" in target.read_text(encoding="utf-8")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(shipped())
    status, text, _ = run(capsys, "list", "--json")
    assert status == 0
    rows = strict(text)["configurations"]
    for row, line in zip(rows, out.splitlines(), strict=True):
        assert list(row) == ["name", "encodings", "source"]
        assert line.split(maxsplit=1) == [row["name"], ", ".join(row["encodings"])]
        assert row["source"] == shipped()[row["name"]]["source"]


def test_diff_says_by_its_exit_code_whether_there_is_a_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = ("llama-3-8b", "llama-3.1-8b")
    status, out, err = run(capsys, "diff", *pair)
    assert (status, err) == (1, "")
    assert "rotation kind default → llama3" in out
    status, text, _ = run(capsys, "diff", *pair, "--json")
    assert status == 1
    found = strict(text)
    assert list(found) == ["one", "other", "differences"]
    assert (found["one"], found["other"]) == pair
    assert [f"  {line}" for line in found["differences"]] == out.splitlines()[1:]

    status, out, _ = run(capsys, "diff", "gpt2", "gpt2")
    assert (status, "no difference" in out) == (0, True)
    status, text, _ = run(capsys, "diff", "gpt2", "gpt2", "--json")
    assert (status, strict(text)["differences"]) == (0, [])


def test_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "zoo", "yarn", "released")
    assert (status, out.startswith("YaRN, as released\n")) == (0, True)
    status, text, _ = run(capsys, "zoo", "yarn", "--json")
    assert status == 0
    rows = strict(text)["encodings"]
    assert [row["name"] for row in rows] == [entry.name for entry in find("yarn")]
    keys = (
        *("name", "aliases", "where", "equation", "parameters", "cost", "used_by"),
        *("source", "paper", "test", "golden", "checked", "lacks", "chapter"),
    )
    assert all(tuple(row) == keys for row in rows)


@pytest.mark.parametrize(
    "body", ["{", "[1]", '{"model_type": "llama"}', '{"model_type": 3}']
)
def test_files_that_are_no_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str
) -> None:
    (tmp_path / "config.json").write_text(body, encoding="utf-8")
    status, _, err = run(capsys, "inspect", str(tmp_path / "config.json"))
    assert (status, len(err.splitlines())) == (2, 1)


def test_the_notebook_prints_a_checkpoint_as_the_command_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = read("gpt2")
    assert isinstance(checkpoint, Checkpoint)
    _, out, _ = run(capsys, "inspect", "gpt2")
    assert out == f"{checkpoint}\n"


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "book" / "inspect.md").read_text(encoding="utf-8")
    (tmp_path / "my-model").mkdir()
    file = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "my-model" / "config.json").write_text(file, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```console\n\$ posenc ([^\n]*)\n(.*?)^```",
        page,
        re.MULTILINE | re.DOTALL,
    )
    assert len(blocks) == 4
    for line, shown in blocks:
        _, out, err = run(capsys, *line.split())
        printed = out + err
        if shown.endswith("…\n"):
            assert printed.startswith(shown.removesuffix("…\n"))
        else:
            assert printed == shown


# ---- doctor


def test_doctor_says_by_its_exit_code_whether_something_is_wrong(
    capsys: pytest.CaptureFixture[str], module: str
) -> None:
    call = ("doctor", f"{module}:apply", "--head-dim", "16")
    status, out, err = run(capsys, *call)
    assert status == 0
    assert out.startswith("A rotary function.")
    assert "called" in err  # what the function prints is no part of the report
    status, out, _ = run(capsys, *call, "--layout", "half", "--json")
    assert status == 1
    found = strict(out)
    assert list(found) == ["kind", "ok", "facts", "findings", "notes"]
    assert (found["kind"], found["ok"]) == ("rotary", False)
    assert found["facts"]["base"] == pytest.approx(1e4)
    [finding] = found["findings"]
    assert list(finding) == ["code", "seen", "cause", "reference"]
    assert list(finding["reference"]) == ["page", "title", "heading"]


def test_doctor_prints_infinite_facts_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc_lib import doctor

    facts = {"a": float("inf"), "b": None, "c": (1, 2), "d": True, "e": 1.5}
    report = doctor.Report("rotary", facts=facts)
    monkeypatch.setattr(doctor, "diagnose", lambda *_, **__: report)
    _, out, _ = run(capsys, "doctor", "math:floor", "--json")
    assert strict(out)["facts"] == facts | {"a": "inf", "c": "(1, 2)"}


def test_what_the_function_raises_is_no_traceback(
    capsys: pytest.CaptureFixture[str], module: str
) -> None:
    for name, wanted in (("ends", 2), ("recurses", 1)):
        status, out, err = run(capsys, "doctor", f"{module}:{name}", "--head-dim", "8")
        assert status == wanted
        assert "Traceback" not in out + err
    status, _, err = run(capsys, "doctor", f"{module}:stops", "--head-dim", "8")
    assert (status, err) == (130, "interrupted\n")


def test_a_module_that_ends_the_program_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_at_import.py").write_text("import sys; sys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "doctor", "ends_at_import:apply")
    assert (status, out) == (2, "")
    assert err == ("error: module 'ends_at_import' can't be imported: SystemExit: 0\n")


def test_what_nobody_foresaw_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deep(_: Any) -> Answer:
        raise RecursionError("too\ndeep")

    monkeypatch.setattr(command, "names", deep)
    assert run(capsys, "list") == (2, "", "error: RecursionError: too deep\n")
    monkeypatch.setattr(command, "names", lambda _: Answer("", {"a": float("nan")}))
    status, out, err = run(capsys, "list", "--json")
    assert (status, out, len(err.splitlines())) == (2, "", 1)


# ---- lab; more in tests/lab/test_command.py


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupted_lab_says_that_finished_runs_are_stored(tmp_path: Path) -> None:
    line, settings = python(
        tmp_path,
        *("-m", "posenc_lib", "lab", "run", "chapters", "--scheme", "nope"),
        *("--out", "runs.jsonl"),
    )
    running = subprocess.Popen(line, stderr=subprocess.PIPE, **settings)
    assert running.stderr is not None
    assert running.stderr.read(1)  # the progress of the first run
    running.send_signal(signal.SIGINT)
    err = running.stderr.read().decode()
    assert running.wait(60) == 130
    assert err.splitlines()[-1] == (
        "interrupted; finished runs are stored in runs.jsonl, "
        "and the same command makes the others"
    )
    assert "Traceback" not in err
