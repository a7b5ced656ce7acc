"""The same attention through PyTorch's fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.attention._operands import (
    allowed_pairs,
    check_shapes,
    checked_mask,
    hidden_arguments,
)
from posenc_lib.attention.toeplitz import checked_vector
from posenc_lib.positions import relative
from posenc_lib.scheme import NOPE, PositionScheme

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    scheme: PositionScheme = NOPE,
    mask: Tensor | None = None,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """`attention` through PyTorch's fused kernel.

    Equation: as `attention`
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v),
        in v's dtype

    The transform is applied first; bias and masks are the kernel's `attn_mask`. Equal
    to the reference up to rounding; 16-bit inputs are multiplied in 16 bits. Masks come
    from positions and never from the kernel's own `is_causal`, which aligns the first
    query with the first key: with a cache that hides all keys but one.

    Args:
        q, k, v, q_positions, k_positions, mask, q_x, k_x: as in `attention`.
        scheme: one that fills neither `scores` nor `values`: the kernel computes qᵀk
            and Σ α v itself.
        chunk: queries whose bias and masks exist at a time, all by default; the
            backward pass makes them again. Memory is then linear in the length for any
            bias, FIRE's too, if the causal mask is the scheme's own and no n×n `mask`.
            A bias of the distance alone is faster through `hankel_attention`.

    Raises:
        TypeError, ValueError: as `attention`; the scheme fills `scores` or `values`;
            `chunk` is not an integer ≥ 1.

    Source: dao2022
    Chapter: 18
    """
    _check_scheme(scheme)
    check_shapes(q, k, q_positions, k_positions)
    _checks.values_of(k, v)
    hidden = hidden_arguments(q_x, k_x)
    if scheme.transform is not None:
        q, k = scheme.transform(q, k, q_positions, k_positions, **hidden)
    if mask is not None:
        checked_mask(mask, q[..., :1].expand(-1, -1, -1, k.shape[2]))

    def rows(start: int, stop: int) -> Tensor:
        part = slice(start, stop)
        positions = (
            q_positions[part] if q_positions.dim() == 1 else q_positions[:, part]
        )
        rows_mask = mask
        if mask is not None and mask.shape[-2] != 1:
            rows_mask = mask[..., part, :]
        states = hidden if q_x is None else hidden | {"q_x": q_x[:, part]}
        return _fused_rows(
            q[:, :, part], k, v, positions, k_positions, scheme, rows_mask, states
        )

    queries = q.shape[2]
    if chunk is None:
        return rows(0, queries)
    _checks.whole_number("chunk", chunk, least=1)
    parts = [
        checkpoint(rows, start, min(start + chunk, queries), use_reentrant=False)
        for start in range(0, queries, chunk)
    ]
    return torch.cat(parts, 2)


def _fused_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    scheme: PositionScheme,
    mask: Tensor | None,
    hidden: dict[str, Tensor],
) -> Tensor:
    """`fused_attention` of some of the queries, which are transformed already."""
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    # It has the shape of the scores: bias and masks are checked against it.
    scores = q[..., :1].expand(-1, -1, -1, k.shape[2])
    allowed = allowed_pairs(mask, scheme, q_positions, k_positions, scores)
    attn_mask = None
    if scheme.bias is not None:
        bias = scheme.bias(q_positions, k_positions, **hidden)
        attn_mask = _checks.score_bias("bias", bias, scores.shape).to(dtype)
    has_key = None
    if allowed is not None:
        # The kernel's result for a row without any key is undefined, and −∞ − (−∞) is
        # NaN: such a row attends to all keys, and its output is set to zero.
        has_key = allowed.any(-1, keepdim=True)
        allowed = allowed | ~has_key
        attn_mask = (
            allowed if attn_mask is None else attn_mask.masked_fill(~allowed, -math.inf)
        )
    out = scaled_dot_product_attention(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        attn_mask=attn_mask,
        scale=scheme.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return (out if has_key is None else out.masked_fill(~has_key, 0)).to(v.dtype)


def relative_score_mod(
    bias: Tensor, *, q_positions: Tensor, k_positions: Tensor, causal: bool
) -> ScoreMod:
    """A relative bias as a `score_mod` of FlexAttention.

    Equation: score → score + b_{n−m}, and −∞ for n > m if causal
    Shapes: bias (H, 2N−1) → a function of (score, batch, head, query index, key index),
        all ()

    Call `flex_attention(q, k, v, score_mod=relative_score_mod(...))`. FlexAttention
    knows indices; the positions that it looks up here keep caches and left padding
    right. Apply a transform to q and k before. Segments of packed rows and padding
    belong in its `block_mask`, which skips whole blocks, and so may the future. On a
    GPU this is the fast way; on the CPU PyTorch 2.13 has the forward pass only, and
    `hankel_attention` has both.

    Args:
        bias: b_{−(N−1)} … b_{N−1}, from `relative_bias_vector`, on the queries' device.
        q_positions: (Tq,) or (B, Tq), integers.
        k_positions: (Tk,) or (B, Tk), integers, no further than N − 1 from any query.
        causal: hide keys after the query.

    Raises:
        TypeError, ValueError: positions that are not integers, a bias of another shape,
            `causal` is not a bool. On plain CPU tensors: a distance that the bias does
            not hold.

    Source: dong2024
    Checked: derived, unchecked
    Chapter: 18
    """
    shape = _checks.floating_tensor("bias", bias, least_dims=2).shape
    furthest = shape[1] // 2
    vector = checked_vector(bias, shape[0], furthest + 1, furthest + 1, causal)
    q_positions = _checks.attention_positions("q_positions", q_positions)
    k_positions = _checks.attention_positions("k_positions", k_positions)
    for name, positions in (("q_positions", q_positions), ("k_positions", k_positions)):
        if positions.is_floating_point():
            raise TypeError(
                f"{name} must be integers, whose difference is an index; got "
                f"{positions.dtype}"
            )
    r = relative(q_positions, k_positions)
    if values_known(r) and int(r.abs().max()) > furthest:
        raise ValueError(
            f"bias must hold distances up to {int(r.abs().max())}, got shape "
            f"{tuple(shape)}, for distances up to {furthest}"
        )

    def score_mod(
        score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        m = q_positions[query] if q_positions.dim() == 1 else q_positions[batch, query]
        n = k_positions[key] if k_positions.dim() == 1 else k_positions[batch, key]
        return score + vector[head, n - m + furthest]

    return score_mod


def _check_scheme(scheme: PositionScheme) -> None:
    if not isinstance(scheme, PositionScheme):
        raise TypeError(f"scheme must be a PositionScheme, got {scheme!r}")
    computed = [field for field in ("scores", "values") if field in scheme.places]
    if computed:
        raise ValueError(
            f"scheme must leave {' and '.join(computed)} empty, which a fused kernel "
            f"computes itself; got {scheme.name!r}: use attention(...)"
        )
