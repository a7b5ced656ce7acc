"""The harness of `make bench`: it measures rightly, and a stop loses nothing."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks import __main__ as bench
from benchmarks import measure, peers, rope
from benchmarks.targets import reached
from posenc_lib.lab.measurements import write

CPU = torch.device("cpu")


def test_ratios_are_taken_within_a_round() -> None:
    found = measure.interleaved(
        {"one": partial(_work, 0.004), "two": partial(_work, 0.008)},
        seconds=0,
        device=CPU,
        least=5,
    )
    assert found["one"]["ratio"] == 1
    assert found["one"]["quartiles"] == [1, 1]
    assert found["two"]["rounds"] == 5
    assert 1.5 < found["two"]["ratio"] < 2.5


def test_more_rounds_for_what_is_quick() -> None:
    cases = {
        "first": partial(_work, 0.002),
        "quick": partial(_work, 0.004),
        "slow": partial(_work, 0.06),
    }
    rounds = {
        name: row["rounds"]
        for name, row in measure.interleaved(cases, seconds=0.6, device=CPU).items()
    }
    assert rounds["slow"] == 3 < 10 < rounds["first"] == rounds["quick"]


def _work(seconds: float) -> None:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    end = clock() + seconds
    while clock() < end:
        pass


def test_peak_memory_counts_results_and_what_is_freed_again() -> None:
    x = torch.ones(2**18)
    assert measure.peak_memory(x.clone, CPU) == x.nbytes
    assert measure.peak_memory(lambda: (x * 2).sin().cos(), CPU) == 2 * x.nbytes
    assert measure.peak_memory(lambda: x.mul_(1), CPU) < 100


def test_a_target_is_met_on_its_side_of_the_limit() -> None:
    where = {"what": "forward", "shape": "long", "dtype": "float32", "threads": 1}
    times = {"clone": 2.0, "ours interleaved": 2.3, "ours half": 2.0, peers.LLAMA: 5.0}
    rows = [
        {
            **where,
            "case": case,
            "ratio": t,
            "memory": 1.0,
            "layout": "half" if case == peers.LLAMA else None,
        }
        for case, t in times.items()
    ]
    found = {
        target["target"]: target
        for target in reached([*rows, {"what": "table", "failed": "stopped"}])
    }
    over_clone = found["ours interleaved over clone, float32, threads: 1"]
    assert (over_clone["reached"], over_clone["met"]) == (1.15, False)
    lead = found[f"{peers.LLAMA} over ours half, at least"]
    assert (lead["reached"], lead["limit"], lead["met"]) == (2.5, 3.0, False)
    assert found[
        "fastest peer over ours, at least: half, forward, long, float32, threads: 1"
    ]["met"]


def test_a_step_of_all_layers_is_compared_with_llamas() -> None:
    rows = list(rope.decode(CPU, 0, times=rope.LAYERS))
    assert all(row["milliseconds"] > 0 for row in rows)
    step, whole = "ours half, 32 layers with one table", {"ratio": 2.0}
    for dtype in ("float32", "bfloat16"):
        here = [row for row in rows if row["dtype"] == dtype]
        together, layers = (
            next(row["milliseconds"] for row in here if row["case"] == case)
            for case in ("ours half, q and k together", step)
        )
        assert 8 < layers / together < 128  # of one call each
        llama = {"case": f"{peers.LLAMA}, 32 layers with one table", **whole}
        found = reached(
            [
                {"what": "one token", "dtype": dtype, **row}
                for row in ({"case": step, "ratio": 1.5}, llama)
            ]
        )
        assert found == [
            {
                "target": f"one token, half, {dtype}, 32 layers with one table, "
                "over Llama's",
                "reached": 0.75,
                "limit": 0.8,
                "met": True,
            }
        ]


def test_a_group_that_fails_keeps_its_rows_and_says_why(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    row = '{"what": "accuracy", "case": "ours", "table": 1, "score": 1}'
    stand_in.write_text(
        f"#!/bin/sh\necho '{row}'\necho 'RuntimeError: no memory' >&2\nexit 1\n"
    )
    stand_in.chmod(0o755)
    rows = bench._rows("accuracy", 1, CPU, str(stand_in))
    assert rows == [
        json.loads(row),
        {"what": "accuracy", "threads": 1, "failed": "RuntimeError: no memory"},
    ]
    write(
        tmp_path / "out.json",
        {"settings": {}, "versions": {}, "targets": [], "runs": rows},
    )
    assert json.loads((tmp_path / "out.json").read_text())["runs"] == rows


def test_peers_that_are_not_there_are_named() -> None:
    found = measure.versions()
    assert set(measure.PACKAGES) < set(found)
    if not list(peers.rotations((1, 1, 4, 8), torch.float32, CPU)):
        assert found["transformers"] == "absent"


def test_accuracy_of_the_library() -> None:
    (ours, *_) = rope.accuracy(CPU, 0)
    assert ours["table"] < 1e-7
    assert ours["score"] < 2e-6
