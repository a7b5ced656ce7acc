"""The command `posenc lab`: plan, make and report many runs of tiny models."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from posenc_lib._command import Answer, Parser, add_command, table
from posenc_lib.lab.experiments import EXPERIMENTS, EXPERIMENTS_IN_WORDS, SEEDS
from posenc_lib.lab.extending import SCHEDULED
from posenc_lib.lab.runs import run, trained
from posenc_lib.lab.schemes import SCHEMES, SCHEMES_IN_WORDS
from posenc_lib.lab.settings import Settings
from posenc_lib.lab.store import load, read
from posenc_lib.lab.sweep import Progress, extend, missing, sweep
from posenc_lib.lab.train import ADAM

DETAILS = f"""\
experiments:
{table(EXPERIMENTS_IN_WORDS)}

schemes:
{table(SCHEMES_IN_WORDS)}

FILE has one line for each run, stored as soon as it is done. Stopped at any time and
started again, the command makes the runs that are missing."""
# Steps and seeds of the short training from which a plan estimates a long one.
PROBE, PROBE_SEEDS = 8, 4


def add_parser(commands: Any) -> None:
    """`lab` with its own commands: for the parser of `posenc`."""
    about = "train many tiny models, and see which encodings carry further"
    parser: Parser = commands.add_parser(
        "lab",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="posenc lab COMMAND --help says more; example: posenc lab plan",
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)
    made = add_command(
        parts,
        "run",
        run_command,
        "make the runs that a file does not have",
        keys="file, runs (how many it holds), new, failed (messages), left",
        exits="0 done, 1 some runs failed",
        example="causal --scheme rope sinusoid --seeds 3 --out runs.jsonl",
        details=DETAILS,
        under="lab",
    )
    _add_choice(made)
    _add_file(made, required=True)
    made.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="make them on the workers of this Dask scheduler instead",
    )
    made.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="start no more runs after so many minutes",
    )
    planned = add_command(
        parts,
        "plan",
        plan_command,
        "say how many runs there are, and how long they will take here",
        keys="experiments (name: runs, left, hours of one core), left, hours",
        example="causal --seeds 3",
        details=DETAILS,
        under="lab",
    )
    _add_choice(planned)
    _add_file(planned, required=False)
    reported = add_command(
        parts,
        "report",
        report_command,
        "make tables and figures of a file of runs, and say what decides",
        keys="files",
        example="runs.jsonl --out report",
        under="lab",
    )
    reported.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="JSON lines of `posenc lab run`; the library's own sweep, if not given",
    )
    reported.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="made if not there"
    )


def _add_choice(parser: Parser) -> None:
    """Which runs, and where."""
    parser.add_argument(
        "experiment",
        nargs="*",
        metavar="EXPERIMENT",
        help="listed below; all, if none is given",
    )
    parser.add_argument(
        "--scheme", nargs="+", metavar="NAME", help="listed below; all, if not given"
    )
    parser.add_argument(
        "--task", nargs="+", metavar="TASK", help="all of the experiment, if not given"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=len(SEEDS),
        metavar="N",
        help=f"seeds 0 to N − 1 of each setting; {len(SEEDS)}, if not given",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="processes; one for each core, if not given",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where models are trained: cpu or cuda; a GPU, if there is one",
    )
    parser.add_argument(
        "--with",
        dest="own",
        type=Path,
        metavar="FILE.py",
        help="your own schemes, tasks and experiments",
    )


def _add_file(parser: Parser, *, required: bool) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        required=required,
        metavar="FILE",
        help="JSON lines, made or added to",
    )


def chosen(options: argparse.Namespace) -> tuple[dict[str, list[Settings]], str]:
    """The settings of each experiment that is asked for, and the reader's own code."""
    source = ""
    if options.own is not None:
        try:
            source = options.own.read_text(encoding="utf-8")
        except OSError as error:
            raise type(error)(
                f"{options.own} can't be read: {error.strerror}"
            ) from None
        extend(source)
    for name, given, known in (
        ("experiment", options.experiment, EXPERIMENTS),
        ("scheme", options.scheme, SCHEMES),
    ):
        unknown = [one for one in given or () if one not in known]
        if unknown:
            raise ValueError(
                f"{name} must be one of {', '.join(known)}; got {unknown[0]}"
            )
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be cpu or cuda, as PyTorch names it, got {options.device} "
            f"({str(error).splitlines()[0]})"
        ) from None
    if options.seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {options.seeds}")
    if options.jobs < 0:
        raise ValueError(f"jobs must be at least 1, got {options.jobs}")
    names = dict.fromkeys(options.experiment or EXPERIMENTS)
    wanted = {
        name: [s for s in EXPERIMENTS[name] if _asked(s, options)] for name in names
    }
    if not any(wanted.values()):
        raise ValueError(
            "no run has this scheme and this task: the experiments have the tasks "
            + ", ".join(sorted({s.task for n in names for s in EXPERIMENTS[n]}))
        )
    return wanted, source


def _need(*packages: str) -> None:
    """Find out before anything is made whether packages of the extra are there."""
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(f"this needs {package}: pip install 'posenc-lib[lab]'")


