"""The same attention through PyTorch's fused kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.attention._operands import hidden_arguments
from posenc_lib.attention.prepared import (
    KernelMask,
    PreparedScheme,
    at_positions,
    checked_positions,
    kernel_mask,
)
from posenc_lib.attention.toeplitz import checked_vector
from posenc_lib.positions import relative
from posenc_lib.scheme import PositionScheme

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
    _checks.values_of(k, v)
    if isinstance(scheme, PreparedScheme):
        at = at_positions(scheme, q, k, q_positions, k_positions, mask)
        _check_computed(at.scheme)
        if chunk is not None:
            raise ValueError(
                f"chunk must be None beside a prepared scheme, got {chunk}: its bias "
                "and mask exist already. Give the scheme itself, and positions"
            )
        q, k = at.transform(q, k, **hidden)
        made = at.kernel or kernel_mask(at.made_bias(**hidden), at.allowed(), q.dtype)
        return _kernel(q, k, v, made, at.scheme.scale)
    m, n = checked_positions(scheme, q, k, q_positions, k_positions, mask)
    _check_computed(scheme)
    if scheme.transform is not None:
        q, k = scheme.transform(q, k, m, n, **hidden)

    def rows(start: int, stop: int) -> Tensor:
        part = slice(start, stop)
        own_mask = mask
        if mask is not None and mask.shape[-2] != 1:
            own_mask = mask[..., part, :]
        positions = m[part] if m.dim() == 1 else m[:, part]
        states = hidden if q_x is None else hidden | {"q_x": q_x[:, part]}
        q_part = q[:, :, part]
        at = at_positions(scheme, q_part, k, positions, n, own_mask)
        bias = at.made_bias(**states)
        if bias is not None:
            _checks.score_bias("bias", bias, (*q_part.shape[:3], k.shape[2]))
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        made = kernel_mask(bias, at.allowed(), dtype)
        return _kernel(q_part, k, v, made, scheme.scale)

    queries = q.shape[2]
    if chunk is None:
        return rows(0, queries)
    _checks.whole_number("chunk", chunk, least=1)
    parts = [
        checkpoint(rows, start, min(start + chunk, queries), use_reentrant=False)
        for start in range(0, queries, chunk)
    ]
    return torch.cat(parts, 2)


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, made: KernelMask, scale: float | None
) -> Tensor:
    """PyTorch's kernel on queries and keys that are transformed already."""
    result = v.dtype
    if not q.dtype == k.dtype == v.dtype:
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    mask = made.mask
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        mask = mask.to(q.dtype)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=made.in_order,
        scale=scale,
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

    def score_mod(
        score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        m = q_positions[query] if q_positions.dim() == 1 else q_positions[batch, query]
        n = k_positions[key] if k_positions.dim() == 1 else k_positions[batch, key]
        return score + vector[head, n - m + furthest]

    return score_mod


def _check_computed(scheme: PositionScheme) -> None:
    if scheme.scores is not None or scheme.values is not None:
        computed = [f for f in ("scores", "values") if f in scheme.places]
        raise ValueError(
            f"scheme must leave {' and '.join(computed)} empty, which a fused kernel "
            f"computes itself; got {scheme.name!r}: use attention(...)"
        )
