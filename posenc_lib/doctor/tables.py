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
    call,
    displacement,
    places,
    rounded,
    speeds,
    wrap,
)
from posenc_lib.doctor.report import MISPLACED, Report, listed, number
from posenc_lib.doctor.schedules import round_number, unaliased

NEAR = 64
FAR = (257, 1003, 4093, 20011, 100003)


def diagnose_table(
    report: Report, fn: Callable[..., Any], dim: int, wanted: dict[str, Any]
) -> None:
    """Find the pairs of sines and cosines, then judge their frequencies as those of a rotation."""
    near = _table(fn, range(NEAR), dim)
    if _unusable(report, near):
        return
    length = float(np.sqrt((near**2).sum(1).mean() / (dim // 2)))
    if abs(length - 1) > 1e-4 and _layout(near / length) is not None:
        report.facts["length of a pair"] = length
        report.notes.append(
            f"All rows are multiplied by {number(length)}; a sine and its cosine have "
            "length 1."
        )
        unscaled = fn
        fn = lambda positions: unscaled(positions) / length  # noqa: E731
        near = near / length
    found = _layout(near)
    if found is None:
        lengths = np.hypot(near[:, : dim // 2], near[:, dim // 2 : 2 * (dim // 2)])
        report.add_finding(
            "tables-mixed",
            "No layout makes channels pairs of a sine and a cosine of one angle: sin² "
            "+ cos² is up to "
            f"{number(float((lengths**2).max()))} in halves.",
            "Sines and cosines are made from frequencies in different order, or from "
            "an index that skips. Or it is no "
            "sinusoid, but a learned table.",
            "table",
        )
        return
    layout, first, sines, cosines = found
    report.facts["layout"] = layout
    report.facts["first in a pair"] = first
    if (
        wanted.get("layout") not in (None, layout) and dim > 3
    ):  # one pair has both layouts
        report.add_finding(
            "layout",
            f"The layout is {layout}, not {wanted['layout']}.",
            "The paper interleaves sines and cosines; much code has all of one before "
            "all of the other.",
            "table",
        )
    count = len(sines)
    hands = near[:, cosines[:count]] + 1j * near[:, sines[:count]]
    frequencies, phase = speeds(hands)
    frequencies = unaliased(frequencies)
    falling = int((frequencies < -1e-9).sum())
    if falling:
        if not rising(report, frequencies, "clocks"):
            seen = f"In {falling} of {count} pairs the sine falls at first: it has a minus."
            report.add_finding(
                "sine-sign",
                seen,
                "A sign is turned round, or positions are negative.",
                "table",
            )
        return
    _shift(report, phase, frequencies, wanted)
    width = _width(frequencies, dim) if dim % 2 == 0 or not near[:, -1].any() else dim
    if width != dim:
        report.facts["form"] = "tensor2tensor (the last frequency is 1/base)"
        report.facts["base"] = float(frequencies[0] / frequencies[-1])
        if (
            wanted.get("base") is not None
            and abs(report.facts["base"] / wanted["base"] - 1) > 2e-5
        ):
            check_frequencies(report, frequencies, 2 * count, dim, wanted, rotary=False)
    else:
        check_frequencies(report, frequencies, dim, dim, wanted, rotary=False)
    _calls(report, fn, dim, near, frequencies)
    _far(report, fn, dim, cosines[:count], sines[:count], frequencies, phase)
    _odd(report, fn, dim, near, wanted)


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
            seen = f"All entries are {str(dtype)[6:]} numbers, from which no frequency can be read."
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
            f"The row of position {listed(empty)} is zero; in a sinusoid every pair "
            "has length 1.",
            "It is the row of padding_idx, which fairseq's tables keep free: the first "
            "token's row is padding_idx + 1. "
            "Or the table is longer than what was filled in.",
            "argument",
        )
        return True
    return False


def _table(fn: Callable[..., Any], positions: Any, dim: int) -> Array:
    at = torch.as_tensor(positions)
    result = call(fn, at)
    while result.dim() > 2 and result.shape[0] == 1:
        result = result[0]
    if result.shape != (len(at), dim):
        raise CallError(
            f"{len(at)} positions gave shape {tuple(result.shape)}, not ({len(at)}, "
            f"{dim})"
        )
    return result.double().numpy()


def _layout(near: Array) -> tuple[str, str, Array, Array] | None:
    """The layout in which the two channels of each pair are a hand of length 1, and which one is the sine."""
    dim = near.shape[1]
    even, half = np.arange(dim // 2), dim // 2
    ways = {
        "interleaved": (2 * even, 2 * even + 1),
        "concatenated": (even, dim - half + even),
    }
    if dim % 2:
        ways["concatenated, odd channel last"] = (even, half + even)
    for layout, (first, second) in ways.items():
        if np.abs(np.hypot(near[:, first], near[:, second]) - 1).max() > 1e-4:
            continue
        if np.abs(near[0, first]).max() < 1e-6 < near[0, second].min():
            return layout.partition(",")[0], "sine", first, second  # sin 0 and cos 0
        turn = float(
            np.median(
                speeds(near[:, second] + 1j * near[:, first])[0][: max(1, half // 2)]
            )
        )
        if turn > 0:
            return layout.partition(",")[0], "sine", first, second
        return layout.partition(",")[0], "cosine", second, first
    return None


def _width(frequencies: Array, dim: int) -> int:
    """The d of the exponent 2i/d: the table's, or two less where the last frequency is 1/θ with a round θ."""
    if len(frequencies) < 3 or frequencies.min() <= 0:
        return dim
    ratio = float(frequencies[0] / frequencies[-1])
    plain = ratio ** (dim / (2 * (len(frequencies) - 1)))
    return (
        2 * (len(frequencies) - 1)
        if round_number(ratio) and not round_number(plain)
        else dim
    )


def _shift(
    report: Report, phase: Array, frequencies: Array, wanted: dict[str, Any]
) -> None:
    delta = displacement(phase, frequencies, 1e-3)
    if delta is not None and abs(delta - round(delta)) < 1e-3:
        delta = float(round(delta))
    report.facts["first position"] = delta
    expected = float(wanted.get("offset") or 0)
    if delta is None or abs(delta - expected) > 1e-3:
        what = (
            "has a phase" if delta is None else f"is that of position {number(delta)}"
        )
        report.add_finding(
            "first-position",
            f"The row of position 0 {what}.",
            "Cosines have a minus."
            if np.abs(np.abs(phase) - math.pi).max() < 1e-6
            else "Sines and cosines are exchanged, or one of them has a minus."
            if np.abs(np.abs(phase) - math.pi / 2).max() < 1e-6
            else "Counting from 1, or rows reserved for padding (fairseq begins at padding_idx + 1).",
            "argument",
        )


def _calls(
    report: Report, fn: Callable[..., Any], dim: int, near: Array, frequencies: Array
) -> None:
    """The rows of given positions, whatever else is asked."""
    for given in (range(7, 7 + NEAR), range(9, 10), [12, 3, 4, 9, 0, 0, 5]):
        at = [p for p in given if p < NEAR]
        rows = _table(fn, given, dim)[: len(at)]
        if np.abs(rows - near[at]).max() > 1e-4:
            first = at[0]
            if np.abs(rows - near[: len(at)]).max() < 1e-4:
                code, what = (
                    "offset-ignored",
                    ": those of 0, 1, …; the positions given are not used.",
                )
                cause = "Rows are counted off a shape. With a cache, every new token is then at position 0."
            elif np.abs(rows - near[first : first + len(at)]).max() < 1e-4:
                code, what = (
                    "order-ignored",
                    f": those of {first}, {first + 1}, {first + 2}, …",
                )
                cause = (
                    "Only the first position is read. Padding and packing need each."
                )
            elif np.abs(_table(fn, [*given, 200], dim)[: len(at)] - rows).max() > 1e-4:
                code, what = (
                    "length-dependent",
                    ", and others again with position 200 in the call.",
                )
                cause = "Positions are divided by the longest one. A token's row must not depend on the others."
            else:
                code, what, cause = (
                    "cache-offset",
                    ".",
                    "An offset is added to positions that have it already.",
                )
            report.add_finding(
                code,
                f"Positions {listed(at[:4])}, … gave other rows than before{what}",
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
        hands = rows[:, cosines] + 1j * rows[:, sines]
        off = float(np.abs(hands - np.exp(1j * angles)).max())
        if off < 0.03:
            frequencies = frequencies + (
                wrap(np.angle(hands) - angles) / positions[:, None]
            ).mean(0)
            continue
        read_as = places(wrap(np.angle(hands) - angles), positions, frequencies)
        for dtype in (torch.bfloat16, torch.float16):
            read = rounded(positions, dtype)[:, None] * frequencies + phase
            if (
                np.isfinite(read).all()
                and np.abs(hands - np.exp(1j * read)).max() < 0.03
            ):
                seen = f"Positions from {start:,} on are rounded to {str(dtype)[6:]}: rows are off by {number(off)}."
                break
        else:
            if report.codes & MISPLACED:
                return  # which these follow from
            if read_as is not None:
                text = f"The rows of positions {listed(positions)} are those of {listed(read_as.round(2))}."
                wrong = read_as[np.abs(read_as - positions) > 0.5]
                report.add_finding("far-positions", text, misplaced(wrong), "argument")
                return
            seen = f"Rows from position {start:,} on are off by up to {number(off)}."
        cause = "Positions or angles are made in the model's dtype. Make them in float64 and cast the table last."
        report.add_finding("low-precision", seen, cause, "precision")
        return


def _odd(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    near: Array,
    wanted: dict[str, Any],
) -> None:
    if dim % 2 and np.abs(near[:, -1]).max() < 1e-12:
        report.notes.append(
            "The width is odd and the last channel is 0, as in tensor2tensor."
        )
