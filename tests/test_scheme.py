"""Schemes: attention without any position."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from helpers import HEADS, WIDTH, normal, seeded
from torch import nn

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
)
from posenc_lib.bias import T5Bias, alibi, alibi_slopes
from posenc_lib.embedding import LearnedEmbedding, sinusoidal
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import NOPE


def test_nope_is_the_equation() -> None:
    q, k, v = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    m = torch.arange(5)
    out = attention(q, k, v, q_positions=m, k_positions=m, scheme=NOPE)
    for b, h, i in itertools.product(range(2), range(3), range(5)):
        weights = [math.exp(float(q[b, h, i] @ k[b, h, j]) / 2) for j in range(5)]
        expected = sum(w * v[b, h, j] for j, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(out[b, h, i], expected)


QKV = [normal(2, HEADS, 5, WIDTH, seed=seed) for seed in range(3)]


AT = {"q_positions": arange(5), "k_positions": arange(5)}


def test_named_schemes_hand_on_their_arguments() -> None:
    positions, q = arange(5), QKV[0]
    draw = partial(seeded, 3)
    embed = schemes.sinusoidal(9, 50.0, layout="concatenated").embedding
    assert torch.equal(
        embed(positions), sinusoidal(positions, 9, 50.0, layout="concatenated")
    )
    table = schemes.learned(7, 3, generator=draw()).embedding
    assert torch.equal(table.table, LearnedEmbedding(7, 3, generator=draw()).table)
    rotated = schemes.rope(WIDTH, 50.0, layout="half", rotary_dim=6).transform(
        q, q, positions, positions
    )
    expected = RoPE(inverse_frequencies(6, 50.0), layout="half").transform(
        q, q, positions, positions
    )
    assert all(map(torch.equal, rotated, expected))
    assert torch.equal(
        schemes.alibi(6).bias(positions, positions),
        alibi(positions, positions, alibi_slopes(6)),
    )
    sizes = {"bidirectional": True, "std": 0.3, "num_buckets": 8, "max_distance": 20}
    learned, same = (
        schemes.t5(3, **sizes, generator=draw()),
        T5Bias(3, **sizes, generator=draw()),
    )
    assert torch.equal(
        learned.bias(positions, 4 * positions), same(positions, 4 * positions)
    )


@pytest.mark.parametrize("std", [0.02, 1.0])
def test_tables_are_drawn_as_the_docstring_says(std: float) -> None:
    draw = partial(seeded, 3)
    tables = [
        LearnedEmbedding(100, 40, std=std, generator=draw()).table,
        T5Bias(
            40,
            bidirectional=True,
            std=std,
            num_buckets=100,
            max_distance=200,
            generator=draw(),
        ).table,
    ]
    drawn = torch.randn(100, 40, generator=draw()) * std
    state = torch.get_rng_state()
    for table in tables:
        assert isinstance(table, nn.Parameter)
        assert torch.equal(table.detach(), drawn)
    LearnedEmbedding(4, 2, generator=draw())
    assert torch.equal(
        torch.get_rng_state(), state
    )  # a generator of one's own leaves the global one alone
