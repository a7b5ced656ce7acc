"""The same positions in other calls and dtypes, far from 0, per row, and once more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from posenc_lib.doctor.frequency_checks import IGNORED
from posenc_lib.doctor.measure import (
    Array,
    CallError,
    Model,
    Rotary,
    apparent_positions,
    displacement,
    measured_frequencies,
    rounded,
)
from posenc_lib.doctor.report import MISPLACED, Report, listed, number
from posenc_lib.doctor.schedules import Fit, fit, same

NEAR = 32  # consecutive positions from 0
FAR = (500, 1000, 4093, 20011, 100003)
RUN = 16  # consecutive positions at each far start
LOW = (torch.bfloat16, torch.float16)


def check_calls(report: Report, rotary: Rotary, model: Model, near: Array) -> None:
    """The same positions in other calls: shifted, alone, in another order."""
    if displacement(model.first, model.frequencies, 1e-3) is None:
        return
    if np.abs(rotary.matrices((9, 10))[0] - rotary.matrices((9, 31))[0]).max() > 1e-4:
        seen = (
            "Position 9 is rotated differently in a call with position 31 than in one "
            "with position 10."
        )
        cause = (
            "Positions are divided by the longest one, counted from it, or sorted. "
            "Each token has its own position."
        )
        report.add_finding("length-dependent", seen, cause, "argument")
    elif not _shifted(report, rotary, model, near):
        _others(report, rotary, model, near)


def _shifted(report: Report, rotary: Rotary, model: Model, near: Array) -> bool:
    """Whether positions from 7 on are rotated as others, all by one shift."""
    shift = 7
    shifted = rotary.matrices(range(shift, NEAR + shift))
    if np.abs(shifted[:-shift] - near[shift:]).max() < 1e-4:
        return False
    delta = _common(model.difference(shifted, range(shift, NEAR + shift)), model)
    if delta is None:
        return False
    shorter = rotary.matrices(range(shift, NEAR + shift - 1))
    off = np.abs(shorter[: NEAR - 2 * shift] - near[shift : NEAR - shift]).max()
    if off < 1e-4:
        seen = (
            f"A second call of as many tokens, at positions {shift} …, "
            "returned the angles of the first."
        )
        report.add_finding(
            "cache-key",
            seen,
            "A cached table is looked up by length and not by position.",
            "state",
        )
        return True
    unread = round(delta) == -shift
    report.add_finding(
        "offset-ignored" if unread else "cache-offset",
        f"Positions {shift} … {NEAR + shift - 1} are rotated as "
        f"{number(shift + delta)} …"
        + (": the positions passed in are not used." if unread else "."),
        "The function takes 0 … T−1 from the shape of x. "
        "With a cache, every new token is then at 0."
        if unread
        else "An offset is added to positions that have it already.",
        "argument",
    )
    return True


def _others(report: Report, rotary: Rotary, model: Model, near: Array) -> None:
    """Few tokens, and positions that do not rise."""
    for positions in ((9,), (23,), (9, 10, 11), (12, 3, 4, 9, 0, 0, 5)):
        names, count = listed(positions), len(positions)
        try:
            measured = rotary.matrices(positions)
        except CallError as refusal:
            report.notes.append(f"Positions {names} are refused: {refusal}.")
            continue
        if np.abs(measured - near[list(positions)]).max() < 1e-4:
            continue
        shifts = [
            displacement(row, model.frequencies, 1e-2)
            for row in model.difference(measured, positions)
        ]
        if None in shifts:
            continue  # frequencies that depend on the length: check_far reports them
        read = [
            round(p + float(delta or 0), 3)
            for p, delta in zip(positions, shifts, strict=True)
        ]
        if positions[0] == 12:
            text = f"Positions {names} are rotated as {listed(read)}."
            cause = _order(positions, read)
            report.add_finding("order-ignored", text, cause, "argument")
        else:
            cause = (
                "The offset counts the token about to be processed, "
                "or is advanced twice by the prompt: "
                "with n tokens cached, the next one is at position n."
            )
            text = (
                f"In a call of {count} token{'s' * (count > 1)}, {names} is rotated as "
            )
            report.add_finding(
                "cache-offset", f"{text}{listed(read)}.", cause, "argument"
            )


def _order(positions: Sequence[int], read: list[float]) -> str:
    """What the function makes of positions in any order."""
    if read == sorted(positions):
        return "Positions are sorted. Padding and packing need their order kept."
    first = next(
        (
            word
            for word, p in (("first", positions[0]), ("smallest", min(positions)))
            if read[0] == p
        ),
        None,
    )
    if first and np.ptp(np.array(read) - np.arange(len(read))) < 1e-2:
        return (
            f"Only the {first} position is read, and the others are counted from it. "
            "Padding and packing need each."
        )
    return (
        "A token's position depends on the others of its call. "
        "Padding and packing need each position as it is passed in."
    )


def _common(difference: Array, model: Model) -> float | None:
    """One shift for all tokens."""
    shifts = [displacement(row, model.frequencies, 1e-2) for row in difference]
    known = [delta for delta in shifts if delta is not None]
    return known[0] if len(known) == len(shifts) and np.ptp(known) < 1e-2 else None


def check_far(
    report: Report, rotary: Rotary, model: Model, fitted: Fit, intended: dict[str, Any]
) -> float:
    """Angles far out against those near 0; returns the position where they change."""
    noise, seen = 0.0, NEAR
    for start in FAR:
        positions = np.arange(start, start + RUN)
        try:
            matrices = rotary.matrices(positions.tolist())
        except CallError as refusal:
            report.notes.append(f"Positions from {start:,} on are refused: {refusal}.")
            return float(start)
        if _broken(report, model, matrices, positions):
            return float(seen)
        difference = model.difference(matrices, positions)
        if np.abs(difference).max() < max(2e-3, 2e-6 * start):
            step = (difference / positions[:, None]).mean(0)
            model.frequencies = model.frequencies + step
            noise, seen = (
                float(np.abs(model.difference(matrices, positions)).max()),
                start,
            )
            continue
        return _explain_far(
            report, rotary, model, matrices, positions, fitted, intended, seen
        )
    angles = (
        "float64" if noise < 2e-6 else f"float32, off by {noise:.1g} rad at {seen:,}"
    )
    dtype = str(rotary.dtype).removeprefix("torch.")
    report.facts["angles"] = f"{angles} (x in {dtype})"
    if intended.get("schedule") == "longrope" and fitted.name == "none":
        report.add_finding(
            "schedule-ignored",
            f"No scaling is applied, up to position {seen:,}.",
            IGNORED,
            "longrope",
        )
    return math.inf


def _broken(report: Report, model: Model, matrices: Array, positions: Array) -> bool:
    """Whether far outputs are not rotations, or not of the length they have near 0."""
    bad = np.flatnonzero(~np.isfinite(matrices).all((1, 2)))
    if len(bad):
        overflow = "float16 ends at 65,504: positions or angles overflow."
        float16 = positions[bad[0]] > 65_504
        cause = (
            overflow
            if float16
            else "A table ends there and the rest is uninitialised, or angles overflow."
        )
        seen = f"At position {positions[bad[0]]:,} outputs are not finite."
        report.add_finding(
            *(
                ("low-precision", seen, cause, "bfloat16")
                if float16
                else ("not-finite", seen, cause, "state")
            )
        )
        return True
    first, second = model.phasors(matrices)
    lengths = np.abs(first)
    uneven = (
        (np.abs(first - second).max(1) > 1e-3)
        | (np.ptp(lengths, axis=1) > 1e-3)
        | (lengths.min(1) < 1e-6)
    )
    bad = np.flatnonzero(uneven)
    if len(bad):
        row = lengths[bad[0]]
        report.add_finding(
            "far-norm",
            f"At position {positions[bad[0]]:,} the outputs are not a rotation: "
            f"lengths are multiplied by {listed(sorted({row.min(), row.max()}))}, "
            f"and near 0 by {number(model.factor)}.",
            "A table ends there, and what follows was not filled in.",
            "state",
        )
    return len(bad) > 0


def _readings(model: Model, positions: Array) -> dict[str, Array]:
    """The angles after rounding to 16 bits, wherever code might do it."""
    readings = {}
    start = round(displacement(model.first, model.frequencies, 1e-3) or 0)
    for dtype in LOW:
        name = str(dtype).removeprefix("torch.")
        p = rounded(positions + start, dtype)[:, None] - start
        w = rounded(model.frequencies, dtype)
        exact_p = np.asarray(positions, dtype=float)[:, None]
        readings[f"positions rounded to {name}"] = p * model.frequencies
        readings[f"frequencies rounded to {name}"] = exact_p * w
        counted = rounded(positions[0], dtype) + positions - positions[0]
        readings[
            f"the first position rounded to {name}, the others counted from it"
        ] = rounded(counted, dtype)[:, None] * model.frequencies
        readings[f"positions and frequencies rounded to {name}"] = p * w
        readings[f"angles rounded to {name}"] = rounded(
            exact_p * model.frequencies, dtype
        )
        readings[f"positions, frequencies and angles rounded to {name}"] = rounded(
            p * w, dtype
        )
    return readings


def _misread(
    report: Report,
    model: Model,
    measured: Array,
    positions: Array,
    where: str,
    tolerance: float,
) -> bool:
    """Whether 16-bit rounding explains the angles of `measured` (T, n)."""
    with np.errstate(invalid="ignore"):
        errors = {
            name: float(np.abs(measured - np.exp(1j * (angles + model.first))).max())
            for name, angles in _readings(model, positions).items()
            if np.isfinite(angles).all()
        }
    name = min(errors, key=lambda key: errors[key])
    if errors[name] > tolerance:
        return False
    off = float(np.abs(measured - np.exp(1j * model.angles(positions))).max())
    report.add_finding(
        "low-precision",
        f"{where}, positions {positions[0]:,} … {positions[-1]:,} are rotated as if "
        f"with {name}: cosines and sines are off by up to {number(round(off, 3))}.",
        "Positions or angles are made in the dtype of the model or the query. "
        "bfloat16 has every integer only up to 256, float16 up to 2048. "
        "Make them in float32 or float64 and cast cosines and sines last.",
        "bfloat16",
    )
    return True


def _explain_far(
    report: Report,
    rotary: Rotary,
    model: Model,
    matrices: Array,
    positions: Array,
    fitted: Fit,
    intended: dict[str, Any],
    good: int,
) -> float:
    """Angles that are right near 0 and wrong far out; returns where they change."""
    phasors = model.phasors(matrices)[0] / model.factor
    if _misread(report, model, phasors, positions, "Whatever the dtype of x", 0.02):
        return math.inf
    read_as = apparent_positions(
        model.difference(matrices, positions), positions, model.frequencies
    )
    if report.codes & MISPLACED:
        return float(good)  # which these angles follow from
    if read_as is not None:
        wrong = np.flatnonzero(np.abs(read_as - positions) > 0.5)
        first = wrong[:3]
        text = (
            f"Positions {listed(positions[first])}, "
            f"… are rotated as {listed(read_as[first].round(2) + 0.0)}, …"
        )
        report.add_finding("far-positions", text, misplaced(read_as[wrong]), "argument")
        return float(good)
    begin = _boundary(rotary, model, good, int(positions[-1]))
    beyond, attributes = _far_frequencies(model, matrices, positions), Fit(("free",))
    if beyond is not None:
        attributes = fit(beyond, 2 * len(beyond))
    farther_base = None
    try:
        far = np.arange(FAR[-1], FAR[-1] + RUN) if positions[0] < 50_000 else positions
        farther = _far_frequencies(model, rotary.matrices(far.tolist()), far)
        if farther is not None:
            farther_base = fit(farther, 2 * len(farther)).base
    except CallError:
        pass
    report.facts["angles"] = f"different from position {begin:,} on"
    head = f"From position {begin:,} on the frequencies are different"
    geometric = (
        attributes.name == "none"
        and attributes.base is not None
        and fitted.base is not None
    )
    grows = farther_base is not None and not same(
        farther_base, attributes.base or 0, 1e-3
    )
    if geometric and grows:
        report.facts["schedule"] = "dynamic_ntk"
        report.notes.append(
            f"{head}: the base grows with the length, {number(attributes.base or 0)} "
            f"at {positions[-1] + 1:,}. That is dynamic NTK. Keys cached before "
            "the change were rotated by other angles; cache them unrotated."
        )
        if intended.get("schedule") not in (None, "dynamic_ntk"):
            report.add_finding(
                "schedule",
                f"{head}, as in dynamic NTK.",
                "A rope_type is read as another one.",
                "longrope",
            )
    elif geometric and attributes.fault == "":
        report.add_finding(
            "base-changes",
            f"{head}: the base is {number(attributes.base or 0)}, "
            f"and {number(fitted.base or 0)} before.",
            "A long-context base or table is used beyond the trained length only, "
            "or a fallback drops the base there. Keys cached before no longer match.",
            "dynamic_ntk",
        )
    else:
        report.notes.append(
            f"{head} ({attributes.name}), as in LongRoPE, which has one "
            "list of factors up to the trained length and another beyond. "
            "Keys cached before the change must be rotated again."
        )
        if intended.get("schedule") not in (None, "longrope", "dynamic_ntk"):
            report.add_finding(
                "schedule",
                f"{head}.",
                "Another table is used for long inputs.",
                "longrope",
            )
    return float(begin)


def misplaced(read_as: Array) -> str:
    """Why far positions are taken for others."""
    if np.abs(read_as - read_as.round()).max() > 0.02:
        return "Positions are scaled beyond some length."
    if len(read_as) > 1 and np.ptp(read_as) < 0.5:
        end = (
            "clamped to a table's length"
            if read_as[0] > 0.5
            else "taken for 0, or not rotated, beyond a table's end"
        )
        return f"Positions are {end}."
    return (
        "Positions wrap around at some length, or another part of a table begins there."
    )


def _boundary(rotary: Rotary, model: Model, good: int, bad: int) -> int:
    """The first position whose lone token is rotated by other angles, by bisection."""
    good += RUN - 1 if good > NEAR else -1
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            difference = model.difference(rotary.matrices([middle]), [middle])
            changed = np.abs(difference).max() > max(1e-3, 1e-6 * middle)
        except CallError:
            changed = True
        good, bad = (good, middle) if changed else (middle, bad)
    return bad


def _far_frequencies(model: Model, matrices: Array, positions: Array) -> Array | None:
    """Frequencies from positions far out, if their angles are still ω p + φ."""
    phasors = model.phasors(matrices)[0]
    rough, _ = measured_frequencies(phasors)
    rough = rough * np.sign(model.frequencies[-1])
    expected = np.sign(model.frequencies[-1]) * (np.angle(phasors[0]) - model.first)
    turns = np.round((rough * positions[0] - expected) / (2 * math.pi))
    frequencies = (expected + 2 * math.pi * turns) / positions[0]
    return frequencies if (frequencies > 0).all() else None


def check_low_precision(
    report: Report, rotary: Rotary, model: Model, changed: float
) -> None:
    """x in 16 bits: its angles must be those of x in float64, up to final rounding."""
    if "low-precision" in report.codes:
        return
    spans = [
        np.arange(start, start + 4)
        for start in (257, 1003, 4093)
        if start + 4 < changed
    ]
    # what other dtypes do as well is not this dtype's fault
    spans = [span for span in spans if _as_near(rotary, model, span)]
    for dtype in LOW:
        name = str(dtype).removeprefix("torch.")
        for positions in spans:
            try:
                matrices = rotary.matrices(positions.tolist(), dtype)
            except CallError as refusal:
                report.notes.append(f"x in {name} is refused: {refusal}.")
                break
            phasors = model.phasors(matrices)[0] / model.factor
            off = float(np.abs(phasors - np.exp(1j * model.angles(positions))).max())
            if off < 0.03 or _misread(
                report, model, phasors, positions, f"With x in {name}", 0.03
            ):
                continue
            seen = (
                f"With x in {name}, cosines and sines at position {positions[0]:,} "
                f"are off by up to {number(round(off, 3))}."
            )
            report.add_finding(
                "low-precision", seen, "Angles are made in the dtype of x.", "bfloat16"
            )


def _as_near(rotary: Rotary, model: Model, positions: Array) -> bool:
    try:
        difference = model.difference(rotary.matrices(positions.tolist()), positions)
    except CallError:
        return False
    return bool(np.abs(difference).max() < 0.01)


def check_batch(report: Report, rotary: Rotary, near: Array) -> None:
    """Positions of shape (B, T): each row of the batch by its own."""
    report.facts["positions per row"] = None
    if rotary.dims == 2:
        report.facts["positions per row"] = "no"
        return
    positions = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    heads_first = rotary.dims == 4 and rotary.token_axis != 1
    shape = (2, 3, 5) if heads_first else (2, 5) if rotary.dims == 3 else (2, 5, 3)
    x = torch.randn(
        *shape,
        rotary.dim,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    try:
        y = rotary.apply(x.to(rotary.dtype), positions).double().numpy()
    except CallError:
        report.facts["positions per row"] = "no"
        return
    tokens = x.numpy()
    if heads_first:
        y, tokens = np.moveaxis(y, 2, 1), np.moveaxis(tokens, 2, 1)  # (B, T, H, d)

    def rotated(rows: Array) -> Array:
        return np.asarray(np.einsum("btij,bt...j->bt...i", near[rows], tokens))

    rows_of_batch = positions.numpy()
    if np.abs(y - rotated(rows_of_batch)).max() < 1e-4:
        report.facts["positions per row"] = "yes"
        return
    shared = [
        rows
        for rows in (rows_of_batch[[0, 0]], rows_of_batch[[1, 1]])
        if np.abs(y - rotated(rows)).max() < 1e-4
    ]
    if not shared:
        report.facts["positions per row"] = "no (accepted, but used in another way)"
        return
    report.facts["positions per row"] = "no"
    report.add_finding(
        "padding",
        "Positions of shape (B, T) are accepted, "
        f"and every row is rotated by {shared[0][0].tolist()}.",
        "One vector of positions serves the whole batch. "
        "In a left-padded batch every short row is then wrong.",
        "argument",
    )


def check_memory(report: Report, rotary: Rotary, near: Array) -> None:
    """The first call again, after all the others."""
    off = float(np.abs(rotary.matrices(range(NEAR)) - near).max())
    if off > 1e-6:
        report.add_finding(
            "remembers",
            "The first call, repeated after others, gives another result: "
            f"off by {number(round(off, 6))}.",
            "A table made for a long input is cached and never restored, "
            "as in early dynamic NTK. The result must depend on the arguments alone.",
            "state",
        )
