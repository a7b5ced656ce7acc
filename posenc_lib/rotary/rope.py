"""Rotary position embedding, in both layouts, for all or some of the channels.

interleaved (the paper, GPT-J, Meta's Llama code):   x0 x1 | x2 x3 | x4 x5      pair i = channels 2i, 2i+1
half        (Llama in transformers, GPT-NeoX):       x0 x3 | x1 x4 | x2 x5      pair i = channels i, i + r/2
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.frequencies import cos_sin

LAYOUTS = ("interleaved", "half")
BLOCK = 2**20  # numbers that are rotated at once where that takes several passes


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotation of every pair of channels, made once by `rope(positions)` and applied by every layer.

    Equation: (a, b) → (a cos α − b sin α,  a sin α + b cos α) for each pair, counter-clockwise      (su2021 eq. 34)
    Shapes: x (..., T, d) → (..., T, d); with batched positions x is (B, H, T, d)

    The first r channels are rotated, r = 2 × the number of frequencies; the others pass through bit by bit.
    `rotation(x, out=y)` writes into y, which may overlap x, `rotation(x, out=x)` in place; neither has a gradient.
    `rotation.inverse()` undoes it, `a @ b` or `a.after(b)` is "first b, then a": R(m) @ R(n) = R(m + n).

    Args:
        cos: (T, r/2), or (B, T, r/2) for positions of a batch, already multiplied by `scale`.
        sin: the same shape.
        layout: "interleaved" or "half": which channels form pair i.
        scale: the factor in cos and sin (a schedule's attention factor), 1 for a pure rotation.

    Raises:
        TypeError, ValueError: tables of different shape, an unknown layout, a scale that is not above 0. When called: x
            is not floating-point, has fewer than r channels, or has another length or batch than the positions; `out`
            is not like x, is expanded, or would need a gradient.

    Source: su2021
    Chapter: 10
    """

    cos: Tensor
    sin: Tensor
    layout: str = "interleaved"
    scale: float = 1.0

    def __post_init__(self) -> None:
        _checks.one_of("layout", self.layout, LAYOUTS)
        _checks.positive("scale", self.scale)
        _checks.floating_tensor("cos", self.cos, least_dims=2)
        _checks.floating_tensor("sin", self.sin, least_dims=2)
        if self.cos.shape != self.sin.shape or self.cos.dim() not in (2, 3):
            raise ValueError(
                "cos and sin must have one shape, (T, r/2) or (B, T, r/2); "
                f"got {tuple(self.cos.shape)} and {tuple(self.sin.shape)}"
            )

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        check_tokens(x, self.cos)
        cos, sin = self.cos, self.sin  # (T, r/2) or (B, T, r/2)
        if cos.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, r/2): one table for all heads
        return turn(x, cos, sin, self.layout, out=out)

    def inverse(self) -> Rotation:
        """The rotation by −m, which undoes this one (its scale included)."""
        return Rotation(self.cos / self.scale**2, -self.sin / self.scale**2, self.layout, 1 / self.scale)

    def __matmul__(self, other: Rotation) -> Rotation:
        """The same as `after`; torch.compile traces only the method's name."""
        return self.after(other) if isinstance(other, Rotation) else NotImplemented

    def after(self, other: Rotation) -> Rotation:
        """First `other`, then this one: the angles add up."""
        if not isinstance(other, Rotation):
            raise TypeError(f"other must be a Rotation, got {other!r}")
        if self.layout != other.layout or self.cos.shape != other.cos.shape:
            raise ValueError(
                "both rotations must have one layout and shape, got "
                f"{self.layout} {tuple(self.cos.shape)} and {other.layout} {tuple(other.cos.shape)}"
            )
        cos = self.cos * other.cos - self.sin * other.sin
        sin = self.sin * other.cos + self.cos * other.sin
        return Rotation(cos, sin, self.layout, self.scale * other.scale)


