"""The same attention through PyTorch's fused kernels, and relative biases without an n×n matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posenc_lib import _checks
from posenc_lib.attention.softmax import _allowed, _check_shapes, _hidden
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
) -> Tensor:
    """`attention` through PyTorch's fused kernel: transform first, bias and masks as its `attn_mask`.

    Equation: as `attention`
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v), in v's dtype

    Equal to the reference up to rounding; 16-bit inputs are multiplied in 16 bits. Masks come from positions and never
    from the kernel's own `is_causal`, which aligns the first query with the first key: with a cache that hides all
    keys but one.

    Args:
        q, k, v, q_positions, k_positions, mask, q_x, k_x: as in `attention`.
        scheme: one that fills neither `scores` nor `values`: the kernel computes qᵀk and Σ α v itself.

    Raises:
        TypeError, ValueError: as `attention`; the scheme fills `scores` or `values`.

    Source: dao2022
    Chapter: 18
    """
    _check_scheme(scheme)
    _check_shapes(q, k, q_positions, k_positions)
    _checks.values_of(k, v)
    hidden = _hidden(q_x, k_x)
    if scheme.transform is not None:
        q, k = scheme.transform(q, k, q_positions, k_positions, **hidden)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    scores = q[..., :1].expand(-1, -1, -1, k.shape[2])  # of their shape, to check bias and masks against
    allowed = _allowed(mask, scheme, q_positions, k_positions, scores)
    attn_mask = None
    if scheme.bias is not None:
        bias = scheme.bias(q_positions, k_positions, **hidden)
        attn_mask = _checks.score_bias("bias", bias, scores.shape).to(dtype)
    some = None
    if allowed is not None:
        # What a row without any key gives is the kernel's affair, and −∞ − (−∞) is NaN: it attends to all, and its
        # output is made zero.
        some = allowed.any(-1, keepdim=True)
        allowed = allowed | ~some
        attn_mask = allowed if attn_mask is None else attn_mask.masked_fill(~allowed, -math.inf)
    out = scaled_dot_product_attention(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        attn_mask=attn_mask,
        scale=scheme.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return (out if some is None else out.masked_fill(~some, 0)).to(v.dtype)


def relative_bias_vector(
    bias: Callable[[Tensor, Tensor], Tensor], length: int, *, device: torch.device | str | None = None
) -> Tensor:
    """A relative bias as one vector a head, in place of a matrix.

    Equation: b_r for r = −(N−1) … N−1, at index r + N − 1
    Shapes: → (H, 2N−1)

    Right for biases that depend on n − m alone (ALiBi, T5, KERPLE, Sandwich, windows), not for FIRE, which looks at m.
    Gradients reach the bias' parameters.

    Args:
        bias: place 3 of a scheme, `bias(q_positions, k_positions)`. Called with one query at N − 1 and keys at
            0 … 2N − 2.
        length: N, tokens of the sequence, at least 1.
        device: of the positions that the bias is called with.

    Raises:
        TypeError, ValueError: `length` is no int of at least 1; the bias is not (1, H, 1, 2N−1).

    Chapter: 08
    """
    _checks.whole_number("length", length, least=1)
    _checks.called("bias", bias)
    row = bias(torch.tensor([length - 1], device=device), torch.arange(2 * length - 1, device=device))
    if row.dim() != 4 or row.shape[0] != 1 or row.shape[2:] != (1, 2 * length - 1):
        raise ValueError(
            f"bias must return shape (1, H, 1, {2 * length - 1}) for these positions, got {tuple(row.shape)}"
        )
    return row[0, :, 0]


def hankel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor,
    causal: bool,
    scale: float | None = None,
    chunk: int = 256,
) -> Tensor:
    """Softmax attention with a relative bias and no n×n bias: the matrix is a view of one vector.

    Equation: e_mn = scale · q_mᵀ k_n + b_{n−m}; in a chunk whose queries run backwards, the entry in row i and column n
        is b at index i + n + constant
    Shapes: q (B, H, N, d), k (B, Hk, N, d), v (B, Hk, N, d_v), bias (H, 2N−1) → (B, H, N, d_v), in v's dtype

    A Toeplitz matrix with its rows reversed is a Hankel matrix, constant along anti-diagonals: an overlapping view,
    which the kernel on the CPU reads without copying it: 2N numbers a head. Where d_v is not d, or the vector wants a
    gradient, PyTorch has no such kernel: each chunk's scores and bias are made in full, and kept for the backward pass.

    Args:
        q: queries, at consecutive positions.
        k: keys, at the same positions.
        v: values.
        bias: b_{−(N−1)} … b_{N−1}, from `relative_bias_vector`.
        causal: hide keys after the query.
        scale: factor of qᵀk; None is 1/√d. T5 has 1.
        chunk: queries in one call of the kernel.

    Raises:
        TypeError, ValueError: shapes that don't fit; `causal` is no bool; `chunk` is no int of at least 1.

    Source: dao2022
    Chapter: 08
    """
    _checks.grouped_heads(q, k)
    _checks.values_of(k, v)
    length = q.shape[2]
    if k.shape[2] != length:
        raise ValueError(f"q and k must agree in length, for the same positions; got {length} and {k.shape[2]}")
    vector = _checked_vector(bias, q.shape[1], length, causal).to(q.device)
    _checks.whole_number("chunk", chunk, least=1)
    _checks.positive("scale", 1.0 if scale is None else scale)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    q, k, values = (x.to(dtype) for x in (q, k, v))
    vector = vector.to(dtype).contiguous()  # a view of neighbours is what the kernel reads fast
    parts = []
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        keys = stop if causal else length
        window = vector[:, length - stop : length - stop + stop - start + keys - 1]
        part = scaled_dot_product_attention(
            q[:, :, start:stop].flip(-2),
            k[:, :, :keys],
            values[:, :, :keys],
            attn_mask=window.unfold(-1, keys, 1)[None],  # (1, H, stop − start, keys), strides (1, 1)
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(part.flip(-2))
    return torch.cat(parts, 2).to(v.dtype)


def relative_score_mod(bias: Tensor, *, q_positions: Tensor, k_positions: Tensor, causal: bool) -> ScoreMod:
    """A relative bias for FlexAttention: `flex_attention(q, k, v, score_mod=relative_score_mod(...))`.

    Equation: score → score + b_{n−m}, and −∞ for n > m if causal
    Shapes: bias (H, 2N−1) → a function of (score, batch, head, query index, key index), all ()

    FlexAttention knows indices; the positions that it looks up here keep caches and left padding right. Apply a
    transform to q and k before. Documents and padding belong in its `block_mask`, which skips whole blocks. On the CPU
    PyTorch 2.13 has the forward pass only.

    Args:
        bias: b_{−(N−1)} … b_{N−1}, from `relative_bias_vector`, on the queries' device.
        q_positions: (Tq,) or (B, Tq), integers.
        k_positions: (Tk,) or (B, Tk), integers, no further than N − 1 from any query.
        causal: hide keys after the query.

    Raises:
        TypeError, ValueError: positions that are no integers, a bias of another shape, `causal` is no bool. On plain
            CPU tensors: a distance that the bias does not hold.

    Source: dong2024
    Chapter: 18
    """
    shape = _checks.floating_tensor("bias", bias, least_dims=2).shape
    if bias.dim() != 2 or shape[1] % 2 == 0:
        raise ValueError(f"bias must have shape (H, 2N−1), got {tuple(shape)}")
    furthest = shape[1] // 2
    vector = _checked_vector(bias, shape[0], furthest + 1, causal)
    q_positions, k_positions = (
        _checks.attention_positions(name, positions)
        for name, positions in (("q_positions", q_positions), ("k_positions", k_positions))
    )
    for name, positions in (("q_positions", q_positions), ("k_positions", k_positions)):
        if positions.is_floating_point():
            raise TypeError(f"{name} must be integers, whose difference is an index; got {positions.dtype}")
    r = relative(q_positions, k_positions)
    if _checks.readable(r) and int(r.abs().max()) > furthest:
        raise ValueError(
            f"bias must hold distances up to {int(r.abs().max())}, "
            f"got shape {tuple(shape)}, for distances up to {furthest}"
        )

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        m = q_positions[query] if q_positions.dim() == 1 else q_positions[batch, query]
        n = k_positions[key] if k_positions.dim() == 1 else k_positions[batch, key]
        return score + vector[head, n - m + furthest]

    return score_mod


def _check_scheme(scheme: PositionScheme) -> None:
    if not isinstance(scheme, PositionScheme):
        raise TypeError(f"scheme must be a PositionScheme, got {scheme!r}")
    own = [place for place in ("scores", "values") if place in scheme.places]
    if own:
        raise ValueError(
            f"scheme must leave {' and '.join(own)} empty, which a fused kernel computes itself; "
            f"got {scheme.name!r}: use attention(...)"
        )


def _checked_vector(bias: Tensor, heads: int, length: int, causal: bool) -> Tensor:
    if _checks.floating_tensor("bias", bias, least_dims=2).shape != (heads, 2 * length - 1):
        raise ValueError(f"bias must have shape (H, 2N−1) = {(heads, 2 * length - 1)}, got {tuple(bias.shape)}")
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, got {causal!r}")
    if not causal:
        return bias
    return torch.cat((bias[:, :length], bias.new_full((heads, length - 1), -math.inf)), -1)
