"""Which schedule do measured frequencies follow? Fits, from the plainest on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from posenc_lib.doctor.measure import Array, rounded

# of log ω: float32 code is within a tenth of it, 16 bits are a hundred times off
CLOSE = 1e-5


@dataclass(frozen=True)
class Fit:
    """The names of the schedules that frequencies agree with, and their numbers."""

    names: tuple[str, ...]
    base: float | None = None
    factor: float = 1.0
    original_length: float | None = None
    fault: str = ""

    @property
    def name(self) -> str:
        return self.names[0]


def same(a: float, b: float, tolerance: float = 2e-5) -> bool:
    """Whether a is b, as far as float32 code lets one see."""
    return abs(a - b) <= tolerance * abs(b)


def round_number(value: float, digits: int = 2) -> bool:
    """Whether it has so few significant digits, as numbers in papers and configs do."""
    return value > 0 and same(value, float(f"{value:.{digits - 1}e}"), 5e-6)


def fit(frequencies: Array, width: int) -> Fit:
    """The schedule of frequencies (n,) ≥ 0, in an encoding `width` channels wide."""
    rotating = frequencies[frequencies > 0]
    if len(rotating) < len(frequencies):
        if frequencies[: len(rotating)].min() <= 0:
            return Fit(("free",))  # fast pairs are not rotated
        plain = fit(rotating, width)
        geometric = plain.name in ("none", "linear_interpolation") and not plain.fault
        return Fit(("proportional",), plain.base, plain.factor) if geometric else plain
    if len(rotating) == 1:
        return Fit(("none",), None)
    return (
        _geometric(rotating, width)
        or _sixteen_bits(rotating, width)
        or _by_parts(rotating, width)
        or Fit(("free",))
    )


def _line(logs: Array) -> tuple[float, float, float]:
    """Slope, intercept and largest misfit of a straight line."""
    index = np.arange(len(logs))
    slope, intercept = np.polyfit(index, logs, 1)
    return (
        float(slope),
        float(intercept),
        float(np.abs(slope * index + intercept - logs).max()),
    )


def _geometric(frequencies: Array, width: int) -> Fit | None:
    """θ^(−2i/d)/s."""
    slope, intercept, misfit = _line(np.log(frequencies))
    if misfit > CLOSE:
        return None
    base = math.exp(-slope * width / 2)
    if abs(intercept) < CLOSE:
        return Fit(("none", "ntk_aware", "dynamic_ntk"), base)
    return Fit(("linear_interpolation",), base, math.exp(-intercept))


def _sixteen_bits(frequencies: Array, width: int) -> Fit | None:
    """Frequencies that are all numbers of a 16-bit format, which no formula gives."""
    if len(frequencies) < 4:
        return None
    slope, _, misfit = _line(np.log(frequencies))
    for dtype in (torch.bfloat16, torch.float16):
        if (np.abs(rounded(frequencies, dtype) / frequencies - 1) < 2e-6).all():
            base = math.exp(-slope * width / 2) if misfit < 0.1 else None
            return Fit(("none",), base, fault=str(dtype).removeprefix("torch."))
    return None


def _by_parts(frequencies: Array, width: int) -> Fit | None:
    """Some pairs kept, others slowed by one factor, a ramp between them."""
    n = len(frequencies)
    if n < 4:
        return None
    logs, index = np.log(frequencies), np.arange(n)
    head, tail = logs[1] - logs[0], logs[-1] - logs[-2]
    raised = _ntk_head(logs, head, tail, width)
    if raised is not None:
        return raised
    for slope in (tail, head):
        if slope > -1e-6:
            continue
        ratio = np.exp(logs - index * slope)
        if (
            (np.diff(ratio) >= -1e-5).all()
            and abs(ratio[-1] - 1) < 1e-3
            and ratio[0] < 1 - 1e-3
        ):
            return Fit(
                ("ntk_by_parts",),
                math.exp(-slope * width / 2),
                1 / float(ratio[0]),
                fault="inverted",
            )
        flat = same(ratio[-1], ratio[-2], 1e-4)
        if (
            abs(ratio[0] - 1) < 1e-4
            and (np.diff(ratio) <= 1e-5).all()
            and ratio[-1] < 1 - 1e-4
            and flat
        ):
            return _ramp(_sharpened(logs, slope, float(ratio[-1])), frequencies, width)
    return None


def _sharpened(logs: Array, slope: float, last: float) -> float:
    """The slope from all pairs that are kept or fully slowed, not from two alone."""
    index = np.arange(len(logs))
    ratio = np.exp(logs - index * slope)
    kept, slowed = np.abs(ratio - 1) < 1e-4, np.abs(ratio / last - 1) < 1e-4
    runs = [group for group in (kept, slowed) if group.sum() > 1]
    longest = max(runs, key=lambda group: int(group.sum()))
    return float(np.polyfit(index[longest], logs[longest], 1)[0])


def _ramp(slope: float, frequencies: Array, width: int) -> Fit:
    """The ramp: linear in frequency (Llama 3, YaRN's paper) or index (YaRN's code)."""
    index = np.arange(len(frequencies))
    plain = np.exp(index * slope)
    ratio = frequencies / plain
    factor = 1 / float(ratio[-1])
    kept = (ratio - 1 / factor) / (1 - 1 / factor)
    inside = (kept > 1e-3) & (kept < 1 - 1e-3)
    base = math.exp(-slope * width / 2)
    names, length = [], None
    if inside.sum() < 2:
        # the ratio of the ramp's two ends: most pairs between them must be on it
        spans = {"yarn": 32, "llama3": 4}
        near = [
            name
            for name, span in spans.items()
            if math.log(span) / -slope < inside.sum() + 2
        ]
        return Fit(("ntk_by_parts", *near, "yarn_released"), base, factor)
    for coordinate, kind in ((index.astype(float), "index"), (plain, "frequency")):
        a, b = np.polyfit(coordinate[inside], kept[inside], 1)
        if np.abs(np.clip(a * coordinate + b, 0, 1) - kept).max() > 1e-3:
            continue
        ends = (-b / a, (1 - b) / a)  # where nothing is kept, where all is
        if kind == "index":
            names.append("yarn_released")
        else:
            beta = ends[1] / ends[0] if ends[0] > 0 else math.inf
            known = {4.0: "llama3", 32.0: "yarn"}
            names += [name for span, name in known.items() if same(beta, span, 0.01)]
            if names[-1:] in (["llama3"], ["yarn"]):
                length = float(2 * math.pi / ends[0])  # where α is 1 turn
            names.append("ntk_by_parts")
    # two points fit any ramp; a ratio of 4 is not a coincidence
    exact = inside.sum() == 2 and "llama3" in names
    order = sorted(names, key=lambda name: name != "llama3") if exact else names
    return Fit(tuple(order), base, factor, length) if order else Fit(("free",))


def _ntk_head(logs: Array, head: float, tail: float, width: int) -> Fit | None:
    """By-parts on top of a change of base: fast pairs follow an NTK base."""
    n = len(logs)
    steady = same(logs[2] - logs[1], head, 1e-4) and same(
        logs[-2] - logs[-3], tail, 1e-4
    )
    factor = math.exp((n - 1) * tail - logs[-1])
    raised = tail - 2 / (width - 2) * math.log(max(factor, 1e-9)) if width > 2 else tail
    if (
        steady
        and abs(logs[0]) < CLOSE
        and factor > 1.01
        and same(head, raised, 1e-4)
        and not same(head, tail, 1e-3)
    ):
        return Fit(
            ("ntk_by_parts",), math.exp(-tail * width / 2), factor, fault="ntk head"
        )
    return None


def unaliased(frequencies: Array) -> Array:
    """Undo aliasing of frequencies above π where slow pairs form a geometric series."""
    n = len(frequencies)
    if n < 4 or frequencies[n // 2 :].min() <= 0:
        return frequencies
    slope, intercept, misfit = _line(np.log(frequencies[n // 2 :]))
    true = np.exp(slope * (np.arange(n) - n // 2) + intercept)
    turns = np.round((true - frequencies) / (2 * math.pi))
    agree = np.abs(true - frequencies - 2 * math.pi * turns).max() < 1e-4 * true.max()
    if misfit < CLOSE and agree:
        return np.asarray(frequencies + 2 * math.pi * turns)
    return frequencies
