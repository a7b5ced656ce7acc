"""Diagnose a function (q, k, positions) → (q′, k′): each as a rotation, and both together."""

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


def is_pair(fn: Callable[..., Any], x: Tensor, at: Tensor) -> bool:
    """Whether it takes query and key, with positions for both or for each, and returns two such tensors."""
    return any(
        _both(fn, x.clone(), x.clone(), *[at] * count) is not None for count in (1, 2)
    )


def _both(
    fn: Callable[..., Any], q: Tensor, k: Tensor, *at: Tensor
) -> tuple[Tensor, Tensor] | None:
    try:
        with torch.no_grad():
            result = fn(q, k, *at)
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
    """What becomes of x as the query or the key, where the other one is `other` times x, `moved` positions on."""

    def turned(x: Tensor, at: Tensor) -> Tensor:
        order = 1 if index == 0 else -1
        vectors, places = (x, other * x)[::order], (at, at + moved)[::order]
        for positions in ((at,), places):
            result = _both(fn, *vectors, *positions)
            if result is not None:
                return result[index]
        raise CallError(
            "neither (q, k, positions) nor (q, k, q_positions, k_positions) gives two "
            "tensors like q"
        )

    return turned


def diagnose_pair(
    report: Report,
    fn: Callable[..., Any],
    dim: int,
    token_axis: int,
    wanted: dict[str, Any],
) -> None:
    """The query's report, what is wrong with the key alone, and whether their scores are relative."""
    sides = [_side(fn, index) for index in (0, 1)]
    key = Report("rotary")
    for own, side in zip((report, key), sides, strict=True):
        diagnose_rotary(own, side, dim, token_axis, wanted)
    axis = 1 if "axis" in report.codes else token_axis
    q, k = (Rotary(side, dim, axis).matrices(range(NEAR)) for side in sides)
    for index, (turned, name, other) in enumerate(
        ((q, "query", "key"), (k, "key", "query"))
    ):
        alone = Rotary(_side(fn, index, other=0, moved=3), dim, axis).matrices(
            range(NEAR)
        )
        if np.abs(alone - turned).max() > 1e-5:
            seen = f"The turned {name} depends on the {other}"
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
        report.facts["key"] = "turned as the query"
        _add(report, key)
        return
    met = (
        q[:SEEN, None].swapaxes(-1, -2) @ k[None, :SEEN]
    )  # the scores of unit vectors, for each two positions
    moves = float(np.abs(met[5:, 5:] - met[:-5, :-5]).max())
    at_once = float(np.abs(met[np.arange(SEEN), np.arange(SEEN)] - np.eye(dim)).max())
    report.facts["key"] = "turned otherwise"
    if max(moves, at_once) < 1e-4:
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
    still = [
        float(np.abs(each - np.eye(each.shape[-1])).max()) < 1e-9 for each in (q, k)
    ]
    same = [
        name
        for name in key.facts
        if name in report.facts and key.facts[name] != report.facts[name]
    ]
    differ = "; ".join(
        f"{name} {show(report.facts[name])} and {show(key.facts[name])}"
        for name in same
        if show(report.facts[name]) != show(key.facts[name])
    )
    if any(still):
        seen = f"The {'key' if still[0] else 'query'} is turned, and the {'query' if still[0] else 'key'} is not."
        report.findings = [
            finding for finding in report.findings if finding.code != "no-rotation"
        ]
        key.findings = [
            finding for finding in key.findings if finding.code != "no-rotation"
        ]
    else:
        seen = "Query and key are turned otherwise" + (
            f": {differ}." if differ else "."
        )
    seen += (
        f" Scores change by up to {number(round(moves, 3))} when both move by 5."
        if moves > 1e-4
        else " Scores are relative, and those of distance 0 are not those of unturned vectors."
    )
    cause = "One of the two calls has another table, layout, sign or offset. A cached key must be turned as the query is."
    report.findings.insert(0, report.finding("query-and-key", seen, cause, "one map"))
