"""TUPE."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.content import HEADS, SCHEMES, WIDTH
from helpers import normal, rounding, seeded
from torch import nn

from posenc_lib.attention import attention_weights
from posenc_lib.bias import T5Bias
from posenc_lib.content import (
    TUPE,
    untie_cls,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


def test_tupe_is_the_equation() -> None:
    tupe = TUPE(9, 5, 3, 4, std=1.0, generator=seeded(0)).double()
    nn.init.normal_(tupe.theta, generator=seeded(1))
    m, n = torch.tensor([0, 3, 8]), torch.tensor([0, 1, 3, 7])
    bias = tupe(m, n)
    assert bias.shape == (1, 3, 3, 4)
    for h in range(3):
        for i, a in enumerate(m.tolist()):
            for j, b in enumerate(n.tolist()):
                q = tupe.query_weight.view(3, 4, 5)[h] @ tupe.table[a]
                k = tupe.key_weight.view(3, 4, 5)[h] @ tupe.table[b]
                free = (q @ k) / math.sqrt(2 * 4)
                expected = (
                    tupe.theta[0, h] if a == 0 else tupe.theta[1, h] if b == 0 else free
                )
                assert max_error(bias[0, h, i, j], expected) <= rounding(expected)


def test_tupe_r_resets_the_sum_as_released() -> None:
    tupe = TUPE(9, 5, 2, 4, std=1.0, generator=seeded(0)).double()
    nn.init.normal_(tupe.theta, generator=seeded(1))
    t5, positions = (
        T5Bias(
            2,
            bidirectional=True,
            std=1.0,
            num_buckets=8,
            max_distance=16,
            generator=seeded(2),
        ).double(),
        arange(9),
    )
    paper = untie_cls(
        tupe.correlation(positions, positions) + t5(positions, positions),
        positions,
        positions,
        tupe.theta,
    )
    free = tupe.correlation(positions, positions) + t5(positions, positions)
    assert torch.equal(paper[:, :, 1:, 1:], free[:, :, 1:, 1:])
    assert torch.equal(paper[0, :, 0], tupe.theta[0][:, None].expand(2, 9))
    assert torch.equal(paper[0, :, 1:, 0], tupe.theta[1][:, None].expand(2, 8))
    after = tupe(positions, positions) + t5(
        positions, positions
    )  # reset first, then b: [CLS] would still see the distance
    assert max_error(after[:, :, 0], after[:, :, 0, :1].expand(1, 2, 9)) > 0.1


def test_tupe_scores_are_scaled_by_the_root_of_2d() -> None:
    scheme, positions, q = SCHEMES["TUPE"], arange(5), normal(1, HEADS, 5, WIDTH)
    assert scheme.bias is not None
    expected = (
        q @ q.mT / math.sqrt(2 * WIDTH) + scheme.bias(positions, positions)
    ).softmax(-1)
    weights = attention_weights(
        q, q, q_positions=positions, k_positions=positions, scheme=scheme
    )
    assert max_error(weights, expected) <= rounding(expected)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "position past the table": (
        lambda: TUPE(3, 4, 2, 4)(AT, arange(4)),
        ValueError,
        "k_positions must lie in 0 … 2",
    ),
    "negative position": (
        lambda: TUPE(3, 4, 2, 4)(AT - 1, AT),
        ValueError,
        "q_positions must lie in 0 … 2",
    ),
    "fractional position": (
        lambda: TUPE(3, 4, 2, 4)(AT.double(), AT),
        TypeError,
        "must be integers",
    ),
    "theta of another shape": (
        lambda: untie_cls(torch.ones(1, 2, 3, 3), AT, AT, torch.ones(2, 3)),
        ValueError,
        "theta must",
    ),
    "a bias of other positions": (
        lambda: untie_cls(torch.ones(1, 2, 1, 1), AT, AT, torch.ones(2, 2)),
        ValueError,
        r"bias must have one number for each of \(3, 3\) pairs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
