"""A laboratory: tasks that need order, a tiny Transformer, and stored longer runs.

The Transformer trains in seconds. `posenc lab three-back --out FILE` makes the runs
that chapters read; `load("three_back")` reads them.
`python -m posenc_lib.lab.costs --out FILE` measures what attention costs;
`load("costs")` reads it.
"""

from posenc_lib.lab.extending import TUNING, extension_methods, extension_run
from posenc_lib.lab.model import Block, TinyTransformer
from posenc_lib.lab.runs import (
    EXPERIMENTS,
    SCHEMES,
    Settings,
    accuracies,
    evaluate,
    load,
    run,
    scrambled,
    sweep,
    train_run,
)
from posenc_lib.lab.tasks import IGNORE, Task, best_without_order, common_token, k_back
from posenc_lib.lab.train import accuracy, correct_by_position, train

__all__ = [
    "EXPERIMENTS",
    "IGNORE",
    "SCHEMES",
    "TUNING",
    "Block",
    "Settings",
    "Task",
    "TinyTransformer",
    "accuracies",
    "accuracy",
    "best_without_order",
    "common_token",
    "correct_by_position",
    "evaluate",
    "extension_methods",
    "extension_run",
    "k_back",
    "load",
    "run",
    "scrambled",
    "sweep",
    "train",
    "train_run",
]
