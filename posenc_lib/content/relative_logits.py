"""Relative logits: each query mixes a few learned curves over the distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.content._rows import integer_relative, select, split_heads


class RelativeLogits(nn.Module):
    """Inkling's bias: learned curves over the distance, mixed by each query and head.

    Equation: b_h(m, n) = Σ_r w_{h,r}(x_m) P_r[m − n] for 0 ≤ m − n < R, else 0;
        w(x) = W x
    Shapes: q_x (B, Tq, D) → bias (B, H, Tq, Tk)

    It is Shaw's key term with a separate query of r channels, added after the scale.
    Beyond R, and after the query, it is 0 and masks nothing. Inkling normalises q and k
    and scales by 1/d, and multiplies query and bias by a temperature at long range:
    neither is part of this.

    Args:
        dim: D, width of the hidden states.
        heads: H.
        extent: R, the number of distances; 1024 in Inkling's global layers, the window
            in its local ones.
        rank: r, the number of curves, shared by the heads; 16 in Inkling.
        std: W and P are drawn from N(0, std²).
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1. When called: no q_x, or
            one of another shape; positions that are not integers.

    Source: inkling2026
    Checked: parity;
        huggingface/transformers@04fafa296134:src/transformers/models/inkling/modeling_inkling.py:InklingRelativeLogits.forward
    Chapter: 07
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: int,
        *,
        rank: int = 16,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(dim=dim, heads=heads, extent=extent, rank=rank)
        self.weight = normal(heads * rank, dim, std=std, generator=generator)
        self.curves = normal(rank, extent, std=std, generator=generator)

    def forward(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_x: Tensor | None = None,
        k_x: Tensor | None = None,
    ) -> Tensor:
        x = _checks.hidden_states(
            "q_x", q_x, self.weight.shape[1], "q_positions", q_positions
        )
        distance = -integer_relative(q_positions, k_positions)  # m − n
        _checks.token_positions(
            "k_positions", k_positions, batch=x.shape[0], length=k_positions.shape[-1]
        )
        rank, extent = self.curves.shape
        heads = self.weight.shape[0] // rank
        mix = split_heads(x @ self.weight.to(x.dtype).mT, heads)  # (B, H, Tq, r)
        bias = select(mix @ self.curves.to(x.dtype), distance.clamp(0, extent - 1))
        return bias.masked_fill((distance < 0) | (distance >= extent), 0)
