"""Biases of Swin, BEiT and iRPE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.bias import loud, points, with_class
from helpers import normal, rounding, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.bias.window import (
    ClsWindowBias,
    IRPEBias,
    IRPEContextual,
    WindowBias,
    cls_window_index,
    irpe_edges,
    irpe_index,
    irpe_rows,
    window_index,
)
from posenc_lib.positions import arange, grid
from posenc_lib.properties import (
    max_error,
    toeplitz_error,
)

PRODUCT: dict[str, float] = {"alpha": 1.9, "beta": 3.8, "gamma": 15.2}


@pytest.mark.parametrize(
    "window",
    [
        (1,),
        (5,),
        (2, 2),
        (2, 3),
        (3, 2),
        (7, 7),
        (1, 4),
        (2, 2, 2),
        (2, 3, 4),
        (2, 1, 2, 2),
    ],
)
def test_bug_63_window_bias_index(window: tuple[int, ...]) -> None:
    """One row for each offset: rows are equal exactly where offsets are equal."""
    positions = grid(window)
    index = window_index(positions, positions, window)
    offsets: dict[tuple[int, ...], int] = {}
    for (i, m), (j, n) in itertools.product(enumerate(points(window)), repeat=2):
        offset = tuple(a - b for a, b in zip(m, n, strict=True))
        assert offsets.setdefault(offset, int(index[i, j])) == int(index[i, j])
    rows = math.prod(2 * size - 1 for size in window)
    assert sorted(offsets.values()) == list(range(rows))
    if window == (2, 2, 2):
        assert rows == 27
        assert offsets[(1, 0, 0)] - offsets[(0, 0, 0)] == 9
        assert offsets[(0, 1, 0)] - offsets[(0, 0, 0)] == 3
        assert offsets[(0, 0, 1)] - offsets[(0, 0, 0)] == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("shift", [0, 5])
def test_bug_63_in_other_dtypes_and_places(dtype: torch.dtype, shift: int) -> None:
    """Narrow and unsigned integers don't wrap; a window may stand anywhere."""
    positions = grid((2, 3, 4))
    moved = (positions + shift).to(dtype)
    assert torch.equal(
        window_index(moved, moved, (2, 3, 4)),
        window_index(positions, positions, (2, 3, 4)),
    )


def test_window_index_against_the_wrong_multipliers_of_bug_63() -> None:
    positions = grid((2, 2, 2))
    offset = positions[:, None] - positions[None] + 1
    wrong = offset[..., 0] * (3 * 2 - 1) + offset[..., 1] * (2 * 2 - 1) + offset[..., 2]
    assert len(wrong.unique()) == 19  # as reported: 19 numbers for 27 offsets
    assert len(window_index(positions, positions, (2, 2, 2)).unique()) == 27


def test_window_bias_is_the_equation() -> None:
    bias, positions = WindowBias(3, (3, 4), std=1.0, generator=seeded()), grid((3, 4))
    out = bias(positions, positions)
    for (i, m), (j, n) in itertools.product(enumerate(points((3, 4))), repeat=2):
        row = (m[0] - n[0] + 2) * 7 + m[1] - n[1] + 3
        assert torch.equal(out[0, :, i, j], bias.table[row])
    some = torch.tensor([11, 0, 6])
    assert torch.equal(bias(positions[some], positions), out[:, :, some])
    assert torch.equal(
        bias(positions.expand(2, -1, -1), positions[some]),
        out[..., some].expand(2, -1, -1, -1),
    )


def test_window_of_one_axis_is_a_table_of_distances() -> None:
    line = WindowBias(2, (6,), std=1.0, generator=seeded())
    assert toeplitz_error(line(arange(6)[:, None], arange(6)[:, None])) == 0.0
    positions = grid((3, 2))
    assert torch.equal(
        window_index(
            torch.nn.functional.pad(positions, (1, 0)),
            torch.nn.functional.pad(positions, (1, 0)),
            (1, 3, 2),
        ),
        window_index(positions, positions, (3, 2)),
    )


@pytest.mark.parametrize("window", [(2, 2), (2, 3), (1, 1), (2, 2, 2)])
def test_class_rows_come_after_the_others(window: tuple[int, ...]) -> None:
    positions = grid(window)
    index = cls_window_index(with_class(positions), with_class(positions), window)
    rows = math.prod(2 * size - 1 for size in window)
    assert torch.equal(index[1:, 1:], window_index(positions, positions, window))
    assert int(index[0, 0]) == rows + 2
    assert index[0, 1:].tolist() == [rows] * len(positions)  # class → token
    assert index[1:, 0].tolist() == [rows + 1] * len(positions)
    moved = torch.cat(
        (positions, torch.full((1, len(window)), -1))
    )  # a class token at the end
    assert torch.equal(cls_window_index(moved, moved, window)[:-1, :-1], index[1:, 1:])
    bias = loud(ClsWindowBias(2, window))
    assert bias.table.shape == (rows + 3, 2)
    assert torch.equal(
        bias(with_class(positions), with_class(positions))[0],
        bias.table[index].movedim(-1, 0),
    )


