"""What these encodings share: operands, rows of a table by distance, segments."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.positions import relative


def operands(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor, torch.dtype]:
    """q and k in float32 at least, and the dtype of the result.

    Checks that they fit one another and have a position for each token.
    """
    _checks.equal_heads(q, k)
    for name, positions, x in (
        ("q_positions", q_positions, q),
        ("k_positions", k_positions, k),
    ):
        _checks.token_positions(name, positions, batch=x.shape[0], length=x.shape[2])
    compute = _checks.at_least_float32(q.dtype, k.dtype)
    return q.to(compute), k.to(compute), torch.promote_types(q.dtype, k.dtype)


def integer_relative(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """`positions.relative` for encodings whose distances are rows of a table."""
    r = relative(q_positions, k_positions)
    if r.is_floating_point():
        raise TypeError(
            "q_positions and k_positions must be integers, whose difference is a row; "
            f"got {r.dtype}"
        )
    return r


def select(scores: Tensor, index: Tensor) -> Tensor:
    """Entry index[m, n] of every row m of the scores.

    Scores (B, H, Tq, R) and index (Tq, Tk) or (B, 1, Tq, Tk) give (B, H, Tq, Tk).
    """
    return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., T, H·c) → (..., H, T, c)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def segments_by_restart(k_positions: Tensor) -> Tensor:
    """Segment of each key, (..., Tk): one begins where the position does not grow.

    With it, sums along the axis stop at the ends of packed segments, and padding does
    not count.
    """
    restarts = k_positions[..., 1:] <= k_positions[..., :-1]
    return torch.nn.functional.pad(restarts.to(torch.int64), (1, 0)).cumsum(-1)
