"""TUPE: scores of position with position, by separate projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.content._rows import integer_relative, split_heads


def untie_cls(
    bias: Tensor, q_positions: Tensor, k_positions: Tensor, theta: Tensor
) -> Tensor:
    """Take [CLS] out of the order: its scores are two learned numbers a head.

    Equation: reset_θ(b, m, n) = θ₁ where m = 0 (from [CLS]), θ₂ where m ≠ 0 and n = 0
        (to [CLS]), else b_mn      (ke2021 eq. 9, where positions begin at 1)
    Shapes: bias (1 or B, H, Tq, Tk), theta (2, H) → (1 or B, H, Tq, Tk)

    Padding at position 0 looks like [CLS]; it is masked in any case.

    Args:
        bias: position-only scores, in TUPE-R with the relative bias already added.
        q_positions: positions m of the queries, [CLS] at 0.
        k_positions: positions n of the keys.
        theta: θ₁ and θ₂ of each head.

    Raises:
        TypeError, ValueError: positions that are not integers; theta of another shape
            than bias asks for.

    Source: ke2021
    Checked:
        guolinke/TUPE@000ded0596c8:fairseq/modules/transformer_sentence_encoder.py:TransformerSentenceEncoder.forward
    Chapter: 05
    """
    _checks.heads_tensor("bias", bias)
    _checks.floating_tensor("theta", theta, least_dims=2)
    shape = (2, bias.shape[1])
    if tuple(theta.shape) != shape:
        raise ValueError(f"theta must have shape {shape}, got {tuple(theta.shape)}")
    pairs = integer_relative(q_positions, k_positions).shape[-2:]  # checks both
    if bias.shape[2:] != pairs:
        raise ValueError(
            f"bias must have one number for each of {tuple(pairs)} pairs of positions, "
            f"got {tuple(bias.shape)}"
        )
    # m = 0 and n = 0: (Tq, Tk) or (B, 1, Tq, Tk)
    from_cls = integer_relative(q_positions, torch.zeros_like(k_positions)) == 0
    to_cls = integer_relative(torch.zeros_like(q_positions), k_positions) == 0
    first, second = theta.to(bias.dtype)[:, :, None, None]  # (H, 1, 1) each
    return torch.where(from_cls, first, torch.where(to_cls, second, bias))


class TUPE(nn.Module):
    """TUPE-A: positions have separate queries and keys, untied from the content's.

    Equation: e_mn = (x_m W^Q)(x_n W^K)ᵀ / √(2d)
        + reset_θ((p_m U^Q)(p_n U^K)ᵀ / √(2d), m, n)      (ke2021 eq. 10)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    It sees no content, so it is a scheme's `bias`, which all layers share; the scheme
    sets scale = 1/√(2d). TUPE-R (eq. 11) adds a relative bias inside the reset:
    `untie_cls(tupe.correlation(m, n) + b(m, n), m, n, tupe.theta)`. The released code
    adds b after the reset but gives [CLS] two entries of b: the same set of functions.
    Its projections also have biases, which ours don't.

    Args:
        num_positions: L, rows of the table P, [CLS] included.
        dim: D, width of the table.
        heads: H.
        head_dim: d.
        std: P, U^Q and U^K are drawn from N(0, std²), 0.02 in the released code, which
            also normalises the rows of P and makes θ from two more of them. θ begins at
            0 here.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1. When called: positions
            that are not integers, or, on plain CPU tensors, outside 0 … L−1.

    Source: ke2021
    Checked:
        guolinke/TUPE@000ded0596c8:fairseq/modules/transformer_sentence_encoder.py:TransformerSentenceEncoder.forward
    Chapter: 05
    """

    def __init__(
        self,
        num_positions: int,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(
            num_positions=num_positions, dim=dim, heads=heads, head_dim=head_dim
        )
        self.table = normal(num_positions, dim, std=std, generator=generator)
        self.query_weight = normal(heads * head_dim, dim, std=std, generator=generator)
        self.key_weight = normal(heads * head_dim, dim, std=std, generator=generator)
        self.theta = nn.Parameter(torch.zeros(2, heads))

    def correlation(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """(p_m U^Q)(p_n U^K)ᵀ / √(2d), before the reset."""
        integer_relative(q_positions, k_positions)  # checks both
        q = self._project("q_positions", q_positions, self.query_weight)
        k = self._project("k_positions", k_positions, self.key_weight)
        scores: Tensor = q @ k.mT * (2 * q.shape[-1]) ** -0.5
        return scores

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return untie_cls(
            self.correlation(q_positions, k_positions),
            q_positions,
            k_positions,
            self.theta,
        )

    def _project(self, name: str, positions: Tensor, weight: Tensor) -> Tensor:
        compute = _checks.at_least_float32(self.table.dtype)
        rows = _checks.table_rows(name, positions, self.table.shape[0])
        rows = rows if rows.dim() == 2 else rows[None]
        vectors = self.table[rows].to(compute)  # (1 or B, T, D)
        return split_heads(vectors @ weight.to(compute).mT, self.theta.shape[1])
