"""The rotation of few numbers, where starting an operation takes longer than its work.

    interleaved:  e^{iα} (a + ib)
    half:         (−sin α, sin α) · (b, a) + (cos α, cos α) · (a, b)

These are the fewest operations that PyTorch has for it. They are the equation's own
multiplications and additions, but the second form needs memory for (b, a) and reads it
again, so that long tensors are slower with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib._torch import in_transform
from posenc_lib.rotary._apply import complex_in_place
from posenc_lib.rotary.pairs import Layout

SHORT = 2**16  # numbers of a tensor up to which this form is the faster one
FEW = 2**11  # numbers of a table up to which its factors are made: a few tokens
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # computed in float32

Factors = tuple[Tensor, ...]


def factors_of(cos: Tensor, sin: Tensor, layout: Layout) -> Factors:
    """(e^{iα},) or ((cos α, cos α), (−sin α, sin α)); none where they are of no use.

    They would be so for many tokens; where the tables have a gradient or change, as
    parameters do; and in what looks into each operation (compile, vmap, a trace).
    """
    if (
        torch.compiler.is_compiling()
        or any(
            type(t) is not Tensor or t.dtype != torch.float32 or t.requires_grad
            for t in (cos, sin)
        )
        or cos.numel() > FEW
        or in_transform(cos)
    ):
        return ()
    if layout == "interleaved":
        return (torch.complex(cos, sin),)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def is_short(x: Tensor, width: int, factors: Factors) -> bool:
    """Whether `rotate_short` is the form for x, with `width` rotated channels."""
    return (
        bool(factors)
        and not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.shape[-1] == width
        and x.dtype in DTYPES
        and x.numel() <= SHORT
        and not (x.requires_grad and torch.is_grad_enabled())
        and not in_transform(x)
    )


def rotate_short(x: Tensor, factors: Factors) -> Tensor:
    """x rotated in all its channels, as a new tensor."""
    y = x if x.dtype == torch.float32 else x.float()
    if len(factors) == 2:
        cosines, sines = factors
        swapped = y.roll(y.shape[-1] // 2, -1)  # (b, a)
        product = y * cosines if y is x else y.mul_(cosines)
        y = product.addcmul_(swapped, sines)
    else:
        if not complex_in_place(y):
            y = y.clone(memory_format=torch.contiguous_format)
        product = y.view(torch.complex64) * factors[0]
        if product.stride(-1) != 1:  # of one pair, or of no numbers
            product = product.clone(memory_format=torch.contiguous_format)
        y = product.view(torch.float32)
    return y if x.dtype == torch.float32 else y.type_as(x)


def are_short(q: Tensor, k: Tensor, width: int, factors: Factors) -> bool:
    """Whether `rotate_joined` is the form for q and k, which differ in their heads.

    With a gradient they stay apart: PyTorch lets no one write into a part of a whole
    then, and the results would be parts.
    """
    return (
        is_short(q, width, factors)
        and type(k) is Tensor
        and k.dtype == q.dtype
        and q.numel() + k.numel() <= SHORT
        and q.dim() == k.dim() == 4
        and (k.shape == q.shape or _but_for_heads(k) == _but_for_heads(q))
        and not torch.is_grad_enabled()
    )


def _but_for_heads(x: Tensor) -> tuple[int, ...]:
    return (x.shape[0], *x.shape[2:])


def rotate_joined(q: Tensor, k: Tensor, factors: Factors) -> tuple[Tensor, Tensor]:
    """q (B, H, T, d) and k (B, Hk, T, d), rotated as one tensor of H + Hk heads."""
    rotated = rotate_short(torch.cat((q, k), 1), factors)
    rotated_q, rotated_k = rotated.split_with_sizes((q.shape[1], k.shape[1]), 1)
    return rotated_q, rotated_k
