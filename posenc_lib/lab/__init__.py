"""A laboratory of length generalisation: tasks, tiny Transformers, thousands of runs.

`load()` reads the runs that come with the library, `select` and `accuracies` what one
asks of them. `posenc lab run` makes runs, on one core or on a cluster; `posenc lab
plan` says first how long that takes, and `posenc lab report` draws what came out.
`python -m posenc_lib.lab.costs --out FILE` measures what attention costs;
`measured("costs")` reads it.
"""

from posenc_lib.lab.experiments import EXPERIMENTS
from posenc_lib.lab.extending import METHODS
from posenc_lib.lab.measurements import measured
from posenc_lib.lab.model import Block, TinyTransformer
from posenc_lib.lab.runs import TUNING, evaluate, run, trained
from posenc_lib.lab.schemes import SCHEMES, scrambled
from posenc_lib.lab.settings import Settings, from_stored
from posenc_lib.lab.store import Row, accuracies, load, select
from posenc_lib.lab.summary import dots, median_interval, summaries
from posenc_lib.lab.sweep import sweep
from posenc_lib.lab.tasks import (
    IGNORE,
    TASKS,
    Task,
    best_without_order,
    common_token,
    induction,
    k_back,
    last_mark,
    reversed_addition,
    sum_with_first,
    text,
)
from posenc_lib.lab.train import (
    ADAM,
    RECIPES,
    SGD,
    Recipe,
    accuracy,
    correct_by_position,
    train,
)

__all__ = [
    "ADAM",
    "EXPERIMENTS",
    "IGNORE",
    "METHODS",
    "RECIPES",
    "SCHEMES",
    "SGD",
    "TASKS",
    "TUNING",
    "Block",
    "Recipe",
    "Row",
    "Settings",
    "Task",
    "TinyTransformer",
    "accuracies",
    "accuracy",
    "best_without_order",
    "common_token",
    "correct_by_position",
    "dots",
    "evaluate",
    "from_stored",
    "induction",
    "k_back",
    "last_mark",
    "load",
    "measured",
    "median_interval",
    "reversed_addition",
    "run",
    "scrambled",
    "select",
    "sum_with_first",
    "summaries",
    "sweep",
    "text",
    "train",
    "trained",
]
