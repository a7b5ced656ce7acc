"""The same attention through PyTorch's fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.attention._operands import hidden_arguments
from posenc_lib.attention.prepared import (
    PreparedScheme,
    at_positions,
    checked_positions,
    kernel_mask,
)
from posenc_lib.attention.toeplitz import checked_vector
from posenc_lib.positions import relative
from posenc_lib.scheme import PositionScheme, checked_scheme

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: PositionScheme | PreparedScheme,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
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
    to the reference up to rounding; 16-bit inputs are multiplied in 16 bits.

    With a scheme from `prepare`, tables and mask are made once for all layers, and a
    plain causal mask over the tokens themselves is the kernel's own `is_causal`, which
    halves the work. Otherwise masks come from positions: `is_causal` aligns the first
    query with the first key, and with a cache hides all keys but one.

    Args:
        q, k, v, q_positions, k_positions, mask, q_x, k_x: as in `attention`.
        scheme: as in `attention`, one that fills neither `scores` nor `values`: the
            kernel computes qᵀk and Σ α v itself.
        chunk: queries whose bias and masks exist at a time, all by default; the
            backward pass makes them again. Memory is then linear in the length for any
            bias, FIRE's too, if the causal mask is the scheme's own and no n×n `mask`.
            A bias of the distance alone is faster through `hankel_attention`.

    Raises:
        TypeError, ValueError: as `attention`; the scheme fills `scores` or `values`;
            `chunk` is not an integer ≥ 1, or stands beside a prepared scheme, whose
            bias and mask exist already.

    Source: dao2022
    Chapter: 18
    """
    hidden = hidden_arguments(q_x, k_x)
    if chunk is not None:
        whole = _chunk_by_chunk(scheme, chunk)
        m, n = checked_positions(whole, q, k, q_positions, k_positions, mask)
        _checks.values_of(k, v)
        return _in_chunks(q, k, v, whole, m, n, mask, hidden, chunk)
    at = at_positions(scheme, q, k, q_positions, k_positions, mask)
    _checks.values_of(k, v)
    _check_computed(at.scheme)
    q, k = at.attended(q, k, **hidden)
    return _kernel(q, k, v, at, hidden)


def _in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: PositionScheme,
    q_positions: Tensor,
    k_positions: Tensor,
    mask: Tensor | None,
    hidden: dict[str, Tensor],
    chunk: int,
) -> Tensor:
    """`fused_attention` of some queries after others, each with all keys."""
    _check_computed(scheme)
    if scheme.transform is not None:
        states = scheme.states("transform", hidden)
        q, k = scheme.transform(q, k, q_positions, k_positions, **states)

    def rows(part: slice) -> Tensor:
        m = q_positions[part] if q_positions.dim() == 1 else q_positions[:, part]
        own = mask if mask is None or mask.shape[-2] == 1 else mask[..., part, :]
        states = {**hidden, "q_x": hidden["q_x"][:, part]} if hidden else {}
        at = at_positions(scheme, q[:, :, part], k, m, k_positions, own)
        return _kernel(q[:, :, part], k, v, at, states)

    starts = range(0, q.shape[2], chunk)
    parts = [slice(start, start + chunk) for start in starts]
    return torch.cat([checkpoint(rows, p, use_reentrant=False) for p in parts], 2)


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, at: PreparedScheme, hidden: dict[str, Tensor]
) -> Tensor:
    """PyTorch's kernel on queries and keys that are transformed already."""
    result, scheme = v.dtype, at.scheme
    if not q.dtype == k.dtype == v.dtype:
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    made = at.kernel
    if made is None:
        bias = at.made_bias((*q.shape[:3], k.shape[2]), **hidden)
        made = kernel_mask(bias, at.allowed(), q.dtype)
    mask = made.mask
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        mask = mask.to(q.dtype)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=made.in_order,
        scale=scheme.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if made.has_key is not None:
        out = out.masked_fill(~made.has_key, 0)
    return out if out.dtype == result else out.to(result)


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

    # One row for the whole batch is not looked up by its number.
    rows = [
        p[0] if p.shape[0] == 1 and p.dim() == 2 else p
        for p in (q_positions, k_positions)
    ]

    def score_mod(
        score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        m = rows[0][query] if rows[0].dim() == 1 else rows[0][batch, query]
        n = rows[1][key] if rows[1].dim() == 1 else rows[1][batch, key]
        return score + vector[head, n - m + furthest]

    return score_mod


def _check_computed(scheme: PositionScheme) -> None:
    if scheme.scores is not None or scheme.values is not None:
        computed = [f for f in ("scores", "values") if f in scheme.places]
        raise ValueError(
            f"scheme must leave {' and '.join(computed)} empty, which a fused kernel "
            f"computes itself; got {scheme.name!r}: use attention(...)"
        )


def _chunk_by_chunk(scheme: Any, chunk: Any) -> PositionScheme:
    """The scheme, if its bias and masks can be made for `chunk` queries at a time."""
    _checks.whole_number("chunk", chunk, least=1)
    if isinstance(scheme, PreparedScheme):
        raise ValueError(
            f"chunk must be None beside a prepared scheme, got {chunk}: its bias and "
            "mask exist already. Give the scheme itself, and positions"
        )
    return checked_scheme("scheme", scheme)
