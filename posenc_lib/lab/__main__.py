"""The command for longer runs, which stores each as soon as it is done.

`python -m posenc_lib.lab three-back --scheme sinusoid --seeds 0 1 2 --out FILE`.
Stopped half-way and started again, it makes the runs that are missing.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

import torch

from posenc_lib.lab.extending import extension_run
from posenc_lib.lab.runs import EXPERIMENTS, SCHEMES, run, sweep

RUNNERS = {"rope-longer": extension_run}  # the others use `run`


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and run what it names."""
    parser = argparse.ArgumentParser(
        "python -m posenc_lib.lab",
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument(
        "--scheme",
        nargs="+",
        choices=list(SCHEMES),
        metavar="NAME",
        help="rope-longer has one: rope",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON file, made or added to",
    )
    for field in fields(next(iter(EXPERIMENTS.values()))):
        if field.type == "int":
            parser.add_argument(
                f"--{field.name}", type=int, default=argparse.SUPPRESS, metavar="N"
            )
        elif field.type == "bool":
            parser.add_argument(
                f"--{field.name}",
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
            )
        elif field.name == "lengths":
            parser.add_argument(
                "--lengths", nargs="+", type=int, default=argparse.SUPPRESS, metavar="T"
            )
    options = vars(parser.parse_args(arguments))
    experiment, names, seeds, out = (
        options.pop(key) for key in ("experiment", "scheme", "seeds", "out")
    )
    if "lengths" in options:
        options["lengths"] = tuple(options["lengths"])
    names = names or (["rope"] if experiment in RUNNERS else list(SCHEMES))
    torch.set_num_threads(1)  # sums in another order give other weights
    settings = replace(EXPERIMENTS[experiment], **options)
    make = RUNNERS.get(experiment, run)
    stored = sweep(out, settings, names, seeds, make=make, progress=True)
    print(f"{out}: {len(stored['runs'])} runs")


if __name__ == "__main__":
    main()
