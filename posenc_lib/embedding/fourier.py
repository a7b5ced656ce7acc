"""Sines and cosines of coordinates, and of diffusion timesteps.

Coordinates are the last axis of `positions`: (..., axes), float32 or float64 in [−1, 1]
or [0, 1], or integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal, uniform
from posenc_lib.frequencies import cos_sin, octave_frequencies, pixel_frequencies


def nerf(
    positions: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """NeRF's features: sines and cosines of each coordinate at doubling frequencies.

    Equation: γ(p) = (sin 2⁰πp, cos 2⁰πp, …, sin 2^(K−1)πp, cos 2^(K−1)πp) for each
        coordinate p      (mildenhall2020 eq. 4)
    Shapes: positions (..., T, axes) → (..., T, axes · 2K), coordinate by coordinate

    The released code orders by frequency first, puts the coordinates themselves in
    front, and has no π.

    Args:
        positions: coordinates in [−1, 1].
        count: K, at least 1; 10 for points and 4 for directions in the paper.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: positions of another dtype or without axes, a `count`
            that is not an integer ≥ 1, an unknown dtype.

    Source: mildenhall2020
    Checked: bmild/nerf@14c55567a6d0:run_nerf_helpers.py:Embedder.create_embedding_fn
    Chapter: 04
    """
    positions = _checks.coordinates("positions", positions)
    frequencies = octave_frequencies(count)
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, axes, K)
    return torch.stack((sin, cos), -1).flatten(-3)


def gaussian_matrix(
    count: int, axes: int, *, std: float, generator: torch.Generator | None = None
) -> Tensor:
    """The frozen matrix of random Fourier features, in periods per unit of distance.

    Equation: B ∈ ℝ^(K×axes),  B_ij ~ N(0, σ²)      (tancik2020)
    Shapes: → (K, axes), float64, on the CPU

    The draw is part of the model: store it with the weights.

    Args:
        count: K, at least 1.
        axes: number of coordinates, at least 1.
        std: σ, above 0. The kernel that the features stand for is narrower by 1/σ.
        generator: of the draw, on the CPU.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, `std` not above 0.

    Source: tancik2020
    Checked: tancik/fourier-feature-networks@9c110c31ce37:Demo.ipynb:B_gauss
    Chapter: 04
    """
    _checks.sizes(count=count, axes=axes)
    _checks.positive("std", std)
    unit = torch.randn(
        count, axes, dtype=torch.float64, device="cpu", generator=generator
    )
    return unit * std


def random_fourier(
    positions: Tensor, matrix: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Random Fourier features: directions and frequencies that are drawn once.

    Equation: γ(v) = [cos 2πBv | sin 2πBv]      (tancik2020, with all amplitudes 1)
    Shapes: positions (..., T, axes), matrix (K, axes) → (..., T, 2K)

    γ(u)ᵀγ(v) / K estimates the kernel exp(−2π²σ² ‖u − v‖²), which depends on u − v
    alone. The authors' code has the sines first, as most code of score-based diffusion
    has, which uses these features of the noise level.

    Args:
        positions: coordinates v.
        matrix: B, float32 or float64, as `gaussian_matrix` draws it.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: positions, matrix or result of another dtype;
            coordinates and matrix with different axes.

    Source: tancik2020
    Checked: golden;
        tancik/fourier-feature-networks@9c110c31ce37:Demo.ipynb:input_mapping
    Chapter: 04
    """
    _checks.floating_dtype("dtype", dtype)
    _checks.floating_tensor("matrix", matrix, least_dims=2)
    if matrix.dim() != 2:
        raise ValueError(f"matrix must have shape (K, axes), got {tuple(matrix.shape)}")
    if matrix.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"matrix must be float64 or float32, got {matrix.dtype}")
    positions = _checks.coordinates("positions", positions, axes=matrix.shape[1])
    v = _checks.in_float64(positions)
    angles = 2 * math.pi * v @ matrix.to(v.device, torch.float64).mT  # (..., T, K)
    return torch.cat((angles.cos(), angles.sin()), -1).to(dtype).to(positions.device)


