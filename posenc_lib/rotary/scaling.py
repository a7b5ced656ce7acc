"""Schedules: frequencies for a context longer than the trained one.

Every function returns a `Schedule(frequencies, attention_factor)`, which is what `RoPE`
takes: `RoPE(**yarn(...)._asdict(), layout="half")`. Pair i makes r_i = L₀ ω_i / 2π
full turns within the trained length L₀; most schedules are a rule for which pairs are
slowed down (ω_i/s, interpolation) and which are left alone.

No schedule has a default base: the base belongs to the checkpoint. Two ways to a longer
context are not schedules: a raised base (ABF; xiong2023) is another argument of
`inverse_frequencies`, and DroPE trains with RoPE and then removes it, so that the
scheme of the finished model is `NOPE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.frequencies import inverse_frequencies


class Schedule(NamedTuple):
    """The frequencies and the attention factor that a schedule returns.

    Equation: score = a² (R′_m q)ᵀ (R′_n k), R′ with the frequencies ω′ and a the
        attention factor
    Shapes: frequencies (d/2,), float64

    Args:
        frequencies: ω′_i in radians per position.
        attention_factor: a, which multiplies cos and sin, so scores by its square.
            Nothing else may scale them.

    Chapter: 16
    """

    frequencies: Tensor
    attention_factor: float = 1.0


ScheduleFunction = Callable[[int, float], tuple[Tensor, float]]
"""`schedule(dim, base)`: what `partial` makes of a function below with its numbers."""


def unscaled(dim: int, base: float) -> Schedule:
    """The schedule that changes nothing.

    Equation: ω′_i = ω_i,  a = 1
    Shapes: → (d/2,)

    Args:
        dim: rotated channels d, even.
        base: θ.

    Raises:
        TypeError, ValueError: as `inverse_frequencies`.

    Source: su2021
    Chapter: 14
    """
    return Schedule(inverse_frequencies(dim, base))


def linear_interpolation(dim: int, base: float, *, factor: float) -> Schedule:
    """Position interpolation: the longer context squeezed into the trained angles.

    Equation: ω′_i = ω_i / s,  the same as positions m/s      (chen2023 §2.3)
    Shapes: → (d/2,)

    Gemma 3 scales its global layers in this way (θ = 1,000,000, s = 8) and leaves its
    local layers alone.

    Args:
        dim: rotated channels d, even.
        base: θ of the checkpoint.
        factor: s, the new length over the trained one, at least 1; 1 changes nothing.

    Raises:
        TypeError, ValueError: `factor` is below 1 (positions are divided by it); then
            as `inverse_frequencies`.

    Source: chen2023, kaiokendev2023
    Checked: golden; parity
    Chapter: 16
    """
    frequencies = inverse_frequencies(dim, base)
    _check_factor(factor)
    return Schedule(frequencies / factor)


def ntk_aware(dim: int, base: float, *, factor: float) -> Schedule:
    """NTK-aware scaling: a larger base, which slows down the slow pairs most.

    Equation: θ′ = θ s^(d/(d−2)),  so that ω′_i = ω_i s^(−2i/(d−2))
        (bloc97_2023; peng2024)
    Shapes: → (d/2,)

    The fastest pair keeps its frequency, ω′_0 = ω_0; the slowest is s times slower,
    ω′_{d/2−1} = ω_{d/2−1} / s.

    Args:
        dim: rotated channels d, even, at least 4: a single pair can't be fastest and
            slowest.
        base: θ of the checkpoint.
        factor: s, at least 1.

    Raises:
        TypeError, ValueError: `dim` is below 4, `factor` below 1; then as
            `inverse_frequencies`.

    Source: bloc97_2023, peng2024
    Checked: golden; parity
    Chapter: 16
    """
    _checks.whole_number("dim", dim, least=4)
    _checks.positive("base", base)
    _check_factor(factor)
    return Schedule(inverse_frequencies(dim, base * factor ** (dim / (dim - 2))))


def dynamic_ntk(
    dim: int, base: float, *, factor: float, original_length: int, length: int
) -> Schedule:
    """Dynamic NTK: NTK-aware scaling that grows with the current length.

    Equation: θ′ = θ (s L/L₀ − (s − 1))^(d/(d−2)) for L > L₀, else θ
        (peng2024 §3.3 with s = 1; s as in the code of transformers)
    Shapes: → (d/2,)

    Keys cached at one length were rotated with other frequencies than queries at the
    next: cache keys before the rotation. The result depends on `length` alone and never
    on the calls before.

    Args:
        dim: rotated channels d, even, at least 4.
        base: θ of the checkpoint.
        factor: s, at least 1. At s = 1, θ′ = θ (L/L₀)^(d/(d−2)).
        original_length: L₀, the trained length.
        length: L, the current length: largest position plus 1.

    Raises:
        TypeError, ValueError: as `ntk_aware`; a length that is not an integer ≥ 1.

    Source: peng2024
    Checked: golden; parity
    Chapter: 16
    """
    _checks.whole_number("original_length", original_length, least=1)
    _checks.whole_number("length", length, least=1)
    _check_factor(factor)
    ratio = max(length, original_length) / original_length
    return ntk_aware(dim, base, factor=factor * ratio - (factor - 1))


def ntk_by_parts(
    dim: int,
    base: float,
    *,
    factor: float,
    original_length: int,
    alpha: float = 1.0,
    beta: float = 32.0,
) -> Schedule:
    """NTK-by-parts: fast pairs are left alone, slow pairs are interpolated.

    Equation: ω′_i = (1 − γ(r_i)) ω_i / s + γ(r_i) ω_i,
        γ(r) = clip((r − α)/(β − α), 0, 1),  r_i = L₀ ω_i / 2π      (peng2024 §3.2)
    Shapes: → (d/2,)

    Args:
        dim: rotated channels d, even.
        base: θ of the checkpoint.
        factor: s, at least 1.
        original_length: L₀, the trained length; not the extended one.
        alpha: full turns within L₀ up to which a pair is interpolated.
        beta: full turns from which on it is left alone, at least α. With β = α, γ is a
            step.

    Raises:
        TypeError, ValueError: `beta` is below `alpha`, `factor` below 1; then as
            `inverse_frequencies`.

    Source: peng2024
    Checked: derived, unchecked
    Chapter: 16
    """
    frequencies = inverse_frequencies(dim, base)
    _checks.whole_number("original_length", original_length, least=1)
    _checks.positive("beta", beta)
    _checks.positive("alpha", alpha)
    if beta < alpha:
        raise ValueError(
            f"beta must be at least alpha = {alpha} (faster pairs are kept), got {beta}"
        )
    _check_factor(factor)
    kept = _ramp(original_length * frequencies / (2 * math.pi), alpha, beta)  # γ
    return Schedule((1 - kept) * frequencies / factor + kept * frequencies)


def yarn(
    dim: int,
    base: float,
    *,
    factor: float,
    original_length: int,
    alpha: float = 1.0,
    beta: float = 32.0,
) -> Schedule:
    """YaRN as in the paper: NTK-by-parts, and scores sharpened by the attention factor.

    Equation: ω′ as in `ntk_by_parts`,  a = 0.1 ln s + 1, so that scores grow by
        a² = 1/t      (peng2024 §3.4)
    Shapes: → (d/2,)

    The released code, and every checkpoint made with it, has another ramp:
    `yarn_released`.

    Args:
        dim, base, factor, original_length, alpha, beta: as in `ntk_by_parts`.

    Raises:
        TypeError, ValueError: as `ntk_by_parts`.

    Source: peng2024
    Checked: derived, unchecked
    Chapter: 16
    """
    parts = ntk_by_parts(
        dim,
        base,
        factor=factor,
        original_length=original_length,
        alpha=alpha,
        beta=beta,
    )
    return Schedule(parts.frequencies, yarn_attention_factor(factor))


def yarn_released(
    dim: int,
    base: float,
    *,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Schedule:
    """YaRN as released: the ramp is linear in the pair index.

    Equation: ω′_i = (1 − t_i) ω_i + t_i ω_i / s,  t_i = clip((i − l)/(h − l), 0, 1),
        l = max(⌊c(β_fast)⌋, 0), h = min(⌈c(β_slow)⌉, d − 1),
        c(β) = d ln(L₀/(2πβ)) / (2 ln θ)      (peng2024, released code)
    Shapes: → (d/2,)

    c(β) is the pair that makes β full turns within L₀. The ramp is a step where h ≤ l:
    with h = l that is the released code's +0.001, beyond it the code would scale the
    wrong pairs.

    Args:
        dim, base, factor, original_length: as in `ntk_by_parts`; θ above 1.
        beta_fast: full turns within L₀ from which on a pair is left alone, above
            `beta_slow`.
        beta_slow: full turns up to which it is interpolated.
        truncate: round l down and h up. gpt-oss does not.
        attention_factor: a, in place of 0.1 ln s + 1 and not in addition to it.
            DeepSeek's configurations mean `yarn_attention_factor(s, mscale=...,
            mscale_all_dim=...)`.

    Raises:
        TypeError, ValueError: `beta_fast` is not above `beta_slow`, θ not above 1,
            `factor` below 1.

    Source: peng2024
    Checked: golden; parity
    Chapter: 16
    """
    frequencies = inverse_frequencies(dim, base)
    _check_falling(base)
    _checks.positive("beta_fast", beta_fast)
    _checks.positive("beta_slow", beta_slow)
    if beta_fast <= beta_slow:
        raise ValueError(
            f"beta_fast must be above beta_slow = {beta_slow}, got {beta_fast}"
        )
    _checks.boolean("truncate", truncate)
    _check_factor(factor)
    a = yarn_attention_factor(factor) if attention_factor is None else attention_factor
    _checks.positive("attention_factor", a)
    turns = (beta_fast, beta_slow)
    t = _index_ramp(frequencies, base, original_length, *turns, truncate)
    return Schedule((1 - t) * frequencies + t * frequencies / factor, a)


def yarn_attention_factor(
    factor: float, *, mscale: float = 1.0, mscale_all_dim: float = 0.0
) -> float:
    """YaRN's magnitude on cos and sin: one number, or DeepSeek's quotient of two.

    Equation: a = g(mscale) / g(mscale_all_dim),  g(k) = 0.1 k ln s + 1
        (peng2024 §3.4 with k = 1 and no divisor)
    Shapes: → a number

    With mscale = mscale_all_dim, as in DeepSeek-V2 and V3, it is 1: what they scale is
    the softmax, by `deepseek_softmax_scale`.

    Args:
        factor: s, at least 1.
        mscale: k of the numerator, at least 0.
        mscale_all_dim: k of the divisor, at least 0.

    Raises:
        TypeError, ValueError: `factor` is below 1, a k is not a number ≥ 0.

    Source: peng2024, deepseekv2
    Chapter: 16
    """
    _check_not_negative("mscale", mscale)
    _check_not_negative("mscale_all_dim", mscale_all_dim)
    _check_factor(factor)
    numerator, divisor = (
        0.1 * k * math.log(factor) + 1 for k in (mscale, mscale_all_dim)
    )
    return numerator / divisor


def deepseek_softmax_scale(
    head_dim: int, *, factor: float, mscale_all_dim: float
) -> float:
    """DeepSeek's softmax scale under YaRN, on all channels and not on the rotated ones.

    Equation: scale = (0.1 k ln s + 1)² / √d,  k = mscale_all_dim
        (deepseekv2, released code)
    Shapes: → a number, for `PositionScheme(scale=...)`

    The square is that of YaRN's magnitude. The released code applies it only where the
    model's longest input exceeds the trained length.

    Args:
        head_dim: d, all channels of a query, rotated or not: 128 + 64 in DeepSeek-V3.
        factor: s, at least 1.
        mscale_all_dim: k, at least 0. With 0 the scale is the plain 1/√d.

    Raises:
        TypeError, ValueError: `head_dim` is below 1, `factor` below 1, k below 0.

    Source: deepseekv2
    Checked: golden
    Chapter: 16
    """
    _check_not_negative("mscale_all_dim", mscale_all_dim)
    magnitude = yarn_attention_factor(factor, mscale=mscale_all_dim)
    _checks.whole_number("head_dim", head_dim, least=1)
    return float(head_dim**-0.5 * magnitude**2)


def ntk_by_parts_original(
    dim: int, base: float, *, factor: float, original_length: int
) -> Schedule:
    """NTK-by-parts before YaRN: two ramps over the pair index.

    Equation: u_i = (1 − t_i) θ′^(−2i/d) + t_i ω_i / s,  t between 1.25 and 0.75 full
        turns, θ′ as in `ntk_aware`;  ω′_i = (1 − t′_i) ω_i + t′_i u_i,  t′ between 16
        and 2 full turns;  t as in `yarn_released`      (bloc97_2023, released code)
    Shapes: → (d/2,)

    With falling frequency a pair is untouched, then NTK-aware, then interpolated. The
    released code gives no source for the four numbers but experiment.

    Args:
        dim: rotated channels d, even, at least 4.
        base: θ of the checkpoint, above 1.
        factor: s, at least 1.
        original_length: L₀, the trained length.

    Raises:
        TypeError, ValueError: as `ntk_aware`; θ not above 1.

    Source: bloc97_2023
    Checked: golden
    Chapter: 16
    """
    frequencies = inverse_frequencies(dim, base)
    _check_falling(base)
    aware = ntk_aware(dim, base, factor=factor).frequencies
    slow = _index_ramp(frequencies, base, original_length, 1.25, 0.75, True)  # t
    fast = _index_ramp(frequencies, base, original_length, 16.0, 2.0, True)  # t′
    mixed = (1 - slow) * aware + slow * frequencies / factor  # u
    return Schedule((1 - fast) * frequencies + fast * mixed)


def longrope(
    dim: int,
    base: float,
    *,
    short_factors: Sequence[float],
    long_factors: Sequence[float],
    factor: float,
    original_length: int,
    length: int,
    attention_factor: float | None = None,
) -> Schedule:
    """LongRoPE: two lists with a factor for each pair, found by search.

    Equation: ω′_i = ω_i / λ_i,  λ the long list for L > L₀, else the short one;
        a = √(1 + ln s / ln L₀)
        (ding2024; a and the two lists as in the released Phi-3 models)
    Shapes: lists of d/2 numbers → (d/2,)

    A sequence that crosses L₀ changes all frequencies: cached keys must be rotated
    anew. The attention factor is the same on both sides. The paper also leaves the
    first n̂ positions unscaled; the released models do not.

    Args:
        dim: rotated channels d, even.
        base: θ of the checkpoint.
        short_factors: λ for L ≤ L₀, above 0.
        long_factors: λ for L > L₀, above 0.
        factor: s, the extended length over the trained one, at least 1.
        original_length: L₀, the trained length, at least 2.
        length: L, the current length: largest position plus 1.
        attention_factor: a, in place of the formula.

    Raises:
        TypeError, ValueError: a list of other than d/2 numbers above 0; lengths that
            are not integers; `factor` below 1.

    Source: ding2024
    Checked: golden; parity
    Chapter: 16
    """
    frequencies = inverse_frequencies(dim, base)
    _checks.whole_number("original_length", original_length, least=2)
    _checks.whole_number("length", length, least=1)
    short = _checked_factors("short_factors", short_factors, dim // 2)
    long = _checked_factors("long_factors", long_factors, dim // 2)
    _check_factor(factor)
    formula = math.sqrt(1 + math.log(factor) / math.log(original_length))
    a = formula if attention_factor is None else attention_factor
    _checks.positive("attention_factor", a)
    divisors = torch.tensor(
        long if length > original_length else short,
        dtype=torch.float64,
        device=frequencies.device,
    )
    return Schedule(frequencies / divisors, a)


def llama3(
    dim: int,
    base: float,
    *,
    factor: float,
    original_length: int,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Schedule:
    """Llama 3.1's schedule: NTK-by-parts with a narrow ramp, and no attention factor.

    Equation: `ntk_by_parts` with α = low_freq_factor and β = high_freq_factor
        (llama3, released code)
    Shapes: → (d/2,)

    Args:
        dim, base, factor, original_length: as in `ntk_by_parts`. Llama 3.1:
            θ = 500,000, s = 8, L₀ = 8192.
        low_freq_factor: full turns within L₀ up to which a pair is interpolated.
        high_freq_factor: full turns from which on it is left alone. Llama 4 Scout has 1
            for both: a step.

    Raises:
        TypeError, ValueError: `high_freq_factor` is below `low_freq_factor`; then as
            `ntk_by_parts`.

    Source: llama3
    Checked: golden; parity
    Chapter: 14
    """
    low = _checks.positive("low_freq_factor", low_freq_factor)
    high = _checks.positive("high_freq_factor", high_freq_factor)
    if high < low:
        raise ValueError(
            f"high_freq_factor must be at least low_freq_factor = {low}, got {high}"
        )
    return ntk_by_parts(
        dim, base, factor=factor, original_length=original_length, alpha=low, beta=high
    )


def proportional(
    dim: int, base: float, *, fraction: float, factor: float = 1.0
) -> Schedule:
    """p-RoPE: only the fastest pairs are rotated; the slow ones carry no position.

    Equation: ω′_i = ω_i / s for i < ⌊p d/2⌋, else 0
        (barbero2025; s as in Gemma 4's configurations)
    Shapes: → (d/2,)

    Not partial rotary, which spreads all frequencies over fewer channels: with d = 128
    and p = ¼ the first four are 1, 0.866, 0.750, 0.649 here and 1, 0.562, 0.316, 0.178
    there.

    Args:
        dim: channels d of a head, even.
        base: θ of the checkpoint.
        fraction: p, above 0 and at most 1, with at least one pair left.
        factor: s, at least 1.

    Raises:
        TypeError, ValueError: `fraction` leaves no pair or is above 1, `factor` is
            below 1.

    Source: barbero2025
    Checked: golden; parity
    Chapter: 11
    """
    frequencies = inverse_frequencies(dim, base)
    _checks.positive("fraction", fraction)
    rotated = int(fraction * dim // 2)
    if not (fraction <= 1 and rotated):
        raise ValueError(
            f"fraction must be at most 1 and leave at least one of {dim // 2} pairs, "
            f"got {fraction}"
        )
    _check_factor(factor)
    index = torch.arange(dim // 2, device=frequencies.device)
    return Schedule(torch.where(index < rotated, frequencies / factor, 0.0))


def clipped(schedule: Schedule, *, count: int) -> Schedule:
    """Clipped RoPE (its authors' CoPE): the slowest pairs fade out along half a cosine.

    Equation: ω′_i = ω_i · ½ (1 + cos(π (i − d/2 + c)/(c − 1))) for the last c pairs:
        by 1 for the first of them, by 0 for the last      (li2026)
    Shapes: (d/2,) → (d/2,)

    This is the released code; the paper's text is not available to us.

    Args:
        schedule: any schedule, or `Schedule(inverse_frequencies(d, base))`.
        count: c, pairs that fade, at least 2. The released code has 20, for d = 128 and
            Llama 3's base.

    Raises:
        TypeError, ValueError: `count` is below 2 or above the number of pairs;
            `schedule` is not a `Schedule`.

    Source: li2026
    Checked: hrlics/CoPE@ed52ba5e2d80:modeling_cope.py:LlamaRotaryEmbedding.__init__
    Chapter: 22
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            "schedule must be a Schedule, as the functions of this module return; "
            f"got {schedule!r}"
        )
    frequencies, attention_factor = schedule
    pairs = frequencies.shape[0]
    _checks.whole_number("count", count, least=2)
    if count > pairs:
        raise ValueError(
            f"count must be at most the number of pairs, {pairs}; got {count}"
        )
    index = torch.arange(pairs, dtype=torch.float64, device=frequencies.device)
    step = (index - (pairs - count)).clamp(min=0)
    weight = (1 + (math.pi * step / (count - 1)).cos()) / 2
    return Schedule(frequencies * weight, attention_factor)


def _ramp(x: Tensor, start: float, end: float) -> Tensor:
    """0 up to `start`, 1 from `end` on, linear between; a step where end ≤ start."""
    if end <= start:
        return (x > end).to(x.dtype)
    return ((x - start) / (end - start)).clamp(0, 1)


def _index_ramp(
    frequencies: Tensor,
    base: float,
    original_length: int,
    fast: float,
    slow: float,
    truncate: bool,
) -> Tensor:
    """t of `yarn_released`: 0 for `fast` full turns within L₀, 1 for `slow` ones."""
    _checks.whole_number("original_length", original_length, least=1)
    pairs = frequencies.shape[0]
    low, high = (
        pairs * math.log(original_length / (2 * math.pi * turns)) / math.log(base)
        for turns in (fast, slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    index = torch.arange(pairs, dtype=torch.float64, device=frequencies.device)
    return _ramp(index, max(low, 0), min(high, 2 * pairs - 1))


def _check_factor(factor: float) -> None:
    """Whether a scale factor is at least 1: below 1 a context would shrink."""
    _checks.positive("factor", factor)
    if factor < 1:
        raise ValueError(
            "factor must be at least 1 (the new length over the trained length), "
            f"got {factor}"
        )


def _check_falling(base: float) -> None:
    if base <= 1:
        raise ValueError(
            f"base must be above 1, so that frequencies fall with the index; got {base}"
        )


def _check_not_negative(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, _checks.NUMBERS):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def _checked_factors(name: str, values: Sequence[float], pairs: int) -> list[float]:
    factors = _checks.sequence(name, values)
    if len(factors) != pairs:
        raise ValueError(
            f"{name} must hold one number for each of the {pairs} pairs, "
            f"got {len(factors)}"
        )
    for i, factor in enumerate(factors):
        _checks.positive(f"{name}[{i}]", factor)
    return factors
