"""Golden cases and example schemes of `posenc_lib.embedding`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from helpers import seeded
from torch import Tensor, nn

from posenc_lib.embedding.fourier import (
    LearnableFourier,
    gaussian_matrix,
    nerf,
    perceiver_fourier,
    random_fourier,
    timestep,
)
from posenc_lib.embedding.grid import LearnedGrid, resize_grid, sinusoidal_grid
from posenc_lib.frequencies import cos_sin, pixel_frequencies
from posenc_lib.positions import grid
from posenc_lib.scheme import PositionScheme

Fields = dict[str, Tensor]
Case = dict[str, Any]


# ---- Fourier features


def fourier2d_timm_pixel(p: Case, x: Case) -> Fields:
    assert p["in_pixels"]
    size = p["feat_shape"]
    frequencies = pixel_frequencies(
        p["num_bands"],
        p["max_res"],
        spacing="linear" if p["linear_bands"] else "geometric",
    )
    corners = (
        2 * grid(size) / (torch.tensor(size) - 1) - 1
    )  # −1 and 1 are the centres of the outer pixels
    cos, sin = (table.view(*size, 2, -1) for table in cos_sin(corners, frequencies))
    return {"sin": sin, "cos": cos}


def fourier_perceiver(p: Case, x: Case) -> Fields:
    assert p["concat_pos"]
    assert not p["sine_only"]
    return {
        "features": perceiver_fourier(
            torch.tensor(x["pos"]), p["num_bands"], p["max_resolution"]
        )
    }


def gaussian_fourier_diffusers(p: Case, x: Case) -> Fields:
    assert not p["log"]
    features = random_fourier(
        torch.tensor(x["x"])[:, None], torch.tensor(x["weight"])[:, None]
    )
    return {
        "embedding": features
        if p["flip_sin_to_cos"]
        else features.roll(p["embedding_size"], -1)
    }


def timestep_embedding_diffusers(p: Case, x: Case) -> Fields:
    return {
        "embedding": timestep(
            torch.tensor(x["timesteps"]) * p["scale"],
            p["embedding_dim"],
            p["max_period"],
            shift=p["downscale_freq_shift"],
            cosine_first=p["flip_sin_to_cos"],
        )
    }


# ---- grids


def sincos2d_mae_diffusers(p: Case, x: Case) -> Fields:
    assert not p["cls_token"]
    size = torch.tensor(p["grid_size"])
    points = (
        grid(p["grid_size"]).double() * p["base_size"] / size / p["interpolation_scale"]
    )
    return {
        "pos_embed": sinusoidal_grid(
            points.flip(-1), p["embed_dim"], dtype=torch.float64
        )
    }


def sincos2d_timm(p: Case, x: Case) -> Fields:
    assert not p["reverse_coord"]
    layout = "axis" if p["interleave_sin_cos"] else "function"
    return {
        "pos_embed": sinusoidal_grid(
            grid(p["feat_shape"]), p["dim"], p["temperature"], layout=layout
        )
    }


def learned_2d_bicubic_interpolation_vit(p: Case, x: Case) -> Fields:
    table = torch.tensor(x["position_embeddings"])[0]
    patches = table[1:].view(p["grid"], p["grid"], p["dim"])
    return {
        "interpolated": torch.cat(
            (table[:1], resize_grid(patches, p["new_grid"]).flatten(0, 1))
        )[None]
    }


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "fourier2d_timm_pixel": fourier2d_timm_pixel,
    "fourier_perceiver": fourier_perceiver,
    "gaussian_fourier_diffusers": gaussian_fourier_diffusers,
    "learned_2d_bicubic_interpolation_vit": learned_2d_bicubic_interpolation_vit,
    "sincos2d_mae_diffusers": sincos2d_mae_diffusers,
    "sincos2d_timm": sincos2d_timm,
    "timestep_embedding_diffusers": timestep_embedding_diffusers,
}


# ---- example schemes of width 8

# Grids get position p of a sequence as the point (p // 4, p mod 4).

WIDTH, COLUMNS = 8, 4


def points(positions: Tensor) -> Tensor:
    return torch.stack(
        (positions.div(COLUMNS, rounding_mode="floor"), positions.remainder(COLUMNS)),
        -1,
    )


class OnGrid(nn.Module):
    """An embedding of coordinates as one of positions: row by row, 4 columns."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, positions: Tensor) -> Tensor:
        return self.embedding(points(positions))


SCHEMES: dict[str, PositionScheme] = {
    "NeRF": PositionScheme(
        "NeRF", embedding=lambda p: nerf(p[..., None] / 64, WIDTH // 2)
    ),
    "random Fourier": PositionScheme(
        "random Fourier",
        embedding=lambda p: random_fourier(
            points(p) / 8, gaussian_matrix(WIDTH // 2, 2, std=1.0, generator=seeded())
        ),
    ),
    "learnable Fourier": PositionScheme(
        "learnable Fourier",
        embedding=OnGrid(
            LearnableFourier(
                WIDTH, axes=2, features=8, hidden=8, gamma=4.0, generator=seeded()
            ).double()
        ),
    ),
    "timestep": PositionScheme(
        "timestep", embedding=partial(timestep, dim=WIDTH, shift=1, cosine_first=False)
    ),
    "grid sinusoid": PositionScheme(
        "grid sinusoid", embedding=lambda p: sinusoidal_grid(points(p), WIDTH)
    ),
    "learned grid": PositionScheme(
        "learned grid",
        embedding=OnGrid(LearnedGrid((512, COLUMNS), WIDTH, generator=seeded())),
    ),
}

OWN = (
    "it gives each token its own vector, which enters scores through "
    "content · position too"
)
NOT: dict[tuple[str, str], str] = {
    **{(name, p): OWN for name in SCHEMES for p in ("relative", "Toeplitz")},
    **{
        (name, "nothing at position zero"): "position 0 has a vector like any other"
        for name in SCHEMES
    },
    **{
        (name, "decays with distance"): "dot products of its vectors rise again"
        for name in SCHEMES
    },
}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) - 1


def path(nodes: int) -> Tensor:
    return (torch.arange(nodes)[:, None] - torch.arange(nodes)).abs().eq(1)


def cycle(nodes: int) -> Tensor:
    steps = (torch.arange(nodes)[:, None] - torch.arange(nodes)) % nodes
    return (steps == 1) | (steps == nodes - 1)
