"""The command that makes runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from examples.lab import TINY

from posenc_lib import lab
from posenc_lib.lab import extending
from posenc_lib.lab.__main__ import main

LENGTHS = lab.EXPERIMENTS["three-back"].lengths


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, threads = tmp_path / "runs.json", torch.get_num_threads()
    sizes = [
        "--steps",
        "2",
        "--batch",
        "2",
        "--length",
        "8",
        "--width",
        "8",
        "--sequences",
        "4",
    ]
    try:
        main(
            [
                "three-back",
                "--scheme",
                "nope",
                "--seeds",
                "3",
                "--out",
                str(path),
                *sizes,
            ]
        )
    finally:
        torch.set_num_threads(threads)
    stored = json.loads(path.read_text())
    assert [(r["scheme"], r["seed"]) for r in stored["runs"]] == [("nope", 3)]
    assert stored["settings"] == json.loads(
        json.dumps(vars(replace(TINY, lengths=LENGTHS, sequences=4)))
    )
    assert stored["versions"]["torch"] == torch.__version__
    with pytest.raises(SystemExit):
        main(["three-back", "--scheme", "typo", "--out", str(path)])
    assert "typo" in capsys.readouterr().err


def test_the_command_takes_flags_and_knows_who_makes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, threads = tmp_path / "runs.json", torch.get_num_threads()
    monkeypatch.setitem(extending.TUNING, "steps", 20)
    sizes = ["--steps", "2", "--batch", "2", "--width", "8", "--sequences", "4"]
    try:
        main(["rope-longer", "--no-masked", "--seeds", "3", "--out", str(path), *sizes])
    finally:
        torch.set_num_threads(threads)
    stored = json.loads(path.read_text())
    assert stored["settings"]["masked"] is False
    (made,) = stored["runs"]
    assert made["scheme"] == "rope"
    assert set(made["tuned"]) == set(extending.TUNED) < set(made["correct"])
