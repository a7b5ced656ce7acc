"""Sinusoidal position embeddings in their published layouts."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.frequencies import cos_sin, tensor2tensor_frequencies

SinusoidalLayout = Literal["interleaved", "concatenated"]


def sinusoidal(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    *,
    layout: SinusoidalLayout = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sinusoidal embedding: pair i of channels rotates by ω_i for each position.

    Equation: PE(m, 2i) = sin(m ω_i),  PE(m, 2i+1) = cos(m ω_i),  ω_i = θ^(−2i/d)
        (vaswani2017 §3.5)
    Shapes: positions (..., T) → (..., T, d)

    An odd d drops the last cosine: ⌈d/2⌉ sines and ⌊d/2⌋ cosines. The paper multiplies
    the token embeddings by √d before it adds this table; so does the caller.

    Args:
        positions: m, integers, float32 or float64, non-negative or not.
        dim: d, at least 1.
        base: θ, above 0.
        layout: "interleaved" is the paper's (sin, cos, sin, cos, …), "concatenated" has
            all sines before all cosines.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: positions of another dtype, a `dim` that is not an
            integer ≥ 1, a `base` not above 0, an unknown layout or dtype.

    Source: vaswani2017
    Checked: golden; parity
    Chapter: 04
    """
    _checks.whole_number("dim", dim, least=1)
    _checks.positive("base", base)
    _checks.one_of("layout", layout, get_args(SinusoidalLayout))
    even = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")  # 2i
    frequencies = base ** (-even / dim)  # (⌈d/2⌉,)
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, ⌈d/2⌉)
    if layout == "concatenated":
        return torch.cat((sin, cos), -1)[..., :dim]
    return torch.stack((sin, cos), -1).flatten(-2)[..., :dim]


def sinusoidal_tensor2tensor(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sinusoidal embedding as in the tensor2tensor code, sines before cosines.

    Equation: PE(m, j) = sin(m ω_j),  PE(m, h+j) = cos(m ω_j),  ω_j = θ^(−j/(h−1)),
        h = ⌊d/2⌋
    Shapes: positions (..., T) → (..., T, d)

    Its frequencies differ from the paper's, and an odd channel is zero. fairseq,
    Whisper, M2M-100 and Speech2Text use this form; where they reserve rows for padding,
    start later (`positions.from_mask(mask, first=2)`).

    Args:
        positions: m, integers, float32 or float64.
        dim: d, at least 4.
        base: θ, above 0.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: positions of another dtype, a `dim` that is not an
            integer ≥ 4, a `base` not above 0, an unknown dtype.

    Source: vaswani2017
    Checked: golden; parity
    Chapter: 04
    """
    frequencies = tensor2tensor_frequencies(dim, base)
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, ⌊d/2⌋)
    return torch.nn.functional.pad(torch.cat((sin, cos), -1), (0, dim % 2))
