"""A scheme at given positions: its tables, bias and masks, made once a forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.attention._operands import check_shapes, checked_mask
from posenc_lib.rotary import AxialRoPE, RoPE, Rotation
from posenc_lib.scheme import LayerSchemes, PositionScheme, checked_scheme


@dataclass(frozen=True, eq=False)
class KernelMask:
    """Bias and masks as a fused kernel takes them.

    `has_key` is False for queries without any key, (..., Tq, 1); None if all have one.
    """

    mask: Tensor | None = None
    has_key: Tensor | None = None
    in_order: bool = False


@dataclass(frozen=True, eq=False)
class PreparedScheme:
    """A scheme with all that depends on positions and not on the layer.

    Equation: R_m, b(m, n) and the mask of `PositionScheme`, for given m and n
    Shapes: as `PositionScheme`

    `prepare` makes it, and `attention`, `attention_weights` and `fused_attention` take
    it as their `scheme`. Positions and mask are then given already. It belongs to one
    forward pass, and has a gradient only if it was made with one: make a new one for
    the next.

    Args:
        scheme: what was prepared.
        q_positions: of the queries.
        k_positions: of the keys.
        mask: True = may attend, as in `attention`; the scheme's own is included.
        in_order: each token sees itself and those before it in the row, and `mask` does
            not say so.
        transformed: q and k come to attention transformed, by `transform`.
        rotations: of queries and keys, where the transform is or applies a rotation.
        bias: b(m, n), where it does not depend on hidden states.
        kernel: bias and masks for the fused kernel, in the dtype of x.

    Raises:
        TypeError, ValueError: when used, as `attention`.

    Chapter: 18
    """

    scheme: PositionScheme
    q_positions: Tensor
    k_positions: Tensor
    mask: Tensor | None = None
    in_order: bool = False
    transformed: bool = False
    rotations: tuple[Rotation, Rotation] | None = None
    bias: Tensor | None = None
    kernel: KernelMask | None = None

    def layer(self, index: int) -> PreparedScheme:
        """What layer `index` takes: of a single scheme, the same for all."""
        return self

    def transform(
        self, q: Tensor, k: Tensor, **hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, transformed; `transformed`, k is that of the new tokens."""
        transform = self.scheme.transform
        if transform is None:
            return q, k
        if self.rotations is not None and type(transform) is not partial:
            return self._rotated(q, k)
        options: dict[str, Any] = dict(self.scheme.states("transform", hidden))
        if self.rotations is not None:  # of some of the channels
            options["rotate"] = self._rotated
        n = self.q_positions if self.transformed else self.k_positions
        return transform(q, k, self.q_positions, n, **options)

    def _rotated(self, q: Tensor, k: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key under the rotations that are made, whatever the positions."""
        assert self.rotations is not None
        of_q, of_k = self.rotations
        return of_q.both(q, k) if of_q is of_k else (of_q(q), of_k(k))

    def attended(self, q: Tensor, k: Tensor, **hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key as attention takes them: transformed once."""
        return (q, k) if self.transformed else self.transform(q, k, **hidden)

    def made_bias(self, pairs: tuple[int, ...], **hidden: Tensor) -> Tensor | None:
        """b(m, n), which broadcasts to `pairs` (B, H, Tq, Tk); None without one."""
        bias = self.bias
        if bias is None and self.scheme.bias is not None:
            states = self.scheme.states("bias", hidden)
            bias = self.scheme.bias(self.q_positions, self.k_positions, **states)
        return bias if bias is None else _checks.score_bias("bias", bias, pairs)

    def allowed(self) -> Tensor | None:
        """Who may attend to whom, all masks in one; None for everybody."""
        return _all_masks(self.mask, self.in_order, self.q_positions)


@dataclass(frozen=True, eq=False)
class PreparedLayers:
    """`LayerSchemes`, prepared: `at.layer(i)` is what layer i takes as its scheme.

    Equation: as `LayerSchemes`
    Shapes: one `PreparedScheme` for each layer

    Args:
        schemes: one for each layer; layers with the same scheme have the same object.

    Raises:
        IndexError: `layer` is asked for a layer that is not there.

    Chapter: 14
    """

    schemes: tuple[PreparedScheme, ...]

    def layer(self, index: int) -> PreparedScheme:
        """What layer `index` takes."""
        if not 0 <= index < len(self.schemes):
            raise IndexError(
                f"index must be a layer in 0 … {len(self.schemes) - 1}, got {index}"
            )
        return self.schemes[index]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is one layer's: at.layer(i).{name}")


def prepare(
    x: Tensor,
    scheme: PositionScheme | LayerSchemes,
    *,
    causal: bool,
    q_positions: Tensor,
    k_positions: Tensor | None = None,
    q_order: Tensor | None = None,
    k_order: Tensor | None = None,
    mask: Tensor | None = None,
    transformed: bool = False,
) -> tuple[Tensor, Any]:
    """Add what a scheme adds to the tokens, and make its tables once for all layers.

    Equation: x_m ← x_m + p(m);  R_m, b(m, n), allowed(m, n) as in `PositionScheme`
    Shapes: x (B, T, D) → x (B, T, D) and a `PreparedScheme`

    The same two lines serve every scheme, so another encoding is another scheme and
    nothing else:

        x, at = prepare(x, self.scheme, q_positions=positions, causal=True)
        for i, block in enumerate(self.blocks):
            x = block(x, at.layer(i))  # attention(q, k, v, scheme=at)

    Without `k_positions` the tokens are their own keys, and `causal` hides those behind
    a token in its row: also right with padding on the left and with packed documents,
    whose masks are `mask`. With a cache, give the positions of all keys, and `causal`
    compares positions, n ≤ m. Positions of several axes (images) have no such order: it
    is then asked for.

    Args:
        x: token embeddings; tables are made for their dtype, float64 or float32.
        scheme: a `PositionScheme`, or the `LayerSchemes` of a model whose layers
            differ.
        causal: whether a token sees only itself and earlier tokens.
        q_positions: (T,), (1, T) or (B, T); (B, T, axes) for a scheme of several axes.
        k_positions: the same for the keys, where they are not the tokens of x.
        q_order: (T,) or (B, T), place of each token in its sequence, for a causal mask
            where positions have several axes and keys are in a cache.
        k_order: the same for the keys.
        mask: as in `attention`: padding, segments of packed rows.
        transformed: whether a cache holds transformed keys, so that a step transforms
            the new ones alone: q, k = at.transform(q, k) before they go into the cache,
            and `attention` leaves both as they are. Otherwise it transforms all keys.

    Raises:
        TypeError, ValueError: x is not (B, T, D); positions without one entry for each
            token; an order that is missing, or not needed; as `attention` and what the
            scheme's functions raise.

    Chapter: 18
    """
    _checks.boolean("causal", causal)
    _checks.boolean("transformed", transformed)
    if _checks.floating_tensor("x", x, least_dims=3).dim() != 3:
        raise ValueError(f"x must have shape (B, T, D), got {tuple(x.shape)}")
    _check_count("q_positions", q_positions, x.shape[0], x.shape[1])
    if k_positions is not None:
        _check_count("k_positions", k_positions, x.shape[0], None)
    keys = q_positions if k_positions is None else k_positions
    order = _order(causal, q_positions, k_positions, q_order, k_order)
    before = scheme.before if isinstance(scheme, LayerSchemes) else scheme
    x = _embedded(x, checked_scheme("scheme", before), q_positions)
    pairs = (x.shape[0], 1, x.shape[1], _length(keys))  # (B, 1, Tq, Tk)
    if mask is not None:
        checked_mask(mask, _with_heads_of(mask, pairs))
    if order is not None:
        mask = order if mask is None else mask & order
    made = partial(
        _prepared,
        positions=(q_positions, keys),
        mask=mask,
        in_order=causal and order is None,
        transformed=transformed,
        pairs=pairs,
        dtype=x.dtype,
    )
    if not isinstance(scheme, LayerSchemes):
        return x, made(before)
    by_scheme = {layer: made(layer) for layer in dict.fromkeys(scheme)}
    return x, PreparedLayers(tuple(by_scheme[layer] for layer in scheme))


def _embedded(x: Tensor, scheme: PositionScheme, positions: Tensor) -> Tensor:
    """The tokens with what the scheme adds to them, in their own dtype."""
    if scheme.embedding is None:
        return x
    added = scheme.embedding(positions)
    if added.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"scheme {scheme.name!r} adds an embedding of {added.shape[-1]} channels, "
            f"and x has {x.shape[-1]}"
        )
    return (x + added).to(x.dtype)


