"""Colab: a notebook alone, with torch, numpy and matplotlib but no repository."""

from __future__ import annotations

from pathlib import Path

import environments
import pytest
from environments import compare, copy_of_the_tree, execute, run

# One chapter is run; the set-up cell is the same in all, and tests/test_repository.py
# reads what the others import.
CHAPTER = "10_rope_core_idea.ipynb"


@pytest.fixture(scope="module")
def colab() -> Path:
    """Python in an environment with Colab's packages alone."""
    return environments.colab()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The working tree as a git repository that has only an address."""
    folder = tmp_path_factory.mktemp("repository") / "book.git"
    work = copy_of_the_tree(folder.with_name("work"))
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    run("git", "init", "--quiet", "--initial-branch", "main", cwd=work)
    run("git", "add", "--all", cwd=work)
    run("git", *identity, "commit", "--quiet", "--message", "copy", cwd=work)
    run("git", "clone", "--quiet", "--bare", work, folder)
    return f"git+{folder.as_uri()}@main"


def packages(python: Path) -> set[str]:
    return set(run(python, "-m", "pip", "freeze", "--all").stdout.split("\n"))


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
