"""RoPE: the equation itself, for whole and partial heads, in both layouts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers import normal

from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary.rope import RoPE


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_rope_is_the_equation(layout: str, rotary_dim: int) -> None:
    q, k = normal(2, 3, 5, 8), normal(2, 3, 5, 8, seed=1)
    m, n = torch.tensor([0, 1, 5, 70, 1000]), torch.arange(5) + 3
    rotary = RoPE(inverse_frequencies(rotary_dim, 500.0), layout=layout)
    q_out, k_out = rotary.transform(q, k, m, n)
    pairs = rotary_dim // 2
    for x, positions, out in ((q, m, q_out), (k, n, k_out)):
        for b, h, t in itertools.product(range(2), range(3), range(5)):
            expected = x[b, h, t].clone()
            for i in range(pairs):
                angle = int(positions[t]) * 500.0 ** (-2 * i / rotary_dim)
                first, second = (2 * i, 2 * i + 1)
                if layout == "half":
                    first, second = (i, i + pairs)
                one, two = float(x[b, h, t, first]), float(x[b, h, t, second])
                expected[first] = one * math.cos(angle) - two * math.sin(angle)
                expected[second] = one * math.sin(angle) + two * math.cos(angle)
            torch.testing.assert_close(out[b, h, t], expected, atol=1e-11, rtol=0)