def released_index(x: Tensor, alpha: float, beta: float, gamma: float) -> Tensor:
    """Equation 18 with the released code's rounding, number by number."""
    far = alpha + (x.abs().double() / alpha).log() / math.log(gamma / alpha) * (
        beta - alpha
    )
    far = x.sign() * far.round().clip(max=beta).to(torch.int64)
    return torch.where(x.abs() <= alpha, x, far)


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(alpha=st.floats(0.5, 12), more=st.floats(0.6, 12), reach=st.floats(0.5, 60))
def test_irpe_index_is_the_equation(alpha: float, more: float, reach: float) -> None:
    beta, gamma = alpha + more, alpha + reach
    x = torch.arange(-150, 151)
    assert torch.equal(
        irpe_index(x, alpha=alpha, beta=beta, gamma=gamma),
        released_index(x, alpha, beta, gamma),
    )


def test_irpe_published_sizes() -> None:
    """The released code with the ratio 1.9 has 7 buckets on an axis, 7² in a product,
    and one for the class token.
    """
    assert irpe_edges(**PRODUCT) == [0, 1, 2, 4]
    assert irpe_index(torch.arange(-6, 7)).tolist() == [
        -3,
        -3,
        -3,
        -2,
        -2,
        -1,
        0,
        1,
        2,
        2,
        3,
        3,
        3,
    ]
    assert IRPEBias(1).table.shape[0] == 50
    assert IRPEBias(1, method="cross").table.shape[0] == 16
    assert IRPEBias(1, method="euclidean").table.shape[0] == 8
    assert IRPEContextual(5).table.shape == (50, 5)


@pytest.mark.parametrize("size", [(2, 3), (14, 14), (5, 1)])
def test_irpe_rows_are_the_equation(size: tuple[int, int]) -> None:
    positions = with_class(grid(size))
    rows = {
        method: irpe_rows(positions, positions, method=method)
        for method in ("product", "cross", "euclidean")
    }
    offset = positions[:, None] - positions[None]
    inside = (positions >= 0).all(-1)
    inside = inside[:, None] & inside[None]
    i, j = (released_index(offset[..., axis], **PRODUCT) + 3 for axis in (0, 1))
    distance = offset.square().sum(-1).double().sqrt().round().to(torch.int64)
    wanted = {
        "product": (torch.where(inside, 7 * i + j, 49),),
        "cross": (torch.where(inside, i, 7), torch.where(inside, j, 7) + 8),
        "euclidean": (torch.where(inside, released_index(distance, **PRODUCT) + 3, 7),),
    }
    for method, columns in wanted.items():
        assert torch.equal(rows[method], torch.stack(columns, -1)), method


def test_irpe_with_room_for_every_distance_is_swins_index() -> None:
    positions, bias = grid((3, 3)), {"alpha": 2.0, "beta": 2.5, "gamma": 9.0}
    assert torch.equal(
        irpe_rows(positions, positions, **bias)[..., 0],
        window_index(positions, positions, (3, 3)),
    )


def test_irpe_in_three_axes() -> None:
    positions = grid((2, 3, 2))
    rows = irpe_rows(positions, positions, axes=3)[..., 0]
    assert len(rows.unique()) == 3 * 5 * 3  # −1 … 1, −2 … 2, −1 … 1
    assert IRPEBias(2, axes=3)(positions, positions).shape == (1, 2, 12, 12)


