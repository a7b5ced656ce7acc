"""CONTRIBUTING.md stays true: its worked example, applied as it stands, is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# Where the example must be found, and in how many tests at least: each property, each
# kind of call in each dtype, each argument, each rule for docstrings and rows.
FOUND_BY = {
    "tests/bias/test_hinge.py": 1,
    "tests/test_callables.py": 15,
    "tests/test_docstrings.py": 5,
    "tests/test_malformed.py": 15,
    "tests/test_properties.py": 14,
    "tests/test_zoo.py": 2,
}


def run(folder: Path, *command: str | Path, given: str = "") -> str:
    """What a command prints in a copy of the repository, whose library comes first."""
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        input=given,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


def test_files_that_it_names_exist() -> None:
    prose = re.sub(r"```diff\n.*?```", "", TEXT, flags=re.DOTALL)
    names = re.findall(r"`((?:tests|posenc_lib|benchmarks)/[\w/.]+|_toc\.yml)`", prose)
    missing = [name for name in names if not (ROOT / name).exists()]
    assert len(names) > 10
    assert not missing


@pytest.mark.slow
def test_the_worked_example_is_found_everywhere(tmp_path: Path) -> None:
    tracked = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard")
    for name in tracked.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    [diff] = re.findall(r"```diff\n(.*?)```", TEXT, flags=re.DOTALL)
    run(tmp_path, "git", "apply", "--recount", "-", given=diff)

    new = ("posenc_lib/bias/hinge.py", "tests/bias/test_hinge.py", "posenc_lib/zoo.py")
    tool = Path(sys.executable).parent / "ruff"
    run(tmp_path, tool, "check", *new, "posenc_lib/bias/__init__.py")
    run(tmp_path, tool, "format", "--check", *new)

    pytest_of_hinge = (sys.executable, "-m", "pytest", "-v", "-k", "hinge", "-n", "0")
    printed = run(tmp_path, *pytest_of_hinge, *FOUND_BY)
    passed = Counter(re.findall(r"^(tests/\S+?\.py)::.* PASSED", printed, re.MULTILINE))
    for file, least in FOUND_BY.items():
        assert passed[file] >= least, f"{file}: {passed[file]} tests"

    run(tmp_path, sys.executable, "book/tools/pages.py")
    pages = {
        "book/zoo.md": "### Hinge\n",
        "book/api.md": "api-bias-hinge",
        "book/api/bias.md": "### `hinge`",
        "book/api/evidence_scores.md": "test_hinge_is_the_equation",
    }
    for name, text in pages.items():
        assert text in (tmp_path / name).read_text(encoding="utf-8"), name
    described = run(tmp_path, sys.executable, "-m", "posenc_lib", "zoo", "hinge")
    assert "tests/bias/test_hinge.py" in described
