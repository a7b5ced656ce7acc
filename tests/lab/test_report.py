"""What a store of runs says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from examples.lab import tiny
from scipy.stats import bootstrap

from posenc_lib import lab
from posenc_lib.lab import report
from posenc_lib.lab.settings import as_stored


def row(settings: lab.Settings, seed: int, *shares: float) -> lab.Row:
    """A row with these shares of right answers, of a hundred at each length."""
    lengths = [str(T) for T in settings.lengths]
    correct = {T: [round(100 * x)] for T, x in zip(lengths, shares, strict=True)}
    return {
        "settings": as_stored(replace(settings, block=64)),
        "seed": seed,
        "trained": 0.1,
        "total": {T: [100] for T in lengths},
        "tests": {
            "as trained": {"correct": correct, "loss": dict.fromkeys(lengths, 1)}
        },
        "versions": {},
    }


def made(effects: dict[str, float], noise: float = 0.01) -> list[lab.Row]:
    """Runs of two schemes, recipes and tasks with known effects on their accuracy."""
    generator = np.random.default_rng(0)
    rows = []
    for scheme, recipe, task, seed in product(
        ("rope", "t5"), lab.RECIPES.values(), ("three-back", "induction"), range(10)
    ):
        far = 0.5 + noise * generator.normal()
        far += effects.get("scheme", 0) * (1 if scheme == "t5" else -1)
        far += effects.get("recipe", 0) * (1 if recipe == lab.SGD else -1)
        settings = tiny(scheme=scheme, recipe=recipe, task=task, masked=True)
        rows.append(row(settings, seed, 1.0, far))
    return rows


def test_a_summary_counts_and_keeps_all_runs() -> None:
    settings = tiny(scheme="rope")
    rows = [row(settings, s, x, y) for s, (x, y) in enumerate([(1, 0.5), (0.98, 0.2)])]
    (one,) = lab.summaries(rows)
    assert (one.runs, one.learned, one.test) == (2, 1, "as trained")
    np.testing.assert_allclose(one.accuracy, [[1, 0.5], [0.98, 0.2]])
    np.testing.assert_allclose(one.perplexity, np.e)


def test_the_interval_of_a_median_covers_it() -> None:
    """In 95 of 100 experiments, about: the interval is what it is called."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        median, low, high = lab.median_interval(generator.normal(size=20))
        assert low <= median <= high
        covered += low <= 0 <= high
    assert 0.88 < covered / 200 < 0.99
    theirs = bootstrap(
        (np.arange(20.0) ** 2,), np.median, method="percentile"
    ).confidence_interval
    _, low, high = lab.median_interval(np.arange(20.0) ** 2)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), rel=0.1)
    assert lab.median_interval([0.5]) == (0.5, 0.5, 0.5)
    assert lab.median_interval([1.0] * 20) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("factor", ["scheme", "recipe"])
def test_the_factor_that_decides_is_found(factor: str) -> None:
    runs = report.frame(made({factor: 0.2}))
    found = report.variance(runs, ["task", "scheme", "recipe"])
    assert found["share"].sum() == pytest.approx(1)
    assert found["share"].idxmax() == factor
    assert found["share"][factor] > 0.95
    for other in {"task", "scheme", "recipe"} - {factor}:
        assert found["share"][other] < 0.01


def test_shares_are_the_sums_of_squares_by_hand() -> None:
    runs = report.frame(made({"scheme": 0.1, "recipe": 0.05}, noise=0.05))
    found = report.variance(runs, ["scheme", "recipe"])
    y = runs.longest
    total = ((y - y.mean()) ** 2).sum()
    for factor in ("scheme", "recipe"):  # balanced: each alone
        means = runs.groupby(factor).longest.transform("mean")
        assert found["share"][factor] == pytest.approx(
            ((means - y.mean()) ** 2).sum() / total
        )
    cells = runs.groupby(["scheme", "recipe"]).longest.transform("mean")
    assert found["share"]["Residual"] == pytest.approx(((y - cells) ** 2).sum() / total)


