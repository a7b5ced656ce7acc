"""The library at the command line: `python -m posenc_lib inspect llama-3.1-8b`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def inspect(options: argparse.Namespace) -> None:
    """Print the report of one configuration, or draw it."""
    from posenc_lib.checkpoints import as_dict, figure, read, text

    checkpoint = read(options.config, class_defaults=options.class_defaults)
    if options.plot is not None:
        figure(checkpoint).savefig(options.plot, dpi=150)
    if options.json:
        print(json.dumps(as_dict(checkpoint), indent=2, ensure_ascii=False))
    else:
        print(text(checkpoint))


def names(options: argparse.Namespace) -> None:
    """Print the names of the shipped configurations, each with its encodings."""
    from posenc_lib.checkpoints import read, shipped

    known = shipped()
    width = max(map(len, known))
    for name in known:
        checkpoint = read(name)
        used = dict.fromkeys(
            layer.encoding for stack in checkpoint.stacks for layer in stack.layers
        )
        tables = dict.fromkeys(
            stack.inputs.encoding
            for stack in checkpoint.stacks
            if stack.inputs is not None
        )
        print(f"{name:<{width}}  {', '.join((*used, *tables))}")


def diff(options: argparse.Namespace) -> None:
    """Print what changes between two configurations."""
    from posenc_lib.checkpoints import differences, read

    pair = [
        read(config, class_defaults=options.class_defaults)
        for config in (options.one, options.other)
    ]
    print(f"{pair[0].name} → {pair[1].name}")
    lines = differences(*pair)
    for line in lines or ["no difference in positions"]:
        print(f"  {line}")


def add_inspect(commands: Any) -> None:
    """`inspect`."""
    parser = _command(
        commands, "inspect", inspect, "which positions a model's layers have"
    )
    parser.add_argument(
        "config",
        help="a config.json or its folder, - for standard input, or a shipped name",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it, too: .png, .svg or .pdf"
    )
    parser.add_argument("--json", action="store_true", help="print it for programs")
    _add_class_defaults(parser)
    parser.epilog = "example: python -m posenc_lib inspect gemma-3-4b --plot gemma.svg"


def add_list(commands: Any) -> None:
    """`list`."""
    _command(commands, "list", names, "the configurations that come with the library")


def add_diff(commands: Any) -> None:
    """`diff`."""
    parser = _command(commands, "diff", diff, "what changes between two models")
    parser.add_argument("one", help="as for inspect")
    parser.add_argument("other", help="as for inspect")
    _add_class_defaults(parser)
    parser.epilog = "example: python -m posenc_lib diff llama-3-8b llama-3.1-8b"


def zoo(given: argparse.Namespace) -> None:
    """Print what is known of the encodings that match: equation, source, tests."""
    from posenc_lib.zoo import describe, find

    print("\n\n".join(describe(entry) for entry in find(" ".join(given.name))))


def add_zoo(commands: Any) -> None:
    """`zoo`."""
    parser = _command(commands, "zoo", zoo, "an encoding's equation, source and tests")
    parser.add_argument(
        "name", nargs="+", help="an encoding, an alias of it or a model"
    )
    parser.epilog = "example: python -m posenc_lib zoo yarn"


def add_doctor(commands: Any) -> None:
    """`doctor`."""
    from posenc_lib.doctor import add_parser

    add_parser(commands)


# Each adds one command; a new command is a function here.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    add_inspect,
    add_list,
    add_diff,
    add_zoo,
    add_doctor,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command: 0 for success, 1 if the doctor finds a fault, 2 for an error."""
    parser = OneLineParser(
        "python -m posenc_lib",
        description=(__doc__ or "").split(":")[0] + ".",
        epilog="example: python -m posenc_lib inspect llama-3.1-8b",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        status = options.run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        status = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return status


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], about: str
) -> Any:
    parser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}."
    )
    parser.set_defaults(run=run)
    return parser


def _add_class_defaults(parser: Any) -> None:
    parser.add_argument(
        "--class-defaults",
        action="store_true",
        help=(
            "fill in what a file leaves to transformers' class, "
            "and say which keys these are"
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
