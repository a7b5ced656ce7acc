"""Transformer-XL's score of four terms, and the shift by which its code computes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.content._rows import operands
from posenc_lib.frequencies import cos_sin, inverse_frequencies


def relative_shift(x: Tensor) -> Tensor:
    """The pad-and-reshape trick: scores by distance become scores by key.

    Equation: y[i, c] = x[i, c + Tq − 1 − i]  for c ≤ C − Tq + i
        (dai2019 appendix B)
    Shapes: (..., Tq, C) → (..., Tq, C)

    Pad a column of zeros on the left, read the same numbers as (C + 1, Tq), drop the
    first row: row i has moved Tq − 1 − i columns to the left. What follows on the right
    is junk that must be masked: one 0 at c = C − Tq + i + 1, then the beginning of row
    i + 1. Which C columns there are decides what the junk is:

    Transformer-XL: C = Tk, column c is distance m − n = Tk − 1 − c, queries last: junk
    exactly where n > m. Music Transformer's skew: the same with Tk = Tq. Conformer,
    Parakeet: C = 2T − 1, distances T − 1 … −(T − 1): the first T columns hold no junk,
    keep those. XLNet: C = Tq + Tk, drop the first column and keep Tk columns of the
    result.

    Args:
        x: scores, one column for each distance, the furthest past first.

    Raises:
        TypeError, ValueError: x is not a floating-point tensor of at least two
            dimensions, or has fewer columns than rows.

    Source: dai2019, huang2019
    Checked: parity
    Chapter: 07
    """
    rows, columns = _checks.floating_tensor("x", x, least_dims=2).shape[-2:]
    if columns < rows:
        raise ValueError(
            "x must have at least as many columns (distances) as rows (queries), got "
            f"{tuple(x.shape)}"
        )
    padded = torch.nn.functional.pad(x, (1, 0))
    padded = padded.reshape(*x.shape[:-2], columns + 1, rows)
    return padded[..., 1:, :].reshape(x.shape)


class TransformerXL(nn.Module):
    """Transformer-XL: four terms of content and of a sinusoid of the distance.

    Equation: s_mn = q_mᵀ k_n + q_mᵀ W_R R_{m−n} + uᵀ k_n + vᵀ W_R R_{m−n},
        R_r = (sin r ω_i … | cos r ω_i …)      (dai2019 §3.3; unscaled)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk)

    (q_m + v)ᵀ W_R is a coefficient for each sin and cos of (m − n) ω_i. The addition
    theorem splits those into a part of m and a part of n, so that no distance is ever
    tabulated: any positions will do, integers or not, in any order, and there is
    nothing to shift. The distance is query − key, unlike `relative`.

    Args:
        heads: H.
        head_dim: d.
        dim: D, width of the sinusoid, even; the model's width in the paper.
        base: θ of the sinusoid.
        std: u, v and W_R are drawn from N(0, std²); 0.02 in the released code, which
            shares u and v between layers.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1, an odd `dim`, `base` or
            `std` not above 0; when called, shapes that don't fit.

    Source: dai2019
    Checked: golden
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        dim: int,
        *,
        base: float = 10000.0,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("head_dim", head_dim, least=1)
        _checks.even_dimension("dim", dim)
        self.dim, self.base = dim, _checks.positive("base", base)
        self.u = normal(heads, head_dim, std=std, generator=generator)
        self.v = normal(heads, head_dim, std=std, generator=generator)
        self.weight = normal(heads * head_dim, dim, std=std, generator=generator)

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        q, k, dtype = operands(q, k, q_positions, k_positions)
        heads, head_dim = self.u.shape
        if q.shape[1] != heads or q.shape[3] != head_dim:
            raise ValueError(
                f"q must have shape (B, {heads}, T, {head_dim}), got {tuple(q.shape)}"
            )
        u, v, weight = (p.to(q.dtype) for p in (self.u, self.v, self.weight))
        coefficients = (q + v[:, None]) @ weight.view(heads, head_dim, self.dim)
        of_sin, of_cos = coefficients.chunk(2, -1)  # (B, H, Tq, D/2) each
        frequencies = inverse_frequencies(self.dim, self.base)
        cos_m, sin_m = (
            _for_heads(x) for x in cos_sin(q_positions, frequencies, dtype=q.dtype)
        )
        cos_n, sin_n = (
            _for_heads(x) for x in cos_sin(k_positions, frequencies, dtype=q.dtype)
        )
        of_cos_n = of_sin * sin_m + of_cos * cos_m
        of_sin_n = of_cos * sin_m - of_sin * cos_m
        distance = of_cos_n @ cos_n.mT + of_sin_n @ sin_n.mT
        return ((q + u[:, None]) @ k.mT + distance).to(dtype)


def _for_heads(table: Tensor) -> Tensor:
    """(T, n) → the same, (B, T, n) → (B, 1, T, n)."""
    return table if table.dim() == 2 else table[:, None]
