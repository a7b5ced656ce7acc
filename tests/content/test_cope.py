"""CoPE."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.content import unit
from helpers import normal, rounding, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from posenc_lib.attention import causal
from posenc_lib.content import (
    CoPE,
    contextual_positions,
    path_scores,
    relative_key_scores,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


@settings(deadline=None, max_examples=15, derandomize=True, database=None)
@given(keys=st.integers(1, 8), queries=st.integers(1, 8), rows=st.integers(1, 6))
def test_cope_is_the_equation(keys: int, queries: int, rows: int) -> None:
    queries = min(queries, keys)
    cope = CoPE(3, rows).double()
    nn.init.normal_(cope.table, generator=seeded(0))
    q, k = normal(1, 2, queries, 3), normal(1, 2, keys, 3, seed=1)
    m, n = arange(queries, keys - queries), arange(keys)
    scores = cope.scores(q, k, m, n)
    for i, a in enumerate(m.tolist()):
        for j in range(a + 1):
            for h in range(2):
                gates = [
                    torch.sigmoid(q[0, h, i] @ k[0, h, t]) for t in range(j, a + 1)
                ]
                p = min(float(sum(gates)), rows - 1)
                low, high = math.floor(p), math.ceil(p)
                e = (1 - (p - low)) * cope.table[low] + (p - low) * cope.table[high]
                expected = q[0, h, i] @ (k[0, h, j] + e)
                assert max_error(scores[0, h, i, j], expected) <= rounding(expected)


def test_cope_with_open_gates_counts_distances() -> None:
    positions = arange(7)
    counts = contextual_positions(
        torch.full((1, 1, 7, 7), 100.0, dtype=torch.float64), positions, positions
    )
    assert torch.equal(
        counts[0, 0], (positions[:, None] - positions + 1).clamp(min=0).double()
    )
    logits = normal(1, 2, 7, 7)
    future = ~causal(positions, positions)
    changed = logits.masked_fill(future, 50.0)
    assert torch.equal(
        contextual_positions(logits, positions, positions),
        contextual_positions(changed, positions, positions),
    )
    naive = changed.sigmoid().flip(-1).cumsum(-1).flip(-1)  # a sigmoid before the mask
    assert max_error(naive, contextual_positions(changed, positions, positions)) > 1
    cope = CoPE(3, 9).double()
    nn.init.normal_(cope.table, generator=seeded(0))
    q = normal(1, 1, 7, 3)
    relative_form = relative_key_scores(
        q, torch.zeros_like(q), positions, positions, table=cope.table.flip(0), left=8
    )
    shifted = cope.interpolate(
        q, (counts - 1).clamp(min=0)
    )  # distance m − n, as a relative encoding has it
    assert max_error(shifted[..., ~future], relative_form[..., ~future]) <= rounding(
        shifted
    )


def test_a_position_that_does_not_grow_begins_a_new_document() -> None:
    positions = torch.tensor(
        [4, 5, 5, 6]
    )  # two segments: the second begins where the first ends
    gates = torch.full((1, 1, 4, 4), 100.0, dtype=torch.float64)
    counts = contextual_positions(gates, positions, positions)[0, 0]
    assert counts[1, :2].tolist() == [2, 1]
    assert counts[3, 2:].tolist() == [2, 1]
    q = normal(1, 1, 4, 3)
    w, beta = unit(normal(1, 1, 4, 3, seed=1)), torch.ones(1, 1, 4, dtype=torch.float64)
    scores = path_scores(q, q, positions, positions, w=w, beta=beta)
    alone = path_scores(
        q[:, :, 2:],
        q[:, :, 2:],
        positions[2:],
        positions[2:],
        w=w[:, :, 2:],
        beta=beta[:, :, 2:],
    )
    assert max_error(scores[:, :, 2:, 2:], alone) <= rounding(scores)
    alone = path_scores(
        q[:, :, :2],
        q[:, :, :2],
        positions[:2],
        positions[:2],
        w=w[:, :, :2],
        beta=beta[:, :, :2],
    )
    assert max_error(scores[:, :, :2, :2], alone) <= rounding(scores)


def test_cope_takes_counts_that_rounding_moved_out_of_range() -> None:
    cope = CoPE(4, 3)
    with torch.no_grad():
        cope.table.copy_(normal(3, 4))
    counts = torch.tensor([-1e-7, 0.0, 2.0, 2 + 1e-6]).reshape(1, 1, 1, 4)
    q = torch.ones(1, 1, 1, 4)
    at_rows = cope.table.sum(-1)
    assert torch.allclose(cope.interpolate(q, counts).flatten(), at_rows[[0, 0, 2, 2]])


def test_cope_begins_at_nope_and_passes_gradient_to_the_gates() -> None:
    cope, q, positions = (
        CoPE(3, 4).double(),
        normal(1, 1, 5, 3).requires_grad_(),
        arange(5),
    )
    assert torch.equal(cope.scores(q, q, positions, positions), q @ q.mT)
    nn.init.normal_(cope.table, generator=seeded(0))
    logits = normal(1, 1, 5, 5).requires_grad_()
    cope.interpolate(
        q.detach(), contextual_positions(logits, positions, positions)
    ).sum().backward()
    assert bool((logits.grad[0, 0].tril() != 0).any())
    assert torch.equal(logits.grad[0, 0].triu(1), torch.zeros(5, 5).double())


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no positions to count": (
        lambda: CoPE(4, 0),
        ValueError,
        "num_positions must",
    ),
    "channels CoPE doesn't have": (
        lambda: CoPE(3, 5).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
    "gates of three axes": (
        lambda: contextual_positions(torch.ones(2, 3, 3), AT, AT),
        ValueError,
        "gate_logits must",
    ),
    "counts of other heads": (
        lambda: CoPE(4, 3).interpolate(Q, torch.ones(1, 1, 3, 3)),
        ValueError,
        "counts must have q's batch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
