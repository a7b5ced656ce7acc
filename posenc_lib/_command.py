"""What the commands of `posenc` share: an answer, and how --help shows each of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn


class Answer(NamedTuple):
    """What a command found: as text, as data for --json, and its exit code."""

    text: str
    data: dict[str, Any]
    status: int = 0


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Answer],
    about: str,
    *,
    keys: str,
    example: str,
    exits: str = "0 done",
    details: str = "",
    under: str = "",
) -> Parser:
    """A parser for one command; `keys` are those of its JSON object.

    `under` is the command that it is a part of.
    """
    parser: Parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="\n\n".join(
            filter(
                None,
                (
                    details,
                    f"exit codes: {exits}, 2 an error, 130 interrupted",
                    " ".join(f"example: posenc {under} {name} {example}".split()),
                ),
            )
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--json", action="store_true", help=f"print a JSON object for programs: {keys}"
    )
    return parser


def table(rows: dict[str, str]) -> str:
    """Names and what they mean, in two columns, indented."""
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {words}" for name, words in rows.items())
