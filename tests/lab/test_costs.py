"""Costs of ways to compute attention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import seeded
from torch import Tensor

from posenc_lib import lab
from posenc_lib.attention.linear import causal_linear_attention, elu_features
from posenc_lib.lab import costs
from posenc_lib.positions import arange
from posenc_lib.properties import max_error


def command_of_costs(path: Path, *tokens: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "posenc_lib.lab.costs",
        "--out",
        str(path),
        "--tokens",
        *map(str, tokens),
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_command_of_costs_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    first = command_of_costs(path, 64)
    both = command_of_costs(path, 64, 128)
    assert both["runs"][: len(costs.WAYS)] == first["runs"]
    assert [(r["way"], r["tokens"]) for r in both["runs"]] == [
        (way, n) for n in (64, 128) for way in costs.WAYS
    ]
    assert all(r["bytes"] > 0 and r["seconds"] > 0 for r in both["runs"])
    assert both["settings"] == lab.measured("costs")["settings"]


def test_costs_are_of_ways_that_agree() -> None:
    q, k, v = torch.randn(3, 1, 1, 150, costs.HEAD_DIM, generator=seeded()).double()
    softmax, view, pieces, toeplitz, fft = (way(q, k, v) for way in costs.WAYS.values())
    assert max_error(softmax, view) < 1e-12
    assert max_error(toeplitz, fft) < 1e-12
    running, _ = causal_linear_attention(
        elu_features(q), elu_features(k), v, positions=arange(150)
    )
    assert max_error(pieces, running) < 1e-12


def test_peak_bytes_counts_what_is_held_at_once() -> None:
    def two_then_one() -> Tensor:
        kept = torch.ones(1000)
        for _ in range(3):
            kept = kept + 1
        return kept

    assert 2 * 4000 <= costs.peak_bytes(two_then_one) < 2 * 4000 + 100, (
        "beside them, the number 1"
    )


def test_what_is_refused_is_stored_and_what_fails_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(message: str) -> Callable[..., Tensor]:
        def way(*_: Tensor) -> Tensor:
            raise RuntimeError(message)

        return way

    monkeypatch.setitem(
        costs.WAYS,
        "large",
        raising("can't allocate memory: you tried to allocate 7 bytes"),
    )
    found = costs.measure("large", 4)
    assert found == {
        "way": "large",
        "tokens": 4,
        "refused": "can't allocate memory: you tried to allocate 7 bytes",
    }
    monkeypatch.setitem(costs.WAYS, "wrong", raising("shapes"))
    with pytest.raises(RuntimeError, match="shapes"):
        costs.measure("wrong", 4)
    with pytest.raises(ValueError, match="name must be one of"):
        costs.measure("typo", 4)


def test_stored_costs_are_whole() -> None:
    stored = lab.measured("costs")
    asked = [(r["way"], r["tokens"]) for r in stored["runs"]]
    assert sorted(asked) == sorted(product(costs.WAYS, costs.TOKENS))
    refused = [r for r in stored["runs"] if "refused" in r]
    assert [(r["way"], r["tokens"]) for r in refused] == [("full_scores", 65536)]
    assert str(8 * 65536**2) in refused[0]["refused"]
    assert stored["settings"]["limit"] == costs.LIMIT
