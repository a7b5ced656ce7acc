"""`python -m benchmarks --out FILE`: every group in a separate process.

The result is stored after each of them. With `--group NAME` it is that process: one
line of JSON for each row, as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention, book, measure, rope
from benchmarks.targets import reached
from posenc_lib.lab.measurements import write

ROOT = Path(__file__).parent.parent
# Seconds are those of each configuration, after a few rounds of all its cases.
MEASURED: dict[str, tuple[Callable[..., Iterator[dict[str, Any]]], float]] = {
    "forward": (rope.forward, 4),
    "forward and backward": (rope.backward, 4),
    "one token": (rope.decode, 3),
    "through a scheme": (attention.through_a_scheme, 2),
    "causal training": (attention.causal_training, 10),
    "table": (rope.table, 0),
    "accuracy": (rope.accuracy, 0),
    "bias": (attention.bias, 2),
    "bias, backward": (attention.bias_backward, 0),
    "linear attention with a bias": (attention.toeplitz, 1),
}
BOOK = {"build": book.build, "weight": book.weight, "validation": book.validation}
TWO_THREADS = ("forward", "forward and backward")


def main(arguments: list[str] | None = None) -> None:
    """Measure one group, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--group",
        choices=(*MEASURED, *BOOK),
        help="measure this group here and print its rows",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: %(default)s",
    )
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument(
        "--book",
        default=sys.executable,
        help="the Python that has jupyter-book and nbval",
    )
    options = parser.parse_args(arguments)
    if options.group:
        _print_rows(options.group, torch.device(options.device))
    elif options.out is None:
        parser.error("--out FILE or --group NAME is needed")
    else:
        _measure_all(options.out, torch.device(options.device), options.book)


def _print_rows(group: str, device: torch.device) -> None:
    threads = torch.get_num_threads()
    if group in BOOK:
        rows = BOOK[group]()
    else:
        function, seconds = MEASURED[group]
        rows = function(device, seconds)
    for row in rows:
        print(json.dumps({**row, "threads": threads}), flush=True)


def _measure_all(out: Path, device: torch.device, book_python: str) -> None:
    stored: dict[str, Any] = {
        "settings": {
            "command": "make bench",
            "shapes": rope.SHAPES,
            "device": device.type,
        },
        "versions": {
            **measure.versions(),
            "commit": measure.commit(),
            **measure.machine(device),
        },
        "targets": [],
        "runs": [],
    }
    start = time.perf_counter()
    for group in (*MEASURED, *BOOK):
        both = group in TWO_THREADS and device.type == "cpu"
        for threads in (1, 2) if both else (1,):
            print(
                f"{time.perf_counter() - start:4.0f} s  {group}, threads: {threads}",
                flush=True,
            )
            stored["runs"] += _rows(
                group, threads, device, book_python if group in BOOK else sys.executable
            )
            stored["targets"] = reached(stored["runs"])
            write(out, stored)
    print(f"{time.perf_counter() - start:4.0f} s  written to {out}\n")
    for package, version in stored["versions"].items():
        print(f"{package}: {version}")
    print("\nreached     limit  target")
    for target in stored["targets"]:
        mark = "" if target["met"] else "  MISSED"
        print(
            f"{target['reached']:<11g} {target['limit']:<6g} {target['target']}{mark}"
        )


def _rows(
    group: str, threads: int, device: torch.device, python: str
) -> list[dict[str, Any]]:
    """The rows that the process of one group printed, and its error if it failed."""
    command = [python, "-m", "benchmarks", "--group", group, "--device", device.type]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "KINETO_LOG_LEVEL": "5",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    rows = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]
    if done.returncode:
        print(f"FAILED: {' '.join(command)}\n{done.stderr[-3000:]}", file=sys.stderr)
        rows.append(
            {
                "what": group,
                "threads": threads,
                "failed": done.stderr.strip().splitlines()[-1],
            }
        )
    return rows


if __name__ == "__main__":
    main()
