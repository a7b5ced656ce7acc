"""Tasks of the laboratory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import product
from pydoc_data.topics import topics
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


def test_induction_asks_for_what_followed_last_time() -> None:
    tokens, targets = lab.induction(vocabulary=5).draw(6, 20, seeded())
    for row, asked in zip(tokens.tolist(), targets.tolist(), strict=True):
        for m, target in enumerate(asked):
            earlier = [i for i in range(m) if row[i] == row[m]]
            assert target == (row[earlier[-1] + 1] if earlier else lab.IGNORE)


def test_last_mark_asks_for_the_last_one_that_is_marked() -> None:
    tokens, targets = lab.last_mark(0.3, values=4).draw(200, 20, seeded())
    assert abs((tokens >= 4).float().mean().item() - 0.3) < 0.03
    for row, asked in zip(tokens.tolist(), targets.tolist(), strict=True):
        for m, target in enumerate(asked):
            marked = [x - 4 for x in row[: m + 1] if x >= 4]
            assert target == (marked[-1] if marked else lab.IGNORE)


def test_sum_with_first_adds_the_first() -> None:
    tokens, targets = lab.sum_with_first(modulus=5).draw(6, 20, seeded())
    assert (targets[:, 0] == lab.IGNORE).all()
    assert (targets[:, 1:] == (tokens[:, 1:] + tokens[:, :1]) % 5).all()


@pytest.mark.parametrize("base", [2, 10])
def test_reversed_addition_is_addition(base: int) -> None:
    tokens, targets = lab.reversed_addition(base).draw(50, 17, seeded())
    for row, asked in zip(tokens.tolist(), targets.tolist(), strict=True):
        a, b, c = row[:5], row[6:11], asked[11:]
        assert (row[5], row[11]) == (base, base + 1)
        assert asked[:11] == [lab.IGNORE] * 11
        assert row[12:] == c[:5]  # the model sees its answer so far
        value = [sum(x * base**i for i, x in enumerate(digits)) for digits in (a, b, c)]
        assert value[0] + value[1] == value[2]


def test_text_is_of_python_and_named_by_its_hash() -> None:
    task = lab.text()
    tokens, targets = task.draw(3, 80, seeded())
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    whole = "\n".join(topics[name] for name in sorted(topics))
    assert task.data == hashlib.sha256(whole.encode()).hexdigest()[:16]
    shown = "".join(c if 32 <= ord(c) < 127 or c == "\n" else "\0" for c in whole)
    letters = [chr(i) for i in range(32, 127)] + ["\n", "\0"]
    assert len(letters) == task.vocabulary
    end = len(whole) * 9 // 10
    assert task.test is not None
    for draw, part in ((task.draw, shown[:end]), (task.test, shown[end:])):
        for row in draw(20, 60, seeded())[0].tolist():
            assert "".join(letters[i] for i in row) in part


@pytest.mark.parametrize("name", list(lab.TASKS))
def test_answers_are_tokens(name: str) -> None:
    task = lab.TASKS[name]()
    tokens, targets = task.draw(8, 62, seeded())
    assert tokens.shape == targets.shape == (8, 62)
    assert tokens.dtype == targets.dtype == torch.int64
    asked = targets[targets != lab.IGNORE]
    assert 0 <= tokens.min() <= tokens.max() < task.vocabulary
    assert 0 <= asked.min() <= asked.max() < task.vocabulary


def test_batches_come_from_the_generator() -> None:
    for make in lab.TASKS.values():
        task = make()
        same, again, other = (task.draw(4, 62, seeded(seed))[0] for seed in (1, 1, 2))
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
    "values": (
        lambda: lab.last_mark(values=1),
        ValueError,
        "values must be an integer ≥ 2, got 1",
    ),
    "digits": (
        lambda: lab.reversed_addition().draw(1, 18, seeded()),
        ValueError,
        r"length must be 3n \+ 2 for sums of n digits, got 18",
    ),
    "base": (
        lambda: lab.reversed_addition(1),
        ValueError,
        "base must be an integer ≥ 2, got 1",
    ),
    "modulus": (
        lambda: lab.sum_with_first(modulus=1),
        ValueError,
        "modulus must be an integer ≥ 2, got 1",
    ),
    "no pair": (
        lambda: lab.induction().draw(1, 1, seeded()),
        ValueError,
        "length must be an integer ≥ 2, got 1",
    ),
    "piece": (
        lambda: lab.text().draw(1, 10**6, seeded()),
        ValueError,
        "length must be below .*, got 1000000",
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
