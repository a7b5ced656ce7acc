"""Tasks of the laboratory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from helpers import seeded

from posenc_lib import lab


def test_k_back_asks_for_the_token_k_back() -> None:
    for k in (1, 3):
        tokens, targets = lab.k_back(k, vocabulary=5).draw(4, 9, seeded())
        assert tokens.shape == targets.shape == (4, 9)
        assert set(tokens.unique().tolist()) == set(range(5))
        for row, m in product(range(4), range(9)):
            assert targets[row, m] == (tokens[row, m - k] if m >= k else lab.IGNORE)


def test_common_token_is_the_planted_one() -> None:
    tokens, targets = lab.common_token(0.5, vocabulary=8).draw(64, 200, seeded())
    assert (targets == targets[:, :1]).all()
    assert (tokens.mode(-1).values == targets[:, 0]).all()
    share = (tokens == targets).float().mean().item()
    assert abs(share - (0.5 + 0.5 / 8)) < 0.02
    assert (
        lab.common_token(1.0).draw(3, 5, seeded())[0]
        == lab.common_token(1.0).draw(3, 5, seeded())[1]
    ).all()


def test_batches_come_from_the_generator() -> None:
    for task in (lab.k_back(), lab.common_token()):
        same, again, other = (task.draw(4, 16, seeded(seed))[0] for seed in (1, 1, 2))
        assert (same == again).all()
        assert (same != other).any()


@pytest.mark.parametrize(
    ("length", "vocabulary"), [(2, 2), (3, 2), (5, 3), (7, 2), (4, 16)]
)
def test_best_without_order_is_the_mean_largest_share(
    length: int, vocabulary: int
) -> None:
    bags = list(product(range(vocabulary), repeat=length - 1))
    most = sum(max(Counter(bag).values()) for bag in bags)
    assert lab.best_without_order(length, vocabulary=vocabulary) == pytest.approx(
        most / len(bags) / (length - 1)
    )


@pytest.mark.parametrize("length", [32, 256])
def test_naming_the_most_frequent_token_reaches_it(length: int) -> None:
    tokens = torch.randint(16, (10_000, length - 1), generator=seeded())
    counts = torch.zeros(10_000, 16, dtype=torch.int64).scatter_add_(
        1, tokens, torch.ones_like(tokens)
    )
    most = counts.max(-1).values.double() / (length - 1)
    error = most.std() / 100
    assert abs(most.mean() - lab.best_without_order(length)) < 4 * error
    assert 4 * error < 0.01 * lab.best_without_order(length)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "k": (
        lambda: lab.k_back(0),
        ValueError,
        "k must be an integer ≥ 1, got 0",
    ),
    "k float": (
        lambda: lab.k_back(1.5),
        TypeError,
        "k must be an integer ≥ 1, got 1.5",
    ),
    "vocabulary": (
        lambda: lab.k_back(vocabulary=1),
        ValueError,
        "vocabulary must be an integer ≥ 2, got 1",
    ),
    "length": (
        lambda: lab.k_back(3).draw(2, 3, seeded()),
        ValueError,
        "length must be an integer ≥ 4, got 3",
    ),
    "batch": (
        lambda: lab.common_token().draw(0, 3, seeded()),
        ValueError,
        "batch must be an integer ≥ 1, got 0",
    ),
    "share": (
        lambda: lab.common_token(1.5),
        ValueError,
        "share must be at most 1, got 1.5",
    ),
    "share 0": (
        lambda: lab.common_token(0.0),
        ValueError,
        "share must be finite and above 0, got 0",
    ),
    "one token": (
        lambda: lab.best_without_order(1),
        ValueError,
        "length must be an integer ≥ 2, got 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
