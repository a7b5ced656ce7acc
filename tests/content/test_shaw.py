"""Shaw's relative vectors and BERT's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal, rounding, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_lib.content import (
    Shaw,
    clipped_index,
    relative_key_query_scores,
    relative_key_scores,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    clip=st.integers(1, 5),
    queries=st.integers(1, 7),
    keys=st.integers(1, 7),
    offset=st.integers(-6, 6),
)
def test_shaw_is_the_equation(clip: int, queries: int, keys: int, offset: int) -> None:
    shaw = Shaw(4, clip, generator=seeded(0)).double()
    q, k, v = (
        normal(2, 3, n, 4, seed=s) for s, n in ((1, queries), (2, keys), (3, keys))
    )
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    scores, weights = shaw.scores(q, k, m, n), normal(2, 3, queries, keys, seed=4)
    values = shaw.values(weights, v, m, n)
    for i in range(queries):
        total = torch.zeros(2, 3, 4, dtype=torch.float64)
        for j in range(keys):
            c = max(-clip, min(clip, j - (i + offset))) + clip
            expected = (q[:, :, i] * (k[:, :, j] + shaw.key_table[c])).sum(-1)
            assert max_error(scores[:, :, i, j], expected) <= rounding(expected)
            total = total + weights[:, :, i, j, None] * (
                v[:, :, j] + shaw.value_table[c]
            )
        assert max_error(values[:, :, i], total) <= rounding(total)


def test_bert_forms_are_the_equation() -> None:
    q, k, table, positions = (
        normal(1, 2, 5, 3),
        normal(1, 2, 5, 3, seed=1),
        normal(6, 3, seed=2),
        arange(5),
    )
    of_query = relative_key_scores(q, k, positions, positions, table=table, left=2)
    of_both = relative_key_query_scores(q, k, positions, positions, table=table, left=2)
    for m in range(5):
        for n in range(5):
            a = table[max(-2, min(3, n - m)) + 2]
            expected = (q[:, :, m] * (k[:, :, n] + a)).sum(-1)
            assert max_error(of_query[:, :, m, n], expected) <= rounding(expected)
            expected = expected + (k[:, :, n] * a).sum(-1)
            assert max_error(of_both[:, :, m, n], expected) <= rounding(expected)


def test_shaw_without_clipping_and_with_constant_rows() -> None:
    shaw = Shaw(4, 2, generator=seeded(0)).double()
    shaw.key_table.data.copy_(shaw.key_table[0].expand(5, -1))
    q, k, positions = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    difference = (
        shaw.scores(q, k, positions, positions) - q @ k.mT
    )  # one constant for each row
    assert max_error(difference, difference[..., :1].expand_as(difference)) <= rounding(
        difference
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [1, 2, 3, 7, 16])
def test_bug_65_shaw_clipping(clip: int, dtype: torch.dtype) -> None:
    """Any length works, however short the table, and the rows at its ends learn."""
    for length, offset in itertools.product((1, 2, 6, 33), (0, 5, 100_000)):
        positions = arange(length, offset)
        index = clipped_index(positions, positions, left=clip, right=clip)
        assert index.tolist() == [
            [max(-clip, min(clip, n - m)) + clip for n in range(length)]
            for m in range(length)
        ]
        if (clip, length) == (2, 6):
            assert index[0].tolist() == [2, 3, 4, 4, 4, 4]
            assert index[5].tolist() == [0, 0, 0, 0, 1, 2]
        shaw, q = (
            Shaw(4, clip, generator=seeded(0)),
            normal(1, 2, length, 4, dtype=dtype),
        )
        assert shaw.key_table.shape == shaw.value_table.shape == (2 * clip + 1, 4)
        scores = shaw.scores(q, q, positions, positions)
        assert scores.dtype == dtype
        weights = torch.ones(1, 2, length, length)
        (
            scores.float().sum()
            + shaw.values(weights, q.float(), positions, positions).sum()
        ).backward()
        reached = (
            torch.arange(2 * clip + 1) - clip
        ).abs() < length  # some pair falls into the row, ends included
        for table in (shaw.key_table, shaw.value_table):
            assert table.grad is not None
            assert torch.equal((table.grad != 0).any(-1), reached)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "q of integers": (
        lambda: Shaw(4, 2).scores(Q.long(), Q, AT, AT),
        TypeError,
        "q must",
    ),
    "q of three axes": (
        lambda: Shaw(4, 2).scores(Q[0], Q, AT, AT),
        ValueError,
        "q must",
    ),
    "grouped keys outside attention": (
        lambda: Shaw(4, 2).scores(Q, Q[:, :1], AT, AT),
        ValueError,
        "q and k must",
    ),
    "too few positions": (
        lambda: Shaw(4, 2).scores(Q, Q, AT[:2], AT),
        ValueError,
        "q_positions must",
    ),
    "too many key positions": (
        lambda: Shaw(4, 2).scores(Q, Q, AT, arange(4)),
        ValueError,
        "k_positions must",
    ),
    "positions of another batch": (
        lambda: Shaw(4, 2).scores(Q, Q, AT.expand(2, -1), AT),
        ValueError,
        "q_positions must",
    ),
    "fractional distance": (
        lambda: Shaw(4, 2).scores(Q, Q, AT.float(), AT),
        TypeError,
        "must be integers",
    ),
    "clip 0": (
        lambda: Shaw(4, 0),
        ValueError,
        "clip must",
    ),
    "head_dim 0": (
        lambda: Shaw(0, 2),
        ValueError,
        "head_dim must",
    ),
    "table of another width": (
        lambda: relative_key_scores(Q, Q, AT, AT, table=torch.ones(5, 3), left=2),
        ValueError,
        "table must",
    ),
    "left beyond the table": (
        lambda: relative_key_scores(Q, Q, AT, AT, table=torch.ones(5, 4), left=5),
        ValueError,
        "left must",
    ),
    "negative left": (
        lambda: clipped_index(AT, AT, left=-1, right=1),
        ValueError,
        "left must",
    ),
    "negative right": (
        lambda: clipped_index(AT, AT, left=1, right=-1),
        ValueError,
        "right must",
    ),
    "values of another width": (
        lambda: Shaw(4, 2).values(
            torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 5), AT, AT
        ),
        ValueError,
        "v must",
    ),
    "weights of other queries": (
        lambda: Shaw(4, 2).values(torch.ones(1, 2, 3, 3), Q, AT[:1], AT),
        ValueError,
        "q_positions must have shape",
    ),
    "weights of other keys": (
        lambda: Shaw(4, 2).values(torch.ones(1, 2, 3, 3), Q, AT, AT[:2]),
        ValueError,
        "k_positions must have shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
