"""Many runs: resumed, killed, shared, on two processes and on a Dask cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples.lab import outcome, own, tiny

from posenc_lib import lab
from posenc_lib.lab.store import read
from posenc_lib.lab.sweep import GROUP, Progress, extend, missing

SETTINGS = [
    tiny(scheme=name, recipe=recipe)
    for name in ("nope", "t5")
    for recipe in lab.RECIPES.values()
]


@contextmanager
def extended(source: str) -> Iterator[tuple[lab.Settings, ...]]:
    """A reader's schemes, tasks and experiment, for a while."""
    tables = (lab.SCHEMES, lab.TASKS, lab.EXPERIMENTS)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    try:
        extend(source)
        yield lab.EXPERIMENTS["own"]
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
        for name in set(sys.modules) - modules:
            if name.startswith("posenc_lab_"):
                del sys.modules[name]


def outcomes(rows: list[lab.Row]) -> list[Any]:
    """What the rows say, in an order of their own."""
    return sorted((outcome(row) for row in rows), key=json.dumps)


def names(rows: list[lab.Row]) -> Counter[str]:
    return Counter(json.dumps([row["settings"], row["seed"]]) for row in rows)


def test_a_sweep_makes_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    seen: list[Progress] = []
    first = lab.sweep(path, SETTINGS[:2], range(3), progress=seen.append)
    assert [(p.made, p.left) for p in seen] == [(0, 6), (3, 3), (6, 0)]
    assert seen[0].remaining is None
    assert seen[1].remaining > 0 == seen[2].remaining
    text = path.read_bytes()
    assert lab.sweep(path, SETTINGS[:2], range(3)) == first
    assert path.read_bytes() == text
    whole = lab.sweep(path, SETTINGS, range(4))
    assert path.read_bytes().startswith(text)
    assert whole == read(path)
    at_once = lab.sweep(tmp_path / "at once.jsonl", SETTINGS, range(4))
    assert outcomes(whole) == outcomes(at_once)
    assert set(names(whole).values()) == {1}


def test_groups_are_of_up_to_ten_seeds() -> None:
    groups = missing([], SETTINGS, [*range(23), 3])
    assert [len(group.seeds) for group in groups] == [GROUP, GROUP, 3] * 4
    assert {group.settings for group in groups} == set(SETTINGS)
    assert missing([], [SETTINGS[0]] * 3, [1]) == missing([], SETTINGS[:1], [1])


def test_what_fails_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: lab.Settings, generator: Any) -> Any:
        raise RuntimeError("no such table")

    monkeypatch.setitem(lab.SCHEMES, "broken", broken)
    seen: list[Progress] = []
    rows = lab.sweep(
        tmp_path / "runs.jsonl",
        [tiny(scheme="broken"), *SETTINGS[:1]],
        range(2),
        progress=seen.append,
    )
    assert len(rows) == 2
    assert seen[-1].failed == ("three-back, broken: RuntimeError: no such table",)
    assert (seen[-1].made, seen[-1].left) == (2, 0)


def test_no_run_is_started_after_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(
        sys.modules[lab.sweep.__module__],
        "time",
        SimpleNamespace(monotonic=lambda: next(clock)),
    )
    seen: list[Progress] = []
    path = tmp_path / "runs.jsonl"
    lab.sweep(path, SETTINGS, [0], minutes=1, progress=seen.append)
    assert 0 < seen[-1].made < 4
    assert seen[-1].made + seen[-1].left == 4
    assert len(lab.sweep(path, SETTINGS, [0])) == 4


def test_nothing_is_trained_before_all_lengths_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with pytest.raises(ValueError, match="length must be an integer ≥ 4, got 3"):
        lab.sweep(path, [*SETTINGS, tiny(lengths=(8, 3))], [0])
    assert not path.exists()


# ---- more than one process


def command(tmp_path: Path, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "posenc_lib.lab", "run", "own", "--with", "own.py"),
        *("--out", "runs.jsonl", "--seeds", "12", *arguments),
    ]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_two_processes_killed_in_the_middle_go_on(tmp_path: Path) -> None:
    source, path = own(steps=60), tmp_path / "runs.jsonl"
    (tmp_path / "own.py").write_text(source)
    line = command(tmp_path, "--jobs", "2")
    running = subprocess.Popen(
        line, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: path.exists() and path.stat().st_size > 0)
    os.killpg(running.pid, signal.SIGKILL)  # the workers, too
    running.wait()
    half = read(path)
    assert 0 < len(half) < 48
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=True)
    whole = read(path)
    assert whole[: len(half)] == half
    assert len(whole) == 48
    assert set(names(whole).values()) == {1}
    with extended(source) as settings:
        alone = lab.sweep(tmp_path / "alone.jsonl", settings, range(12), source=source)
    assert outcomes(whole) == outcomes(alone)


def test_a_second_command_on_the_same_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(own(steps=1000))
    line, path = command(tmp_path, "--jobs", "1"), tmp_path / "runs.jsonl"
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.DEVNULL) as running:
        try:
            wait_until(path.exists)
            second = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        finally:
            running.kill()
    assert second.returncode == 2
    assert second.stderr == (
        "error: runs.jsonl is being added to by another process: wait for it, or name "
        "another file\n"
    )


def test_a_cluster_of_two_workers_gives_the_rows_of_one_machine(
    tmp_path: Path,
) -> None:
    """A scheduler and two worker processes, as a cluster has them."""
    source = own()
    (tmp_path / "own.py").write_text(source)
    options: dict[str, Any] = {"cwd": tmp_path, "stderr": subprocess.DEVNULL}
    file = tmp_path / "scheduler.json"
    at = ("--scheduler-file", str(file))
    started = [
        subprocess.Popen(
            dask_command("scheduler", "--port", "0", "--host", "127.0.0.1", *at),
            **options,
        )
    ]
    try:
        wait_until(file.exists)
        for _ in range(2):
            started.append(
                subprocess.Popen(
                    dask_command("worker", "--nthreads", "4", *at), **options
                )
            )
        address = json.loads(file.read_text())["address"]
        done = subprocess.run(
            command(tmp_path, "--dask", address),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert done.stdout == "runs.jsonl: 48 new runs, 48 in all\n", done.stderr
    with extended(source) as settings:
        alone = lab.sweep(tmp_path / "alone.jsonl", settings, range(12), source=source)
    assert outcomes(read(tmp_path / "runs.jsonl")) == outcomes(alone)


def dask_command(kind: str, *options: str) -> list[str]:
    """`dask scheduler` or `dask worker`, of this environment."""
    code = f"from distributed.cli.dask_{kind} import main; main()"
    return [sys.executable, "-c", code, "--no-dashboard", *options]


def test_a_scheduler_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(own())
    done = subprocess.run(
        command(tmp_path, "--dask", "tcp://127.0.0.1:9"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: dask must be the address of a scheduler")
    assert "Traceback" not in done.stderr


def wait_until(true: Any, seconds: float = 60) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
