"""Masks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from posenc_lib.attention import (
    causal,
    sliding_window,
)
from posenc_lib.attention.masks import chunk_mask, lambda_mask, tree_mask
from posenc_lib.positions import (
    arange,
)


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
