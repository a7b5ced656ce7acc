"""Schedules of frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.attention import attention_weights
from posenc_lib.frequencies import inverse_frequencies, wavelengths
from posenc_lib.positions import arange
from posenc_lib.rotary.rope import RoPE
from posenc_lib.rotary.scaling import (
    Schedule,
    clipped,
    deepseek_softmax_scale,
    dynamic_ntk,
    linear_interpolation,
    llama3,
    longrope,
    ntk_aware,
    ntk_by_parts,
    ntk_by_parts_original,
    proportional,
    yarn,
    yarn_attention_factor,
    yarn_released,
)
from posenc_lib.scheme import PositionScheme

bases = st.floats(100.0, 5e6)

factors = st.floats(1.0, 64.0)

dims = st.integers(2, 64).map(lambda pairs: 2 * pairs)


def close(actual: Tensor, expected: Tensor | list[float], rtol: float = 1e-13) -> bool:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return actual.shape == expected.shape and torch.allclose(
        actual.double(), expected, rtol=rtol, atol=0
    )


# ---- equations, pair by pair


def released_ramp(
    i: int, dim: int, base: float, length: int, fast: float, slow: float, truncate: bool
) -> float:
    low, high = (
        dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))
        for turns in (fast, slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    assert high > low
    return min(max((i - low) / (high - low), 0), 1)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("dim", "base", "length"),
    [(16, 1e4, 64), (64, 1e6, 32768), (128, 1.5e5, 4096), (6, 1e4, 50), (4, 10, 300)],
)
def test_released_yarn_is_its_equation(
    dim: int, base: float, length: int, truncate: bool
) -> None:
    schedule = yarn_released(
        dim, base, factor=4.0, original_length=length, truncate=truncate
    )
    expected = []
    for i in range(dim // 2):
        omega, t = (
            base ** (-2 * i / dim),
            released_ramp(i, dim, base, length, 32, 1, truncate),
        )
        expected.append((1 - t) * omega + t * omega / 4)
    assert close(schedule.frequencies, expected)
    assert schedule.attention_factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)


@given(
    dim=dims,
    base=bases,
    factor=factors,
    length=st.integers(1, 10**6),
    gap=st.floats(0.1, 50),
)
def test_by_parts_and_yarn_are_the_papers_equation(
    dim: int, base: float, factor: float, length: int, gap: float
) -> None:
    given_ = dict(factor=factor, original_length=length, alpha=1.5, beta=1.5 + gap)
    expected = []
    for i in range(dim // 2):
        omega = base ** (-2 * i / dim)
        kept = min(max((length * omega / (2 * math.pi) - 1.5) / gap, 0), 1)
        expected.append((1 - kept) * omega / factor + kept * omega)
    assert close(ntk_by_parts(dim, base, **given_).frequencies, expected, 1e-11)
    assert torch.equal(
        yarn(dim, base, **given_).frequencies,
        ntk_by_parts(dim, base, **given_).frequencies,
    )
    assert yarn(dim, base, **given_).attention_factor == yarn_attention_factor(factor)
    assert ntk_by_parts(dim, base, **given_).attention_factor == 1


def test_the_papers_ramp_and_the_released_ramp_differ() -> None:
    settings_ = dict(factor=10.0, original_length=2048)
    ratio = (
        yarn_released(128, 1e4, **settings_).frequencies
        / yarn(128, 1e4, **settings_).frequencies
    )
    assert 2.5 < float(ratio.max()) < 2.6


def test_original_by_parts_is_its_equation() -> None:
    dim, base, factor, length = 64, 1e4, 8.0, 2048
    expected = []
    for i in range(dim // 2):
        omega, new = (
            base ** (-2 * i / dim),
            (base * factor ** (dim / (dim - 2))) ** (-2 * i / dim),
        )
        slow, fast = (
            released_ramp(i, dim, base, length, *turns, True)
            for turns in ((1.25, 0.75), (16, 2))
        )
        expected.append(
            (1 - fast) * omega + fast * ((1 - slow) * new + slow * omega / factor)
        )
    assert close(
        ntk_by_parts_original(
            dim, base, factor=factor, original_length=length
        ).frequencies,
        expected,
    )


def test_clipped_is_its_equation() -> None:
    schedule = Schedule(inverse_frequencies(16), 1.25)
    faded = clipped(schedule, count=5)
    weights = [1.0] * 3 + [(1 + math.cos(math.pi * j / 4)) / 2 for j in range(5)]
    assert close(
        faded.frequencies[:-1],
        (schedule.frequencies * torch.tensor(weights, dtype=torch.float64))[:-1],
    )
    assert float(faded.frequencies[-1]) == 0
    assert torch.equal(faded.frequencies[:4], schedule.frequencies[:4])
    assert faded.attention_factor == 1.25


# ---- special cases


@given(dim=dims, base=bases, length=st.integers(7, 10**6))
def test_factor_one_changes_nothing(dim: int, base: float, length: int) -> None:
    plain = inverse_frequencies(dim, base)
    lists = dict(short_factors=[1.0] * (dim // 2), long_factors=[1.0] * (dim // 2))
    for schedule in (
        linear_interpolation(dim, base, factor=1),
        ntk_aware(dim, base, factor=1),
        dynamic_ntk(dim, base, factor=1, original_length=length, length=length),
        ntk_by_parts(dim, base, factor=1, original_length=length),
        ntk_by_parts_original(dim, base, factor=1, original_length=length),
        yarn(dim, base, factor=1, original_length=length),
        yarn_released(dim, base, factor=1, original_length=length),
        longrope(
            dim, base, factor=1, original_length=length, length=length + 1, **lists
        ),
        llama3(dim, base, factor=1, original_length=length),
        proportional(dim, base, fraction=1, factor=1),
    ):
        assert close(schedule.frequencies, plain, 1e-12)
        assert schedule.attention_factor == 1
        assert schedule.frequencies.dtype == torch.float64


@given(dim=dims, base=bases, factor=factors, length=st.integers(7, 10**6))
def test_llama3_is_by_parts_with_one_and_four(
    dim: int, base: float, factor: float, length: int
) -> None:
    parts = ntk_by_parts(
        dim, base, factor=factor, original_length=length, alpha=1, beta=4
    )
    assert torch.equal(
        llama3(dim, base, factor=factor, original_length=length).frequencies,
        parts.frequencies,
    )


@pytest.mark.parametrize(("low", "high"), [(1, 4), (2, 3)])
def test_llama3_is_its_equation(low: float, high: float) -> None:
    dim, base, factor, trained = 64, 5e5, 8.0, 8192
    schedule = llama3(
        dim,
        base,
        factor=factor,
        original_length=trained,
        low_freq_factor=low,
        high_freq_factor=high,
    )
    expected = []
    for i in range(dim // 2):
        omega = base ** (-2 * i / dim)
        cycles = trained * omega / (2 * math.pi)
        kept = min(max((cycles - low) / (high - low), 0), 1)
        expected.append((1 - kept) * omega / factor + kept * omega)
    assert close(schedule.frequencies, expected, 1e-12)
    assert schedule.attention_factor == 1


def test_llama3_with_equal_factors_is_a_step() -> None:
    """Llama 4 Scout: no division by the difference of the two, no NaN."""
    plain = inverse_frequencies(128, 5e5)
    scaled = llama3(
        128, 5e5, factor=16, original_length=8192, low_freq_factor=1, high_freq_factor=1
    ).frequencies
    fast = wavelengths(plain) < 8192
    assert torch.equal(scaled, torch.where(fast, plain, plain / 16))
    assert 0 < int(fast.sum()) < 64


@given(dim=dims, base=bases, factor=factors, length=st.integers(1, 10**6))
def test_every_schedule_stays_between_plain_and_interpolated(
    dim: int, base: float, factor: float, length: int
) -> None:
    plain = inverse_frequencies(dim, base)
    for scaled in (
        ntk_aware(dim, base, factor=factor),
        ntk_by_parts(dim, base, factor=factor, original_length=length),
        ntk_by_parts_original(dim, base, factor=factor, original_length=length),
        yarn_released(dim, base, factor=factor, original_length=length),
        yarn_released(dim, base, factor=factor, original_length=length, truncate=False),
        llama3(dim, base, factor=factor, original_length=length),
    ):
        ratio = scaled.frequencies / plain
        assert bool((ratio <= 1 + 1e-12).all())
        assert bool((ratio >= (1 - 1e-12) / factor).all())
        assert bool((ratio.diff() <= 1e-12).all())


def test_released_yarn_at_the_ends_of_the_index() -> None:
    """Where no pair turns once, all are interpolated.

    Where the slowest turns 32 times, none is.
    """
    plain = inverse_frequencies(128)
    assert close(
        yarn_released(128, 1e4, factor=4, original_length=1).frequencies, plain / 4
    )
    assert torch.equal(
        yarn_released(4, 1e4, factor=4, original_length=10**12).frequencies,
        inverse_frequencies(4),
    )


def test_p_rope_keeps_the_fastest_pairs_of_the_full_spectrum() -> None:
    """Not partial rotary, which spreads the whole range over fewer pairs."""
    kept = proportional(128, 1e4, fraction=0.25).frequencies
    assert torch.equal(kept[:16], inverse_frequencies(128)[:16])
    assert not kept[16:].any()
    assert [round(float(value), 3) for value in kept[:4]] == [1, 0.866, 0.750, 0.649]
    assert [round(float(value), 3) for value in inverse_frequencies(32)[:4]] == [
        1,
        0.562,
        0.316,
        0.178,
    ]
    assert close(proportional(128, 1e4, fraction=0.25, factor=8).frequencies, kept / 8)
    x = normal(1, 1, 3, 128, seed=0)
    rotated = RoPE(**proportional(128, 1e4, fraction=0.25)._asdict())(
        arange(3), torch.float64
    )(x)
    assert torch.equal(rotated[..., 32:], x[..., 32:])


def test_a_schedule_is_what_rope_takes() -> None:
    schedule = yarn(8, 1e4, factor=4, original_length=64)
    rope = RoPE(**schedule._asdict(), layout="half")
    assert rope.attention_factor == schedule.attention_factor
    assert rope.frequencies is schedule.frequencies


# ---- reported faults


@given(factor=factors, position=st.integers(0, 10**6), dim=dims)
def test_bug_07_linear_interpolation_divides_positions(
    factor: float, position: int, dim: int
) -> None:
    scaled = RoPE(linear_interpolation(dim, 1e4, factor=factor).frequencies)(
        torch.tensor([position]), torch.float64
    )
    plain = RoPE(inverse_frequencies(dim))(
        torch.tensor([position / factor], dtype=torch.float64), torch.float64
    )
    assert torch.allclose(scaled.cos, plain.cos, rtol=0, atol=1e-9)
    assert torch.allclose(scaled.sin, plain.sin, rtol=0, atol=1e-9)


def test_bug_07_linear_interpolation() -> None:
    assert (
        2916 * float(linear_interpolation(256, 1e6, factor=8).frequencies[0]) == 364.5
    )
    assert torch.equal(
        linear_interpolation(256, 1e6, factor=1).frequencies,
        inverse_frequencies(256, 1e6),
    )
    with pytest.raises(ValueError, match="factor must be at least 1"):
        linear_interpolation(256, 1e6, factor=0.5)


def test_bug_25_dynamic_ntk() -> None:
    settings_ = dict(factor=2, original_length=16)
    calls = [
        dynamic_ntk(8, 1e4, length=length, **settings_).frequencies
        for length in (8, 64, 8)
    ]
    assert torch.equal(calls[0], inverse_frequencies(8))
    assert torch.equal(calls[2], calls[0])
    expected = torch.tensor(
        [1, 0.0522758, 0.00273276, 0.000142857], dtype=torch.float64
    )
    assert torch.allclose(calls[1], expected, rtol=5e-6, atol=0)
    assert torch.equal(calls[1], ntk_aware(8, 1e4, factor=7).frequencies)
    assert torch.equal(
        ntk_aware(8, 1e4, factor=7).frequencies,
        inverse_frequencies(8, 1e4 * 7 ** (8 / 6)),
    )
    assert pytest.approx(133905.18, abs=5e-3) == 1e4 * 7 ** (8 / 6)


@given(
    lengths=st.lists(st.integers(1, 500), min_size=2, max_size=6),
    dim=dims,
    factor=factors,
)
def test_bug_25_dynamic_ntk_knows_no_earlier_call(
    lengths: list[int], dim: int, factor: float
) -> None:
    def once(length: int) -> Tensor:
        return dynamic_ntk(
            dim, 1e4, factor=factor, original_length=100, length=length
        ).frequencies

    forward = [once(length) for length in lengths]
    backward = [once(length) for length in reversed(lengths)]
    for length, one, other in zip(lengths, forward, reversed(backward), strict=True):
        assert torch.equal(one, other)
        assert length > 100 or torch.equal(one, inverse_frequencies(dim))
        last = factor * max(length, 100) / 100 - (factor - 1)
        assert float(one[-1]) == pytest.approx(
            float(inverse_frequencies(dim)[-1]) / last, rel=1e-12
        )


@given(dim=dims, base=bases, factor=factors, length=st.integers(1, 10**6))
def test_dynamic_ntk_is_its_equation(
    dim: int, base: float, factor: float, length: int
) -> None:
    trained = 4096
    schedule = dynamic_ntk(
        dim, base, factor=factor, original_length=trained, length=length
    )
    scaled = base
    if length > trained:
        scaled *= (factor * length / trained - (factor - 1)) ** (dim / (dim - 2))
    expected = [scaled ** (-2 * i / dim) for i in range(dim // 2)]
    assert close(schedule.frequencies, expected, 1e-12)
    assert schedule.attention_factor == 1


@given(dim=dims, base=bases, alpha=factors)
def test_bug_27_ntk_static(dim: int, base: float, alpha: float) -> None:
    plain, scaled = (
        inverse_frequencies(dim, base),
        ntk_aware(dim, base, factor=alpha).frequencies,
    )
    assert float(scaled[0]) == 1
    assert float(scaled[-1]) == pytest.approx(float(plain[-1]) / alpha, rel=1e-12)
    assert torch.equal(
        scaled, inverse_frequencies(dim, base * alpha ** (dim / (dim - 2)))
    )


def test_bug_27_ntk_static_values() -> None:
    expected = torch.tensor([1, 0.0629961, 0.00396850, 0.00025], dtype=torch.float64)
    assert torch.allclose(
        ntk_aware(8, 1e4, factor=4).frequencies, expected, rtol=1e-6, atol=0
    )  # six digits
    base = float(ntk_aware(128, 1e4, factor=8).frequencies[1]) ** (-128 / 2)
    assert base == pytest.approx(82684.6226, rel=1e-9)
    with pytest.raises(ValueError, match="dim must be an integer ≥ 4"):
        ntk_aware(2, 1e4, factor=8)


def test_bug_29_yarn_magnitude() -> None:
    for given_, on_tables, on_scores in (
        ({}, 1.368888, 1),
        (dict(mscale=0.707, mscale_all_dim=0.707), 1, 1.589626),
        (dict(mscale=1.0, mscale_all_dim=1.0), 1, 1.873854),
    ):
        assert yarn_attention_factor(40, **given_) == pytest.approx(on_tables, abs=5e-7)
        scale = deepseek_softmax_scale(
            192, factor=40, mscale_all_dim=given_.get("mscale_all_dim", 0.0)
        )
        assert scale * math.sqrt(192) == pytest.approx(on_scores, abs=5e-7)


@given(dim=st.integers(1, 256), factor=factors, weight=st.floats(0.0, 4.0))
def test_deepseek_softmax_scale_is_its_equation(
    dim: int, factor: float, weight: float
) -> None:
    scale = deepseek_softmax_scale(dim, factor=factor, mscale_all_dim=weight)
    expected = (0.1 * weight * math.log(factor) + 1) ** 2 / math.sqrt(dim)
    assert scale == pytest.approx(expected, rel=1e-14)


def test_bug_29_the_attention_factor_is_applied_once() -> None:
    settings_ = dict(factor=4, original_length=64)
    assert (
        yarn_released(8, 1e4, attention_factor=1.5, **settings_).attention_factor == 1.5
    )
    q, k = (normal(1, 1, 3, 8, seed=i) for i in (1, 2))
    positions, schedule = arange(3), yarn_released(8, 1e4, **settings_)

    def weights(factor: float, scale: float | None) -> Tensor:
        rope = RoPE(schedule.frequencies, attention_factor=factor)
        scheme = PositionScheme("YaRN", transform=rope.transform, scale=scale)
        return attention_weights(
            q, k, q_positions=positions, k_positions=positions, scheme=scheme
        )

    a = schedule.attention_factor
    assert torch.allclose(
        weights(a, None), weights(1.0, a**2 * 8**-0.5), rtol=1e-12, atol=0
    )
    assert float((weights(a, None) - weights(1.0, None)).abs().max()) > 1e-3


def test_bug_31_yarn_ramp() -> None:
    schedule = yarn_released(
        16, 1e4, factor=4, original_length=64, beta_fast=32, beta_slow=1
    )
    ratio = schedule.frequencies / inverse_frequencies(16)
    assert torch.allclose(
        ratio,
        torch.tensor([1, 0.75, 0.5] + [0.25] * 5, dtype=torch.float64),
        rtol=1e-14,
        atol=0,
    )


@given(
    dim=st.integers(8, 64).map(lambda pairs: 2 * pairs),
    base=st.floats(1e4, 5e6),
    length=st.integers(2048, 10**5),
)
def test_bug_31_the_ends_of_the_ramp_are_exact(
    dim: int, base: float, length: int
) -> None:
    plain = inverse_frequencies(dim, base)
    scaled = yarn_released(dim, base, factor=8, original_length=length).frequencies
    turns = length / wavelengths(plain)
    index = torch.arange(dim // 2)
    low = int((turns >= 32).sum()) - 1  # the last pair that turns 32 times
    high = int((turns > 1).sum())  # the first that turns once or less
    assert torch.equal(scaled[index <= low], plain[index <= low])
    assert torch.equal(scaled[index >= high], plain[index >= high] / 8)
    assert bool(((scaled / plain).diff() <= 1e-15).all())


def test_bug_33_llama3_scaling() -> None:
    plain = inverse_frequencies(64, 5e5)
    scaled = llama3(64, 5e5, factor=32, original_length=8192).frequencies
    assert torch.equal(scaled[:15], plain[:15])
    expected = torch.tensor([0.605573, 0.303743, 0.103448], dtype=torch.float64)
    assert torch.allclose(scaled[15:18] / plain[15:18], expected, rtol=0, atol=5e-7)
    assert torch.equal(scaled[18:], plain[18:] / 32)


@pytest.mark.parametrize("trained", [64, 4096])
def test_bug_35_longrope_switch(trained: int) -> None:
    lists = dict(short_factors=[1.0] * 4, long_factors=[4.0] * 4)
    for length in (1, trained - 1, trained, trained + 1, 10 * trained):
        schedule = longrope(
            8, 1e4, factor=32, original_length=trained, length=length, **lists
        )
        divisor = 4 if length > trained else 1
        assert torch.equal(schedule.frequencies, inverse_frequencies(8) / divisor)
        assert schedule.attention_factor == math.sqrt(
            1 + math.log(32) / math.log(trained)
        )
    with pytest.raises(
        ValueError,
        match="long_factors must hold one number for each of the 4 pairs, got 3",
    ):
        longrope(
            8,
            1e4,
            factor=32,
            original_length=64,
            length=1,
            short_factors=[1] * 4,
            long_factors=[1] * 3,
        )


@pytest.mark.parametrize("length", [100, 64, 65])
def test_longrope_is_its_equation(length: int) -> None:
    short, long = [1.0, 1.5, 2.0, 3.0], [2.0, 4.0, 8.0, 16.0]
    schedule = longrope(
        8,
        1e4,
        short_factors=short,
        long_factors=long,
        factor=4,
        original_length=64,
        length=length,
    )
    divisors = long if length > 64 else short
    expected = [10000 ** (-2 * i / 8) / divisors[i] for i in range(4)]
    assert close(schedule.frequencies, expected)
    assert schedule.attention_factor == pytest.approx(
        math.sqrt(1 + math.log(4) / math.log(64)), rel=1e-15
    )


LISTS = dict(short_factors=[1.0] * 4, long_factors=[1.0] * 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "linear_interpolation: dim": (
        lambda: linear_interpolation(7, 1e4, factor=2),
        ValueError,
        "dim must be even",
    ),
    "linear_interpolation: base": (
        lambda: linear_interpolation(8, -1.0, factor=2),
        ValueError,
        "base must be",
    ),
    "linear_interpolation(8, 10000.0, factor='2')": (
        lambda: linear_interpolation(8, 1e4, factor="2"),
        TypeError,
        "factor must be a number",
    ),
    "ntk_aware: factor": (
        lambda: ntk_aware(8, 1e4, factor=0.99),
        ValueError,
        "factor must be at least 1",
    ),
    "ntk_aware: base": (
        lambda: ntk_aware(8, "1e4", factor=2),
        TypeError,
        "base must be a number",
    ),
    "dynamic_ntk: original_length": (
        lambda: dynamic_ntk(8, 1e4, factor=2, original_length=0, length=1),
        ValueError,
        "original_length must be",
    ),
    "dynamic_ntk: length": (
        lambda: dynamic_ntk(8, 1e4, factor=2, original_length=8, length=1.5),
        TypeError,
        "length must be an integer",
    ),
    "dynamic_ntk: factor": (
        lambda: dynamic_ntk(8, 1e4, factor=0.5, original_length=8, length=80),
        ValueError,
        "factor must be at least 1",
    ),
    "ntk_by_parts: beta": (
        lambda: ntk_by_parts(8, 1e4, factor=2, original_length=8, alpha=4, beta=1),
        ValueError,
        "beta must be at least",
    ),
    "ntk_by_parts: alpha": (
        lambda: ntk_by_parts(8, 1e4, factor=2, original_length=8, alpha=0),
        ValueError,
        "alpha must be",
    ),
    "yarn: factor": (
        lambda: yarn(8, 1e4, factor=0.5, original_length=8),
        ValueError,
        "factor must be at least 1",
    ),
    "yarn_released: base": (
        lambda: yarn_released(8, 1.0, factor=2, original_length=8),
        ValueError,
        "base must be above 1",
    ),
    "yarn_released: factor": (
        lambda: yarn_released(
            8, 1e4, factor=0.5, original_length=8, attention_factor=1.0
        ),
        ValueError,
        "factor must be",
    ),
    "yarn_released: betas exchanged": (
        lambda: yarn_released(
            8, 1e4, factor=2, original_length=8, beta_fast=1, beta_slow=32
        ),
        ValueError,
        "beta_fast must be above beta_slow",
    ),
    "yarn_released: equal betas": (
        lambda: yarn_released(
            8, 1e4, factor=2, original_length=8, beta_fast=1, beta_slow=1
        ),
        ValueError,
        "beta_fast must be above beta_slow",
    ),
    "yarn_released: attention_factor": (
        lambda: yarn_released(
            8, 1e4, factor=2, original_length=8, attention_factor=0.0
        ),
        ValueError,
        "attention_factor must be",
    ),
    "yarn_attention_factor(40, mscale=-1.0)": (
        lambda: yarn_attention_factor(40, mscale=-1.0),
        ValueError,
        "mscale must be",
    ),
    "yarn_attention_factor: factor": (
        lambda: yarn_attention_factor(0.5),
        ValueError,
        "factor must be at least 1",
    ),
    "deepseek_softmax_scale: head_dim": (
        lambda: deepseek_softmax_scale(0, factor=2, mscale_all_dim=1),
        ValueError,
        "head_dim must be",
    ),
    "deepseek_softmax_scale: mscale_all_dim": (
        lambda: deepseek_softmax_scale(8, factor=2, mscale_all_dim=-1),
        ValueError,
        "mscale_all_dim must be",
    ),
    "ntk_by_parts_original: base": (
        lambda: ntk_by_parts_original(8, 0.5, factor=2, original_length=8),
        ValueError,
        "base must be above 1",
    ),
    "ntk_by_parts_original: dim": (
        lambda: ntk_by_parts_original(2, 1e4, factor=2, original_length=8),
        ValueError,
        "dim must be an integer ≥ 4",
    ),
    "longrope: original_length": (
        lambda: longrope(8, 1e4, factor=2, original_length=1, length=1, **LISTS),
        ValueError,
        "original_length must be",
    ),
    "longrope: factor below 1": (
        lambda: longrope(8, 1e4, factor=0.5, original_length=8, length=1, **LISTS),
        ValueError,
        "factor must be",
    ),
    "longrope: factor below 1, magnitude given": (
        lambda: longrope(
            8,
            1e4,
            factor=0.5,
            original_length=8,
            length=1,
            attention_factor=1.0,
            **LISTS,
        ),
        ValueError,
        "factor must be",
    ),
    "longrope: short_factors[0]": (
        lambda: longrope(
            8,
            1e4,
            factor=2,
            original_length=8,
            length=1,
            short_factors=[0] * 4,
            long_factors=[1] * 4,
        ),
        ValueError,
        r"short_factors\[0\] must be",
    ),
    "llama3: high_freq": (
        lambda: llama3(
            8, 1e4, factor=2, original_length=8, low_freq_factor=4, high_freq_factor=1
        ),
        ValueError,
        "high_freq",
    ),
    "llama3: low_freq_factor": (
        lambda: llama3(8, 1e4, factor=2, original_length=8, low_freq_factor=0),
        ValueError,
        "low_freq_factor must be",
    ),
    "proportional(8, 10000.0, fraction=0.2)": (
        lambda: proportional(8, 1e4, fraction=0.2),
        ValueError,
        "fraction must be",
    ),
    "proportional(8, 10000.0, fraction=1.5)": (
        lambda: proportional(8, 1e4, fraction=1.5),
        ValueError,
        "fraction must be",
    ),
    "proportional: factor": (
        lambda: proportional(8, 1e4, fraction=0.5, factor=0.5),
        ValueError,
        "factor must be at least 1",
    ),
    "clipped: schedule": (
        lambda: clipped(inverse_frequencies(8), count=2),
        TypeError,
        "schedule must be a Schedule",
    ),
    "clipped(Schedule(inverse_frequencies(8)), count=1)": (
        lambda: clipped(Schedule(inverse_frequencies(8)), count=1),
        ValueError,
        "count must be",
    ),
    "clipped(Schedule(inverse_frequencies(8)), count=5)": (
        lambda: clipped(Schedule(inverse_frequencies(8)), count=5),
        ValueError,
        "count must be at most",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
