"""Many runs of one kind: how many learned, medians with intervals, every run a dot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posenc_lib import _checks
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

    Equation: the 2.5th and 97.5th percentile of the medians of 9,999 samples of as many
        values, drawn with replacement
    Shapes: → median, low, high

    Args:
        values: one number a run, at least one.

    Raises:
        ValueError: there is no value.

    Chapter: 21
    """
    numbers = np.asarray(values, dtype=float)
    _checks.whole_number("number of values", numbers.size, least=1)
    draws = np.random.default_rng(0).integers(numbers.size, size=(9999, numbers.size))
    low, high = np.percentile(np.median(numbers[draws], axis=1), (2.5, 97.5))
    return float(np.median(numbers)), float(low), float(high)


def common_settings(settings: Settings) -> Settings:
    """What the runs of one table share: all but scheme, recipe, heads and tests.

    Args:
        settings: of a run.

    Chapter: 21
    """
    return replace(
        settings,
        scheme="nope",
        recipe=ADAM,
        heads=1,
        tests=(AS_TRAINED,),
        tuned=(),
    )


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
