"""Positions of the nodes of a graph, from its Laplacian and from random walks.

A graph is its adjacency matrix, (..., n, n): weights of at least 0, or booleans.
Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known


def _adjacency(value: Any, *, symmetric: bool) -> Tensor:
    """The adjacency matrix in float64; on the CPU where the device has no float64 (Apple's mps)."""
    if not isinstance(value, Tensor) or value.is_complex():
        raise TypeError(
            "adjacency must be a real tensor, got "
            f"{getattr(value, 'dtype', type(value).__name__)}"
        )
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.numel() == 0:
        raise ValueError(
            "adjacency must have shape (..., n, n) with at least one node, got "
            f"{tuple(value.shape)}"
        )
    matrix = (value.cpu() if value.device.type == "mps" else value).to(torch.float64)
    if values_known(matrix):
        wrong = ~(matrix.isfinite() & (matrix >= 0))
        if bool(wrong.any()):
            raise ValueError(
                "adjacency must hold finite weights of at least 0, got "
                f"{matrix[wrong][0].item()}"
            )
        if symmetric and not bool((matrix == matrix.mT).all()):
            raise ValueError(
                "adjacency must be symmetric, got a directed graph: its Laplacian has "
                "no basis of its own"
            )
    return matrix


def laplacian(adjacency: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The symmetrically normalised Laplacian of a graph.

    Equation: Δ = I − D^(−1/2) A D^(−1/2),  D the degrees; the row of a node without
        edges is 0      (dwivedi2021)
    Shapes: (..., n, n) → (..., n, n)

    Its eigenvalues lie in 0 … 2, and 0 comes as often as the graph has components. That
    holds for single nodes too only with the convention above; some code has Δ = 1
    there.

    Args:
        adjacency: A, symmetric, weights of at least 0.
        dtype: of the result; it is computed in float64.

    Raises:
        TypeError, ValueError: an adjacency that is no square matrix of finite weights
            of at least 0, or not symmetric. Checks of values run on plain CPU tensors
            only; elsewhere they are the caller's to keep.

    Source: dwivedi2021, dwivedi2023
    Chapter: 17
    """
    _checks.floating_dtype("dtype", dtype)
    return (
        _laplacian(_adjacency(adjacency, symmetric=True)).to(dtype).to(adjacency.device)
    )


def _laplacian(matrix: Tensor) -> Tensor:
    degree = matrix.sum(-1)
    root = torch.where(degree > 0, degree, 1.0) ** -0.5
    return (
        torch.diag_embed((degree > 0).to(matrix.dtype))
        - root[..., :, None] * matrix * root[..., None, :]
    )


def laplacian_eigenvectors(
    adjacency: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Laplacian position encoding: the slowest waves on the graph; on a path these are cosines, weighted by √degree.

    Equation: Δ u_j = λ_j u_j,  p_i = (u_{c+1}(i), …, u_{c+k}(i)),  c = number of λ_j =
        0      (dwivedi2021)
    Shapes: (..., n, n) → (..., n, k); zeros in the columns for which the graph has no
        eigenvector left

    All c constant waves are left out, one for each component, not only the first. What
    is left is not unique: every eigenvector may have the other sign (`random_signs` in
    training, or `signnet`), and where an eigenvalue is repeated, as on a cycle, any
    basis of its space will do.

    Args:
        adjacency: as in `laplacian`.
        count: k, at least 1; it may exceed what there is.
        dtype: of the result; it is computed in float64.

    Raises:
        TypeError, ValueError: as `laplacian`; `count` is not an integer ≥ 1.

    Source: dwivedi2021, dwivedi2023
    Chapter: 17
    """
    _checks.whole_number("count", count, least=1)
    _checks.floating_dtype("dtype", dtype)
    values, vectors = torch.linalg.eigh(
        _laplacian(_adjacency(adjacency, symmetric=True))
    )  # values ascend
    nodes = values.shape[-1]
    # Rounding leaves zeros at a few ε; any other eigenvalue of n nodes is above 1/n³
    # (weights of 0 and 1).
    zeros = (values < 8 * nodes * torch.finfo(values.dtype).eps).sum(-1, keepdim=True)
    column = zeros + torch.arange(count, device=values.device)  # (..., k)
    chosen = vectors.gather(
        -1, column.clamp(max=nodes - 1)[..., None, :].expand(*vectors.shape[:-1], count)
    )
    return (
        torch.where((column < nodes)[..., None, :], chosen, 0.0)
        .to(dtype)
        .to(adjacency.device)
    )


def random_signs(
    vectors: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """Every eigenvector with a sign drawn at random: in training, so that the model learns that signs mean nothing.

    Equation: p_i ← (s_1 u_1(i), …, s_k u_k(i)),  s_j = ±1 with equal chance
        (dwivedi2021)
    Shapes: (..., n, k) → (..., n, k)

    Args:
        vectors: eigenvectors, one a column.
        generator: of the draw.

    Raises:
        TypeError, ValueError: vectors that are no floating-point tensor (..., n, k).

    Source: dwivedi2021, dwivedi2023
    Chapter: 17
    """
    _checks.floating_tensor("vectors", vectors, least_dims=2)
    shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
    _checks.generator("generator", generator)
    place = torch.device("cpu") if generator is None else generator.device
    signs = 2 * torch.randint(2, shape, generator=generator, device=place) - 1
    return vectors * signs.to(vectors.device, vectors.dtype)


def signnet(
    vectors: Tensor,
    network: Callable[[Tensor], Tensor],
    readout: Callable[[Tensor], Tensor],
) -> Tensor:
    """SignNet: what a network says of an eigenvector and of its negative, added up: the sign is gone.

    Equation: f(u_1, …, u_k) = ρ([φ(u_j) + φ(−u_j)]_j)      (lim2023)
    Shapes: (..., n, k) → φ sees (..., k, n, 1) → (..., k, n, c); ρ sees (..., n, k·c)

    It removes the ambiguity of signs, not that of repeated eigenvalues.

    Args:
        vectors: eigenvectors, one a column.
        network: φ, the same for each eigenvector; a graph network in the paper.
        readout: ρ.

    Raises:
        TypeError, ValueError: vectors that are no floating-point tensor (..., n, k),
            networks that can't be called.

    Source: lim2023
    Chapter: 17
    """
    _checks.floating_tensor("vectors", vectors, least_dims=2)
    for name, value in (("network", network), ("readout", readout)):
        if not callable(value):
            raise TypeError(f"{name} must be a callable, got {value!r}")
    columns = vectors.mT[..., None]  # (..., k, n, 1)
    return readout((network(columns) + network(-columns)).transpose(-3, -2).flatten(-2))


def random_walk(
    adjacency: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Random-walk position encoding: the chances to be back where one began after 1, 2, … k steps.

    Equation: p_i = (R_ii, (R²)_ii, …, (R^k)_ii),  R = A D⁻¹, a column 0 for a node
        without edges      (dwivedi2022)
    Shapes: (..., n, n) → (..., n, k)

    No eigenvectors, so no signs. Two nodes that a symmetry of the graph exchanges have
    the same encoding.

    Args:
        adjacency: A, weights of at least 0; A_ij is the edge from j to i, should the
            two directions differ.
        count: k, at least 1.
        dtype: of the result; it is computed in float64.

    Raises:
        TypeError, ValueError: an adjacency that is no square matrix of finite weights
            of at least 0 (values are checked on plain CPU tensors only); `count` is not
            an integer ≥ 1.

    Source: dwivedi2022
    Chapter: 17
    """
    _checks.whole_number("count", count, least=1)
    _checks.floating_dtype("dtype", dtype)
    matrix = _adjacency(adjacency, symmetric=False)
    degree = matrix.sum(-2, keepdim=True)  # (..., 1, n): what leaves each node
    step = matrix / torch.where(degree > 0, degree, 1.0)
    power, returns = step, [step.diagonal(dim1=-2, dim2=-1)]
    for _ in range(count - 1):
        power = power @ step
        returns.append(power.diagonal(dim1=-2, dim2=-1))
    return torch.stack(returns, -1).to(dtype).to(adjacency.device)
