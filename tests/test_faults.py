"""The validation bites: faults seeded into a copy of the library, one at a time, are noticed by a notebook."""

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
        "positions.to(workplace, torch.float64)",
        "(positions + 1).to(workplace, torch.float64)",
        SINUSOIDS,
    ),
    "wrong pairing": Fault(
        "rotary/rope.py",
        "x[..., ::2], x[..., 1::2]",
        "x.chunk(2, -1)",
        ROPE,
    ),
    "reversed rotation": Fault(
        "rotary/rope.py",
        'tables = (cos, sin, torch.complex(cos, sin)) if layout == "interleaved" else '
        "(cos, sin)",
        'tables = (cos, -sin, torch.complex(cos, -sin)) if layout == "interleaved" '
        "else (cos, -sin)",
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
        "turn(x, cos, sin, self.layout, out=out)",
        'turn(x, cos, sin, "half", out=out)',
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
        "positions.to(workplace, torch.float64)",
        "positions.to(workplace, torch.bfloat16).double()",
        CONVENTIONS,
    ),
    "angles in float32": Fault(
        "frequencies.py",
        "positions.to(workplace, torch.float64)[..., None] * frequencies.to(workplace, "
        "torch.float64)",
        "positions.to(workplace, torch.float32)[..., None] * frequencies.to(workplace, "
        "torch.float32)",
        CONVENTIONS,
    ),
    "bias before the scale": Fault(
        "attention/softmax.py",
        "**hidden), scores.shape)",
        "**hidden), scores.shape) * q.shape[-1] ** -0.5",
        CONVENTIONS,
    ),
}

# Faults that no notebook notices yet, with the unit test that does.
MISSED: dict[str, str] = {}


def run_notebook(chapter: str, library: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook under nbval until its first failure, with `library` before the installed one."""
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


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed(name, tmp_path):
    fault = FAULTS[name]
    library = copy_library(tmp_path)
    source = (library / fault.file).read_text(encoding="utf-8")
    assert source.count(fault.right) == 1, (
        f"{fault.file} no longer holds {fault.right!r} once"
    )
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
