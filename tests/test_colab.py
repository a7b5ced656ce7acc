"""Colab: a notebook alone, with torch, numpy and matplotlib but no repository."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
# One chapter is run; the set-up cell is the same in all, and tests/test_repository.py
# reads what the others import.
CHAPTER = "10_rope_core_idea.ipynb"
PACKAGES = ("torch", "numpy", "matplotlib", "ipywidgets", "ipykernel")
RUN = """
import sys, nbformat
from nbclient import NotebookClient
path = sys.argv[1]
notebook = nbformat.read(path, as_version=4)
client = NotebookClient(
    notebook, timeout=300, kernel_name="python3", allow_errors=True
)
client.execute()
nbformat.write(notebook, path)
"""


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, **options
    )  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def colab() -> Path:
    """A virtual environment with Colab's packages alone.

    Kept in _build, since it takes a minute to make.
    """
    pins = [
        line
        for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    ]
    wanted = [
        line
        for line in pins
        if line.split("==")[0] in (*PACKAGES, "nbclient", "nbformat")
    ]
    assert len(wanted) == len(PACKAGES) + 2
    folder = ROOT / "_build" / "colab"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    made = folder / "made.json"
    if not made.exists() or json.loads(made.read_text(encoding="utf-8")) != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            ROOT / "constraints.txt",
            *wanted,
        )
        made.write_text(json.dumps(wanted), encoding="utf-8")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "posenc-lib")
    return python


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The working tree as a git repository that has only an address."""
    folder = tmp_path_factory.mktemp("repository") / "book.git"
    names = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).stdout
    work = folder.with_name("work")
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes((ROOT / name).read_bytes())
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    run("git", "init", "--quiet", "--initial-branch", "main", cwd=work)
    run("git", "add", "--all", cwd=work)
    run("git", *identity, "commit", "--quiet", "--message", "copy", cwd=work)
    run("git", "clone", "--quiet", "--bare", work, folder)
    return f"git+{folder.as_uri()}@main"


def packages(python: Path) -> set[str]:
    return set(run(python, "-m", "pip", "freeze", "--all").stdout.split("\n"))


def execute(
    python: Path, folder: Path, name: str, source: str
) -> nbformat.NotebookNode:
    (folder / name).write_text(
        (ROOT / "notebooks" / name).read_text(encoding="utf-8"), encoding="utf-8"
    )
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")
    }
    environment |= {
        "POSENC_SOURCE": source,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    run(python, "-c", RUN, folder / name, cwd=folder, env=environment)
    return nbformat.read(folder / name, as_version=4)


def compare(actual: nbformat.NotebookNode, name: str) -> None:
    text_close = runpy.run_path(str(ROOT / "notebooks" / "conftest.py"))["text_close"]
    stored = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    code = [
        (old, new)
        for old, new in zip(stored.cells, actual.cells, strict=True)
        if old.cell_type == "code"
    ]
    for old, new in code[1:]:  # the setup cell prints pip's notes here
        assert not any(output.output_type == "error" for output in new.outputs), (
            new.outputs
        )
        assert text_close(text_of(old), text_of(new)), (
            f"{text_of(old)}\n--- became ---\n{text_of(new)}"
        )


def text_of(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and displayed.

    A kernel may send one print in several pieces.
    """
    return "".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


@pytest.mark.slow
def test_notebook_alone_gives_the_stored_outputs(colab, repository, tmp_path):
    before = packages(colab)
    compare(execute(colab, tmp_path, CHAPTER, repository), CHAPTER)
    added = packages(colab) ^ before
    assert {line.split(" @")[0].split("==")[0] for line in added} <= {
        "posenc-lib",
        "posenc_lib",
    }, added


@pytest.mark.slow
def test_wrong_address_says_what_to_do(colab, tmp_path):
    run(colab, "-m", "pip", "uninstall", "--quiet", "--yes", "posenc-lib")
    wrong = "git+file:///no/such/repository@main"
    notebook = execute(colab, tmp_path, CHAPTER, wrong)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    error = next(output for output in setup.outputs if output.output_type == "error")
    assert error.ename == "ModuleNotFoundError"
    assert wrong in error.evalue
    assert "pip install --no-deps git+" in error.evalue
