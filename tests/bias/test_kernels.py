"""KERPLE, FIRE and Sandwich."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.bias import bias_of, same
from helpers import seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.bias.kernels import FIRE, KerpleLog, KerplePower, sandwich
from posenc_lib.embedding import sinusoidal
from posenc_lib.positions import arange, grid
from posenc_lib.properties import (
    max_error,
    toeplitz_error,
)

# ---- KERPLE


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    offset=st.integers(-9, 9),
    seed=st.integers(0, 99),
)
def test_kerple_is_the_equation(
    queries: int, keys: int, offset: int, seed: int
) -> None:
    log, power = (
        KerpleLog(3, generator=seeded(seed)).double(),
        KerplePower(3, generator=seeded(seed)).double(),
    )
    log.requires_grad_(False), power.requires_grad_(False)
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    logs, powers = log(m, n), power(m, n)
    for h, i, j in itertools.product(range(3), range(queries), range(keys)):
        distance = abs(i + offset - j)
        expected = -max(float(log.r1[h]), 0.01) * math.log(
            1 + max(float(log.r2[h]), 0.01) * distance
        )
        assert float(logs[0, h, i, j]) == pytest.approx(expected, abs=1e-13)
        expected = -max(float(power.r1[h]), 0.01) * distance ** max(
            float(power.r2[h]), 0.01
        )
        assert float(powers[0, h, i, j]) == pytest.approx(expected, abs=1e-13)


def test_kerple_reduces_to_alibi() -> None:
    slopes, m, n = alibi_slopes(8), arange(9, offset=5), arange(14)
    wanted = alibi(m, n, slopes, dtype=torch.float64)
    power = KerplePower(8).double()
    power.r1.data.copy_(slopes)
    power.r2.data.fill_(1.0)
    below = slopes < 0.01  # which the released code raises to 0.01
    assert bool(below.any())
    assert torch.equal(power(m, n)[:, ~below], wanted[:, ~below])
    assert torch.equal(
        power(m, n)[:, below], wanted[:, below] / slopes[below, None, None] * 0.01
    )
    # ln(1 + x) = x − x²/2 + …: with r₂ = 0.01, distances of at most 13 and r₁ r₂ = s
    # the error is below s · 13 · 0.065
    log = KerpleLog(8).double()
    log.r1.data.copy_(slopes / 0.01)
    log.r2.data.fill_(0.01)
    error = (log(m, n) - wanted).abs()
    assert bool((error <= slopes[:, None, None] * 13 * 13 * 0.005).all())
    assert bool((error[..., 0, 0] > 0).all())


def test_kerple_clamps_without_losing_the_gradient() -> None:
    for bias, above in ((KerpleLog(2), None), (KerplePower(2), 3.0)):
        bias.r1.data.fill_(-1.0)
        bias.r2.data.fill_(-1.0 if above is None else above)
        out = bias(arange(4), arange(4))
        limit = -0.01 * math.log(1.03) if above is None else -0.01 * 9.0
        assert float(out[0, 0, 3, 0].detach()) == pytest.approx(limit, rel=1e-5)
        out.sum().backward()
        assert all(
            p.grad is not None and bool((p.grad != 0).all()) for p in bias.parameters()
        )
        assert bool((bias.r1 == -1.0).all())  # a forward pass writes to no parameter


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0, 1.7])
def test_kerple_power_has_all_gradients_at_distance_zero(power: float) -> None:
    kerple = KerplePower(1).double()
    with torch.no_grad():
        kerple.r1.fill_(0.3)  # above the bound that a draw may fall below
        kerple.r2.fill_(power)
    m = torch.arange(3.0, dtype=torch.float64).requires_grad_()
    n = torch.arange(3.0, dtype=torch.float64)
    first = torch.autograd.grad(
        kerple(m, n).sum(), (m, kerple.r1, kerple.r2), create_graph=True
    )
    second = torch.autograd.grad(first[2].sum(), kerple.r2)[0]
    distance = (n - n[:, None]).abs()
    grown = torch.where(distance > 0, distance**power, 0)
    logarithm = torch.where(distance > 0, distance, 1).log()
    r1 = kerple.r1.detach()
    slope = torch.where(
        distance > 0, power * grown / distance * (n[:, None] - n).sign(), 0
    )
    assert same(first[0], -r1 * slope.sum(-1))
    assert same(first[1], -grown.sum()[None])
    assert same(first[2], (-r1 * grown * logarithm).sum()[None])
    assert same(second, (-r1 * grown * logarithm**2).sum()[None])


def test_kerple_begins_as_in_the_released_code() -> None:
    log, power = (
        KerpleLog(4000, generator=seeded()),
        KerplePower(4000, generator=seeded()),
    )
    for parameter, end in (
        (log.r1, 2.0),
        (log.r2, 1.0),
        (power.r1, 1.0),
        (power.r2, 2.0),
    ):
        low, high, mean = (
            float(f(parameter.detach())) for f in (torch.min, torch.max, torch.mean)
        )
        assert 0 <= low < 0.01 * end
        assert 0.99 * end < high <= end
        assert mean == pytest.approx(end / 2, abs=5 * end / math.sqrt(12 * 4000))


def test_kerple_falls_with_distance() -> None:
    for name in ("KERPLE, logarithmic", "KERPLE, power"):
        row = bias_of(name)(arange(1, offset=50), arange(51))[0, :, 0]
        assert bool((row.diff(dim=-1) > 0).all())
        assert bool((row[:, -1] == 0).all())


# ---- FIRE


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    offset=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_fire_is_the_equation(queries: int, keys: int, offset: int, seed: int) -> None:
    bias = (
        FIRE(2, hidden=3, c=0.3, threshold=4.0, generator=seeded(seed))
        .double()
        .requires_grad_(False)
    )
    bias.multiplier.data.fill_(1.1)
    w1, c1, w2, c2 = bias.network
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    out, c = bias(m, n), float(bias.c)
    for i, j in itertools.product(range(queries), range(keys)):
        divisor = math.log(c * max(i + offset, 4.4) + 1)
        share = math.log(c * abs(i + offset - j) + 1) / (divisor + 1e-6)
        hidden = torch.tensor(
            [max(0.0, float(w1[a, 0]) * share + float(c1[a])) for a in range(3)],
            dtype=torch.float64,
        )
        for h in range(2):
            expected = sum(
                float(w2[h, a]) * float(hidden[a]) for a in range(3)
            ) + float(c2[h])
            assert float(out[0, h, i, j]) == pytest.approx(expected, abs=1e-12)


def test_fire_divides_by_the_position_of_the_query() -> None:
    """The share of the first token is 1 at every query from L on, however many keys are
    there: no length is new.
    """
    bias = FIRE(2, hidden=4, threshold=16.0, generator=seeded()).double()
    queries = torch.tensor([16, 17, 100, 4096, 1_000_000])
    first = bias(queries, torch.tensor([0]))[0, :, :, 0]
    assert (
        max_error(first, first[:, :1].expand_as(first)) <= 1e-6
    )  # ε is worth this much
    short, long = bias(queries, arange(3)), bias(queries, arange(30))
    assert same(short, long[..., :3])
    assert same(
        bias(queries[1:2], arange(3)), short[:, :, 1:2]
    )  # neither the row below nor the one above


def test_fire_below_the_threshold_depends_on_the_distance_alone() -> None:
    bias = FIRE(2, hidden=4, threshold=32.0, generator=seeded()).double()
    positions = arange(32)
    assert toeplitz_error(bias(positions, positions)) <= 1e-15
    later = arange(32, offset=33)
    assert toeplitz_error(bias(later, later)) > 1e-4


def test_fire_reads_a_batch_row_by_row() -> None:
    """The divisor is a column of the row it belongs to.

    With as many queries as rows a wrong axis would still fit.
    """
    bias = FIRE(2, hidden=4, threshold=2.0, generator=seeded()).double()
    rows = torch.tensor([[3, 9, 40], [5, 6, 7], [0, 100, 2]])
    together = bias(rows, rows)
    for row in range(3):
        assert same(together[row], bias(rows[row], rows[row])[0])


def test_fire_learns_c_and_the_threshold() -> None:
    bias = FIRE(2, hidden=4, threshold=8.0, generator=seeded())
    assert float(bias.c.detach()) == pytest.approx(0.1)
    assert {n for n, _ in bias.named_parameters()} == {
        "c",
        "multiplier",
        *(f"network.{i}" for i in range(4)),
    }
    positions, before = arange(6), bias(arange(6), arange(6))
    bias.multiplier.data.neg_()
    assert torch.equal(bias(positions, positions), before)


# ---- Sandwich


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 8), (4, 128)])
@pytest.mark.parametrize("offset", [0, 3, 100_000])
def test_sandwich_is_the_equation(heads: int, dim: int, offset: int) -> None:
    m, n = arange(5, offset=offset), arange(7, offset=offset)
    bias = sandwich(m, n, heads, dim=dim, dtype=torch.float64)
    for h, i, j in itertools.product(range(heads), range(5), range(7)):
        cosines = [
            math.cos((i - j) * 10000 ** (-2 * k / dim)) - 1
            for k in range(1, dim // 2 + 1)
        ]
        expected = math.fsum(cosines) / (8 * (h + 1) / heads)
        assert float(bias[0, h, i, j]) == pytest.approx(
            expected, abs=1e-13 * dim * max(1, offset / 100)
        )


def test_sandwich_is_the_product_of_two_sinusoidal_embeddings() -> None:
    """The sinusoid's frequencies θ^(−2i/d) begin at i = 0.

    With positions scaled by θ^(−2/d) at i = 1.
    """
    positions = arange(20)
    table = sinusoidal(positions * 10000.0 ** (-2 / 16), 16, dtype=torch.float64)
    assert (
        max_error(
            table @ table.mT - 8,
            sandwich(positions, positions, 8, dim=16, dtype=torch.float64)[0, 0],
        )
        <= 1e-6
    )
    exact = sinusoidal(
        positions.double() * 10000.0 ** (-2 / 16), 16, dtype=torch.float64
    )
    assert (
        max_error(
            exact @ exact.mT - 8,
            sandwich(positions, positions, 8, dim=16, dtype=torch.float64)[0, 0],
        )
        <= 1e-13
    )


def test_sandwich_is_highest_at_distance_zero() -> None:
    row = sandwich(arange(1, offset=64), arange(65), 4)[0, :, 0]
    assert bool((row <= 1e-12).all())
    assert float(row[0, -1]) == pytest.approx(0, abs=1e-12)
    ratio = row[0, :-1] / row[3, :-1]
    assert (
        max_error(ratio, torch.full_like(ratio, 4.0)) <= 1e-5
    )  # head 1 against head 4
    # d̄ = 4: the lowest frequencies, whose cosines differ from 1 by less than float32
    # can hold next to 1
    near = float(sandwich(arange(1, offset=1), arange(1), 1, dim=4)[0, 0, 0, 0])
    assert near == pytest.approx(
        -(math.sin(0.005) ** 2 + math.sin(0.00005) ** 2) / 4, rel=1e-6
    )


AT, PLACES = arange(3), grid((2, 2))


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "KerpleLog: heads": (
        lambda: KerpleLog(0),
        ValueError,
        "heads",
    ),
    "KerpleLog: q_positions": (
        lambda: KerpleLog(2)(AT.float().half(), AT),
        TypeError,
        "q_positions",
    ),
    "KerpleLog: q_positions and k_positions": (
        lambda: KerpleLog(2)(AT.repeat(3, 1), AT.repeat(2, 1)),
        ValueError,
        "q_positions and k_positions",
    ),
    "FIRE: hidden": (
        lambda: FIRE(2, hidden=0),
        ValueError,
        "hidden",
    ),
    "FIRE: c": (
        lambda: FIRE(2, c=-1.0),
        ValueError,
        "c must",
    ),
    "FIRE: k_positions": (
        lambda: FIRE(2)(AT, AT.repeat(2, 2, 1)),
        ValueError,
        "k_positions",
    ),
    "sandwich: heads": (
        lambda: sandwich(AT, AT, 0),
        ValueError,
        "heads",
    ),
    "sandwich: dim": (
        lambda: sandwich(AT, AT, 2, dim=3),
        ValueError,
        "dim must be even",
    ),
    "sandwich: base": (
        lambda: sandwich(AT, AT, 2, base=-1.0),
        ValueError,
        "base",
    ),
    "sandwich: dtype": (
        lambda: sandwich(AT, AT, 2, dtype=torch.int64),
        TypeError,
        "dtype",
    ),
    "sandwich: q_positions and k_positions": (
        lambda: sandwich(AT.repeat(3, 1), AT.repeat(2, 1), 2),
        ValueError,
        "q_positions and k_positions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
