"""Docstrings: every public function and class has the parts in the house's order, and what they point at exists."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import public

import posenc_lib

ROOT = Path(posenc_lib.__file__).parents[1]
ORDER = ["Equation", "Shapes", "Args", "Raises", "Source", "Chapter"]
ALWAYS = {"Equation", "Shapes", "Chapter"}
CHAPTERS = {f"{number:02d}" for number in range(1, 24)} | {"notation", "ledger", "zoo"}
KEYS = set(
    re.findall(
        r"^@\w+\{([^,\s]+)",
        (ROOT / "book" / "references.bib").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
LINES = 62  # about 60, docstring and decorators included
LONGER = {
    "Frames": "a figure with a slider: its constructor draws the frames, its methods write them for three hosts",
    "LayerSettings": "one layer of a checkpoint: each method fills one place of its scheme",
    "Section": "a reader of configurations: one short method for each kind of value",
    "Layer": "one layer of a plan: its checks tell which settings exclude one another",
    "TinyTransformer": "a whole model: constructor, input, forward pass and weights",
    "Rotation": "a rotation and its algebra: apply, undo, compose; each method is a few lines",
}

every_callable = pytest.mark.parametrize("name", public())


def sections(name: str) -> dict[str, str]:
    """The docstring's parts by heading, in their order; the idea comes first, under no heading."""
    text = inspect.getdoc(public()[name]) or ""
    parts = re.split(rf"^({'|'.join(ORDER)}): ?", text, flags=re.MULTILINE)
    headings = parts[1::2]
    assert len(headings) == len(set(headings)), f"{name} has a part twice: {headings}"
    return {"idea": parts[0], **dict(zip(headings, parts[2::2], strict=True))}


def parameters(value: Any) -> list[str]:
    return [name for name in inspect.signature(value).parameters if name != "self"]


@every_callable
def test_parts_are_in_order(name: str) -> None:
    headings = list(sections(name))[1:]
    assert headings == [part for part in ORDER if part in headings]
    assert set(headings) >= ALWAYS


@every_callable
def test_the_idea_is_one_sentence_on_the_first_line(name: str) -> None:
    first = sections(name)["idea"].splitlines()[0]
    assert re.fullmatch(r"\S.*\.", first), first


@every_callable
def test_arguments_are_those_of_the_signature(name: str) -> None:
    named = re.findall(
        r"^ {4}(\w[\w, ]*?):", sections(name).get("Args", ""), re.MULTILINE
    )
    named = [argument for line in named for argument in line.split(", ")]
    assert sorted(named) == sorted(parameters(public()[name]))


@every_callable
def test_what_raises_says_so(name: str) -> None:
    source = inspect.getsource(public()[name])
    if re.search(
        r"^\s+raise \w+Error|_checks\.(\w+\(\"|sizes\()", source, re.MULTILINE
    ):
        raised = sections(name).get("Raises", "")
        assert re.match(r"\s+(\w+Error(, )?)+: \S", raised), (
            f"{name} raises, and its docstring doesn't say what"
        )


@every_callable
def test_sources_and_chapters_exist(name: str) -> None:
    parts = sections(name)
    if "Source" in parts:
        cited = set(parts["Source"].strip().split(", "))
        assert cited <= KEYS, f"not in book/references.bib: {sorted(cited - KEYS)}"
    assert parts["Chapter"].strip() in CHAPTERS


def lengths() -> dict[str, int]:
    """Lines of every public function and class of the library, decorators included; methods count with their class."""
    found = {}
    for path in sorted(Path(posenc_lib.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(
                node, (ast.FunctionDef, ast.ClassDef)
            ) and not node.name.startswith("_"):
                first = min(
                    [
                        node.lineno,
                        *(decorator.lineno for decorator in node.decorator_list),
                    ]
                )
                found[node.name] = max(
                    node.end_lineno - first + 1, found.get(node.name, 0)
                )
    return found


def test_an_encoding_fits_on_a_page() -> None:
    """As its paper has it. What is longer is no single idea, and is listed with what it holds instead."""
    assert {name for name, lines in lengths().items() if lines > LINES} == set(LONGER)


def test_there_is_something_to_test() -> None:
    assert len(public()) > 40
