"""Tasks: what the model sees, what it must answer, and how well without the order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posenc_lib import _checks

IGNORE = -100  # the target where nothing is asked; F.cross_entropy leaves it out


@dataclass(frozen=True)
class Task:
    """A task: sequences of tokens, and the right answer at each position.

    Shapes: draw(batch, length, generator) → tokens (B, T) and targets (B, T), int64

    Args:
        name: its name in print.
        vocabulary: tokens are 0 … V−1, and so are the answers.
        draw: makes a batch; a target is `IGNORE` where nothing is asked.

    Chapter: 06
    """

    name: str
    vocabulary: int
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


def k_back(k: int = 3, *, vocabulary: int = 16) -> Task:
    """Name the token k positions back, which can't be done without the order.

    Equation: y_m = x_{m−k} for m ≥ k, nothing asked before;
        x_m uniform on 0 … V−1, independent
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64

    Args:
        k: how far back, at least 1.
        vocabulary: V, at least 2.

    Raises:
        TypeError, ValueError: `k` is not an integer ≥ 1 or `vocabulary` not an integer
            ≥ 2; when drawn from, the length is not above k.

    Chapter: 06
    """
    _checks.whole_number("k", k, least=1)
    _checks.whole_number("vocabulary", vocabulary, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        _checks.whole_number("length", length, least=k + 1)
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, k:] = tokens[:, :-k]
        return tokens, targets

    return Task(f"{k}-back", vocabulary, draw)


def common_token(share: float = 0.3, *, vocabulary: int = 16) -> Task:
    """Name the token that fills the sequence: a control that needs no order.

    Equation: x_m = a with probability s, else uniform on 0 … V−1;  y_m = a;
        a uniform, one for each sequence
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64

    Args:
        share: s, above 0 and at most 1.
        vocabulary: V, at least 2.

    Raises:
        TypeError, ValueError: `share` is not a number in (0, 1], or `vocabulary` is not
            an integer ≥ 2.

    Chapter: 06
    """
    _checks.positive("share", share)
    if share > 1:
        raise ValueError(f"share must be at most 1, got {share}")
    _checks.whole_number("vocabulary", vocabulary, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        _checks.whole_number("length", length, least=1)
        common = torch.randint(vocabulary, (batch, 1), generator=generator)
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
        tokens = torch.where(
            torch.rand(batch, length, generator=generator) < share, common, tokens
        )
        return tokens, common.expand(batch, length)

    return Task("common token", vocabulary, draw)


def best_without_order(length: int, *, vocabulary: int = 16) -> float:
    """The best accuracy in `k_back` without order: that of the most frequent token.

    Equation: E[max_v c_v] / N for N = T − 1 other tokens with counts c_v;
        P(max_v c_v ≤ c) = N!/V^N · [z^N] (Σ_{j≤c} z^j/j!)^V
    Shapes: → a number between 1/V and 1

    It is above 1/V, because the most frequent token of a short sequence is well above
    the mean, and falls to 1/V as the sequence grows.

    Args:
        length: T, at least 2.
        vocabulary: V, at least 2.

    Raises:
        TypeError, ValueError: `length` or `vocabulary` is not an integer ≥ 2.

    Chapter: 06
    """
    _checks.whole_number("length", length, least=2)
    _checks.whole_number("vocabulary", vocabulary, least=2)
    others = length - 1
    # The counts are independent Poisson numbers, given their sum N: every term is a
    # probability, and none overflows.
    mean = others / vocabulary
    counts = np.arange(others + 1)
    log_factorials = np.concatenate(([0.0], np.log(np.arange(1, others + 1)).cumsum()))
    poisson = np.exp(counts * np.log(mean) - mean - log_factorials)

    def sum_is_all(most: int) -> float:
        """The probability that no count is above `most` and their sum is N."""
        total = np.ones(1)
        for _ in range(vocabulary):
            total = np.convolve(total, poisson[: most + 1])[: others + 1]
        return float(total[others]) if len(total) > others else 0.0

    joint = np.array([sum_is_all(most) for most in range(others + 1)])
    at_most = joint / joint[-1]  # given that the sum is N
    return float((1 - at_most[:-1]).sum()) / others
