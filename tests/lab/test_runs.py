"""Runs, stored and new."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.lab import TINY
from torch import nn

from posenc_lib import lab, scheme
from posenc_lib.lab import runs
from posenc_lib.positions import arange


def test_scrambled_is_a_formula_without_structure() -> None:
    rows = lab.scrambled(arange(256), 32)
    assert torch.equal(rows[7], lab.scrambled(torch.tensor([7]), 32)[0])
    assert abs(rows.square().mean().item() - 0.5) < 0.02
    cosines = nn.functional.cosine_similarity(
        rows[:, None], rows[None], dim=-1
    ).fill_diagonal_(0)
    assert cosines.abs().max() < 0.85
    assert abs(cosines.mean().item()) < 0.02
    sinusoid = scheme.sinusoidal(32).embedding(arange(256))
    assert (
        nn.functional.cosine_similarity(sinusoid[:-1], sinusoid[1:], dim=-1).min() > 0.9
    )  # which has structure


@pytest.mark.parametrize("name", list(lab.SCHEMES))
def test_every_scheme_runs(name: str) -> None:
    found = lab.run(TINY, name, seed=0)
    assert found["total"] == {"8": [0] * 3 + [6] * 5, "12": [0] * 3 + [6] * 9}
    assert all(
        r <= a
        for T in ("8", "12")
        for r, a in zip(found["correct"][T], found["total"][T], strict=True)
    )
    assert found["loss"] > 0


def test_a_sweep_that_is_stopped_goes_on(tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []

    def stopped_at_the_third(
        settings: lab.Settings, name: str, seed: int, *, progress: bool
    ) -> dict:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append((name, seed))
        return lab.run(settings, name, seed)

    path, names, seeds = tmp_path / "runs.json", ["nope", "sinusoid"], [0, 1]
    with pytest.raises(KeyboardInterrupt):
        lab.sweep(path, TINY, names, seeds, make=stopped_at_the_third)
    half = json.loads(path.read_text())["runs"]
    assert [(r["scheme"], r["seed"]) for r in half] == [("nope", 0), ("sinusoid", 0)]
    whole = lab.sweep(
        path,
        TINY,
        names,
        seeds,
        make=lambda s, n, i, progress: made.append((n, i)) or lab.run(s, n, i),
    )
    assert made == [("nope", 0), ("sinusoid", 0), ("nope", 1), ("sinusoid", 1)]
    assert json.loads(path.read_text()) == whole
    assert [r for r in whole["runs"] if r["seed"] == 0] == half
    assert whole == lab.sweep(tmp_path / "at once.json", TINY, names, seeds)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at once.json", "runs.json"]


def test_a_file_holds_runs_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.json"
    lab.sweep(path, TINY, ["nope"], [0])
    before = path.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"holds runs with settings steps = 2, asked for steps = 3: name",
    ):
        lab.sweep(path, replace(TINY, steps=3), ["nope"], [1])
    monkeypatch.setattr(runs, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(
        ValueError, match=r"holds runs with versions .*asked for .*torch = '0\.1'"
    ):
        lab.sweep(path, TINY, ["nope"], [1])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "experiment", "changed", "schemes"),
    [
        (
            "three_back",
            "three-back",
            {},
            {"nope", "sinusoid", "learned", "scrambled", "bias"},
        ),
        (
            "common_token",
            "common-token",
            {},
            {"nope", "sinusoid", "learned", "scrambled"},
        ),
        ("three_back_rope", "three-back", {}, {"rope"}),
        (
            "three_back_causal",
            "three-back",
            {"lengths": (32, 48, 64, 96, 128, 192, 256), "masked": True},
            {"rope", "bias", "sinusoid"},
        ),
        (
            "three_back_wide",
            "three-back",
            {"lengths": (32, 64, 128, 256), "width": 64},
            {"rope"},
        ),
        (
            "three_back_wide_causal",
            "three-back",
            {"lengths": (32, 64, 128, 256), "width": 64, "masked": True},
            {"rope", "bias", "sinusoid"},
        ),
        (
            "three_back_causal_100",
            "three-back",
            {"masked": True, "sequences": 64},
            {"rope-100"},
        ),
        (
            "three_back_wide_causal_half",
            "three-back",
            {"masked": True, "sequences": 64, "width": 64},
            {"rope-half", "rope-half-100"},
        ),
        (
            "three_back_buckets",
            "three-back",
            {"steps": 300, "batch": 32, "sequences": 64, "lengths": (32, 64, 128, 256)},
            {"sinusoid", "bias", "bias-128"},
        ),
        (
            "three_back_two_heads",
            "three-back",
            {"masked": True, "sequences": 64, "width": 64, "heads": 2},
            {"rope"},
        ),
    ],
)
def test_stored_runs_are_whole(
    name: str, experiment: str, changed: dict[str, Any], schemes: set[str]
) -> None:
    stored = lab.load(name)
    settings = stored["settings"]
    assert settings == replace(lab.EXPERIMENTS[experiment], **changed)
    assert set(stored["versions"]) == set(runs.versions())
    assert {(r["scheme"], r["seed"]) for r in stored["runs"]} == set(
        product(schemes, range(5))
    )
    skipped = 3 if experiment == "three-back" else 0
    for r in stored["runs"]:
        for length in settings.lengths:
            right, asked = r["correct"][str(length)], r["total"][str(length)]
            assert asked == [0] * skipped + [settings.sequences] * (length - skipped)
            assert len(right) == length
            assert all(0 <= a <= b for a, b in zip(right, asked, strict=True))


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "task": (
        lambda: lab.Settings("two-back"),
        ValueError,
        "task must be one of 'three-back', 'common-token'",
    ),
    "run": (
        lambda: lab.run(TINY, "typo", 0),
        ValueError,
        "name must be one of 'nope', 'sinusoid'",
    ),
    "sweep": (
        lambda: lab.sweep(Path("never"), TINY, ["typo"], [0]),
        ValueError,
        "names must be one of 'nope'",
    ),
    "load": (
        lambda: lab.load("typo"),
        ValueError,
        "name must be one of 'common_token', 'costs', .*'rope_longer'.*; got 'typo'",
    ),
    "dim": (
        lambda: lab.scrambled(arange(3), 0),
        ValueError,
        "dim must be an integer ≥ 1, got 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
