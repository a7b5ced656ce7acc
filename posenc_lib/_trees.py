"""Trees of draft tokens: who descends from whom."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib._torch import values_known


def ancestors(parents: Tensor) -> Tensor:
    """(N, N), True where the column is the row or one of its ancestors."""
    if (
        not isinstance(parents, Tensor)
        or parents.is_floating_point()
        or parents.is_complex()
    ):
        kind = getattr(parents, "dtype", type(parents).__name__)
        raise TypeError(f"parents must be a tensor of integers, got {kind}")
    if parents.dim() != 1 or parents.shape[0] == 0:
        raise ValueError(
            "parents must have shape (N,) with at least one token, got "
            f"{tuple(parents.shape)}"
        )
    index = torch.arange(parents.shape[0], device=parents.device)
    if values_known(parents) and not bool(((parents >= -1) & (parents < index)).all()):
        raise ValueError(
            "parents must be −1 for a root, or an index before the token's own; got "
            f"{parents.tolist()}"
        )
    # Each squaring doubles the number of generations that are seen; the matrix counts
    # paths, at most one.
    seen = ((index[:, None] == index) | (parents[:, None] == index)).to(torch.float32)
    for _ in range(parents.shape[0].bit_length()):
        seen = (seen @ seen > 0).to(torch.float32)
    return seen > 0
