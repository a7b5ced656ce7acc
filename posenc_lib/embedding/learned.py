"""Learned absolute position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal


class LearnedEmbedding(nn.Module):
    """A trained vector for each position, and nothing beyond the last one.

    Equation: x_m ← x_m + P[m],  P ∈ ℝ^(L×d)      (gehring2017 §3.1; devlin2019 §3)
    Shapes: positions (..., T) → (..., T, d)

    Args:
        num_positions: rows L of the table, at least 1. A checkpoint with reserved rows
            counts them in L, and its positions start later: OPT and BART at 2, RoBERTa
            at padding_idx + 1 (`positions.from_mask(first=...)`).
        dim: d, at least 1.
        std: the table is drawn from N(0, std²); 0.02 is BERT's and GPT-2's.
        generator: of the draw.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, `std` not above 0.
            When called: positions that are not integers, or a position outside
            0 … L−1. That last check reads values, so it runs on plain CPU tensors only;
            elsewhere the caller must ensure it.

    Source: gehring2017, devlin2019
    Checked: golden
    Chapter: 03
    """

    def __init__(
        self,
        num_positions: int,
        dim: int,
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(num_positions=num_positions, dim=dim)
        self.table = normal(num_positions, dim, std=std, generator=generator)

    def forward(self, positions: Tensor) -> Tensor:
        rows = _checks.table_rows("positions", positions, self.table.shape[0])
        return self.table[rows]
