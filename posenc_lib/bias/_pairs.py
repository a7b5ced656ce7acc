"""What the biases of this place share: offsets between coordinates, the order of axes, small networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """`value` as ints of at least 1, one for each axis."""
    if (
        isinstance(value, (str, Tensor))
        or not isinstance(value, Sequence)
        or len(value) == 0
    ):
        raise TypeError(
            f"{name} must be one int for each axis, such as (7, 7); got {value!r}"
        )
    return tuple(
        _checks.whole_number(f"{name}[{i}]", size, least=1)
        for i, size in enumerate(value)
    )


def coordinates(name: str, value: Any, axes: int) -> Tensor:
    """Positions of shape (T, axes), shared by the batch, or (B, T, axes)."""
    positions = _checks.position_tensor(name, value)
    if positions.dim() not in (2, 3) or positions.shape[-1] != axes:
        raise ValueError(
            f"{name} must have shape (T, {axes}) or (B, T, {axes}), got "
            f"{tuple(positions.shape)}"
        )
    return positions


def integer_coordinates(name: str, value: Any, axes: int) -> Tensor:
    """`coordinates` that are integers, because their differences are rows of a table."""
    positions = coordinates(name, value, axes)
    if positions.is_floating_point():
        raise TypeError(
            f"{name} must be integers, whose differences are rows of a table; got "
            f"{positions.dtype}"
        )
    return positions


def pairs(q_values: Tensor, k_values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of queries and keys, (T, c) or (B, T, c), made to broadcast to (Tq, Tk, c) or (B, 1, Tq, Tk, c)."""
    m, n = q_values, k_values
    if m.dim() == n.dim() == 2:
        return m[:, None], n[None, :]
    if m.dim() == n.dim() and m.shape[0] != n.shape[0]:
        raise ValueError(
            f"q_positions and k_positions must have the same batch, got {m.shape[0]} "
            f"and {n.shape[0]}"
        )
    m = m if m.dim() == 3 else m[None]
    n = n if n.dim() == 3 else n[None]
    return m[:, None, :, None], n[:, None, None, :]


def heads_first(values: Tensor) -> Tensor:
    """(Tq, Tk, H) → (1, H, Tq, Tk), and (B, 1, Tq, Tk, H) → (B, H, Tq, Tk)."""
    bias = values.movedim(-1, -3)
    return bias[None] if bias.dim() == 3 else bias.squeeze(1)


def dense(widths: Sequence[int], generator: torch.Generator | None) -> nn.ParameterList:
    """Weight and bias of each linear layer, W₁ c₁ W₂ c₂ …, drawn uniformly in ±1/√(inputs), as PyTorch's own are.

    `nn.Linear` would draw from the global generator.
    """
    parameters = nn.ParameterList()
    for inputs, outputs in pairwise(widths):
        for shape in ((outputs, inputs), (outputs,)):
            parameters.append(nn.Parameter(torch.empty(shape)))
            nn.init.uniform_(
                parameters[-1], -(inputs**-0.5), inputs**-0.5, generator=generator
            )
    return parameters


def run_dense(
    parameters: nn.ParameterList, x: Tensor, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """The network with these layers, in the dtype of x: (..., inputs) → (..., outputs)."""
    layers = [parameter.to(x.dtype) for parameter in parameters]
    with _checks.without_autocast(x.device):
        for i in range(0, len(layers), 2):
            x = torch.nn.functional.linear(
                activation(x) if i else x, layers[i], layers[i + 1]
            )
    return x
