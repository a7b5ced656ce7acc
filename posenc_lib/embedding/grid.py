"""Embeddings of grids: sinusoids of several axes, and a learned grid.

Positions are coordinates (..., axes), as `positions.grid((H, W))` gives them: row
first, the tokens row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib._torch import values_known
from posenc_lib.frequencies import cos_sin

GridLayout = Literal["axis", "function"]


def sinusoidal_grid(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    *,
    layout: GridLayout = "axis",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sinusoidal embedding of several axes, each with its share of the channels.

    Equation: with s = d/(2·axes) and ω_k = θ^(−k/s):
        [sin(x_1 ω) | cos(x_1 ω) | sin(x_2 ω) | cos(x_2 ω) | …],  s channels each
        (he2022, released code)
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
        TypeError, ValueError: positions of another dtype or without axes, a `dim` that
            is not a multiple of 2·axes, a `base` not above 0, an unknown layout or
            dtype.

    Source: he2022
    Checked: golden; parity
    Chapter: 17
    """
    positions = _checks.coordinates("positions", positions)
    _checks.whole_number("dim", dim, least=1)
    _checks.positive("base", base)
    _checks.one_of("layout", layout, get_args(GridLayout))
    axes = positions.shape[-1]
    if dim % (2 * axes):
        raise ValueError(
            f"dim must be a multiple of {2 * axes}, "
            f"a sine and a cosine for each of {axes} axes; got {dim}"
        )
    share = dim // (2 * axes)
    index = torch.arange(share, dtype=torch.float64, device="cpu")
    frequencies = base ** (-index / share)
    cos, sin = cos_sin(positions, frequencies, dtype=dtype)  # (..., T, axes, s)
    return torch.stack((sin, cos), -2 if layout == "axis" else -3).flatten(-3)


def resize_grid(table: Tensor, size: Sequence[int]) -> Tensor:
    """A learned grid at another size, by bicubic interpolation.

    Equation: bicubic with a = −3/4, pixel centres at half, edges repeated, no smoothing
        (dosovitskiy2021 §3.2, as in transformers)
    Shapes: (H, W, d) → (H′, W′, d)

    The ViT authors' own code is bilinear, with corners aligned. Rows for class tokens
    are not part of the grid: set them aside, and put them back. The new size is given,
    not a factor, since ⌊H · (H′/H)⌋ is H′ − 1 for some sizes. The same size gives the
    table itself.

    Args:
        table: (H, W, d), as in `LearnedGrid`; from a checkpoint, its rows after those
            of class tokens, reshaped.
        size: (H′, W′), each at least 1.

    Raises:
        TypeError, ValueError: a table that is not (H, W, d), a size that is not two
            integers ≥ 1.

    Source: dosovitskiy2021
    Checked: golden;
        google-research/vision_transformer@16fc24d2734f:vit_jax/checkpoint.py:load_pretrained
    Chapter: 17
    """
    rows, columns = _checks.axis_sizes("size", size, axes=2)
    _checks.floating_tensor("table", table, least_dims=3)
    if table.dim() != 3 or table.numel() == 0:
        raise ValueError(
            "table must have shape (H, W, d), each at least 1, "
            f"got {tuple(table.shape)}"
        )
    if table.shape[:2] == (rows, columns):
        return table
    compute = _checks.at_least_float32(table.dtype)
    channels_first = table.to(compute).permute(2, 0, 1)[None]  # (1, d, H, W)
    resized = nn.functional.interpolate(
        channels_first, size=(rows, columns), mode="bicubic", align_corners=False
    )
    return resized[0].permute(1, 2, 0).to(table.dtype)


class LearnedGrid(nn.Module):
    """A trained vector for each cell of a grid.

    Equation: x_(r,c) ← x_(r,c) + P[r, c],  P ∈ ℝ^(H×W×d)      (dosovitskiy2021 §3.1)
    Shapes: positions (..., T, 2) → (..., T, d)

    At another resolution: `resize_grid(grid.table, size)`, indexed in the same way.

    Args:
        size: (H, W), rows and columns of the grid.
        dim: d, at least 1.
        std: the table is drawn from N(0, std²), 0.02 in the released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, `std` not above 0.
            When called: positions that are not integer pairs, or a cell outside the
            grid. That last check reads values, so it runs on plain CPU tensors only;
            elsewhere the caller must ensure it.

    Source: dosovitskiy2021
    Checked:
        google-research/vision_transformer@06862cdaf01e:vit_jax/models_vit.py:Encoder.__call__
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
        rows, columns = _checks.axis_sizes("size", size, axes=2)
        _checks.whole_number("dim", dim, least=1)
        self.table = normal(rows, columns, dim, std=std, generator=generator)

    def forward(self, positions: Tensor) -> Tensor:
        positions = _checks.coordinates("positions", positions)
        if positions.is_floating_point() or positions.shape[-1] != 2:
            raise TypeError(
                "positions must be pairs of integers (..., T, 2), row and column; "
                f"got {positions.dtype} of shape {tuple(positions.shape)}"
            )
        row, column = positions[..., 0], positions[..., 1]
        for axis, (index, size) in enumerate(
            zip((row, column), self.table.shape[:2], strict=True)
        ):
            if values_known(index) and not 0 <= index.min() <= index.max() < size:
                raise ValueError(
                    f"positions must lie in 0 … {size - 1} on axis {axis} "
                    f"(the grid is {self.table.shape[0]} × {self.table.shape[1]}), "
                    f"got {int(index.min())} … {int(index.max())}"
                )
        return self.table[row, column]
