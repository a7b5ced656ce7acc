"""A laboratory: tasks that need order, a Transformer small enough to train in seconds, and stored longer runs.

`python -m posenc_lib.lab three-back --out FILE` makes the runs that chapters read; `load("three_back")` reads them.
`python -m posenc_lib.lab.costs --out FILE` measures what attention costs; `load("costs")` reads it.
"""

from posenc_lib.lab.extending import TUNING, longer, remedies
from posenc_lib.lab.model import Block, TinyTransformer
from posenc_lib.lab.runs import EXPERIMENTS, SCHEMES, Settings, examine, load, prepare, run, scrambled, sweep
from posenc_lib.lab.tasks import IGNORE, Task, best_without_order, common_token, k_back
from posenc_lib.lab.train import accuracy, right_by_position, train

__all__ = [
    "EXPERIMENTS",
    "IGNORE",
    "SCHEMES",
    "TUNING",
    "Block",
    "Settings",
    "Task",
    "TinyTransformer",
    "accuracy",
    "best_without_order",
    "common_token",
    "examine",
    "k_back",
    "load",
    "longer",
    "prepare",
    "remedies",
    "right_by_position",
    "run",
    "scrambled",
    "sweep",
    "train",
]
