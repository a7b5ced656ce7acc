"""Tasks: what the model sees, what it must answer, and how well without the order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.positions import coupled_addition

IGNORE = -100  # the target where nothing is asked; F.cross_entropy leaves it out

Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A task: sequences of tokens, and the right answer at each position.

    Shapes: draw(batch, length, generator) → tokens (B, T) and targets (B, T), int64;
        coupled(length, start) → positions (T,), int64

    Args:
        name: its name in print.
        vocabulary: tokens are 0 … V−1, and so are the answers.
        draw: makes a batch; a target is `IGNORE` where nothing is asked.
        test: makes a batch to test on, where that is not `draw`.
        coupled: positions that tokens of equal rank share, from `start` on, where the
            task has ranks (digits have).
        data: what names the text that it draws from; empty if all is random.

    Chapter: 06
    """

    name: str
    vocabulary: int
    draw: Draw
    test: Draw | None = None
    coupled: Callable[[int, int], Tensor] | None = None
    data: str = ""


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
            torch.rand(batch, length, generator=generator, dtype=torch.float32) < share,
            common,
            tokens,
        )
        return tokens, common.expand(batch, length)

    return Task("common token", vocabulary, draw)


def induction(*, vocabulary: int = 16) -> Task:
    """Name the token that followed the last time this token was seen.

    Equation: y_m = x_{j+1},  j = max {i < m : x_i = x_m}, nothing asked without one;
        x_m uniform on 0 … V−1, independent
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64

    Content and order at once: one layer finds the token before each token, the next one
    looks up the content. The answer stands about V tokens back, however long the text.

    Args:
        vocabulary: V, at least 2.

    Raises:
        TypeError, ValueError: `vocabulary` is not an integer ≥ 2; when drawn from, the
            length is below 2.

    Source: olsson2022
    Chapter: 21
    """
    _checks.whole_number("vocabulary", vocabulary, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        _checks.whole_number("length", length, least=2)
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
        seen = torch.full((batch, vocabulary), -1)  # where each token was seen last
        last = torch.empty_like(tokens)
        for m in range(length):
            now = tokens[:, m, None]
            last[:, m, None] = seen.gather(1, now)
            seen.scatter_(1, now, m)
        after = tokens.gather(1, last + 1)
        return tokens, torch.where(last >= 0, after, IGNORE)

    return Task("induction", vocabulary, draw)


def last_mark(share: float = 0.125, *, values: int = 8) -> Task:
    """Name the last token that carries a mark.

    Equation: y_m = v_j,  j = max {i ≤ m : mark_i}, nothing asked without one;
        x_m = v_m + V mark_m, v_m uniform on 0 … V−1, P(mark) = s, independent
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64; tokens 0 … 2V−1

    It needs order without a fixed offset: the nearest of equals.

    Args:
        share: s, above 0 and at most 1.
        values: V, at least 2.

    Raises:
        TypeError, ValueError: `share` is not a number in (0, 1], or `values` is not an
            integer ≥ 2.

    Chapter: 21
    """
    _checks.positive("share", share)
    if share > 1:
        raise ValueError(f"share must be at most 1, got {share}")
    _checks.whole_number("values", values, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        _checks.whole_number("length", length, least=1)
        value = torch.randint(values, (batch, length), generator=generator)
        marked = (
            torch.rand(batch, length, generator=generator, dtype=torch.float32) < share
        )
        last = torch.where(marked, torch.arange(length), -1).cummax(-1).values
        answer = value.gather(1, last.clamp(min=0))
        return value + values * marked, torch.where(last >= 0, answer, IGNORE)

    return Task("last mark", 2 * values, draw)


def sum_with_first(*, modulus: int = 8) -> Task:
    """Add the first token to this one: modular addition, with one summand far away.

    Equation: y_m = (x_m + x_0) mod V for m ≥ 1, nothing asked before;
        x_m uniform on 0 … V−1, independent
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64

    The offset is as large as the sequence is long, and the position of the summand
    never changes.

    Args:
        modulus: V, at least 2.

    Raises:
        TypeError, ValueError: `modulus` is not an integer ≥ 2; when drawn from, the
            length is below 2.

    Chapter: 21
    """
    _checks.whole_number("modulus", modulus, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        _checks.whole_number("length", length, least=2)
        tokens = torch.randint(modulus, (batch, length), generator=generator)
        targets = (tokens + tokens[:, :1]) % modulus
        targets[:, 0] = IGNORE
        return tokens, targets

    return Task("sum with the first", modulus, draw)


def reversed_addition(base: int = 10) -> Task:
    """Add two numbers, written and answered from their lowest digit on.

    Equation: x = a_0 … a_{n−1} + b_0 … b_{n−1} = c_0 … c_{n−1},  Σ c_i βⁱ = Σ (a_i +
        b_i) βⁱ; asked at "=" and after: c_0 … c_n, the last one the carry
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64, T = 3n + 2; tokens 0 … β−1
        are digits, β is "+", β + 1 is "="

    A model that writes digit by digit sees its answer so far: so does this one. All
    numbers of a length have the same number of digits. `coupled` gives digits of one
    place value the same position.

    Args:
        base: β, at least 2.

    Raises:
        TypeError, ValueError: `base` is not an integer ≥ 2; when drawn from, the length
            is not 3n + 2 with n ≥ 1.

    Source: mcleish2024, cho2024
    Chapter: 21
    """
    _checks.whole_number("base", base, least=2)

    def draw(
        batch: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        _checks.whole_number("batch", batch, least=1)
        n = _digits(length)
        a, b = (torch.randint(base, (batch, n), generator=generator) for _ in range(2))
        c = torch.empty(batch, n + 1, dtype=torch.int64)
        carry = torch.zeros(batch, dtype=torch.int64)
        for i in range(n):
            total = a[:, i] + b[:, i] + carry
            c[:, i], carry = total % base, total // base
        c[:, n] = carry
        plus, equals = (torch.full((batch, 1), base + i) for i in range(2))
        tokens = torch.cat((a, plus, b, equals, c[:, :n]), 1)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, 2 * n + 1 :] = c
        return tokens, targets

    def coupled(length: int, start: int) -> Tensor:
        n = _digits(length)
        # The library's are for operands that are written from their highest digit on.
        a, plus, b, rest = coupled_addition(n, n, n, start=start).split(
            (n, 1, n, n + 1)
        )
        return torch.cat((a.flip(0), plus, b.flip(0), rest))

    return Task("reversed addition", base + 2, draw, coupled=coupled)


def _digits(length: int) -> int:
    """n of a sum that is `length` tokens long."""
    if _checks.whole_number("length", length, least=5) % 3 != 2:
        raise ValueError(f"length must be 3n + 2 for sums of n digits, got {length}")
    return length // 3


def text() -> Task:
    """Name the next character of Python's own language reference.

    Equation: y_m = x_{m+1}
    Shapes: draw(B, T, generator) → (B, T), (B, T), int64; tokens 0 … 96

    The text is `pydoc_data.topics`, which every Python ships, and which is another one
    in each version: `data` names it by a hash. Nine parts in ten are for training; the
    last one is what `test` draws from. Pieces start at random places. Tokens are the
    printable characters of ASCII, the end of a line, and one for all others.

    Raises:
        ValueError: when drawn from, the length is not below that of the text.

    Chapter: 21
    """
    from pydoc_data.topics import topics  # 0.5 MB, which no other task needs

    whole = "\n".join(topics[name] for name in sorted(topics))
    printable = {chr(i): i - 32 for i in range(32, 127)} | {"\n": 95}
    codes = torch.tensor([printable.get(character, 96) for character in whole])
    end = len(codes) * 9 // 10
    return Task(
        "text",
        97,
        partial(_piece, codes[:end]),
        test=partial(_piece, codes[end:]),
        data=hashlib.sha256(whole.encode()).hexdigest()[:16],
    )


def _piece(
    codes: Tensor, batch: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Pieces of a text, and the same one character on."""
    _checks.whole_number("batch", batch, least=1)
    _checks.whole_number("length", length, least=1)
    if length >= len(codes):
        raise ValueError(f"length must be below {len(codes)}, got {length}")
    first = torch.randint(len(codes) - length, (batch, 1), generator=generator)
    piece = codes[first + torch.arange(length + 1)]
    return piece[:, :-1], piece[:, 1:]


# What a run can be asked to learn, by the name that its row has.
TASKS: dict[str, Callable[[], Task]] = {
    "three-back": k_back,
    "forty-back": partial(k_back, 40),
    "induction": induction,
    "last-mark": last_mark,
    "sum-with-first": sum_with_first,
    "reversed-addition": partial(reversed_addition, 2),
    "common-token": common_token,
    "text": text,
}


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
