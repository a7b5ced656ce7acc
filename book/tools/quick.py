"""The quick loop: lint, tests and notebooks of what changed, in a minute or two.

    python book/tools/quick.py             what changed since the last commit
    python book/tools/quick.py --since REV   what changed since REV

A changed module of the library runs the tests that mirror it, those of the modules that
import it if it is private, and its rows of the tables over all callables. A changed
test file and a changed notebook run. What all tests share, or what is gone, runs every
unit test. `make test` is everything.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The tables over everything public; a row is found by the name of its object.
TABLES = (
    "tests/test_callables.py",
    "tests/test_docstrings.py",
    "tests/test_malformed.py",
    "tests/test_properties.py",
    "tests/test_zoo.py",
)
FEW = 8  # importers of a private module, beyond which every unit test runs
Step = tuple[str, list[str]]


def changed(since: str) -> list[Path]:
    """What differs from a commit, deleted files too, and what git does not know yet."""
    commands = (
        ("diff", "--name-only", "--no-renames", "-z", "--end-of-options", since),
        ("ls-files", "--others", "--exclude-standard", "-z"),
    )
    names: list[str] = []
    for command in commands:
        run = subprocess.run(
            ("git", *command), cwd=ROOT, capture_output=True, text=True
        )
        if run.returncode:
            reason = (run.stderr.strip().splitlines() or ["no reason given"])[0]
            sys.exit(f"error: git can't say what changed since {since!r}: {reason}")
        names += run.stdout.split("\0")
    return [Path(name) for name in dict.fromkeys(names) if name]


def mirrored(module: Path) -> list[Path]:
    """The tests of a module: its own file, or that of the package it belongs to."""
    inside = module.relative_to("posenc_lib")
    package = inside.parts[0].removesuffix(".py").strip("_")
    candidates = (
        Path("tests") / inside.parent / f"test_{inside.stem.strip('_')}.py",
        Path("tests") / inside.parent / "test_package.py",
        Path("tests") / f"test_{package}.py",
    )
    return [path for path in candidates if (ROOT / path).is_file()][:1]


def importers(module: Path) -> list[Path]:
    """The modules of the library that import a module by name."""
    name = module.stem
    imports = re.compile(rf"^\s*(?:from|import) .*\b{re.escape(name)}\b", re.MULTILINE)
    return [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "posenc_lib").rglob("*.py"))
        if path != ROOT / module and imports.search(path.read_text(encoding="utf-8"))
    ]


def objects(module: Path) -> list[str]:
    """The public functions and classes of a module."""
    text = (ROOT / module).read_text(encoding="utf-8")
    return re.findall(r"^(?:def|class) ([A-Za-z]\w*)", text, re.MULTILINE)


def concerns_all(path: Path) -> bool:
    """Whether every unit test depends on a file: shared by all, or gone."""
    top = path.parts[0]
    if not (ROOT / path).is_file():
        return top in ("posenc_lib", "tests", "notebooks")
    if top == "tests":
        return path.suffix in (".py", ".json") and (
            str(path) in TABLES or not path.name.startswith("test_")
        )
    if top == "posenc_lib" and path.suffix == ".py" and path.name != "__init__.py":
        return path.stem.startswith("_") and len(importers(path)) > FEW
    return top in ("book", "pyproject.toml") and path.suffix in (".py", ".toml", ".bib")


def steps(files: list[Path]) -> list[Step]:
    """What to run for these files: a title and a command each."""
    there = [path for path in files if (ROOT / path).is_file()]
    python = [path for path in there if path.suffix == ".py"]
    notebooks = [path for path in there if path.suffix == ".ipynb"]
    modules = [path for path in python if path.parts[0] == "posenc_lib"]
    folder = Path(sys.executable).parent

    def pytest(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-q", "-n", "2", *arguments]

    commands: list[Step] = []
    if source := [str(path) for path in python + notebooks]:
        commands += [
            ("ruff check", [str(folder / "ruff"), "check", *source]),
            ("ruff format", [str(folder / "ruff"), "format", "--check", *source]),
        ]
    if modules:
        commands.append(("types", [str(folder / "mypy")]))
    if any(map(concerns_all, files)):
        commands.append(("every unit test: something that all share", pytest()))
    else:
        private = [path for path in modules if path.stem.startswith("_")]
        tested = modules + [user for path in private for user in importers(path)]
        own = [path for path in python if path.name.startswith("test_")]
        own += [path for module in tested for path in mirrored(module)]
        if own:
            names = [str(path) for path in dict.fromkeys(own)]
            commands.append(("tests of the changed modules", pytest(*names)))
        if rows := dict.fromkeys(name for path in tested for name in objects(path)):
            chosen = ("-k", " or ".join(rows))
            commands.append(("their rows of the tables", pytest(*TABLES, *chosen)))
    if notebooks:
        validate = ("--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120")
        names = [str(path) for path in notebooks]
        # A notebook's cells belong to one kernel, hence to one worker.
        by_file = ("--dist", "loadfile")
        commands.append(("notebooks", pytest(*by_file, *validate, *names)))
    return commands


def main() -> int:
    """Run the steps; the exit status is that of the first one that fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="REV", help="default: HEAD")
    commands = steps(changed(parser.parse_args().since))
    if not commands:
        print("Nothing changed that has a test: `make test` runs everything.")
    for title, command in commands:
        start = time.monotonic()
        print(f"== {title}", flush=True)
        status = subprocess.run(command, cwd=ROOT).returncode
        if status not in (0, 5):  # 5: no test has this name
            print(f"FAILED: {title}", file=sys.stderr)
            return status
        print(f"== {title}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
