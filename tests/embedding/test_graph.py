"""Encodings of graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.embedding import cycle, path
from helpers import normal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.embedding.graph import (
    laplacian,
    laplacian_eigenvectors,
    random_signs,
    random_walk,
    signnet,
)
from posenc_lib.properties import max_error


def union(*graphs: Tensor) -> Tensor:
    return torch.block_diag(*(graph.double() for graph in graphs))


SINGLE = torch.zeros(1, 1)


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(nodes=st.integers(1, 7), seed=st.integers(0, 999))
def test_laplacian_is_the_equation(nodes: int, seed: int) -> None:
    weights = torch.rand(
        nodes, nodes, generator=seeded(seed), dtype=torch.float64
    ).triu(1)
    weights = weights * (weights > 0.6)
    weights = weights + weights.mT
    degree = weights.sum(-1).tolist()
    out = laplacian(weights, dtype=torch.float64)
    for i, j in itertools.product(range(nodes), repeat=2):
        wanted = float(i == j and degree[i] > 0)
        if weights[i, j] > 0:
            wanted -= float(weights[i, j]) / math.sqrt(degree[i] * degree[j])
        assert float(out[i, j]) == pytest.approx(wanted, abs=1e-14)
    values = torch.linalg.eigvalsh(out)
    assert float(values.min()) > -1e-12
    assert float(values.max()) < 2 + 1e-12


def components(graph: Tensor) -> int:
    nodes = graph.shape[-1]
    reached = (
        torch.linalg.matrix_power(
            graph.double() + torch.eye(nodes, dtype=torch.float64), nodes
        )
        > 0
    )
    return len(reached.unique(dim=0))


GRAPHS = {
    "path": path(6),
    "cycle": cycle(5),
    "complete": ~torch.eye(4, dtype=torch.bool),
    "two paths": union(path(3), path(4)),
    "path, cycle and two single nodes": union(path(4), cycle(5), SINGLE, SINGLE),
    "no edges": torch.zeros(3, 3),
    "one node": SINGLE,
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("count", [1, 3, 12])
def test_all_constant_waves_are_left_out(name: str, count: int) -> None:
    graph, nodes = GRAPHS[name], GRAPHS[name].shape[-1]
    delta, zeros = laplacian(graph, dtype=torch.float64), components(GRAPHS[name])
    out = laplacian_eigenvectors(graph, count, dtype=torch.float64)
    assert out.shape == (nodes, count)
    found = min(count, nodes - zeros)
    assert bool((out[:, found:] == 0).all())
    if found == 0:
        return
    values = torch.linalg.eigvalsh(delta)[zeros : zeros + found]
    vectors = out[:, :found]
    assert float(values.min()) > 1e-3
    assert max_error(delta @ vectors, vectors * values) <= 1e-12
    assert (
        max_error(vectors.mT @ vectors, torch.eye(found, dtype=torch.float64)) <= 1e-12
    )
    constant = (
        graph.double().sum(-1).sqrt()
    )  # of the whole graph: D^(1/2) 1 belongs to the eigenvalue 0
    assert (
        max_error(constant @ vectors, torch.zeros(found, dtype=torch.float64)) <= 1e-12
    )


def test_eigenvectors_of_a_path_are_cosines() -> None:
    nodes = 9
    out = laplacian_eigenvectors(path(nodes), nodes - 1, dtype=torch.float64)
    degree = path(nodes).double().sum(-1)
    for j in range(1, nodes):
        wave = (
            degree.sqrt()
            * (
                math.pi * j * torch.arange(nodes, dtype=torch.float64) / (nodes - 1)
            ).cos()
        )
        wave = wave / wave.norm()
        assert abs(float(wave @ out[:, j - 1])) == pytest.approx(1, abs=1e-12)


def test_a_long_path_keeps_its_slowest_wave() -> None:
    """Its eigenvalue, π²/(2 n²), is small and not zero."""
    nodes = 300
    out = laplacian_eigenvectors(path(nodes), 1, dtype=torch.float64)[:, 0]
    wave = (
        path(nodes).double().sum(-1).sqrt()
        * (math.pi * torch.arange(nodes, dtype=torch.float64) / (nodes - 1)).cos()
    )
    assert abs(float(out @ wave / wave.norm())) == pytest.approx(1, abs=1e-9)


def test_repeated_eigenvalues_leave_a_space_and_not_a_basis() -> None:
    """On a cycle sine and cosine of one frequency share an eigenvalue.

    Only the projection on both is the graph's.
    """
    out = laplacian_eigenvectors(cycle(6), 2, dtype=torch.float64)
    angle = 2 * math.pi * torch.arange(6, dtype=torch.float64) / 6
    basis = torch.stack((angle.cos(), angle.sin()), -1) / math.sqrt(3)
    assert max_error(out @ out.mT, basis @ basis.mT) <= 1e-12


def test_graphs_in_a_batch_are_graphs_alone() -> None:
    batch = torch.stack((path(5).double(), union(path(2), path(3)), torch.zeros(5, 5)))
    for function in (laplacian_eigenvectors, random_walk):
        together = function(batch, 6, dtype=torch.float64)
        for i, graph in enumerate(batch):
            assert (
                max_error(
                    together[i].abs(), function(graph, 6, dtype=torch.float64).abs()
                )
                <= 1e-12
            )


def test_random_signs_flip_whole_eigenvectors() -> None:
    vectors = normal(2, 4, 200)
    out = random_signs(vectors, generator=seeded())
    signs = out / vectors
    assert max_error(signs, signs[:, :1].expand_as(signs)) == 0.0
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert 0.4 < float((signs[:, 0] > 0).double().mean()) < 0.6
    assert not torch.equal(signs[0, 0], signs[1, 0])  # each graph has its own
    assert random_signs(vectors.to(torch.bfloat16)).dtype == torch.bfloat16


def test_signnet_is_the_equation_and_blind_to_signs() -> None:
    w1, w2 = normal(1, 5), normal(15, 2, seed=1)

    def network(u: Tensor) -> Tensor:
        return (u @ w1 + 1).relu()  # neither even nor odd

    def readout(features: Tensor) -> Tensor:
        return features @ w2

    vectors = normal(4, 3)
    out = signnet(vectors, network, readout)
    for node in range(4):
        told = [
            network(vectors[node, j].view(1)) + network(-vectors[node, j].view(1))
            for j in range(3)
        ]
        assert max_error(out[node], readout(torch.cat(told))) <= 1e-12
    assert (
        max_error(signnet(vectors * torch.tensor([1, -1, -1]), network, readout), out)
        == 0.0
    )
    assert max_error(network(-vectors[..., None]), network(vectors[..., None])) > 0.1
    assert signnet(vectors.expand(2, 4, 3), network, readout).shape == (2, 4, 2)


@pytest.mark.parametrize("name", GRAPHS)
def test_random_walk_is_the_equation(name: str) -> None:
    graph = GRAPHS[name].double()
    nodes = len(graph)
    degree = graph.sum(0).tolist()
    step = torch.tensor(
        [
            [float(graph[i, j]) / degree[j] if degree[j] else 0.0 for j in range(nodes)]
            for i in range(nodes)
        ],
        dtype=torch.float64,
    )
    out = random_walk(graph, 5, dtype=torch.float64)
    for k in range(1, 6):
        assert (
            max_error(out[:, k - 1], torch.linalg.matrix_power(step, k).diagonal())
            <= 1e-12
        )


def test_random_walk_on_graphs_that_are_known() -> None:
    # no way back to where one began in an odd number of steps on a path, or on any
    # graph with two colours
    assert bool((random_walk(path(7), 9)[:, ::2] == 0).all())
    # on a complete graph of n nodes the walk has the eigenvalues 1 and, n − 1 times,
    # −1/(n − 1)
    out = random_walk(GRAPHS["complete"], 6, dtype=torch.float64)
    wanted = [(1 + 3 * (-1 / 3) ** k) / 4 for k in range(1, 7)]
    assert (
        max_error(out, torch.tensor(wanted, dtype=torch.float64).expand(4, 6)) <= 1e-12
    )
    directed = torch.tensor(
        [[0.0, 0.0], [1.0, 0.0]]
    )  # an edge from node 0 to node 1, and nothing back
    assert bool((random_walk(directed, 3) == 0).all())
    # from node 0 to 1 or, three times as often, to 2; both lead back
    weighted = torch.tensor([[0.0, 5.0, 2.0], [1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    returns = torch.tensor([[0, 1, 0, 1], [0, 0.25, 0, 0.25], [0, 0.75, 0, 0.75]])
    assert max_error(random_walk(weighted, 4), returns) <= 1e-6


def test_graph_encodings_follow_the_names_of_the_nodes() -> None:
    """Renaming the nodes renames the rows: up to signs for eigenvectors."""
    graph, order = union(path(4), SINGLE), torch.tensor([3, 0, 4, 1, 2])
    renamed = graph[order][:, order]
    assert (
        max_error(
            random_walk(renamed, 4, dtype=torch.float64),
            random_walk(graph, 4, dtype=torch.float64)[order],
        )
        < 1e-12
    )
    vectors = laplacian_eigenvectors(graph, 3, dtype=torch.float64)[order]
    assert (
        max_error(
            laplacian_eigenvectors(renamed, 3, dtype=torch.float64).abs(), vectors.abs()
        )
        <= 1e-12
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64],
)
def test_graphs_of_any_dtype(dtype: torch.dtype) -> None:
    graph = path(5).to(dtype)
    assert torch.equal(laplacian(graph), laplacian(path(5)))
    assert torch.equal(random_walk(graph, 3), random_walk(path(5), 3))
    assert laplacian_eigenvectors(graph, 2).dtype == torch.float32


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "laplacian(normal(2, 3))": (
        lambda: laplacian(normal(2, 3)),
        ValueError,
        "adjacency must have shape",
    ),
    "laplacian([[0.0]])": (
        lambda: laplacian([[0.0]]),  # type: ignore[arg-type]
        TypeError,
        "adjacency",
    ),
    "laplacian(-path(3).double())": (
        lambda: laplacian(-path(3).double()),
        ValueError,
        "adjacency must hold finite weights of at least 0, got -1.0",
    ),
    "laplacian(path(3).double().triu())": (
        lambda: laplacian(path(3).double().triu()),
        ValueError,
        "adjacency must be symmetric",
    ),
    "laplacian: dtype": (
        lambda: laplacian(path(3), dtype=torch.int64),
        TypeError,
        "dtype",
    ),
    "laplacian_eigenvectors: count": (
        lambda: laplacian_eigenvectors(path(3), 0),
        ValueError,
        "count",
    ),
    "random_walk: count": (
        lambda: random_walk(path(3), 0),
        ValueError,
        "count",
    ),
    "random_walk: adjacency": (
        lambda: random_walk(path(3) * math.nan, 2),
        ValueError,
        "adjacency",
    ),
    "random_signs: vectors": (
        lambda: random_signs(torch.ones(3)),
        ValueError,
        "vectors",
    ),
    "signnet: network": (
        lambda: signnet(normal(3, 2), None, torch.exp),  # type: ignore[arg-type]
        TypeError,
        "network",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
