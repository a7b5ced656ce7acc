"""A run: its model, its counts, and its row."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from examples.lab import TINY, outcome, tiny
from torch import nn

from posenc_lib import lab, scheme
from posenc_lib.lab import runs
from posenc_lib.lab.settings import DTYPES, POSITIONS
from posenc_lib.positions import arange
from posenc_lib.scheme import PositionScheme

TABLES = ("learned", "shaw", "t5", "t5-small")  # have no row for a real number


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
def test_seeds_together_give_the_rows_of_each_alone(name: str) -> None:
    """In float64 for every scheme, under positions of each kind that it takes."""
    for positions in POSITIONS[:3]:
        settings = tiny(
            scheme=name, masked=True, positions=positions, recipe=lab.SGD, steps=4
        )
        if positions == "randomised reals" and name in TABLES:
            with pytest.raises(TypeError, match="must be integers"):
                lab.run(settings, [3])
            continue
        together = lab.run(settings, [3, 0, 5])
        alone = [lab.run(settings, [seed])[0] for seed in (3, 0, 5)]
        assert [outcome(row) for row in together] == [outcome(row) for row in alone]
        assert outcome(together[0])["tests"] != outcome(together[1])["tests"]


def test_a_row_says_all_there_is_to_know() -> None:
    settings = tiny(
        scheme="rope",
        tests=("as trained", "window 1/2"),
        tuned=("PI 2",),
        block=4,
    )
    (row,) = lab.run(settings, [7])
    assert row == json.loads(json.dumps(row))
    assert lab.from_stored(row["settings"]) == settings
    assert row["seed"] == 7
    assert set(row["versions"]) == set(runs.versions())
    assert row["versions"]["torch"] == torch.__version__
    assert row["total"] == {"8": [6, 24], "12": [6, 24, 24]}
    assert list(row["tests"]) == ["as trained", "window 1/2", "tuned PI 2"]
    for found in row["tests"].values():
        for length, counts in found["correct"].items():
            asked = row["total"][length]
            assert all(0 <= c <= t for c, t in zip(counts, asked, strict=True))
        assert all(0 < loss < 20 for loss in found["loss"].values())
    assert 0 < row["tests"]["tuned PI 2"]["trained"] < 20
    assert row["seconds"] > 0
    assert row["made"].endswith("Z")


def test_a_run_that_diverges_is_a_row_and_harms_no_other() -> None:
    wild = replace(TINY, recipe=lab.Recipe("sgd", 1e12), steps=6, dtype="float32")
    for row in lab.run(wild, [0, 1]):
        assert row["trained"] is None
        assert row["tests"]["as trained"]["loss"]["8"] is None
        json.dumps(row, allow_nan=False)


def test_counts_are_those_of_the_model() -> None:
    """Against a forward pass of one model at a time, position by position."""
    settings = tiny(scheme="t5", masked=True)
    models, _ = lab.trained(settings, [1, 2])
    found = lab.evaluate(models, settings, [1, 2])
    for seed, model, counts in zip((1, 2), models, found, strict=True):
        generator = torch.Generator().manual_seed(1_000_000 + seed)
        for length in settings.lengths:
            tokens, targets = lab.k_back(3).draw(6, length, generator)
            logits = model(tokens, arange(length))
            right = (logits.argmax(-1) == targets).sum(0)
            assert counts["correct"][str(length)] == right.tolist()
            losses = nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=lab.IGNORE
            )
            assert counts["loss"][str(length)] == pytest.approx(losses.item(), abs=1e-4)


def test_positions_of_a_run() -> None:
    task = lab.TASKS["reversed-addition"]()
    digits = lab.Settings("reversed-addition", "learned", length=17, lengths=(17, 62))
    generator = torch.Generator().manual_seed(0)
    for kind, last in (
        ("in order", 61),
        ("randomised", 123),
        ("randomised reals", 123),
        ("coupled", 20),
    ):
        settings = replace(digits, positions=kind)
        assert settings.last_position == last
        draw = runs.positions_of(settings, task)
        drawn = [draw(17, generator) for _ in range(200)]
        assert all(len(positions) == 17 for positions in drawn)
        assert min(float(positions.min()) for positions in drawn) >= 0
        most = max(float(positions.max()) for positions in drawn)
        assert (last == 61 and most == 16) or last * 0.9 < most < last + 1
        assert all((p.sort().values == p).all() for p in drawn) == (kind != "coupled")


def test_digits_of_one_place_value_share_a_coupled_position() -> None:
    task = lab.reversed_addition(2)
    assert task.coupled is not None
    # a_0 a_1 + b_0 b_1 = c_0 c_1
    assert task.coupled(8, 5).tolist() == [6, 7, 5, 6, 7, 5, 6, 7]


def test_a_tensor_that_only_a_seed_knows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hidden(settings: lab.Settings, generator: torch.Generator) -> PositionScheme:
        drawn = torch.randn(99, settings.width, generator=generator)
        return PositionScheme("mine", embedding=lambda positions: drawn[positions])

    monkeypatch.setitem(lab.SCHEMES, "mine", hidden)
    settings = tiny(scheme="mine")
    assert len(lab.run(settings, [0])) == 1  # alone it is what it says
    with pytest.raises(
        ValueError, match="'mine' must hold all that it draws in parameters and buffers"
    ):
        lab.run(settings, [0, 1])


def test_float32_has_the_accuracies_of_float64() -> None:
    """The same distribution: medians of ten seeds at twice the trained length."""
    settings = lab.Settings(
        "three-back",
        "sinusoid",
        length=16,
        lengths=(16, 32),
        sequences=64,
        steps=200,
        batch=32,
        width=16,
    )
    found = {
        dtype: lab.accuracies(lab.run(replace(settings, dtype=dtype), range(10)), 32)
        for dtype in DTYPES
    }
    wide, narrow = found["float64"], found["float32"]
    assert wide.min() < 0.9  # there is something to differ in
    spread = math.hypot(wide.std().item(), narrow.std().item()) / math.sqrt(10)
    assert abs(wide.mean() - narrow.mean()).item() < 3 * spread


@pytest.mark.parametrize("name", list(lab.METHODS))
def test_methods_run_under_the_weights_of_the_model(name: str) -> None:
    tests = tuple(dict.fromkeys(("as trained", name)))
    settings = tiny(scheme="rope", masked=True, tests=tests)
    assert tuple(lab.run(settings, [0])[0]["tests"]) == tests


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "task": (
        lambda: lab.run(tiny(task="back"), [0]),
        ValueError,
        "task must be one of 'three-back', .*; got 'back'",
    ),
    "scheme": (
        lambda: lab.run(tiny(scheme="typo"), [0]),
        ValueError,
        "scheme must be one of 'nope', 'sinusoid', .*; got 'typo'",
    ),
    "test": (
        lambda: lab.run(tiny(tests=("as trained", "window 3")), [0]),
        ValueError,
        "tests must be one of 'as trained', .*; got 'window 3'",
    ),
    "lengths": (
        lambda: tiny(lengths=()),
        ValueError,
        "lengths must contain the trained length 8, which says",
    ),
    "steps": (
        lambda: tiny(steps=0),
        ValueError,
        "steps must be an integer ≥ 1, got 0",
    ),
    "too short": (
        lambda: lab.run(tiny(lengths=(8, 3)), [0]),
        ValueError,
        "length must be an integer ≥ 4, got 3",
    ),
    "no ranks": (
        lambda: lab.run(tiny(positions="coupled"), [0]),
        ValueError,
        "positions can't be coupled in three-back, whose tokens have no rank",
    ),
    "schedule": (
        lambda: lab.run(tiny(scheme="t5", tests=("as trained", "PI 2")), [0]),
        ValueError,
        "scheme must be one of rope, rope-100 for another schedule .*, got 't5'",
    ),
    "optimiser": (
        lambda: lab.Recipe("lion", 0.1),
        ValueError,
        "optimiser must be one of 'adam', 'sgd'; got 'lion'",
    ),
    "clip": (
        lambda: lab.Recipe("sgd", 0.1, clip=0.0),
        ValueError,
        "clip must be finite and above 0, got 0",
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
