"""The zoo: every encoding leads to evidence that exists and is about it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import SCHEMES, public

from posenc_lib.zoo import Entry, describe, encodings, find

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ENTRIES = {entry.name: entry for entry in encodings()}
CASES = {path.stem for path in (TESTS / "oracles").glob("*.json")}

# Golden cases of no encoding, with the reason.
OF_NO_ENCODING: dict[str, str] = {}
# What a test has in place of the source.
STANDS_FOR = {"PositionScheme": "NOPE"}
# Encodings with nothing to check: attention as it is without them.
UNCHECKED = {"NoPE"}
# Tests of every module alike say nothing about an equation.
GENERIC = re.compile(r"draw|gradient|padd|factor_one|compile|device|autocast|refused")
RELEASED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{12,40}:[^:\s]+:\S+")
CLAIMS = re.compile(r"checked\s+against|read\s+in\s+the|released\s+code")

every_encoding = pytest.mark.parametrize("name", ENTRIES)
every_callable = pytest.mark.parametrize("name", public())


@cache
def pages() -> ModuleType:
    path = ROOT / "book" / "tools" / "pages.py"
    spec = importlib.util.spec_from_file_location("pages_of_the_zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part(value: Any, heading: str) -> str:
    _, sections = pages().parse(inspect.getdoc(value) or "")
    return "\n".join(sections.get(heading, []))


def items(value: Any) -> list[str]:
    return list(pages().checked_items(part(value, "Checked")))


# ---- tests


def imported(file: Path) -> dict[str, tuple[Path, str]]:
    """What a file of the tests imports from another one: its file and name there."""
    names = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            other = TESTS.joinpath(*node.module.split(".")).with_suffix(".py")
            if other.is_file():
                for alias in node.names:
                    names[alias.asname or alias.name] = (other, alias.name)
    return names


def source_of(file: Path, name: str) -> str:
    """A function of the tests, and all that it uses of the tests."""
    texts, waiting, done = [], [(file, name)], set()
    while waiting:
        file, name = waiting.pop()
        if (file, name) in done or name not in pages().statements(file):
            continue
        done.add((file, name))
        for node in pages().used(file, name):
            texts.append(ast.unparse(node))
            others = imported(file)
            waiting += [others[n] for n in pages().names_in(node) if n in others]
    return "\n".join(texts)


@every_encoding
def test_its_test_exists_and_calls_it(name: str) -> None:
    entry = ENTRIES[name]
    file, test = entry.test.split("::")
    assert test in pages().statements(TESTS / file)
    assert test.startswith("test_")
    assert not GENERIC.search(test), "a test of every module alike"
    called = entry.source.__name__
    called = STANDS_FOR.get(called, called)
    assert re.search(rf"\b{called}\b", source_of(TESTS / file, test)), called


def test_every_row_has_a_name_of_its_own() -> None:
    names = [entry.name for entry in encodings()]
    assert len(set(names)) == len(names)
    # These the basic schemes of helpers.py stand for; another row would go untested.
    assert set(names) & set(SCHEMES) == {"NoPE", "ALiBi", "RoPE, partial"}


# ---- golden cases


def test_every_golden_case_belongs_to_an_encoding() -> None:
    named = {case for entry in ENTRIES.values() for case in entry.golden}
    assert named | set(OF_NO_ENCODING) == CASES
    assert not named & set(OF_NO_ENCODING)


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_golden_case_is_computed_by_its_encoding(case: str) -> None:
    """The adapter calls the encoding, or what the encoding is made of."""
    sources = {e.source for e in ENTRIES.values() if case in e.golden}
    modules = {pages().home(source) for source in sources}
    assert sources or case in OF_NO_ENCODING
    file, adapter = pages().adapters()[case]
    called = set(re.findall(r"\w+", source_of(file, adapter)))
    parts = [*modules, "frequencies", "positions"]
    assert any(called & {key for key, _ in pages().public(part)} for part in parts)


# ---- what docstrings say they were checked against


@every_encoding
def test_its_docstring_says_what_it_was_checked_against(name: str) -> None:
    entry = ENTRIES[name]
    said = items(entry.source)
    if name not in UNCHECKED:
        assert said, f"{entry.source.__name__} has no part `Checked:`"
    golden = [e for e in ENTRIES.values() if e.source is entry.source and e.golden]
    assert ("golden" in said) is bool(golden)


@every_callable
def test_what_it_was_checked_against_can_be_followed(name: str) -> None:
    value = public()[name]
    for item in items(value):
        if item == "golden":
            assert pages().cases_of(value), "no golden case calls it"
        elif item == "parity":
            assert pages().parity_tests(value), "no parity test names it"
        elif "@" in item:
            assert RELEASED.fullmatch(item), item
        else:
            assert item == "derived, unchecked", item
            assert items(value) == [item]


@every_callable
def test_a_claim_in_an_equation_has_its_item(name: str) -> None:
    value = public()[name]
    if CLAIMS.search(part(value, "Equation")):
        said = items(value)
        assert said, "the equation claims a check, and no part `Checked:` says which"
        assert said != ["derived, unchecked"]


# ---- at the shell


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("alibi", "ALiBi"),
        ("YaRN", "YaRN, as released"),
        ("m-rope", "M-RoPE, interleaved"),
        ("mrope", "M-RoPE, in sections"),
        ("llama 3.1's", "Llama 3.1's schedule"),
        ("llama4", "Llama 4's temperature"),
        ("qwen3-vl", "Timestamps as text"),
        ("rotary 2d", "Axial RoPE"),
        ("PI", "Position interpolation"),
    ],
)
def test_find_takes_what_people_type(typed: str, wanted: str) -> None:
    assert wanted in [entry.name for entry in find(typed)]


def test_names_come_before_aliases() -> None:
    assert find("cope")[0].name == "CoPE"
    assert find("alibi")[0].name == "ALiBi"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("yarm", "no encoding matches 'yarm'; near it: YaRN"),
        ("qqqqq", "no encoding matches 'qqqqq'; encodings() lists all "),
        ("", "no encoding matches ''"),
    ],
)
def test_unknown_names_are_answered_in_one_line(typed: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        find(typed)
    assert "\n" not in str(raised.value)


@every_encoding
def test_description_leads_to_source_and_test(name: str) -> None:
    entry = ENTRIES[name]
    lines = describe(entry).splitlines()
    assert lines[0].startswith(name)
    assert all(len(line) <= 88 or " " not in line[14:].strip() for line in lines)
    rows = {line[2:14].strip(): line[14:] for line in lines[1:] if line[2] != " "}
    assert {"where", "equation", "source", "test", "chapter"} <= set(rows)
    for title, defined in (("source", entry.source.__name__), ("test", None)):
        file, line = rows[title].split()[0].split(":")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
        defined = defined or entry.test.split("::")[1]
        head = next(row for row in text if not row.startswith(("@", " ", ")")))
        assert re.match(rf"(def|class) {defined}\b", head)


def test_an_entry_has_keywords_only() -> None:
    with pytest.raises(TypeError):
        Entry("NoPE", "nowhere")  # type: ignore[call-arg]
