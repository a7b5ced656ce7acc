"""The experiments: which runs the stored sweep has, by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from posenc_lib.lab.extending import METHODS
from posenc_lib.lab.settings import AS_TRAINED, Settings
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
    "t5-small",
    "t5",
    "alibi",
    "kerple",
    "fire",
    "cope",
    "rope",
    "rope-100",
)
CAUSAL_ONLY = ("cope", "fire")  # what they say of later keys means nothing
REMEDIES = (AS_TRAINED, "window 1", "log n")


def _task(task: str, length: int = 32, **changed: Any) -> Settings:
    """A task of the sweep, without its scheme and recipe."""
    plain = Settings(
        task,
        "nope",
        length=length,
        lengths=(length, 2 * length, 4 * length, 8 * length),
        sequences=64,
        batch=32,
        masked=True,
        dtype="float32",
        block=length,
    )
    return replace(plain, **changed)


# One layer where one look-up is enough, as in the chapters; two where an answer takes
# two steps. A sum needs several tokens at once, and so several heads.
NEAR = _task("three-back", tests=REMEDIES)
FORTY = _task("forty-back", 64)
INDUCTION = _task("induction", layers=2, steps=600, tests=REMEDIES)
FAR = _task("sum-with-first", layers=2, tests=REMEDIES)
DIGITS = _task(
    "reversed-addition",
    17,
    lengths=(17, 32, 62, 122),  # 5, 10, 20 and 40 binary digits
    layers=2,
    heads=4,
    steps=600,
)
CAUSAL = (NEAR, FORTY, _task("last-mark"), INDUCTION, FAR, DIGITS)
TEXT = _task("text", layers=2, heads=4, steps=600)


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


def _encoder(task: str, length: int = 32) -> Settings:
    """A task for a model that sees all tokens."""
    return _task(task, length, masked=False, tests=REMEDIES[:2])


# The runs that chapters 06 to 12 read: one layer, float64, answers by position.
CLOSE = (32, 36, 40, 48, 64, 80, 96, 128, 192, 256)
_MASKED = Settings("three-back", "rope", masked=True)
_FEW = replace(_MASKED, lengths=CLOSE, sequences=64)
CHAPTERS = (
    *(
        Settings("three-back", name, lengths=CLOSE)
        for name in ("nope", "sinusoid", "learned", "scrambled", "t5-small", "rope")
    ),
    *(
        Settings("common-token", name)
        for name in ("nope", "sinusoid", "learned", "scrambled")
    ),
    *(
        replace(settings, scheme=name)
        for settings in (
            replace(_MASKED, lengths=(32, 48, 64, 96, 128, 192, 256)),
            replace(_MASKED, width=64),
        )
        for name in ("sinusoid", "t5-small", "rope")
    ),
    Settings("three-back", "rope", width=64),
    *(
        Settings("three-back", name, steps=300, batch=32, sequences=64)
        for name in ("sinusoid", "t5-small", "t5")
    ),
    replace(_FEW, scheme="rope-100"),
    replace(_FEW, width=64, scheme="rope-half"),
    replace(_FEW, width=64, scheme="rope-half-100"),
    replace(_FEW, width=64, heads=2),
    *(
        replace(
            _MASKED,
            width=width,
            sequences=64,
            block=256,
            tests=tuple(METHODS),
            tuned=(AS_TRAINED, "PI 2", "PI 4", "NTK 4", "step 4"),
        )
        for width in (32, 64)
    ),
)

EXPERIMENTS: dict[str, tuple[Settings, ...]] = {
    "chapters": CHAPTERS,
    "causal": _each(CAUSAL, SWEPT),
    "encoder": _each(
        (_encoder("three-back"),),
        tuple(name for name in SWEPT if name not in CAUSAL_ONLY),
    )
    + _each(
        (_encoder("forty-back", 64),),
        ("nope", "sinusoid", "learned", "shaw", "xl", "t5-small", "t5", "rope"),
    )
    + _each((_encoder("common-token"),), ("nope", "sinusoid", "learned", "rope")),
    "wide": _each((NEAR, FAR), ("sinusoid", "t5-small", "t5", "rope"), width=64),
    "randomised": _each(
        (NEAR, FAR),
        ("sinusoid", "learned", "t5", "alibi", "kerple", "rope"),
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
        (DIGITS,), ("sinusoid", "learned", "t5", "rope"), positions="coupled"
    ),
    "text": _each((TEXT,), ("nope", "sinusoid", "learned", "t5", "alibi", "rope")),
}

EXPERIMENTS_IN_WORDS = {
    "chapters": "the runs of chapters 06 to 12, in float64; they have five seeds",
    "causal": "six tasks, thirteen schemes, two recipes; window and temperature tested",
    "encoder": "three tasks for models that see all tokens",
    "wide": "a near and a far task at width 64",
    "randomised": "positions drawn at random from a longer range, integers and reals",
    "coupled": "reversed addition, with one position for each place value",
    "text": "the next character of Python's own reference: perplexity",
}
