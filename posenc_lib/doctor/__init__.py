"""The doctor: the convention of a position function, and its faults, from behaviour.

It reads nothing but outputs. Conventions that behaviour can't judge, such as the base,
are facts of the report; say what you meant, and a difference is a finding.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from posenc_lib import _checks
from posenc_lib._command import Answer, add_command
from posenc_lib.doctor.biases import diagnose_bias, diagnose_buckets
from posenc_lib.doctor.measure import CallError, call
from posenc_lib.doctor.pairs import diagnose_pair, is_pair
from posenc_lib.doctor.report import Finding, Kind, Report, show
from posenc_lib.doctor.rotary import diagnose_rotary
from posenc_lib.doctor.tables import diagnose_table

__all__ = ["Finding", "Report", "diagnose"]

KINDS: tuple[Kind, ...] = get_args(Kind)
NUMBERS = ("base", "factor", "attention_factor", "offset")
WHOLE = ("rotary_dim", "num_buckets", "max_distance")
WORDS = {
    "layout": ("interleaved", "half", "concatenated"),
    "direction": ("counter-clockwise", "clockwise"),
    "schedule": (
        *("none", "linear_interpolation", "ntk_aware", "dynamic_ntk", "ntk_by_parts"),
        *("yarn", "yarn_released", "llama3", "longrope", "proportional"),
    ),
}


def diagnose(
    fn: Callable[..., Any],
    head_dim: int | None = None,
    *,
    kind: Kind | None = None,
    token_axis: Literal[-2, 1] = -2,
    **intended: Any,
) -> Report:
    """Say which convention a position function follows, and what is wrong with it.

    Equation: fn(x, p) = R_p x, measured by x = unit vectors, p = 0, 1, 2, … and
        a few far away
    Shapes: fn is (x (B, H, T, d), positions (T,)) → x′,
        or (q, k, positions) → (q′, k′),
        or positions (T,) → table (T, d),
        or (q_positions, k_positions) → bias (H, Tq, Tk),
        or relative positions (T,) → buckets (T,)

    `str(report)` is a page of 80 columns; `report.facts`, `report.findings` and
    `report.ok` are for programs.

    Args:
        fn: the function. It is called some 40 times, on the CPU.
        head_dim: d, needed for a rotation or a table.
        kind: "rotary", "pair", "table", "bias" or "buckets"; if not given, `fn` is
            called to find out.
        token_axis: 1 where x is (B, T, H, d).
        intended: what was meant, where you know it: layout, direction, base,
            rotary_dim, schedule (a function's name in `rotary.scaling`, or "none"),
            factor, attention_factor, offset; num_buckets, max_distance, bidirectional.

    Raises:
        TypeError, ValueError: the kind or an intention is unknown or of another type;
            `fn` can't be called in any form.

    Chapter: notation
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {fn!r}")
    if head_dim is not None:
        _checks.whole_number("head_dim", head_dim, least=2)
    if token_axis not in (-2, 1):
        raise ValueError(
            "token_axis must be -2, for (B, H, T, d), or 1, for (B, T, H, d); "
            f"got {token_axis!r}"
        )
    _check_wanted(intended)
    if kind is None:
        kind = _kind(fn, head_dim)
    _checks.one_of("kind", kind, KINDS)
    if kind in ("rotary", "pair", "table") and head_dim is None:
        raise ValueError(
            f"head_dim must be given for a {kind} function: "
            "the width of what it rotates or returns"
        )
    report = Report(kind)
    try:
        if kind == "pair":
            diagnose_pair(report, fn, head_dim or 0, token_axis, intended)
        elif kind == "rotary":
            diagnose_rotary(report, fn, head_dim or 0, token_axis, intended)
        elif kind == "table":
            diagnose_table(report, fn, head_dim or 0, intended)
        elif kind == "bias":
            diagnose_bias(report, fn, intended)
        else:
            diagnose_buckets(report, fn, intended)
    except CallError as refusal:
        report.add_finding(
            "refused",
            f"A call that the diagnosis needs failed: {refusal}.",
            "Another signature or shape than (x, positions), positions, or "
            "(q_positions, k_positions); a table shorter than the first 64 positions, "
            "or one that does not fit its slots, as cosines of an odd width.",
            "argument",
        )
    return report


def _check_wanted(intended: dict[str, Any]) -> None:
    known = (*WORDS, *NUMBERS, *WHOLE, "bidirectional")
    for name, value in intended.items():
        if name not in known:
            raise TypeError(f"{name} is not an intention; known are {', '.join(known)}")
        if value is None:
            continue
        if name in WORDS:
            _checks.one_of(name, value, WORDS[name])
        elif name == "bidirectional":
            _checks.boolean(name, value)
        elif name == "offset":
            _checks.whole_number(name, value, least=0)
        elif name in NUMBERS:
            _checks.positive(name, value)
        else:
            _checks.whole_number(name, value, least=1)


def _kind(fn: Callable[..., Any], head_dim: int | None) -> Kind:
    """What kind of function it is, by what it takes and returns."""
    positions, reasons = torch.arange(5), []
    try:
        result = call(fn, positions)
        if result.shape == positions.shape and not result.is_floating_point():
            return "buckets"
        # a bias too may take one argument: k_positions can have a default
        square = result.shape[-2:] == (5, 5) and head_dim != 5
        if not (square and _is_bias(fn)):
            return "table"
    except CallError as refusal:
        reasons.append(str(refusal))
    if head_dim is not None:
        for dtype in (torch.float64, torch.float32):
            for shape in ((1, 1, 5), (1, 5), (5,)):
                try:
                    x = torch.ones(*shape, head_dim, dtype=dtype)
                    if call(fn, x, positions).shape == x.shape:
                        return "rotary"
                except CallError as refusal:
                    reasons.append(str(refusal))
        for dtype in (torch.float64, torch.float32):
            x = torch.ones(2, 3, 5, head_dim, dtype=dtype)
            if any(
                is_pair(fn, y, p)
                for y in (x, x.transpose(1, 2))
                for p in (positions, positions.expand(2, -1))
            ):
                return "pair"
    try:
        if _is_bias(fn):
            return "bias"
    except CallError as refusal:
        reasons.append(str(refusal))
    # errors from inside a call with the right number of arguments
    inside = [reason for reason in reasons if "positional argument" not in reason]
    if head_dim is not None and "positional argument" not in reasons[-1]:
        return "rotary"  # it may rotate another axis: the diagnosis says so
    raise ValueError(
        "fn must take (x, positions), (q, k, positions), "
        "positions or (q_positions, k_positions), or give kind"
        + (" (and head_dim, which all but a bias need): " if head_dim is None else ": ")
        + (inside or reasons)[0]
    )


def _is_bias(fn: Callable[..., Any]) -> bool:
    shape = tuple(call(fn, torch.arange(5), torch.arange(4)).shape)
    if shape[-2:] not in ((5, 4), (1, 4)):
        raise CallError(f"5 query and 4 key positions gave shape {shape}")
    return True


# ---- the command line


def add_parser(commands: Any) -> None:
    """`doctor`: for the parser of `posenc`."""
    parser = add_command(
        commands,
        "doctor",
        run,
        "what a position function does, and what is wrong with it",
        keys="kind, ok, facts, findings (each code, seen, cause, reference), notes",
        example="mymodel.rope:apply --head-dim 128 --base 500000",
        exits="0 nothing is wrong, 1 something is",
    )
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="for instance package.module:apply_rope",
    )
    parser.add_argument(
        "--head-dim", type=int, metavar="D", help="needed for a rotation or a table"
    )
    parser.add_argument("--kind", choices=KINDS, help="detected if not given")
    parser.add_argument(
        "--token-axis",
        type=int,
        default=-2,
        metavar="AXIS",
        help="1 where x is (B, T, H, d)",
    )
    meant = parser.add_argument_group("what was meant", "a difference is a finding")
    for name, words in WORDS.items():
        meant.add_argument(
            f"--{name}", choices=words, metavar="NAME", help=", ".join(words)
        )
    for name in NUMBERS:
        meant.add_argument(
            f"--{name.replace('_', '-')}",
            type=int if name == "offset" else float,
            metavar="X",
        )
    for name in WHOLE:
        meant.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    meant.add_argument(
        "--bidirectional", action=argparse.BooleanOptionalAction, default=None
    )


