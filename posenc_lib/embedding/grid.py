"""Embeddings of grids: sinusoids of two or more axes, and a learned grid that can be resized.

Positions are coordinates: (..., axes), as `positions.grid((H, W))` gives them: row
first, the tokens row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.frequencies import cos_sin

GRID_LAYOUTS = ("axis", "function")


def _coordinates(value: Any) -> Tensor:
    positions = _checks.position_tensor("positions", value)
    if positions.dim() < 2:
        raise ValueError(
            f"positions must have shape (..., T, axes), got {tuple(positions.shape)}"
        )
    return positions


def _size(name: str, value: Any) -> tuple[int, int]:
    if (
        isinstance(value, (str, Tensor))
        or not isinstance(value, Sequence)
        or len(value) != 2
    ):
        raise TypeError(
            f"{name} must be two ints, rows and columns, such as (14, 14); got "
            f"{value!r}"
        )
    return (
        _checks.whole_number(f"{name}[0]", value[0], least=1),
        _checks.whole_number(f"{name}[1]", value[1], least=1),
    )


def sinusoidal_grid(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    *,
    layout: str = "axis",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sinusoidal embedding of several axes: each has its share of the channels, with frequencies of its own.

    Equation: with s = d/(2·axes) and ω_k = θ^(−k/s):  [sin(x_1 ω) | cos(x_1 ω) |
        sin(x_2 ω) | cos(x_2 ω) | …], s channels each      (he2022, released code)
    Shapes: positions (..., T, axes) → (..., T, d)

    The axes come in the order in which they are given. MAE and diffusers encode the
    column first: positions.flip(−1). timm has the row first and the layout "function";
    its `interleave_sin_cos` is the layout "axis".

    Args:
        positions: coordinates, integers, float32 or float64. Scaling them maps a larger
            grid to the trained one.
        dim: d, a multiple of 2·axes.
        base: θ, above 0.
        layout: "axis", both functions of an axis before the next axis, or "function",
            the sines of all axes before the cosines.
        dtype: of the result; angles are float64 whatever it is.

    Raises:
        TypeError, ValueError: an argument of another kind, named in the message.

    Source: he2022
    Chapter: 17
    """
    positions = _coordinates(positions)
    axes = positions.shape[-1]
    if _checks.whole_number("dim", dim, least=1) % (2 * axes):
        raise ValueError(
            f"dim must be a multiple of {2 * axes}, a sine and a cosine for each of "
            f"{axes} axes; got {dim}"
        )
    _checks.positive("base", base)
    _checks.one_of("layout", layout, GRID_LAYOUTS)
    share = dim // (2 * axes)
    frequencies = base ** (
        -torch.arange(share, dtype=torch.float64, device="cpu") / share
    )
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, axes, s)
    return torch.stack((sin, cos), -2 if layout == "axis" else -3).flatten(-3)


def resize_grid(table: Tensor, size: Sequence[int]) -> Tensor:
    """A learned grid at another size, by bicubic interpolation.

    Equation: bicubic with a = −3/4, pixel centres at half, edges repeated, no smoothing
        (dosovitskiy2021 §3.2)
    Shapes: (H, W, d) → (H′, W′, d)

    Rows for class tokens are no part of the grid: set them aside, and put them back.
    The new size is given, not a factor, since ⌊H · (H′/H)⌋ is H′ − 1 for some sizes.
    The same size gives the table itself.

    Args:
        table: (H, W, d), as in `LearnedGrid`; from a checkpoint, its rows after those
            of class tokens, reshaped.
        size: (H′, W′), each at least 1.

    Raises:
        TypeError, ValueError: a table that is no (H, W, d), a size that is not two
            ints.

    Source: dosovitskiy2021
    Chapter: 17
    """
    size = _size("size", size)
    if (
        _checks.floating_tensor("table", table, least_dims=3).dim() != 3
        or table.numel() == 0
    ):
        raise ValueError(
            "table must have shape (H, W, d), each at least 1, got "
            f"{tuple(table.shape)}"
        )
    if table.shape[:2] == size:
        return table
    channels_first = table.to(_checks.at_least_float32(table.dtype)).permute(2, 0, 1)[
        None
    ]  # (1, d, H, W)
    resized = torch.nn.functional.interpolate(
        channels_first, size=size, mode="bicubic", align_corners=False
    )
    return resized[0].permute(1, 2, 0).to(table.dtype)


class LearnedGrid(nn.Module):
    """A trained vector for each place of a grid.

    Equation: x_(r,c) ← x_(r,c) + P[r, c],  P ∈ ℝ^(H×W×d)      (dosovitskiy2021 §3.1)
    Shapes: positions (..., T, 2) → (..., T, d)

    At another resolution: `resize_grid(grid.table, size)`, indexed in the same way.

    Args:
        size: (H, W), rows and columns of the grid.
        dim: d, at least 1.
        std: the table is drawn from N(0, std²), 0.02 in the released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: an argument of another kind. When called: positions that
            are no integer pairs, or a place outside the grid. That last check reads
            values, so it runs on plain CPU tensors only; elsewhere it is the caller's
            to keep.

    Source: dosovitskiy2021
    Chapter: 17
    """

    def __init__(
        self,
        size: Sequence[int],
        dim: int,
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("dim", dim, least=1)
        self.table = nn.Parameter(torch.empty(*_size("size", size), dim))
        nn.init.normal_(
            self.table, std=_checks.positive("std", std), generator=generator
        )

    def forward(self, positions: Tensor) -> Tensor:
        positions = _coordinates(positions)
        if positions.is_floating_point() or positions.shape[-1] != 2:
            raise TypeError(
                "positions must be pairs of integers (..., T, 2), row and column of "
                "the grid; "
                f"got {positions.dtype} of shape {tuple(positions.shape)}"
            )
        if values_known(positions):
            for axis, size in enumerate(self.table.shape[:2]):
                low, high = (
                    int(positions[..., axis].min()),
                    int(positions[..., axis].max()),
                )
                if low < 0 or high >= size:
                    raise ValueError(
                        f"positions must lie in 0 … {size - 1} on axis {axis} (the "
                        "grid is "
                        f"{self.table.shape[0]} × {self.table.shape[1]}), got {low} … "
                        f"{high}"
                    )
        return self.table[positions[..., 0], positions[..., 1]]
