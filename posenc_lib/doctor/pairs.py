"""Diagnose a function (q, k, positions) → (q′, k′): each alone, and both together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc_lib.doctor.calls import NEAR
from posenc_lib.doctor.measure import Array, CallError, Rotary
from posenc_lib.doctor.report import Report, number, show
from posenc_lib.doctor.rotary import diagnose_rotary

SEEN = 10  # positions of query and key whose scores are compared


def is_pair(fn: Callable[..., Any], x: Tensor, positions: Tensor) -> bool:
    """Whether it maps query and key, with positions for both or for each, to two."""
    return any(
        _both(fn, x.clone(), x.clone(), *[positions] * count) is not None
        for count in (1, 2)
    )


def _both(
    fn: Callable[..., Any], q: Tensor, k: Tensor, *positions: Tensor
) -> tuple[Tensor, Tensor] | None:
    try:
        with torch.no_grad():
            result = fn(q, k, *positions)
    except Exception:
        return None
    good = (
        isinstance(result, tuple | list)
        and len(result) == 2
        and all(isinstance(y, Tensor) for y in result)
    )
    return (
        (result[0], result[1])
        if good and result[0].shape == result[1].shape == q.shape
        else None
    )


def _side(
    fn: Callable[..., Any], index: int, other: float = 1, moved: int = 0
) -> Callable[[Tensor, Tensor], Tensor]:
    """x as query or key; its partner is `other` times x, `moved` positions on."""

    def rotated(x: Tensor, positions: Tensor) -> Tensor:
        order = 1 if index == 0 else -1
        vectors = (x, other * x)[::order]
        for arguments in ((positions,), (positions, positions + moved)[::order]):
            result = _both(fn, *vectors, *arguments)
            if result is not None:
                return result[index]
        raise CallError(
            "neither (q, k, positions) nor (q, k, q_positions, k_positions) "
            "gives two tensors like q"
        )

    return rotated


def diagnose_pair(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    token_axis: int,
    intended: dict[str, Any],
) -> None:
    """The query's report, the key's own faults, and whether scores are relative."""
    sides = [_side(fn, index) for index in (0, 1)]
    key = Report("rotary")
    for side_report, side in zip((report, key), sides, strict=True):
        diagnose_rotary(side_report, side, dim, token_axis, intended)
    axis = 1 if "axis" in report.codes else token_axis
    q, k = (Rotary(side, dim, axis).matrices(range(NEAR)) for side in sides)
    for index, (rotated, name, other) in enumerate(
        ((q, "query", "key"), (k, "key", "query"))
    ):
        alone = Rotary(_side(fn, index, other=0, moved=3), dim, axis).matrices(
            range(NEAR)
        )
        if np.abs(alone - rotated).max() > 1e-5:
            seen = f"The rotated {name} depends on the {other}"
            seen += (
                " or its positions."
                if alone.any()
                else " alone: they come back exchanged."
            )
            report.add_finding(
                "exchanged",
                seen,
                "Two arguments or two results are taken in the other order.",
                "one map",
            )
    if np.abs(q - k).max() < 1e-5:
        report.facts["key"] = "rotated as the query"
        _add(report, key)
        return
    # the scores of unit vectors, for each two positions
    scores = q[:SEEN, None].swapaxes(-1, -2) @ k[None, :SEEN]
    moves = float(np.abs(scores[5:, 5:] - scores[:-5, :-5]).max())
    same_position = scores[np.arange(SEEN), np.arange(SEEN)]
    at_zero = float(np.abs(same_position - np.eye(dim)).max())
    report.facts["key"] = "rotated differently"
    if max(moves, at_zero) < 1e-4:
        report.findings = [
            finding for finding in report.findings if finding.code != "norm"
        ]
        report.notes.append(
            "Query and key differ in length, as in xPos, and their scores are relative."
        )
        return
    _explain(report, key, q, k, moves)
    _add(report, key)


def _add(report: Report, key: Report) -> None:
    """What is wrong with the key and not with the query."""
    for finding in key.findings:
        if finding.code not in report.codes:
            report.findings.append(replace(finding, seen=f"The key: {finding.seen}"))


def _explain(report: Report, key: Report, q: Array, k: Array, moves: float) -> None:
    identity = np.eye(q.shape[-1])
    still = [float(np.abs(side - identity).max()) < 1e-9 for side in (q, k)]
    shared = [
        (name, show(report.facts[name]), show(key.facts[name]))
        for name in key.facts
        if name in report.facts
    ]
    differ = "; ".join(
        f"{name} {of_query} and {of_key}"
        for name, of_query, of_key in shared
        if of_query != of_key
    )
    if any(still):
        seen = (
            f"The {'key' if still[0] else 'query'} is rotated, "
            f"and the {'query' if still[0] else 'key'} is not."
        )
        report.findings = [
            finding for finding in report.findings if finding.code != "no-rotation"
        ]
        key.findings = [
            finding for finding in key.findings if finding.code != "no-rotation"
        ]
    else:
        seen = "Query and key are rotated differently"
        seen += f": {differ}." if differ else "."
    seen += (
        f" Scores change by up to {number(round(moves, 3))} when both move by 5."
        if moves > 1e-4
        else " Scores are relative, but those at distance 0 differ from unrotated ones."
    )
    cause = (
        "One of the two calls has another table, layout, sign or offset. "
        "A cached key must be rotated as the query is."
    )
    report.findings.insert(0, report.finding("query-and-key", seen, cause, "one map"))
