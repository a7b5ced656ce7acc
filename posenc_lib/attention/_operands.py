"""Checks and masks that the forms of attention share."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known


def check_shapes(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> None:
    """Whether q and k fit one another and have a position for each token."""
    _checks.grouped_heads(q, k)
    for name, x, positions in (("q", q, q_positions), ("k", k, k_positions)):
        shape = tuple(_checks.position_tensor(f"{name}_positions", positions).shape)
        batch, length = x.shape[0], x.shape[2]
        rows = ((length,), (1, length), (batch, length))
        if shape not in rows and shape[:-1] not in rows[1:]:
            exchanged = (
                f" Or {name} is (B, T, H, d): exchange heads and tokens, "
                f"{name}.transpose(1, 2)"
                if x.shape[1] in shape[:2]
                else ""
            )
            raise ValueError(
                f"{name}_positions must have shape ({length},), (1, {length}), "
                f"{(batch, length)} or (B, T, axes) for {name} of shape "
                f"{tuple(x.shape)}, which is (B, H, T, d); got {shape}.{exchanged}"
            )


def hidden_arguments(q_x: Tensor | None, k_x: Tensor | None) -> dict[str, Tensor]:
    """The hidden states as arguments of a scheme's functions; none if not given."""
    if q_x is None and k_x is None:
        return {}
    if q_x is None or k_x is None:
        raise ValueError(
            "q_x and k_x must be given together, got "
            f"{'k_x' if q_x is None else 'q_x'} alone"
        )
    return {"q_x": q_x, "k_x": k_x}


def checked_mask(mask: Tensor, pairs: tuple[int, ...]) -> Tensor:
    """The mask, if it is boolean and broadcasts to `pairs`, (B, H, Tq, Tk)."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"mask must be boolean (True = may attend), got {got}")
    # Neither (Tk,) nor (B, Tk) nor (B, Tq, Tk): where sizes agree they would be read as
    # something else.
    fits = mask.dim() in (2, 4) and all(
        size in (1, full)
        for size, full in zip(reversed(mask.shape), reversed(pairs), strict=False)
    )
    if not fits:
        padding = (
            ". A mask (B, T) of the tokens that are not padding is "
            "key_padding_mask(mask)"
            if tuple(mask.shape) == (pairs[0], pairs[3])
            else ""
        )
        raise ValueError(
            f"mask must broadcast to {pairs} from two axes (Tq, Tk) or four, got "
            f"{tuple(mask.shape)}{padding}"
        )
    return mask


def feature_operands(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, positive: bool = True
) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """q, k and v to compute with, and the dtype of the result.

    They are in float32 at least, keys and values are repeated for grouped queries, and
    the keys of padding are zero.
    """
    _checks.grouped_heads(q, k)
    _checks.values_of(k, v)
    for name, x in (("q", q), ("k", k)) if positive else ():
        if values_known(x) and bool((x < 0).any()):
            raise ValueError(
                f"{name} must hold features of at least 0, as elu_features or "
                f"positive_features give them; got {x[x < 0][0].item()}"
            )
    if mask is not None:
        tokens = _checks.token_mask("mask", mask)
        if tokens.shape != (k.shape[0], k.shape[2]):
            raise ValueError(
                f"mask must have shape (B, T) = {(k.shape[0], k.shape[2])}, got "
                f"{tuple(mask.shape)}"
            )
        k = k.masked_fill(~tokens[:, None, :, None], 0)
    compute, dtype = _checks.at_least_float32(q.dtype, k.dtype, v.dtype), v.dtype
    groups = q.shape[1] // k.shape[1]
    k, v = (x.to(compute).repeat_interleave(groups, 1) for x in (k, v))
    return q.to(compute), k, v, dtype


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, and zero where no key counts. NaN in the denominator stays NaN."""
    none = denominator <= 0
    return torch.where(none, 0, numerator / torch.where(none, 1, denominator))
