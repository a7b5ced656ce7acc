"""What all biases have in common."""

from __future__ import annotations

import pytest
import torch
from examples.bias import (
    HEADS,
    NOT,
    SCHEMES,
    OnGrid,
    bias_of,
    loud,
    same,
    with_class,
)
from helpers import seeded
from torch import Tensor, nn

from posenc_lib.bias.kernels import FIRE, KerpleLog, KerplePower
from posenc_lib.bias.mlp import (
    DistanceMLPBias,
    DynamicPositionBias,
    LogCoordinateBias,
)
from posenc_lib.bias.window import (
    ClsWindowBias,
    IRPEBias,
    WindowBias,
)
from posenc_lib.positions import arange, from_mask, grid
from posenc_lib.scheme import PositionScheme

BIASES = [name for name, scheme in SCHEMES.items() if scheme.bias is not None]

every_bias = pytest.mark.parametrize("name", BIASES)


@every_bias
def test_shapes_for_a_cache_and_for_batches(name: str) -> None:
    bias, m, n = bias_of(name), arange(3, offset=4), arange(7)
    alone = bias(m, n)
    assert alone.shape == (1, HEADS, 3, 7)
    assert same(
        alone, bias(n, n)[:, :, 4:]
    )  # Bug 39: queries stand where their positions say
    rows = torch.stack((m, m + 2))
    batched = bias(rows, n)
    assert batched.shape == bias(m, n.expand(2, -1)).shape == (2, HEADS, 3, 7)
    assert same(batched[:1], alone)
    assert same(batched[1:], bias(m + 2, n))
    assert same(batched, bias(rows, n.expand(2, -1)))


@pytest.mark.parametrize(
    "name", [name for name in BIASES if "grid" in NOT.get((name, "relative"), "")]
)
def test_relative_on_the_grid(name: str) -> None:
    positions = arange(
        12, offset=1 if name in ("BEiT", "iRPE cross") else 0
    )  # no class token, which stays where it is
    assert torch.equal(
        bias_of(name)(positions, positions),
        bias_of(name)(positions + 40, positions + 40),
    )


@pytest.mark.parametrize("made_on", ["meta"])
def test_bug_79_nothing_is_made_on_the_default_device(made_on: str) -> None:
    positions = arange(5)
    wanted = {name: bias_of(name)(positions, positions) for name in BIASES}
    with torch.device(made_on):
        for name, bias in wanted.items():
            assert torch.equal(bias_of(name)(positions, positions), bias)


def small_modules() -> dict[str, tuple[nn.Module, Tensor]]:
    points, line = grid((2, 2)), arange(4, offset=3)
    return {
        "KERPLE, logarithmic": (KerpleLog(2, generator=seeded()), line),
        "KERPLE, power": (KerplePower(2, generator=seeded()), line),
        "FIRE": (FIRE(2, hidden=3, threshold=4.5, generator=seeded()), line),
        "window": (WindowBias(2, (2, 2), std=1.0, generator=seeded()), points),
        "class window": (loud(ClsWindowBias(2, (2, 2))), with_class(points)),
        "iRPE": (loud(IRPEBias(2)), with_class(points)),
        "CrossFormer": (loud(DynamicPositionBias(2, 3)), points),
        "Network of the distance": (DistanceMLPBias(2, 3, generator=seeded()), line),
        "Swin-V2": (loud(LogCoordinateBias(2, (3, 3), hidden=3)), points),
    }


@pytest.mark.parametrize("name", small_modules())
def test_gradients_of_parameters(name: str) -> None:
    module, positions = small_modules()[name]
    module = module.double()
    names = [n for n, _ in module.named_parameters()]

    def outputs(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(
            module, dict(zip(names, parameters, strict=True)), (positions, positions)
        )

    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(outputs, values)
    used = torch.autograd.grad(outputs(*values).square().sum(), values)
    assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in used)


def test_biases_read_positions_from_a_mask() -> None:
    """Bug 15: real tokens of a padded row have the bias of the row alone."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    positions = from_mask(mask)
    for name in BIASES:
        padded, alone = (
            bias_of(name)(positions, positions),
            bias_of(name)(arange(3), arange(3)),
        )
        assert same(padded[:1, :, 2:, 2:], alone), name


def test_grid_wrapper_of_the_examples_is_what_it_says() -> None:
    wrapped = SCHEMES["BEiT"].bias
    assert isinstance(wrapped, OnGrid)
    assert wrapped.points(arange(6)).tolist() == [
        [-1, -1],
        [0, 0],
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 0],
    ]
    assert isinstance(SCHEMES["FIRE"], PositionScheme)
