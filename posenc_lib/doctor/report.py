"""What the doctor hands back: facts, findings and notes, as data and as a page of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

WIDTH = 80
CHAPTERS = {  # where the book explains it
    "notation": "Notation and conventions",
    "04": "Sinusoids: the table",
    "07": "Relative encodings",
    "10": "RoPE's core idea",
    "11": "RoPE's mathematics",
    "14": "In the wild: Llama",
    "16": "Context extension",
    "20": "Precision and KV cache",
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: what was seen, and the usual cause.

    Equation: none: words about a measurement
    Shapes: none

    Args:
        code: a short name of the kind of fault, for programs.
        seen: what was measured, and by how much it is off.
        cause: the usual cause.
        chapter: of the book, two digits, or "notation".

    Chapter: notation
    """

    code: str
    seen: str
    cause: str
    chapter: str


@dataclass
class Report:
    """What `diagnose` found: conventions as facts, faults as findings, and notes that are no faults.

    Equation: ok = (findings is empty)
    Shapes: none

    Args:
        kind: "rotary", "table", "bias" or "buckets".
        facts: conventions by name: layout, direction, base, schedule and so on; None where nothing can be said.
        findings: what is wrong, the first cause first.
        notes: what is worth knowing and no fault.

    Chapter: notation
    """

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def wrong(self, code: str, seen: str, cause: str, chapter: str) -> None:
        """Add a finding, once a code: what follows from a fault is not told again."""
        if code not in self.codes:
            self.findings.append(Finding(code, seen, cause, chapter))

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        lines = [f"A {self.kind} function." if self.kind != "buckets" else "A bucket function.", ""]
        for name, value in self.facts.items():
            lines += _wrapped(f"{name:<{width}}  ", show(value))
        lines += ["", _headline(len(self.findings))]
        for number, finding in enumerate(self.findings, 1):
            lines += ["", *_wrapped(f"{number}. ", finding.seen), *_wrapped("   ", f"Usual cause: {finding.cause}")]
            title = CHAPTERS[finding.chapter]
            lines += [f"   Read: {title}" + (f" (chapter {finding.chapter})" * finding.chapter.isdigit())]
        for note in self.notes:
            lines += ["", *_wrapped("Note: ", note)]
        return "\n".join(lines)


def show(value: Any) -> str:
    """A fact in words."""
    if value is None:
        return "unknown"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A number with at most six digits, and no trailing zeros."""
    return f"{value:,.0f}" if value >= 1000 and abs(value - round(value)) < 1e-5 * value else f"{value:.6g}"


def listed(values: Iterable[float]) -> str:
    """Numbers in a row."""
    return ", ".join(number(float(value)) for value in values)


def _headline(count: int) -> str:
    return {0: "Nothing is wrong.", 1: "One thing is wrong."}.get(count, f"{count} things are wrong.")


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]
