"""Diagnose a function (x, positions) → x′."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc_lib.doctor.calls import (
    LOW,
    NEAR,
    check_batch,
    check_calls,
    check_far,
    check_low_precision,
    check_memory,
)
from posenc_lib.doctor.frequency_checks import check_frequencies, rising
from posenc_lib.doctor.measure import (
    Array,
    CallError,
    Model,
    Rotary,
    displacement,
    measured_frequencies,
    other_axis,
    rounded,
    wrap,
)
from posenc_lib.doctor.report import Report, listed, number
from posenc_lib.doctor.schedules import Fit, same, unaliased


def diagnose_rotary(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    token_axis: int,
    intended: dict[str, Any],
) -> None:
    """Read conventions off near position 0; then try other calls and far positions."""
    if token_axis != 1 and other_axis(fn, dim):
        report.add_finding(
            "axis",
            "With x of shape (B, H, T, d), all tokens of a head are rotated alike, "
            "and the heads differently.",
            "The table is broadcast along axis 1: the function was written "
            "for (B, T, H, d). Transpose, or give token_axis=1 if that shape is meant.",
            "symbols",
        )
        token_axis = 1
    rotary = Rotary(fn, dim, token_axis)
    near = rotary.matrices(range(NEAR))
    if not _same_map(report, rotary, near):
        return
    for dtype in LOW:
        if (near == rounded(near, dtype)).all() and not np.isin(near, (-1, 0, 1)).all():
            name = str(dtype).removeprefix("torch.")
            seen = (
                f"All outputs are {name} numbers, "
                f"though x is in {str(rotary.dtype).removeprefix('torch.')}."
            )
            cause = (
                "x or the tables are cast inside. "
                "Compute in float32 and cast the result to the dtype of x."
            )
            report.add_finding("low-precision", seen, cause, "precision")
            return
    if not np.isfinite(near).all():
        report.add_finding(
            "not-finite",
            "Some outputs are not finite.",
            "Uninitialised or overflowing tables.",
            "precision",
        )
        return
    _check_linear(report, rotary, near)
    model = _pairs(report, near, intended)
    if model is None or not _check_rows(report, model, near, intended):
        return
    check_calls(report, rotary, model, near)
    fitted = _frequencies(report, model, near, intended)
    if report.codes & {"uneven", "low-precision"}:
        return
    changed = check_far(report, rotary, model, fitted, intended)
    check_low_precision(report, rotary, model, changed)
    check_batch(report, rotary, near)
    check_memory(report, rotary, near)


def _same_map(report: Report, rotary: Rotary, near: Array) -> bool:
    """Whether one linear map belongs to each position: in every call, row and head."""
    again = float(np.abs(rotary.matrices(range(NEAR)) - near).max())
    if again > 1e-6:
        seen = (
            "The same call, repeated at once, gives another result: "
            f"off by up to {number(again)}."
        )
        report.add_finding(
            "remembers",
            seen,
            "The function counts its calls, or draws at random.",
            "state",
        )
        return False
    added = rotary.vectors(torch.zeros(1, rotary.dim, dtype=rotary.dtype), range(NEAR))
    if float(added.abs().max()) > 1e-6:
        seen = (
            "A vector of zeros comes back with entries up "
            f"to {number(float(added.abs().max()))}."
        )
        report.add_finding(
            "added",
            seen,
            "A table is added, as an embedding is. A rotation multiplies.",
            "planes",
        )
        return False
    if rotary.dims < 4:
        return True
    batch = (3, 5, 2, rotary.dim) if rotary.token_axis == 1 else (3, 2, 5, rotary.dim)
    x = torch.randn(
        batch, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).to(rotary.dtype)
    heads = 2 if rotary.token_axis == 1 else 1
    try:
        whole = rotary.apply(x.clone(), range(5))
        for axis, name in ((0, "rows of a batch"), (heads, "heads")):
            parts = [rotary.apply(part.clone(), range(5)) for part in x.split(1, axis)]
            off = float((torch.cat(parts, axis) - whole).abs().max())
            if off > 1e-4:
                seen = (
                    f"At the same positions, {name} are rotated differently together "
                    f"than alone: off by {number(off)}."
                )
                report.add_finding(
                    "not-alike",
                    seen,
                    "A table is indexed or broadcast along another axis.",
                    "symbols",
                )
                return False
    except CallError:
        pass
    return True


def _check_linear(report: Report, rotary: Rotary, near: Array) -> None:
    """The matrices say what happens to every x, and x itself is left as it was."""
    x = torch.randn(
        NEAR,
        rotary.dim,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    ).to(rotary.dtype)
    tokens = x[None, :, None] if rotary.token_axis == 1 else x[None, None]
    tokens = tokens if rotary.dims == 4 else x[None] if rotary.dims == 3 else x
    y = rotary.apply(tokens.clone(), range(NEAR)).reshape(x.shape).double().numpy()
    error = np.abs(y - np.einsum("tij,tj->ti", near, x.double().numpy())).max()
    if error > 1e-4:
        report.add_finding(
            "not-linear",
            "Vectors are not rotated as the unit vectors they are made of: "
            f"off by {number(float(error))}.",
            "The function normalises, clips or mixes tokens, "
            "or depends on the calls before.",
            "kept",
        )
    before = tokens.clone()
    rotary.apply(tokens, range(NEAR))
    if not torch.equal(tokens, before):
        report.add_finding(
            "in-place",
            "The function changes the x that it is given.",
            "Halves of x are views: "
            "writing to one overwrites what the other still needs. Make a new tensor.",
            "state",
        )


def _pairs(report: Report, near: Array, intended: dict[str, Any]) -> Model | None:
    """Which channels are rotated together, and whether they come out in place."""
    dim = near.shape[-1]
    at_zero = np.abs(near[0])
    rows = at_zero.argmax(0)
    permuted = (np.abs(at_zero.max(0) - at_zero.max()) < 1e-6).all() and (
        np.sort(at_zero, 0)[:-1] < 1e-6
    ).all()
    if not (permuted and len(set(rows)) == dim):
        rows = np.arange(dim)
    plain = (np.abs(near).max(0) > 1e-14) & ~np.eye(dim, dtype=bool)
    if (
        plain.sum(0).max() == 1
        and plain.T[np.arange(dim), rows][rows != np.arange(dim)].all()
    ):
        rows = np.arange(dim)  # a quarter turn and no other order
    strength = np.abs(near[:, rows]).max(0) * (1 - np.eye(dim))
    linked = (strength > 1e-14) | (strength.T > 1e-14)
    if not linked.any():
        seen = f"At positions 0 … {NEAR - 1} no channel is rotated"
        cause = (
            "Positions are read from another axis of x, whose size is 1, "
            "or the rotation is never applied."
        )
        diagonal = near[:, np.arange(dim), np.arange(dim)]
        if np.ptp(diagonal) > 1e-6:
            seen += (
                f"; each is multiplied by numbers from {listed((diagonal.min(),))} "
                f"to {listed((diagonal.max(),))}"
            )
            cause = "The term with the sine is missing."
        report.add_finding("no-rotation", f"{seen}.", cause, "argument")
        return None
    if linked.sum(0).max() > 1:
        channel = int(linked.sum(0).argmax())
        report.add_finding(
            "mixed",
            f"Channel {channel} is mixed with {linked[channel].sum()} others; "
            "in a rotation each has one partner.",
            "The input is split into pairs in one layout and the output joined "
            "in another.",
            "spellings",
        )
        return None
    a = np.flatnonzero(linked.any(0) & (linked.argmax(0) > np.arange(dim)))
    pairs = np.stack((a, linked.argmax(0)[a]), 1)
    layout = _layout(pairs, dim)
    report.facts["layout"] = layout
    if (rows != np.arange(dim)).any():
        report.facts["layout"] = (
            f"{layout} in, {_layout(np.sort(rows[pairs], 1), dim)} out"
        )
        moved = (
            "Channels come out in another order: "
            f"channel 1 becomes channel {rows[1]}, even at position 0."
        )
        if intended.get("layout") is None:
            report.notes.append(
                f"{moved} Scores are right if query and key are both treated so, "
                "as in DeepSeek-V3's code; the vectors are not those of either layout."
            )
        else:
            report.add_finding(
                "order",
                moved,
                "Pairs are split in one layout and joined in another.",
                "spellings",
            )
    elif intended.get("layout") not in (None, layout) and not (
        len(pairs) == 1 and pairs[0, 1] == pairs[0, 0] + 1
    ):
        report.add_finding(
            "layout",
            f"Channel 0 is paired with channel {pairs[0, 1]}: "
            f"the layout is {layout}, not {intended['layout']}.",
            "Two published layouts differ by a permutation of channels. "
            "Convert the weights once (convert_projection), or pair the other way.",
            "spellings",
        )
    _width(report, pairs, near, rows, layout, intended)
    zeros = np.zeros(len(pairs))
    return Model(pairs, rows, zeros, zeros)


def _layout(pairs: Array, dim: int) -> str:
    (a, b), n = pairs.T, len(pairs)
    if (b - a == 1).all() and ((a - a[0]) % 2 == 0).all():
        return "interleaved"
    run = (a == a[0] + np.arange(n)).all()
    return (
        "half" if run and ((b - a == n).all() or (b - a == dim // 2).all()) else "other"
    )


def _width(
    report: Report,
    pairs: Array,
    near: Array,
    rows: Array,
    layout: str,
    intended: dict[str, Any],
) -> None:
    """How many channels are rotated; whether the others pass through."""
    dim, rotated = near.shape[-1], pairs.size
    spread = (
        layout == "half"
        and rotated < dim
        and (pairs[:, 1] - pairs[:, 0] == dim // 2).all()
    )
    where = "" if pairs.min() == 0 else f", from channel {pairs.min()} on"
    report.facts["rotated channels"] = f"{rotated} of {dim}{where}"
    if where and not spread:
        report.notes.append(
            "As in latent attention, the first channels are not rotated; "
            "with a partial rotary factor the first ones are."
        )
    rest = np.setdiff1d(np.arange(dim), pairs)
    kept = near[:, rows][:, rest, rest]
    if len(rest) and np.abs(kept - 1).max() > 1e-12:
        report.add_finding(
            "tail",
            "Channels that are not rotated are changed, too: "
            f"multiplied by {listed([kept.min(), kept.max()])}.",
            "An attention factor, or a cast, "
            "is applied to all channels and not to the rotated ones.",
            "partial",
        )
    expected = intended.get("rotary_dim")
    if expected is not None and (rotated != expected or spread):
        meant = (
            f"{expected} were expected to"
            if rotated != expected
            else f"(i, i + {rotated // 2}) was expected"
        )
        report.add_finding(
            "rotary-width",
            f"{rotated} channels are rotated, "
            f"in pairs (i, i + {pairs[0, 1] - pairs[0, 0]}); {meant}.",
            "Frequencies or pairs are built over the width of the head and not over "
            "the rotated channels, or a partial_rotary_factor is not read.",
            "partial",
        )


def _check_rows(
    report: Report, model: Model, near: Array, intended: dict[str, Any]
) -> bool:
    """Whether both rows of each pair show one rotation of constant length."""
    first, second = model.phasors(near)
    lengths = np.abs(first)
    if np.abs(first - second.conj()).max() < 1e-5 < np.abs(first - second).max():
        longest = np.abs(first.real) + np.abs(first.imag)
        shortest = np.abs(np.abs(first.real) - np.abs(first.imag))
        report.add_finding(
            "sine-sign",
            "Both rows of a pair have the sine with one sign, "
            "which is not a rotation: "
            f"lengths are multiplied by {number(round(float(shortest.min()), 3))} "
            f"… {number(float(longest.max()))}, "
            "and scores depend on more than the offset.",
            "A minus is missing in rotate_half, or stands before both halves.",
            "kept",
        )
        return False
    if np.abs(first + second).max() < 1e-5:
        report.add_finding(
            "reflection",
            "Every pair is reflected and not rotated, at position 0 as well. Lengths "
            "are kept. Where query and key are both treated so, scores are those "
            "of a rotation; with a partner that is rotated they are not relative.",
            "A minus stands in the wrong row, "
            "or the two halves are joined in the wrong order.",
            "kept",
        )
        return False
    if np.abs(first - second).max() > 1e-5:
        _tables(report, model, first, second)
        return False
    model.factor = float(lengths.mean())
    if np.ptp(lengths) > 1e-4 * model.factor:
        _norm(report, first)
        return False
    model.frequencies, model.first = measured_frequencies(first)
    if report.facts["layout"] == "other":
        _order(report, model)
    return True


def _order(report: Report, model: Model) -> None:
    """In no published layout the order of pairs is unknown: take the fastest first."""
    back = np.sign(model.frequencies) < 0
    model.pairs[back] = model.pairs[back, ::-1]
    frequencies = np.abs(model.frequencies)
    order = np.argsort(-frequencies, kind="stable")
    model.pairs = model.pairs[order]
    model.frequencies = frequencies[order]
    model.first = np.where(back, -model.first, model.first)[order]
    pairs = ", ".join(f"({a}, {b})" for a, b in model.pairs[:3])
    report.notes.append(
        f"The fastest pairs are {pairs}: no published layout. "
        "Its direction can't be told."
    )


def _norm(report: Report, phasors: Array) -> None:
    """Lengths that change with the position or from pair to pair."""
    lengths = np.abs(phasors)
    norm = (
        f"Lengths are multiplied by {number(float(lengths.min()))} … "
        f"{number(float(lengths.max()))}. "
    )
    cosine, sine = np.abs(phasors.real).max(), np.abs(phasors.imag[:, 0]).max()
    steps = np.diff(lengths.mean(1))
    if (
        np.ptp(lengths, axis=1).max() < 1e-4 * lengths.mean()
        or min(steps.max(), -steps.min(), key=abs) < -1e-5
    ):
        seen = norm + "The factor changes from position to position."
        cause = (
            "A decay such as xPos's, whose key gets the inverse. "
            "Alone it makes scores depend on positions."
        )
    elif abs(cosine / max(sine, 1e-9) - 1) > 0.03:
        seen = (
            norm
            + f"Cosines reach {number(float(cosine))}, sines {number(float(sine))}."
        )
        cause = (
            "One of the two terms is missing."
            if min(cosine, sine) < 1e-6
            else "The attention factor multiplies one of the two tables only."
        )
    elif np.ptp(lengths, axis=0).max() < 1e-4 * lengths.mean():
        seen, cause = (
            norm + "The factor differs between pairs.",
            "A scale is laid out for another pairing.",
        )
    else:
        seen = norm + "The factor differs between pairs and positions."
        cause = "Cosines and sines are those of different positions or frequencies."
    report.add_finding("norm", seen, cause, "kept")


def _tables(report: Report, model: Model, first: Array, second: Array) -> None:
    """The rows of a pair have different angles: which frequency has each channel?"""
    of_first, _ = measured_frequencies(first)
    of_second, _ = measured_frequencies(second)
    of_channel = np.zeros(int(model.pairs.max()) + 1)
    of_channel[model.pairs[:, 0]], of_channel[model.pairs[:, 1]] = of_first, of_second
    used = of_channel[np.sort(model.pairs.ravel())]
    n = len(model.pairs)
    gaps = np.abs(of_first - of_second)
    table = "unknown"
    if np.abs(np.abs(used[:n]) - np.abs(used[n:])).max() < 1e-4:
        table = "half"
    elif np.abs(np.abs(used[::2]) - np.abs(used[1::2])).max() < 1e-4:
        table = "interleaved"
    pairing = report.facts["layout"]
    if table not in ("unknown", pairing):
        report.add_finding(
            "tables-mixed",
            f"Channels are paired in the {pairing} layout, but the table of angles is "
            f"in the {table} layout: the two channels of a pair have frequencies that "
            f"differ by up to {number(float(gaps.max()))}, so lengths are not kept.",
            "cat((angles, angles)) belongs to half, repeat_interleave to interleaved; "
            f"here {pairing} pairs meet the other table.",
            "mixed-table",
        )
    else:
        blocks = np.stack(
            (first.real, -first.imag, second.imag, second.real), -1
        ).reshape(*first.shape, 2, 2)
        stretched = np.linalg.svd(blocks, compute_uv=False)
        if "in-place" not in report.codes:  # from which it follows
            report.add_finding(
                "norm",
                "The two rows of a pair show different rotations: "
                f"lengths are multiplied by {number(float(stretched.min()))} … "
                f"{number(float(stretched.max()))}.",
                "Cosines and sines come from different tables, "
                "or one of them has another sign or order.",
                "kept",
            )


def _frequencies(
    report: Report, model: Model, near: Array, intended: dict[str, Any]
) -> Fit:
    """Direction, schedule, base, attention factor and first position."""
    if not _on_a_line(report, model, near):
        return Fit(("free",))
    if rising(report, model.frequencies, "planes"):
        return Fit(("free",))
    sign = _direction(report, model, intended)
    frequencies = unaliased(sign * model.frequencies)
    if (frequencies <= 0).any():
        report.add_finding(
            "mixed-direction",
            f"{int((frequencies <= 0).sum())} of {len(frequencies)} pairs rotate "
            "the other way.",
            "Signs are laid out for another pairing, or angles overflow.",
            "direction",
        )
        return Fit(("free",))
    fitted = _schedule(report, model, frequencies, near.shape[-1], intended)
    _check_factor(report, model.factor, fitted, intended, len(frequencies))
    _check_first(report, model, intended)
    model.frequencies = sign * frequencies
    return fitted


def _on_a_line(report: Report, model: Model, near: Array) -> bool:
    """Whether the angle of each pair is linear in the position."""
    difference = model.difference(near, range(NEAR))
    off = np.abs(difference).max(1)
    angles = model.angles(range(NEAR)) + difference
    for dtype in LOW:
        if off.max() > 1e-4 and np.abs(angles - rounded(angles, dtype)).max() < 1e-6:
            name = str(dtype).removeprefix("torch.")
            report.add_finding(
                "low-precision",
                f"All angles are {name} numbers, "
                f"up to {number(float(off.max()))} rad off a line in the position.",
                "Angles are rounded before their cosines are taken.",
                "bfloat16",
            )
            return False
    if off.max() > 0.01:
        worst = int(off.argmax())
        report.add_finding(
            "uneven",
            "Angles do not grow evenly with the position: "
            f"at {worst} they are up to {number(float(off[worst]))} rad off the line.",
            "The position is not multiplied by the frequency as it is: "
            "a logarithm, a power, a rounding or a table comes between.",
            "planes",
        )
        return False
    return True


def _direction(report: Report, model: Model, intended: dict[str, Any]) -> float:
    """The sign of the slowest rotating pair: +1 is counter-clockwise."""
    rotating = np.flatnonzero(np.abs(model.frequencies) > 1e-12)
    sign = float(np.sign(model.frequencies[rotating[-1]]))
    direction = "counter-clockwise" if sign > 0 else "clockwise"
    unordered = report.facts["layout"] == "other"
    report.facts["direction"] = None if unordered else direction
    if not unordered and intended.get("direction") not in (None, direction):
        report.add_finding(
            "direction",
            f"Channel 0 rotates towards {'' if sign > 0 else 'minus '}channel "
            f"{model.pairs[0, 1]}: {direction}.",
            "The signs of the two sines are exchanged. "
            "In query and key alike this is the mirror image, past for future; "
            "in one of them it gives no relative score.",
            "direction",
        )
    return sign


def _schedule(
    report: Report,
    model: Model,
    frequencies: Array,
    dim: int,
    intended: dict[str, Any],
) -> Fit:
    """Fit the frequencies over the width that they belong to."""
    across = (model.pairs[:, 1] - model.pairs[:, 0] == dim // 2).all()
    whole_head = across and intended.get("rotary_dim") in (None, dim)
    interleaved = report.facts["layout"] == "interleaved"
    prope = intended.get("schedule") == "proportional" and interleaved
    width = dim if whole_head or prope else model.pairs.size
    index = model.pairs[:, 0] if whole_head else np.arange(len(frequencies))
    padded = np.zeros(width // 2)
    padded[index] = frequencies
    fitted = check_frequencies(report, padded, width, dim, intended, rotary=True)
    if (
        width < dim
        and model.pairs.min() == 0
        and intended.get("rotary_dim") is None
        and fitted.base is not None
        and interleaved
    ):
        over_all = float(f"{fitted.base ** (dim / width):.5g}")
        report.notes.append(
            f"Over all {dim} channels the same frequencies are those of base "
            f"{number(over_all)}, in p-RoPE, where slow pairs are not rotated."
        )
    if whole_head and fitted.name == "proportional":
        report.notes.append(
            f"Pairs reach over the whole head (i, i + {dim // 2}) "
            f"though only {model.pairs.size} channels are rotated. That is p-RoPE; "
            "partial rotary pairs channels within the rotated part."
        )
    return fitted


def _check_factor(
    report: Report, a: float, fitted: Fit, intended: dict[str, Any], pairs: int
) -> None:
    """The factor on cos and sin against the one that the schedule has."""
    a = round(a, 9) if abs(a - 1) > 1e-6 else 1.0
    report.facts["attention factor"] = a
    expected = intended.get("attention_factor")
    unknown = (
        fitted.name == "free"
        or intended.get("schedule") == "longrope"
        or "not-linear" in report.codes
    )
    scaled = "yarn" in fitted.names or "yarn_released" in fitted.names
    usual = 0.1 * math.log(fitted.factor) + 1 if scaled and fitted.factor >= 1 else None
    single = expected if expected is not None else usual
    if single is not None and single != 1 and same(a, single**2, 1e-5):
        report.add_finding(
            "factor-twice",
            f"Vectors are lengthened by {number(a)}, the square of the attention "
            f"factor {number(single)}; scores then grow by its fourth power.",
            "The factor is in the table already and is applied again.",
            "factor",
        )
    elif expected is not None and not same(a, expected, 1e-5):
        report.add_finding(
            "attention-factor",
            f"Vectors are lengthened by {number(a)}; "
            f"{number(float(expected))} was expected.",
            "YaRN has two magnitudes: "
            "one on cos and sin (with mscale and mscale_all_dim, their quotient), "
            "another on the softmax scale. One was taken for the other, or left out.",
            "factor",
        )
    elif expected is None and a != 1 and not scaled and not unknown and pairs > 3:
        # three pairs or fewer fit anything
        report.add_finding(
            "norm",
            f"Every rotated vector is multiplied by {number(a)}, "
            "and no attention factor belongs to these frequencies.",
            "A left-over attention factor, or a scale that belongs to the softmax. "
            "Give attention_factor= if it is meant.",
            "kept",
        )
    elif expected is None and usual is not None and a != 1 and not same(a, usual, 1e-5):
        report.notes.append(
            f"The attention factor is {number(a)}; "
            f"YaRN's for a factor of {number(fitted.factor)} is {number(usual)}."
        )


def _check_first(report: Report, model: Model, intended: dict[str, Any]) -> None:
    """The angle at position 0."""
    delta = displacement(model.first, model.frequencies, 1e-3)
    if delta is not None and abs(delta - round(delta)) < 1e-3:
        delta = float(round(delta))
    report.facts["first position"] = delta
    expected = float(intended.get("offset") or 0)
    if np.abs(wrap(model.first - expected * model.frequencies)).max() < 1e-3:
        report.facts["first position"] = expected  # which may be whole turns away
        return
    if delta is None:
        report.add_finding(
            "first-position",
            "Position 0 rotates vectors by up "
            f"to {number(float(np.abs(model.first).max()))} rad, "
            "and no shift of the positions explains it.",
            "Cosines and sines are exchanged."
            if np.abs(np.abs(model.first) - math.pi / 2).max() < 1e-6
            else "All signs are flipped."
            if np.abs(np.abs(model.first) - math.pi).max() < 1e-6
            else "A constant phase in the table.",
            "argument",
        )
    elif not same(delta, expected, 1e-3) and abs(delta - expected) > 1e-3:
        report.add_finding(
            "first-position",
            f"Position 0 is rotated as position {number(delta)}"
            + ("." if expected == 0 else f", not as {number(expected)}."),
            "Counting starts at 1, or an offset is added twice. "
            "Scores are right only if query and key are shifted alike.",
            "argument",
        )
