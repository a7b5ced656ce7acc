"""Place 5: who may attend to whom. True = may attend; combine masks with `&`.

Masks compare positions, never tensor indices. A single query decoded at position 9 therefore sees keys 0 … 9, and no
convention for aligning a short query axis with a long key axis is needed.
"""

from __future__ import annotations

from torch import Tensor

from posenc_lib import _checks
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


def window(q_positions: Tensor, k_positions: Tensor, size: int) -> Tensor:
    """Keys less than `size` away, on both sides; `causal(...) & window(...)` is the usual sliding window.

    Equation: allowed(m, n) = [|n − m| < w]
    Shapes: as `causal`

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        size: w, at least 1: a causal window of w holds the query itself and the w − 1 keys before it.

    Raises:
        TypeError, ValueError: `size` is no int of at least 1; then as `positions.relative`.

    Source: beltagy2020
    Chapter: 18
    """
    _checks.whole_number("size", size, least=1)
    return relative(q_positions, k_positions).abs() < size


def same_document(q_documents: Tensor, k_documents: Tensor) -> Tensor:
    """Keys of the query's own document in a packed row.

    Equation: allowed(m, n) = [s_m = s_n]
    Shapes: as `causal`

    Args:
        q_documents: document numbers of the queries (`positions.documents`).
        k_documents: document numbers of the keys.

    Raises:
        TypeError, ValueError: as `positions.relative`.

    Chapter: 20
    """
    m, n = _checks.crossed("q_documents", q_documents, "k_documents", k_documents)
    return m == n


def real_keys(mask: Tensor) -> Tensor:
    """Keys that are tokens and not padding.

    Equation: allowed(m, n) = mask_n
    Shapes: (B, Tk) → (B, 1, 1, Tk)

    Args:
        mask: (B, Tk), True (or 1) for a token, False (or 0) for padding.

    Raises:
        TypeError, ValueError: `mask` is no (B, Tk) tensor of two values.

    Chapter: 20
    """
    return _checks.token_mask("mask", mask)[:, None, None, :]
