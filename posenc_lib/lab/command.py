"""The command `posenc lab`, which makes longer runs and stores each when it is done."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from posenc_lib._command import Answer, Parser, add_command, table
from posenc_lib.lab.extending import extension_run
from posenc_lib.lab.runs import EXPERIMENTS, SCHEMES, Settings, run, sweep

RUNNERS = {"rope-longer": extension_run}  # the others use `run`

EXPERIMENTS_IN_WORDS = {
    "three-back": "name the token three places back; tested at longer lengths, too",
    "common-token": "name the most common token, which needs no order",
    "rope-longer": "a model with RoPE, run under other schemes beyond its length",
}
SCHEMES_IN_WORDS = {
    "nope": "no positions",
    "sinusoid": "sinusoids, added",
    "learned": "a learned table, added",
    "scrambled": "vectors of a hash of the position, added",
    "bias": "T5's bias: 16 buckets, one for all distances from 12 on",
    "bias-128": "T5's bias: 32 buckets, one for all distances from 128 on",
    "rope": "RoPE with base 10,000",
    "rope-100": "RoPE with base 100",
    "rope-half": "RoPE on half of the channels",
    "rope-half-100": "RoPE on half of the channels, with base 100",
}
DETAILS = f"""\
experiments:
{table(EXPERIMENTS_IN_WORDS)}

schemes (rope-longer has one: rope):
{table(SCHEMES_IN_WORDS)}

A run is stored in FILE as soon as it is done. Stopped half-way and started again, the
command makes the runs that are missing. Settings that are not given are those of the
runs that the chapters read."""


def add_parser(commands: Any) -> None:
    """`lab`: for the parser of `posenc`."""
    parser = add_command(
        commands,
        "lab",
        run_command,
        "train tiny models with several schemes, and store the runs",
        keys="file, runs (how many it holds), new (how many were made now)",
        example="three-back --scheme rope sinusoid --seeds 0 1 --out runs.json",
        details=DETAILS,
    )
    parser.add_argument(
        "experiment",
        choices=list(EXPERIMENTS),
        metavar="EXPERIMENT",
        help="listed below",
    )
    parser.add_argument(
        "--scheme",
        nargs="+",
        choices=list(SCHEMES),
        metavar="NAME",
        help="listed below; all, if not given",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[0, 1, 2, 3, 4],
        metavar="SEED",
        help="one run for each scheme and seed; 0 to 4, if not given",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON file, made or added to",
    )
    _add_settings(parser)


def _add_settings(parser: Parser) -> None:
    """An option for each field of `Settings` that a command line can hold."""
    group = parser.add_argument_group("settings", "equal for all runs in a file")
    unset = argparse.SUPPRESS
    for field in fields(Settings):
        option = f"--{field.name}"
        if field.type == "int":
            group.add_argument(option, type=int, default=unset, metavar="N")
        elif field.type == "bool":
            group.add_argument(
                option, action=argparse.BooleanOptionalAction, default=unset
            )
        elif field.name == "lengths":
            group.add_argument(option, nargs="+", type=int, default=unset, metavar="T")


def run_command(options: argparse.Namespace) -> Answer:
    """Make the runs that are missing."""
    names = _schemes(options)
    settings = _settings(options)
    torch.set_num_threads(1)  # sums in another order give other weights
    new = 0

    def make(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        nonlocal new
        made = RUNNERS.get(options.experiment, run)(*arguments, **keywords)
        new += 1
        return made

    try:
        stored = sweep(
            options.out,
            settings,
            names,
            dict.fromkeys(options.seeds),
            make=make,
            progress=True,
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)  # ends the line that shows the progress
        raise KeyboardInterrupt(
            f"finished runs are stored in {options.out}, "
            "and the same command makes the others"
        ) from None
    runs = len(stored["runs"])
    return Answer(
        f"{options.out}: {new} new runs, {runs} in all",
        {"file": str(options.out), "runs": runs, "new": new},
    )


def _schemes(options: argparse.Namespace) -> list[str]:
    if options.experiment not in RUNNERS:
        return list(dict.fromkeys(options.scheme or SCHEMES))
    others = [name for name in options.scheme or () if name != "rope"]
    if others:
        raise ValueError(
            f"scheme must be rope in {options.experiment}, got {others[0]}"
        )
    return ["rope"]


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        field.name: getattr(options, field.name)
        for field in fields(Settings)
        if hasattr(options, field.name)
    }
    if "lengths" in given:
        given["lengths"] = tuple(given["lengths"])
    return replace(EXPERIMENTS[options.experiment], **given)
