"""Run the notebooks and store what they show.

    python book/tools/refresh.py [--check] [notebook ...]

Without a name, all of `notebooks/`. What is written depends on nothing but the cells
and what they return: no times, no random ids, no paths. Where a cell is unchanged and
its new outputs agree with the stored ones (the numbers within their stated tolerance,
the pictures to the eye), the stored ones stay, so that another processor changes no
file. `--check` writes nothing, and fails if a file would change.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat
import numpy as np
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
LIMIT, LIMIT_ALL = 900_000, 15_000_000  # bytes
SECONDS_PER_CELL = 300
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
CELL_METADATA = {"tags", "mystnb"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

spec = importlib.util.spec_from_file_location(
    "notebook_comparison", NOTEBOOKS / "conftest.py"
)
comparison = importlib.util.module_from_spec(spec)
spec.loader.exec_module(comparison)


class Problem(Exception):
    """What keeps a notebook from being refreshed."""


class SameInterpreter(AsyncKernelManager):
    """Starts the interpreter that runs this script, whatever kernels are registered."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def load(path: Path) -> tuple[NotebookNode, set[str]]:
    """Read a notebook; return it, and the ids of the cells edited since they were run.

    The id of a code cell follows from its source; an id that does not shows that the
    cell was edited since.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    edited, others = set(), set()
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        derived = hashlib.sha1(f"{source}\0{seen[source]}".encode()).hexdigest()[:8]
        seen[source] += 1
        before = cell.get("id", "")
        if cell["cell_type"] == "code":
            cell["id"] = derived
            if before != derived:
                edited.add(derived)
        elif not re.fullmatch(r"[\w-]{1,64}", before, re.ASCII) or before in others:
            cell["id"] = derived
        others.add(cell["id"])
    return nbformat.reads(
        json.dumps(notebook | {"nbformat": 4, "nbformat_minor": 5}), as_version=4
    ), edited


def number(notebook: NotebookNode, index: int) -> str:
    """How a notebook shows the number of the code cell with this index, such as [3]."""
    return f"[{sum(is_code(cell) for cell in notebook.cells[: index + 1])}]"


def is_code(cell: NotebookNode) -> bool:
    """Whether a cell has code to run."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def run(notebook: NotebookNode, folder: Path) -> None:
    """Run all cells in a fresh kernel in `folder`; a Problem names the failed cell."""
    started = [0]
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_manager_class=SameInterpreter,
        # below ERROR it warns of TCP without encryption, on this very machine
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise Problem(
            f"cell {number(notebook, started[-1])}: {error.ename}: {error.evalue}"
        ) from error
    except (CellTimeoutError, DeadKernelError, RuntimeError) as error:
        raise Problem(
            f"cell {number(notebook, started[-1])}: {type(error).__name__}: {error}"
        ) from error


def normalise(notebook: NotebookNode) -> None:
    """Keep what the cells say and return, and nothing of when and where they ran."""
    notebook.metadata = nbformat.from_dict(METADATA)
    count = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in CELL_METADATA}
        )
        if cell.cell_type != "code":
            continue
        count += is_code(cell)
        cell.execution_count = count if is_code(cell) else None
        outputs: list[NotebookNode] = []
        for output in cell.outputs:
            if (
                output.output_type == "stream"
                and outputs
                and outputs[-1].get("name") == output.name
            ):
                outputs[-1].text += output.text
                continue
            outputs.append(output)
            if output.output_type == "execute_result":
                output.execution_count = count
            if output.output_type == "error":
                output.traceback = []  # paths and colours
            # the id of an object of a kernel that is gone
            output.get("data", {}).pop(WIDGET_VIEW, None)
        cell.outputs = outputs


def agree(stored: list[NotebookNode], new: list[NotebookNode]) -> bool:
    """Whether outputs agree: texts by their tolerance, pictures to the eye."""
    first, second = comparison.comparable(stored, new)
    for output in first + second:
        output.get("data", {}).pop("image/png", None)
    return first == second and all(map(same_picture, pictures(stored), pictures(new)))


def pictures(outputs: list[NotebookNode]) -> Iterator[str]:
    """The pictures in outputs, in base64: those by themselves, and those in HTML."""
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            yield data["image/png"]
        yield from (
            match[2] for match in comparison.PICTURE.finditer(data.get("text/html", ""))
        )


def same_picture(stored: str, new: str) -> bool:
    """Whether two PNGs of one size agree to the eye in 99.9 % of their pixels."""
    if stored == new:
        return True
    first, second = (
        np.asarray(
            Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB"), dtype=int
        )
        for picture in (stored, new)
    )
    return (
        first.shape == second.shape
        and (abs(first - second).max(-1) > 16).mean() < 0.001
    )


def refresh(path: Path, check: bool) -> str:
    """Refresh one notebook; return what changed, if anything, or raise Problem."""
    try:
        before = path.read_bytes()
        stored, edited = load(path)
    except (OSError, ValueError, KeyError) as error:
        raise Problem(f"is not a notebook that can be read: {error}") from error
    new = copy.deepcopy(stored)
    run(new, path.resolve().parent)
    normalise(stored)
    normalise(new)
    for old, cell in zip(stored.cells, new.cells, strict=True):
        if (
            cell.cell_type == "code"
            and cell.id not in edited
            and agree(old.outputs, cell.outputs)
        ):
            cell.outputs = old.outputs
    after = (nbformat.writes(new) + "\n").encode()
    if len(after) > LIMIT:
        sizes = [len(json.dumps(cell)) for cell in new.cells]
        largest = sizes.index(max(sizes))
        raise Problem(
            f"has {len(after) / 1e6:.2f} MB, the limit is {LIMIT / 1e6:.2f}: "
            f"cell {number(new, largest)} alone has {sizes[largest] / 1e6:.2f}; "
            "draw fewer frames, or smaller ones"
        )
    if after == before:
        return ""
    if not check:
        path.write_bytes(after)
    cells = [
        number(new, i)
        for i, (old, cell) in enumerate(zip(stored.cells, new.cells, strict=True))
        if cell.cell_type == "code" and old.outputs != cell.outputs
    ]
    return f"outputs of {', '.join(cells)}" if cells else "its form"


def main(arguments: list[str] | None = None) -> int:
    """Refresh the notebooks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="default: all of notebooks/"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file would change",
    )
    options = parser.parse_args(arguments)
    paths = options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb"))
    # with more, small tensors wait for their threads
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    failed = False
    for path in paths:
        begin = time.monotonic()
        try:
            change = refresh(path, options.check)
            state = (
                f"{'would change' if options.check else 'wrote'} {change}"
                if change
                else "unchanged"
            )
            failed |= options.check and bool(change)
        except Problem as problem:
            state, failed = f"FAILED: {problem}", True
        print(f"{path}: {state} ({time.monotonic() - begin:.1f} s)", flush=True)
    total = sum(
        file.stat().st_size
        for folder in {path.parent for path in paths}
        for file in folder.glob("*.ipynb")
    )
    if total > LIMIT_ALL:
        print(
            f"FAILED: all notebooks together have {total / 1e6:.1f} MB, "
            f"the limit is {LIMIT_ALL / 1e6:.1f}"
        )
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