@pytest.mark.parametrize("method", ["product", "cross", "euclidean"])
def test_irpe_modes_are_the_equations(method: str) -> None:
    positions = with_class(grid((3, 4)))
    bias = loud(IRPEBias(2, method=method)).double()
    score = loud(IRPEContextual(4, method=method)).double()
    rows, q, k = (
        irpe_rows(positions, positions, method=method),
        normal(2, 3, 13, 4),
        normal(2, 3, 13, 4, seed=1),
    )
    out, scores = bias(positions, positions), score.scores(q, k, positions, positions)
    for m, n in itertools.product(range(13), repeat=2):
        picked = rows[m, n].tolist()
        assert max_error(
            out[0, :, m, n], sum(bias.table[row] for row in picked)
        ) <= rounding(out)
        key = k[:, :, n] + sum(score.table[row] for row in picked)
        assert max_error(scores[:, :, m, n], (q[:, :, m] * key).sum(-1)) <= rounding(
            scores
        )
    both = positions.expand(2, -1, -1)
    assert max_error(score.scores(q, k, both, positions), scores) <= rounding(scores)
    assert max_error(
        score.scores(q[:, :, 9:], k, positions[9:], positions), scores[:, :, 9:]
    ) <= rounding(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_irpe_contextual_in_lower_precision_and_its_gradients(
    dtype: torch.dtype,
) -> None:
    positions, score = grid((2, 2)), loud(IRPEContextual(3)).double()
    q = normal(1, 2, 4, 3, dtype=dtype)
    out = score.scores(q, q, positions, positions)
    exact = score.scores(q.double(), q.double(), positions, positions)
    assert out.dtype == dtype
    assert (
        max_error(out, exact)
        <= torch.finfo(dtype).eps * float(exact.detach().abs().max()) * 8
    )
    inputs = [normal(1, 2, 4, 3, seed=s).requires_grad_() for s in (1, 2)]
    assert torch.autograd.gradcheck(
        lambda q, k: score.scores(q, k, positions, positions), inputs
    )


AT, POINTS = arange(3), grid((2, 2))

contextual = IRPEContextual(3).scores


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "window_index(POINTS, POINTS, 2)": (
        lambda: window_index(POINTS, POINTS, 2),  # type: ignore[arg-type]
        TypeError,
        "window",
    ),
    "window_index(POINTS, POINTS, (2, 0))": (
        lambda: window_index(POINTS, POINTS, (2, 0)),
        ValueError,
        r"window\[1\] must be an integer ≥ 1, got 0",
    ),
    "window_index: q_positions": (
        lambda: window_index(POINTS, POINTS, (2, 2, 2)),
        ValueError,
        r"q_positions must have shape \(T, 3\)",
    ),
    "window_index: k_positions": (
        lambda: window_index(POINTS, AT, (2, 2)),
        ValueError,
        "k_positions must have shape",
    ),
    "window_index: positions outside the window": (
        lambda: window_index(POINTS, 2 * POINTS, (2, 2)),
        ValueError,
        r"window\[0\] = 2 apart on axis 0, got 2",
    ),
    "window_index: same batch": (
        lambda: window_index(POINTS.repeat(3, 1, 1), POINTS.repeat(2, 1, 1), (2, 2)),
        ValueError,
        "same batch",
    ),
    "WindowBias: std": (
        lambda: WindowBias(2, (2, 2), std=0.0),
        ValueError,
        "std",
    ),
    "WindowBias: window": (
        lambda: WindowBias(2, "22"),
        TypeError,
        "window",
    ),
    "ClsWindowBias: heads": (
        lambda: ClsWindowBias(0, (2, 2)),
        ValueError,
        "heads",
    ),
    "irpe_edges(2.0, 1.0, 8.0)": (
        lambda: irpe_edges(2.0, 1.0, 8.0),
        ValueError,
        "alpha must be below beta",
    ),
    "irpe_edges: gamma": (
        lambda: irpe_edges(2.0, 3.0, 2.0),
        ValueError,
        "gamma",
    ),
    "irpe_edges(0.0, 3.0, 4.0)": (
        lambda: irpe_edges(0.0, 3.0, 4.0),
        ValueError,
        "alpha",
    ),
    "irpe_index: relative_positions": (
        lambda: irpe_index(AT.float()),
        TypeError,
        "relative_positions must be integers",
    ),
    "irpe_rows: method": (
        lambda: irpe_rows(POINTS, POINTS, method="quant"),
        ValueError,
        "method must be one of",
    ),
    "irpe_rows: axes": (
        lambda: irpe_rows(POINTS, POINTS, axes=0),
        ValueError,
        "axes",
    ),
    "IRPEBias: method": (
        lambda: IRPEBias(2, method="Product"),
        ValueError,
        "method",
    ),
    "IRPEContextual: head_dim": (
        lambda: IRPEContextual(0),
        ValueError,
        "head_dim",
    ),
    "IRPEContextual: q": (
        lambda: IRPEContextual(3).scores(
            normal(1, 2, 4, 5), normal(1, 2, 4, 3), POINTS, POINTS
        ),
        ValueError,
        "q must",
    ),
    "IRPEContextual: k": (
        lambda: IRPEContextual(3).scores(
            normal(1, 2, 4, 3), normal(2, 4, 3), POINTS, POINTS
        ),
        ValueError,
        "k must",
    ),
    "cls_window_index: q_positions": (
        lambda: cls_window_index(POINTS - 1, POINTS, (2, 2)),
        ValueError,
        "q_positions must be at least 0, or -1 on every",
    ),
    "cls_window_index: k_positions": (
        lambda: cls_window_index(POINTS, POINTS - 2, (2, 2)),
        ValueError,
        r"k_positions must .* got \(-2, -2\)",
    ),
    "irpe_rows: q_positions": (
        lambda: irpe_rows(POINTS - 1, POINTS),
        ValueError,
        r"q_positions must .* got \(-1, 0\)",
    ),
    "IRPEContextual: heads of k": (
        lambda: contextual(normal(2, 2, 4, 3), normal(2, 1, 4, 3), POINTS, POINTS),
        ValueError,
        "q and k must agree",
    ),
    "IRPEContextual: batch of k": (
        lambda: contextual(normal(2, 2, 4, 3), normal(1, 2, 4, 3), POINTS, POINTS),
        ValueError,
        "q and k must agree",
    ),
    "IRPEContextual: q_positions": (
        lambda: contextual(*[normal(2, 2, 4, 3)] * 2, POINTS[:1], POINTS),
        ValueError,
        r"q_positions .* got \(1, 2\)",
    ),
    "IRPEContextual: k_positions": (
        lambda: contextual(*[normal(2, 2, 4, 3)] * 2, POINTS, POINTS[:3]),
        ValueError,
        r"k_positions .* got \(3, 2\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