@dataclass(frozen=True, eq=False)
class RoPE:
    """Rotary position embedding: rotate query and key by their own positions; the score sees their difference.

    Equation: (R_m q)ᵀ (R_n k) = qᵀ R_{n−m} k,  R_m = ⊕_i rotation by m ω_i      (su2021 eq. 14–16, 34)
    Shapes: positions (T,) or (B, T) → a `Rotation`;  q (..., Tq, d), k (..., Tk, d) → the same shapes, with batched
        positions q (B, H, Tq, d), k (B, Hk, Tk, d)

    `rope(positions)` gives the rotation as a value, to be made once and applied in every layer. `rope.transform` is
    the same as one call on query and key. Nothing is cached, so no cast or copy of a model can spoil it.

    Args:
        frequencies: (r/2,) ω_i in radians per position, float64: `inverse_frequencies(d)`, or what a schedule returns.
            Fewer than d/2 of them rotate only the first r channels (partial rotary, as in GPT-J and GPT-NeoX).
        layout: "interleaved" is the paper's; "half" is what Llama weights in transformers expect.
        attention_factor: multiplies cos and sin, hence scores by its square; 1 without YaRN or LongRoPE.

    Raises:
        TypeError, ValueError: frequencies that are no float64 or float32 vector, an unknown layout, a factor that is
            not above 0; then as `Rotation`.

    Source: su2021
    Chapter: 10
    """

    frequencies: Tensor
    layout: str = "interleaved"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _checks.one_of("layout", self.layout, LAYOUTS)
        _checks.positive("attention_factor", self.attention_factor)
        _checks.vector("frequencies", self.frequencies, "r/2")

    def __call__(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        _checks.attention_positions("positions", positions)
        cos, sin = cos_sin(positions, self.frequencies, dtype=dtype)
        return Rotation(cos * self.attention_factor, sin * self.attention_factor, self.layout, self.attention_factor)

    def transform(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions; float64 tensors get float64 tables."""
        for name, x in (("q", q), ("k", k)):
            _checks.floating_tensor(name, x, least_dims=2)
        dtype = _checks.at_least_float32(q.dtype, k.dtype)
        q_rotation = self(_checks.attention_positions("q_positions", q_positions), dtype)
        k_rotation = self(_checks.attention_positions("k_positions", k_positions), dtype)
        check_tokens(q, q_rotation.cos, "q", "q_positions")
        check_tokens(k, k_rotation.cos, "k", "k_positions")
        return q_rotation(q), k_rotation(k)


def checked_rope(name: str, value: Any) -> RoPE:
    """`value` if it is a `RoPE`."""
    if not isinstance(value, RoPE):
        raise TypeError(f"{name} must be a RoPE, got {value!r}")
    return value


def check_tokens(x: Tensor, cos: Tensor, name: str = "x", positions: str = "positions") -> None:
    """Whether x has a token for each position of the table, and channels to turn."""
    _checks.floating_tensor(name, x, least_dims=2)
    length, width = cos.shape[-2], 2 * cos.shape[-1]
    if x.shape[-1] < width:
        raise ValueError(f"{name} must have at least {width} channels, which this rotation turns; got {x.shape[-1]}")
    if x.shape[-2] != length:
        raise ValueError(
            f"{name} must have one token for each of the {length} {positions} on its axis −2, as in (B, H, T, d); "
            f"got shape {tuple(x.shape)}"
        )
    if cos.dim() == 3 and (x.dim() != 4 or x.shape[0] != cos.shape[0]):
        raise ValueError(
            f"{name} must be (B, H, T, d) with B = {cos.shape[0]}, since {positions} were (B, T); "
            f"got shape {tuple(x.shape)}. Positions of shape (T,) are shared by any batch"
        )


def split_pairs(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """The first and the second members of all pairs: (..., r) → two of (..., r/2)."""
    if layout == "half":
        first, second = x.chunk(2, -1)
    else:
        first, second = x[..., ::2], x[..., 1::2]
    return first, second


def join_pairs(first: Tensor, second: Tensor, layout: str) -> Tensor:
    """The inverse of `split_pairs`: two of (..., r/2) → (..., r)."""
    if layout == "half":
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).reshape(*first.shape[:-1], 2 * first.shape[-1])


def turn_heads(name: str, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """`Rotation` for tables (H, T, r/2) or (B, H, T, r/2), which differ from head to head."""
    heads, length, width = cos.shape[-3], cos.shape[-2], 2 * cos.shape[-1]
    if x.dim() != 4 or x.shape[1] != heads:
        raise ValueError(f"{name} must have {heads} heads, as (B, H, T, d); got {tuple(x.shape)}")
    if x.shape[3] < width:
        raise ValueError(f"{name} must have at least {width} channels, got {x.shape[3]}")
    if x.shape[2] != length or (cos.dim() == 4 and x.shape[0] != cos.shape[0]):
        wanted = (*cos.shape[:-3], length)
        raise ValueError(f"{name} must have one token for each position {wanted}, got shape {tuple(x.shape)}")
    return turn(x, cos, sin, layout)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """The rotation of every pair, as the equation has it: x (..., T, d) and tables (..., T, r/2) → (..., T, d)."""
    width = 2 * cos.shape[-1]
    a, b = (part.to(cos.dtype) for part in split_pairs(x.narrow(-1, 0, width), layout))  # two of (..., T, r/2)
    first, second = (part.to(x.dtype) for part in (a * cos - b * sin, a * sin + b * cos))
    rotated = join_pairs(first, second, layout)
    return torch.cat((rotated, x[..., width:]), -1) if x.shape[-1] > width else rotated


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, out: Tensor | None = None) -> Tensor:
    """`rotate_pairs`, written straight into the result; tables broadcast to x's leading axes."""
    compute = _checks.at_least_float32(x.dtype, cos.dtype)
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    given = (x, cos, sin) if out is None else (x, cos, sin, _checked_out(out, x))
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if out is not None and wants_gradient:
        raise ValueError("out must be None where a gradient is wanted: what is written over has none; got a tensor")
    if torch.compiler.is_compiling() or _checks.transforming(x):
        # The compiler fuses the equation into one pass over memory; op by op, each of its terms is a pass.
        rotated = rotate_pairs(x, cos, sin, layout)
        return rotated if out is None else out.copy_(rotated)
    if wants_gradient:
        return cast(Tensor, _Turn.apply(x, cos, sin, layout))  # type: ignore[no-untyped-call]
    in_place = False
    if out is None:
        out = torch.empty_like(x)
    elif torch._C._is_alias_of(out, x):  # type: ignore[attr-defined]
        # One memory: at the same places, or x must be kept while it is written over.
        in_place = (out.storage_offset(), out.stride()) == (x.storage_offset(), x.stride())
        x = x if in_place else x.clone()
    elif _share_memory(out, x):
        x = x.clone()
    # e^{iα} is made once for all blocks.
    tables = (cos, sin, torch.complex(cos, sin)) if layout == "interleaved" else (cos, sin)
    _write_rotated(out, x, tables, layout, in_place=in_place)
    return out


def _checked_out(out: Any, x: Tensor) -> Tensor:
    """`out` if the rotated x can be written into it."""
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a tensor or None, got {out!r}")
    if (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"out must be like x, {tuple(x.shape)} in {x.dtype} on {x.device}; "
            f"got {tuple(out.shape)} in {out.dtype} on {out.device}"
        )
    reach = 0  # of the axes that step less far; where the next step is no further, two numbers have one place
    for step, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and step <= reach and out.numel():
            raise ValueError(f"out must have memory for each of its numbers, got one of strides {out.stride()}")
        reach += step * (size - 1)
    return out


def _share_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two storages may be one memory, as those of one NumPy array are."""
    if not (_checks.readable(one) and _checks.readable(two)):
        return False
    a, b = one.untyped_storage(), two.untyped_storage()
    return a.data_ptr() < b.data_ptr() + b.nbytes() and b.data_ptr() < a.data_ptr() + a.nbytes()


class _Turn(torch.autograd.Function):
    """`turn` and its gradient: the same with −α, which needs the tables but not x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(x if cos.requires_grad or sin.requires_grad else None, cos, sin)
        return turn(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        grad_cos = grad_sin = None
        if x is not None:
            width = 2 * cos.shape[-1]
            (a, b), (c, d) = (split_pairs(y.narrow(-1, 0, width).to(cos.dtype), ctx.layout) for y in (x, grad))
            grad_cos = (a * c + b * d).sum_to_size(cos.shape)
            grad_sin = (a * d - b * c).sum_to_size(sin.shape)
        grad_x = turn(grad, cos, -sin, ctx.layout) if ctx.needs_input_grad[0] else None
        return grad_x, grad_cos, grad_sin, None


def _write_rotated(out: Tensor, x: Tensor, tables: tuple[Tensor, ...], layout: str, *, in_place: bool) -> None:
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
        torch.mul(x.view(e.dtype), e, out=out.view(e.dtype))  # one pass: e^{iα} (a + ib)
        return
    if not isinstance(x.numel(), torch.SymInt) and x.numel() > BLOCK and x.dim() > 1 and x.device.type == "cpu":
        # Several passes should find their numbers in the cache: as many rows at once as that allows, or parts of one.
        rows = max(1, BLOCK * len(x) // x.numel())
        for i in range(0, len(x), rows):
            own = (t[i : i + rows] if t.dim() == x.dim() and len(t) > 1 else t for t in tables)
            parts = (out[i : i + rows], x[i : i + rows], *own)
            o, y, *ts = (t.squeeze(0) if rows == 1 and t.dim() == x.dim() else t for t in parts)
            _write_rotated(o, y, tuple(ts), layout, in_place=in_place)
        return
    if x.dtype != cos.dtype:
        wide = x.to(cos.dtype)
        _write_rotated(wide, wide, tables, layout, in_place=True)
        out.copy_(wide)
        return
    first, second = split_pairs(out, layout)
    a, b = (first.clone(), second) if in_place else split_pairs(x, layout)  # a is wanted when `first` is written over
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=second).addcmul_(a, sin)


def _complex_in_place(*tensors: Tensor) -> bool:
    """Whether pairs lie in memory as complex numbers do: members next to each other, the first at an even place."""
    return all(
        type(x) in (Tensor, torch.nn.Parameter)
        and x.stride(-1) == 1
        and gcd(x.storage_offset(), *x.stride()[:-1]) % 2 == 0
        and x.data_ptr() % (2 * x.element_size()) == 0  # NumPy may give memory that begins between
        and not x.is_neg()
        for x in tensors
    )


def convert_layout(x: Tensor, *, source: str, target: str, rotary_dim: int | None = None) -> Tensor:
    """Move the channels of vectors from one pair layout to the other.

    Equation: half(x[σ]) = interleaved(x)[σ],  σ = (0, 2, 4, …, 1, 3, 5, …)
    Shapes: (..., d) → (..., d)

    Args:
        x: vectors whose last axis is the head dimension d.
        source: layout that x is in, "interleaved" or "half".
        target: layout that is wanted.
        rotary_dim: number of leading channels r that are rotated, even; all d by default. The rest stays in place.

    Raises:
        TypeError, ValueError: an unknown layout; an odd or too large `rotary_dim`.

    Source: su2021
    Chapter: 10
    """
    _checks.one_of("source", source, LAYOUTS)
    _checks.one_of("target", target, LAYOUTS)
    if not isinstance(x, Tensor) or x.dim() < 1:
        raise TypeError(f"x must be a tensor with at least one dimension, got {x!r}")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    if _checks.even_dimension("rotary_dim", width) > x.shape[-1]:
        raise ValueError(f"rotary_dim must be at most the {x.shape[-1]} channels of x, got {width}")
    pairs = split_pairs(x[..., :width], source)
    return torch.cat((join_pairs(*pairs, target), x[..., width:]), -1)


def convert_projection(
    weight: Tensor, heads: int, *, source: str, target: str, rotary_dim: int | None = None
) -> Tensor:
    """Move the output channels of a query or key projection from one pair layout to the other, head by head.

    Equation: W′ = P W with P = σ ⊕ … ⊕ σ, one σ a head: then half(W′x) and interleaved(Wx) give the same scores
    Shapes: weight (H·d, D) → (H·d, D), bias (H·d,) → (H·d,)

    Convert query and key, weights and biases; values and the output projection stay. With grouped queries `heads` is
    the number of key heads for the key.

    Args:
        weight: weight of `nn.Linear`, output channels first, or its bias.
        heads: H, a divisor of the first axis.
        source: layout that the weight is in.
        target: layout that is wanted.
        rotary_dim: as in `convert_layout`.

    Raises:
        TypeError, ValueError: `heads` does not divide the first axis; then as `convert_layout`.

    Source: su2021
    Chapter: 10
    """
    _checks.whole_number("heads", heads, least=1)
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor, got {type(weight).__name__}")
    if weight.dim() < 1 or weight.shape[0] % heads:
        raise ValueError(f"weight must have a first axis that {heads} heads divide, got shape {tuple(weight.shape)}")
    per_head = weight.reshape(heads, weight.shape[0] // heads, *weight.shape[1:]).movedim(1, -1)  # (H, ..., d)
    moved = convert_layout(per_head, source=source, target=target, rotary_dim=rotary_dim)
    return moved.movedim(-1, 1).flatten(0, 1)
