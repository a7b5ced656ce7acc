"""Positions from convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal, seeded
from torch import nn

from posenc_lib.embedding.convolutional import PEG, ConvolutionalEmbedding
from posenc_lib.properties import equivariance_error, max_error


@pytest.mark.parametrize(
    ("size", "kernel", "prefix"),
    [((2, 3), 3, 0), ((3, 2), 5, 1), ((1, 4), 1, 2), ((4, 4), 3, 1)],
)
def test_peg_is_the_equation(size: tuple[int, int], kernel: int, prefix: int) -> None:
    module = (
        PEG(2, kernel=kernel, prefix_tokens=prefix, generator=seeded())
        .double()
        .requires_grad_(False)
    )
    module.bias.copy_(normal(2, seed=1))
    rows, columns = size
    x = normal(2, prefix + rows * columns, 2)
    out, image, reach = (
        module(x, size),
        x[:, prefix:].view(2, rows, columns, 2),
        kernel // 2,
    )
    assert bool((out[:, :prefix] == 0).all())
    for r, c in itertools.product(range(rows), range(columns)):
        wanted = module.bias.expand(2, 2).clone()
        for i, j in itertools.product(range(-reach, reach + 1), repeat=2):
            if 0 <= r + i < rows and 0 <= c + j < columns:
                wanted += (
                    image[:, r + i, c + j] * module.weight[:, 0, i + reach, j + reach]
                )
        assert max_error(out[:, prefix + r * columns + c], wanted) <= 1e-12


def test_peg_learns_of_positions_from_the_padding_alone() -> None:
    """Equal tokens.

    Inside they all get the same, at the border something else; padded in a circle, all
    the same.
    """
    module = PEG(3, kernel=3, generator=seeded()).double()
    x = normal(3).expand(1, 30, 3)
    out = module(x, (5, 6)).view(5, 6, 3)
    assert max_error(out[1:-1, 1:-1], out[1, 1].expand(3, 4, 3)) <= 1e-12
    assert max_error(out[0, 0], out[1, 1]) > 0.1
    image = torch.nn.functional.pad(
        x.mT.reshape(1, 3, 5, 6), (1, 1, 1, 1), mode="circular"
    )
    circle = torch.nn.functional.conv2d(image, module.weight, module.bias, groups=3)
    assert max_error(circle, circle[..., :1, :1].expand_as(circle)) <= 1e-12

    permutation = torch.randperm(30, generator=seeded())
    token = normal(1, 30, 3, seed=2)
    assert equivariance_error(lambda t: module(t, (5, 6)), token, permutation) > 0.1
    assert (
        equivariance_error(
            lambda t: PEG(3, kernel=1).double()(t * 0, (5, 6)), token, permutation
        )
        == 0.0
    )


def test_peg_follows_any_size_of_grid() -> None:
    module = PEG(2, generator=seeded()).double()
    x = normal(1, 6, 2)
    assert torch.equal(module(x, (2, 3)), module(x, [2, 3]))
    assert not torch.equal(module(x, (2, 3)), module(x, (3, 2)))
    std = PEG(1000, kernel=3, generator=seeded()).weight.detach().std()
    assert float(std) == pytest.approx(math.sqrt(2) / 3, rel=0.03)


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (2, 1), (3, 2), (4, 4), (8, 2)])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_convolution_is_the_equation(kernel: int, groups: int, length: int) -> None:
    module = (
        ConvolutionalEmbedding(4, kernel=kernel, groups=groups, generator=seeded())
        .double()
        .requires_grad_(False)
    )
    module.magnitude.copy_(normal(1, 1, kernel, seed=1))
    module.bias.copy_(normal(4, seed=2))
    x = normal(2, length, 4, seed=3)
    out, width = module(x), 4 // groups
    assert out.shape == x.shape
    for t, channel in itertools.product(range(length), range(4)):
        total = module.bias[channel].expand(2).clone()
        for j in range(kernel):
            frame = t + j - kernel // 2
            if 0 <= frame < length:
                tap = module.direction[..., j]
                tap = tap * module.magnitude[0, 0, j] / tap.square().sum().sqrt()
                first = channel // width * width
                total += x[:, frame, first : first + width] @ tap[channel]
        assert max_error(out[:, t, channel], torch.nn.functional.gelu(total)) <= 1e-12


def test_convolution_is_pytorchs_weight_norm() -> None:
    """The released code.

    Conv1d with a norm over everything but the taps, less the last frame of an even
    kernel.
    """
    module = ConvolutionalEmbedding(
        32, kernel=128, groups=16, generator=seeded()
    ).double()
    conv = torch.nn.utils.parametrizations.weight_norm(
        nn.Conv1d(32, 32, 128, padding=64, groups=16, dtype=torch.float64), dim=2
    )
    conv.load_state_dict(
        {
            "bias": module.bias,
            "parametrizations.weight.original0": module.magnitude,
            "parametrizations.weight.original1": module.direction,
        }
    )
    x = normal(2, 50, 32)
    full = conv(x.mT)
    assert full.shape[-1] == 51
    assert max_error(module(x), torch.nn.functional.gelu(full[..., :-1]).mT) <= 1e-12
    assert float(module.direction.detach().std()) == pytest.approx(
        2 / math.sqrt(128 * 32), rel=0.03
    )
    assert (
        max_error(conv.weight, module.direction) <= 1e-7
    )  # at first the norm is the direction's own, in float32


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "PEG: kernel": (
        lambda: PEG(2, kernel=2),
        ValueError,
        "kernel must be odd",
    ),
    "PEG: prefix_tokens": (
        lambda: PEG(2, prefix_tokens=-1),
        ValueError,
        "prefix_tokens",
    ),
    "PEG: size": (
        lambda: PEG(2)(normal(1, 6, 2), 6),  # type: ignore[arg-type]
        TypeError,
        "size",
    ),
    "PEG(2)(normal(1, 7, 2), (2, 3))": (
        lambda: PEG(2)(normal(1, 7, 2), (2, 3)),
        ValueError,
        r"x must have shape \(B, 6, 2\)",
    ),
    "PEG(2)(normal(6, 2), (2, 3))": (
        lambda: PEG(2)(normal(6, 2), (2, 3)),
        ValueError,
        "x must have",
    ),
    "ConvolutionalEmbedding: dim": (
        lambda: ConvolutionalEmbedding(4, groups=3),
        ValueError,
        "dim must be a multiple of groups = 3",
    ),
    "ConvolutionalEmbedding: kernel": (
        lambda: ConvolutionalEmbedding(4, kernel=0, groups=2),
        ValueError,
        "kernel",
    ),
    "ConvolutionalEmbedding(4, groups=2)(normal(1, 5, 3))": (
        lambda: ConvolutionalEmbedding(4, groups=2)(normal(1, 5, 3)),
        ValueError,
        r"x must have shape \(B, T, 4\)",
    ),
    "ConvolutionalEmbedding: integers": (
        lambda: ConvolutionalEmbedding(4, groups=2)(
            torch.ones(1, 5, 4, dtype=torch.int64)
        ),
        TypeError,
        "x must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
