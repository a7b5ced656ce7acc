"""Softmax attention, written for reading: it uses every field of a scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.attention._operands import hidden_arguments
from posenc_lib.attention.prepared import PreparedScheme, at_positions
from posenc_lib.scheme import PositionScheme


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    scheme: PositionScheme | PreparedScheme,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
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
        scheme: a `PositionScheme` such as `scheme.NOPE`, with positions; or what
            `prepare` made of one, in which positions and mask are given already. An
            `embedding` is added by `prepare`.
        q_positions: (Tq,), (B, Tq) or (1, Tq), which all rows share; for a scheme of
            several axes (B, Tq, axes).
        k_positions: the same for the keys.
        mask: boolean, (Tq, Tk) or of four axes that broadcast to (B, H, Tq, Tk), True =
            may attend; combined with the scheme's mask.
        q_x: hidden states (B, Tq, D) of the query tokens, for schemes that depend on
            content; passed on together with k_x.
        k_x: hidden states (B, Tk, D) of the key tokens.

    Raises:
        TypeError, ValueError: shapes that don't fit one another, a mask that is not
            boolean; named in the message. A scheme with an embedding that is not
            prepared: without it the encoding would be none.

    Source: vaswani2017
    Chapter: 01
    """
    at = at_positions(scheme, q, k, q_positions, k_positions, mask)
    scheme = at.scheme
    hidden = hidden_arguments(q_x, k_x)
    compute = _checks.at_least_float32(q.dtype, k.dtype)
    q, k = at.attended(q.to(compute), k.to(compute), **hidden)
    k = _for_each_query_head(k, q.shape[1])
    if scheme.scores is None:
        scores = q @ k.mT  # (B, H, Tq, Tk)
    else:
        states = scheme.states("scores", hidden)
        scores = scheme.scores(q, k, at.q_positions, at.k_positions, **states)
    scores = scores * (q.shape[-1] ** -0.5 if scheme.scale is None else scheme.scale)
    bias = at.made_bias(scores.shape, **hidden)
    if bias is not None:
        scores = scores + bias
    allowed = at.allowed()
    if allowed is None:
        return scores.softmax(-1)
    # The lowest finite number instead of −∞: a row without any key would be 0/0, and
    # its gradient NaN.
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~allowed, lowest).softmax(-1)
    if at.in_order and at.mask is None:
        return weights  # each token sees itself, and exp of the lowest number is 0
    return weights * allowed


def attention(
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
) -> Tensor:
    """Attention: each query's weighted sum of the values, under any position scheme.

    Equation: o_m = Σ_n α_mn v_n      (vaswani2017 eq. 1)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v),
        in v's dtype

    Args:
        q, k, scheme, q_positions, k_positions, mask, q_x, k_x: as in
            `attention_weights`.
        v: values, projected.

    Raises:
        TypeError, ValueError: as `attention_weights`; v does not have k's batch, heads
            and length.

    Source: vaswani2017
    Chapter: 01
    """
    _checks.values_of(_checks.heads_tensor("k", k), v)
    at = at_positions(scheme, q, k, q_positions, k_positions, mask)
    weights = attention_weights(q, k, scheme=at, q_x=q_x, k_x=k_x)
    values = _for_each_query_head(v.to(weights.dtype), q.shape[1])
    if at.scheme.values is not None:
        out = at.scheme.values(weights, values, at.q_positions, at.k_positions)
        return out.to(v.dtype)
    return (weights @ values).to(v.dtype)


def _for_each_query_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, H, Tk, d), those of each group repeated for its queries."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, 1)
