"""Attention with linear biases."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.bias._pairs import batched
from posenc_lib.positions import relative


def alibi_slopes(heads: int) -> Tensor:
    """Slopes of the heads: a geometric series, or two if H is not a power of two.

    Equation: s_h = 2^(−8h/H),  h = 1 … H, for H a power of two. Otherwise the slopes of
        the next lower power of two P, then every second slope of 2P: h = 1, 3, 5, …
        (press2022 §3 and released code)
    Shapes: → (H,), float64, on the CPU

    The order is not monotone when H is not a power of two. It is the order of the
    released code and of the checkpoints.

    Args:
        heads: H, at least 1. With tensor parallelism, slice the slopes of all heads.

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1.

    Source: press2022
    Checked: parity;
        ofirpress/attention_with_linear_biases@3b7c2eca8397:fairseq/models/transformer.py:TransformerDecoder.__init__
    Chapter: 07
    """
    _checks.whole_number("heads", heads, least=1)
    power = 1 << (heads.bit_length() - 1)

    def series(count: int) -> Tensor:
        h = torch.arange(1, count + 1, dtype=torch.float64, device="cpu")
        return 2.0 ** (-8.0 * h / count)

    return torch.cat((series(power), series(2 * power)[::2]))[:heads]


def alibi(
    q_positions: Tensor,
    k_positions: Tensor,
    slopes: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """ALiBi: a penalty that grows linearly with distance, with a slope for each head.

    Equation: b_h(m, n) = −s_h |n − m|
        (press2022 §3; causal there, symmetric here, equal under a causal mask)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    Bloom and others add +s_h n instead: the same softmax, since −s_h m is one constant
    for a row. In 16 bits that form loses the small distances, because s_h n is large
    where this bias is small.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        slopes: (H,) `alibi_slopes(H)`, at least 0.
        dtype: of the result; the product is computed in float32 at least.

    Raises:
        TypeError, ValueError: positions as in `positions.relative`; slopes that are not
            a vector of finite numbers in float32 or float64, or negative (values are
            read on plain CPU tensors only).

    Source: press2022
    Checked: golden; parity;
        ofirpress/attention_with_linear_biases@3b7c2eca8397:fairseq/models/transformer.py:TransformerDecoder.__init__
    Chapter: 07
    """
    _checks.floating_dtype("dtype", dtype)
    _checks.vector("slopes", slopes, "H")
    if values_known(slopes) and bool((slopes < 0).any()):
        raise ValueError(
            f"slopes must be at least 0: a bias is a penalty; got {slopes.min().item()}"
        )
    distance = relative(q_positions, k_positions).abs()  # (Tq, Tk) or (B, 1, Tq, Tk)
    compute = _checks.at_least_float32(dtype)
    per_head = slopes.to(compute).to(distance.device)[:, None, None]  # (H, 1, 1)
    bias = (-per_head * distance.to(compute)).to(dtype)  # (H, Tq, Tk) or (B, H, Tq, Tk)
    return batched(bias)
