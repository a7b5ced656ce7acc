"""Which channels form a pair, and the rotation of a pair as the paper has it.

    interleaved: pair i = channels 2i, 2i+1       x0 x1 | x2 x3 | x4 x5
    half:        pair i = channels i, i + r/2     x0 x3 | x1 x4 | x2 x5

The paper, GPT-J and Meta's Llama code are interleaved; GPT-NeoX and Llama in
transformers have the half layout.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from posenc_lib import _checks

Layout = Literal["interleaved", "half"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Rotate every pair: x (..., T, d), tables (..., T, r/2) → (..., T, d)."""
    width = 2 * cos.shape[-1]
    pairs = split_pairs(x.narrow(-1, 0, width), layout)
    a, b = (member.to(cos.dtype) for member in pairs)  # two of (..., T, r/2)
    first, second = a * cos - b * sin, a * sin + b * cos
    rotated = join_pairs(first.to(x.dtype), second.to(x.dtype), layout)
    return torch.cat((rotated, x[..., width:]), -1) if x.shape[-1] > width else rotated


def split_pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The first and the second members of all pairs: (..., r) → two of (..., r/2)."""
    if layout == "half":
        first, second = x.chunk(2, -1)
    else:
        first, second = x[..., ::2], x[..., 1::2]
    return first, second


def join_pairs(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """The inverse of `split_pairs`: two of (..., r/2) → (..., r)."""
    if layout == "half":
        return torch.cat((first, second), -1)
    width = 2 * first.shape[-1]
    return torch.stack((first, second), -1).reshape(*first.shape[:-1], width)


def convert_layout(
    x: Tensor, *, source: Layout, target: Layout, rotary_dim: int | None = None
) -> Tensor:
    """Move the channels of vectors from one pair layout to the other.

    Equation: half(x[σ]) = interleaved(x)[σ],  σ = (0, 2, 4, …, 1, 3, 5, …)
    Shapes: (..., d) → (..., d)

    Args:
        x: vectors whose last axis is the head dimension d.
        source: the layout of x, "interleaved" or "half".
        target: the layout of the result.
        rotary_dim: number of leading channels r that are rotated, even; all d by
            default. The others keep their order.

    Raises:
        TypeError, ValueError: an unknown layout; an odd or too large `rotary_dim`.

    Source: su2021
    Checked: golden; parity
    Chapter: 10
    """
    _checks.one_of("source", source, LAYOUTS)
    _checks.one_of("target", target, LAYOUTS)
    if not isinstance(x, Tensor) or x.dim() < 1:
        raise TypeError(f"x must be a tensor with at least one dimension, got {x!r}")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    _checks.even_dimension("rotary_dim", width)
    if width > x.shape[-1]:
        raise ValueError(
            f"rotary_dim must be at most the {x.shape[-1]} channels of x, got {width}"
        )
    pairs = split_pairs(x[..., :width], source)
    return torch.cat((join_pairs(*pairs, target), x[..., width:]), -1)


def convert_projection(
    weight: Tensor,
    heads: int,
    *,
    source: Layout,
    target: Layout,
    rotary_dim: int | None = None,
) -> Tensor:
    """Move the outputs of a query or key projection from one layout to the other.

    Equation: W′ = P W,  P = σ ⊕ … ⊕ σ, one σ a head: then half(W′x) and interleaved(Wx)
        give the same scores
    Shapes: weight (H·d, D) → (H·d, D); bias (H·d,) → (H·d,)

    Convert query and key, weights and biases; values and the output projection stay.
    With grouped queries `heads` is the number of key heads for the key.

    Args:
        weight: weight of `nn.Linear`, output channels first, or its bias.
        heads: H, a divisor of the first axis.
        source: the layout of the weight.
        target: the layout of the result.
        rotary_dim: as in `convert_layout`.

    Raises:
        TypeError, ValueError: `heads` does not divide the first axis; then as
            `convert_layout`.

    Source: su2021
    Chapter: 10
    """
    _checks.whole_number("heads", heads, least=1)
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor, got {type(weight).__name__}")
    if weight.dim() < 1 or weight.shape[0] % heads:
        raise ValueError(
            f"weight must have a first axis that {heads} heads divide, "
            f"got shape {tuple(weight.shape)}"
        )
    by_head = weight.reshape(heads, weight.shape[0] // heads, *weight.shape[1:])
    converted = convert_layout(
        by_head.movedim(1, -1),  # (H, ..., d)
        source=source,
        target=target,
        rotary_dim=rotary_dim,
    )
    return converted.movedim(-1, 1).flatten(0, 1)
