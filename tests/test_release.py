"""A release: what is built from the tree, and the wheel alone, away from the tree."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import environments
import pytest
import yaml
from environments import compare, copy_of_the_tree, execute, outside, pinned, run

import posenc_lib
from posenc_lib import lab, zoo
from posenc_lib.checkpoints import shipped
from posenc_lib.ledger import claims

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
)
CHAPTER = "06_extrapolation_first_look.ipynb"  # reads stored runs, settles claims
MODULE = """
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import RoPE
def apply(x, positions):
    return RoPE(inverse_frequencies(x.shape[-1]))(positions)(x)
"""
# What is shipped beside the code, counted in the wheel and here.
COUNTS = """
import json, posenc_lib
from posenc_lib import lab, zoo
from posenc_lib.checkpoints import read, shipped
from posenc_lib.ledger import claims
print(json.dumps({
    "file": posenc_lib.__file__,
    "shipped": len(list(map(read, shipped()))),
    "claims": len(claims()),
    "encodings": len([zoo.describe(entry) for entry in zoo.encodings()]),
    "runs": len(lab.load("chapters")),
}))
"""
OWN = """
from posenc_lib import lab
lab.EXPERIMENTS["own"] = (
    lab.Settings("three-back", "rope", steps=2, batch=2, sequences=4, width=8),
)
"""
TINY = ("--with", "own.py", "--seeds", "1", "--jobs", "1", "--out", "runs.jsonl")
# Arguments of `posenc`, its exit code, and a text that it prints.
COMMANDS = {
    "version": (("--version",), 0, f"posenc {posenc_lib.__version__}"),
    "inspect": (("inspect", "llama-3.1-8b"), 0, "θ = 500,000"),
    "plot": (("inspect", "gemma-3-4b", "--plot", "gemma.png"), 0, "window 1,024"),
    "diff": (("diff", "llama-3-8b", "llama-3.1-8b"), 1, "kind default → llama3"),
    "list": (("list", "--json"), 0, '"gpt-oss-20b"'),
    "zoo": (("zoo", "yarn"), 0, "tests/rotary/test_scaling.py"),
    "doctor": (("doctor", "mine:apply", "--head-dim", "16"), 0, "Nothing"),
    "lab": (
        ("lab", "run", "own", *TINY),
        0,
        "runs.jsonl: 1 new runs, 1 in all",
    ),
    "error": (("inspect", "nonesuch"), 2, "error: source must be a file"),
}


def step(name: str) -> str:
    """The shell script of a step of the workflow."""
    steps = [s for job in WORKFLOW["jobs"].values() for s in job["steps"]]
    [script] = [s["run"] for s in steps if s.get("name") == name]
    return str(script).replace("python ", f'"{sys.executable}" ')


def shell(script: str, folder: Path, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


# ---- the workflow


@pytest.mark.skipif(os.name == "nt", reason="the workflow runs in bash on Linux")
def test_the_tag_must_be_the_version(tmp_path: Path) -> None:
    script, version = step("The tag is the version"), posenc_lib.__version__
    assert shell(script, ROOT, GITHUB_REF_NAME=f"v{version}") == (0, "")
    status, printed = shell(script, ROOT, GITHUB_REF_NAME="v9.9")
    assert status == 1
    assert f"tag v{version}" in printed


def test_one_job_can_publish_and_it_runs_last() -> None:
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {}
    able = [name for name, job in jobs.items() if "id-token" in job["permissions"]]
    assert able == ["publish"]
    assert jobs["publish"]["environment"] == "release"
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}


def test_the_changelog_has_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(posenc_lib.__version__)}\b", changes, re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == posenc_lib.__version__


# ---- what is built


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def built(tree: Path) -> Path:
    """The folder of wheel and sdist: POSENC_DIST, or built as the workflow does it."""
    if "POSENC_DIST" in os.environ:
        return ROOT / os.environ["POSENC_DIST"]
    status, printed = shell(step("Build"), tree)
    assert status == 0, printed
    return tree / "dist"


def only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; its list of them is left out."""
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if not name.endswith("/RECORD")]
        return {name: files.read(name) for name in names}


@pytest.mark.slow
def test_both_are_there_and_pass_the_check(built: Path) -> None:
    version = posenc_lib.__version__
    assert sorted(path.name for path in built.iterdir()) == [
        f"posenc_lib-{version}-py3-none-any.whl",
        f"posenc_lib-{version}.tar.gz",
    ]
    status, printed = shell(step("Check"), built.parent, NO_COLOR="1")
    assert (status, printed.count("PASSED")) == (0, 2), printed


@pytest.mark.slow
def test_the_wheel_is_the_library_and_nothing_else(built: Path, tree: Path) -> None:
    found = contents(only(built, "*.whl"))
    library = {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in (tree / "posenc_lib").rglob("*")
        if path.is_file()
    }
    assert {name: b for name, b in found.items() if ".dist-info/" not in name} == (
        library
    )
    [scripts] = [b for name, b in found.items() if name.endswith("entry_points.txt")]
    assert scripts.decode().split("\n")[:2] == [
        "[console_scripts]",
        "posenc = posenc_lib.__main__:main",
    ]


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as files:
        files.extractall(tmp_path, filter="data")
    source = only(tmp_path, "posenc_lib-*")
    top = {path.name for path in source.iterdir()}
    assert {"LICENSE", "README.md", "posenc_lib", "pyproject.toml"} <= top
    assert not top & {"tests", "notebooks", "book"}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", source)
    again = only(source / "dist", "*.whl")
    assert contents(again) == contents(only(built, "*.whl"))


# ---- the wheel alone


@pytest.fixture(scope="module")
def alone(built: Path) -> Path:
    """Python in an environment with the wheel and what it says that it needs."""
    wheel = only(built, "*.whl")
    files = contents(wheel)
    [metadata] = [b for name, b in files.items() if name.endswith("/METADATA")]
    needs = email.message_from_bytes(metadata).get_all("Requires-Dist", [])
    names = [re.split(r"[^\w-]", need)[0] for need in needs]
    python = environments.environment("wheel", [*needs, *pinned(*names)])
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    run(python, "-m", "pip", "check")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_program_of_the_wheel(alone: Path, tmp_path: Path, name: str) -> None:
    arguments, status, text = COMMANDS[name]
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    done = subprocess.run(
        [alone.with_name("posenc"), *arguments],
        cwd=tmp_path,
        env=outside(),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, text in done.stdout + done.stderr) == (status, True), (
        done.stdout + done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_wheel_has_its_data(alone: Path, tmp_path: Path) -> None:
    printed = run(alone, "-c", COUNTS, cwd=tmp_path, env=outside()).stdout
    found = json.loads(printed)
    assert Path(found.pop("file")).is_relative_to(alone.parents[1])
    assert found == {
        "shipped": len(shipped()),
        "claims": len(claims()),
        "encodings": len(zoo.encodings()),
        "runs": len(lab.load("chapters")),
    }


@pytest.mark.slow
def test_a_chapter_runs_with_the_wheel(built: Path, tmp_path: Path) -> None:
    wheel = only(built, "*.whl")
    compare(execute(environments.colab(), tmp_path, CHAPTER, str(wheel)), CHAPTER)
