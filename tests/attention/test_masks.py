"""Masks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc_lib.attention import (
    causal,
    key_padding_mask,
    same_segment,
    sliding_window,
)
from posenc_lib.attention.masks import chunk_mask, lambda_mask, tree_mask
from posenc_lib.positions import arange, relative


def test_lambda_mask_is_its_definition() -> None:
    m = arange(15)
    allowed = lambda_mask(m, m, sinks=2, window=4)
    for i, j in itertools.product(range(15), range(15)):
        assert bool(allowed[i, j]) == (j <= i and (i - j < 4 or j < 2))
    rows = m.expand(2, -1)
    assert torch.equal(
        lambda_mask(rows, rows, sinks=2, window=4), allowed.expand(2, 1, -1, -1)
    )
    assert torch.equal(
        lambda_mask(m, m, sinks=0, window=4), causal(m, m) & sliding_window(m, m, 4)
    )


M = arange(4)


POINTS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(m=POINTS, n=POINTS, size=st.integers(1, 5))
def test_masks_are_their_loops(m: list[int], n: list[int], size: int) -> None:
    q, k = torch.tensor(m), torch.tensor(n)

    def loop(rule: Callable[[int, int], Any]) -> list[list[Any]]:
        return [[rule(a, b) for b in n] for a in m]

    assert relative(q, k).tolist() == loop(lambda a, b: b - a)
    assert causal(q, k).tolist() == loop(lambda a, b: b <= a)
    assert sliding_window(q, k, size).tolist() == loop(lambda a, b: abs(b - a) < size)
    assert same_segment(q, k).tolist() == loop(lambda a, b: a == b)
    assert (causal(q, k) & sliding_window(q, k, size)).tolist() == loop(
        lambda a, b: a - size < b <= a
    )
    assert torch.equal(causal(q / 2, k / 2), causal(q, k))  # positions between integers
    assert torch.equal(
        sliding_window(q / 2, k / 2, size), sliding_window(q, k, 2 * size)
    )
    batch = torch.stack((q, q + 1))
    for mask in (relative, causal, same_segment, partial(sliding_window, size=size)):
        assert torch.equal(
            mask(batch, k), torch.stack([mask(row, k) for row in batch])[:, None]
        )
        assert torch.equal(
            mask(k, batch), torch.stack([mask(k, row) for row in batch])[:, None]
        )
        assert torch.equal(
            mask(batch, batch), torch.stack([mask(row, row) for row in batch])[:, None]
        )
    assert torch.equal(key_padding_mask(batch > 3), (batch > 3)[:, None, None])


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "lambda_mask: sinks": (
        lambda: lambda_mask(M, M, sinks=-1, window=2),
        ValueError,
        "sinks must be an integer ≥ 0, got -1",
    ),
    "chunk_mask: chunk": (
        lambda: chunk_mask(M, M, chunk=0),
        ValueError,
        "chunk must be an integer ≥ 1",
    ),
    "tree_mask(torch.tensor([0]))": (
        lambda: tree_mask(torch.tensor([0])),
        ValueError,
        "parents",
    ),
    "tree_mask(torch.tensor([-1, 1]))": (
        lambda: tree_mask(torch.tensor([-1, 1])),
        ValueError,
        "parents",
    ),
    "tree_mask: past": (
        lambda: tree_mask(torch.tensor([-1]), past=-1),
        ValueError,
        "past",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
