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
    """The adjacency matrix in float64, if it is one."""
    if not isinstance(value, Tensor) or value.is_complex():
        raise TypeError(
            "adjacency must be a real tensor, got "
            f"{getattr(value, 'dtype', type(value).__name__)}"
        )
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.numel() == 0:
        raise ValueError(
            "adjacency must have shape (..., n, n) with at least one node, "
            f"got {tuple(value.shape)}"
        )
    matrix = _checks.in_float64(value)
    if values_known(matrix):
        wrong = ~(matrix.isfinite() & (matrix >= 0))
        if bool(wrong.any()):
            raise ValueError(
                "adjacency must hold finite weights of at least 0, "
                f"got {matrix[wrong][0].item()}"
            )
        if symmetric and not bool((matrix == matrix.mT).all()):
            raise ValueError(
                "adjacency must be symmetric, got a directed graph: "
                "its Laplacian has no orthogonal basis"
            )
    return matrix


def laplacian(adjacency: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The symmetrically normalised Laplacian of a graph.

    Equation: Δ = I − D^(−1/2) A D^(−1/2),  D the degrees; the row of a node without
        edges is 0      (dwivedi2021)
    Shapes: (..., n, n) → (..., n, n)

    Its eigenvalues lie in 0 … 2, and 0 occurs once for each component of the graph. For
    isolated nodes this holds only with the convention above; the released code has
    Δ = 1 there.

    Args:
        adjacency: A, symmetric, weights of at least 0.
        dtype: of the result; it is computed in float64.

    Raises:
        TypeError, ValueError: an adjacency that is not a square matrix of finite
            weights of at least 0, or not symmetric. Checks of values run on plain CPU
            tensors only; elsewhere the caller must ensure them.

    Source: dwivedi2021, dwivedi2023
    Chapter: 17
    """
    _checks.floating_dtype("dtype", dtype)
    matrix = _adjacency(adjacency, symmetric=True)
    return _laplacian(matrix).to(dtype).to(adjacency.device)


def _laplacian(matrix: Tensor) -> Tensor:
    degree = matrix.sum(-1)
    root = torch.where(degree > 0, degree, 1.0) ** -0.5
    identity = torch.diag_embed((degree > 0).to(matrix.dtype))  # 0 for isolated nodes
    return identity - root[..., :, None] * matrix * root[..., None, :]


def laplacian_eigenvectors(
    adjacency: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Laplacian position encoding: the slowest waves on the graph.

    Equation: Δ u_j = λ_j u_j,  p_i = (u_{c+1}(i), …, u_{c+k}(i)),
        c = number of λ_j = 0      (dwivedi2021)
    Shapes: (..., n, n) → (..., n, k); zeros in the columns for which the graph has no
        eigenvector left

    On a path these are cosines, weighted by √degree. All c constant waves are left out,
    one for each component; the released code leaves out the first only. The rest is not
    unique: every eigenvector may have the other sign (`random_signs` in training, or
    `signnet`), and where an eigenvalue is repeated, as on a cycle, any basis of its
    space is valid.

    Args:
        adjacency: as in `laplacian`.
        count: k, at least 1; it may exceed the number of eigenvectors.
        dtype: of the result; it is computed in float64.

    Raises:
        TypeError, ValueError: as `laplacian`; `count` is not an integer ≥ 1.

    Source: dwivedi2021, dwivedi2023
    Checked:
        graphdeeplearning/graphtransformer@c9cd49368eed:data/molecules.py:laplacian_positional_encoding
    Chapter: 17
    """
    _checks.whole_number("count", count, least=1)
    _checks.floating_dtype("dtype", dtype)
    matrix = _adjacency(adjacency, symmetric=True)
    values, vectors = torch.linalg.eigh(_laplacian(matrix))  # values ascend
    nodes = values.shape[-1]
    # Rounding leaves zeros at a few ε; any other eigenvalue of n nodes is above 1/n³,
    # for weights of 0 and 1.
    zeros = (values < 8 * nodes * torch.finfo(values.dtype).eps).sum(-1, keepdim=True)
    column = zeros + torch.arange(count, device=values.device)  # (..., k)
    index = column.clamp(max=nodes - 1)[..., None, :]  # (..., 1, k)
    chosen = vectors.gather(-1, index.expand(*vectors.shape[:-1], count))
    encoding = torch.where((column < nodes)[..., None, :], chosen, 0.0)  # (..., n, k)
    return encoding.to(dtype).to(adjacency.device)


def random_signs(
    vectors: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """Every eigenvector with a random sign, so that a model learns to ignore signs.

    Equation: p_i ← (s_1 u_1(i), …, s_k u_k(i)),  s_j = ±1 with equal chance
        (dwivedi2021)
    Shapes: (..., n, k) → (..., n, k)

    For training. The released code has one draw for all graphs of a batch.

    Args:
        vectors: eigenvectors, one a column.
        generator: of the draw.

    Raises:
        TypeError, ValueError: vectors that are not a floating-point tensor (..., n, k).

    Source: dwivedi2021, dwivedi2023
    Checked:
        graphdeeplearning/graphtransformer@c9cd49368eed:train/train_molecules_graph_regression.py:train_epoch
    Chapter: 17
    """
    _checks.floating_tensor("vectors", vectors, least_dims=2)
    _checks.generator("generator", generator)
    shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
    device = torch.device("cpu") if generator is None else generator.device
    signs = 2 * torch.randint(2, shape, generator=generator, device=device) - 1
    return vectors * signs.to(vectors.device, vectors.dtype)


def signnet(
    vectors: Tensor,
    network: Callable[[Tensor], Tensor],
    readout: Callable[[Tensor], Tensor],
) -> Tensor:
    """SignNet: a network's outputs for an eigenvector and its negative are added.

    Equation: f(u_1, …, u_k) = ρ([φ(u_j) + φ(−u_j)]_j)      (lim2023)
    Shapes: (..., n, k) → φ sees (..., k, n, 1) → (..., k, n, c); ρ sees (..., n, k·c)

    So the sign has no effect. The ambiguity of repeated eigenvalues remains.

    Args:
        vectors: eigenvectors, one a column.
        network: φ, the same for each eigenvector; a graph network in the paper.
        readout: ρ.

    Raises:
        TypeError, ValueError: vectors that are not a floating-point tensor (..., n, k),
            networks that can't be called.

    Source: lim2023
    Checked:
        cptq/SignNet-BasisNet@07f31187823f:GraphPrediction/layers/deepsigns.py:GINDeepSigns.forward
    Chapter: 17
    """
    _checks.floating_tensor("vectors", vectors, least_dims=2)
    _checks.callable_("network", network)
    _checks.callable_("readout", readout)
    columns = vectors.mT[..., None]  # (..., k, n, 1)
    even = network(columns) + network(-columns)  # (..., k, n, c)
    return readout(even.transpose(-3, -2).flatten(-2))


def random_walk(
    adjacency: Tensor, count: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Random-walk position encoding: the return probabilities after 1, 2, … k steps.

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
        TypeError, ValueError: an adjacency that is not a square matrix of finite
            weights of at least 0 (values are checked on plain CPU tensors only);
            `count` is not an integer ≥ 1.

    Source: dwivedi2022
    Checked:
        vijaydwivedi75/gnn-lspe@6b38443677be:data/molecules.py:init_positional_encoding
    Chapter: 17
    """
    _checks.whole_number("count", count, least=1)
    _checks.floating_dtype("dtype", dtype)
    matrix = _adjacency(adjacency, symmetric=False)
    degree = matrix.sum(-2, keepdim=True)  # (..., 1, n): weights that leave each node
    step = matrix / torch.where(degree > 0, degree, 1.0)
    power, returns = step, [step.diagonal(dim1=-2, dim2=-1)]
    for _ in range(count - 1):
        power = power @ step
        returns.append(power.diagonal(dim1=-2, dim2=-1))
    return torch.stack(returns, -1).to(dtype).to(adjacency.device)
