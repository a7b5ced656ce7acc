"""What a store of runs says: tables, figures with every run, and what decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import bootstrap
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from posenc_lib.figures import style
from posenc_lib.lab.settings import AS_TRAINED, Settings, from_stored
from posenc_lib.lab.store import Row, accuracies
from posenc_lib.lab.train import ADAM

LEARNED = 0.99  # accuracy at the trained length below which a run supports no claim
COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)


@dataclass(frozen=True)
class Summary:
    """What the runs of one setting say.

    Args:
        settings: of all of them.
        test: under which scheme the weights were tested.
        runs: how many there are.
        learned: how many are right at the trained length in `LEARNED` of their answers.
        accuracy: (runs, lengths): the share of right answers of each run.
        perplexity: (runs, lengths): e to the mean loss; nan where a run diverged or
            the row does not have it.

    Chapter: 21
    """

    settings: Settings
    test: str
    runs: int
    learned: int
    accuracy: np.ndarray
    perplexity: np.ndarray


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """A `Summary` for each setting and test, in the order of the rows.

    Args:
        rows: of `load` or `select`.

    Chapter: 21
    """
    groups: dict[tuple[Settings, str], list[Row]] = {}
    for row in rows:
        settings = from_stored(row["settings"])
        for test in row["tests"]:
            groups.setdefault((settings, test), []).append(row)
    found = []
    for (settings, test), group in groups.items():
        shares = [accuracies(group, T, test=test).numpy() for T in settings.lengths]
        trained = accuracies(group, settings.length).numpy()
        losses = [
            [_number(row["tests"][test]["loss"].get(str(T))) for T in settings.lengths]
            for row in group
        ]
        found.append(
            Summary(
                settings,
                test,
                runs=len(group),
                learned=int((trained >= LEARNED).sum()),
                accuracy=np.stack(shares, 1),
                perplexity=np.exp(np.array(losses)),
            )
        )
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def median_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The median of some runs, and the 95 % interval of its bootstrap.

    Equation: the 2.5th and 97.5th percentile of the medians of 9,999 samples, drawn
        with replacement
    Shapes: → median, low, high

    Args:
        values: one number a run; with one run or none the interval is the median.

    Chapter: 21
    """
    numbers = np.asarray(values, dtype=float)
    median = float(np.median(numbers))
    if len(numbers) < 2 or (numbers == numbers[0]).all():
        return median, median, median
    found = bootstrap(
        (numbers,), np.median, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return median, float(found.low), float(found.high)


def _kind(settings: Settings) -> Settings:
    """What runs of one table have in common: all but scheme, recipe and heads."""
    return replace(settings, scheme="nope", recipe=ADAM, heads=1)


def title(settings: Settings) -> str:
    """A kind of runs in words.

    Args:
        settings: of the runs.

    Chapter: 21
    """
    words = [
        settings.task,
        "causal" if settings.masked else "all tokens seen",
        f"width {settings.width}",
        f"trained at {settings.length}",
    ]
    if settings.positions != "in order":
        words.append(f"positions {settings.positions}")
    return ", ".join(words)


def table(found: Sequence[Summary], lengths: Sequence[int]) -> str:
    """Medians and intervals of one kind of runs, as a Markdown table.

    Args:
        found: of one kind of runs.
        lengths: the tested lengths.

    Chapter: 21
    """
    text = found[0].settings.task == "text"
    head = ["scheme", "recipe", "test", "learned"]
    lines = [
        "| " + " | ".join([*head, *(f"T = {T}" for T in lengths)]) + " |",
        "|" + "---|" * (len(head) + len(lengths)),
    ]
    for one in found:
        values = one.perplexity if text else one.accuracy
        cells = [
            "{:.2f} ({:.2f}–{:.2f})".format(*median_interval(column))
            for column in values.T
        ]
        learned = f"{one.learned}/{one.runs}"
        s = one.settings
        lines.append(
            "| "
            + " | ".join(
                [
                    s.scheme,
                    s.recipe.optimiser,
                    one.test,
                    "—" if text else learned,
                    *cells,
                ]
            )
            + " |"
        )
    return "\n".join(lines)


def dots(found: Sequence[Summary]) -> Figure:
    """Every run of one kind as a dot: what it keeps of its task at longer lengths.

    A panel for each recipe, a row for each scheme, a colour for each length. Runs that
    did not learn the task at the trained length are hollow.

    Args:
        found: of one kind of runs, tested as trained.

    Chapter: 21
    """
    schemes = list(dict.fromkeys(one.settings.scheme for one in found))
    recipes = list(dict.fromkeys(one.settings.recipe for one in found))
    settings = found[0].settings
    longer = [T for T in settings.lengths if settings.length < T][-len(COLOURS) :]
    with style.context():
        figure = Figure(figsize=(4.5 * len(recipes), 1.2 + 0.32 * len(schemes)))
        panels = figure.subplots(1, len(recipes), sharey=True, squeeze=False)[0]
        for panel, recipe in zip(panels, recipes, strict=True):
            for one in found:
                if one.settings.recipe == recipe:
                    _draw(panel, one, schemes.index(one.settings.scheme), longer)
            panel.set_title(recipe.optimiser)
            panel.set_xlabel("share of right answers")
            panel.set_xlim(-0.02, 1.02)
        panels[0].set_yticks(range(len(schemes)), schemes)
        panels[0].invert_yaxis()
        figure.suptitle(title(settings))
        for colour, length in zip(COLOURS, longer, strict=False):
            panels[0].scatter([], [], color=colour, s=12, label=f"T = {length}")
        figure.legend(loc="outside lower center", ncols=len(longer))
    return figure


def _draw(panel: Any, one: Summary, row: int, lengths: Sequence[int]) -> None:
    """The dots of one setting, each length a little lower than the one before."""
    learned = one.accuracy[:, one.settings.lengths.index(one.settings.length)]
    for i, (colour, length) in enumerate(zip(COLOURS, lengths, strict=False)):
        shares = one.accuracy[:, one.settings.lengths.index(length)]
        height = row + 0.6 * ((i + 0.5) / len(lengths) - 0.5)
        panel.scatter(
            shares,
            np.full(len(shares), height),
            s=10,
            linewidths=0.7,
            edgecolors=colour,
            facecolors=[colour if x >= LEARNED else "none" for x in learned],
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

    The shares describe these runs. The tests suppose equal variances, which accuracies
    near 0 and 1 don't have.

    Args:
        runs: of `frame`.
        factors: columns with at least two values each, every combination of which has
            runs.

    Raises:
        ValueError: a factor has one value, or a combination has no run.

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
    formula = "longest ~ " + " * ".join(f"C({factor})" for factor in factors)
    found = anova_lm(ols(formula, runs).fit(), typ=2)
    found["share"] = found["sum_sq"] / found["sum_sq"].sum()
    found.index = [name.replace("C(", "").replace(")", "") for name in found.index]
    return found


FACTORS = ("task", "scheme", "recipe", "width")


def decided(runs: pd.DataFrame) -> str:
    """What decides how much of a task is left at the longest length, in words.

    Two analyses of causal models with positions in order: of all runs, since who picks
    a scheme can't know whether it will learn; and for each task, of the schemes that
    learned it in all runs of every recipe.

    Args:
        runs: of `frame`.

    Chapter: 21
    """
    plain = runs[runs.masked & (runs.positions == "in order") & (runs.task != "text")]
    parts = []
    for widths in sorted({tuple(sorted(set(plain.width))), (plain.width.min(),)}):
        chosen = _crossed(plain[plain.width.isin(widths)], FACTORS)
        factors = [f for f in FACTORS if chosen[f].nunique() > 1]
        if len(factors) > 1:
            parts.append(_in_words("All runs", chosen, factors))
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
    found = variance(runs, factors)
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
        # tests are columns of one table, whatever other tests a setting has
        kinds.setdefault(replace(_kind(one.settings), tests=()), []).append(one)
    parts, files = ["# Runs of the laboratory\n"], []
    for number, (kind, found) in enumerate(kinds.items(), 1):
        parts.append(f"## {title(kind)}\n\n{table(found, kind.lengths)}\n")
        plain = [one for one in found if one.test == AS_TRAINED]
        if kind.task != "text" and plain:
            files.append(folder / f"{number:02d}-{kind.task}.png")
            dots(plain).savefig(files[-1], dpi=style.DPI)
            parts.append(f"![{title(kind)}]({files[-1].name})\n")
    runs = frame(rows)
    parts.append(f"## What decides\n\n{decided(runs)}\n")
    files += [folder / "report.md", folder / "runs.csv"]
    files[-2].write_text("\n".join(parts), encoding="utf-8")
    runs.to_csv(files[-1], index=False)
    return files