def perceiver_fourier(
    positions: Tensor,
    count: int,
    max_resolution: Sequence[float],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Perceiver's features: coordinates, the sines of all axes, then the cosines.

    Equation: [x_1 … x_A | sin(ω_1 x_1) … sin(ω_K x_1) sin(ω_1 x_2) … | cos …],  ω of an
        axis from `pixel_frequencies`      (jaegle2021)
    Shapes: positions (..., T, axes) → (..., T, axes (2K + 1))

    Args:
        positions: coordinates in [−1, 1].
        count: K, frequencies of an axis.
        max_resolution: R of each axis, at least 2.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: positions of another dtype, a `count` that is not an
            integer ≥ 1, a resolution below 2, an unknown dtype; another number of axes
            than of resolutions.

    Source: jaegle2021
    Checked: golden;
        google-deepmind/deepmind-research@837430d4d1db:perceiver/position_encoding.py:generate_fourier_features
    Chapter: 04
    """
    if not isinstance(max_resolution, Sequence) or len(max_resolution) == 0:
        raise TypeError(
            "max_resolution must be one number for each axis, such as (224, 224); "
            f"got {max_resolution!r}"
        )
    axes = len(max_resolution)
    positions = _checks.coordinates("positions", positions, axes=axes)
    cosines, sines = [], []
    for axis, resolution in enumerate(max_resolution):
        frequencies = pixel_frequencies(count, resolution)
        cos, sin = cos_sin(positions[..., axis], frequencies, dtype=dtype)
        cosines.append(cos)  # (..., T, K)
        sines.append(sin)
    return torch.cat((positions.to(dtype), *sines, *cosines), -1)


class LearnableFourier(nn.Module):
    """Learnable Fourier features: a learned matrix, and a network of two layers.

    Equation: W₂ GELU(W₁ f + c₁) + c₂,  f = [cos(W_r x) | sin(W_r x)] / √F,
        W_r ∈ ℝ^(F/2×axes) ~ N(0, γ⁻²)      (li2021 eq. 2, 6)
    Shapes: positions (..., T, axes) → (..., T, d)

    At first f(x)ᵀf(y) is half of what estimates the Gaussian kernel
    exp(−‖x − y‖²/(2γ²)), so γ is its width. We know of no code by the authors; two
    ports have the same form, with standard deviation γ⁻² in one and γ² in the other.

    Args:
        dim: d, at least 1.
        axes: number of coordinates, at least 1.
        features: F, even.
        hidden: width of the network.
        gamma: γ, above 0, in units of the coordinates.
        generator: of the draws; the network's are uniform in ±1/√(inputs), which is
            PyTorch's for linear layers.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, odd `features`, a
            `gamma` not above 0; when called, positions of another dtype or number of
            axes.

    Source: li2021
    Checked:
        willGuimont/learnable_fourier_positional_encoding@220e9385f463:learnable_fourier_pos_encoding.py:LearnableFourierPositionalEncoding.forward;
        JHLew/Learnable-Fourier-Features@f5377bbfc68b:positional_encoding.py:LearnableFourierFeatures
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
        _checks.sizes(dim=dim, axes=axes, hidden=hidden)
        _checks.even_dimension("features", features)
        _checks.positive("gamma", gamma)
        std = 1 / gamma
        self.frequencies = normal(features // 2, axes, std=std, generator=generator)
        first = partial(uniform, inputs=features, generator=generator)
        second = partial(uniform, inputs=hidden, generator=generator)
        self.weight1, self.bias1 = first(hidden, features), first(hidden)
        self.weight2, self.bias2 = second(dim, hidden), second(dim)

    def forward(self, positions: Tensor) -> Tensor:
        half, axes = self.frequencies.shape
        compute = _checks.at_least_float32(self.frequencies.dtype)
        positions = _checks.coordinates("positions", positions, axes=axes)
        exact = _checks.float64_on(positions.device)
        angles = positions.to(exact) @ self.frequencies.to(exact).mT  # (..., T, F/2)
        waves = torch.cat((angles.cos(), angles.sin()), -1).to(compute)
        features = waves * (2 * half) ** -0.5
        w1, c1, w2, c2 = (
            p.to(compute) for p in (self.weight1, self.bias1, self.weight2, self.bias2)
        )
        hidden = nn.functional.gelu(features @ w1.mT + c1)
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
    """Diffusion's timestep embedding: sinusoids, with the two choices of the models.

    Equation: [sin(t ω_j) | cos(t ω_j)], or cosines first,  ω_j = θ^(−j/(h − shift)),
        j = 0 … h−1,  h = ⌊d/2⌋; an odd channel is zero
        (ho2020 §B, released code: shift 1, sines first)
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
        TypeError, ValueError: positions of another dtype, a `dim` that is not an
            integer ≥ 2, a `base` not above 0, a shift outside 0 … h, a `cosine_first`
            that is not a boolean, an unknown dtype.

    Source: ho2020
    Checked: golden;
        hojonathanho/diffusion@c46129977747:diffusion_tf/nn.py:get_timestep_embedding
    Chapter: 04
    """
    half = _checks.whole_number("dim", dim, least=2) // 2
    _checks.positive("base", base)
    _checks.finite("shift", shift)
    _checks.boolean("cosine_first", cosine_first)
    if not 0 <= shift < half:
        raise ValueError(
            f"shift must be at least 0 and below {half}, half of dim; got {shift}"
        )
    index = torch.arange(half, dtype=torch.float64, device="cpu")
    frequencies = base ** (-index / (half - shift))
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, ⌊d/2⌋)
    table = torch.cat((cos, sin) if cosine_first else (sin, cos), -1)
    return nn.functional.pad(table, (0, dim % 2))
