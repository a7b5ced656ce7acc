"""The book itself: what validation costs, a build with no changes, a page's weight."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BARE = """
import sys, nbformat
from nbclient import NotebookClient
for path in sys.argv[1:]:
    NotebookClient(nbformat.read(path, as_version=4), timeout=300).execute()
"""
VALIDATE = [
    "-m",
    "pytest",
    "-q",
    "--nbval",
    "--nbval-current-env",
    "--nbval-cell-timeout",
    "300",
]


def validation() -> Iterator[dict[str, Any]]:
    """Every fourth notebook executed, and validated by nbval: seconds of both."""
    notebooks = sorted((ROOT / "notebooks").glob("[01]*.ipynb"))[::4]
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(_validation, notebooks)


def _validation(notebook: Path) -> dict[str, Any]:
    """Seconds that include the start of a kernel."""
    bare = _seconds([sys.executable, "-c", BARE, str(notebook)])
    validated = _seconds([sys.executable, *VALIDATE, str(notebook)])
    return {
        "what": "validation",
        "case": notebook.stem,
        "bare": bare,
        "validated": validated,
    }


def build() -> Iterator[dict[str, Any]]:
    """`jupyter-book build` once for its result, and once more with nothing changed."""
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        ".",
        "--quiet",
    ]
    _seconds(command)
    if not (ROOT / "_build" / "html" / "index.html").exists():
        raise RuntimeError(f"{command[0]} wrote no page")
    yield {"what": "build", "case": "nothing changed", "seconds": _seconds(command)}


def weight() -> Iterator[dict[str, Any]]:
    """Bytes that a browser asks for to show each page, compressed as servers do."""
    from tests.browser.conftest import CHROMIUM, HTML, reading

    if not CHROMIUM:
        yield {
            "what": "weight",
            "case": "every page",
            "absent": "no Chromium was found: CHROMIUM=path names one",
        }
        return
    with reading() as reader:
        pages = sorted(
            file.relative_to(HTML).as_posix() for file in HTML.rglob("*.html")
        )
        for page in pages:
            # index.html leads to the first page
            if page != "index.html" and "_static" not in page:
                yield {
                    "what": "weight",
                    "case": page,
                    "bytes": sum(reader.visit(page).sizes().values()),
                }


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:4])} … failed:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return round(time.perf_counter() - start, 2)