def run(options: argparse.Namespace) -> Answer:
    """The report; its exit code is 1 if something is wrong."""
    intended = {
        name: getattr(options, name)
        for name in (*WORDS, *NUMBERS, *WHOLE, "bidirectional")
    }
    with redirect_stdout(sys.stderr):  # what the function prints is no part of it
        report = diagnose(
            load(options.function),
            options.head_dim,
            kind=options.kind,
            token_axis=options.token_axis,
            **intended,
        )
    return Answer(str(report), _as_dict(report), status=0 if report.ok else 1)


def _as_dict(report: Report) -> dict[str, Any]:
    """The report for programs: JSON values alone."""
    return {
        "kind": report.kind,
        "ok": report.ok,
        "facts": {name: _plain(value) for name, value in report.facts.items()},
        "findings": [
            vars(finding) | {"reference": finding.reference._asdict()}
            for finding in report.findings
        ],
        "notes": list(report.notes),
    }


def _plain(value: Any) -> Any:
    """A fact as a JSON value; what JSON has no value for, in words."""
    if isinstance(value, float) and not math.isfinite(value):
        return show(value)
    return value if isinstance(value, bool | int | float | None) else show(value)


def load(name: str) -> Callable[..., Any]:
    """The function that "package.module:function" names; dots lead into objects."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ValueError(
            f"function must be written package.module:function, got {name!r}"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"module {module!r} can't be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
    for part in path.split("."):
        if not hasattr(target, part):
            raise ValueError(
                f"function {name!r}: "
                f"{part!r} is not in {getattr(target, '__name__', module)}"
            )
        target = getattr(target, part)
    return target  # type: ignore[no-any-return]
