"""Runs on sequences longer than those of training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from examples.lab import TINY
from helpers import seeded

from posenc_lib import lab
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.lab import extending
from posenc_lib.scheme import PositionScheme


def test_remedies_are_what_they_are_called() -> None:
    """Each against the scores that its equation gives, for one query and one key."""
    settings = replace(
        lab.EXPERIMENTS["rope-longer"], width=16, heads=2
    )  # d = 8, L = 32
    found, omega = lab.extension_methods(settings), inverse_frequencies(8)
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
    for name in ("window 16", "window 32", "window 64"):
        assert score(found[name]) == pytest.approx(expected["as trained"], abs=1e-9)
        size = int(name.split()[1])
        assert found[name].mask(
            positions, torch.tensor([101 - size, 100 - size])
        ).tolist() == [[True, False]]
    assert list(found) == [each.name for each in found.values()]
    with pytest.raises(ValueError, match="name must be one of 'rope'; got 'nope'"):
        lab.extension_run(settings, "nope", 0)


def test_a_longer_run_asks_all_remedies_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(extending.TUNING, "steps", 20)
    settings = replace(TINY, masked=True, lengths=(8, 16), steps=30, batch=16, lr=0.02)
    made = lab.extension_run(settings, "rope", 3)
    plain = lab.run(settings, "rope", 3)
    for length in ("8", "16"):
        assert made["total"][length] == sum(plain["total"][length])
        assert made["correct"]["as trained"][length] == sum(plain["correct"][length])
        assert (
            made["correct"]["window 16"][length]
            == made["correct"]["as trained"][length]
        )  # hides nothing below 16
    assert made["loss"] == plain["loss"]
    assert made == lab.extension_run(settings, "rope", 3)


@pytest.mark.parametrize(
    ("name", "width"), [("rope_longer", 32), ("rope_longer_wide", 64)]
)
def test_stored_longer_runs_are_whole(name: str, width: int) -> None:
    stored = lab.load(name)
    settings = stored["settings"]
    assert settings == replace(lab.EXPERIMENTS["rope-longer"], width=width)
    assert [r["seed"] for r in stored["runs"]] == list(range(5))
    for r in stored["runs"]:
        assert r["tuning"] == extending.TUNING
        assert r["total"] == {
            str(T): settings.sequences * (T - 3) for T in settings.lengths
        }
        assert list(r["correct"]) == list(lab.extension_methods(settings))
        assert list(r["tuned"]) == list(extending.TUNED)
        for right in (
            *r["correct"].values(),
            *(each["correct"] for each in r["tuned"].values()),
        ):
            assert all(0 <= right[T] <= r["total"][T] for T in r["total"])
