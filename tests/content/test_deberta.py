"""DeBERTa, as in the paper and as released."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from helpers import normal, rounding, seeded
from torch import Tensor

from posenc_lib.content import (
    DeBERTa,
    deberta_index,
    deberta_log_bucket,
    deberta_released_scores,
    deberta_scores,
    deberta_v2_scores,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


def deberta_by_the_equation(
    q: Tensor,
    k: Tensor,
    m: Sequence[int],
    n: Sequence[int],
    keys: Tensor,
    queries: Tensor,
    delta: Any,
    third: Any,
) -> Tensor:
    rows = []
    for i, a in enumerate(m):
        row = [
            (q[:, :, i] * k[:, :, j]).sum(-1)
            + (q[:, :, i] * keys[:, delta(a, b)]).sum(-1)
            + (k[:, :, j] * queries[:, third(a, b)]).sum(-1)
            for j, b in enumerate(n)
        ]
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("span", [1, 2, 4, 9])
@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(5, 5, 0), (1, 8, 7), (3, 6, 2), (6, 3, 0)]
)
def test_deberta_is_the_equation(
    span: int, queries: int, keys: int, offset: int
) -> None:
    q, k = normal(2, 3, queries, 4), normal(2, 3, keys, 4, seed=1)
    tables = {
        name: normal(3, 2 * span, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    m, n = arange(queries, offset), arange(keys)

    def delta(a: int, b: int) -> int:
        return max(0, min(2 * span - 1, a - b + span))

    def turned(a: int, b: int) -> int:
        return delta(b, a)

    for function, third in ((deberta_scores, turned), (deberta_released_scores, delta)):
        scores = function(q, k, m, n, **tables)
        expected = deberta_by_the_equation(
            q, k, m.tolist(), n.tolist(), *tables.values(), delta, third
        )
        assert max_error(scores, expected) <= rounding(expected)


def test_paper_and_released_code_differ_in_the_third_term() -> None:
    q, k, positions = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    keys, queries = normal(2, 16, 4, seed=2), normal(2, 16, 4, seed=3)
    paper = deberta_scores(
        q, k, positions, positions, position_keys=keys, position_queries=queries
    )
    code = deberta_released_scores(
        q, k, positions, positions, position_keys=keys, position_queries=queries
    )
    assert max_error(paper, code) > 0.1
    # Inside the span, δ(n, m) = 2K − δ(m, n): the paper's score is the code's with the
    # rows turned round.
    turned = queries.flip(1).roll(1, 1)
    code = deberta_released_scores(
        q, k, positions, positions, position_keys=keys, position_queries=turned
    )
    assert max_error(paper, code) <= rounding(paper)
    none = torch.zeros_like(queries)
    assert torch.equal(
        deberta_scores(
            q, k, positions, positions, position_keys=keys, position_queries=none
        ),
        deberta_released_scores(
            q, k, positions, positions, position_keys=keys, position_queries=none
        ),
    )


def test_deberta_module_projects_its_table() -> None:
    module = DeBERTa(2, 3, 5, 4, std=1.0, generator=seeded(0)).double()
    keys, queries = module.tables()
    assert keys.shape == queries.shape == (2, 8, 3)
    expected = module.key_weight.view(2, 3, 5) @ module.table[6]
    assert max_error(keys[:, 6], expected) <= rounding(expected)
    expected = module.query_weight.view(2, 3, 5) @ module.table[6]
    assert max_error(queries[:, 6], expected) <= rounding(expected)


def exact_bucket(r: int, buckets: int, furthest: int) -> int:
    """The published formula in rationals.

    The least j with (|r|/E)^(E−1) ≤ ((M−1)/E)^j.
    """
    half = buckets // 2
    if abs(r) <= half:
        return r
    j = 0
    while Fraction(abs(r), half) ** (half - 1) > Fraction(furthest - 1, half) ** j:
        j += 1
    return int(math.copysign(min(buckets, half + j), r))


@pytest.mark.parametrize(
    ("buckets", "furthest"),
    [(4, 4), (4, 33), (6, 13), (8, 64), (16, 17), (32, 128), (32, 511)],
)
def test_deberta_log_bucket_is_the_formula_in_rationals(
    buckets: int, furthest: int
) -> None:
    distance = torch.arange(-furthest - 20, furthest + 21)
    bucket = deberta_log_bucket(distance, num_buckets=buckets, max_distance=furthest)
    assert bucket.tolist() == [
        exact_bucket(int(r), buckets, furthest) for r in distance
    ]


def test_bug_69_deberta_bucket() -> None:
    """The right values at any length: nothing but the two sizes goes in."""
    right = {200: 169, 300: 207, 511: 255, 127: 127, 128: 128, 129: 129, 0: 0}
    for length in (384, 512, 640):
        distances = arange(length)
        bucket = deberta_log_bucket(distances, num_buckets=256, max_distance=512)
        assert all(int(bucket[r]) == value for r, value in right.items() if r < length)
        assert torch.equal(
            deberta_log_bucket(-distances, num_buckets=256, max_distance=512), -bucket
        )
        assert bool((bucket.diff() >= 0).all())
    for dtype in (torch.int64, torch.int32, torch.int16):
        short = torch.tensor(list(right), dtype=dtype)
        assert deberta_log_bucket(
            short, num_buckets=256, max_distance=512
        ).tolist() == list(right.values())
    positions = arange(400, offset=1_000_000)
    tables = {
        name: normal(1, 512, 2, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    q = normal(1, 1, 400, 2)
    scores = deberta_v2_scores(q, q, positions, positions, **tables, max_distance=512)
    short = deberta_v2_scores(
        q[:, :, 200:],
        q[:, :, :201],
        positions[200:],
        positions[:201],
        **tables,
        max_distance=512,
    )
    assert max_error(scores[:, :, 200:, :201], short) <= rounding(scores)


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(1, 25, 24), (25, 1, 0), (4, 30, 12)]
)
def test_deberta_v2_is_the_equation_beyond_the_last_bucket(
    queries: int, keys: int, offset: int
) -> None:
    q, k, span, furthest = normal(1, 2, queries, 4), normal(1, 2, keys, 4, seed=1), 6, 9
    tables = {
        name: normal(2, 2 * span, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    m, n = arange(queries, offset), arange(keys)

    def delta(a: int, b: int) -> int:
        return max(0, min(2 * span - 1, exact_bucket(a - b, span, furthest) + span))

    scores = deberta_v2_scores(q, k, m, n, **tables, max_distance=furthest)
    expected = deberta_by_the_equation(
        q, k, m.tolist(), n.tolist(), *tables.values(), delta, delta
    )
    assert max_error(scores, expected) <= rounding(expected)


def test_deberta_v2_with_a_wide_span_is_the_released_score() -> None:
    q, positions = normal(1, 2, 8, 4), arange(8)
    tables = {
        name: normal(2, 32, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    assert torch.equal(
        deberta_v2_scores(q, q, positions, positions, **tables, max_distance=100),
        deberta_released_scores(q, q, positions, positions, **tables),
    )


def test_deberta_index_has_the_ends_of_the_paper() -> None:
    positions = torch.arange(-9, 10)
    index = deberta_index(positions, torch.zeros(1, dtype=torch.int64), 4)[
        :, 0
    ]  # distances −9 … 9
    assert index.tolist() == [0] * 6 + list(range(1, 8)) + [7] * 6


AT, Q = arange(3), torch.ones(1, 2, 3, 4)

TABLES = {"position_keys": torch.ones(2, 8, 4), "position_queries": torch.ones(2, 8, 4)}


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "span 0": (
        lambda: deberta_index(AT, AT, 0),
        ValueError,
        "span must",
    ),
    "float distances": (
        lambda: deberta_log_bucket(torch.ones(3), num_buckets=8, max_distance=16),
        TypeError,
        "distance must",
    ),
    "odd buckets": (
        lambda: deberta_log_bucket(AT, num_buckets=7, max_distance=16),
        ValueError,
        "num_buckets must",
    ),
    "two buckets": (
        lambda: deberta_log_bucket(AT, num_buckets=2, max_distance=16),
        ValueError,
        "num_buckets must",
    ),
    "max_distance inside the exact part": (
        lambda: deberta_log_bucket(AT, num_buckets=8, max_distance=5),
        ValueError,
        "max_distance must",
    ),
    "odd table": (
        lambda: deberta_scores(
            Q, Q, AT, AT, **TABLES | {"position_keys": torch.ones(2, 7, 4)}
        ),
        ValueError,
        "position_keys must",
    ),
    "tables of different length": (
        lambda: deberta_released_scores(
            Q, Q, AT, AT, **TABLES | {"position_queries": torch.ones(2, 6, 4)}
        ),
        ValueError,
        "position_keys and position_queries",
    ),
    "table of other heads": (
        lambda: deberta_v2_scores(
            Q,
            Q,
            AT,
            AT,
            **TABLES | {"position_queries": torch.ones(3, 8, 4)},
            max_distance=9,
        ),
        ValueError,
        "position_queries must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
