"""DAPE."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import normal, rounding, seeded

from posenc_lib.attention import attention_weights
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.content import (
    DAPE,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error
from posenc_lib.scheme import PositionScheme


def test_dape_is_the_equation_and_reduces_to_the_bias() -> None:
    prior = partial(alibi, slopes=alibi_slopes(2), dtype=torch.float64)
    dape, q, k, positions = (
        DAPE(2, prior, hidden=5, generator=seeded(0)).double(),
        normal(1, 2, 4, 3),
        normal(1, 2, 4, 3),
        arange(4),
    )
    scores = dape.scores(q, k, positions, positions)
    for m in range(4):
        for n in range(4):
            a, b = (
                (q[0, :, m] * k[0, :, n]).sum(-1) / math.sqrt(3),
                prior(positions, positions)[0, :, m, n],
            )
            inner = dape.weight1 @ torch.cat((a, b)) + dape.bias1
            inner = torch.where(inner > 0, inner, 0.01 * inner)
            expected = a + b + dape.weight2 @ inner + dape.bias2
            assert max_error(scores[0, :, m, n], expected) <= rounding(expected)
    dape.weight2.data.zero_()
    dape.bias2.data.zero_()
    how: dict[str, Any] = {"q_positions": positions, "k_positions": positions}
    adapted = attention_weights(
        q, k, **how, scheme=PositionScheme("DAPE", scores=dape.scores, scale=1.0)
    )
    plain = attention_weights(q, k, **how, scheme=PositionScheme("ALiBi", bias=prior))
    assert max_error(adapted, plain) <= rounding(plain)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a bias of other heads": (
        lambda: DAPE(2, lambda m, n: torch.zeros(1, 3, 3, 3)).scores(Q, Q, AT, AT),
        ValueError,
        "bias must broadcast",
    ),
    "a bias of two axes": (
        lambda: DAPE(2, lambda m, n: torch.zeros(3, 3)).scores(Q, Q, AT, AT),
        ValueError,
        "from four axes",
    ),
    "a bias that is none": (
        lambda: DAPE(2, torch.ones(2)),  # type: ignore[arg-type]
        TypeError,
        "bias must",
    ),
    "DAPE of other heads": (
        lambda: DAPE(3, partial(alibi, slopes=alibi_slopes(3))).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
