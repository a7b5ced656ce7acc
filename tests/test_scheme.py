"""Schemes: attention without any position."""

from __future__ import annotations

import itertools
import math

import torch
from helpers import normal

from posenc_lib.attention import attention
from posenc_lib.scheme import NOPE


def test_nope_is_the_equation() -> None:
    q, k, v = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    m = torch.arange(5)
    out = attention(q, k, v, q_positions=m, k_positions=m, scheme=NOPE)
    for b, h, i in itertools.product(range(2), range(3), range(5)):
        weights = [math.exp(float(q[b, h, i] @ k[b, h, j]) / 2) for j in range(5)]
        expected = sum(w * v[b, h, j] for j, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(out[b, h, i], expected)
