"""DeBERTa's disentangled attention: the paper's, the released code's, version 2's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.content._rows import integer_relative, operands, select, split_heads


def deberta_index(q_positions: Tensor, k_positions: Tensor, span: int) -> Tensor:
    """DeBERTa's relative distance as a row of its table.

    Equation: δ(m, n) = clip(m − n + K, 0, 2K − 1)
        (he2021 eq. 3; query − key, unlike `relative`)
    Shapes: (Tq,), (Tk,) → (Tq, Tk); (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    The ends are not alike: rows 0 … 2K − 1 are distances −K … K − 1, so the far past
    shares row 2K − 1 from K − 1 on.

    Args:
        q_positions: positions m, integers.
        k_positions: positions n, integers.
        span: K, at least 1; the table has 2K rows.

    Raises:
        TypeError, ValueError: `span` below 1; positions that are not integers, then as
            `positions.relative`.

    Source: he2021
    Chapter: 07
    """
    _checks.whole_number("span", span, least=1)
    return (span - integer_relative(q_positions, k_positions)).clamp(0, 2 * span - 1)


def deberta_log_bucket(
    distance: Tensor, *, num_buckets: int, max_distance: int
) -> Tensor:
    """DeBERTa-v2's buckets: one for each distance up to B/2, then geometric steps.

    Equation: β(r) = r for |r| ≤ E = B/2, else
        sign(r) min(B, E + ⌈(E − 1) ln(|r|/E) / ln((M − 1)/E)⌉)
        (released code of he2021's version 2, without the minimum)
    Shapes: integers of any shape → the same shape, int64, values −B … B

    Computed in whole numbers: bucket E + j ends at the largest r with
    r^(E−1) E^j ≤ (M−1)^j E^(E−1). It does not depend on the length of the sequence. The
    released code continues beyond B for |r| > M; δ, with K = B, cuts that off.

    Args:
        distance: r = query − key, integers.
        num_buckets: B, even, at least 4; 256 in the released models.
        max_distance: M, at least B/2 + 2; 512 in the released models.

    Raises:
        TypeError, ValueError: distances that are not integers; sizes out of range.

    Source: he2021
    Checked: parity;
        microsoft/DeBERTa@6d0b7c371b62:DeBERTa/deberta/da_utils.py:make_log_bucket_position
    Chapter: 07
    """
    r = _checks.position_tensor("distance", distance)
    if r.is_floating_point():
        raise TypeError(f"distance must be integers, got {r.dtype}")
    _checks.even_dimension("num_buckets", num_buckets)
    if num_buckets < 4:
        raise ValueError(f"num_buckets must be at least 4, got {num_buckets}")
    exact = num_buckets // 2
    _checks.whole_number("max_distance", max_distance, least=exact + 2)
    steps = exact - 1
    starts = list(range(exact + 1))  # the smallest distance in each bucket
    last = exact
    for j in range(exact):
        bound = (max_distance - 1) ** j * exact**steps
        while (last + 1) ** steps * exact**j <= bound:
            last += 1
        starts.append(last + 1)
    edges = torch.tensor(starts, device=r.device)
    return r.sign() * (torch.bucketize(r.abs(), edges, right=True) - 1)


def deberta_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    position_keys: Tensor,
    position_queries: Tensor,
) -> Tensor:
    """DeBERTa's score as in the paper: content with content and with both positions.

    Equation: A_mn = Qᶜ_m·Kᶜ_n + Qᶜ_m·Kʳ_{δ(m,n)} + Kᶜ_n·Qʳ_{δ(n,m)}
        (he2021 eq. 4; unscaled, the scale is 1/√(3d))
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d), position_keys (H, 2K, d),
        position_queries (H, 2K, d) → (B, H, Tq, Tk)

    The third term has the distance as seen from the key, δ(n, m), unlike
    `deberta_released_scores`.

    Args:
        q, k, q_positions, k_positions: as `PositionScheme.scores` gets them; the
            positions are integers.
        position_keys: Kʳ = P W_{k,r}, one row for each δ (`DeBERTa.tables`).
        position_queries: Qʳ = P W_{q,r}.

    Raises:
        TypeError, ValueError: shapes that don't fit; positions that are not integers.

    Source: he2021
    Checked: derived, unchecked
    Chapter: 07
    """
    span = _span(q, position_keys, position_queries)
    rows = (
        deberta_index(q_positions, k_positions, span),
        deberta_index(k_positions, q_positions, span).mT,  # δ(n, m) at [m, n]
    )
    return _disentangled(
        q, k, q_positions, k_positions, *rows, position_keys, position_queries
    )


def deberta_released_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    position_keys: Tensor,
    position_queries: Tensor,
) -> Tensor:
    """DeBERTa's score as the released code computes it: δ(m, n) in the third term too.

    Equation: A_mn = Qᶜ_m·Kᶜ_n + Qᶜ_m·Kʳ_{δ(m,n)} + Kᶜ_n·Qʳ_{δ(m,n)}      (unscaled)
    Shapes: as `deberta_scores`

    The checkpoints need this one. For training from scratch it is the paper's model
    with the rows of Qʳ in the other order, except that δ's uneven ends change sides.

    Args:
        q, k, q_positions, k_positions, position_keys, position_queries: as in
            `deberta_scores`.

    Raises:
        TypeError, ValueError: as `deberta_scores`.

    Source: he2021
    Checked:
        microsoft/DeBERTa@009cc44b8c00:DeBERTa/deberta/disentangled_attention.py:DisentangledSelfAttention.disentangled_att_bias
    Chapter: 07
    """
    span = _span(q, position_keys, position_queries)
    index = deberta_index(q_positions, k_positions, span)
    return _disentangled(
        q, k, q_positions, k_positions, index, index, position_keys, position_queries
    )


def deberta_v2_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    position_keys: Tensor,
    position_queries: Tensor,
    max_distance: int,
) -> Tensor:
    """DeBERTa-v2's and v3's score: the released one with logarithmic buckets.

    Equation: as `deberta_released_scores` with
        δ(m, n) = clip(β(m − n) + K, 0, 2K − 1), β of K buckets
    Shapes: as `deberta_scores`

    transformers 5.24 swaps two arguments on the way to the third term, which is
    harmless only while Tq = Tk.

    Args:
        q, k, q_positions, k_positions, position_keys, position_queries: as in
            `deberta_scores`; K is the number of buckets. Version 2 makes both tables
            with the layer's own key and query projections, biases included.
        max_distance: M of `deberta_log_bucket`.

    Raises:
        TypeError, ValueError: as `deberta_scores` and `deberta_log_bucket`.

    Source: he2021
    Checked: golden;
        microsoft/DeBERTa@9ec4a62d1c08:DeBERTa/deberta/disentangled_attention.py:DisentangledSelfAttention.disentangled_attention_bias
    Chapter: 07
    """
    span = _span(q, position_keys, position_queries)
    distance = -integer_relative(q_positions, k_positions)
    bucket = deberta_log_bucket(distance, num_buckets=span, max_distance=max_distance)
    index = (bucket + span).clamp(0, 2 * span - 1)
    return _disentangled(
        q, k, q_positions, k_positions, index, index, position_keys, position_queries
    )


def _disentangled(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    key_rows: Tensor,
    query_rows: Tensor,
    position_keys: Tensor,
    position_queries: Tensor,
) -> Tensor:
    """The three terms, given the rows of both tables for each pair.

    The rows have shape (Tq, Tk) or (B, 1, Tq, Tk).
    """
    q, k, dtype = operands(q, k, q_positions, k_positions)
    content_to_position = select(q @ position_keys.to(q.dtype).mT, key_rows)
    position_to_content = select(k @ position_queries.to(k.dtype).mT, query_rows.mT).mT
    return (q @ k.mT + content_to_position + position_to_content).to(dtype)


def _span(q: Tensor, position_keys: Tensor, position_queries: Tensor) -> int:
    """K, after a check of the two tables."""
    _checks.floating_tensor("q", q, least_dims=4)
    heads, dim = q.shape[1], q.shape[-1]
    for name, table in (
        ("position_keys", position_keys),
        ("position_queries", position_queries),
    ):
        shape = tuple(_checks.floating_tensor(name, table, least_dims=3).shape)
        if (
            len(shape) != 3
            or (shape[0], shape[2]) != (heads, dim)
            or shape[1] % 2
            or shape[1] == 0
        ):
            raise ValueError(
                f"{name} must have shape ({heads}, 2K, {dim}), got {shape}"
            )
    if position_keys.shape != position_queries.shape:
        raise ValueError(
            "position_keys and position_queries must have as many rows, got "
            f"{position_keys.shape[1]} and {position_queries.shape[1]}"
        )
    return position_keys.shape[1] // 2


class DeBERTa(nn.Module):
    """DeBERTa's parameters: a table of distances, projected to keys and queries.

    Equation: Kʳ = P W_{k,r},  Qʳ = P W_{q,r};  `scores` is the paper's,
        `deberta_scores`
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk), unscaled: the scheme sets
        scale = 1/√(3d)

    P is shared by all layers, the projections are not. Absolute positions enter only
    before the last softmax of the language model, and are not part of this module.

    Args:
        heads: H.
        head_dim: d.
        dim: D, width of the table.
        span: K; the table has 2K rows.
        std: all three are drawn from N(0, std²), 0.02 as in BERT.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `deberta_scores`.

    Source: he2021
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        dim: int,
        span: int,
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(heads=heads, head_dim=head_dim, dim=dim, span=span)
        self.heads = heads
        self.table = normal(2 * span, dim, std=std, generator=generator)
        self.key_weight = normal(heads * head_dim, dim, std=std, generator=generator)
        self.query_weight = normal(heads * head_dim, dim, std=std, generator=generator)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Kʳ and Qʳ, (H, 2K, d) each."""
        keys, queries = (
            split_heads(self.table @ w.mT, self.heads)
            for w in (self.key_weight, self.query_weight)
        )
        return keys, queries

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        form: Callable[..., Tensor] = deberta_scores,
    ) -> Tensor:
        """The scores with these tables; `form` is `deberta_released_scores`, say."""
        keys, queries = self.tables()
        return _checks.callable_("form", form)(  # type: ignore[no-any-return]
            q, k, q_positions, k_positions, position_keys=keys, position_queries=queries
        )
