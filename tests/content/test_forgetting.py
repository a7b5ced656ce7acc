"""Forget gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal, rounding, seeded
from torch import nn

from posenc_lib.attention import causal
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.content import (
    ForgetGate,
    path_sums,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_path_sums_of_narrow_positions_stop_at_segments(dtype: torch.dtype) -> None:
    steps, m = normal(1, 2, 5), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(
        path_sums(steps, m.to(dtype), m.to(dtype)), path_sums(steps, m, m)
    )


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 6), (1, 9), (4, 9)])
def test_forget_gate_is_the_equation(queries: int, keys: int) -> None:
    gate = ForgetGate(3, 2, std=1.0, generator=seeded(0)).double()
    nn.init.normal_(gate.bias, generator=seeded(1))
    x, m, n = normal(2, keys, 3), arange(queries, keys - queries), arange(keys)
    bias = gate(m, n, k_x=x)
    for b in range(2):
        for h in range(2):
            logs = [
                torch.log(torch.sigmoid(gate.weight[h] @ x[b, t] + gate.bias[h]))
                for t in range(keys)
            ]
            for i, a in enumerate(m.tolist()):
                for j in range(a + 1):
                    expected = sum(
                        logs[j + 1 : a + 1], torch.zeros((), dtype=torch.float64)
                    )
                    assert max_error(bias[b, h, i, j], expected) <= rounding(expected)


def test_a_constant_gate_is_alibi() -> None:
    slopes = alibi_slopes(4)
    gate = ForgetGate(3, 4, generator=seeded(0)).double()
    gate.weight.data.zero_()
    gate.bias.data.copy_(-torch.log(torch.expm1(slopes)))  # log σ(b) = −slope
    m, n = arange(5, 7), arange(12)
    allowed = causal(m, n)
    bias, expected = (
        gate(m, n, k_x=normal(1, 12, 3)),
        alibi(m, n, slopes, dtype=torch.float64),
    )
    assert max_error(bias[..., allowed], expected[..., allowed]) <= rounding(expected)


def test_cable_is_a_forget_gate_with_negated_logits() -> None:
    gate = ForgetGate(3, 2, std=1.0, generator=seeded(0)).double()
    x, positions = normal(1, 8, 3), arange(8)
    steps = -nn.functional.softplus(x @ -gate.weight.mT).mT  # −softplus(z), z = −w x
    bias = gate(positions, positions, k_x=x)
    assert max_error(path_sums(steps, positions, positions), bias) <= rounding(bias)


def test_sums_in_sixteen_bits_are_computed_in_float32() -> None:
    steps = -normal(1, 1, 3000).abs()
    positions, query = arange(3000), arange(1, offset=2999)
    exact = path_sums(steps.to(torch.bfloat16).double(), query, positions)
    assert path_sums(steps.to(torch.bfloat16), query, positions).dtype == torch.float32
    error = max_error(path_sums(steps.to(torch.bfloat16), query, positions), exact)
    assert error <= 3000 * torch.finfo(torch.float32).eps * float(exact.abs().max())


AT, Q = arange(3), torch.ones(1, 2, 3, 4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no hidden states": (
        lambda: ForgetGate(4, 2)(AT, AT),
        TypeError,
        "k_x must be given",
    ),
    "hidden states of another width": (
        lambda: ForgetGate(4, 2)(AT, AT, k_x=torch.ones(1, 3, 5)),
        ValueError,
        "k_x must have shape",
    ),
    "hidden states of another length": (
        lambda: ForgetGate(4, 2)(AT, AT, k_x=torch.ones(1, 2, 4)),
        ValueError,
        "k_positions must",
    ),
    "a key missing": (
        lambda: path_sums(
            torch.ones(1, 1, 3), torch.tensor([4]), torch.tensor([0, 1, 4])
        ),
        ValueError,
        "jump after 1",
    ),
    "a query that is no key": (
        lambda: path_sums(torch.ones(1, 1, 3), torch.tensor([3]), AT),
        ValueError,
        "q_positions must .* got 3",
    ),
    "a query that is no key of its row": (
        lambda: path_sums(
            torch.ones(2, 1, 3), torch.tensor([[2], [2]]), torch.stack((AT, AT + 3))
        ),
        ValueError,
        "q_positions must .* got 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
