"""What a store of runs says: tables, figures with every run, and what decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from posenc_lib.figures import style
from posenc_lib.lab.settings import AS_TRAINED, Settings, from_stored
from posenc_lib.lab.store import Row, accuracies
from posenc_lib.lab.summary import (
    LEARNED,
    Summary,
    common_settings,
    dots,
    summaries,
    table,
    title,
)


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """A line for each run: its settings, and its accuracy at the longest length.

    Args:
        rows: of `load` or `select`.

    Chapter: 21
    """
    lines = []
    for row in rows:
        settings = from_stored(row["settings"])
        longest = max(settings.lengths)
        lines.append(
            {
                **{
                    field.name: getattr(settings, field.name)
                    for field in fields(Settings)
                },
                "recipe": settings.recipe.optimiser,
                "settings": str(settings),
                "seed": row["seed"],
                "trained": accuracies([row], settings.length).item(),
                "longest": accuracies([row], longest).item(),
            }
        )
    return pd.DataFrame(lines)


def variance(runs: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """How much of the differences between runs each factor explains.

    Equation: η² = SS_factor / SS_total of an analysis of variance (type II) of the
        accuracy at the longest length, with all interactions
    Shapes: → a line for each factor, interaction and the rest (the seeds), with df,
        sum_sq, F, PR(>F) and share

    The shares describe these runs. They add up to one if each combination has the same
    number of runs; else what factors share belongs to none. The tests suppose equal
    variances, which accuracies near 0 and 1 don't have, and residuals that don't depend
    on one another; runs of one seed are tested on the same sequences.

    Args:
        runs: of `frame`.
        factors: columns with at least two values each, every combination of which has
            runs.

    Raises:
        ValueError: a factor has one value, a combination has no run, none has two, or
            all runs have the same accuracy.

    Chapter: 21
    """
    for factor in factors:
        if runs[factor].nunique() < 2:
            raise ValueError(f"factors must have two values each, {factor} has one")
    combinations = runs.groupby(list(factors)).size()
    if len(combinations) < int(np.prod([runs[f].nunique() for f in factors])):
        raise ValueError(
            f"factors must have runs in every combination, {', '.join(factors)} lack "
            "some"
        )
    if len(runs) == len(combinations):
        raise ValueError("runs must be more than one in some combination of factors")
    if runs.longest.std() < 1e-9:
        raise ValueError("runs must differ in their accuracy, all have the same")
    formula = "longest ~ " + " * ".join(f"C({factor})" for factor in factors)
    found = anova_lm(ols(formula, runs).fit(), typ=2)
    total = ((runs.longest - runs.longest.mean()) ** 2).sum()
    found["share"] = found["sum_sq"] / total
    found.index = [name.replace("C(", "").replace(")", "") for name in found.index]
    return found


FACTORS = ("task", "scheme", "recipe", "width")


def decided(runs: pd.DataFrame) -> str:
    """What decides how much of a task is left at the longest length, in words.

    Two analyses of causal models with positions in order: of all runs whose tasks and
    schemes have every combination, since who picks a scheme can't know whether it will
    learn; and for each task, of the schemes that
    learned it in all runs of every recipe.

    Args:
        runs: of `frame`.

    Chapter: 21
    """
    plain = runs[runs.masked & (runs.positions == "in order") & (runs.task != "text")]
    if (plain.groupby(list(FACTORS)).settings.nunique() > 1).any():
        return (
            "No analysis: runs of one task, scheme, recipe and width have several "
            "settings, and what differs would count as the seed. Report them apart."
        )
    parts = []
    for widths in sorted({tuple(sorted(set(plain.width))), (plain.width.min(),)}):
        chosen = _crossed(plain[plain.width.isin(widths)], FACTORS)
        factors = [f for f in FACTORS if chosen[f].nunique() > 1]
        if len(factors) > 1:
            left = len(plain[plain.width.isin(widths)]) - len(chosen)
            head = f"Whatever was learned ({left} runs in no full crossing left out)"
            parts.append(_in_words(head, chosen, factors))
    for task, group in plain[plain.width == plain.width.min()].groupby("task"):
        least = group.groupby("scheme").trained.min()
        chosen = _crossed(
            group[group.scheme.isin(least[least >= LEARNED].index)],
            ("scheme", "recipe"),
        )
        if chosen.scheme.nunique() > 1 and chosen.recipe.nunique() > 1:
            head = f"{task}, schemes that learned it in every run"
            parts.append(_in_words(head, chosen, ["scheme", "recipe"]))
    return "\n\n".join(parts) or "Too few runs to compare."


def _crossed(runs: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """The runs of the tasks and schemes that have all combinations of the factors."""
    while len(runs):
        counts = runs.groupby(list(factors)).size()
        full = int(np.prod([runs[factor].nunique() for factor in factors]))
        if len(counts) == full:
            return runs
        # The scheme or task that lacks most is the one that goes.
        worst = min(
            (counts.groupby(level=level).size().rename(level) for level in factors[:2]),
            key=lambda sizes: sizes.min() / sizes.max(),
        )
        runs = runs[runs[worst.name] != worst.idxmin()]
    return runs


def _in_words(head: str, runs: pd.DataFrame, factors: list[str]) -> str:
    """One analysis of variance as a Markdown table."""
    try:
        found = variance(runs, factors)
    except ValueError as error:
        return f"**{head}.** No analysis: {error}."
    levels = "; ".join(
        f"{factor}: {', '.join(map(str, sorted(set(runs[factor]))))}"
        for factor in factors
    )
    lines = [
        f"**{head}.** {len(runs)} runs. {levels}.",
        "",
        "| factor | share of the variance | df | F | p |",
        "|---|---|---|---|---|",
    ]
    for name, line in found.sort_values("share", ascending=False).iterrows():
        f, p = line["F"], line["PR(>F)"]
        tested = f"{f:.1f} | {p:.1g}" if f == f else " | "
        label = "seed" if name == "Residual" else str(name).replace(":", " × ")
        lines.append(f"| {label} | {line['share']:.1%} | {line['df']:.0f} | {tested} |")
    return "\n".join(lines)


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """The whole report: `report.md` with its figures, and `runs.csv`.

    Shapes: → the files

    Args:
        rows: of `load`.
        folder: made if it is not there.

    Raises:
        ValueError: there is no row. OSError: the folder can't be written.

    Chapter: 21
    """
    if not rows:
        raise ValueError("rows must be at least one, got none")
    folder.mkdir(parents=True, exist_ok=True)
    kinds: dict[Settings, list[Summary]] = {}
    for one in summaries(rows):
        kinds.setdefault(common_settings(one.settings), []).append(one)
    parts, files = ["# Runs of the laboratory\n"], []
    for number, (common, found) in enumerate(kinds.items(), 1):
        parts.append(f"## {title(common)}\n\n{table(found, common.lengths)}\n")
        plain = [one for one in found if one.test == AS_TRAINED]
        if common.task != "text" and plain:
            files.append(folder / f"{number:02d}-{common.task}.png")
            dots(plain).savefig(files[-1], dpi=style.DPI)
            parts.append(f"![{title(common)}]({files[-1].name})\n")
    runs = frame(rows)
    parts.append(f"## What decides\n\n{decided(runs)}\n")
    files += [folder / "report.md", folder / "runs.csv"]
    files[-2].write_text("\n".join(parts), encoding="utf-8")
    runs.to_csv(files[-1], index=False)
    return files
