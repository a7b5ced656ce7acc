"""The rotation in as few passes over memory as PyTorch has for it: the numbers of `rotate_pairs`, sooner."""

from __future__ import annotations

from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import in_transform, one_storage, values_known
from posenc_lib.rotary.pairs import rotate_pairs, split_pairs

BLOCK = 2**20  # numbers that are rotated at once where that takes several passes


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, out: Tensor | None = None
) -> Tensor:
    """`rotate_pairs`, written straight into the result; tables broadcast to x's leading axes."""
    compute = _checks.at_least_float32(x.dtype, cos.dtype)
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    given = (x, cos, sin) if out is None else (x, cos, sin, _checked_out(out, x))
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if out is not None and wants_gradient:
        raise ValueError(
            "out must be None where a gradient is wanted: what is written over has "
            "none; got a tensor"
        )
    if torch.compiler.is_compiling() or in_transform(x):
        # The compiler fuses the equation into one pass over memory; op by op, each of
        # its terms is a pass.
        rotated = rotate_pairs(x, cos, sin, layout)
        return rotated if out is None else out.copy_(rotated)
    if wants_gradient:
        return cast(Tensor, _ApplyRotary.apply(x, cos, sin, layout))  # type: ignore[no-untyped-call]
    in_place = False
    if out is None:
        out = torch.empty_like(x)
    elif one_storage(out, x):
        # One memory: at the same places, or x must be kept while it is written over.
        in_place = (out.storage_offset(), out.stride()) == (
            x.storage_offset(),
            x.stride(),
        )
        x = x if in_place else x.clone()
    elif _share_memory(out, x):
        x = x.clone()
    # e^{iα} is made once for all blocks.
    tables = (
        (cos, sin, torch.complex(cos, sin)) if layout == "interleaved" else (cos, sin)
    )
    _write_rotated(out, x, tables, layout, in_place=in_place)
    return out


def apply_rotary_per_head(
    name: str, x: Tensor, cos: Tensor, sin: Tensor, layout: str
) -> Tensor:
    """`Rotation` for tables (H, T, r/2) or (B, H, T, r/2), which differ from head to head."""
    heads, length, width = cos.shape[-3], cos.shape[-2], 2 * cos.shape[-1]
    if x.dim() != 4 or x.shape[1] != heads:
        raise ValueError(
            f"{name} must have {heads} heads, as (B, H, T, d); got {tuple(x.shape)}"
        )
    if x.shape[3] < width:
        raise ValueError(
            f"{name} must have at least {width} channels, got {x.shape[3]}"
        )
    if x.shape[2] != length or (cos.dim() == 4 and x.shape[0] != cos.shape[0]):
        wanted = (*cos.shape[:-3], length)
        raise ValueError(
            f"{name} must have one token for each position {wanted}, got shape "
            f"{tuple(x.shape)}"
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
    # of the axes that step less far; where the next step is no further, two numbers
    # have one place
    reach = 0
    for step, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and step <= reach and out.numel():
            raise ValueError(
                "out must have memory for each of its numbers, got one of strides "
                f"{out.stride()}"
            )
        reach += step * (size - 1)
    return out


def _share_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two storages may be one memory, as those of one NumPy array are."""
    if not (values_known(one) and values_known(two)):
        return False
    a, b = one.untyped_storage(), two.untyped_storage()
    return (
        a.data_ptr() < b.data_ptr() + b.nbytes()
        and b.data_ptr() < a.data_ptr() + a.nbytes()
    )


class _ApplyRotary(torch.autograd.Function):
    """`apply_rotary` and its gradient: the same with −α, which needs the tables but not x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(
            x if cos.requires_grad or sin.requires_grad else None, cos, sin
        )
        return apply_rotary(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        grad_cos = grad_sin = None
        if x is not None:
            width = 2 * cos.shape[-1]
            (a, b), (c, d) = (
                split_pairs(y.narrow(-1, 0, width).to(cos.dtype), ctx.layout)
                for y in (x, grad)
            )
            grad_cos = (a * c + b * d).sum_to_size(cos.shape)
            grad_sin = (a * d - b * c).sum_to_size(sin.shape)
        grad_x = (
            apply_rotary(grad, cos, -sin, ctx.layout)
            if ctx.needs_input_grad[0]
            else None
        )
        return grad_x, grad_cos, grad_sin, None


def _write_rotated(
    out: Tensor, x: Tensor, tables: tuple[Tensor, ...], layout: str, *, in_place: bool
) -> None:
    """x rotated into `out`, which is x if `in_place`, by as few passes over memory as PyTorch has for it.

    The tables are cos α and sin α, and e^{iα} in the interleaved layout.
    """
    cos, sin, *turns = tables
    width = 2 * cos.shape[-1]
    if x.shape[-1] > width:
        out[..., width:].copy_(x[..., width:])
        out, x = out[..., :width], x[..., :width]
    if turns and x.dtype == cos.dtype and _complex_in_place(x, out):
        (e,) = turns
        torch.mul(
            x.view(e.dtype), e, out=out.view(e.dtype)
        )  # one pass: e^{iα} (a + ib)
        return
    if (
        not isinstance(x.numel(), torch.SymInt)
        and x.numel() > BLOCK
        and x.dim() > 1
        and x.device.type == "cpu"
    ):
        # Several passes should find their numbers in the cache: as many rows at once as
        # that allows, or parts of one.
        rows = max(1, BLOCK * len(x) // x.numel())
        for i in range(0, len(x), rows):
            own = (
                t[i : i + rows] if t.dim() == x.dim() and len(t) > 1 else t
                for t in tables
            )
            parts = (out[i : i + rows], x[i : i + rows], *own)
            o, y, *ts = (
                t.squeeze(0) if rows == 1 and t.dim() == x.dim() else t for t in parts
            )
            _write_rotated(o, y, tuple(ts), layout, in_place=in_place)
        return
    if x.dtype != cos.dtype:
        wide = x.to(cos.dtype)
        _write_rotated(wide, wide, tables, layout, in_place=True)
        out.copy_(wide)
        return
    first, second = split_pairs(out, layout)
    a, b = (
        (first.clone(), second) if in_place else split_pairs(x, layout)
    )  # a is wanted when `first` is written over
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=second).addcmul_(a, sin)


def _complex_in_place(*tensors: Tensor) -> bool:
    """Whether pairs lie in memory as complex numbers do: members next to each other, the first at an even place."""
    return all(
        type(x) in (Tensor, torch.nn.Parameter)
        and x.stride(-1) == 1
        and gcd(x.storage_offset(), *x.stride()[:-1]) % 2 == 0
        and x.data_ptr() % (2 * x.element_size())
        == 0  # NumPy may give memory that begins between
        and not x.is_neg()
        for x in tensors
    )
