"""The library at the command line: `posenc inspect llama-3.1-8b`."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posenc_lib import __version__
from posenc_lib._command import Answer, Parser, add_command

CONFIG = "a config.json or its folder, - for standard input, or a name of posenc list"


def inspect(options: argparse.Namespace) -> Answer:
    """The report of one configuration, and its picture if asked for."""
    from posenc_lib.checkpoints import as_dict, figure, read, text

    checkpoint = read(options.config, class_defaults=options.class_defaults)
    if options.plot is not None:
        figure(checkpoint).savefig(options.plot, dpi=150)
    return Answer(text(checkpoint), as_dict(checkpoint))


def add_inspect(commands: Any) -> None:
    """`inspect`."""
    parser = add_command(
        commands,
        "inspect",
        inspect,
        "which positions a model's layers have",
        keys="name, model_type, source, notes, stacks",
        example="gemma-3-4b --plot gemma.svg",
    )
    parser.add_argument("config", metavar="CONFIG", help=CONFIG)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it, too: .png, .svg or .pdf"
    )
    _add_class_defaults(parser)


def diff(options: argparse.Namespace) -> Answer:
    """What changes between two configurations."""
    from posenc_lib.checkpoints import differences, read

    one, other = (
        read(config, class_defaults=options.class_defaults)
        for config in (options.one, options.other)
    )
    lines = differences(one, other)
    shown = lines or ["no difference in positions"]
    return Answer(
        "\n  ".join([f"{one.name} → {other.name}", *shown]),
        {"one": one.name, "other": other.name, "differences": lines},
        status=1 if lines else 0,
    )


def add_diff(commands: Any) -> None:
    """`diff`."""
    parser = add_command(
        commands,
        "diff",
        diff,
        "what changes between two models",
        keys="one, other, differences",
        example="llama-3-8b llama-3.1-8b",
        exits="0 no difference, 1 a difference",
    )
    parser.add_argument("one", metavar="CONFIG", help=CONFIG)
    parser.add_argument("other", metavar="CONFIG", help="the same for the other model")
    _add_class_defaults(parser)


def _add_class_defaults(parser: Parser) -> None:
    parser.add_argument(
        "--class-defaults",
        action="store_true",
        help=(
            "fill in what a file leaves to transformers' class, "
            "and say which keys these are"
        ),
    )


def names(options: argparse.Namespace) -> Answer:
    """The names of the shipped configurations, each with its encodings."""
    from posenc_lib.checkpoints import read, shipped

    rows: list[dict[str, Any]] = []
    for name in shipped():
        checkpoint = read(name)
        stacks = checkpoint.stacks
        used = [layer.encoding for stack in stacks for layer in stack.layers]
        used += [stack.inputs.encoding for stack in stacks if stack.inputs]
        row = {"name": name, "encodings": list(dict.fromkeys(used))}
        rows.append(row | {"source": checkpoint.source})
    width = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:<{width}}  {', '.join(row['encodings'])}" for row in rows]
    return Answer("\n".join(lines), {"configurations": rows})


def add_list(commands: Any) -> None:
    """`list`."""
    add_command(
        commands,
        "list",
        names,
        "the configurations that come with the library",
        keys="configurations (each name, encodings, source)",
        example="",
    )


def zoo(options: argparse.Namespace) -> Answer:
    """What is known of the encodings that match: equation, source, tests."""
    from posenc_lib.zoo import as_dict, describe, find

    found = find(" ".join(options.name))
    return Answer(
        "\n\n".join(map(describe, found)), {"encodings": list(map(as_dict, found))}
    )


def add_zoo(commands: Any) -> None:
    """`zoo`."""
    parser = add_command(
        commands,
        "zoo",
        zoo,
        "an encoding's equation, source and tests",
        keys="encodings (each name, aliases, where, equation, parameters, cost, "
        "used_by, source, paper, test, golden, checked, lacks, chapter)",
        example="yarn",
    )
    parser.add_argument(
        "name",
        nargs="+",
        metavar="NAME",
        help="an encoding, an alias of it or a model; all words must match",
    )


def add_doctor(commands: Any) -> None:
    """`doctor`."""
    from posenc_lib.doctor import add_parser

    add_parser(commands)


def add_lab(commands: Any) -> None:
    """`lab`."""
    from posenc_lib.lab.command import add_parser

    add_parser(commands)


# Each adds one command; a new command is a function here.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    add_inspect,
    add_diff,
    add_list,
    add_zoo,
    add_doctor,
    add_lab,
)

EPILOG = """\
exit codes:
  0    done, and nothing is different or wrong
  1    diff found a difference, or doctor a fault
  2    an error; it is one line on standard error
  130  interrupted

posenc COMMAND --help says more; example: posenc inspect llama-3.1-8b"""


def parser() -> Parser:
    """The parser of the program with all its commands."""
    whole = Parser(
        "posenc",
        description="Positional encodings of Transformers at the command line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"posenc {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; `posenc --help` lists the codes."""
    given = sys.argv[1:] if arguments is None else arguments
    _replace_what_has_no_code()
    try:
        whole = parser()
        if not given:
            whole.print_help(sys.stderr)
            return 2
        return _answer(whole.parse_args(given))
    except KeyboardInterrupt as stop:
        print("interrupted" + f"; {stop}" * bool(str(stop)), file=sys.stderr)
        return 130


def _answer(options: argparse.Namespace) -> int:
    try:
        answer: Answer = options.run(options)
        printed = _json(answer.data) if options.json else answer.text
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        return _failed(str(error))
    except (Exception, SystemExit) as error:  # raised by the code that doctor calls
        return _failed(f"{type(error).__name__}: {error}")
    try:
        print(printed, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _failed(str(error))
    return answer.status


def _failed(problem: str) -> int:
    print(f"error: {' '.join(problem.split())}", file=sys.stderr)
    return 2


def _json(data: dict[str, Any]) -> str:
    """Strict JSON, in ASCII, which every encoding holds."""
    return json.dumps(data, indent=2, allow_nan=False)


def _replace_what_has_no_code() -> None:
    """A character that the terminal can't show is no reason to lose a report."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
