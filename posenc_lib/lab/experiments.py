"""The experiments: which runs the stored sweep has, by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from posenc_lib.lab.runs import AS_TRAINED, Settings
from posenc_lib.lab.train import RECIPES

SEEDS = tuple(range(20))

# The schemes of the sweep. ALiBi has four heads in all tasks: its slopes are fixed, and
# with one head it would have one slope, 1/256.
SWEPT = (
    "nope",
    "sinusoid",
    "learned",
    "shaw",
    "xl",
    "bias",
    "bias-128",
    "alibi",
    "kerple",
    "fire",
    "cope",
    "rope",
    "rope-100",
)
CAUSAL_ONLY = ("cope", "fire")  # what they say of later keys means nothing

# One layer and one head where one look-up is enough, as in the chapters; two layers of
# four heads where an answer takes two steps.
TWO_STEPS: dict[str, Any] = {"layers": 2, "heads": 4}


def _task(task: str, length: int = 32, **changed: Any) -> Settings:
    """A task of the sweep, without its scheme and recipe."""
    return replace(
        Settings(
            task,
            "nope",
            length=length,
            lengths=(length, 2 * length, 4 * length, 8 * length),
            sequences=64,
            batch=32,
            masked=True,
            tests=(AS_TRAINED, "window 1", "log n"),
            dtype="float32",
            block=length,
        ),
        **changed,
    )


CAUSAL = (
    _task("three-back"),
    _task("forty-back", 64),
    _task("last-mark"),
    _task("induction", **TWO_STEPS, steps=600),
    _task("sum-with-first", **TWO_STEPS),
    replace(
        _task("reversed-addition", 14, **TWO_STEPS, steps=600, batch=64),
        lengths=(14, 26, 50, 98),  # 4, 8, 16 and 32 digits
    ),
)
NEAR, FAR = CAUSAL[0], CAUSAL[1]
DIGITS = CAUSAL[-1]


def _each(
    tasks: tuple[Settings, ...], names: tuple[str, ...], **changed: Any
) -> tuple[Settings, ...]:
    """Settings of each task, scheme and recipe."""
    return tuple(
        replace(
            task,
            scheme=name,
            recipe=recipe,
            heads=4 if name == "alibi" else task.heads,
            **changed,
        )
        for task, name, recipe in product(tasks, names, RECIPES.values())
    )


def _encoder(task: Settings) -> Settings:
    """The same task for a model that sees all tokens; log n counts a causal one's."""
    return replace(task, masked=False, tests=(AS_TRAINED, "window 1"))


EXPERIMENTS: dict[str, tuple[Settings, ...]] = {
    "causal": _each(CAUSAL, SWEPT),
    "encoder": _each(
        tuple(map(_encoder, (NEAR, FAR, _task("common-token")))),
        tuple(name for name in SWEPT if name not in CAUSAL_ONLY),
    ),
    "wide": _each(
        (NEAR, CAUSAL[4]), ("sinusoid", "bias", "bias-128", "rope"), width=64
    ),
    "randomised": _each(
        (NEAR, FAR),
        ("sinusoid", "learned", "bias-128", "alibi", "kerple", "rope"),
        positions="randomised",
        tests=(AS_TRAINED,),
    )
    + _each(
        (NEAR, FAR),
        ("sinusoid", "alibi", "kerple", "rope"),
        positions="randomised reals",
        tests=(AS_TRAINED,),
    ),
    "coupled": _each(
        (DIGITS,),
        ("sinusoid", "learned", "bias-128", "rope"),
        positions="coupled",
        tests=(AS_TRAINED,),
    ),
    "text": _each(
        (_task("text", **TWO_STEPS, steps=600),),
        ("nope", "sinusoid", "learned", "bias", "bias-128", "alibi", "kerple", "rope"),
    ),
}

EXPERIMENTS_IN_WORDS = {
    "causal": "six tasks, thirteen schemes, two recipes; window and temperature tested",
    "encoder": "three tasks for models that see all tokens",
    "wide": "a near and a far task at width 64",
    "randomised": "positions drawn at random from a longer range, integers and reals",
    "coupled": "reversed addition, with one position for each place value",
    "text": "the next character of Python's own reference: perplexity",
}
