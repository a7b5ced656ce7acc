"""CoPE: positions that count the keys which a query selects by its content."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.content._rows import operands, segments_by_restart, select
from posenc_lib.positions import relative


def contextual_positions(
    gate_logits: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    """The sum of the query's gates from each key to the query, as a position.

    Equation: p_mn = Σ_{l=n}^{m} g_ml,  g_ml = σ(logit_ml)      (golovneva2024 §4)
    Shapes: gate_logits (B, H, Tq, Tk) → (B, H, Tq, Tk), numbers from 0 to m − n + 1

    Keys after the query have no gate, whatever their logit: counting them, as a sigmoid
    before the mask does, shifts every position. The keys are in the order of their
    positions; a position that does not grow begins a new segment (or is padding), and
    no sum extends into it. The authors' code has no segments.

    Args:
        gate_logits: what the gates are the sigmoid of: q_mᵀ k_l in the paper's
            equation, divided by √d in its code.
        q_positions: positions m of the queries.
        k_positions: positions n of the keys, growing along each segment.

    Raises:
        TypeError, ValueError: shapes that don't fit; then as `positions.relative`.

    Source: golovneva2024
    Checked: parity;
        facebookresearch/RAM@5420e20124c7:projects/cope/src/cope/context_position.py:ContextPosSelfAttn.forward
    Chapter: 07
    """
    shape = _checks.floating_tensor("gate_logits", gate_logits, least_dims=4).shape
    _checks.token_positions("q_positions", q_positions, batch=shape[0], length=shape[2])
    _checks.token_positions("k_positions", k_positions, batch=shape[0], length=shape[3])
    compute = _checks.at_least_float32(gate_logits.dtype)
    future = relative(q_positions, k_positions) > 0
    gates = gate_logits.to(compute).sigmoid().masked_fill(future, 0)
    to_the_end = gates.flip(-1).cumsum(-1).flip(-1)  # Σ over the keys from n on
    segment = segments_by_restart(k_positions)
    # The first key after n's segment: (Tk,) or (B, Tk)
    next_segment = (segment[..., None, :] <= segment[..., :, None]).sum(-1)
    index = next_segment if next_segment.dim() == 1 else next_segment[:, None, None]
    beyond = select(torch.nn.functional.pad(to_the_end, (0, 1)), index)
    return to_the_end - beyond


class CoPE(nn.Module):
    """CoPE: a vector for each position, which counts keys that the query selects.

    Equation: s_mn = q_mᵀ (k_n + e[p_mn]),  p_mn = Σ_{l=n}^{m} σ(q_mᵀ k_l),
        e interpolated between ⌊p⌋ and ⌈p⌉, p at most P − 1
        (golovneva2024 §4; unscaled)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk)

    q meets all P vectors first; interpolating those numbers is interpolating the
    vectors. With gates that are all 1 the count is m − n + 1, and CoPE is a relative
    encoding. The authors' code and others feed q_mᵀ k_l / √d to the gates:
    `cope.interpolate(q, contextual_positions(q @ k.mT * d**-0.5, m, n))`.

    Args:
        head_dim: d.
        num_positions: P, at least 1; the table is shared by all heads and begins at
            zero, as in the authors' code.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, shapes that
            don't fit.

    Source: golovneva2024
    Checked: golden; parity;
        facebookresearch/RAM@5420e20124c7:projects/cope/src/cope/context_position.py:ContextPosSelfAttn.forward
    Chapter: 07
    """

    def __init__(self, head_dim: int, num_positions: int) -> None:
        super().__init__()
        _checks.whole_number("head_dim", head_dim, least=1)
        _checks.whole_number("num_positions", num_positions, least=1)
        self.table = nn.Parameter(torch.zeros(num_positions, head_dim))

    def interpolate(self, q: Tensor, counts: Tensor) -> Tensor:
        """q_mᵀ e[p_mn] for counts p (B, H, Tq, Tk).

        The gradient of the counts flows through the interpolation.
        """
        _checks.heads_tensor("counts", counts)
        _checks.heads_tensor("q", q)
        if counts.shape[:3] != q.shape[:3]:
            raise ValueError(
                f"counts must have q's batch, heads and length {tuple(q.shape[:3])}, "
                f"got {tuple(counts.shape)}"
            )
        # A sum in parts, as on a GPU, may end just below 0.
        counts = counts.clamp(0, self.table.shape[0] - 1)
        products = q @ self.table.to(q.dtype).mT  # (B, H, Tq, P)
        low, high = counts.floor(), counts.ceil()
        part = counts - low
        at_low, at_high = (products.gather(-1, row.long()) for row in (low, high))
        return at_low * (1 - part) + at_high * part

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        _checks.floating_tensor("q", q, least_dims=4)
        if q.shape[-1] != self.table.shape[1]:
            raise ValueError(
                f"q must have {self.table.shape[1]} channels a head, got shape "
                f"{tuple(q.shape)}"
            )
        q, k, dtype = operands(q, k, q_positions, k_positions)
        content = q @ k.mT
        counts = contextual_positions(content, q_positions, k_positions)
        return (content + self.interpolate(q, counts)).to(dtype)
