"""The doctor's report: facts, findings and notes, as data and as a page of text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["rotary", "pair", "table", "bias", "buckets"]
WIDTH = 80
# faults that put tokens at other positions
MISPLACED = {"length-dependent", "offset-ignored", "cache-offset", "order-ignored"}


class Reference(NamedTuple):
    """Where the book explains a kind of fault: a page, its title and a heading."""

    page: str
    title: str
    heading: str

    def __str__(self) -> str:
        number = self.page.partition("/")[2][:2]
        chapter = (
            f" (chapter {number})" if number.isdigit() and 0 < int(number) < 90 else ""
        )
        heading = self.heading.translate({ord(sign): None for sign in "$`"})
        return f"{self.title}{chapter}, “{heading}”"


_NOTATION = ("notebooks/00_notation_and_conventions", "Notation and conventions")
_SINUSOIDS = ("notebooks/04_sinusoids_the_table", "Sinusoids: the table")
_RELATIVE = ("notebooks/07_relative_encodings", "Relative encodings")
_ROPE = ("notebooks/10_rope_core_idea", "RoPE's core idea")
_MATHEMATICS = ("notebooks/11_ropes_mathematics", "RoPE's mathematics")
_LLAMA = ("notebooks/14_llama_3_and_its_family", "Llama 3 and its family")
_ERRATA = ("notebooks/90_errata_of_tutorials", "Errata of popular tutorials")
_ZOO = ("book/zoo", "The zoo of encodings")
REFERENCES = {
    "symbols": Reference(*_NOTATION, "Symbols"),
    "argument": Reference(*_NOTATION, "Positions are an argument"),
    "relative": Reference(*_NOTATION, "Relative means key minus query"),
    "precision": Reference(*_NOTATION, "Angles are float64, tables are rounded once"),
    "factor": Reference(*_NOTATION, "One owner for every factor"),
    "state": Reference(*_NOTATION, "No hidden state"),
    "table": Reference(*_SINUSOIDS, "One table, how many layouts?"),
    "sixteen": Reference(*_SINUSOIDS, "What do sixteen bits leave?"),
    "clocks": Reference(*_SINUSOIDS, "How fast is each pair?"),
    "distance": Reference(*_RELATIVE, "A score that depends on the distance"),
    "buckets": Reference(*_RELATIVE, "T5: a number for each bucket"),
    "planes": Reference(*_ROPE, "Many planes, many frequencies"),
    "kept": Reference(*_ROPE, "What a rotation keeps"),
    "spellings": Reference(*_ROPE, "Two spellings of the pairs"),
    "direction": Reference(*_ROPE, "Which way round"),
    "one map": Reference(*_MATHEMATICS, "One map for query and key"),
    "letter": Reference(*_ERRATA, "1. The letter $i$ numbers channels"),
    "shifted": Reference(*_ERRATA, "2. The exponent $(2k-1)/d$"),
    "floored": Reference(*_ERRATA, "3. `-math.log(10000.0) / d_model // 2`"),
    "mixed-table": Reference(*_ERRATA, "8. Concatenated angles, interleaved pairs"),
    "bfloat16": Reference(*_ERRATA, "10. Positions in bfloat16"),
    "slopes": Reference(*_ERRATA, "12. One geometric series for any number of heads"),
    "penalty": Reference(*_ERRATA, "13. A penalty that rewards"),
    "partial": Reference(*_MATHEMATICS, "Channels that do not rotate"),
    "linear_interpolation": Reference(*_ZOO, "Position interpolation"),
    "ntk_aware": Reference(*_ZOO, "NTK-aware"),
    "dynamic_ntk": Reference(*_ZOO, "Dynamic NTK"),
    "ntk_by_parts": Reference(*_ZOO, "NTK-by-parts"),
    "yarn": Reference(*_ZOO, "YaRN, as in the paper"),
    "yarn_released": Reference(*_ZOO, "YaRN, as released"),
    "llama3": Reference(*_LLAMA, "Llama 3.1: a rule in three bands"),
    "longrope": Reference(*_ZOO, "LongRoPE"),
    "proportional": Reference(*_ZOO, "p-RoPE"),
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: what was seen, and the usual cause.

    Equation: none: words about a measurement

    Args:
        code: a short name of the kind of fault, for programs.
        seen: what was measured, and by how much it is off.
        cause: the usual cause.
        reference: where the book explains it.

    Chapter: notation
    """

    code: str
    seen: str
    cause: str
    reference: Reference


@dataclass(repr=False)
class Report:
    """What `diagnose` found: conventions as facts, faults as findings, and notes.

    Equation: ok = (findings is empty)

    Args:
        kind: "rotary", "pair", "table", "bias" or "buckets".
        facts: conventions by name: layout, direction, base, schedule and so on; None
            where nothing can be said.
        findings: what is wrong, the first cause first.
        notes: what is worth knowing without being a fault.

    Raises:
        AssertionError: by `raise_if_wrong`, with all findings, where there are any.

    Chapter: notation
    """

    kind: Kind
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def add_finding(self, code: str, seen: str, cause: str, reference: str) -> None:
        """Add a finding, one per code: consequences of a fault are not repeated."""
        finding = self.finding(code, seen, cause, reference)
        if code not in self.codes:
            self.findings.append(finding)

    @staticmethod
    def finding(code: str, seen: str, cause: str, reference: str) -> Finding:
        return Finding(code, seen, cause, REFERENCES[reference])

    def raise_if_wrong(self) -> None:
        """Raise an AssertionError with all findings, if there are any."""
        if not self.ok:
            raise AssertionError(
                "\n".join(
                    f"{finding.seen} {finding.cause} Read: {finding.reference}"
                    for finding in self.findings
                )
            )

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        what = {"buckets": "bucket", "pair": "rotary (query and key)"}.get(
            self.kind, self.kind
        )
        lines = [f"A {what} function.", ""]
        for name, value in self.facts.items():
            lines += _wrapped(f"{name:<{width}}  ", show(value))
        lines += [*[""] * bool(self.facts), _headline(len(self.findings))]
        for number, finding in enumerate(self.findings, 1):
            lines += [
                "",
                *_wrapped(f"{number}. ", finding.seen),
                *_wrapped("   ", f"Usual cause: {finding.cause}"),
            ]
            lines += _wrapped("   Read: ", str(finding.reference))
        for note in self.notes:
            lines += ["", *_wrapped("Note: ", note)]
        return "\n".join(lines)

    __repr__ = __str__  # a notebook shows the page


def show(value: Any) -> str:
    """A fact in words."""
    if value is None:
        return "unknown"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A number with at most six digits, and no trailing zeros."""
    whole = math.isfinite(value) and abs(value - round(value)) < 1e-5 * value
    return f"{value:,.0f}" if value >= 1000 and whole else f"{value:.6g}"


def listed(values: Iterable[float]) -> str:
    """Numbers in a row."""
    return ", ".join(number(float(value)) for value in values)


def _headline(count: int) -> str:
    return {0: "Nothing is wrong.", 1: "One thing is wrong."}.get(
        count, f"{count} things are wrong."
    )


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
    ) or [head.rstrip()]
