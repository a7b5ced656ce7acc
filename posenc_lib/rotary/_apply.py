"""Rotations applied to tensors: the numbers of `rotate_pairs`, in fewer passes."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import in_transform, one_storage, values_known
from posenc_lib.rotary.pairs import Layout, rotate_pairs, split_pairs

BLOCK = 2**20  # numbers that are rotated at once where that takes several passes


class _Tables(NamedTuple):
    """cos α, sin α and, in the interleaved layout, e^{iα}; they broadcast to x."""

    cos: Tensor
    sin: Tensor
    phasors: Tensor | None


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, *, out: Tensor | None = None
) -> Tensor:
    """The same numbers as `rotate_pairs`, written straight into the result or `out`.

    Tables broadcast to x's leading axes.
    """
    compute = _checks.at_least_float32(x.dtype, cos.dtype)
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    operands = (x, cos, sin) if out is None else (x, cos, sin, _checked_out(out, x))
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
    if out is not None and wants_gradient:
        raise ValueError(
            "out must be None where a gradient is wanted: "
            "a tensor that is overwritten has none; got a tensor"
        )
    if torch.compiler.is_compiling() or in_transform(x):
        # The compiler fuses the equation into one pass over memory, while each of the
        # operations below would be a pass.
        rotated = rotate_pairs(x, cos, sin, layout)
        return rotated if out is None else out.copy_(rotated)
    if wants_gradient:
        return cast(Tensor, _ApplyRotary.apply(x, cos, sin, layout))  # type: ignore[no-untyped-call]
    in_place = False
    if out is None:
        out = torch.empty_like(x)
    else:
        in_place = _same_elements(out, x)
        if not in_place and _may_overlap(out, x):
            x = x.clone()  # it is read after parts of `out` are written
    # e^{iα} is computed once for all blocks.
    phasors = torch.complex(cos, sin) if layout == "interleaved" else None
    _write_rotated(out, x, _Tables(cos, sin, phasors), layout, in_place=in_place)
    return out


def apply_rotary_per_head(
    name: str, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout
) -> Tensor:
    """`apply_rotary` for one table a head: (H, T, r/2) or (B, H, T, r/2)."""
    heads, length, width = cos.shape[-3], cos.shape[-2], 2 * cos.shape[-1]
    if x.dim() != 4 or x.shape[1] != heads:
        raise ValueError(
            f"{name} must have {heads} heads, as (B, H, T, d); got {tuple(x.shape)}"
        )
    if x.shape[3] < width:
        raise ValueError(
            f"{name} must have at least {width} channels, got {x.shape[3]}"
        )
    if x.shape[2] != length or (cos.dim() == 4 and cos.shape[0] not in (1, x.shape[0])):
        raise ValueError(
            f"{name} must have one token for each position "
            f"{(*cos.shape[:-3], length)}, got shape {tuple(x.shape)}"
        )
    return apply_rotary(x, cos, sin, layout)


def _checked_out(out: Any, x: Tensor) -> Tensor:
    """`out` if the rotated x can be written into it."""
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a tensor or None, got {out!r}")
    if (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"out must be like x, {tuple(x.shape)} in {x.dtype} on {x.device}; "
            f"got {tuple(out.shape)} in {out.dtype} on {out.device}"
        )
    # Every index needs memory of its own. Go through the axes from the smallest stride
    # to the largest: with the axes so far, indices differ by up to `reach` numbers in
    # memory. The next axis must step farther, or its second entry may begin among the
    # numbers of its first, as in an expanded tensor, whose stride is 0.
    reach = 0
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and stride <= reach and out.numel():
            raise ValueError(
                "out must have memory for each of its numbers, "
                f"got one of strides {out.stride()}"
            )
        reach += stride * (size - 1)
    return out


def _same_elements(out: Tensor, x: Tensor) -> bool:
    """Whether each index means the same memory in both tensors."""
    return (
        one_storage(out, x)
        and out.storage_offset() == x.storage_offset()
        and out.stride() == x.stride()
    )


def _may_overlap(out: Tensor, x: Tensor) -> bool:
    """Whether writing into `out` may change x: views of one storage or one memory.

    Two storages are one memory where both are made from one NumPy array.
    """
    if one_storage(out, x):
        return True
    if not (values_known(out) and values_known(x)):
        return False
    a, b = out.untyped_storage(), x.untyped_storage()
    return (
        a.data_ptr() < b.data_ptr() + b.nbytes()
        and b.data_ptr() < a.data_ptr() + a.nbytes()
    )


class _ApplyRotary(torch.autograd.Function):
    """`apply_rotary` with its gradient, the rotation by −α: it needs no x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout
    ) -> Tensor:
        ctx.layout = layout
        learned_tables = cos.requires_grad or sin.requires_grad
        ctx.save_for_backward(x if learned_tables else None, cos, sin)
        return apply_rotary(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        grad_x = grad_cos = grad_sin = None
        if x is not None:
            width = 2 * cos.shape[-1]
            (a, b), (grad_a, grad_b) = (
                split_pairs(t.narrow(-1, 0, width).to(cos.dtype), ctx.layout)
                for t in (x, grad)
            )
            grad_cos = (a * grad_a + b * grad_b).sum_to_size(cos.shape)
            grad_sin = (a * grad_b - b * grad_a).sum_to_size(sin.shape)
        if ctx.needs_input_grad[0]:
            grad_x = apply_rotary(grad, cos, -sin, ctx.layout)
        return grad_x, grad_cos, grad_sin, None


def _write_rotated(
    out: Tensor, x: Tensor, tables: _Tables, layout: Layout, *, in_place: bool
) -> None:
    """Write the rotated x into `out`, which is x itself if `in_place`."""
    compute, width = tables.cos.dtype, 2 * tables.cos.shape[-1]
    if x.shape[-1] > width:
        out[..., width:].copy_(x[..., width:])
        out, x = out[..., :width], x[..., :width]
    if tables.phasors is not None and x.dtype == compute and complex_in_place(x, out):
        _write_products(out, x, tables.phasors)
    elif _exceeds_block(x):
        _write_blocks(out, x, tables, layout, in_place=in_place)
    elif x.dtype != compute:
        converted = x.to(compute)
        _write_rotated(converted, converted, tables, layout, in_place=True)
        out.copy_(converted)
    else:
        _write_pairs(out, x, tables, layout, in_place=in_place)


def _write_products(out: Tensor, x: Tensor, phasors: Tensor) -> None:
    """One pass: each pair is the complex number a + ib, and its product is e^{iα}."""
    torch.mul(x.view(phasors.dtype), phasors, out=out.view(phasors.dtype))


def _write_pairs(
    out: Tensor, x: Tensor, tables: _Tables, layout: Layout, *, in_place: bool
) -> None:
    """Four passes, two for each member of the pairs."""
    first, second = split_pairs(out, layout)
    if in_place:
        a, b = first.clone(), second  # a is read again after `first` is written
    else:
        a, b = split_pairs(x, layout)
    torch.mul(a, tables.cos, out=first).addcmul_(b, tables.sin, value=-1)
    torch.mul(b, tables.cos, out=second).addcmul_(a, tables.sin)


def _exceeds_block(x: Tensor) -> bool:
    """Whether several passes over x on the CPU would read it from memory each time."""
    return (
        not isinstance(x.numel(), torch.SymInt)
        and x.numel() > BLOCK
        and x.dim() > 1
        and x.device.type == "cpu"
    )


def _write_blocks(
    out: Tensor, x: Tensor, tables: _Tables, layout: Layout, *, in_place: bool
) -> None:
    """Block by block, so that all passes but the first find a block in the cache.

    A block is as many entries of the first axis as `BLOCK` allows; a single entry that
    is larger is divided along its own first axis.
    """
    count = max(1, BLOCK * len(x) // x.numel())
    for start in range(0, len(x), count):
        out_block, x_block, cos, sin = (
            _entries(t, start, count, x.dim()) for t in (out, x, tables.cos, tables.sin)
        )
        phasors = tables.phasors
        if phasors is not None:
            phasors = _entries(phasors, start, count, x.dim())
        block = _Tables(cos, sin, phasors)
        _write_rotated(out_block, x_block, block, layout, in_place=in_place)


def _entries(t: Tensor, start: int, count: int, axes: int) -> Tensor:
    """The part of t for `count` entries of the first of x's axes; one drops the axis.

    A tensor without that axis, or with one entry on it, holds for all of them.
    """
    if t.dim() < axes:
        return t
    part = t[start : start + count] if len(t) > 1 else t
    return part.squeeze(0) if count == 1 else part


def complex_in_place(*tensors: Tensor) -> bool:
    """Whether pairs lie in memory as complex numbers do, so that `view` can read them.

    The members are neighbours, and the first one has an even address in units of one
    number.
    """
    return all(
        type(x) in (Tensor, torch.nn.Parameter)
        and x.stride(-1) == 1
        and gcd(x.storage_offset(), *x.stride()[:-1]) % 2 == 0
        # NumPy may give memory that begins between two complex numbers.
        and x.data_ptr() % (2 * x.element_size()) == 0
        and not x.is_neg()
        for x in tensors
    )
