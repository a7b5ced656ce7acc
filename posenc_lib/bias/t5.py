"""T5's relative bias: one learned number for each head and each bucket of distances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.bias._pairs import bucket_by_edges, heads_first
from posenc_lib.positions import relative


def t5_bucket_edges(num_buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each bucket: exact at first, then in geometric steps.

    Equation: β(r) = r for r < E = B/2, else
        min(B−1, E + ⌊(B−E) ln(r/E) / ln(max_distance/E)⌋)      (raffel2020 §2.1)
    Shapes: → B ints; bucket j holds the distances edges[j] … edges[j+1]−1 (none where
        they are equal), the last one everything further

    Computed in whole numbers, so that no logarithm decides on which side of an edge a
    distance falls: bucket E + j begins at the least r with
    r^(B−E) E^j ≥ E^(B−E) max_distance^j.

    Args:
        num_buckets: B, the buckets of one direction, at least 2 and even.
        max_distance: where the geometric steps would end, above B/2. The last bucket
            begins before it.

    Raises:
        TypeError, ValueError: `num_buckets` is odd or below 2, or `max_distance` is not
            above B/2.

    Source: raffel2020
    Chapter: 07
    """
    if _checks.whole_number("num_buckets", num_buckets, least=2) % 2:
        raise ValueError(
            "num_buckets must be even: half of the buckets hold one distance each; "
            f"got {num_buckets}"
        )
    exact = num_buckets // 2
    _checks.whole_number("max_distance", max_distance, least=exact + 1)
    steps = num_buckets - exact
    edges = list(range(exact))
    r = exact
    for j in range(steps):
        while r**steps * exact**j < exact**steps * max_distance**j:
            r += 1
        edges.append(r)
    return edges


def t5_bucket(
    relative_positions: Tensor,
    *,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Tensor:
    """The bucket of each relative position.

    Equation: bidirectional: β(|r|) over B/2 buckets, plus B/2 where r > 0;
        causal: β(max(−r, 0)) over B buckets
    Shapes: integers of any shape → the same shape, int64, values 0 … B−1

    Args:
        relative_positions: r = key − query, integers.
        bidirectional: True for an encoder, where past and future have buckets of their
            own; False for a decoder, where every key in the future falls into bucket 0
            and is masked.
        num_buckets: B, even; divisible by 4 when bidirectional.
        max_distance: as in `t5_bucket_edges`.

    Raises:
        TypeError, ValueError: relative positions that are not integers; sizes as in
            `t5_bucket_edges`.

    Source: raffel2020
    Checked: parity
    Chapter: 07
    """
    r = _checks.position_tensor("relative_positions", relative_positions)
    if r.is_floating_point():
        raise TypeError(f"relative_positions must be integers, got {r.dtype}")
    one_way = _one_way(num_buckets, bidirectional)
    distance = r.abs() if bidirectional else (-r).clamp(min=0)
    bucket = bucket_by_edges(distance, t5_bucket_edges(one_way, max_distance))
    return bucket + one_way * (r > 0) if bidirectional else bucket


def _one_way(num_buckets: int, bidirectional: bool) -> int:
    """The buckets of one direction."""
    if not _checks.boolean("bidirectional", bidirectional):
        return num_buckets
    if _checks.whole_number("num_buckets", num_buckets, least=4) % 4:
        raise ValueError(
            f"num_buckets must be divisible by 4 when bidirectional, got {num_buckets}"
        )
    return num_buckets // 2


class T5Bias(nn.Module):
    """T5's bias: a learned number for each near distance and each bucket of far ones.

    Equation: e_mn = q_mᵀ k_n + b[bucket(n − m), h],  with no 1/√d: the scheme sets
        scale = 1      (raffel2020 §2.1)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    T5 has one such table for all layers, and none in cross-attention.

    Args:
        heads: H, at least 1.
        bidirectional: as in `t5_bucket`.
        std: the table is drawn from N(0, std²). T5's ports use D^(−1/2) for a model of
            width D.
        num_buckets: B, as in `t5_bucket`.
        max_distance: as in `t5_bucket`.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes as in `t5_bucket`; when called, positions that are
            not integers.

    Source: raffel2020
    Checked: golden; parity
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        *,
        bidirectional: bool,
        std: float,
        num_buckets: int = 32,
        max_distance: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.positive("std", std)
        # Raises now rather than in the first forward pass.
        t5_bucket_edges(_one_way(num_buckets, bidirectional), max_distance)
        self.bidirectional = bidirectional
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.table = normal(num_buckets, heads, std=std, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        bucket = t5_bucket(
            relative(q_positions, k_positions),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )  # (Tq, Tk) or (B, 1, Tq, Tk)
        return heads_first(self.table[bucket])
