"""Environments and copies of the tree, to use the library as others do.

An environment is kept in _build, since it takes half a minute to make.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
COLAB = ("torch", "numpy", "matplotlib", "ipywidgets", "ipykernel")
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


def pinned(*names: str) -> list[str]:
    """The lines of requirements.txt for these packages."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split("==")[0] in names]


def scripts(name: str) -> Path:
    """The folder of an environment that holds its programs."""
    return ROOT / "_build" / name / ("Scripts" if os.name == "nt" else "bin")


def environment(name: str, wanted: list[str]) -> Path:
    """Python in an environment that has these packages, and what they need, alone."""
    python = scripts(name) / "python"
    made = ROOT / "_build" / name / "made.json"
    if not made.exists() or json.loads(made.read_text(encoding="utf-8")) != wanted:
        run(sys.executable, "-m", "venv", "--clear", made.parent)
        flags = shlex.split(os.environ.get("PIP_FLAGS", ""))
        install = (python, "-m", "pip", "install", "--quiet", *flags)
        run(*install, "-c", ROOT / "constraints.txt", *wanted)
        made.write_text(json.dumps(wanted), encoding="utf-8")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "posenc-lib")
    return python


def colab() -> Path:
    """Python in an environment with Colab's packages, and what runs a notebook."""
    wanted = pinned(*COLAB, "nbclient", "nbformat")
    assert len(wanted) == len(COLAB) + 2
    return environment("colab", wanted)


def outside() -> dict[str, str]:
    """The variables of this process without those that lead to the repository."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {k: v for k, v in os.environ.items() if k not in hidden}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


def copy_of_the_tree(folder: Path) -> Path:
    """The files of the working tree that git has or would have."""
    names = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def execute(
    python: Path, folder: Path, name: str, source: str
) -> nbformat.NotebookNode:
    """A copy of a notebook, run in a folder; its first cell installs the source."""
    (folder / name).write_text(
        (ROOT / "notebooks" / name).read_text(encoding="utf-8"), encoding="utf-8"
    )
    variables = outside() | {
        "POSENC_SOURCE": source,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    run(python, "-c", RUN, folder / name, cwd=folder, env=variables)
    return nbformat.read(folder / name, as_version=4)


def compare(actual: nbformat.NotebookNode, name: str) -> None:
    """Whether the outputs are those that are stored."""
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
