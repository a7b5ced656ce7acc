"""T5's bias: the equation itself, with buckets by exact fractions."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import bucket_by_fractions

from posenc_lib.bias.t5 import T5Bias


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_bias_is_the_equation(bidirectional: bool) -> None:
    sizes = {"num_buckets": 8, "max_distance": 20}
    bias = T5Bias(3, bidirectional=bidirectional, std=1.0, **sizes)
    m, n = torch.arange(4) + 30, torch.arange(64)
    out = bias(m, n)
    for i, j in itertools.product(range(4), range(64)):
        bucket = bucket_by_fractions(j - i - 30, bidirectional=bidirectional, **sizes)
        assert torch.equal(out[0, :, i, j], bias.table[bucket])
