"""Parameters drawn as the encodings begin with them."""

from __future__ import annotations

import torch
from torch import nn

from posenc_lib import _checks


def normal(*shape: int, std: float, generator: torch.Generator | None) -> nn.Parameter:
    """A parameter drawn from N(0, std²)."""
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=_checks.positive("std", std), generator=generator))


def linear(inputs: int, outputs: int, *, generator: torch.Generator | None) -> nn.Linear:
    """A linear map without a bias, uniform in ±1/√inputs as PyTorch's own, but from the generator."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.uniform_(layer.weight, -(inputs**-0.5), inputs**-0.5, generator=generator)
    return layer
