"""Sines and cosines of coordinates: NeRF, random Fourier features, Perceiver, learned ones, and diffusion timesteps.

Coordinates are the last axis of `positions`: (..., axes), float32 or float64 in [−1, 1]
or [0, 1], or integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.frequencies import cos_sin, octave_frequencies, pixel_frequencies


def _coordinates(value: Any, axes: int | None = None) -> Tensor:
    positions = _checks.position_tensor("positions", value)
    if positions.dim() < 2 or (axes is not None and positions.shape[-1] != axes):
        wanted = "axes" if axes is None else axes
        raise ValueError(
            f"positions must have shape (..., T, {wanted}), got "
            f"{tuple(positions.shape)}"
        )
    return positions


def nerf(
    positions: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """NeRF's features: each coordinate on its own, at frequencies that double.

    Equation: γ(p) = (sin 2⁰πp, cos 2⁰πp, …, sin 2^(K−1)πp, cos 2^(K−1)πp) for each
        coordinate p (mildenhall2020 eq. 4)
    Shapes: positions (..., T, axes) → (..., T, axes · 2K), coordinate by coordinate

    The released code orders by frequency first, puts the coordinates themselves in
    front, and has no π.

    Args:
        positions: coordinates in [−1, 1].
        count: K, at least 1; 10 for places and 4 for directions in the paper.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: an argument of another kind, named in the message.

    Source: mildenhall2020
    Chapter: 04
    """
    cos, sin = cos_sin(
        _coordinates(positions), octave_frequencies(count), dtype=dtype
    )  # (..., T, axes, K)
    return torch.stack((sin, cos), -1).flatten(-3)


def gaussian_matrix(
    count: int, axes: int, *, std: float, generator: torch.Generator | None = None
) -> Tensor:
    """The frozen matrix of random Fourier features, in turns per unit of the coordinate.

    Equation: B ∈ ℝ^(K×axes),  B_ij ~ N(0, σ²)      (tancik2020)
    Shapes: → (K, axes), float64, on the CPU

    The draw is part of the model: store it with the weights.

    Args:
        count: K, at least 1.
        axes: number of coordinates, at least 1.
        std: σ, above 0. The kernel that the features stand for is narrower by 1/σ.
        generator: of the draw, on the CPU.

    Raises:
        TypeError, ValueError: an argument of another kind, named in the message.

    Source: tancik2020
    Chapter: 04
    """
    _checks.whole_number("count", count, least=1)
    _checks.whole_number("axes", axes, least=1)
    _checks.positive("std", std)
    return (
        torch.randn(count, axes, dtype=torch.float64, device="cpu", generator=generator)
        * std
    )


def random_fourier(
    positions: Tensor, matrix: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Random Fourier features: directions and frequencies drawn once, all coordinates together.

    Equation: γ(v) = [cos 2πBv | sin 2πBv]      (tancik2020, with all amplitudes 1)
    Shapes: positions (..., T, axes), matrix (K, axes) → (..., T, 2K)

    γ(u)ᵀγ(v) / K estimates the kernel exp(−2π²σ² ‖u − v‖²), which depends on u − v
    alone. Score-based diffusion uses the same features of the noise level, sines first
    in most code.

    Args:
        positions: coordinates v.
        matrix: B, float32 or float64, as `gaussian_matrix` draws it.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: an argument of another kind, or coordinates and matrix
            with different axes.

    Source: tancik2020
    Chapter: 04
    """
    _checks.floating_dtype("dtype", dtype)
    if _checks.floating_tensor("matrix", matrix, least_dims=2).dim() != 2:
        raise ValueError(f"matrix must have shape (K, axes), got {tuple(matrix.shape)}")
    if matrix.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"matrix must be float64 or float32, got {matrix.dtype}")
    positions = _coordinates(positions, matrix.shape[1])
    # Apple's mps has no float64: there the features are made on the CPU, rounded, and
    # then moved.
    workplace = (
        torch.device("cpu") if positions.device.type == "mps" else positions.device
    )
    angles = (
        2
        * math.pi
        * positions.to(workplace, torch.float64)
        @ matrix.to(workplace, torch.float64).mT
    )
    return torch.cat((angles.cos(), angles.sin()), -1).to(dtype).to(positions.device)


def perceiver_fourier(
    positions: Tensor,
    count: int,
    max_resolution: Sequence[float],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Perceiver's features: the coordinates themselves, then the sines of all axes, then the cosines.

    Equation: [x_1 … x_A | sin(ω_1 x_1) … sin(ω_K x_1) sin(ω_1 x_2) … | cos …],  ω of an
        axis from `pixel_frequencies` (jaegle2021; checked against a port)
    Shapes: positions (..., T, axes) → (..., T, axes (2K + 1))

    Args:
        positions: coordinates in [−1, 1].
        count: K, frequencies of an axis.
        max_resolution: R of each axis, at least 2.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: an argument of another kind; another number of axes than
            of resolutions.

    Source: jaegle2021
    Chapter: 04
    """
    if not isinstance(max_resolution, Sequence) or len(max_resolution) == 0:
        raise TypeError(
            "max_resolution must be one number for each axis, such as (224, 224); got "
            f"{max_resolution!r}"
        )
    positions = _coordinates(positions, len(max_resolution))
    tables = [
        cos_sin(
            positions[..., axis], pixel_frequencies(count, resolution), dtype=dtype
        )  # two of (..., T, K)
        for axis, resolution in enumerate(max_resolution)
    ]
    cosines, sines = ([table[i] for table in tables] for i in (0, 1))
    return torch.cat((positions.to(dtype), *sines, *cosines), -1)


class LearnableFourier(nn.Module):
    """Learnable Fourier features: random ones whose matrix is learned, mixed by a network of two layers.

    Equation: W₂ GELU(W₁ f + c₁) + c₂,  f = [cos(W_r x) | sin(W_r x)] / √F,  W_r ∈
        ℝ^(F/2×axes) ~ N(0, γ⁻²) (li2021 eq. 2, 6; checked against ports, many of which
        take γ⁻² for the standard deviation)
    Shapes: positions (..., T, axes) → (..., T, d)

    At first f(x)ᵀf(y) is half of what estimates the Gaussian kernel exp(−‖x −
    y‖²/(2γ²)), so γ is its width.

    Args:
        dim: d, at least 1.
        axes: number of coordinates, at least 1.
        features: F, even.
        hidden: width of the network.
        gamma: γ, above 0, in units of the coordinates.
        generator: of the draws; the network's are uniform in ±1/√(inputs), which is
            PyTorch's for linear layers.

    Raises:
        TypeError, ValueError: an argument of another kind; when called, coordinates of
            another kind.

    Source: li2021
    Chapter: 17
    """

    def __init__(
        self,
        dim: int,
        *,
        axes: int,
        features: int,
        hidden: int,
        gamma: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("axes", axes), ("hidden", hidden)):
            _checks.whole_number(name, value, least=1)
        half = _checks.even_dimension("features", features) // 2
        self.frequencies = nn.Parameter(torch.empty(half, axes))
        nn.init.normal_(
            self.frequencies,
            std=1 / _checks.positive("gamma", gamma),
            generator=generator,
        )
        self.weight1 = nn.Parameter(torch.empty(hidden, features))
        self.bias1 = nn.Parameter(torch.empty(hidden))
        self.weight2 = nn.Parameter(torch.empty(dim, hidden))
        self.bias2 = nn.Parameter(torch.empty(dim))
        for parameter, inputs in (
            (self.weight1, features),
            (self.bias1, features),
            (self.weight2, hidden),
            (self.bias2, hidden),
        ):
            nn.init.uniform_(
                parameter, -(inputs**-0.5), inputs**-0.5, generator=generator
            )

    def forward(self, positions: Tensor) -> Tensor:
        half, axes = self.frequencies.shape
        compute = _checks.at_least_float32(self.frequencies.dtype)
        positions = _coordinates(positions, axes)
        wide = _checks.float64_on(positions.device)
        angles = positions.to(wide) @ self.frequencies.to(wide).mT  # (..., T, F/2)
        features = (
            torch.cat((angles.cos(), angles.sin()), -1).to(compute) * (2 * half) ** -0.5
        )
        w1, c1, w2, c2 = (
            p.to(compute) for p in (self.weight1, self.bias1, self.weight2, self.bias2)
        )
        hidden = torch.nn.functional.gelu(features @ w1.mT + c1)
        return (hidden @ w2.mT + c2).to(self.frequencies.dtype)


def timestep(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    *,
    shift: float,
    cosine_first: bool,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Diffusion's timestep embedding: the sinusoidal one in the two choices on which models differ.

    Equation: [sin(t ω_j) | cos(t ω_j)], or cosines first,  ω_j = θ^(−j/(h − shift)),  j
        = 0 … h−1,  h = ⌊d/2⌋; an odd channel is zero      (ho2020 §B, released code:
        shift 1, sines first)
    Shapes: positions (..., T) → (..., T, d)

    Stable Diffusion and DiT have shift 0 and cosines first. Neither has a default here,
    because a checkpoint made with the other one still runs, and is wrong.

    Args:
        positions: t, integers, float32 or float64.
        dim: d, at least 2.
        base: θ, above 0.
        shift: 0 for the paper's frequencies of 2017, 1 for tensor2tensor's; below h.
        cosine_first: whether the cosines are the first half.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: an argument of another kind, named in the message.

    Source: ho2020
    Chapter: 04
    """
    half = _checks.whole_number("dim", dim, least=2) // 2
    _checks.positive("base", base)
    if isinstance(shift, bool) or not isinstance(shift, (int, float)):
        raise TypeError(f"shift must be a number, got {shift!r}")
    if not 0 <= shift < half:
        raise ValueError(
            f"shift must be at least 0 and below {half}, half of dim; got {shift}"
        )
    if not isinstance(cosine_first, bool):
        raise TypeError(f"cosine_first must be True or False, got {cosine_first!r}")
    frequencies = base ** (
        -torch.arange(half, dtype=torch.float64, device="cpu") / (half - shift)
    )
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, ⌊d/2⌋)
    table = torch.cat((cos, sin) if cosine_first else (sin, cos), -1)
    return torch.nn.functional.pad(table, (0, dim % 2))
