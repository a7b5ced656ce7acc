"""The quick loop: lint, tests and notebooks of what changed, in a minute or two.

    python book/tools/quick.py             what changed since the last commit
    python book/tools/quick.py --since REV   what changed since REV

A changed module of the library runs the tests that mirror it, and its rows of the
tables over all callables; a changed test file runs; a changed notebook runs under
nbval. `make test` is everything.
"""

from __future__ import annotations

import argparse
import ast
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


def changed(since: str) -> list[Path]:
    """The files that differ from a commit, and those that git does not know yet."""
    commands = (
        ("diff", "--name-only", "--diff-filter=d", since),
        ("ls-files", "--others", "--exclude-standard"),
    )
    names: list[str] = []
    for command in commands:
        run = subprocess.run(
            ("git", *command), cwd=ROOT, capture_output=True, text=True
        )
        if run.returncode:
            sys.exit(f"git {' '.join(command)}: {run.stderr.strip()}")
        names += run.stdout.splitlines()
    return [Path(name) for name in dict.fromkeys(names)]


def mirrored(module: Path) -> list[Path]:
    """The tests of a module: its own file, or that of the package it belongs to."""
    inside = module.relative_to("posenc_lib")
    name = inside.stem.lstrip("_")
    candidates = [
        Path("tests") / inside.parent / f"test_{name}.py",
        Path("tests") / f"test_{inside.parts[0].removesuffix('.py').lstrip('_')}.py",
    ]
    return [path for path in candidates if (ROOT / path).is_file()][:1]


def objects(module: Path) -> list[str]:
    """The public functions and classes of a module."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
    ]


def steps(files: list[Path]) -> list[tuple[str, list[str]]]:
    """What to run for these files: a title and a command each."""
    python = [path for path in files if path.suffix == ".py"]
    notebooks = [path for path in files if path.suffix == ".ipynb"]
    modules = [path for path in python if path.parts[0] == "posenc_lib"]
    tests = [path for path in python if path.parts[0] == "tests"]
    own = [path for path in tests if path.name.startswith("test_")]
    own += [path for module in modules for path in mirrored(module)]
    own = [path for path in dict.fromkeys(own) if str(path) not in TABLES]
    rows = [name for module in modules for name in objects(module)]

    def pytest(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-q", "-n", "2", *arguments]

    commands = []
    if source := [str(path) for path in python + notebooks]:
        commands += [
            ("ruff check", ["ruff", "check", *source]),
            ("ruff format", ["ruff", "format", "--check", *source]),
        ]
    if modules:
        commands.append(("types", ["mypy"]))
    if own:
        commands.append(("tests of the changed modules", pytest(*map(str, own))))
    if rows:
        chosen = ("-k", " or ".join(rows))
        commands.append(("their rows of the tables", pytest(*TABLES, *chosen)))
    for path in notebooks:
        validate = ("--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120")
        commands.append((str(path), pytest(*validate, str(path))))
    return commands


def main() -> int:
    """Run the steps; the exit status is that of the first one that fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="REV", help="default: HEAD")
    files = changed(parser.parse_args().since)
    commands = steps(files)
    if not commands:
        print("Nothing changed that has a test: `make test` runs everything.")
    for title, command in commands:
        start = time.monotonic()
        print(f"== {title}", flush=True)
        if command[0] in ("ruff", "mypy"):
            command = [str(Path(sys.executable).parent / command[0]), *command[1:]]
        status = subprocess.run(command, cwd=ROOT).returncode
        if status not in (0, 5):  # 5: no test has this name
            print(f"FAILED: {title}", file=sys.stderr)
            return status
        print(f"== {title}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
