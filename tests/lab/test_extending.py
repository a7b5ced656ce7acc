"""Runs on sequences longer than those of training."""

from __future__ import annotations

import math

import pytest
import torch
from examples.lab import tiny
from helpers import seeded

from posenc_lib import lab, scheme
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.scheme import PositionScheme


def test_remedies_are_what_they_are_called() -> None:
    """Each against the scores that its equation gives, for one query and one key."""
    settings = tiny(scheme="rope", length=32, lengths=(32,), width=16, heads=2)  # d = 8
    found = {
        name: method(settings, scheme.rope(8)) for name, method in lab.METHODS.items()
    }
    omega = inverse_frequencies(8)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=seeded(5))
    positions, past = torch.tensor([100]), torch.tensor([60])

    def score(each: PositionScheme) -> float:
        turned_q, turned_k = each.transform(q, k, positions, past)
        return float((turned_q * turned_k).sum())

    def by_hand(frequencies: torch.Tensor) -> float:
        a, b = (torch.view_as_complex(x.reshape(4, 2)) for x in (q, k))
        return float((a * b.conj() * torch.exp(1j * 40 * frequencies)).sum().real)

    step = torch.where(32 * omega / (2 * math.pi) > 1, omega, omega / 4)
    factor = 0.1 * math.log(4) + 1
    ramp = ((32 * omega / (2 * math.pi) - 1) / 3).clamp(0, 1)
    expected = {
        "as trained": by_hand(omega),
        "PI 4": by_hand(omega / 4),
        "NTK 4": by_hand(omega * 4.0 ** (-torch.arange(4, dtype=torch.float64) / 3)),
        "step 4": by_hand(step),
        "ramp 4": factor**2 * by_hand(ramp * omega + (1 - ramp) * omega / 4),
        "log n": by_hand(omega) * math.log(101) / math.log(32),
    }
    for name, value in expected.items():
        assert score(found[name]) == pytest.approx(value, abs=1e-9), name
    for name, size in (("window 1/2", 16), ("window 1", 32), ("window 2", 64)):
        assert score(found[name]) == pytest.approx(expected["as trained"], abs=1e-9)
        assert found[name].mask(
            positions, torch.tensor([101 - size, 100 - size])
        ).tolist() == [[True, False]]
