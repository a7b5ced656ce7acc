"""Faults seeded into a copy of the library are noticed by a notebook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONVENTIONS = "00_notation_and_conventions"
SINUSOIDS = "04_sinusoids_the_table"
ROPE = "10_rope_core_idea"


class Fault(NamedTuple):
    """A line of the library, what it becomes, and the chapter that must notice."""

    file: str
    right: str
    wrong: str
    chapter: str


FAULTS = {
    "sine and cosine swapped": Fault(
        "embedding/sinusoidal.py",
        "torch.stack((sin, cos), -1)",
        "torch.stack((cos, sin), -1)",
        SINUSOIDS,
    ),
    "wrong base": Fault(
        "embedding/sinusoidal.py",
        "frequencies = base ** (",
        "frequencies = (base / 10) ** (",
        SINUSOIDS,
    ),
    "base off by 0.01 %": Fault(
        "frequencies.py",
        "return base ** (-torch.arange(0,",
        "return (base * 1.0001) ** (-torch.arange(0,",
        SINUSOIDS,
    ),
    "positions off by one": Fault(
        "frequencies.py",
        "p = _checks.in_float64(positions)",
        "p = _checks.in_float64(positions + 1)",
        SINUSOIDS,
    ),
    "wrong pairing": Fault(
        "rotary/pairs.py",
        "x[..., ::2], x[..., 1::2]",
        "x.chunk(2, -1)",
        ROPE,
    ),
    "reversed rotation": Fault(
        "rotary/_apply.py",
        "# e^{iα} is computed once for all blocks.",
        "sin = -sin",
        ROPE,
    ),
    "wrong exponent": Fault(
        "frequencies.py",
        'return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / '
        "dim)",
        'return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / '
        "(dim - 2))",
        ROPE,
    ),
    "bias transposed": Fault(
        "bias/t5.py",
        "relative(q_positions, k_positions),",
        "relative(k_positions, q_positions).mT,",
        CONVENTIONS,
    ),
    "clamp dropped": Fault(
        "bias/t5.py",
        "(-r).clamp(min=0)",
        "r.abs()",
        CONVENTIONS,
    ),
    "layouts mixed": Fault(
        "rotary/rope.py",
        "apply_rotary(x, cos, sin, self.layout, out=out)",
        'apply_rotary(x, cos, sin, "half", out=out)',
        ROPE,
    ),
    "slope off by one": Fault(
        "bias/alibi.py",
        "torch.arange(1, count + 1, dtype=torch.float64",
        "torch.arange(count, dtype=torch.float64",
        CONVENTIONS,
    ),
    "positions in bfloat16": Fault(
        "frequencies.py",
        "p = _checks.in_float64(positions)",
        "p = _checks.in_float64(positions.to(torch.bfloat16))",
        CONVENTIONS,
    ),
    "angles in float32": Fault(
        "frequencies.py",
        "angles = p * frequencies.to(p.device, torch.float64)",
        "angles = p.float() * frequencies.to(p.device, torch.float32)",
        CONVENTIONS,
    ),
    "bias before the scale": Fault(
        "attention/softmax.py",
        "scores + bias",
        "scores + bias * q.shape[-1] ** -0.5",
        CONVENTIONS,
    ),
}

# Faults that no notebook notices yet, with the unit test that does.
MISSED: dict[str, str] = {}


def run_notebook(chapter: str, library: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook under nbval until its first failure, with `library` before the
    installed one.
    """
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--nbval",
                "--nbval-current-env",
            ),
            *(
                "--nbval-cell-timeout",
                "120",
                str(ROOT / "notebooks" / f"{chapter}.ipynb"),
            ),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(library.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def copy_library(folder: Path) -> Path:
    return Path(
        shutil.copytree(
            ROOT / "posenc_lib",
            folder / "posenc_lib",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_library_holds_the_line_once(name):
    source = (ROOT / "posenc_lib" / FAULTS[name].file).read_text(encoding="utf-8")
    assert source.count(FAULTS[name].right) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed(name, tmp_path):
    fault = FAULTS[name]
    library = copy_library(tmp_path)
    source = (library / fault.file).read_text(encoding="utf-8")
    (library / fault.file).write_text(
        source.replace(fault.right, fault.wrong), encoding="utf-8"
    )
    result = run_notebook(fault.chapter, library)
    noticed = result.returncode == 1 and "1 failed" in result.stdout
    assert noticed is (name not in MISSED), result.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter", sorted({fault.chapter for fault in FAULTS.values()})
)
def test_copy_without_fault_passes(chapter, tmp_path):
    library = copy_library(tmp_path)
    result = run_notebook(chapter, library)
    assert result.returncode == 0, result.stdout[-3000:]
