"""Biases that a network computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.bias import loud, points
from helpers import rounding, seeded
from torch import nn

from posenc_lib.bias.kernels import FIRE
from posenc_lib.bias.mlp import (
    DistanceMLPBias,
    DynamicPositionBias,
    LogCoordinateBias,
    log_coordinates,
)
from posenc_lib.bias.window import (
    WindowBias,
)
from posenc_lib.positions import arange, grid
from posenc_lib.properties import (
    max_error,
)


def numpy_free_layer_norm(x: list[float]) -> list[float]:
    mean = math.fsum(x) / len(x)
    variance = math.fsum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) for value in x]


def test_crossformer_is_the_equation() -> None:
    bias, positions = (
        DynamicPositionBias(2, 3, generator=seeded()).double().requires_grad_(False),
        grid((2, 3)),
    )
    for weight in bias.weights:
        nn.init.normal_(weight, generator=seeded(1))
    for shift in bias.biases:
        nn.init.normal_(shift, generator=seeded(2))
    out = bias(positions, positions)
    for (i, m), (j, n) in itertools.product(enumerate(points((2, 3))), repeat=2):
        x = [float(a - b) for a, b in zip(m, n, strict=True)]
        for layer, (w, c) in enumerate(zip(bias.weights, bias.biases, strict=True)):
            if layer:
                x = [max(0.0, value) for value in numpy_free_layer_norm(x)]
            x = [
                math.fsum(float(w[o, a]) * x[a] for a in range(len(x))) + float(c[o])
                for o in range(len(c))
            ]
        for h in range(2):
            assert float(out[0, h, i, j]) == pytest.approx(x[h], abs=1e-12)


@pytest.mark.parametrize("log_distance", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_distance_network_is_the_equation(depth: int, log_distance: bool) -> None:
    bias = DistanceMLPBias(
        2, 3, depth=depth, log_distance=log_distance, generator=seeded()
    ).double()
    m, n = arange(4, offset=2), arange(5)
    out = bias(m, n)
    layers = [p.detach() for p in bias.network]
    for i, j in itertools.product(range(4), range(5)):
        distance = float(i + 2 - j)
        value = (
            math.copysign(math.log(1 + abs(distance)), distance)
            if log_distance
            else distance
        )
        x = torch.tensor([value], dtype=torch.float64)
        for layer in range(depth + 1):
            x = (
                layers[2 * layer] @ (x / (1 + (-x).exp()) if layer else x)
                + layers[2 * layer + 1]
            )
        assert max_error(out[0, :, i, j], x) <= 1e-12


def test_dense_layers_begin_as_pytorchs_linear_layers_do() -> None:
    bias = DistanceMLPBias(50, 400, generator=seeded())
    for parameter, inputs in zip(bias.network, (1, 1, 400, 400, 400, 400), strict=True):
        end = inputs**-0.5
        assert float(parameter.detach().abs().max()) <= end
        if parameter.numel() > 1000:
            assert float(parameter.detach().std()) == pytest.approx(
                end / math.sqrt(3), rel=0.02
            )


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (8, 1), (4, 4, 2)])
def test_log_coordinates_are_the_equation(window: tuple[int, ...]) -> None:
    offsets = grid([2 * size - 1 for size in window]) - torch.tensor(window) + 1
    out = log_coordinates(offsets.double(), window)
    for row, offset in enumerate(offsets.tolist()):
        for axis, (x, size) in enumerate(zip(offset, window, strict=True)):
            scaled = 8 * x / (size - 1) if size > 1 else 0.0
            expected = (
                math.copysign(math.log2(1 + abs(scaled)) / math.log2(8), scaled)
                if scaled
                else 0.0
            )
            assert float(out[row, axis]) == pytest.approx(expected, abs=1e-14)
    assert float(out.max()) == pytest.approx(math.log2(9) / 3)  # the edge of any window


def test_swin_v2_is_the_equation_and_bounded() -> None:
    bias = loud(LogCoordinateBias(2, (3, 3), hidden=4)).double().requires_grad_(False)
    positions = grid((3, 3))
    out = bias(positions, positions)
    assert float(out.min()) > 0
    assert float(out.max()) < 16
    for (i, m), (j, n) in itertools.product(enumerate(points((3, 3))), repeat=2):
        x = [
            math.copysign(math.log2(1 + 4 * abs(a - b)) / 3, a - b)
            for a, b in zip(m, n, strict=True)
        ]
        hidden = (
            bias.weight1 @ torch.tensor(x, dtype=torch.float64) + bias.bias1
        ).relu()
        assert (
            max_error(out[0, :, i, j], 16 / (1 + (-(bias.weight2 @ hidden)).exp()))
            <= 1e-12
        )


def test_swin_v2_carries_over_to_another_window() -> None:
    """A bias trained on one window serves any other.

    At the offsets they share it says the same.
    """
    bias = loud(LogCoordinateBias(2, (4, 4), hidden=4)).double()
    small, large = bias(grid((4, 4)), grid((4, 4))), bias(grid((8, 8)), grid((8, 8)))
    inside = (grid((8, 8)) < 4).all(-1)
    assert max_error(large[:, :, inside][..., inside], small) <= rounding(small)


@pytest.mark.parametrize(
    "bias",
    [
        FIRE(2, generator=seeded(0)),
        DistanceMLPBias(2, 16, generator=seeded(0)),
        DistanceMLPBias(2, 16, log_distance=True, generator=seeded(0)),
        DynamicPositionBias(2, 16, axes=1, generator=seeded(0)),
        LogCoordinateBias(2, (4097,), generator=seeded(0)),
    ],
    ids=["FIRE", "distance", "logarithm", "CrossFormer", "Swin-V2"],
)
def test_autocast_tells_neighbours_apart(bias: nn.Module) -> None:
    m, n = torch.tensor([4096]), torch.arange(4097)
    if isinstance(bias, (DynamicPositionBias, LogCoordinateBias)):
        m, n = m[:, None], n[:, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bias(m, n)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, bias(m, n))


def test_networks_take_positions_between_the_places() -> None:
    positions = grid((2, 2)).double() / 2
    for bias in (
        DynamicPositionBias(2, 4, generator=seeded()),
        LogCoordinateBias(2, (2, 2), generator=seeded()),
    ):
        assert bool(bias(positions, positions).isfinite().all())
    with pytest.raises(TypeError, match="q_positions must be integers"):
        WindowBias(2, (2, 2))(positions, positions)


AT, POINTS = arange(3), grid((2, 2))


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "DynamicPositionBias: width": (
        lambda: DynamicPositionBias(2, 0),
        ValueError,
        "width",
    ),
    "DynamicPositionBias: axes": (
        lambda: DynamicPositionBias(2, 3, axes=0),
        ValueError,
        "axes",
    ),
    "DynamicPositionBias: q_positions": (
        lambda: DynamicPositionBias(2, 3)(AT, AT),
        ValueError,
        "q_positions must have shape",
    ),
    "DistanceMLPBias: depth": (
        lambda: DistanceMLPBias(2, 3, depth=0),
        ValueError,
        "depth",
    ),
    "log_coordinates: offsets": (
        lambda: log_coordinates(POINTS, (2, 2, 2)),
        ValueError,
        "offsets must have 3 axes",
    ),
    "LogCoordinateBias: hidden": (
        lambda: LogCoordinateBias(2, (7,), hidden=0),
        ValueError,
        "hidden",
    ),
    "LogCoordinateBias: k_positions": (
        lambda: LogCoordinateBias(2, (2, 2))(POINTS, AT),
        ValueError,
        "k_positions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