def test_what_decides_leaves_out_what_did_not_learn(tmp_path: Path) -> None:
    rows = made({"recipe": 0.1})
    rows += [
        row(tiny(scheme="nope", recipe=r, masked=True, task=t), s, 0.2, 0.1)
        for r, t, s in product(
            lab.RECIPES.values(), ("three-back", "induction"), range(10)
        )
    ]
    text = report.decided(report.frame(rows))
    whole, *by_task = text.split("\n\n**")
    assert "scheme: nope, rope, t5" in whole
    assert len(by_task) == 2
    assert all("scheme: rope, t5;" in part for part in by_task)
    assert report.decided(report.frame(rows[:5])) == "Too few runs to compare."


def test_a_figure_has_a_dot_for_each_run_and_length() -> None:
    rows = made({"scheme": 0.1})
    found = [s for s in lab.summaries(rows) if s.settings.task == "induction"]
    figure = lab.dots(found)
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["adam", "sgd"]
    for panel, recipe in zip(panels, ("adam", "sgd"), strict=True):
        dots = [d for d in panel.collections if len(d.get_offsets())]
        assert sum(len(d.get_offsets()) for d in dots) == 20
        wanted = lab.accuracies(lab.select(rows, task="induction", recipe=recipe), 12)
        drawn = np.concatenate([d.get_offsets()[:, 0] for d in dots])
        np.testing.assert_allclose(sorted(drawn), sorted(wanted.tolist()))
    assert [t.get_text() for t in panels[0].get_yticklabels()] == ["rope", "t5"]


def test_runs_that_did_not_learn_are_hollow() -> None:
    settings = tiny(scheme="rope", masked=True)
    rows = [row(settings, 0, 1.0, 0.7), row(settings, 1, 0.5, 0.3)]
    (panel,) = lab.dots(lab.summaries(rows)).axes
    (drawn,) = [d for d in panel.collections if len(d.get_offsets())]
    filled = [bool(colour[3]) for colour in drawn.get_facecolors()]
    assert filled == [True, False]


def test_the_report_is_whole(tmp_path: Path) -> None:
    rows = made({"scheme": 0.1})
    files = report.write(rows, tmp_path / "report")
    assert sorted(f.name for f in files) == [
        "01-three-back.png",
        "02-induction.png",
        "report.md",
        "runs.csv",
    ]
    assert len(pd.read_csv(tmp_path / "report" / "runs.csv")) == len(rows)
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert text.count("| rope | adam | as trained | 10/10 | 1.00 (1.00–1.00) |") == 2
    assert "![induction, causal, width 8, trained at 8](02-induction.png)" in text


def test_shares_of_unequal_numbers_are_still_of_the_whole_variance() -> None:
    runs = report.frame(made({"scheme": 0.1, "recipe": 0.1}, noise=0.05))
    few = runs[(runs.scheme == "rope") ^ (runs.recipe == "sgd") | (runs.seed < 2)]
    found = report.variance(few, ["scheme", "recipe"])
    total = ((few.longest - few.longest.mean()) ** 2).sum()
    assert found["share"].sum() != pytest.approx(1, abs=0.01)
    assert found["share"]["Residual"] == pytest.approx(
        found["sum_sq"]["Residual"] / total
    )


def test_unlike_runs_are_not_analysed_as_one() -> None:
    rows = made({"scheme": 0.1})
    longer = [
        row(replace(lab.from_stored(r["settings"]), steps=9), 99, 1.0, 0.5)
        for r in rows[:1]
    ]
    text = report.decided(report.frame(rows + longer))
    assert text.startswith("No analysis: runs of one task")


# ---- refused input


def call_variance(**changed: Any) -> Any:
    return report.variance(report.frame(made({})), ["scheme", "width"])


def test_refused() -> None:
    with pytest.raises(ValueError, match="factors must have two values each, width"):
        call_variance()
    runs = report.frame(made({}))
    lacking = runs[(runs.scheme != "t5") | (runs.recipe != "sgd")]
    with pytest.raises(ValueError, match="factors must have runs in every combination"):
        report.variance(lacking, ["scheme", "recipe"])
    once = runs[(runs.seed == 0) & (runs.task == "induction")]
    with pytest.raises(ValueError, match="runs must be more than one in some"):
        report.variance(once, ["scheme", "recipe"])
    same = runs.assign(longest=1.0)
    with pytest.raises(ValueError, match="runs must differ in their accuracy"):
        report.variance(same, ["scheme", "recipe"])
    assert "No analysis: runs must differ" in report.decided(same)
    with pytest.raises(ValueError, match="rows must be at least one, got none"):
        report.write([], Path("never"))
