"""ALiBi: the equation itself."""

from __future__ import annotations

import itertools

import pytest
import torch

from posenc_lib.bias.alibi import alibi, alibi_slopes


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_alibi_is_the_equation(heads: int) -> None:
    m, n = torch.arange(5) + 3, torch.arange(9)
    out = alibi(m, n, alibi_slopes(heads), dtype=torch.float64)
    for h, i, j in itertools.product(range(heads), range(5), range(9)):
        slope = 2.0 ** (-8 * (h + 1) / heads)
        assert float(out[0, h, i, j]) == pytest.approx(-slope * abs(j - i - 3))
