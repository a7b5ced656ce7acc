"""Docstrings: parts in order, sources that exist, shapes as they are."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import shapes
from helpers import public, tensors
from registry import every_case
from shapes import Shape

import posenc_lib

ROOT = Path(posenc_lib.__file__).parents[1]
ORDER = ["Equation", "Shapes", "Args", "Raises", "Source", "Checked", "Chapter"]
OF_ENCODINGS = {"Equation", "Shapes"}
RECORDS = (
    "attention.PreparedLayers",
    "attention.PreparedScheme",
    "layers.Layer",
    "scheme.PositionScheme",
    "multimodal_positions.AudioVideo",
    "multimodal_positions.Vision",
)
# The modules that compute encodings and attention; the others are tools.
ENCODINGS = (
    "positions",
    "multimodal_positions",
    "frequencies",
    "embedding",
    "rotary",
    "bias",
    "content",
    "attention",
    "layers",
    "scheme",
)
CHAPTERS = {f"{number:02d}" for number in range(1, 24)} | {"notation", "ledger", "zoo"}
KEYS = set(
    re.findall(
        r"^@\w+\{([^,\s]+)",
        (ROOT / "book" / "references.bib").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
LINES = 90  # of 88 columns, docstring and decorators included
LONGER = {
    "Frames": "a figure with a slider: draws its frames, writes them for three hosts",
    "LayerSettings": "one layer of a checkpoint: a method for each field of a scheme",
    "PositionScheme": "all that an encoding is, and a module with its children",
    "TinyTransformer": "a whole model: constructor, input, forward pass and weights",
}

every_callable = pytest.mark.parametrize("name", public())


def sections(name: str) -> dict[str, str]:
    """The docstring's parts by heading, in their order, after the idea."""
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
    assert "Chapter" in headings
    if name.split(".")[0] in ENCODINGS:
        assert set(headings) >= OF_ENCODINGS - (
            {"Shapes"} if name in RECORDS else set()
        )


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
    """Lines of every public function and class, with decorators and methods."""
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
    """As its paper has it. What is longer is listed, with what it holds instead."""
    assert {name for name, lines in lengths().items() if lines > LINES} == set(LONGER)


# ---- shapes

A_RECORD = "the result is a record or an object, whose tensors are counted here"
ANOTHER_METHOD = "the case calls a method with a docstring of its own"
REFERS = "it refers to another docstring, with changes"
UNPARSED = {
    "attention.ConvSPE, kernel": ANOTHER_METHOD,
    "attention.SineSPE, kernel": ANOTHER_METHOD,
    "attention.dual_chunk": A_RECORD,
    "attention.leaky_rerope": A_RECORD,
    "attention.recurrent_retention": REFERS,
    "attention.relative_score_mod": "the result is a function",
    "attention.rerope": A_RECORD,
    "attention.self_extend": A_RECORD,
    "embedding.signnet": "the shapes inside of the networks",
    "rotary.AxialRoPE": A_RECORD,
    "rotary.AxialRoPE, transform": REFERS,
    "rotary.CayleySTRING": REFERS,
    "rotary.ComRoPE": "alternatives stand between semicolons",
    "rotary.LieRE": "alternatives stand between semicolons",
    "rotary.RoPE": A_RECORD,
}


def shapes_line(name: str) -> str:
    """The first paragraph of the part on shapes; "as `causal`" is that of `causal`."""
    paragraph = sections(name)["Shapes"].partition("\n\n")[0]
    line = " ".join(paragraph.split())
    if same := re.fullmatch(r"as `(\w+)(?:\.\w+)?`", line):
        return shapes_line(f"{name.split('.')[0]}.{same[1]}")
    return line


@cache
def real_shapes(case: str) -> tuple[dict[str, Shape], list[Shape]]:
    """What a case takes, without the parameters of its module, and what it returns."""
    called = every_case()[case]
    inputs = called.inputs(6, 0)
    results = [tuple(x.shape) for x in tensors(called.call(**inputs))]
    line = shapes_line(case.split(",")[0])
    stated = {
        name: tuple(x.shape)
        for name, x in inputs.items()
        if name in line or not name.startswith(("module.", "table"))
    }
    return stated or {name: tuple(x.shape) for name, x in inputs.items()}, results


def shapes_fit(case: str, line: str, results: list[Shape]) -> bool:
    name = case.split(",")[0]
    arguments = frozenset(inspect.signature(public()[name]).parameters)
    return shapes.fits(line, real_shapes(case)[0], results, arguments)


PARSED = [case for case in every_case() if case not in UNPARSED]


@pytest.mark.parametrize("case", PARSED)
def test_shapes_are_those_of_a_call(case: str) -> None:
    line, (_, results) = shapes_line(case.split(",")[0]), real_shapes(case)
    assert shapes_fit(case, line, results)
    assert not shapes_fit(case, line, [(*shape, 1) for shape in results])


def changed_clause(clause: str) -> str:
    """One more axis in each result, or in each input where results are the same."""
    left, arrow, right = clause.partition("→")
    if "any shape" in left:
        return f"{left}{arrow} (T, T)"
    if "the same" in right or "(" not in right:
        return clause.replace("(", "(1, ")
    return left + arrow + right.replace(")", ", 1)")


@pytest.mark.parametrize("case", PARSED)
def test_a_changed_line_of_shapes_is_noticed(case: str) -> None:
    line, (_, results) = shapes_line(case.split(",")[0]), real_shapes(case)
    changed = ";".join(map(changed_clause, line.split(";")))
    assert changed != line
    assert not shapes_fit(case, changed, results), changed


@pytest.mark.parametrize("case", UNPARSED)
def test_lines_that_are_not_read_have_a_reason(case: str) -> None:
    try:
        line = shapes_line(case.split(",")[0])
        assert not shapes_fit(case, line, real_shapes(case)[1]), "it can be read now"
    except (shapes.UnparsedError, KeyError):
        pass


def test_there_is_something_to_test() -> None:
    assert len(public()) > 40
