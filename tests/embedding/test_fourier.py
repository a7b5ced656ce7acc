"""Fourier features and timesteps."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.embedding import uniform
from helpers import normal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_lib.embedding import sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.embedding.fourier import (
    LearnableFourier,
    gaussian_matrix,
    nerf,
    perceiver_fourier,
    random_fourier,
    timestep,
)
from posenc_lib.properties import max_error

# ---- Fourier features


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(axes=st.integers(1, 3), count=st.integers(1, 10), seed=st.integers(0, 99))
def test_nerf_is_the_equation(axes: int, count: int, seed: int) -> None:
    positions = uniform(3, axes, seed=seed)
    out = nerf(positions, count, dtype=torch.float64)
    for row in range(3):
        wanted = []
        for p, k in itertools.product(positions[row].tolist(), range(count)):
            wanted += [math.sin(2**k * math.pi * p), math.cos(2**k * math.pi * p)]
        assert max_error(out[row], torch.tensor(wanted, dtype=torch.float64)) <= 1e-12


@pytest.mark.parametrize(("axes", "count"), [(1, 1), (2, 3), (3, 5)])
def test_random_fourier_is_the_equation(axes: int, count: int) -> None:
    positions, matrix = (
        uniform(4, axes),
        gaussian_matrix(count, axes, std=2.0, generator=seeded()),
    )
    out = random_fourier(positions, matrix, dtype=torch.float64)
    for row, (i, function) in itertools.product(
        range(4), enumerate((math.cos, math.sin))
    ):
        for k in range(count):
            angle = (
                2
                * math.pi
                * math.fsum(
                    float(matrix[k, a]) * float(positions[row, a]) for a in range(axes)
                )
            )
            assert float(out[row, i * count + k]) == pytest.approx(
                function(angle), abs=1e-12
            )


def test_random_fourier_estimates_the_gaussian_kernel() -> None:
    count, sigma, positions = 4000, 0.3, uniform(6, 2)
    features = random_fourier(
        positions,
        gaussian_matrix(count, 2, std=sigma, generator=seeded()),
        dtype=torch.float64,
    )
    kernel = (
        -2 * math.pi**2 * sigma**2 * torch.cdist(positions, positions).square()
    ).exp()
    error = (features @ features.mT / count - kernel).abs()
    assert float(error.max()) <= 5 / math.sqrt(
        2 * count
    )  # five standard deviations, each at most 1/√(2K)
    assert float(kernel.min()) < 0.5
    assert float(error.diagonal().max()) <= 1e-12


def test_perceiver_is_the_equation() -> None:
    positions, sizes = uniform(4, 3), (4, 6, 9)
    out = perceiver_fourier(positions, 3, sizes, dtype=torch.float64)
    for row in range(4):
        features = [
            [
                f(math.pi * (1 + (size / 2 - 1) * k / 2) * x)
                for x, size in zip(positions[row].tolist(), sizes, strict=True)
                for k in range(3)
            ]
            for f in (math.sin, math.cos)
        ]
        wanted = positions[row].tolist() + features[0] + features[1]
        assert max_error(out[row], torch.tensor(wanted, dtype=torch.float64)) <= 1e-12


def test_learnable_fourier_is_the_equation() -> None:
    module = (
        LearnableFourier(3, axes=2, features=6, hidden=4, gamma=0.7, generator=seeded())
        .double()
        .requires_grad_(False)
    )
    positions = uniform(5, 2)
    out = module(positions)
    for row in range(5):
        angles = [
            math.fsum(float(w[a]) * float(positions[row, a]) for a in range(2))
            for w in module.frequencies
        ]
        x = [f(angle) / math.sqrt(6) for f in (math.cos, math.sin) for angle in angles]
        hidden = [
            math.fsum(float(module.weight1[o, i]) * x[i] for i in range(6))
            + float(module.bias1[o])
            for o in range(4)
        ]
        hidden = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in hidden]
        for o in range(3):
            wanted = math.fsum(
                float(module.weight2[o, i]) * hidden[i] for i in range(4)
            ) + float(module.bias2[o])
            assert float(out[row, o]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learnable_fourier_has_exact_angles(
    dtype: torch.dtype,
) -> None:
    fourier = LearnableFourier(
        3, axes=2, features=16, hidden=8, generator=seeded(0)
    ).to(dtype)
    exact = copy.deepcopy(fourier).double()
    positions = 1e6 * uniform(50, 2)
    assert (
        max_error(fourier(positions).double(), exact(positions))
        < 8 * torch.finfo(dtype).eps
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fourier(positions)
    assert (
        max_error(inside.double(), exact(positions))
        < 8 * torch.finfo(torch.bfloat16).eps
    )


def test_learnable_fourier_begins_with_the_kernel_of_width_gamma() -> None:
    count, gamma = 8000, 2.5
    frequencies = LearnableFourier(
        1, axes=2, features=2 * count, hidden=1, gamma=gamma, generator=seeded()
    ).frequencies
    assert float(frequencies.detach().std()) == pytest.approx(1 / gamma, rel=0.03)
    delta = torch.tensor([1.5, -2.0])
    estimate = float((frequencies.detach() @ delta).cos().mean())
    assert estimate == pytest.approx(
        math.exp(-float(delta.square().sum()) / (2 * gamma**2)),
        abs=5 / math.sqrt(2 * count),
    )


# ---- timesteps


@pytest.mark.parametrize("dim", [2, 4, 6, 9, 64])
@pytest.mark.parametrize("shift", [0, 0.5, 1])
@pytest.mark.parametrize("cosine_first", [False, True])
def test_timestep_is_the_equation(dim: int, shift: float, cosine_first: bool) -> None:
    half, times = dim // 2, [0, 1, 2.5, 999]
    if shift >= half:
        with pytest.raises(ValueError, match="shift must be at least 0 and below 1"):
            timestep(torch.tensor(times), dim, shift=shift, cosine_first=cosine_first)
        return
    out = timestep(
        torch.tensor(times),
        dim,
        shift=shift,
        cosine_first=cosine_first,
        dtype=torch.float64,
    )
    for row, t in enumerate(times):
        angles = [t * 10000 ** (-j / (half - shift)) for j in range(half)]
        halves = [[math.cos(a) for a in angles], [math.sin(a) for a in angles]]
        wanted = [*halves[not cosine_first], *halves[cosine_first], *[0.0] * (dim % 2)]
        assert max_error(out[row], torch.tensor(wanted, dtype=torch.float64)) <= 1e-12


@pytest.mark.parametrize("dim", [4, 8, 9, 320])
def test_timestep_reduces_to_the_tables_of_text(dim: int) -> None:
    positions = torch.tensor([0, 1, 7, 999])
    assert torch.equal(
        timestep(positions, dim, shift=1, cosine_first=False),
        sinusoidal_tensor2tensor(positions, dim),
    )
    if dim % 2 == 0:
        text = sinusoidal(positions, dim, layout="concatenated")
        assert torch.equal(timestep(positions, dim, shift=0, cosine_first=False), text)
        assert torch.equal(
            timestep(positions, dim, shift=0, cosine_first=True),
            text.roll(dim // 2, -1),
        )


AT = uniform(3, 2)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "nerf: count": (
        lambda: nerf(AT, 0),
        ValueError,
        "count",
    ),
    "nerf(AT[0], 2)": (
        lambda: nerf(AT[0], 2),
        ValueError,
        "positions must have shape",
    ),
    "nerf(AT.half(), 2)": (
        lambda: nerf(AT.half(), 2),
        TypeError,
        "positions",
    ),
    "nerf(AT / 0, 2)": (
        lambda: nerf(AT / 0, 2),
        ValueError,
        "positions must be finite",
    ),
    "gaussian_matrix: count": (
        lambda: gaussian_matrix(0, 2, std=1.0),
        ValueError,
        "count",
    ),
    "gaussian_matrix: axes": (
        lambda: gaussian_matrix(2, 0, std=1.0),
        ValueError,
        "axes",
    ),
    "gaussian_matrix: std": (
        lambda: gaussian_matrix(2, 2, std=0.0),
        ValueError,
        "std",
    ),
    "random_fourier: positions": (
        lambda: random_fourier(AT, normal(4, 3)),
        ValueError,
        r"positions must have shape \(..., T, 3\)",
    ),
    "random_fourier(AT, normal(4))": (
        lambda: random_fourier(AT, normal(4)),
        ValueError,
        "matrix",
    ),
    "random_fourier(AT, normal(1, 4, 2))": (
        lambda: random_fourier(AT, normal(1, 4, 2)),
        ValueError,
        "matrix must have shape",
    ),
    "random_fourier(AT, normal(4, 2).half())": (
        lambda: random_fourier(AT, normal(4, 2).half()),
        TypeError,
        "matrix must be float64 or float32",
    ),
    "random_fourier: dtype": (
        lambda: random_fourier(AT, normal(4, 2), dtype=torch.int32),
        TypeError,
        "dtype",
    ),
    "perceiver_fourier: max_resolution": (
        lambda: perceiver_fourier(AT, 3, 8),  # type: ignore[arg-type]
        TypeError,
        "max_resolution",
    ),
    "perceiver_fourier: positions": (
        lambda: perceiver_fourier(AT, 3, (8,)),
        ValueError,
        "positions",
    ),
    "LearnableFourier: dim": (
        lambda: LearnableFourier(0, axes=2, features=4, hidden=3),
        ValueError,
        "dim",
    ),
    "LearnableFourier: features": (
        lambda: LearnableFourier(2, axes=2, features=5, hidden=3),
        ValueError,
        "features must be even",
    ),
    "LearnableFourier: gamma": (
        lambda: LearnableFourier(2, axes=2, features=4, hidden=3, gamma=0.0),
        ValueError,
        "gamma",
    ),
    "LearnableFourier: positions": (
        lambda: LearnableFourier(2, axes=3, features=4, hidden=3)(AT),
        ValueError,
        "positions",
    ),
    "timestep: dim": (
        lambda: timestep(AT, 1, shift=0, cosine_first=True),
        ValueError,
        "dim",
    ),
    "timestep: base": (
        lambda: timestep(AT, 4, 0.0, shift=0, cosine_first=True),
        ValueError,
        "base",
    ),
    "timestep(AT, 4, shift=2, cosine_first=True)": (
        lambda: timestep(AT, 4, shift=2, cosine_first=True),
        ValueError,
        "shift must be at least 0 and below 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
