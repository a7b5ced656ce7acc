"""Masks: which keys a query may attend to. True = may attend; combine them with `&`.

Masks compare positions, never tensor indices. A single query decoded at position 9
therefore sees keys 0 … 9, and no convention for aligning a short query axis with a long
key axis is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._trees import ancestors
from posenc_lib.positions import relative


def causal(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Keys at or before the query.

    Equation: allowed(m, n) = [n ≤ m]
    Shapes: (Tq,), (Tk,) → (Tq, Tk);  (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.

    Raises:
        TypeError, ValueError: as `positions.relative`.

    Source: vaswani2017
    Chapter: 01
    """
    return relative(q_positions, k_positions) <= 0


def sliding_window(q_positions: Tensor, k_positions: Tensor, size: int) -> Tensor:
    """Keys less than `size` away, on both sides of the query.

    Equation: allowed(m, n) = [|n − m| < w]
    Shapes: as `causal`

    `causal(...) & sliding_window(...)` is the window of a decoder.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        size: w, at least 1: a causal window of w holds the query itself and the w − 1
            keys before it.

    Raises:
        TypeError, ValueError: `size` is not an integer ≥ 1; then as
            `positions.relative`.

    Source: beltagy2020
    Checked: derived, unchecked
    Chapter: 18
    """
    _checks.whole_number("size", size, least=1)
    return relative(q_positions, k_positions).abs() < size


def same_segment(q_segment_ids: Tensor, k_segment_ids: Tensor) -> Tensor:
    """Keys of the query's own segment in a packed row.

    Equation: allowed(m, n) = [s_m = s_n]
    Shapes: as `causal`

    Args:
        q_segment_ids: segment of each query (`positions.segment_ids`).
        k_segment_ids: segment of each key.

    Raises:
        TypeError, ValueError: as `positions.relative`.

    Chapter: 20
    """
    m, n = _checks.pair_positions(
        "q_segment_ids", q_segment_ids, "k_segment_ids", k_segment_ids
    )
    return m == n


def key_padding_mask(mask: Tensor) -> Tensor:
    """Keys that are tokens and not padding.

    Equation: allowed(m, n) = mask_n
    Shapes: (B, Tk) → (B, 1, 1, Tk)

    Args:
        mask: (B, Tk), True (or 1) for a token, False (or 0) for padding.

    Raises:
        TypeError, ValueError: `mask` is not a (B, Tk) tensor of two values.

    Chapter: 20
    """
    return _checks.token_mask("mask", mask)[:, None, None, :]


def chunk_mask(q_positions: Tensor, k_positions: Tensor, *, chunk: int) -> Tensor:
    """Llama 4's chunked attention: keys of the query's own chunk.

    Equation: allowed(m, n) = [⌊m/c⌋ = ⌊n/c⌋]      (llama4)
    Shapes: (Tq,), (Tk,) → (Tq, Tk);  (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    The first token of a chunk sees nothing before it, whatever c is.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        chunk: c, at least 1.

    Raises:
        TypeError, ValueError: `chunk` is not an integer ≥ 1; then as
            `positions.relative`.

    Source: llama4
    Checked:
        meta-llama/llama-models@408c577168a1:models/llama4/model.py:create_chunked_attention_mask
    Chapter: 14
    """
    _checks.whole_number("chunk", chunk, least=1)
    m = _checks.attention_positions("q_positions", q_positions)
    n = _checks.attention_positions("k_positions", k_positions)
    return same_segment(m // chunk, n // chunk)


def lambda_mask(
    q_positions: Tensor, k_positions: Tensor, *, sinks: int, window: int
) -> Tensor:
    """LM-Infinite's Λ: the last w keys and the first few of all.

    Equation: allowed(m, n) = [n ≤ m] ∧ ([m − n < w] ∨ [n < g])      (han2024)
    Shapes: (Tq,), (Tk,) → (Tq, Tk);  (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    LM-Infinite also limits distances: `rerope` with the same w, in the scheme's
    `scores`. In a padded row the sinks are the first tokens, not the padding, if
    positions count tokens alone.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys, counted from 0.
        sinks: g, the keys at the beginning that all queries see, at least 0.
        window: w, at least 1.

    Raises:
        TypeError, ValueError: `sinks` or `window` is not an integer or too small; then
            as `positions.relative`.

    Source: han2024
    Checked:
        Glaciohound/LM-Infinite@5f35e5daea36:models/lambda_attention.py:Lambda_Attention_Matrix.__init__
    Chapter: 18
    """
    _checks.whole_number("sinks", sinks, least=0)
    _checks.whole_number("window", window, least=1)
    near = sliding_window(q_positions, k_positions, window)
    first = _checks.attention_positions("k_positions", k_positions) < sinks
    first = first if first.dim() == 1 else first[:, None, None]
    return causal(q_positions, k_positions) & (near | first)


def patch_window(
    q_positions: Tensor, k_positions: Tensor, *, size: int, shift: int
) -> Tensor:
    """Patches of one window: coordinates (…, T, 2), windows of `size` by `size`.

    The first window begins at `shift` on both axes.
    """
    m, n = (
        (positions - shift).div(size, rounding_mode="floor")
        for positions in (q_positions, k_positions)
    )
    same_window = (m[..., :, None, :] == n[..., None, :, :]).all(-1)
    return same_window if same_window.dim() == 2 else same_window[:, None]


def tree_mask(parents: Tensor, *, past: int = 0) -> Tensor:
    """Draft tokens in a tree: each token sees its ancestors, itself and the cache.

    Equation: allowed(i, j) = [j = i or j is an ancestor of i]      (miao2024; derived)
    Shapes: (N,) → (N, past + N), boolean

    With positions by depth, `positions.tree_positions`, every path through the tree is
    scored as if it stood alone.

    Args:
        parents: (N,) index of each token's parent, below its own index; −1 for a root,
            whose parent is the cache.
        past: tokens in the cache, which all see.

    Raises:
        TypeError, ValueError: `parents` is not a vector of integers, or a parent is not
            in −1 … i−1; `past` below 0.

    Source: miao2024
    Checked:
        FasterDecoding/Medusa@e2a5d20c048a:medusa/model/utils.py:generate_medusa_buffers
    Chapter: 20
    """
    _checks.whole_number("past", past, least=0)
    seen = ancestors(parents)
    return torch.cat((seen.new_ones(seen.shape[0], past), seen), -1)
