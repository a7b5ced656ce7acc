"""What the tables over all encodings take from the rows of the zoo.

A row has a small example of its encoding. From it follow the calls with tensors of
test_callables.py, the arguments of test_malformed.py and the schemes of
test_properties.py, unless cases.py, arguments.py or an example names them itself: with
sharper bounds, or where no scheme can hold the encoding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from arguments import PLAIN, with_tensors
from cases import CASES, CONSTANTS, COORDINATES, Case, Inputs, learned, roundings
from helpers import (
    HEADS,
    READING_HIDDEN_STATES,
    SCHEMES,
    WIDTH,
    groups,
    modules_of,
    normal,
    seeded,
)
from torch import Tensor, nn

from posenc_lib.multimodal_positions import equal_axes
from posenc_lib.positions import arange
from posenc_lib.scheme import PositionScheme
from posenc_lib.zoo import Entry, encodings

Arguments = dict[str, Any]


def public_name(value: Callable[..., Any]) -> str:
    """package.name, as the tables call it."""
    return f"{value.__module__.split('.')[1]}.{value.__name__}"


@contextmanager
def watched(value: Any, record: Callable[[Arguments], None]) -> Iterator[None]:
    """While this is open, the arguments of every call are kept."""
    owner, name = (
        (value, "__init__")
        if inspect.isclass(value)
        else (
            import_module(f"posenc_lib.{public_name(value).split('.')[0]}"),
            value.__name__,
        )
    )
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        record({key: x for key, x in arguments.items() if key != "self"})
        return original(*args, **kwargs)

    with patch.object(owner, name, call):
        yield


@cache
def made() -> dict[str, tuple[Callable[..., Any], Arguments]]:
    """How the zoo makes its examples: the source of each row, and its arguments."""
    calls: dict[str, tuple[Callable[..., Any], Arguments]] = {}
    with ExitStack() as stack:
        # Each source once: around a watched call, another would see only *args.
        sources = dict.fromkeys(entry.source for entry in encodings())
        sources.pop(PositionScheme, None)
        for source in sources:
            stack.enter_context(watched(source, partial(_keep, calls, source)))
        encodings()
    for entry in encodings():
        for part in fields(entry).values():
            if isinstance(part, partial) and part.func is entry.source:
                calls.setdefault(public_name(entry.source), (part.func, part.keywords))
    return calls


def _keep(calls: Any, source: Callable[..., Any], arguments: Arguments) -> None:
    calls.setdefault(public_name(source), (source, arguments))


def fields(entry: Entry) -> dict[str, Any]:
    """What fills the fields of a row's example."""
    if isinstance(entry.where, str):
        return {}
    return {place: getattr(entry.where, place) for place in entry.where.places}


# ---- calls with tensors


def tokens(length: int, seed: int, axes: int | None, *, batched: bool) -> Tensor:
    """Positions (T,), or (2, T) with another row for each sequence; axes come last."""
    positions = arange(length, offset=seed)
    if batched:
        positions = torch.stack((positions, positions + 1))
    return positions if axes is None else equal_axes(positions, axes)


def inputs_of(
    field: str, part: Callable[..., Any], axes: int | None, *, batched: bool = True
) -> Any:
    """Named tensors for one field of a scheme, as `Case.inputs` has them."""
    wanted = parameters(part)

    def inputs(length: int, seed: int) -> Inputs:
        positions = tokens(length, seed, axes, batched=batched)
        if field == "embedding":
            return {next(iter(wanted)): positions}
        given = {"q_positions": positions, "k_positions": positions}
        if field in ("transform", "scores"):
            for name in ("q", "k"):
                given[name] = normal(2, HEADS, length, WIDTH, seed=seed + ord(name))
        if field == "values":
            scores = normal(2, HEADS, length, length, seed=seed)
            given["weights"] = scores.softmax(-1)
            given["v"] = normal(2, HEADS, length, WIDTH, seed=seed + 1)
        for name in ("q_x", "k_x"):
            if name in wanted:
                given[name] = normal(2, length, WIDTH, seed=seed + 7)
        return given

    return inputs


def parameters(part: Callable[..., Any]) -> Any:
    return inspect.signature(getattr(part, "forward", part)).parameters


def works(part: Callable[..., Any], inputs: Inputs) -> bool:
    try:
        part(**inputs)
    except (TypeError, ValueError):
        return False
    return True


def axes_of(field: str, part: Callable[..., Any]) -> int | None:
    """How many coordinates the positions of an example have.

    None is a plain position.
    """
    for axes in (None, 1, 2, 3):
        if works(part, inputs_of(field, part, axes, batched=False)(5, 0)):
            return axes
    raise AssertionError(f"{field} of the example takes no positions of 0 to 3 axes")


def float64(part: Any) -> Any:
    """A copy of an example whose parameters are float64."""
    if isinstance(part, nn.Module):
        return deepcopy(part).double()
    if inspect.ismethod(part):
        return getattr(float64(part.__self__), part.__name__)
    if isinstance(part, partial):
        keywords = {key: float64(x) for key, x in part.keywords.items()}
        return partial(float64(part.func), *map(float64, part.args), **keywords)
    return part


