"""Embeddings of grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.embedding import uniform
from helpers import normal, seeded

from posenc_lib.embedding import sinusoidal
from posenc_lib.embedding.grid import LearnedGrid, resize_grid, sinusoidal_grid
from posenc_lib.positions import arange, grid
from posenc_lib.properties import max_error


@pytest.mark.parametrize(("axes", "dim"), [(1, 2), (1, 8), (2, 4), (2, 8), (3, 12)])
@pytest.mark.parametrize("layout", ["axis", "function"])
def test_sinusoidal_grid_is_the_equation(axes: int, dim: int, layout: str) -> None:
    positions, share = 9 * uniform(3, axes), dim // (2 * axes)
    out = sinusoidal_grid(positions, dim, 100.0, layout=layout, dtype=torch.float64)
    for row in range(3):
        blocks = {
            (axis, f): [
                (math.sin, math.cos)[f](
                    float(positions[row, axis]) * 100 ** (-k / share)
                )
                for k in range(share)
            ]
            for axis, f in itertools.product(range(axes), (0, 1))
        }
        order = sorted(
            blocks, key=lambda block: block if layout == "axis" else block[::-1]
        )
        wanted = list(itertools.chain.from_iterable(blocks[block] for block in order))
        assert max_error(out[row], torch.tensor(wanted, dtype=torch.float64)) <= 1e-12


def test_sinusoidal_grid_of_one_axis_is_the_sinusoid() -> None:
    positions = arange(20)
    assert torch.equal(
        sinusoidal_grid(positions[:, None], 8),
        sinusoidal(positions, 8, layout="concatenated"),
    )


@pytest.mark.parametrize("dim", [8, 16, 64, 256])
@pytest.mark.parametrize("layout", ["axis", "function"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bug_55_sinusoid_formula(dim: int, layout: str, dtype: torch.dtype) -> None:
    """The frequencies are spread over the whole range.

    A quotient cut to a whole number has almost one frequency.
    """
    share = dim // 4
    for axis, positions in enumerate(torch.eye(2, dtype=torch.int64)):
        out = sinusoidal_grid(positions[None], dim, layout=layout, dtype=dtype)[0]
        blocks = out.view(2, 2, share)  # axis and function, or the other way round
        sines = blocks[axis, 0] if layout == "axis" else blocks[0, axis]
        wanted = torch.tensor(
            [math.sin(10000 ** (-k / share)) for k in range(share)], dtype=dtype
        )
        assert max_error(sines, wanted) <= 2 * torch.finfo(dtype).eps
        if dim == 8:
            assert sines.double().asin().tolist() == pytest.approx(
                [1, 0.01], abs=1e-6
            )  # and not 1, 0.135335
    coefficient = math.log(float(sines[1].double().asin())) * share / 2
    if dim == 256:
        assert coefficient / 64 == pytest.approx(
            -0.0719558, abs=1e-6
        )  # −ln(10⁴)/128, and not −1


@pytest.mark.parametrize("size", [(2, 3), (3, 2), (1, 5)])
@pytest.mark.parametrize("layout", ["axis", "function"])
def test_bug_73_a_column_changes_its_own_channels(
    size: tuple[int, int], layout: str
) -> None:
    table = sinusoidal_grid(grid(size), 8, layout=layout).view(
        *size, 2, 2, 2
    )  # axis and function, or the other way
    per_axis = table if layout == "axis" else table.transpose(2, 3)
    assert torch.equal(per_axis[:, 1:, 0], per_axis[:, :-1, 0])
    assert torch.equal(per_axis[1:, :, 1], per_axis[:-1, :, 1])
    assert bool((per_axis[:, 1:, 1] != per_axis[:, :-1, 1]).any(-1).any(-1).all())


@pytest.mark.parametrize(
    ("old", "new"),
    [(37, 39), (37, 43), (37, 78), (37, 36), (14, 16), (7, 49), (5, 1), (1, 4)],
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
def test_bug_61_grid_interpolation(old: int, new: int, dtype: torch.dtype) -> None:
    """The size that was asked for, exactly; and the same size gives the same bits."""
    table = normal(old, old, 3, dtype=dtype)
    assert resize_grid(table, (new, old)).shape == (new, old, 3)
    assert resize_grid(table, (old, new)).shape == (old, new, 3)
    assert resize_grid(table, (new, new)).dtype == dtype
    assert torch.equal(resize_grid(table, (old, old)), table)
    assert resize_grid(table, [old, old]) is table


def test_bug_61_a_factor_would_have_lost_a_row() -> None:
    lost = [new for new in range(38, 80) if math.floor(37 * (new / 37)) != new]
    assert lost  # as reported: 39, 43, 78, ... depending on how the quotient rounds
    for new in lost:
        assert resize_grid(normal(37, 37, 1), (new, new)).shape == (new, new, 1)


def cubic(x: float) -> float:
    """Keys' kernel with a = −3/4."""
    x, a = abs(x), -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


