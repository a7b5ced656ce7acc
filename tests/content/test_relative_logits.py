"""Relative logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal, rounding, seeded

from posenc_lib.attention import causal
from posenc_lib.content import (
    RelativeLogits,
    relative_key_scores,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


@pytest.mark.parametrize(
    ("queries", "keys", "extent"), [(6, 6, 3), (2, 9, 4), (5, 5, 20)]
)
def test_relative_logits_are_the_equation(queries: int, keys: int, extent: int) -> None:
    module = RelativeLogits(5, 2, extent, rank=3, std=1.0, generator=seeded(0)).double()
    x, m = normal(2, queries, 5), arange(queries, keys - queries)
    bias = module(m, arange(keys), q_x=x)
    for i, a in enumerate(m.tolist()):
        for j in range(keys):
            for h in range(2):
                mix = module.weight.view(2, 3, 5)[h] @ x[1, i]
                inside = 0 <= a - j < extent
                expected = (
                    mix @ module.curves[:, a - j]
                    if inside
                    else torch.zeros((), dtype=torch.float64)
                )
                assert max_error(bias[1, h, i, j], expected) <= rounding(expected)


def test_relative_logits_are_shaws_with_another_query() -> None:
    module = RelativeLogits(5, 2, 7, rank=3, std=1.0, generator=seeded(0)).double()
    x, positions = normal(1, 7, 5), arange(7)
    mix = (x @ module.weight.mT).view(1, 7, 2, 3).transpose(1, 2)
    shaw = relative_key_scores(
        mix,
        torch.zeros_like(mix),
        positions,
        positions,
        table=module.curves.mT.flip(0),
        left=6,
    )
    allowed, bias = causal(positions, positions), module(positions, positions, q_x=x)
    assert max_error(bias[..., allowed], shaw[..., allowed]) <= rounding(bias)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "logits without hidden states": (
        lambda: RelativeLogits(4, 2, 3)(AT, AT, k_x=Q[0]),
        TypeError,
        "q_x must be given",
    ),
    "extent 0": (
        lambda: RelativeLogits(4, 2, 0),
        ValueError,
        "extent must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