def _asked(settings: Settings, options: argparse.Namespace) -> bool:
    return (options.scheme is None or settings.scheme in options.scheme) and (
        options.task is None or settings.task in options.task
    )


def run_command(options: argparse.Namespace) -> Answer:
    """Make the runs that are missing."""
    wanted, source = chosen(options)
    if options.jobs != 1 or options.dask:
        _need("joblib", *["distributed"] * bool(options.dask))
    settings = [one for some in wanted.values() for one in some]
    latest: list[Progress] = []

    def show(progress: Progress) -> None:
        latest.append(progress)
        del latest[:-1]
        with suppress(OSError, AttributeError):  # whoever reads it may have gone
            sys.stderr.write(f"\r{in_words(progress):<78}")
            sys.stderr.flush()

    try:
        rows = sweep(
            options.out,
            settings,
            range(options.seeds),
            jobs=options.jobs or -1,
            dask=options.dask,
            device=options.device,
            source=source,
            minutes=options.minutes,
            progress=show,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"finished runs are stored in {options.out}, "
            "and the same command makes the others"
        ) from None
    finally:
        if latest:
            with suppress(OSError, AttributeError):
                sys.stderr.write("\n")  # ends the line that shows the progress
    (last,) = latest
    lines = [f"{options.out}: {last.made} new runs, {len(rows)} in all"]
    if last.left:
        lines.append(f"{last.left} runs are left; the same command makes them")
    lines += [f"failed: {message}" for message in last.failed]
    return Answer(
        "\n".join(lines),
        {
            "file": str(options.out),
            "runs": len(rows),
            "new": last.made,
            "failed": list(last.failed),
            "left": last.left,
        },
        status=1 if last.failed else 0,
    )


def in_words(progress: Progress) -> str:
    """One line: how many runs are made, how many are left, and for how long."""
    line = f"{progress.made} runs made, {progress.left} left"
    if progress.failed:
        line += f", {len(progress.failed)} groups failed"
    if progress.remaining is not None and progress.left:
        line += f", about {duration(progress.remaining)}"
    return line


def duration(seconds: float) -> str:
    """Seconds as a reader says them: 40 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_command(options: argparse.Namespace) -> Answer:
    """How many runs there are, and how long they take."""
    wanted, _ = chosen(options)
    rows = [] if options.out is None else read(options.out)
    cores = options.jobs or os.cpu_count() or 1
    lines, data, total_runs, total_seconds = [], {}, 0, 0.0
    lacking = {
        name: missing(rows, settings, range(options.seeds))
        for name, settings in wanted.items()
    }
    pace = _paces(
        [g.settings for groups in lacking.values() for g in groups], options.device
    )
    for name, groups in lacking.items():
        left = sum(len(group.seeds) for group in groups)
        seconds = sum(pace[_shape(g.settings)] * len(g.seeds) for g in groups)
        runs = len(set(wanted[name])) * options.seeds
        lines.append(f"{name:<12} {runs:>6} runs, {left:>6} left, {duration(seconds)}")
        data[name] = {"runs": runs, "left": left, "hours": round(seconds / 3600, 3)}
        total_runs, total_seconds = total_runs + left, total_seconds + seconds
    lines.append(
        f"{total_runs} runs to make: about {duration(total_seconds)} of one core, "
        f"{duration(total_seconds / cores)} on {cores} cores"
    )
    return Answer(
        "\n".join(lines),
        {
            "experiments": data,
            "left": total_runs,
            "hours": round(total_seconds / 3600, 3),
        },
    )


def report_command(options: argparse.Namespace) -> Answer:
    """Tables, figures and an analysis of variance."""
    rows = load() if options.file is None else load(options.file)
    _need("statsmodels")
    from posenc_lib.lab.report import write

    files = write(rows, options.out)
    return Answer(
        f"{len(rows)} runs: {files[-2]} and {len(files) - 1} other files",
        {"files": [str(file) for file in files]},
    )


def _shape(settings: Settings) -> Settings:
    """What the time of a run depends on: all but scheme, recipe and positions."""
    if set(settings.tests + settings.tuned) & set(SCHEDULED):
        return replace(settings, recipe=ADAM)  # no other scheme has a schedule
    return replace(settings, scheme="sinusoid", recipe=ADAM, positions="in order")


def _paces(settings: Sequence[Settings], device: str) -> dict[Settings, float]:
    """Seconds of a run of each shape, from a short training and a test here."""
    shapes = list(dict.fromkeys(map(_shape, settings)))
    paces, seeds = {}, range(PROBE_SEEDS)
    for number, shape in enumerate(shapes, 1):
        end = "\n" if number == len(shapes) else ""
        print(f"\rmeasuring {number} of {len(shapes)}", end=end, file=sys.stderr)
        short = replace(shape, steps=1)
        whole = run(short, seeds, device=device)[0]["seconds"]
        times = []
        for steps in (1, PROBE):
            start = time.process_time()
            trained(replace(short, steps=steps), seeds, device=device)
            times.append((time.process_time() - start) / len(seeds))
        step = max(0.0, times[1] - times[0]) / (PROBE - 1)
        paces[shape] = whole + step * (shape.steps - 1)
    return paces
