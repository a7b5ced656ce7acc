"""Many runs: on all cores of a machine or on a cluster, each stored when it is done."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from posenc_lib import _checks
from posenc_lib.lab.runs import check, run
from posenc_lib.lab.settings import Settings, from_stored
from posenc_lib.lab.store import Row, Store

GROUP = 10  # seeds trained as one: a larger group leaves a processor's cache
GPU_GROUP = 100
ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Group:
    """Runs that are made together: some seeds of one setting.

    Args:
        settings: of all.
        seeds: one run each.

    Chapter: 21
    """

    settings: Settings
    seeds: tuple[int, ...]

    @property
    def work(self) -> float:
        """Multiplications of training, about: what the estimates go by."""
        s = self.settings
        for_token = 12 * s.width**2 + 2 * s.length * s.width
        return len(self.seeds) * s.steps * s.batch * s.length * s.layers * for_token


def missing(
    rows: Sequence[Row],
    settings: Sequence[Settings],
    seeds: Sequence[int],
    *,
    group: int = GROUP,
) -> list[Group]:
    """The runs that a store does not have, in groups.

    Shapes: → groups of one setting and up to so many seeds

    Args:
        rows: of the store.
        settings: of the runs that are wanted.
        seeds: of each of them.
        group: the most seeds that are trained as one.

    Chapter: 21
    """
    done: dict[Settings, set[int]] = {}
    for row in rows:
        done.setdefault(from_stored(row["settings"]), set()).add(row["seed"])
    groups = []
    for one in dict.fromkeys(settings):
        left = [s for s in dict.fromkeys(seeds) if s not in done.get(one, ())]
        for first in range(0, len(left), group):
            groups.append(Group(one, tuple(left[first : first + group])))
    return groups


def extend(source: str) -> None:
    """Run a reader's code, which adds to `TASKS`, `SCHEMES` and `EXPERIMENTS`.

    Args:
        source: Python code; each process runs it once.

    Chapter: 21
    """
    name = f"posenc_lab_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return
    module = ModuleType(name)
    code = compile(source, "<your code>", "exec", dont_inherit=True)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with redirect_stdout(sys.stderr):  # what is printed is no part of --json
            exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise


def make(group: Group, device: str, source: str) -> tuple[Group, list[Row] | str]:
    """A group, and its rows or what went wrong: the part that a worker does.

    One thread: sums in another order give other weights, and groups fill the cores.
    """
    # The number of threads and the default dtype belong to a process, and a worker of a
    # cluster may have several threads.
    with ONE_AT_A_TIME:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            extend(source)
            with redirect_stdout(sys.stderr):
                return group, run(group.settings, group.seeds, device=device)
        except Exception as error:  # the other groups go on
            s = group.settings
            return group, f"{s.task}, {s.scheme}: {type(error).__name__}: {error}"
        finally:
            torch.set_num_threads(before)


def _made(
    groups: Iterable[Group], jobs: int, dask: str | None, device: str, source: str
) -> Iterator[tuple[Group, list[Row] | str]]:
    """Each group with its rows, as soon as they are there."""
    if jobs == 1 and dask is None:
        yield from (make(group, device, source) for group in groups)
        return
    from joblib import Parallel, delayed

    with _backend(dask):
        yield from Parallel(
            n_jobs=-1 if dask else jobs,
            return_as="generator_unordered",
            batch_size=1,
            pre_dispatch="2 * n_jobs",
        )(delayed(make)(group, device, source) for group in groups)


@contextmanager
def _backend(dask: str | None) -> Iterator[None]:
    """Processes of this machine, or the workers of a Dask cluster."""
    if dask is None:
        yield
        return
    from distributed import Client
    from joblib import parallel_config

    try:
        client = Client(dask, timeout="10s")
    except (OSError, ValueError) as error:
        raise OSError(
            "dask must be the address of a scheduler that runs, such as "
            f"tcp://127.0.0.1:8786; {dask} does not answer ({error})"
        ) from None
    with client, parallel_config("dask", client=client):
        yield


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Args:
        made: runs that this sweep has made.
        failed: messages of groups that could not be made.
        left: runs that it has still to make.
        seconds: since it began.
        remaining: seconds that the rest will take, about; None before the first.

    Chapter: 21
    """

    made: int
    failed: tuple[str, ...]
    left: int
    seconds: float
    remaining: float | None


def sweep(
    path: Path,
    settings: Sequence[Settings],
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    dask: str | None = None,
    device: str = "cpu",
    source: str = "",
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Row]:
    """Make the runs that a store does not have, and add each when it is done.

    Shapes: → the rows of the store

    Stopped at any time and started again, it makes what is missing: a finished run is
    neither lost nor made twice. Another process that adds to the same store is refused.

    Args:
        path: the store, made if it is not there.
        settings: of the runs.
        seeds: of each of them.
        jobs: processes on this machine; -1 is one for each core.
        dask: the address of a Dask scheduler, whose workers make the runs instead.
        device: where models are trained, as PyTorch names it.
        source: Python code that adds schemes, tasks or experiments, run by each worker.
        minutes: when to start no more runs; None is never.
        progress: called at the start and after each group.

    Raises:
        ValueError: as `read`. OSError: as `Store`, or the scheduler does not answer.
            ImportError: joblib is not installed, or Dask, where it is asked for.

    Chapter: 21
    """
    path, seeds = Path(path), [_checks.whole_number("seeds", s, least=0) for s in seeds]
    if minutes is not None:
        _checks.positive("minutes", minutes)
    check(settings)
    with Store(path).open() as store:
        groups = missing(
            store.rows, settings, seeds, group=GROUP if device == "cpu" else GPU_GROUP
        )
        start, left = time.monotonic(), sum(len(g.seeds) for g in groups)
        work, done, made = sum(g.work for g in groups), 0.0, 0
        failed: list[str] = []

        def wanted() -> Iterator[Group]:
            for group in groups:
                if minutes is not None and time.monotonic() - start > 60 * minutes:
                    return
                yield group

        def tell(seconds: float, remaining: float | None) -> None:
            if progress is not None:
                progress(Progress(made, tuple(failed), left, seconds, remaining))

        tell(0.0, None)
        for group, result in _made(wanted(), jobs, dask, device, source):
            if isinstance(result, str):
                failed.append(result)
            else:
                store.add(result)
                made += len(result)
            left -= len(group.seeds)
            done += group.work
            seconds = time.monotonic() - start
            tell(seconds, seconds * (work - done) / done)
        return store.rows
