"""Diagnose a bias (q_positions, k_positions) → matrix, or a function → buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc_lib.bias import alibi_slopes, t5_bucket, t5_bucket_edges
from posenc_lib.doctor.measure import Array, CallError, call, rounded
from posenc_lib.doctor.report import Report, listed, number
from posenc_lib.doctor.schedules import same

REACH = 4096  # distances that are looked at
NEAR = 24
LOW = (torch.bfloat16, torch.float16)


def diagnose_bias(
    report: Report, fn: Callable[..., Any], intended: dict[str, Any]
) -> None:
    """Check that the matrix depends on distance alone; then find its lines or steps."""
    near = _bias(fn, range(NEAR), range(NEAR))
    past = np.tril(np.ones((NEAR, NEAR), bool))
    if (
        np.isneginf(near).any()
        and np.isin(near, (0, -np.inf)).all()
        and (near[:, -1, -2:] == 0).all()
    ):
        report.facts["form"] = (
            f"a mask: the last of {NEAR} tokens sees {int((near[0, -1] == 0).sum())}"
        )
        return
    if not np.isfinite(near[:, past]).all():
        seen = "Biases of past keys are not finite."
        report.add_finding(
            "not-finite",
            seen,
            "Masked and visible are exchanged, or 0 × −∞ was taken.",
            "relative",
        )
        return
    report.facts["heads"] = len(near)
    line = near[:, -1]  # of the last query
    index = np.arange(NEAR)
    slopes = np.array([np.polyfit(index, row, 1)[0] for row in line])
    steepest = np.abs(slopes).max()
    misfit = np.abs(line - line[:, :1] - slopes[:, None] * index).max()
    straight = misfit < 1e-2 * max(steepest, 1e-9)
    key_only = np.abs(near[:, -1, :8] - near[:, 7, :8]).max() < 1e-6 and steepest > 1e-6
    if not _check_relative(report, fn, near, bool(key_only)):
        return
    if straight and steepest > 1e-6:
        _check_alibi(report, near, slopes, bool(key_only), intended)
        far = _bias(fn, [REACH + 1], range(REACH + 2))[:, 0, ::-1]
        _check_slopes(report, slopes, far)
    else:
        _check_t5(report, _by_distance(fn), intended)


def _bias(fn: Callable[..., Any], q: Any, k: Any) -> Array:
    """(H, Tq, Tk)"""
    q, k = torch.as_tensor(q), torch.as_tensor(k)
    result = call(fn, q, k)
    while result.dim() > 3 and result.shape[0] == 1:
        result = result[0]
    result = result[None] if result.dim() == 2 else result
    if result.dim() == 3 and result.shape[1:] == (1, len(k)):
        # of the key alone: one row for all queries
        result = result.expand(-1, len(q), -1)
    if result.dim() != 3 or result.shape[1:] != (len(q), len(k)):
        raise CallError(
            f"{len(q)} queries and {len(k)} keys gave shape {tuple(result.shape)}"
        )
    return result.double().numpy()


def _check_relative(
    report: Report, fn: Callable[..., Any], near: Array, key_only: bool
) -> bool:
    """Equal distances, equal biases: one query against a cache, far positions, gaps."""

    def off(rows: Array, expected: Array) -> float:
        if key_only:  # a constant in a row changes no softmax
            rows, expected = rows - rows[..., :1], expected - expected[..., :1]
        queries, keys = rows.shape[1:]
        behind = np.arange(queries)[:, None] + keys - queries >= np.arange(keys)
        return float(np.abs(rows[:, behind] - expected[:, behind]).max())

    last = _bias(fn, [NEAR - 1], range(NEAR))
    if off(last, near[:, -1:]) > 1e-4:
        first = off(last, near[:, :1]) < 1e-4
        report.add_finding(
            "bias-under-cache",
            f"One query at position {NEAR - 1} over {NEAR} keys gets different biases "
            "from those in the full matrix"
            + (
                ": those of the query at position 0."
                if first
                else f", by up to {number(off(last, near[:, -1:]))}."
            ),
            "The bias is built from the lengths and not from the positions, "
            "and a query over a cache is taken for the first token.",
            "argument",
        )
        return False
    later = range(100, 100 + NEAR)
    moved = _bias(fn, later, later)
    rounds = [str(dtype)[6:] for dtype in LOW if (moved == rounded(moved, dtype)).all()]
    if (
        1e-3 < off(moved, near) < 2**-7 * np.abs(moved[np.isfinite(moved)]).max()
        and rounds
    ):
        report.add_finding(
            "low-precision",
            f"Biases are {rounds[0]} numbers: "
            f"at positions 100 … {later[-1]} they differ from those of the same "
            f"distances near 0 by up to {number(off(moved, near))}.",
            "Products of slopes and positions are rounded to 16 bits, "
            "and so is what is left of the differences.",
            "precision",
        )
        return False
    if off(moved, near) > 1e-3:
        unread = [
            name
            for name, q, k in (
                ("query", range(NEAR), later),
                ("key", later, range(NEAR)),
            )
            if np.abs(_bias(fn, q, k) - moved).max() < 1e-6
        ]
        report.add_finding(
            "not-relative",
            "Biases change when all positions move by 100, "
            f"by up to {number(off(moved, near))}"
            + (
                f"; those of {unread[0]} positions alone change nothing."
                if len(unread) == 1
                else "."
            ),
            f"The {unread[0]} positions are taken from a length, 0, 1, …, and not read."
            if len(unread) == 1
            else "They depend on one position alone, by more than a constant per row.",
            "distance",
        )
        return False
    gaps = [0, 0, 0, 1, 2]
    padded = off(_bias(fn, gaps, gaps), near[:, gaps][:, :, gaps])
    if padded > 1e-4:
        report.add_finding(
            "padding",
            "With positions 0, 0, 0, 1, 2, as left padding gives them, "
            f"distances are those of the slots: off by {number(padded)}.",
            "Slots are counted, padding included.",
            "argument",
        )
    return True


def _check_alibi(
    report: Report, near: Array, slopes: Array, key_only: bool, intended: dict[str, Any]
) -> None:
    report.facts["form"] = "ALiBi" + (
        ", of the key's position alone (the same softmax)" if key_only else ""
    )
    report.facts["slopes"] = listed(slopes[:8]) + ", …" * (len(slopes) > 8)
    if (slopes < 0).any():
        report.add_finding(
            "sign",
            f"In {int((slopes < 0).sum())} of {len(slopes)} heads the bias grows with "
            f"distance: the slope towards the query is {number(float(slopes.min()))}.",
            "query − key is used without the minus: distant keys are rewarded.",
            "penalty",
        )
    diagonal = np.abs(np.diagonal(near, axis1=1, axis2=2)).max()
    if not key_only and diagonal > 1e-6:
        report.notes.append(
            f"The query's own position has a bias of up to {number(float(diagonal))} "
            "and not 0: among past keys a constant per row, which no softmax sees."
        )
    ahead = near[:, 0, 1:4] - near[:, 0, :1]
    if (
        np.isfinite(ahead).all()
        and not key_only
        and (ahead * np.sign(slopes)[:, None] > 1e-9).any()
    ):
        report.notes.append(
            "Keys ahead of the query are rewarded: "
            "fine under a causal mask, wrong without one."
        )


def _check_far(report: Report, slopes: Array, row: Array) -> None:
    """Biases (H, n) at distances 0, 1, … from a far query: each step is the slope."""
    steps = -np.diff(row) / slopes[:, None]
    wrong = np.flatnonzero(np.abs(steps - 1).max(0) > 1e-2)
    if not len(wrong):
        return
    first = int(wrong[0])
    if np.abs(steps[:, first:]).max() < 1e-9:
        seen = f"Keys get one bias from distance {first} on."
        report.add_finding(
            "clamped",
            seen,
            "Distances are clamped, or sorted into too few buckets.",
            "distance",
        )
    elif steps[0, first] < -0.5:
        seen = (
            f"From distance {first} to {first + 1} the bias jumps "
            f"by {number(float(steps[0, first]))} slopes."
        )
        report.add_finding(
            "far-positions", seen, "Distances wrap around at some length.", "distance"
        )
    else:
        seen = (
            f"For a query at {row.shape[1] - 1:,}, "
            f"from distance {first} on the steps between neighbours are not the slope."
        )
        report.add_finding(
            "low-precision",
            seen,
            "Distances or biases are made in 16 bits.",
            "precision",
        )


def _check_slopes(report: Report, slopes: Array, far: Array) -> None:
    published, size = alibi_slopes(len(slopes)).numpy(), np.abs(slopes)
    if np.abs(size / published - 1).max() < 1e-5:
        _check_far(report, slopes, far)
        return
    heads = len(slopes)
    plain = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    for dtype in LOW:
        if np.abs(size / rounded(published, dtype) - 1).max() < 1e-5:
            name = str(dtype).removeprefix("torch.")
            worst = float(np.abs(size / published - 1).max())
            seen = (
                f"All slopes are {name} numbers, "
                f"off by up to {worst:.2g} of their value."
            )
            report.add_finding(
                "slopes-cast",
                seen,
                "The buffer of slopes was cast with the weights.",
                "precision",
            )
            return
    if np.abs(size / plain - 1).max() < 1e-4:
        seen = f"The slopes of {heads} heads are one geometric series, 2^(−8h/{heads})."
        cause = (
            "The formula for a power of two is used for every count; "
            "the released code joins two series."
        )
    elif np.abs(np.sort(size) / np.sort(published) - 1).max() < 1e-4:
        seen, cause = (
            "The slopes are right, but in another order.",
            "They were sorted; checkpoints have the code's order.",
        )
    elif np.ptp(size / published) < 1e-4 * (size / published).mean():
        times = float((size / published).mean())
        seen = f"Every slope is {number(times)} times the published one."
        cause = (
            "The bias is added before the 1/√d."
            if times < 1
            else "The bias is multiplied by something else, too."
        )
        if same(times, 2 ** (8 / heads)):
            cause = "The exponent starts at 0 and not at 1."
    else:
        seen = (
            f"The slopes are {listed(size[:4])}, …; "
            f"published are {listed(published[:4])}, …."
        )
        cause = "Another formula, or one head's slopes sliced for another rank."
    report.add_finding("slopes", seen, cause, "slopes")


def _by_distance(fn: Callable[..., Any]) -> tuple[Array, Array]:
    """Biases of the keys 0, 1, … behind and ahead of the query: (H, REACH + 1) each."""
    past = _bias(fn, [REACH], range(REACH + 1))[:, 0, ::-1]
    future = _bias(fn, [0], range(REACH + 1))[:, 0]
    if (future[:, 1:] <= -9999).all():  # a causal mask, not a bucket
        future = np.repeat(future[:, :1], REACH + 1, 1)
    return past, future


def diagnose_buckets(
    report: Report, fn: Callable[..., Any], intended: dict[str, Any]
) -> None:
    """A function relative → bucket."""
    distance = torch.arange(REACH + 1)
    past, future = (
        call(fn, relative).double().numpy()[None] for relative in (-distance, distance)
    )
    size = intended.get("num_buckets")
    largest = int(max(past.max(), future.max()))
    report.facts["largest bucket"] = largest
    if size is not None and largest >= size:
        report.add_finding(
            "bucket-range",
            f"Relative position {_where(past, future, size)} falls into bucket "
            f"{largest}; there are {size}.",
            "The clamp to the last bucket is missing, "
            "or the buckets are not halved for two directions.",
            "buckets",
        )
    _check_t5(report, (past, future), intended, labels=True)


def _where(past: Array, future: Array, size: int) -> str:
    late, early = np.flatnonzero(future[0] >= size), np.flatnonzero(past[0] >= size)
    return f"+{late[0]}" if len(late) else f"−{early[0]}"


def _check_t5(
    report: Report,
    biases: tuple[Array, Array],
    intended: dict[str, Any],
    *,
    labels: bool = False,
) -> None:
    """Piecewise constant in the distance: where the pieces begin."""
    past, future = (
        np.concatenate(([0], 1 + np.flatnonzero(np.abs(np.diff(x)).max(0) > 1e-9)))
        for x in biases
    )
    report.facts["form"] = "buckets of distances"
    if len(past) == 1 and len(future) == 1:
        report.facts["form"] = (
            "no bias" if not np.abs(biases[0]).max() else "a constant"
        )
        report.add_finding(
            "constant",
            "The bias is the same at every distance.",
            "Positions are not used.",
            "buckets",
        )
        return
    if len(past) == 1:
        report.add_finding(
            "sign",
            "All past keys share one bucket, "
            "and keys ahead of the query have buckets by distance.",
            "The relative position is taken as query − key; it is key − query.",
            "relative",
        )
        return
    bidirectional = len(future) > 1
    report.facts["directions"] = 2 if bidirectional else 1
    if intended.get("bidirectional") not in (None, bidirectional):
        seen = (
            "Keys ahead of the query "
            f"{'have their own buckets' if bidirectional else 'share one bucket'}."
        )
        report.add_finding(
            "direction",
            seen,
            "The flag of encoder and decoder is exchanged.",
            "buckets",
        )
        return
    # buckets of one distance, from 0 on
    exact = int(np.flatnonzero(np.append(np.diff(past), REACH) > 1)[0])
    clipped = len(past) == exact + 1 <= REACH
    size, longest = intended.get("num_buckets"), intended.get("max_distance")
    counts = [len(past), *range(len(past) + 1, 2 * exact + 1)]  # some may be empty
    if size is not None:
        counts = [size // (2 if bidirectional else 1)]
    plain = len(past) > REACH // 4 or (clipped and size is None)
    count, distance = counts[0], None
    if not plain:
        fitting = ((n, _max_distance(past, n, longest)) for n in counts)
        count, distance = next(
            ((n, far) for n, far in fitting if far is not None), (count, None)
        )
    # many buckets over a short reach hold one distance each
    if plain or (clipped and distance is None):
        report.facts["form"] = (
            "no buckets: a bias for each distance" + f" up to {exact}" * clipped
        )
        if intended.get("num_buckets") is not None:
            seen = f"{len(past)} of the distances up to {REACH} have their own bias."
            report.add_finding(
                "no-buckets",
                seen,
                "Distances are used as they are, without buckets.",
                "buckets",
            )
        return
    report.facts["buckets a direction"] = len(past)
    if distance is None:
        _wrong_edges(report, past, exact, count, longest, bidirectional)
        return
    report.facts["largest distance"] = distance
    if longest is not None and distance != longest:
        seen = (
            f"The last buckets are those of max_distance = {distance}; "
            f"{longest} was expected."
        )
        report.add_finding(
            "max-distance", seen, "A setting of the checkpoint is not read.", "buckets"
        )
    elif labels:
        _check_labels(report, biases, count, distance, bidirectional)


def _max_distance(begins: Array, count: int, intended: int | None) -> int | None:
    """The max_distance for which T5's rule for `count` buckets has these edges.

    Where several do: the intended one, else the roundest.
    """
    if count % 2 or count < 4:
        return None
    # the last bucket begins at ⌈E (M/E)^((E−1)/E)⌉
    exact, far = count // 2, int(begins[-1])
    low, high = (
        exact * (edge / exact) ** (exact / (exact - 1))
        for edge in (max(far - 1, exact), max(far, exact))
    )
    matching = [
        distance
        for distance in range(max(int(low) - 1, exact + 1), int(high) + 2)
        # a set, since a bucket may be empty
        if sorted(set(t5_bucket_edges(count, distance))) == begins.tolist()
    ]
    if intended in matching:
        return intended
    return max(matching, key=lambda d: (d & -d, d % 10 == 0), default=None)


def _wrong_edges(
    report: Report,
    past: Array,
    exact: int,
    count: int,
    longest: int | None,
    bidirectional: bool,
) -> None:
    begins = listed(past[exact : exact + 6])
    seen = (
        f"{len(past)} buckets per direction, {exact} of them for one distance each, "
        f"then from {begins} … on."
    )
    shifted = (past[1:] - 1, np.append(0, past + 1), np.append(0, past[1:] - 1))
    if any(_max_distance(edges, count, longest) for edges in shifted):
        report.add_finding(
            "bucket-shifted", seen, "Relative positions are off by one.", "buckets"
        )
    elif (len(past) > count and _max_distance(past[:count], count, longest)) or len(
        past
    ) == 2 * exact + 1:
        cause = (
            "The last bucket is not clamped: "
            "far distances fall into the next one, or into the other direction's."
        )
        if "bucket-range" not in report.codes:
            report.add_finding("bucket-clamp", seen, cause, "buckets")
    elif len(past) == 2 * count:
        report.add_finding(
            "bucket-halving",
            seen,
            "The buckets are not halved for the two directions.",
            "buckets",
        )
    elif 2 * len(past) == count:
        cause = (
            "are halved twice, or num_buckets is not read"
            if bidirectional
            else "are halved for two directions though there is one"
        )
        report.add_finding("bucket-halving", seen, f"The buckets {cause}.", "buckets")
    elif exact < count // 2:
        cause = (
            "Half of a direction's buckets hold one distance each; "
            "here it is halved again, or not at all."
        )
        report.add_finding("bucket-exact", seen, cause, "buckets")
    else:
        published = ""
        if longest is not None:
            edges = t5_bucket_edges(count, longest)[exact : exact + 6]
            published = f" T5 has {listed(edges)} …."
        cause = (
            "A logarithm in another base or precision decides on the wrong side "
            "of an edge."
        )
        report.add_finding("bucket-edges", seen + published, cause, "buckets")


def _check_labels(
    report: Report,
    biases: tuple[Array, Array],
    count: int,
    longest: int,
    bidirectional: bool,
) -> None:
    """The numbers of the buckets, not only their edges."""
    distance = torch.arange(REACH + 1)
    size = count * (2 if bidirectional else 1)
    expected = [
        t5_bucket(
            r, bidirectional=bidirectional, num_buckets=size, max_distance=longest
        ).numpy()
        for r in (-distance, distance)
    ]
    if all((a[0] == b).all() for a, b in zip(biases, expected, strict=True)):
        return
    swapped = bidirectional and (biases[0][0][1:] == expected[1][1:]).all()
    if swapped:
        report.add_finding(
            "sign",
            "Past keys have the buckets of future ones.",
            "query − key is used instead of key − query.",
            "relative",
        )
    else:
        count = sum(
            int((a[0] != b).sum()) for a, b in zip(biases, expected, strict=True)
        )
        shared = bidirectional and (biases[0] == biases[1]).all()
        seen = (
            "Past and future share buckets."
            if shared
            else f"The buckets of {count:,} distances have other numbers."
        )
        cause = (
            "The sign of the distance is dropped."
            if shared
            else "Another order, or an offset."
        )
        report.add_finding("bucket-labels", seen, cause, "buckets")
