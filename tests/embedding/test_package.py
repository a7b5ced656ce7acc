"""What all embeddings have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.embedding import SCHEMES, WIDTH, cycle, path, uniform
from helpers import normal, seeded
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from posenc_lib.embedding.convolutional import PEG, ConvolutionalEmbedding
from posenc_lib.embedding.fourier import (
    LearnableFourier,
    gaussian_matrix,
    nerf,
    perceiver_fourier,
    random_fourier,
    timestep,
)
from posenc_lib.embedding.graph import (
    laplacian,
    laplacian_eigenvectors,
    random_signs,
    random_walk,
    signnet,
)
from posenc_lib.embedding.grid import LearnedGrid, resize_grid, sinusoidal_grid
from posenc_lib.frequencies import pixel_frequencies
from posenc_lib.positions import arange, grid
from posenc_lib.properties import max_error


def embedding_of(name: str) -> Callable[[Tensor], Tensor]:
    embedding = SCHEMES[name].embedding
    assert embedding is not None
    return embedding


@pytest.mark.parametrize("name", SCHEMES)
def test_examples_have_a_row_for_each_position(name: str) -> None:
    embedding, positions = embedding_of(name), arange(12)
    table = embedding(positions)
    assert table.shape == (12, WIDTH)
    rows = torch.stack((positions[:5], positions[4:9]))
    assert max_error(embedding(rows), table[rows]) <= 1e-6
    assert (
        len(table.round(decimals=4).unique(dim=0)) == 12
    )  # no two positions share a row


def layers() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    return {
        "learnable Fourier": (
            LearnableFourier(3, axes=2, features=4, hidden=3, generator=seeded()),
            (uniform(3, 2),),
        ),
        "learned grid": (LearnedGrid((2, 3), 2, generator=seeded()), (grid((2, 3)),)),
        "PEG": (PEG(2, prefix_tokens=1, generator=seeded()), (normal(1, 7, 2), (2, 3))),
        "convolution": (
            ConvolutionalEmbedding(4, kernel=4, groups=2, generator=seeded()),
            (normal(1, 5, 4),),
        ),
    }


@pytest.mark.parametrize("name", layers())
def test_gradients(name: str) -> None:
    module, inputs = layers()[name]
    module = module.double()
    names = [n for n, _ in module.named_parameters()]

    def outputs(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(
            module, dict(zip(names, parameters, strict=True)), inputs
        )

    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(outputs, values)
    used = torch.autograd.grad(outputs(*values).square().sum(), values)
    assert all(bool((g != 0).any()) for g in used)
    if inputs[0].dim() == 3:  # tokens, which the gradient passes too
        x = inputs[0].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: module(x, *inputs[1:]), [x])


def everything(
    positions: Tensor, adjacency: Tensor, x: Tensor, frames: Tensor
) -> list[Tensor]:
    """Every function and layer of the group once, in one graph."""
    points = torch.stack((positions, positions + 1), -1)
    return [
        nerf(points, 3),
        random_fourier(points, MATRIX),
        perceiver_fourier(points, 3, (4, 6)),
        timestep(positions, 7, shift=1, cosine_first=False),
        sinusoidal_grid(points, 8, layout="function"),
        resize_grid(GRID.table, (3, 5)),
        GRID(points.clamp(max=1)),
        LEARNABLE(points),
        PEG2(x, (2, 3)),
        WAV(frames),
        laplacian(adjacency),
        laplacian_eigenvectors(adjacency, 3),
        random_walk(adjacency, 3),
        signnet(adjacency.double(), torch.tanh, torch.exp),
    ]


MATRIX = gaussian_matrix(3, 2, std=1.0, generator=seeded())

GRID = LearnedGrid((2, 2), 3, generator=seeded())

LEARNABLE = LearnableFourier(3, axes=2, features=4, hidden=3, generator=seeded())

PEG2 = PEG(2, generator=seeded())

WAV = ConvolutionalEmbedding(4, kernel=4, groups=2, generator=seeded())


def example_inputs(length: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        arange(length),
        path(length),
        normal(1, 6, 2).float(),
        normal(1, length, 4).float(),
    )


def test_bug_81_all_compile_without_a_break() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(everything, backend=counter, fullgraph=True)
    with torch.no_grad():
        for length in (5, 6, 9):
            inputs = example_inputs(length)
            for i in (0, 3):
                torch._dynamo.mark_dynamic(inputs[i], 0 if i == 0 else 1)
            torch._dynamo.mark_dynamic(inputs[1], 0)
            torch._dynamo.mark_dynamic(inputs[1], 1)
            for one, other in zip(compiled(*inputs), everything(*inputs), strict=True):
                assert max_error(one, other) <= 1e-6
    assert counter.frame_count == 1


def test_bug_79_nothing_is_made_on_the_default_device() -> None:
    wanted = everything(*example_inputs())
    inputs = example_inputs()
    with torch.device("meta"):
        for one, other in zip(everything(*inputs), wanted, strict=True):
            assert torch.equal(one, other)
        assert gaussian_matrix(2, 2, std=1.0).device.type == "cpu"
        assert (
            pixel_frequencies(3, 8).device.type
            == pixel_frequencies(3, 8, spacing="geometric").device.type
            == "cpu"
        )
        assert random_signs(torch.ones(2, 3, device="cpu")).device.type == "cpu"


def test_vmap_over_examples() -> None:
    rows, graphs = (
        torch.stack((arange(4), arange(4, offset=9))),
        torch.stack((path(4), cycle(4))),
    )

    x, frames = normal(1, 6, 2).float(), normal(1, 4, 4).float()

    def one(positions: Tensor, graph: Tensor) -> list[Tensor]:
        return everything(positions, graph, x, frames)

    mapped = torch.func.vmap(one)(rows, graphs)
    alone = [one(*pair) for pair in zip(rows, graphs, strict=True)]
    for i, out in enumerate(mapped):
        assert max_error(out, torch.stack([results[i] for results in alone])) <= 1e-6
