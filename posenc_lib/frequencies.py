"""Inverse frequencies, wavelengths, and the tables of cosines and sines made from them.

θ is the base, ω_i the (angular) frequency of pair i in radians per position, called
`inv_freq` in most code, and λ_i = 2π/ω_i its wavelength in positions. Constants are
made on the CPU whatever the default device, so that a model built on "meta" has real
ones. All of it is float64. A table is rounded once, when it is made: at position
1,000,000 a table computed in float32 is wrong in the second decimal, one computed in
float64 and rounded is right to the last bit of float32.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc_lib import _checks

Spacing = Literal["linear", "geometric"]


def inverse_frequencies(dim: int, base: float = 10000.0) -> Tensor:
    """Frequencies of the pairs, the paper's: a geometric series from 1 to almost 1/θ.

    Equation: ω_i = θ^(−2i/d),  i = 0 … d/2−1      (vaswani2017 §3.5; su2021 eq. 15)
    Shapes: → (d/2,), float64, on the CPU

    Args:
        dim: number of channels d that are encoded or rotated, even.
        base: θ, above 0. Published models use 10,000 to 5,000,000: there is no right
            default for a checkpoint.

    Raises:
        TypeError, ValueError: `dim` is odd or below 2, `base` is not a finite number
            above 0.

    Source: vaswani2017, su2021
    Chapter: 04
    """
    _checks.even_dimension("dim", dim)
    _checks.positive("base", base)
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


def tensor2tensor_frequencies(dim: int, base: float = 10000.0) -> Tensor:
    """Frequencies of the tensor2tensor code and its ports: the last is exactly 1/θ.

    Equation: ω_j = θ^(−j/(h−1)),  j = 0 … h−1,  h = ⌊d/2⌋
    Shapes: → (⌊d/2⌋,), float64, on the CPU

    They differ from the paper's in value: with d = 8 they are 1, 0.0464, 0.00215,
    0.0001, the paper's 1, 0.1, 0.01, 0.001.

    Args:
        dim: number of channels d, at least 4 (below that h − 1 is 0).
        base: θ, above 0.

    Raises:
        TypeError, ValueError: `dim` is below 4, `base` is not a finite number above 0.

    Source: vaswani2017
    Chapter: 04
    """
    _checks.whole_number("dim", dim, least=4)
    _checks.positive("base", base)
    half = dim // 2
    return base ** (-torch.arange(half, dtype=torch.float64, device="cpu") / (half - 1))


def octave_frequencies(count: int) -> Tensor:
    """Frequencies that double from pair to pair, for coordinates in [−1, 1] (NeRF).

    Equation: ω_k = 2^k π,  k = 0 … K−1      (mildenhall2020 eq. 4)
    Shapes: → (K,), float64, on the CPU

    Args:
        count: K, at least 1.

    Raises:
        TypeError, ValueError: `count` is not an integer ≥ 1.

    Source: mildenhall2020
    Chapter: 04
    """
    _checks.whole_number("count", count, least=1)
    return math.pi * 2.0 ** torch.arange(count, dtype=torch.float64, device="cpu")


def pixel_frequencies(
    count: int, max_resolution: float, *, spacing: Spacing = "linear"
) -> Tensor:
    """Frequencies for a coordinate in [−1, 1], up to the pixels' Nyquist frequency.

    Equation: linear: ω_k = π (1 + (R/2 − 1) k/(K−1));
        geometric: ω_k = π (R/2)^(k/(K−1));  k = 0 … K−1
        (jaegle2021; R/2 is the Nyquist frequency)
    Shapes: → (K,), float64, on the CPU

    Args:
        count: K, at least 1.
        max_resolution: R, pixels on the axis, at least 2.
        spacing: "linear" as in Perceiver, or "geometric"; timm has both.

    Raises:
        TypeError, ValueError: `count` is not an integer ≥ 1, `max_resolution` is below
            2, an unknown spacing.

    Source: jaegle2021
    Checked: golden; parity
    Chapter: 04
    """
    _checks.whole_number("count", count, least=1)
    _checks.one_of("spacing", spacing, get_args(Spacing))
    if _checks.positive("max_resolution", max_resolution) < 2:
        raise ValueError(f"max_resolution must be at least 2, got {max_resolution}")
    if spacing == "linear":
        return math.pi * torch.linspace(
            1, max_resolution / 2, count, dtype=torch.float64, device="cpu"
        )
    return math.pi * (max_resolution / 2) ** torch.linspace(
        0, 1, count, dtype=torch.float64, device="cpu"
    )


def wavelengths(frequencies: Tensor) -> Tensor:
    """Positions in a full turn of each pair; infinite where the frequency is 0.

    Equation: λ_i = 2π/ω_i
    Shapes: (n,) → (n,)

    Args:
        frequencies: ω_i in radians per position.

    Raises:
        TypeError, ValueError: `frequencies` is not a floating-point tensor with at
            least one dimension.

    Chapter: 04
    """
    frequencies = _checks.floating_tensor("frequencies", frequencies, least_dims=1)
    return (
        2 * math.pi / frequencies.to(_checks.at_least_float32(frequencies.dtype))
    ).to(frequencies.dtype)


def cos_sin(
    positions: Tensor, frequencies: Tensor, *, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Tables cos(p ω_i) and sin(p ω_i): angles in float64, rounded once to `dtype`.

    Equation: angle(p, i) = p ω_i
    Shapes: positions (..., T), frequencies (n,) → two tables (..., T, n) on the
        positions' device

    Args:
        positions: integers, float32 or float64.
        frequencies: ω_i in radians per position, float64 (float32 is taken as it is, 16
            bits are refused).
        dtype: dtype of the tables.

    Raises:
        TypeError, ValueError: positions, frequencies or dtype of another kind;
            non-finite positions.

    Chapter: 04
    """
    positions = _checks.position_tensor("positions", positions)
    _checks.floating_dtype("dtype", dtype)
    _checks.vector("frequencies", frequencies, "n")
    p = _checks.in_float64(positions)[..., None]  # (..., T, 1)
    angles = p * frequencies.to(p.device, torch.float64)  # (..., T, n)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return cos.to(positions.device), sin.to(positions.device)
