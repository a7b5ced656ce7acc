"""PaTH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from examples.content import unit
from helpers import normal, rounding, seeded
from torch import Tensor, nn

from posenc_lib.attention import causal
from posenc_lib.content import (
    PaTH,
    path_scores,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


def path_by_the_equation(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, m: Sequence[int]
) -> Tensor:
    """k_nᵀ H_{n+1} ⋯ H_m q_m with the matrices multiplied out; keys at 0, 1, 2, …"""
    dim = q.shape[-1]
    scores = q @ k.mT
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i, a in enumerate(m):
                for n in range(a):
                    product = torch.eye(dim, dtype=torch.float64)
                    for t in range(n + 1, a + 1):
                        product = product @ (
                            torch.eye(dim, dtype=torch.float64)
                            - beta[b, h, t] * torch.outer(w[b, h, t], w[b, h, t])
                        )
                    scores[b, h, i, n] = k[b, h, n] @ product @ q[b, h, i]
    return scores


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (1, 8), (3, 8)])
@pytest.mark.parametrize("dim", [2, 5])
def test_path_is_the_product_of_reflections_in_the_papers_order(
    queries: int, keys: int, dim: int
) -> None:
    q, k = normal(2, 2, queries, dim), normal(2, 2, keys, dim, seed=1)
    w, beta = (
        unit(normal(2, 2, keys, dim, seed=2)),
        2 * normal(2, 2, keys, seed=3).sigmoid(),
    )
    m, n = arange(queries, keys - queries), arange(keys)
    scores, expected = (
        path_scores(q, k, m, n, w=w, beta=beta),
        path_by_the_equation(q, k, w, beta, m.tolist()),
    )
    allowed = causal(m, n)
    assert max_error(scores[..., allowed], expected[..., allowed]) <= rounding(expected)
    if queries > 1:  # the other order is another score, so the test above can tell
        other = path_by_the_equation(q, k, w.flip(2), beta.flip(2), m.tolist())
        assert max_error(scores[..., allowed], other[..., allowed]) > 1e-2


def test_path_identities() -> None:
    q, k, positions = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    w = unit(normal(1, 2, 6, 4, seed=2))
    still = path_scores(
        q, k, positions, positions, w=w, beta=torch.zeros(1, 2, 6).double()
    )
    assert torch.equal(still, q @ k.mT)  # β = 0: NoPE
    # β = 2 is a reflection: two in a row along one w undo each other, so key n meets
    # H^(m−n), of parity m − n.
    same = w[:, :, :1].expand_as(w)
    scores = path_scores(
        q, k, positions, positions, w=same, beta=torch.full((1, 2, 6), 2.0).double()
    )
    mirrored = (q - 2 * (q * same).sum(-1, keepdim=True) * same) @ k.mT
    odd = (positions[:, None] - positions) % 2 == 1
    expected = torch.where(odd, mirrored, q @ k.mT)
    allowed = causal(positions, positions)
    assert max_error(scores[..., allowed], expected[..., allowed]) <= rounding(expected)
    # β = 1 forgets: what lies along w is gone after one step and stays gone.
    scores = path_scores(
        q, same, positions, positions, w=same, beta=torch.ones(1, 2, 6).double()
    )
    assert float(
        scores[..., allowed & (positions[:, None] > positions)].abs().max()
    ) <= rounding(scores)


def test_path_weights_are_reflections_of_every_hidden_state() -> None:
    path = PaTH(6, 3, 4, rank=2, std=1.0, generator=seeded(0)).double()
    nn.init.normal_(path.beta_bias, generator=seeded(1))
    x = normal(2, 5, 6)
    w, beta = path.reflections(x)
    assert w.shape == (2, 3, 5, 4)
    assert beta.shape == (2, 3, 5)
    assert max_error(w.norm(dim=-1), torch.ones(2, 3, 5).double()) <= rounding(w)
    raw = (path.up_weight.view(3, 4, 2)[1] @ path.down_weight) @ x[1, 2]
    assert max_error(w[1, 1, 2], raw / raw.norm()) <= rounding(w)
    expected = 2 * torch.sigmoid(path.beta_weight[1] @ x[1, 2] + path.beta_bias[1])
    assert max_error(beta[1, 1, 2], expected) <= rounding(expected)


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "w of another shape": (
        lambda: path_scores(
            Q, Q, AT, AT, w=torch.ones(1, 2, 3, 5), beta=torch.ones(1, 2, 3)
        ),
        ValueError,
        "w must",
    ),
    "beta of another shape": (
        lambda: path_scores(Q, Q, AT, AT, w=Q, beta=torch.ones(1, 2, 3, 1)),
        ValueError,
        "beta must",
    ),
    "PaTH without hidden states": (
        lambda: PaTH(4, 2, 4).scores(Q, Q, AT, AT),
        TypeError,
        "k_x must be given",
    ),
    "rank 0": (
        lambda: PaTH(4, 2, 4, rank=0),
        ValueError,
        "rank must",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
