"""What a chapter states and its cell tests: comparisons, refusals, verdicts."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

VERDICTS = {
    "holds": True,
    "holds with a caveat": True,
    "misleading": False,
    "false": False,
}


@dataclass(frozen=True)
class Claim:
    """One checkable claim of the article.

    Args:
        id: "C01" … "C66".
        section: section of the article, such as "2.1".
        statement: the claim, in our words.
        sources: citation keys of the works our answer rests on, besides the cell that
            settles the claim; may be empty.

    Chapter: ledger
    """

    id: str
    section: str
    statement: str
    sources: tuple[str, ...]


def claims() -> dict[str, Claim]:
    """All claims of the article by id, in its order.

    Shapes: → {"C01": Claim, …, "C66": Claim}

    Chapter: ledger
    """
    rows = json.loads(
        files("posenc_lib").joinpath("claims.json").read_text(encoding="utf-8")
    )
    return {
        row["id"]: Claim(**{**row, "sources": tuple(row["sources"])}) for row in rows
    }


def verdict(
    claim_id: str,
    verdict: str,
    *,
    claim_holds: bool,
    correction_holds: bool | None = None,
    note: str,
) -> None:
    """State a verdict on a claim, with the evidence that decides it, and show it.

    The verdict must follow from the evidence, so the cell fails when either of them is
    reversed:

        verdict               claim_holds   correction_holds
        holds                 True          not needed
        holds with a caveat   True          True: the caveat was shown to matter
        misleading            False         True: what is right instead was shown
        false                 False         True: what is right instead was shown

    Args:
        claim_id: "C01" … "C66".
        verdict: "holds", "holds with a caveat", "misleading" or "false".
        claim_holds: whether the article's own statement passed the test.
        correction_holds: whether our caveat or correction passed its test.
        note: what we add to the article, in a sentence.

    Raises:
        KeyError: an unknown claim.
        ValueError, TypeError: an unknown verdict, evidence that is not a bool, an empty
            note, evidence left out.
        AssertionError: the evidence does not support the verdict.

    Chapter: ledger
    """
    known = claims()
    if claim_id not in known:
        raise KeyError(
            f"claim_id must be one of {min(known)} … {max(known)}, got {claim_id!r}"
        )
    if verdict not in VERDICTS:
        raise ValueError(
            f"verdict must be one of {', '.join(map(repr, VERDICTS))}; got {verdict!r}"
        )
    for name, value in (
        ("claim_holds", claim_holds),
        ("correction_holds", correction_holds),
    ):
        if not (
            isinstance(value, bool) or (name == "correction_holds" and value is None)
        ):
            raise TypeError(
                f"{name} must be a bool, the result of a test; got {value!r}"
            )
    if not note.strip():
        raise ValueError(
            "note must say in a sentence what the evidence shows, got an empty string"
        )
    if claim_holds is not VERDICTS[verdict]:
        raise AssertionError(
            f"{claim_id}: the claim tested {claim_holds}, so the verdict can't be "
            f"{verdict!r}"
        )
    if verdict != "holds" and correction_holds is None:
        raise ValueError(
            f"correction_holds must be tested when the verdict is {verdict!r}, got None"
        )
    if correction_holds is False:
        raise AssertionError(
            f"{claim_id}: the correction did not pass its test, so the verdict "
            f"{verdict!r} is not shown"
        )
    _show(known[claim_id], verdict, note)


def check(text: str, holds: bool) -> None:
    """State a comparison once: print it with its result, and fail where it is not so.

    Args:
        text: what is compared, such as "shifted by 7 positions, below 1e-12".
        holds: the result of the comparison.

    Raises:
        AssertionError: it does not hold; the message is the text.
        TypeError: `holds` is not a bool.

    Chapter: notation
    """
    if not isinstance(holds, bool):
        raise TypeError(f"holds must be a bool, the result of a test; got {holds!r}")
    print(f"{text}: {holds}")
    if not holds:
        raise AssertionError(text)


def refused(checker: Callable[..., Any], *answer: Any) -> bool:
    """Whether an exercise's checker refuses an answer, and why, which is printed.

    Args:
        checker: a function that raises an AssertionError for a wrong answer.
        answer: its arguments.

    Chapter: notation
    """
    try:
        checker(*answer)
    except AssertionError as error:
        print("refused:", error)
        return True
    return False


def _show(claim: Claim, verdict: str, note: str) -> None:
    text = f"{claim.id} {verdict}: {claim.statement}\n  {note}"
    box = (
        f'<div class="posenc-verdict" data-verdict="{verdict}" id="claim-{claim.id}" '
        'style="border-left:.3em solid currentColor;padding:.3em 1em">'
        f"<p><strong>{claim.id} · {verdict}</strong> {html.escape(claim.statement)}</p>"
        f"<p>{html.escape(note)}</p></div>"
    )
    try:
        from IPython.display import display
    except ImportError:
        print(text)
    else:
        display({"text/plain": text, "text/html": box}, raw=True)
