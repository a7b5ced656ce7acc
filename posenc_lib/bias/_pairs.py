"""What biases share: offsets between coordinates, the order of axes, small networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import uniform


def integer_coordinates(name: str, value: Any, axes: int) -> Tensor:
    """Integers (T, axes) or (B, T, axes), whose differences are rows of a table."""
    positions = _checks.coordinates(name, value, axes=axes, batched=True)
    if positions.is_floating_point():
        raise TypeError(
            f"{name} must be integers, whose differences are rows of a table; got "
            f"{positions.dtype}"
        )
    return positions


def pairs(q_values: Tensor, k_values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of queries and keys as a column and a row, to broadcast to all pairs.

    From (T, c) they broadcast to (Tq, Tk, c), from (B, T, c) to (B, 1, Tq, Tk, c).
    """
    m, n = q_values, k_values
    if m.dim() == n.dim() == 2:
        return m[:, None], n[None, :]
    if m.dim() == n.dim() and not _checks.same_batch(m, n):
        raise ValueError(
            f"q_positions and k_positions must have the same batch, got {m.shape[0]} "
            f"and {n.shape[0]}"
        )
    m = m if m.dim() == 3 else m[None]
    n = n if n.dim() == 3 else n[None]
    return m[:, None, :, None], n[:, None, None, :]


def batched(bias: Tensor) -> Tensor:
    """(H, Tq, Tk) → (1, H, Tq, Tk), and (B, H, Tq, Tk) → the same."""
    return bias if bias.dim() == 4 else bias[None]


def heads_first(values: Tensor) -> Tensor:
    """(Tq, Tk, H) → (1, H, Tq, Tk), and (B, 1, Tq, Tk, H) → (B, H, Tq, Tk)."""
    bias = values.movedim(-1, -3)
    return bias[None] if bias.dim() == 3 else bias.squeeze(1)


def bucket_by_edges(distances: Tensor, edges: Sequence[int]) -> Tensor:
    """The last bucket whose smallest distance, its edge, is not above the distance."""
    bounds = torch.tensor(edges, device=distances.device)
    return torch.bucketize(distances, bounds, right=True) - 1


def dense(widths: Sequence[int], generator: torch.Generator | None) -> nn.ParameterList:
    """Weight and bias of each linear layer, W₁ c₁ W₂ c₂ …, in ±1/√inputs.

    `nn.Linear` would draw from the global generator.
    """
    parameters = nn.ParameterList()
    for inputs, outputs in pairwise(widths):
        for shape in ((outputs, inputs), (outputs,)):
            parameters.append(uniform(*shape, inputs=inputs, generator=generator))
    return parameters


def run_dense(
    parameters: nn.ParameterList, x: Tensor, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """The network of these layers in the dtype of x: (..., inputs) → (..., outputs)."""
    layers = [parameter.to(x.dtype) for parameter in parameters]
    with _checks.without_autocast(x.device):
        for i in range(0, len(layers), 2):
            x = activation(x) if i else x
            x = torch.nn.functional.linear(x, layers[i], layers[i + 1])
    return x
