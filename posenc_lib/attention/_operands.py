"""Checks and masks that the forms of attention share."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.scheme import PositionScheme


def check_shapes(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> None:
    """Whether q and k fit one another and have a position for each token."""
    _checks.grouped_heads(q, k)
    for name, positions, x in (
        ("q_positions", q_positions, q),
        ("k_positions", k_positions, k),
    ):
        shape = tuple(_checks.position_tensor(name, positions).shape)
        batch, length = x.shape[0], x.shape[2]
        if shape not in ((length,), (batch, length)) and shape[:-1] != (batch, length):
            raise ValueError(
                f"{name} must have shape ({length},), {(batch, length)} or (B, T, "
                f"axes), got {shape}"
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


def allowed_pairs(
    mask: Tensor | None,
    scheme: PositionScheme,
    q_positions: Tensor,
    k_positions: Tensor,
    scores: Tensor,
) -> Tensor | None:
    """The pairs that the caller's mask and the scheme's both allow; None for all."""
    allowed = mask if mask is None else checked_mask(mask, scores)
    if scheme.mask is None:
        return allowed
    by_scheme = checked_mask(scheme.mask(q_positions, k_positions), scores)
    return by_scheme if allowed is None else allowed & by_scheme


def checked_mask(mask: Tensor, scores: Tensor) -> Tensor:
    """The mask, if it is boolean and broadcasts to the scores (B, H, Tq, Tk)."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"mask must be boolean (True = may attend), got {got}")
    shape = tuple(scores.shape)
    # Neither (Tk,) nor (B, Tk) nor (B, Tq, Tk): where sizes agree they would be read as
    # something else.
    fits = mask.dim() in (2, 4) and all(
        size in (1, full)
        for size, full in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"mask must broadcast to {shape} from two axes (Tq, Tk) or four, got "
            f"{tuple(mask.shape)}"
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
