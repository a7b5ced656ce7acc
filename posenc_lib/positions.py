"""Place 0: which position does a token have?

Every encoding in this library takes positions as an argument and never reads them off a tensor's shape. A cache, left
padding and packed documents are then nothing special: they are other position tensors, and this module makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_lib import _checks


def arange(length: int, offset: int = 0, *, device: torch.device | str | None = None) -> Tensor:
    """Consecutive positions, counted from `offset`.

    Equation: p_t = offset + t,  t = 0 … T−1
    Shapes: → (T,), int64

    Args:
        length: number of tokens T, at least 1.
        offset: position of the first token: with a key-value cache, the number of tokens already in it. At least 0.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: `length` or `offset` is no int, or too small.

    Chapter: notation
    """
    _checks.whole_number("length", length, least=1)
    _checks.whole_number("offset", offset, least=0)
    return torch.arange(offset, offset + length, device=device)


def from_mask(mask: Tensor, *, first: int = 0, padding: int = 0) -> Tensor:
    """Positions in a padded batch: the real tokens of each row are counted, padding is not.

    Equation: p_t = first + Σ_{s≤t} mask_s − 1 where mask_t is True, and `padding` elsewhere
    Shapes: mask (B, T) → (B, T), int64

    Args:
        mask: (B, T), True (or 1) for a token, False (or 0) for padding on either side.
        first: position of the first real token. RoBERTa and fairseq tables begin at padding_idx + 1, OPT's at 2.
        padding: what padding slots get. It must be a valid row of a learned table, so −1 is not the default.

    Raises:
        TypeError, ValueError: `mask` is no (B, T) tensor of two values; `first` or `padding` is no int of at least 0.

    Chapter: notation
    """
    tokens = _checks.token_mask("mask", mask)
    _checks.whole_number("first", first, least=0)
    _checks.whole_number("padding", padding, least=0)
    count = tokens.to(torch.int64).cumsum(-1)
    return torch.where(tokens, count - 1 + first, padding)


def after_mask(mask: Tensor, steps: int = 1, *, first: int = 0) -> Tensor:
    """Positions of the next decoding steps after a padded batch.

    Equation: p_s = first + Σ_t mask_t + s,  s = 0 … steps−1
    Shapes: mask (B, T) → (B, steps), int64

    Args:
        mask: (B, T) mask of the tokens already seen, as in `from_mask`.
        steps: how many tokens follow, at least 1.
        first: position of the first real token, as in `from_mask`.

    Raises:
        TypeError, ValueError: as `from_mask`; `steps` is no int of at least 1.

    Chapter: notation
    """
    _checks.whole_number("steps", steps, least=1)
    _checks.whole_number("first", first, least=0)
    seen = _checks.token_mask("mask", mask).to(torch.int64).sum(-1, keepdim=True)
    return first + seen + torch.arange(steps, device=mask.device)


def _lengths(lengths: Sequence[int]) -> list[int]:
    if isinstance(lengths, Tensor):
        raise TypeError("lengths must be a list of ints (a size can't depend on tensor values); use lengths.tolist()")
    if not isinstance(lengths, Sequence) or isinstance(lengths, str):
        raise TypeError(f"lengths must be a list of ints, got {lengths!r}")
    if len(lengths) == 0:
        raise ValueError("lengths must name at least one document, got none")
    return [_checks.whole_number(f"lengths[{i}]", length, least=1) for i, length in enumerate(lengths)]


def packed(lengths: Sequence[int], *, device: torch.device | str | None = None) -> Tensor:
    """Positions of documents packed into one row: each document starts at 0 again.

    Equation: p_t = t − (start of the document that holds t)
    Shapes: → (Σ lengths,), int64

    Args:
        lengths: the documents' lengths, each at least 1. From cumulative boundaries: their differences.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: a length is no int or below 1; there is none.

    Chapter: notation
    """
    return torch.cat([torch.arange(length, device=device) for length in _lengths(lengths)])


def documents(lengths: Sequence[int], *, device: torch.device | str | None = None) -> Tensor:
    """The number of the document that each packed token belongs to, for `attention.same_document`.

    Equation: s_t = number of documents that end at or before t
    Shapes: → (Σ lengths,), int64

    Args:
        lengths: the documents' lengths, each at least 1.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: as `packed`.

    Chapter: notation
    """
    return torch.cat([torch.full((length,), i, device=device) for i, length in enumerate(_lengths(lengths))])


def relative(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Relative positions, key minus query: negative in the past, positive in the future.

    Equation: r_mn = n − m
    Shapes: (Tq,), (Tk,) → (Tq, Tk); with a batch on either side, (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    Args:
        q_positions: positions m of the queries, (Tq,) or (B, Tq), integers, float32 or float64.
        k_positions: positions n of the keys, (Tk,) or (B, Tk).

    Raises:
        TypeError, ValueError: positions of another dtype or shape; two batches of different size.

    Chapter: notation
    """
    m, n = _checks.crossed("q_positions", q_positions, "k_positions", k_positions)
    return n - m
