"""Diagnose a function positions → table of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc_lib.doctor.calls import misplaced
from posenc_lib.doctor.frequency_checks import check_frequencies, rising
from posenc_lib.doctor.measure import (
    Array,
    CallError,
    apparent_positions,
    call,
    displacement,
    measured_frequencies,
    rounded,
    wrap,
)
from posenc_lib.doctor.report import MISPLACED, Report, listed, number
from posenc_lib.doctor.schedules import round_number, unaliased

NEAR = 64
FAR = (257, 1003, 4093, 20011, 100003)


def diagnose_table(
    report: Report, fn: Callable[..., Any], dim: int, intended: dict[str, Any]
) -> None:
    """Find the pairs of sines and cosines, then judge their frequencies."""
    near = _table(fn, range(NEAR), dim)
    if _unusable(report, near):
        return
    length = float(np.sqrt((near**2).sum(1).mean() / (dim // 2)))
    if abs(length - 1) > 1e-4 and _layout(near / length) is not None:
        report.facts["length of a pair"] = length
        report.notes.append(
            f"All rows are multiplied by {number(length)}; "
            "a sine and its cosine have length 1."
        )
        unscaled = fn
        fn = lambda positions: unscaled(positions) / length  # noqa: E731
        near = near / length
    pairing = _layout(near)
    if pairing is None:
        lengths = np.hypot(near[:, : dim // 2], near[:, dim // 2 : 2 * (dim // 2)])
        report.add_finding(
            "tables-mixed",
            "No layout makes channels pairs of a sine and a cosine of one angle: "
            f"sin² + cos² is up to {number(float((lengths**2).max()))} in halves.",
            "Sines and cosines are made from frequencies in different order, "
            "or from an index that skips. Or it is not a sinusoid but a learned table.",
            "table",
        )
        return
    layout, first, sines, cosines = pairing
    report.facts["layout"] = layout
    report.facts["first in a pair"] = first
    # one pair has both layouts
    if intended.get("layout") not in (None, layout) and dim > 3:
        report.add_finding(
            "layout",
            f"The layout is {layout}, not {intended['layout']}.",
            "The paper interleaves sines and cosines; "
            "much code has all of one before all of the other.",
            "table",
        )
    count = len(sines)
    phasors = near[:, cosines[:count]] + 1j * near[:, sines[:count]]
    frequencies, phase = measured_frequencies(phasors)
    frequencies = unaliased(frequencies)
    falling = int((frequencies < -1e-9).sum())
    if falling:
        if not rising(report, frequencies, "clocks"):
            seen = (
                f"In {falling} of {count} pairs the sine falls at first: "
                "it has a minus."
            )
            report.add_finding(
                "sine-sign",
                seen,
                "A sign is flipped, or positions are negative.",
                "table",
            )
        return
    _shift(report, phase, frequencies, intended)
    width = _width(frequencies, dim) if dim % 2 == 0 or not near[:, -1].any() else dim
    if width != dim:
        report.facts["form"] = "tensor2tensor (the last frequency is 1/base)"
        report.facts["base"] = float(frequencies[0] / frequencies[-1])
        if (
            intended.get("base") is not None
            and abs(report.facts["base"] / intended["base"] - 1) > 2e-5
        ):
            check_frequencies(
                report, frequencies, 2 * count, dim, intended, rotary=False
            )
    else:
        check_frequencies(report, frequencies, dim, dim, intended, rotary=False)
    _calls(report, fn, dim, near, frequencies)
    _far(report, fn, dim, cosines[:count], sines[:count], frequencies, phase)
    _odd(report, fn, dim, near, intended)


def _unusable(report: Report, near: Array) -> bool:
    """Whether no frequency can be read from these rows."""
    if not np.isfinite(near).all():
        report.add_finding(
            "not-finite",
            "Some rows are not finite.",
            "Uninitialised or overflowing tables.",
            "precision",
        )
        return True
    for dtype in (torch.bfloat16, torch.float16):
        if (near == rounded(near, dtype)).all() and not np.isin(near, (-1, 0, 1)).all():
            seen = (
                f"All entries are {str(dtype)[6:]} numbers, "
                "from which no frequency can be read."
            )
            report.add_finding(
                "low-precision",
                seen,
                "The table is made in 16 bits. Cast it where it is used.",
                "sixteen",
            )
            return True
    empty = np.flatnonzero(~near.any(1))
    if len(empty) and _layout(near[near.any(1)]) is not None:
        report.add_finding(
            "zero-row",
            f"The row of position {listed(empty)} is zero; "
            "in a sinusoid every pair has length 1.",
            "It is the row of padding_idx, which fairseq's tables keep free: "
            "the first token's row is padding_idx + 1. "
            "Or the table is longer than what was filled in.",
            "argument",
        )
        return True
    return False


def _table(fn: Callable[..., Any], positions: Any, dim: int) -> Array:
    positions = torch.as_tensor(positions)
    result = call(fn, positions)
    while result.dim() > 2 and result.shape[0] == 1:
        result = result[0]
    count = len(positions)
    if result.shape != (count, dim):
        raise CallError(
            f"{count} positions gave shape {tuple(result.shape)}, not ({count}, {dim})"
        )
    return result.double().numpy()


def _layout(near: Array) -> tuple[str, str, Array, Array] | None:
    """The layout whose pairs have length 1, the first member's name, sines, cosines."""
    dim = near.shape[1]
    even, half = np.arange(dim // 2), dim // 2
    layouts = {
        "interleaved": (2 * even, 2 * even + 1),
        "concatenated": (even, dim - half + even),
    }
    if dim % 2:
        layouts["concatenated, odd channel last"] = (even, half + even)
    for layout, (first, second) in layouts.items():
        if np.abs(np.hypot(near[:, first], near[:, second]) - 1).max() > 1e-4:
            continue
        if np.abs(near[0, first]).max() < 1e-6 < near[0, second].min():
            return layout.partition(",")[0], "sine", first, second  # sin 0 and cos 0
        frequencies, _ = measured_frequencies(near[:, second] + 1j * near[:, first])
        if np.median(frequencies[: max(1, half // 2)]) > 0:
            return layout.partition(",")[0], "sine", first, second
        return layout.partition(",")[0], "cosine", second, first
    return None


def _width(frequencies: Array, dim: int) -> int:
    """The d of the exponent 2i/d: the table's, or two less if 1/ω's last is round."""
    if len(frequencies) < 3 or frequencies.min() <= 0:
        return dim
    ratio = float(frequencies[0] / frequencies[-1])
    # Where the ends are not those of the series between them, one of them is astray.
    step = float(np.median(-np.diff(np.log(frequencies))))
    if abs(step * (len(frequencies) - 1) - math.log(ratio)) > 1e-4 * math.log(ratio):
        return dim
    shorter = 2 * (len(frequencies) - 1)
    plain = ratio ** (dim / shorter)
    return shorter if round_number(ratio) and not round_number(plain) else dim


def _shift(
    report: Report, phase: Array, frequencies: Array, intended: dict[str, Any]
) -> None:
    delta = displacement(phase, frequencies, 1e-3)
    if delta is not None and abs(delta - round(delta)) < 1e-3:
        delta = float(round(delta))
    report.facts["first position"] = delta
    expected = float(intended.get("offset") or 0)
    if delta is not None and abs(delta - expected) <= 1e-3:
        return
    what = "has a phase" if delta is None else f"is that of position {number(delta)}"
    if np.abs(np.abs(phase) - math.pi).max() < 1e-6:
        cause = "Cosines have a minus."
    elif np.abs(np.abs(phase) - math.pi / 2).max() < 1e-6:
        cause = "Sines and cosines are exchanged, or one of them has a minus."
    else:
        cause = (
            "Counting starts at 1, or rows are reserved for padding "
            "(fairseq begins at padding_idx + 1)."
        )
    seen = f"The row of position 0 {what}."
    report.add_finding("first-position", seen, cause, "argument")


def _calls(
    report: Report, fn: Callable[..., Any], dim: int, near: Array, frequencies: Array
) -> None:
    """A position's row must be the same, whatever other positions are in the call."""
    for positions in (range(7, 7 + NEAR), range(9, 10), [12, 3, 4, 9, 0, 0, 5]):
        known = [p for p in positions if p < NEAR]
        count, first = len(known), known[0]
        rows = _table(fn, positions, dim)[:count]
        if np.abs(rows - near[known]).max() > 1e-4:
            if np.abs(rows - near[:count]).max() < 1e-4:
                code, what = (
                    "offset-ignored",
                    ": those of 0, 1, …; the positions passed in are not used.",
                )
                cause = (
                    "Positions 0, 1, … are taken from a shape. "
                    "With a cache, every new token is then at position 0."
                )
            elif np.abs(rows - near[first : first + count]).max() < 1e-4:
                code, what = (
                    "order-ignored",
                    f": those of {first}, {first + 1}, {first + 2}, …",
                )
                cause = (
                    "Only the first position is read. Padding and packing need each."
                )
            elif np.abs(_table(fn, [*positions, 200], dim)[:count] - rows).max() > 1e-4:
                code, what = (
                    "length-dependent",
                    ", and others again with position 200 in the call.",
                )
                cause = (
                    "Positions are divided by the longest one. "
                    "A token's row must not depend on the others."
                )
            else:
                code, what, cause = (
                    "cache-offset",
                    ".",
                    "An offset is added to positions that have it already.",
                )
            report.add_finding(
                code,
                f"Positions {listed(known[:4])}, "
                f"… gave different rows than before{what}",
                cause,
                "argument",
            )
            break
    if np.abs(_table(fn, range(NEAR), dim) - near).max() > 1e-6:
        report.add_finding(
            "remembers",
            "The first call, repeated, gives another table.",
            "A table is cached.",
            "state",
        )


def _far(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    cosines: Array,
    sines: Array,
    frequencies: Array,
    phase: Array,
) -> None:
    """Positions that 16 bits can't tell apart."""
    for start in FAR:
        positions = np.arange(start, start + 4)
        try:
            rows = _table(fn, positions.tolist(), dim)
        except CallError as refusal:
            report.notes.append(f"Positions from {start:,} on are refused: {refusal}.")
            return
        angles = positions[:, None] * frequencies + phase
        phasors = rows[:, cosines] + 1j * rows[:, sines]
        off = float(np.abs(phasors - np.exp(1j * angles)).max())
        if off < 0.03:
            frequencies = frequencies + (
                wrap(np.angle(phasors) - angles) / positions[:, None]
            ).mean(0)
            continue
        read_as = apparent_positions(
            wrap(np.angle(phasors) - angles), positions, frequencies
        )
        for dtype in (torch.bfloat16, torch.float16):
            read = rounded(positions, dtype)[:, None] * frequencies + phase
            if (
                np.isfinite(read).all()
                and np.abs(phasors - np.exp(1j * read)).max() < 0.03
            ):
                seen = (
                    f"Positions from {start:,} on are rounded to {str(dtype)[6:]}: "
                    f"rows are off by {number(off)}."
                )
                break
        else:
            if report.codes & MISPLACED:
                return  # which these follow from
            if read_as is not None:
                text = (
                    f"The rows of positions {listed(positions)} are those "
                    f"of {listed(read_as.round(2))}."
                )
                wrong = read_as[np.abs(read_as - positions) > 0.5]
                report.add_finding("far-positions", text, misplaced(wrong), "argument")
                return
            seen = f"Rows from position {start:,} on are off by up to {number(off)}."
        cause = (
            "Positions or angles are made in the model's dtype. "
            "Make them in float64 and cast the table last."
        )
        report.add_finding("low-precision", seen, cause, "precision")
        return


def _odd(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    near: Array,
    intended: dict[str, Any],
) -> None:
    if dim % 2 and np.abs(near[:, -1]).max() < 1e-12:
        report.notes.append(
            "The width is odd and the last channel is 0, as in tensor2tensor."
        )
