"""Shaw's relative vectors, in the key and in the value, and BERT's forms of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.content._rows import integer_relative, operands, select


def clipped_index(
    q_positions: Tensor, k_positions: Tensor, *, left: int, right: int
) -> Tensor:
    """The row of a table of relative vectors; far distances share the last rows.

    Equation: c = clip(n − m, −left, right) + left
        (shaw2018 §3.2: left = right = K)
    Shapes: (Tq,), (Tk,) → (Tq, Tk); (B, Tq), (B, Tk) → (B, 1, Tq, Tk); int64,
        values 0 … left + right

    Args:
        q_positions: positions m of the queries, integers.
        k_positions: positions n of the keys, integers.
        left: the furthest distance into the past that has a row, at least 0.
        right: the same for the future.

    Raises:
        TypeError, ValueError: positions that are not integers, then as
            `positions.relative`; a negative end.

    Source: shaw2018
    Chapter: 07
    """
    _checks.whole_number("left", left, least=0)
    _checks.whole_number("right", right, least=0)
    return integer_relative(q_positions, k_positions).clamp(-left, right) + left


def relative_key_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    table: Tensor,
    left: int,
) -> Tensor:
    """Shaw's key term for a given table: a vector for each distance, added to the key.

    Equation: s_mn = q_mᵀ (k_n + a_c),  c = clip(n − m, −left, right) + left
        (shaw2018 eq. 4, 5; unscaled)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d), table (left + 1 + right, d)
        → (B, H, Tq, Tk)

    q meets all R rows first, (B, H, Tq, R), and then each pair selects one: no
    (Tq, Tk, d) tensor is made. BERT's `relative_key` counts query minus key: it is this
    with the rows reversed, left = right = max_positions − 1.

    Args:
        q, k, q_positions, k_positions: as `PositionScheme.scores` gets them; the
            positions are integers.
        table: row left + r holds the vector of distance r = n − m.
        left: as in `clipped_index`; the other end is what the table leaves, rows − 1 −
            left.

    Raises:
        TypeError, ValueError: shapes that don't fit; positions that are not integers;
            `left` beyond the table.

    Source: shaw2018
    Checked: golden
    Chapter: 07
    """
    q, k, dtype = operands(q, k, q_positions, k_positions)
    right = _right(table, q.shape[-1], left)
    index = clipped_index(q_positions, k_positions, left=left, right=right)
    return (q @ k.mT + select(q @ table.to(q.dtype).mT, index)).to(dtype)


def relative_key_query_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    table: Tensor,
    left: int,
) -> Tensor:
    """BERT's `relative_key_query`: a vector for each distance meets query and key.

    Equation: s_mn = q_mᵀ k_n + q_mᵀ a_c + k_nᵀ a_c,  c as in `clipped_index`
        (huang2020 method 4; unscaled)
    Shapes: as `relative_key_scores`

    Args:
        q, k, q_positions, k_positions, table, left: as in `relative_key_scores`.

    Raises:
        TypeError, ValueError: as `relative_key_scores`.

    Source: huang2020
    Checked: golden
    Chapter: 07
    """
    q, k, dtype = operands(q, k, q_positions, k_positions)
    of_query = relative_key_scores(
        q, k, q_positions, k_positions, table=table, left=left
    )
    right = _right(table, q.shape[-1], left)
    index = clipped_index(q_positions, k_positions, left=left, right=right)
    of_key = select(k @ table.to(k.dtype).mT, index.mT)  # (B, H, Tk, Tq)
    return (of_query + of_key.mT).to(dtype)


def _right(table: Tensor, dim: int, left: int) -> int:
    """`right` of the table, after a check of its shape."""
    _checks.floating_tensor("table", table, least_dims=2)
    if table.dim() != 2 or table.shape[1] != dim:
        raise ValueError(
            f"table must have shape (rows, {dim}), got {tuple(table.shape)}"
        )
    _checks.whole_number("left", left, least=0)
    if left >= table.shape[0]:
        raise ValueError(
            f"left must be below the {table.shape[0]} rows of the table, got {left}"
        )
    return table.shape[0] - 1 - left


class Shaw(nn.Module):
    """Relative vectors: two for each clipped distance, added to keys and to values.

    Equation: e_mn = q_mᵀ (k_n + a^K_c) / √d,  z_m = Σ_n α_mn (v_n + a^V_c),
        c = clip(n − m, −K, K)      (shaw2018 eq. 3–5)
    Shapes: `scores`: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk);
        `values`: weights (B, H, Tq, Tk), v (B, H, Tk, d) → (B, H, Tq, d)

    The tables are shared by all heads. Nearly all ports have the key term only: leave
    `values` out of the scheme. The value term needs no (Tq, Tk, d) tensor either: the
    weights of equal c are added up first.

    Args:
        head_dim: d, at least 1.
        clip: K, beyond which distances share their vectors, at least 1; each table has
            2K + 1 rows.
        generator: of the draw, Glorot's uniform one (the paper names none).

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `relative_key_scores`.

    Source: shaw2018
    Checked: derived, unchecked
    Chapter: 07
    """

    def __init__(
        self, head_dim: int, clip: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        _checks.whole_number("head_dim", head_dim, least=1)
        self.clip = _checks.whole_number("clip", clip, least=1)
        self.key_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
        self.value_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
        for table in (self.key_table, self.value_table):
            nn.init.xavier_uniform_(table, generator=generator)

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        return relative_key_scores(
            q, k, q_positions, k_positions, table=self.key_table, left=self.clip
        )

    def values(
        self, weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        _checks.heads_tensor("weights", weights)
        for name, positions, axis in (
            ("q_positions", q_positions, 2),
            ("k_positions", k_positions, 3),
        ):
            _checks.token_positions(
                name, positions, batch=weights.shape[0], length=weights.shape[axis]
            )
        _checks.floating_tensor("v", v, least_dims=4)
        if v.shape[-1] != self.value_table.shape[1]:
            raise ValueError(
                f"v must have {self.value_table.shape[1]} channels, got shape "
                f"{tuple(v.shape)}"
            )
        index = clipped_index(q_positions, k_positions, left=self.clip, right=self.clip)
        zeros = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1)
        # The sum of the weights of each c: (B, H, Tq, 2K + 1)
        totals = zeros.scatter_add(-1, index.expand_as(weights), weights)
        return weights @ v + totals @ self.value_table.to(weights.dtype)
