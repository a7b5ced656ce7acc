"""Transformer-XL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import EPS, normal, rounding, seeded
from torch import Tensor

from posenc_lib.attention import causal
from posenc_lib.content import (
    TransformerXL,
    relative_shift,
)
from posenc_lib.embedding import sinusoidal
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


def test_relative_shift_moves_rows_and_leaves_junk() -> None:
    for rows, columns in ((1, 1), (1, 4), (3, 3), (2, 4), (4, 7), (5, 9), (3, 6)):
        x = normal(2, rows, columns)
        shifted = relative_shift(x)
        for i in range(rows):
            for c in range(columns):
                beyond = c - (
                    columns - rows + i
                )  # 1: the zero; 2, 3, …: the next row from its beginning
                if beyond <= 0:
                    expected = x[:, i, c + rows - 1 - i]
                else:
                    expected = (
                        torch.zeros(2) if beyond == 1 else x[:, i + 1, beyond - 2]
                    )
                assert torch.equal(shifted[:, i, c], expected.double())


def test_bug_67_rel_shift() -> None:
    square = torch.arange(1.0, 10).view(3, 3)
    assert relative_shift(square).tolist() == [[3, 0, 4], [5, 6, 0], [7, 8, 9]]
    assert relative_shift(torch.arange(1.0, 9).view(2, 4)).tolist() == [
        [2, 3, 4, 0],
        [5, 6, 7, 8],
    ]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize(
    ("queries", "memory"), [(1, 0), (3, 0), (1, 5), (4, 3), (7, 16), (9, 1)]
)
def test_bug_67_rel_shift_is_a_gather_on_the_causal_part(
    queries: int, memory: int, dtype: torch.dtype
) -> None:
    keys = queries + memory
    x = normal(2, 3, queries, keys).to(dtype)
    m, n = arange(queries, offset=memory), arange(keys)
    column = keys - 1 - (m[:, None] - n)  # of distance m − n
    allowed = causal(m, n)
    gathered = x.gather(-1, column.clamp(max=keys - 1).expand_as(x))
    assert torch.equal(relative_shift(x)[..., allowed], gathered[..., allowed])
    wide = normal(2, 3, queries, 2 * queries - 1).to(
        dtype
    )  # distances on both sides: no junk in the first T columns
    both = queries - 1 - (arange(queries)[:, None] - arange(queries))
    expected = wide.gather(-1, both.expand(2, 3, -1, -1))
    assert torch.equal(relative_shift(wide)[..., :queries], expected)


def xl_by_the_equation(
    xl: TransformerXL, q: Tensor, k: Tensor, m: Tensor, n: Tensor
) -> Tensor:
    heads, dim = xl.u.shape
    weight = xl.weight.view(heads, dim, -1)
    scores = q.new_zeros(q.shape[0], heads, q.shape[2], k.shape[2])
    for i in range(q.shape[2]):
        for j in range(k.shape[2]):
            distance = (m[..., i] - n[..., j]).reshape(-1)[:1]
            r = sinusoidal(
                distance, xl.dim, xl.base, layout="concatenated", dtype=torch.float64
            )[0]
            wr = weight @ r  # (H, d)
            terms = (
                q[:, :, i] * k[:, :, j],
                q[:, :, i] * wr,
                xl.u * k[:, :, j],
                xl.v * wr,
            )
            scores[:, :, i, j] = sum(term.sum(-1) for term in terms)
    return scores


@pytest.mark.parametrize(
    "positions", ["integers", "far", "fractions", "shuffled", "negative"]
)
def test_transformer_xl_is_the_equation(positions: str) -> None:
    xl = TransformerXL(2, 3, 6, base=500.0, std=1.0, generator=seeded(0)).double()
    q, k = normal(2, 2, 4, 3), normal(2, 2, 7, 3, seed=1)
    m, n = arange(4, 3), arange(7)
    if positions == "far":
        m, n = m + 100_000, n + 100_000
    elif positions == "fractions":
        m, n = m / 3, n / 7
        m, n = m.double(), n.double()
    elif positions == "shuffled":
        n = n[torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    elif positions == "negative":
        m, n = m - 10, n - 10
    scores, expected = xl.scores(q, k, m, n), xl_by_the_equation(xl, q, k, m, n)
    angle = (
        EPS * 100_010 if positions == "far" else 0.0
    )  # an angle is rounded once, in proportion to its size
    assert max_error(scores, expected) <= rounding(expected) + 50 * angle


@pytest.mark.parametrize(("queries", "memory"), [(4, 0), (3, 5), (1, 8)])
def test_transformer_xl_is_the_shift_of_scores_by_distance(
    queries: int, memory: int
) -> None:
    xl = TransformerXL(2, 3, 6, std=1.0, generator=seeded(0)).double()
    keys = queries + memory
    q, k, m, n = (
        normal(1, 2, queries, 3),
        normal(1, 2, keys, 3, seed=1),
        arange(queries, memory),
        arange(keys),
    )
    table = sinusoidal(
        keys - 1 - arange(keys), 6, layout="concatenated", dtype=torch.float64
    )  # descending distances
    by_distance = (q + xl.v[:, None]) @ (table @ xl.weight.mT).view(keys, 2, 3).permute(
        1, 2, 0
    )
    expected = (q + xl.u[:, None]) @ k.mT + relative_shift(by_distance)
    allowed = causal(m, n)
    assert max_error(
        xl.scores(q, k, m, n)[..., allowed], expected[..., allowed]
    ) <= rounding(expected)


def test_transformer_xl_reduces_to_nope_without_its_parameters() -> None:
    xl = TransformerXL(2, 3, 6, generator=seeded(0)).double()
    for parameter in xl.parameters():
        parameter.data.zero_()
    q, k = normal(1, 2, 5, 3), normal(1, 2, 5, 3, seed=1)
    assert torch.equal(xl.scores(q, k, arange(5), arange(5)), q @ k.mT)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shift of a vector": (
        lambda: relative_shift(torch.ones(3)),
        ValueError,
        "x must",
    ),
    "shift of integers": (
        lambda: relative_shift(torch.ones(3, 3, dtype=torch.int64)),
        TypeError,
        "x must",
    ),
    "shift with too few columns": (
        lambda: relative_shift(torch.ones(4, 3)),
        ValueError,
        "x must",
    ),
    "odd sinusoid": (
        lambda: TransformerXL(2, 4, 5),
        ValueError,
        "dim must be even",
    ),
    "base 0": (
        lambda: TransformerXL(2, 4, 6, base=0.0),
        ValueError,
        "base must",
    ),
    "std 0": (
        lambda: TransformerXL(2, 4, 6, std=0.0),
        ValueError,
        "std must",
    ),
    "other heads": (
        lambda: TransformerXL(3, 4, 6).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