def case_of(field: str, part: Callable[..., Any]) -> Case:
    """The call of one field of a scheme, with its parameters as inputs."""
    axes = axes_of(field, part)
    inputs = inputs_of(field, part, axes)
    floating = {
        name: x if x.is_floating_point() else x.double()
        for name, x in inputs(5, 0).items()
    }
    options: dict[str, Any] = {"floats": works(part, floating)}
    owner = part if isinstance(part, nn.Module) else getattr(part, "__self__", None)
    if isinstance(owner, nn.Module):
        method = "forward" if part is owner else part.__name__
        return learned(deepcopy(owner), inputs, method, **options)
    whole = not any(x.is_floating_point() for x in inputs(5, 0).values())
    if whole and "dtype" in inspect.signature(part).parameters:
        exact = partial(part, dtype=torch.float64)
        options |= {"result": "float32", "exact": exact}
    return Case(part, inputs, noise=roundings(256), **options)


def named() -> set[str]:
    """What cases.py and arguments.py name themselves."""
    return {name.split(",")[0] for name in (*CASES, *CONSTANTS, *COORDINATES, *PLAIN)}


@cache
def derived_cases() -> dict[str, Case]:
    """Cases of the zoo's examples whose source no table names."""
    found = {}
    for entry in encodings():
        name = public_name(entry.source)
        for field, part in fields(entry).items():
            if name not in named():
                found[f"{name}, {field}"] = case_of(field, part)
    return found


def every_case() -> dict[str, Case]:
    return CASES | derived_cases()


def constructors() -> dict[str, tuple[Callable[..., Any], Arguments]]:
    """What makes the zoo's examples, and valid arguments, where no table names it."""
    return {
        name: (call, arguments)
        for name, (call, arguments) in made().items()
        if name not in named() and inspect.isclass(call)
    }


def every_call() -> dict[str, tuple[Callable[..., Any], Arguments]]:
    """Valid arguments of everything public."""
    return PLAIN | constructors() | with_tensors(every_case())


# ---- schemes

# Rows whose example can't stand on plain positions, and what does in its place.
OTHER_EXAMPLES = {
    "BEiT's bias": "a window of 4 × 4: examples/bias.py has one on a grid",
    "GRAPE, multiplicative": "its planes are arguments; examples/variants.py has some",
    "Learned grid": "16 rows and columns: examples/embedding.py has 512",
    "Perceiver features": "9 channels, which are not the width of these tokens",
    "Swin's bias": "a window of 4 × 4: examples/bias.py has one on a grid",
}


def loud(part: Any) -> Any:
    """A copy in float64 with drawn parameters: what begins at zero says nothing."""
    copy = float64(part)
    for module in modules_of(copy):
        for parameter in module.parameters():
            nn.init.normal_(parameter, generator=seeded(1))
    return copy


def on_a_line(entry: Entry) -> PositionScheme:
    """A row's example on plain positions: several axes all get the same one."""
    assert isinstance(entry.where, PositionScheme)
    changed: dict[str, Any] = {}
    for field, part in fields(entry).items():
        copy = loud(part)
        axes = axes_of(field, copy)
        changed[field] = copy if axes is None else equal_on_all(copy, field, axes)
    return replace(entry.where, name=entry.name, **changed)


def equal_on_all(part: Callable[..., Any], field: str, axes: int) -> Callable[..., Any]:
    count = 1 if field == "embedding" else 2  # positions come last

    def call(*args: Any, **kwargs: Any) -> Any:
        others, positions = args[:-count], args[-count:]
        return part(*others, *(equal_axes(p, axes) for p in positions), **kwargs)

    return call


def reads_hidden_states(entry: Entry) -> bool:
    return any(
        {"q_x", "k_x"} & set(parameters(part)) for part in fields(entry).values()
    )


@cache
def zoo_schemes() -> dict[str, PositionScheme]:
    """The examples of the zoo, but for those that helpers.SCHEMES has by their name."""
    found = {}
    for entry in encodings():
        if fields(entry) and entry.name not in (*OTHER_EXAMPLES, *SCHEMES):
            found[entry.name] = on_a_line(entry)
            if reads_hidden_states(entry):
                READING_HIDDEN_STATES.add(entry.name)
    return found


@cache
def every_scheme() -> dict[str, PositionScheme]:
    """The basic schemes, the zoo's, and the variants of all groups of examples.

    A variant with the name of a row stands for its example: with sharper parameters.
    """
    found = SCHEMES | zoo_schemes()
    for group in groups().values():
        assert not set(SCHEMES) & set(group.SCHEMES), "two schemes have one name"
        found |= group.SCHEMES
    return found


def lacking() -> dict[tuple[str, str], str]:
    """What schemes lack, and why: (scheme, property) → reason."""
    reasons = {
        (entry.name, property): reason
        for entry in encodings()
        for property, reason in entry.lacks.items()
        if entry.name in every_scheme()
    }
    for group in groups().values():
        reasons |= group.NOT
    return reasons
