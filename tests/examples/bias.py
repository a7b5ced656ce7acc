"""Golden cases and example schemes of `posenc_lib.bias`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from helpers import rounding, seeded
from torch import Tensor, nn

from posenc_lib.bias.kernels import FIRE, KerpleLog, KerplePower, sandwich
from posenc_lib.bias.mlp import (
    DistanceMLPBias,
    DynamicPositionBias,
    LogCoordinateBias,
    log_coordinates,
)
from posenc_lib.bias.window import (
    ClsWindowBias,
    IRPEBias,
    IRPEContextual,
    WindowBias,
    cls_window_index,
    window_index,
)
from posenc_lib.positions import arange, grid
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.scheme import PositionScheme

Fields = dict[str, Tensor]
Case = dict[str, Any]


def filled(module: nn.Module, values: dict[str, Any]) -> Any:
    """The module with these parameters."""
    for name, value in values.items():
        parameter = module.get_parameter(name)
        value = torch.tensor(value)
        assert parameter.shape == value.shape
        parameter.data.copy_(value)
    return module


# ---- kernels


def kerple_log(p: Case, x: Case) -> Fields:
    # The peer has 0 above the diagonal, where the mask is added; its p and a are r₁ and
    # r₂.
    bias = filled(KerpleLog(p["heads"]), {"r1": x["bias_p"], "r2": x["bias_a"]})
    return {"bias": bias(arange(p["seq_len"]), arange(p["seq_len"])).tril()}


def kerple_power(p: Case, x: Case) -> Fields:
    bias = filled(KerplePower(p["heads"]), {"r1": x["bias_a"], "r2": x["bias_p"]})
    return {"bias": bias(arange(p["seq_len"]), arange(p["seq_len"])).tril()}


def fire(p: Case, x: Case) -> Fields:
    bias = FIRE(p["num_heads"], hidden=p["mlp_width"], c=p["c"], threshold=p["init_L"])
    layers = [x[f"mlp.{i}.{kind}"] for i in (0, 2) for kind in ("weight", "bias")]
    filled(
        bias,
        {
            "multiplier": p["L_multiplier"],
            **{f"network.{i}": value for i, value in enumerate(layers)},
        },
    )
    return {"bias": bias(arange(p["seq_len"]), arange(p["seq_len"]))}


def sandwich_nemo(p: Case, x: Case) -> Fields:
    assert p["bidirectional"]
    return {
        "bias": sandwich(
            arange(p["query_len"]),
            arange(p["key_len"]),
            p["heads"],
            dim=p["hidden_size"],
        )
    }


# ---- windows


def swin_relative_position_index(p: Case, x: Case) -> Fields:
    return {
        f"w{h}x{w}": window_index(grid((h, w)), grid((h, w)), (h, w))
        for h, w in p["windows"]
    }


def with_class(positions: Tensor) -> Tensor:
    """One class token in front."""
    return torch.nn.functional.pad(positions, (0, 0, 1, 0), value=-1)


def beit_relative_position_index(p: Case, x: Case) -> Fields:
    tokens = {(h, w): with_class(grid((h, w))) for h, w in p["windows"]}
    return {
        f"w{h}x{w}": cls_window_index(positions, positions, (h, w))
        for (h, w), positions in tokens.items()
    }


# ---- networks


def swinv2_log_coords_table(p: Case, x: Case) -> Fields:
    assert p["pretrained_window_size"] == [0, 0]
    window = p["window_size"]
    offsets = grid([2 * size - 1 for size in window]) - torch.tensor(window) + 1
    table = log_coordinates(offsets, window).view(
        1, *(2 * size - 1 for size in window), 2
    )
    return {
        "relative_coords_table": table,
        "relative_position_index": window_index(grid(window), grid(window), window),
    }


def dynamic_position_bias_xtransformers(p: Case, x: Case) -> Fields:
    bias = DistanceMLPBias(
        p["heads"], p["dim"], depth=p["depth"], log_distance=p["log_distance"]
    )
    names = [f"mlp.{i}.0" for i in range(p["depth"])] + [f"mlp.{p['depth']}"]
    layers = [x[f"{name}.{kind}"] for name in names for kind in ("weight", "bias")]
    filled(bias, {f"network.{i}": value for i, value in enumerate(layers)})
    return {"bias": bias(arange(p["i"]), arange(p["j"]))[0]}


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "beit_relative_position_index": beit_relative_position_index,
    "dynamic_position_bias_xtransformers": dynamic_position_bias_xtransformers,
    "fire": fire,
    "kerple_log": kerple_log,
    "kerple_power": kerple_power,
    "sandwich_nemo": sandwich_nemo,
    "swin_relative_position_index": swin_relative_position_index,
    "swinv2_log_coords_table": swinv2_log_coords_table,
}


# ---- example schemes: 4 heads of 8 channels

# Grids get position p of a sequence as the point (p // 4, p mod 4).

HEADS, HEAD_DIM, COLUMNS = 4, 8, 4
WINDOW = (256, COLUMNS)


class OnGrid(nn.Module):
    """A bias of coordinates as one of positions: row by row, 4 columns."""

    def __init__(self, bias: nn.Module, *, class_token: bool = False) -> None:
        super().__init__()
        self.bias, self.class_token = bias, class_token

    def points(self, positions: Tensor) -> Tensor:
        p = positions - 1 if self.class_token else positions
        points = torch.stack(
            (p.div(COLUMNS, rounding_mode="floor"), p.remainder(COLUMNS)), -1
        )
        return torch.where((p < 0)[..., None], -1, points)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return self.bias(self.points(q_positions), self.points(k_positions))

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        return self.bias.scores(
            q, k, self.points(q_positions), self.points(k_positions)
        )


def loud(module: nn.Module) -> Any:
    """The module with all its parameters drawn from N(0, 1).

    What begins at zero would say nothing.
    """
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=seeded(1))
    return module


def examples() -> dict[str, nn.Module]:
    return {
        "KERPLE, logarithmic": KerpleLog(HEADS, generator=seeded()),
        "KERPLE, power": KerplePower(HEADS, generator=seeded()),
        "FIRE": FIRE(HEADS, hidden=8, c=0.5, threshold=4.0, generator=seeded()),
        "Swin": OnGrid(loud(WindowBias(HEADS, WINDOW))),
        "BEiT": OnGrid(loud(ClsWindowBias(HEADS, WINDOW)), class_token=True),
        "iRPE product": OnGrid(loud(IRPEBias(HEADS))),
        "iRPE cross": OnGrid(loud(IRPEBias(HEADS, method="cross")), class_token=True),
        "iRPE euclidean": OnGrid(loud(IRPEBias(HEADS, method="euclidean"))),
        "CrossFormer": OnGrid(loud(DynamicPositionBias(HEADS, 4))),
        "Network of the distance": DistanceMLPBias(HEADS, 8, generator=seeded()),
        "log-distance network": DistanceMLPBias(
            HEADS, 8, log_distance=True, generator=seeded()
        ),
        "Swin-V2": OnGrid(loud(LogCoordinateBias(HEADS, (8, 8), hidden=8))),
    }


SCHEMES: dict[str, PositionScheme] = {
    **{
        name: PositionScheme(name, bias=bias.double())
        for name, bias in examples().items()
    },
    "Sandwich": PositionScheme(
        "Sandwich", bias=partial(sandwich, heads=HEADS, dim=16, dtype=torch.float64)
    ),
    "iRPE contextual": PositionScheme(
        "iRPE contextual",
        scores=OnGrid(loud(IRPEContextual(HEAD_DIM)).double(), class_token=True).scores,
    ),
}

GRIDS = (
    "Swin",
    "BEiT",
    "iRPE product",
    "iRPE cross",
    "iRPE euclidean",
    "CrossFormer",
    "Swin-V2",
    "iRPE contextual",
)
NOT: dict[tuple[str, str], str] = {
    ("FIRE", "relative"): "its divisor is the query's position",
    ("FIRE", "Toeplitz"): "its divisor is the query's position",
    **{
        (name, p): "relative on the grid, not along the rows of tokens"
        for name in GRIDS
        for p in ("relative", "Toeplitz")
    },
    **{
        (name, "decays with distance"): "its numbers are learned"
        for name in SCHEMES
        if name not in ("KERPLE, logarithmic", "KERPLE, power", "Sandwich")
    },
    ("Sandwich", "decays with distance"): "a sum of cosines falls in waves",
}


def same(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order of a matrix product's sums, which may differ with its
    size.
    """
    return max_error(a, b) <= rounding(b)


def bias_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    bias = SCHEMES[name].bias
    assert bias is not None
    return bias


def points(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, window)))
