"""Interleaved timing and peak memory: cases alternate in one process, on one input."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from posenc_lib.lab.costs import peak_bytes

PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "x-transformers",
    "rotary-embedding-torch",
    "torchtune",
)

Case = Callable[[], Any]


def interleaved(
    cases: Mapping[str, Case],
    *,
    seconds: float,
    device: torch.device,
    least: int = 3,
    most: int = 101,
) -> dict[str, dict[str, Any]]:
    """Median time of each case and its ratio to the first, from rounds A B C A B C …

    After `least` rounds of all, the cases that take less than a twentieth of `seconds`
    continue for that long, with the first among them: a ratio of 1.1 needs more rounds
    than one of 10. On one thread of a CPU the time is the processor's, which other
    programs can't lengthen by running in between; on more threads, and on a GPU, it is
    the clock's. The ratio is taken within each round: median and quartiles.
    """
    clock = (
        time.process_time
        if device.type == "cpu" and torch.get_num_threads() == 1
        else time.perf_counter
    )
    for case in cases.values():  # what is compiled or allocated once
        case()
    taken: dict[str, list[float]] = {name: [] for name in cases}
    first, running = next(iter(cases)), dict(cases)
    for done in range(most):
        if done == least:
            end = time.perf_counter() + seconds
            running = {
                name: case
                for name, case in cases.items()
                if min(taken[name]) < seconds / 20
            }
        if done >= least and (
            first not in running or len(running) == 1 or time.perf_counter() > end
        ):
            break
        for name, case in running.items():
            _wait_for(device)
            start = clock()
            result = case()
            _wait_for(device)
            taken[name].append(clock() - start)
            del result  # freed outside the measured time of every case alike
    return {name: _summary(times, taken[first]) for name, times in taken.items()}


def _summary(times: list[float], reference: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(
        [t / r for t, r in zip(times, reference, strict=False)], n=4
    )
    return {
        "milliseconds": round(statistics.median(times) * 1e3, 4),
        "ratio": float(f"{middle:.4g}"),
        "quartiles": [float(f"{low:.4g}"), float(f"{high:.4g}")],
        "rounds": len(times),
    }


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(case: Case, device: torch.device) -> int:
    """Most bytes held by PyTorch during a call that is not the first, with results."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        case()
        return torch.cuda.max_memory_allocated(device) - before
    return peak_bytes(case)


def versions() -> dict[str, str]:
    """The installed packages, and "absent" for a peer that is not."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "absent"
    return installed


def machine(device: torch.device) -> dict[str, Any]:
    """The processor and the GPU, in words that name no host."""
    words: dict[str, Any] = {
        "processor": _line("/proc/cpuinfo", "model name")
        or platform.processor()
        or platform.machine(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        words["device"] = torch.cuda.get_device_name(device)
    return words


def _line(path: str, key: str) -> str:
    try:
        with open(path, encoding="utf-8") as lines:
            return next(
                (
                    line.split(":", 1)[1].strip()
                    for line in lines
                    if line.startswith(key)
                ),
                "",
            )
    except OSError:
        return ""


def commit() -> str:
    """The commit that was measured, marked where the working tree differs from it."""
    try:
        return subprocess.check_output(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], text=True
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
