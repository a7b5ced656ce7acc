"""T5's bias: the equation itself, with buckets by exact fractions."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import bucket_by_fractions
from hypothesis import given
from hypothesis import strategies as st

from posenc_lib.bias.t5 import T5Bias, t5_bucket, t5_bucket_edges


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_bias_is_the_equation(bidirectional: bool) -> None:
    sizes = {"num_buckets": 8, "max_distance": 20}
    bias = T5Bias(3, bidirectional=bidirectional, std=1.0, **sizes)
    m, n = torch.arange(4) + 30, torch.arange(64)
    out = bias(m, n)
    for i, j in itertools.product(range(4), range(64)):
        bucket = bucket_by_fractions(j - i - 30, bidirectional=bidirectional, **sizes)
        assert torch.equal(out[0, :, i, j], bias.table[bucket])


@given(half=st.integers(1, 12), beyond=st.integers(1, 100))
def test_edges_are_the_first_distances_of_their_buckets(half: int, beyond: int) -> None:
    sizes = {"num_buckets": 2 * half, "max_distance": half + beyond}
    edges = t5_bucket_edges(**sizes)
    assert len(edges) == 2 * half
    bucket = t5_bucket(-torch.arange(2 * (half + beyond)), bidirectional=False, **sizes)
    assert bool((bucket.diff() >= 0).all())
    for j, (first, following) in enumerate(
        zip(edges, [*edges[1:], len(bucket)], strict=True)
    ):
        assert bucket[first:following].tolist() == [j] * (following - first)
