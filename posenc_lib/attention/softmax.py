"""Softmax attention, written for reading: it uses every field of a scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.attention._operands import allowed_pairs, check_shapes, hidden_arguments
from posenc_lib.scheme import NOPE, PositionScheme


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    scheme: PositionScheme = NOPE,
    mask: Tensor | None = None,
    q_x: Tensor | None = None,
    k_x: Tensor | None = None,
) -> Tensor:
    """The weights that each query gives to the keys, under any position scheme.

    Equation: α_mn = exp(e_mn) / Σ_l exp(e_ml),
        e_mn = (T_m q_m)ᵀ (T_n k_n) / √d + b(m, n)      (vaswani2017 eq. 1)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), Hk a divisor of H (grouped queries)
        → (B, H, Tq, Tk)

    Computed and returned in float32, or in float64 where q or k is. A row whose keys
    are all masked is all zeros.

    Args:
        q: queries, projected.
        k: keys, projected.
        q_positions: (Tq,) or (B, Tq); for a scheme of several axes (B, Tq, axes).
        k_positions: (Tk,) or (B, Tk); for a scheme of several axes (B, Tk, axes).
        scheme: a `PositionScheme`; the caller adds its `embedding` before the
            projections.
        mask: boolean, (Tq, Tk) or of four axes that broadcast to (B, H, Tq, Tk), True =
            may attend; combined with the scheme's mask.
        q_x: hidden states (B, Tq, D) of the query tokens, for schemes that depend on
            content; passed on together with k_x.
        k_x: hidden states (B, Tk, D) of the key tokens.

    Raises:
        TypeError, ValueError: shapes that don't fit one another, a mask that is not
            boolean; named in the message.

    Source: vaswani2017
    Chapter: 01
    """
    check_shapes(q, k, q_positions, k_positions)
    if not isinstance(scheme, PositionScheme):
        raise TypeError(f"scheme must be a PositionScheme, got {scheme!r}")
    hidden = hidden_arguments(q_x, k_x)
    compute = _checks.at_least_float32(q.dtype, k.dtype)
    q, k = q.to(compute), k.to(compute)
    if scheme.transform is not None:
        q, k = scheme.transform(q, k, q_positions, k_positions, **hidden)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # (B, H, Tk, d)
    if scheme.scores is None:
        scores = q @ k.mT  # (B, H, Tq, Tk)
    else:
        scores = scheme.scores(q, k, q_positions, k_positions, **hidden)
    scores = scores * (q.shape[-1] ** -0.5 if scheme.scale is None else scheme.scale)
    if scheme.bias is not None:
        bias = scheme.bias(q_positions, k_positions, **hidden)
        scores = scores + _checks.score_bias("bias", bias, scores.shape)
    allowed = allowed_pairs(mask, scheme, q_positions, k_positions, scores)
    if allowed is None:
        return scores.softmax(-1)
    # The lowest finite number instead of −∞: a row without any key would be 0/0, and
    # its gradient NaN.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, lowest).softmax(-1) * allowed


def attention(
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
    """Attention: each query's weighted sum of the values, under any position scheme.

    Equation: o_m = Σ_n α_mn v_n      (vaswani2017 eq. 1)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v),
        in v's dtype

    Args:
        q, k, q_positions, k_positions, scheme, mask, q_x, k_x: as in
            `attention_weights`.
        v: values, projected.

    Raises:
        TypeError, ValueError: as `attention_weights`; v does not have k's batch, heads
            and length.

    Source: vaswani2017
    Chapter: 01
    """
    _checks.values_of(_checks.heads_tensor("k", k), v)
    weights = attention_weights(
        q,
        k,
        q_positions=q_positions,
        k_positions=k_positions,
        scheme=scheme,
        mask=mask,
        q_x=q_x,
        k_x=k_x,
    )
    groups = q.shape[1] // v.shape[1]
    values = v.to(weights.dtype).repeat_interleave(groups, 1)  # (B, H, Tk, d_v)
    if scheme.values is not None:
        return scheme.values(weights, values, q_positions, k_positions).to(v.dtype)
    return (weights @ values).to(v.dtype)
