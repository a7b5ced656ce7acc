"""Initial values of parameters, drawn from the given generator and no other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks


def normal(*shape: int, std: float, generator: torch.Generator | None) -> nn.Parameter:
    """A parameter drawn from N(0, std²)."""
    return nn.Parameter(
        nn.init.normal_(
            torch.empty(shape), std=_checks.positive("std", std), generator=generator
        )
    )


def uniform(
    *shape: int, inputs: int, generator: torch.Generator | None
) -> nn.Parameter:
    """A parameter drawn uniformly in ±1/√inputs, as PyTorch's own layers are."""
    return nn.Parameter(
        nn.init.uniform_(
            torch.empty(shape), -(inputs**-0.5), inputs**-0.5, generator=generator
        )
    )


def linear(weight: Tensor) -> nn.Linear:
    """A linear map without a bias, from its weight (outputs, inputs).

    Its constructor would draw a weight from the global generator.
    """
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer
