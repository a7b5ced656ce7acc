"""Probes: each measures how far an encoding is from a property it should have.

A probe returns the largest absolute error it saw. Tests compare it with rounding,
chapters print it. The tensors are given by the caller, so that nothing is drawn in
secret; float64 tensors make the sharpest probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    key_padding_mask,
    same_segment,
)
from posenc_lib.positions import arange, from_mask, packed, segment_ids
from posenc_lib.rotary import RoPE, Rotation
from posenc_lib.scheme import PositionScheme


def normal(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64, the same ones for every call with one seed.

    Equation: x ~ N(0, 1)
    Shapes: → `shape`

    Args:
        shape: sizes of the axes.
        seed: of a generator on the CPU that is made for this call alone.

    Raises:
        TypeError, ValueError: `seed` is not an integer ≥ 0.

    Chapter: 03
    """
    _checks.whole_number("seed", seed, least=0)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def spread(values: Tensor) -> float:
    """How far apart the largest and the smallest of some numbers are.

    Equation: max x − min x
    Shapes: a tensor of any shape → a number

    Args:
        values: at least one real number.

    Raises:
        TypeError, ValueError: no numbers, or complex ones.

    Chapter: 03
    """
    return max_error(values.max(), values.min())


def mixed_layouts(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """The commonest fault of a port: tables of halves, partners that are neighbours.

    Equation: y_j = x_j cos(p ω_{j mod d/2}) ∓ x_{j±1} sin(p ω_{j mod d/2})
    Shapes: x (..., T, d), positions (T,), frequencies (d/2,) → (..., T, d)

    It is no rotation: the two members of a pair meet different angles.

    Args:
        x: queries or keys.
        positions: p of each token.
        frequencies: ω_i.

    Raises:
        TypeError, ValueError: frequencies that are not a float64 or float32 vector.

    Chapter: 10
    """
    _checks.vector("frequencies", frequencies, "d/2")
    angles = (positions[:, None] * frequencies).repeat(1, 2)  # of halves
    neighbours = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * angles.cos() + neighbours * angles.sin()


def max_error(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, in float64.

    Equation: max |a − b|
    Shapes: two tensors of one shape → a number

    Args:
        actual: what was computed.
        expected: what it should be.

    Raises:
        TypeError, ValueError: the shapes differ (nothing is broadcast), or hold no
            number; complex numbers.

    Chapter: 01
    """
    for name, x in (("actual", actual), ("expected", expected)):
        if x.is_complex():
            raise TypeError(
                f"{name} must be real (torch.view_as_real makes pairs of complex "
                f"numbers), got {x.dtype}"
            )
        if x.numel() == 0:
            raise ValueError(
                f"{name} must hold at least one number, got shape {tuple(x.shape)}"
            )
    if actual.shape != expected.shape:
        raise ValueError(
            f"actual and expected must have one shape, got {tuple(actual.shape)}, "
            f"{tuple(expected.shape)}"
        )
    return float((actual.detach().double() - expected.detach().double()).abs().max())


def equivariance_error(
    function: Callable[[Tensor], Tensor], x: Tensor, permutation: Tensor
) -> float:
    """Permutation equivariance: shuffled tokens give equally shuffled outputs.

    Equation: max |f(PX) − P f(X)|
    Shapes: x (..., T, D), permutation (T,)

    Args:
        function: f, from (..., T, D) to (..., T, D′).
        x: tokens, one a row.
        permutation: a permutation of 0 … T−1.

    Raises:
        ValueError: f changes the number of tokens.

    Source: yun2020
    Chapter: 01
    """
    if sorted(permutation.tolist()) != list(range(x.shape[-2])):
        raise ValueError(
            f"permutation must hold 0 … {x.shape[-2] - 1} once each, got "
            f"{permutation.tolist()}"
        )
    outputs = function(x)
    if outputs.shape[-2] != x.shape[-2]:
        raise ValueError(
            f"function must keep the number of tokens, {x.shape[-2]}; it returned "
            f"{outputs.shape[-2]}"
        )
    return max_error(function(x[..., permutation, :]), outputs[..., permutation, :])


def relative_error(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    *,
    positions: Tensor,
    shift: float,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> float:
    """Relative position: weights do not change when all positions move together.

    Equation: max |α(m + c, n + c) − α(m, n)|
    Shapes: q (B, H, T, d), k (B, Hk, T, d), positions (T,)

    Args:
        scheme: one without an embedding, which is in q and k if anywhere.
        q: queries.
        k: keys.
        positions: of both.
        shift: c, in positions.
        q_x: hidden states (B, T, D) of the query tokens, for schemes that read them;
            passed on with k_x.
        k_x: hidden states (B, T, D) of the key tokens.

    Chapter: 11
    """

    def weights(moved: Tensor) -> Tensor:
        return attention_weights(
            q, k, q_positions=moved, k_positions=moved, scheme=scheme, q_x=q_x, k_x=k_x
        )

    return max_error(weights(positions + shift), weights(positions))


def toeplitz_error(matrix: Tensor) -> float:
    """Toeplitz: every diagonal holds one value, so the entry depends on n − m alone.

    Equation: max |A[m, n] − A[m−1, n−1]|
    Shapes: (..., T, T), T at least 2

    Args:
        matrix: scores or biases at consecutive positions.

    Raises:
        ValueError: fewer than two rows or columns.

    Chapter: 05
    """
    if matrix.dim() < 2 or min(matrix.shape[-2:]) < 2:
        raise ValueError(
            f"matrix must have at least two rows and columns, got {tuple(matrix.shape)}"
        )
    return max_error(matrix[..., 1:, 1:], matrix[..., :-1, :-1])


def norm_error(rotation: Rotation, x: Tensor) -> float:
    """Norm: a rotation changes no length.

    Equation: max | ‖R x‖ − ‖x‖ |
    Shapes: x (..., T, d)

    Args:
        rotation: `rope(positions)`.
        x: vectors to rotate.

    Chapter: 10
    """
    return max_error(rotation(x).norm(dim=-1), x.norm(dim=-1))


def group_error(rope: RoPE, x: Tensor, m: Tensor, n: Tensor) -> float:
    """Group law: rotating by n and then by m is rotating by m + n.

    Equation: max |R(m) R(n) x − R(m + n) x|
    Shapes: x (..., T, d), m and n (T,)

    Args:
        rope: the encoding.
        x: vectors to rotate, float64.
        m: positions.
        n: positions.

    Chapter: 11
    """
    dtype = torch.float64
    return max_error(rope(m, dtype)(rope(n, dtype)(x)), rope(m + n, dtype)(x))


def incremental_error(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> float:
    """Incremental = parallel: decoding over a cache gives what one causal pass gives.

    Equation: max |o_t(keys 0 … t) − o_t|
    Shapes: q (B, H, T, d), k (B, Hk, T, d), v (B, Hk, T, d_v)

    Args:
        scheme: one without an embedding, which is in q and k if anywhere.
        q: queries.
        k: keys.
        v: values.
        q_x: hidden states (B, T, D) of the query tokens, for schemes that read them;
            passed on with k_x.
        k_x: hidden states (B, T, D) of the key tokens.

    Chapter: 20
    """
    steps = [
        attention(
            q[:, :, t : t + 1],
            k[:, :, : t + 1],
            v[:, :, : t + 1],
            q_positions=arange(1, offset=t, device=q.device),
            k_positions=arange(t + 1, device=q.device),
            scheme=scheme,
            q_x=None if q_x is None else q_x[:, t : t + 1],
            k_x=None if k_x is None else k_x[:, : t + 1],
        )
        for t in range(q.shape[2])
    ]
    return max_error(torch.cat(steps, 2), _causal_attention(scheme, q, k, v, q_x, k_x))


def left_padding_error(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    padding: int,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> float:
    """Left padding: a padded row gives the same outputs as the row alone.

    Equation: max |o(padded)_{t + p} − o_t|
    Shapes: q (B, H, T, d), k (B, Hk, T, d), v (B, Hk, T, d_v)

    Args:
        scheme: one without an embedding, which is in q and k if anywhere.
        q: queries.
        k: keys.
        v: values.
        padding: slots p put before the tokens, filled with ones.
        q_x: hidden states (B, T, D) of the query tokens, for schemes that read them;
            passed on with k_x.
        k_x: hidden states (B, T, D) of the key tokens.

    Raises:
        TypeError, ValueError: `padding` is not an integer ≥ 0.

    Chapter: 20
    """
    _checks.whole_number("padding", padding, least=0)
    mask = (torch.arange(padding + q.shape[2], device=q.device) >= padding).expand(
        q.shape[0], -1
    )  # (B, p + T)
    positions = from_mask(mask)
    allowed = causal(positions, positions) & key_padding_mask(mask)

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, padding, 0), value=1.0)

    hidden: dict[str, Any] = {
        name: x if x is None else padded(x) for name, x in (("q_x", q_x), ("k_x", k_x))
    }
    heads = map(padded, (q, k, v))
    out = attention(
        *heads,
        q_positions=positions,
        k_positions=positions,
        scheme=scheme,
        mask=allowed,
        **hidden,
    )
    return max_error(out[:, :, padding:], _causal_attention(scheme, q, k, v, q_x, k_x))


def packing_error(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Sequence[int],
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> float:
    """Packing: documents in one row give the same outputs as each alone.

    Equation: max |o(packed) − (o(document 1), o(document 2), …)|
    Shapes: q (B, H, T, d), k (B, Hk, T, d), v (B, Hk, T, d_v), Σ lengths = T

    Args:
        scheme: one without an embedding, which is in q and k if anywhere.
        q: queries.
        k: keys.
        v: values.
        lengths: lengths of the documents, together T.
        q_x: hidden states (B, T, D) of the query tokens, for schemes that read them;
            passed on with k_x.
        k_x: hidden states (B, T, D) of the key tokens.

    Raises:
        TypeError, ValueError: lengths that don't add up to T, or that
            `positions.packed` refuses.

    Chapter: 20
    """
    positions, numbers = (
        packed(lengths, device=q.device),
        segment_ids(lengths, device=q.device),
    )
    if positions.shape[0] != q.shape[2]:
        raise ValueError(
            f"lengths must add up to the {q.shape[2]} tokens of q, got {list(lengths)}"
        )
    allowed = causal(positions, positions) & same_segment(numbers, numbers)
    together = attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=positions,
        scheme=scheme,
        mask=allowed,
        q_x=q_x,
        k_x=k_x,
    )
    alone, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        hidden = (None if x is None else x[:, part] for x in (q_x, k_x))
        alone.append(
            _causal_attention(
                scheme, q[:, :, part], k[:, :, part], v[:, :, part], *hidden
            )
        )
        start += length
    return max_error(together, torch.cat(alone, 2))


def causality_error(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> float:
    """Causality: under the causal mask, an output does not change when later tokens do.

    Equation: max |o_t(tokens after t replaced) − o_t|
    Shapes: q (B, H, T, d), k (B, Hk, T, d), v (B, Hk, T, d_v), T at least 2

    Args:
        scheme: one without an embedding, which is in q and k if anywhere.
        q: queries.
        k: keys.
        v: values.
        q_x: hidden states (B, T, D) of the query tokens, for schemes that read them;
            passed on with k_x.
        k_x: hidden states (B, T, D) of the key tokens.

    Raises:
        ValueError: fewer than two tokens.

    Chapter: 02
    """
    if q.shape[2] < 2:
        raise ValueError(
            "q must have at least two tokens, so that one is later; got "
            f"{tuple(q.shape)}"
        )
    half = q.shape[2] // 2

    def changed(x: Tensor) -> Tensor:
        return torch.cat((x[..., :half, :], 1 - x[..., half:, :]), -2)

    hidden = (x if x is None else changed(x) for x in (q_x, k_x))
    before = _causal_attention(scheme, q, k, v, q_x, k_x)
    after = _causal_attention(scheme, changed(q), changed(k), changed(v), *hidden)
    return max_error(after[:, :, :half], before[:, :, :half])


def _causal_attention(
    scheme: PositionScheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_x: Tensor | None,
    k_x: Tensor | None,
) -> Tensor:
    positions = arange(q.shape[2], device=q.device)
    return attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=positions,
        scheme=scheme,
        mask=causal(positions, positions),
        q_x=q_x,
        k_x=k_x,
    )


__all__ = [
    "causality_error",
    "equivariance_error",
    "group_error",
    "incremental_error",
    "left_padding_error",
    "max_error",
    "norm_error",
    "packing_error",
    "relative_error",
    "toeplitz_error",
]
