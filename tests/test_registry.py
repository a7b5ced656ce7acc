"""Every row of the zoo gives the tables what they need, or says what does."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from helpers import SCHEMES, WIDTH, tensors
from registry import (
    OTHER_EXAMPLES,
    case_of,
    fields,
    made,
    on_a_line,
    public_name,
    zoo_schemes,
)

from posenc_lib.positions import arange
from posenc_lib.zoo import Entry, encodings

ENTRIES = {entry.name: entry for entry in encodings() if fields(entry)}
# Their examples have positions on a bounded grid, or none of their own.
BOUNDED = {"BEiT's bias", "GRAPE, multiplicative", "Learned grid", "Swin's bias"}


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - BOUNDED))
def test_a_row_gives_calls_that_work(name: str) -> None:
    for field, part in fields(ENTRIES[name]).items():
        case = case_of(field, part)
        results = tensors(case.call(**case.inputs(5, 0)))
        assert results
        assert all(bool(x.isfinite().all()) for x in results if x.is_floating_point())


def test_rows_without_a_scheme_of_their_own_are_those_named() -> None:
    assert set(OTHER_EXAMPLES) | set(SCHEMES) | set(zoo_schemes()) >= set(ENTRIES)
    assert set(OTHER_EXAMPLES) <= set(ENTRIES)
    for name in OTHER_EXAMPLES:
        assert not fits_on_a_line(ENTRIES[name]), f"{name} needs no other example"


def fits_on_a_line(entry: Entry) -> bool:
    try:
        scheme = on_a_line(entry)
    except AssertionError:
        return False
    return scheme.embedding is None or scheme.embedding(arange(3)).shape[-1] == WIDTH


def test_arguments_of_constructors_make_the_same_object_again() -> None:
    classes = {
        public_name(entry.source): entry.source
        for entry in ENTRIES.values()
        if inspect.isclass(entry.source) and entry.name != "NoPE"
    }
    assert set(classes) <= set(made())
    for name in classes:
        call, arguments = made()[name]
        again: Any = call(**{k: v for k, v in arguments.items() if k != "generator"})
        assert type(again) is classes[name]