def _with_heads_of(value: Any, pairs: tuple[int, ...]) -> tuple[int, ...]:
    """`pairs` (B, 1, Tq, Tk) with the heads of a mask or bias, where it has that axis.

    How many there are is known in the layers alone.
    """
    heads = value.shape[1] if isinstance(value, Tensor) and value.dim() == 4 else 1
    return (pairs[0], heads, *pairs[2:])


def at_positions(
    scheme: Any,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    mask: Tensor | None,
) -> PreparedScheme:
    """A scheme at the positions of one call, or one that was prepared for this q and k.

    In the first nothing is made yet but the mask.
    """
    if isinstance(scheme, PreparedScheme):
        given = {"q_positions": q_positions, "k_positions": k_positions, "mask": mask}
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} must be None beside a prepared scheme, which has it from "
                    "prepare(...)"
                )
        _check_prepared(q, k, scheme)
        return scheme
    m, n = checked_positions(scheme, q, k, q_positions, k_positions, mask)
    if scheme.mask is not None:
        own = checked_mask(scheme.mask(m, n), _pairs(q, k))
        mask = own if mask is None else mask & own
    return PreparedScheme(scheme, m, n, mask)


def checked_positions(
    scheme: Any,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The positions, if a scheme that is not prepared has all that it needs."""
    if isinstance(scheme, LayerSchemes | PreparedLayers):
        raise TypeError(
            "scheme must be one layer's: at.layer(i), where x, at = prepare(x, "
            "schemes, ...)"
        )
    if checked_scheme("scheme", scheme).embedding is not None:
        raise ValueError(
            f"scheme {scheme.name!r} adds an embedding to the tokens, before q and k "
            "are projected; attention can't. Let prepare do it: x, at = prepare(x, "
            "scheme, q_positions=..., causal=...), then attention(q, k, v, scheme=at)"
        )
    if q_positions is None or k_positions is None:
        missing = "q_positions" if q_positions is None else "k_positions"
        raise TypeError(
            f"{missing} must be given with a PositionScheme; only a scheme from "
            "prepare(...) has its positions"
        )
    check_shapes(q, k, q_positions, k_positions)
    if mask is not None:
        checked_mask(mask, _pairs(q, k))
    return q_positions, k_positions


def _check_prepared(q: Tensor, k: Tensor, at: PreparedScheme) -> None:
    """Whether q and k fit one another and what was prepared."""
    _checks.grouped_heads(q, k)
    for name, x, positions in (("q", q, at.q_positions), ("k", k, at.k_positions)):
        if x.shape[2] != _length(positions):
            raise ValueError(
                f"{name} must be (B, H, T, d) with T = {_length(positions)}, for which "
                f"the scheme was prepared; got {tuple(x.shape)}"
            )
    if at.mask is None and at.bias is None:
        return
    for name, made in (("mask", at.mask), ("bias", at.bias)):
        shape = () if made is None else made.shape
        pairs = _pairs(q, k)[-len(shape) :]
        if any(size not in (1, full) for size, full in zip(shape, pairs, strict=False)):
            raise ValueError(
                f"q must have the batch and heads of the {name} that was prepared, "
                f"{tuple(shape)}; got {tuple(q.shape)}"
            )


def kernel_mask(
    bias: Tensor | None, allowed: Tensor | None, dtype: torch.dtype
) -> KernelMask:
    """Bias and masks as one tensor, and which queries have any key."""
    mask = bias if bias is None else bias.to(dtype)
    if allowed is None or (values_known(allowed) and bool(allowed.all())):
        return KernelMask(mask)
    # The kernel's result for a row without any key is undefined, and −∞ − (−∞) is NaN:
    # such a row attends to all keys, and its output is set to zero.
    some = allowed.any(-1, keepdim=True)
    has_key = None if values_known(some) and bool(some.all()) else some
    if has_key is not None:
        allowed = allowed | ~has_key
    if mask is None:
        return KernelMask(allowed, has_key)
    return KernelMask(mask.masked_fill(~allowed, -math.inf), has_key)


def _prepared(
    scheme: PositionScheme,
    *,
    positions: tuple[Tensor, Tensor],
    mask: Tensor | None,
    in_order: bool,
    transformed: bool,
    pairs: tuple[int, ...],
    dtype: torch.dtype,
) -> PreparedScheme:
    """Rotations, bias and masks of one scheme."""
    bias, kernel = None, None
    if scheme.mask is not None:
        own = checked_mask(scheme.mask(*positions), pairs)
        mask = own if mask is None else mask & own
    if scheme.bias is not None and "bias" not in scheme.reads_hidden_states:
        bias = scheme.bias(*positions)
        bias = _checks.score_bias("bias", bias, _with_heads_of(bias, pairs))
    if in_order and mask is None and scheme.bias is None:
        kernel = KernelMask(in_order=True)
    elif scheme.bias is None or bias is not None:
        kernel = kernel_mask(bias, _all_masks(mask, in_order, positions[0]), dtype)
    of_keys = positions[0] if transformed else positions[1]
    rotations = _rotations(scheme.transform, positions[0], of_keys, dtype)
    return PreparedScheme(
        scheme, *positions, mask, in_order, transformed, rotations, bias, kernel
    )


def _all_masks(mask: Tensor | None, in_order: bool, positions: Tensor) -> Tensor | None:
    """With the mask of the tokens' order: token i sees the tokens 0 … i of its row."""
    if not in_order:
        return mask
    index = torch.arange(_length(positions), device=positions.device)
    before = index <= index[:, None]  # (T, T)
    return before if mask is None else mask & before


def _rotations(
    transform: Any, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype
) -> tuple[Rotation, Rotation] | None:
    """The rotations of a transform that is one table for all heads; else None.

    It is a rotation, or a partial that is given one as `rotate`.
    """
    if isinstance(transform, partial):
        transform = transform.keywords.get("rotate")
    if getattr(transform, "__func__", None) not in (
        RoPE.transform,
        AxialRoPE.transform,
    ):
        return None
    rope = transform.__self__
    if type(rope) not in (RoPE, AxialRoPE):  # another class may make other tables
        return None
    if isinstance(rope, AxialRoPE) and rope.frequencies.dim() == 3:
        return None
    table = _checks.at_least_float32(dtype)
    rotation = rope(q_positions, table)
    if k_positions is q_positions:
        return rotation, rotation
    return rotation, rope(k_positions, table)


def _order(
    causal: bool,
    q_positions: Tensor,
    k_positions: Tensor | None,
    q_order: Tensor | None,
    k_order: Tensor | None,
) -> Tensor | None:
    """The causal mask of queries and other keys; None where it is the tokens' order."""
    given = [
        n for n, x in (("q_order", q_order), ("k_order", k_order)) if x is not None
    ]
    if k_positions is None or not causal:
        if given:
            raise ValueError(
                f"{given[0]} must be None without a causal mask over a cache "
                "(causal=True and k_positions)"
            )
        return None
    if q_order is None and k_order is None:
        if q_positions.dim() == 3 or k_positions.dim() == 3:
            raise ValueError(
                "q_order and k_order must be given: positions of shape "
                f"{tuple(q_positions.shape)} have several axes and don't tell which "
                "token comes first. They are the index of each token in its sequence, "
                "such as arange(T, offset=past) and arange(past + T)"
            )
        q_order, k_order = q_positions, k_positions
    if q_order is None or k_order is None:
        raise ValueError(f"q_order and k_order must be given together, got {given[0]}")
    m, n = _checks.pair_positions("q_order", q_order, "k_order", k_order)
    return n <= m


def _check_count(name: str, positions: Any, batch: int, length: int | None) -> None:
    """Whether positions are (T,), (1, T) or (B, T), or the last with axes."""
    shape = tuple(_checks.position_tensor(name, positions).shape)
    valid = len(shape) == 1 or (len(shape) in (2, 3) and shape[0] in (1, batch))
    if not valid or length not in (None, shape[0] if len(shape) == 1 else shape[1]):
        t = "T" if length is None else length
        raise ValueError(
            f"{name} must have shape ({t},), (1, {t}) or ({batch}, {t}), or with an "
            f"axis more for a scheme of several axes; got {shape}"
        )


def _length(positions: Tensor) -> int:
    return positions.shape[0] if positions.dim() == 1 else positions.shape[1]


def _pairs(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """The shape of the scores, (B, H, Tq, Tk)."""
    return (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
