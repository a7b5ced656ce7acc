"""Rotary position embedding of all or some channels, in both layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib.frequencies import cos_sin
from posenc_lib.rotary._apply import apply_rotary
from posenc_lib.rotary._short import (
    Factors,
    are_short,
    factors_of,
    is_short,
    rotate_joined,
    rotate_short,
)
from posenc_lib.rotary.pairs import LAYOUTS, Layout


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotation of every pair of channels, made once and applied in every layer.

    Equation: (a, b) → (a cos α − b sin α,  a sin α + b cos α) for each pair,
        counter-clockwise      (su2021 eq. 34)
    Shapes: x (..., T, d) → (..., T, d); with batched positions x is (B, H, T, d)

    `rope(positions)` makes it. The first r channels are rotated, r = 2 × the number of
    frequencies; the others pass through bit by bit. `rotation.both(q, k)` rotates query
    and key of the same tokens. `rotation(x, out=y)` writes into y, which may overlap x,
    and `rotation(x, out=x)` in place; neither has a gradient. `rotation.inverse()`
    undoes it; `a @ b` or `a.after(b)` is "first b, then a": R(m) @ R(n) = R(m + n).

    Args:
        cos: (T, r/2), or (B, T, r/2) for positions of a batch, already multiplied by
            `scale`. It may not be written into afterwards: short tables are copied.
        sin: the same shape.
        layout: "interleaved" or "half": which channels form pair i.
        scale: the factor in cos and sin (a schedule's attention factor), else 1.

    Raises:
        TypeError, ValueError: tables of different shape, an unknown layout, a scale
            that is not above 0. When called: x is not floating-point, has fewer than r
            channels, or has another length or batch than the positions; `out` is not
            like x, is expanded, or would need a gradient.

    Source: su2021
    Chapter: 10
    """

    cos: Tensor
    sin: Tensor
    layout: Layout = "interleaved"
    scale: float = 1.0
    _factors: Factors = field(init=False, repr=False)

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
        factors = factors_of(*_for_heads(self.cos, self.sin), self.layout)
        object.__setattr__(self, "_factors", factors)  # the class is frozen

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        check_tokens(x, self.cos)
        return self._rotated(x, out)

    def both(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of two calls; few tokens in one pass, as views of one tensor."""
        check_tokens(q, self.cos, "q")
        if are_short(q, k, 2 * self.cos.shape[-1], self._factors):
            return rotate_joined(q, k, self._factors)
        check_tokens(k, self.cos, "k")
        return self._rotated(q), self._rotated(k)

    def _rotated(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None and is_short(x, 2 * self.cos.shape[-1], self._factors):
            return rotate_short(x, self._factors)
        cos, sin = _for_heads(self.cos, self.sin)
        return apply_rotary(x, cos, sin, self.layout, out=out)

    def inverse(self) -> Rotation:
        """The rotation by −m, which undoes this one (its scale included)."""
        cos, sin = self.cos / self.scale**2, -self.sin / self.scale**2
        return Rotation(cos, sin, self.layout, 1 / self.scale)

    def __matmul__(self, other: Rotation) -> Rotation:
        """The same as `after`; torch.compile traces only the method's name."""
        return self.after(other) if isinstance(other, Rotation) else NotImplemented

    def after(self, other: Rotation) -> Rotation:
        """First `other`, then this one: the angles add up."""
        if not isinstance(other, Rotation):
            raise TypeError(f"other must be a Rotation, got {other!r}")
        if self.layout != other.layout or self.cos.shape != other.cos.shape:
            raise ValueError(
                "both rotations must have one layout and shape, "
                f"got {self.layout} {tuple(self.cos.shape)} "
                f"and {other.layout} {tuple(other.cos.shape)}"
            )
        cos = self.cos * other.cos - self.sin * other.sin
        sin = self.sin * other.cos + self.cos * other.sin
        return Rotation(cos, sin, self.layout, self.scale * other.scale)


@dataclass(frozen=True, eq=False)
class RoPE:
    """Rotary position embedding: query and key are rotated by their own positions.

    Equation: (R_m q)ᵀ (R_n k) = qᵀ R_{n−m} k,  R_m = ⊕_i rotation by m ω_i
        (su2021 eq. 14–16, 34)
    Shapes: positions (T,) or (B, T) → a `Rotation`;  q (..., Tq, d), k (..., Tk, d) →
        the same shapes, with batched positions q (B, H, Tq, d), k (B, Hk, Tk, d)

    So the score depends on the difference of the positions. `rope(positions)` gives the
    rotation as a value, to be made once and applied in every layer; `rope.transform`
    applies it to query and key in one call. Nothing is cached, so no cast or copy of a
    model can spoil it.

    Args:
        frequencies: (r/2,) ω_i in radians per position (`inv_freq` in most code),
            float64: `inverse_frequencies(d)`, or what a schedule returns. Fewer than
            d/2 of them rotate only the first r channels (partial rotary, as in GPT-J
            and GPT-NeoX).
        layout: "interleaved" is the paper's; "half" is what Llama weights in
            transformers expect.
        attention_factor: multiplies cos and sin, hence scores by its square; 1 without
            YaRN or LongRoPE.

    Raises:
        TypeError, ValueError: frequencies that are not a float64 or float32 vector, an
            unknown layout, a factor that is not above 0; then as `Rotation`.

    Source: su2021
    Checked: golden; parity
    Chapter: 10
    """

    frequencies: Tensor
    layout: Layout = "interleaved"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _checks.one_of("layout", self.layout, LAYOUTS)
        _checks.positive("attention_factor", self.attention_factor)
        _checks.vector("frequencies", self.frequencies, "r/2")

    def __call__(
        self, positions: Tensor, dtype: torch.dtype = torch.float32
    ) -> Rotation:
        _checks.attention_positions("positions", positions)
        cos, sin = cos_sin(positions, self.frequencies, dtype=dtype)
        a = self.attention_factor
        return Rotation(cos * a, sin * a, self.layout, a)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        for name, x in (("q", q), ("k", k)):
            _checks.floating_tensor(name, x, least_dims=2)
        same = q_positions is k_positions
        q_positions = _checks.attention_positions("q_positions", q_positions)
        k_positions = _checks.attention_positions("k_positions", k_positions)
        dtype = _checks.at_least_float32(q.dtype, k.dtype)  # float64 tables for float64
        q_rotation = self(q_positions, dtype)
        k_rotation = q_rotation if same else self(k_positions, dtype)
        check_tokens(q, q_rotation.cos, "q", "q_positions")
        check_tokens(k, k_rotation.cos, "k", "k_positions")
        return q_rotation.both(q, k) if same else (q_rotation(q), k_rotation(k))


def _for_heads(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(T, r/2) as they are, (B, T, r/2) as (B, 1, T, r/2): one table for all heads."""
    return (cos, sin) if cos.dim() == 2 else (cos[:, None], sin[:, None])


def checked_rope(name: str, value: Any) -> RoPE:
    """`value` if it is a `RoPE`."""
    if not isinstance(value, RoPE):
        raise TypeError(f"{name} must be a RoPE, got {value!r}")
    return value


def check_tokens(
    x: Tensor, cos: Tensor, name: str = "x", positions: str = "positions"
) -> None:
    """Whether x has a token for each position of the table, and channels to rotate."""
    _checks.floating_tensor(name, x, least_dims=2)
    shape, length, width = x.shape, cos.shape[-2], 2 * cos.shape[-1]
    if shape[-1] < width:
        raise ValueError(
            f"{name} must have at least {width} channels, which are rotated; "
            f"got {shape[-1]}"
        )
    if shape[-2] != length:
        exchanged = len(shape) == 4 and shape[1] == length
        raise ValueError(
            f"{name} must have one token for each of the {length} {positions} "
            f"on its axis −2, as in (B, H, T, d); got shape {tuple(shape)}"
            + (f": heads and tokens, {name}.transpose(1, 2)?" if exchanged else "")
        )
    if cos.dim() == 3 and (x.dim() != 4 or cos.shape[0] not in (1, shape[0])):
        raise ValueError(
            f"{name} must be (B, H, T, d) with B = {cos.shape[0]}, "
            f"since {positions} were (B, T); got shape {tuple(shape)}. "
            "Positions of shape (T,) or (1, T) are shared by any batch"
        )