@pytest.mark.parametrize(
    ("old", "new"),
    [((3, 4), (5, 4)), ((3, 2), (2, 7)), ((4, 4), (4, 3)), ((2, 2), (3, 2))],
)
def test_resize_is_bicubic(old: tuple[int, int], new: tuple[int, int]) -> None:
    table = normal(*old, 2)
    out = resize_grid(table, new)

    def weights(axis: int, index: int) -> dict[int, float]:
        centre = (index + 0.5) * old[axis] / new[axis] - 0.5
        found: dict[int, float] = {}
        for tap in range(math.floor(centre) - 1, math.floor(centre) + 3):
            kept = min(max(tap, 0), old[axis] - 1)
            found[kept] = found.get(kept, 0.0) + cubic(centre - tap)
        return found

    for r, c in itertools.product(range(new[0]), range(new[1])):
        rows, columns = weights(0, r), weights(1, c)
        wanted = sum(
            table[i, j] * u * v for i, u in rows.items() for j, v in columns.items()
        )
        assert max_error(out[r, c], wanted) <= 1e-12


def test_resized_constants_stay_and_gradients_reach_the_table() -> None:
    assert (
        max_error(
            resize_grid(torch.full((3, 4, 2), 0.7).double(), (7, 5)),
            torch.full((7, 5, 2), 0.7).double(),
        )
        < 1e-6
    )
    table = normal(2, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: resize_grid(t, (3, 4)), [table])


def test_learned_grid_is_a_table_of_places() -> None:
    module = LearnedGrid((2, 3), 4, generator=seeded())
    assert torch.equal(module(grid((2, 3))).view(2, 3, 4), module.table)
    assert torch.equal(
        module(torch.tensor([[[1, 2]], [[0, 1]]]))[:, 0], module.table[[1, 0], [2, 1]]
    )
    std = LearnedGrid((40, 40), 8, generator=seeded()).table.detach().std()
    assert float(std) == pytest.approx(0.02, rel=0.03)


AT = uniform(3, 2)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sinusoidal_grid: dim": (
        lambda: sinusoidal_grid(AT, 6),
        ValueError,
        "dim must be a multiple of 4",
    ),
    "sinusoidal_grid: base": (
        lambda: sinusoidal_grid(AT, 8, -1.0),
        ValueError,
        "base",
    ),
    "sinusoidal_grid: layout": (
        lambda: sinusoidal_grid(AT, 8, layout="xy"),
        ValueError,
        "layout must be one of",
    ),
    "sinusoidal_grid: positions": (
        lambda: sinusoidal_grid(AT[0], 8),
        ValueError,
        "positions",
    ),
    "resize_grid: size": (
        lambda: resize_grid(normal(2, 2, 3), 4),  # type: ignore[arg-type]
        TypeError,
        "size",
    ),
    "resize_grid: size[1]": (
        lambda: resize_grid(normal(2, 2, 3), (4, 0)),
        ValueError,
        r"size\[1\]",
    ),
    "resize_grid: size[0]": (
        lambda: resize_grid(normal(2, 2, 3), (4.0, 4)),  # type: ignore[arg-type]
        TypeError,
        r"size\[0\]",
    ),
    "resize_grid(normal(1, 2, 2, 3), (4, 4))": (
        lambda: resize_grid(normal(1, 2, 2, 3), (4, 4)),
        ValueError,
        "table must have shape",
    ),
    "resize_grid(normal(0, 2, 3), (4, 4))": (
        lambda: resize_grid(normal(0, 2, 3), (4, 4)),
        ValueError,
        "table must have shape",
    ),
    "resize_grid: integers": (
        lambda: resize_grid(torch.ones(2, 2, 3, dtype=torch.int64), (4, 4)),
        TypeError,
        "table",
    ),
    "LearnedGrid: size": (
        lambda: LearnedGrid((2, 2, 2), 3),
        ValueError,
        "size",
    ),
    "LearnedGrid: dim": (
        lambda: LearnedGrid((2, 2), 0),
        ValueError,
        "dim",
    ),
    "LearnedGrid: positions": (
        lambda: LearnedGrid((2, 2), 3)(AT),
        TypeError,
        "positions must be pairs of integers",
    ),
    "LearnedGrid: 0 … 1 on axis 1": (
        lambda: LearnedGrid((2, 2), 3)(grid((2, 3))),
        ValueError,
        "0 … 1 on axis 1",
    ),
    "LearnedGrid: got -1 … 0": (
        lambda: LearnedGrid((2, 2), 3)(grid((2, 2)) - 1),
        ValueError,
        "got -1 … 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
