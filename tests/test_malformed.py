"""What each argument of each public callable must refuse, with an error naming it."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from cases import ELSEWHERE
from helpers import HEADS, WIDTH, normal, public
from registry import every_call
from torch import Tensor

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    key_padding_mask,
    same_segment,
    sliding_window,
)
from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket, t5_bucket_edges
from posenc_lib.embedding import LearnedEmbedding, sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import (
    cos_sin,
    inverse_frequencies,
    octave_frequencies,
    tensor2tensor_frequencies,
    wavelengths,
)
from posenc_lib.positions import (
    after_mask,
    arange,
    from_mask,
    packed,
    relative,
    segment_ids,
)
from posenc_lib.rotary import (
    RoPE,
    Rotation,
    convert_layout,
    convert_projection,
    unscaled,
)
from posenc_lib.scheme import PositionScheme

ROPE = RoPE(inverse_frequencies(WIDTH))
T5 = T5Bias(HEADS, bidirectional=False, std=1.0)


NAN, INF = math.nan, math.inf
TYPES_OF_INT: list[Any] = [True, 2.0, "4", None]
SIZE = [(value, TypeError) for value in TYPES_OF_INT] + [
    (0, ValueError),
    (-2, ValueError),
]
EVEN = [*SIZE, (3, ValueError)]
FROM_FOUR = [*SIZE, (3, ValueError)]
FROM_ZERO = [*SIZE[:4], (-1, ValueError)]
NUMBER = [(value, TypeError) for value in (True, "1", None, [1.0])] + [
    (value, ValueError) for value in (0, -1.0, NAN, INF, -INF)
]
WORD = [("Half", ValueError), ("neox", ValueError), (None, ValueError), (1, ValueError)]
DTYPE = [
    (torch.int64, TypeError),
    (torch.complex64, TypeError),
    ("float32", TypeError),
    (float, TypeError),
]
NO_TENSOR: list[Any] = [([0.0, 1.0], TypeError), (None, TypeError), (1.0, TypeError)]
POSITIONS = [
    *NO_TENSOR,
    (torch.ones(4, dtype=torch.bool), TypeError),
    (torch.ones(4, dtype=torch.complex64), TypeError),
    (torch.ones(4, dtype=torch.bfloat16), TypeError),
    (torch.ones(4, dtype=torch.float16), TypeError),
    (torch.zeros(0, dtype=torch.int64), ValueError),
    (torch.tensor([0.0, NAN, 1.0, 2.0]), ValueError),
    (torch.tensor([0.0, 1.0, 2.0, INF], dtype=torch.float64), ValueError),
]
TIMES = [*POSITIONS, (torch.tensor(3), ValueError)]  # of any shape
OF_ATTENTION = [*TIMES, (torch.zeros(1, 1, 4, dtype=torch.int64), ValueError)]
OF_FOUR_TOKENS = [
    *OF_ATTENTION,
    (arange(5), ValueError),
    (torch.zeros(3, 4, dtype=torch.int64), ValueError),
]
INDICES = [*TIMES, (torch.arange(4.0), TypeError)]
MASK = [
    *NO_TENSOR,
    (torch.ones(2, 4, dtype=torch.complex64), TypeError),
    (torch.ones(4), ValueError),
    (torch.ones(1, 2, 4), ValueError),
    (torch.ones(2, 0), ValueError),
    (torch.tensor([[0, 1, 2]]), ValueError),
    (torch.tensor([[0.0, NAN]]), ValueError),
]
LENGTHS_OF_DOCUMENTS = [
    (None, TypeError),
    (5, TypeError),
    (torch.tensor([2, 3]), TypeError),
    ([2.0], TypeError),
    ([2, True], TypeError),
    ("ab", TypeError),
    ([], ValueError),
    ([3, 0], ValueError),
    ([-1], ValueError),
]
VECTOR = [
    *NO_TENSOR,
    (torch.arange(4), TypeError),
    (torch.ones(2, 2, dtype=torch.float64), ValueError),
    (torch.ones((), dtype=torch.float64), ValueError),
    (torch.ones(0, dtype=torch.float64), ValueError),
    (torch.tensor([1.0, NAN, 0.1, 0.01], dtype=torch.float64), ValueError),
]
FREQUENCIES = [*VECTOR, (torch.ones(4, dtype=torch.bfloat16), TypeError)]
SLOPES = [*VECTOR, (torch.tensor([0.5, -0.5]), ValueError)]
CONTENT = [
    *NO_TENSOR,
    (torch.ones(1, HEADS, 4, WIDTH, dtype=torch.int64), TypeError),
    (torch.ones(1, HEADS, 4, WIDTH, dtype=torch.complex64), TypeError),
]
HEADS_OF_TOKENS = [*CONTENT, (torch.ones(4, WIDTH), ValueError)]
FLAG = [("yes", TypeError), (1, TypeError), (None, TypeError)]
GENERATOR = [(0, TypeError)]
CALLABLE = [(1, TypeError), ("RoPE", TypeError)]
SCHEME = [(None, TypeError), ("RoPE", TypeError), (ROPE, TypeError)]

FOUR = normal(1, HEADS, 4, WIDTH, dtype=torch.float32)
QKV = {"q": (FOUR, HEADS_OF_TOKENS), "k": (FOUR, HEADS_OF_TOKENS)}
QK_AT = {
    "q_positions": (arange(4), OF_FOUR_TOKENS),
    "k_positions": (arange(4), OF_FOUR_TOKENS),
}
MASK_OF_ATTENTION = (
    torch.ones(4, 4, dtype=torch.bool),
    [
        ([[True]], TypeError),
        (torch.ones(4, 4), TypeError),
        (torch.ones(4, 4, dtype=torch.int64), TypeError),
        (torch.ones(4, 5, dtype=torch.bool), ValueError),
        (torch.ones(1, 1, 1, 4, 4, dtype=torch.bool), ValueError),
    ],
)
ATTENTION = QKV | QK_AT | {"scheme": (schemes.NOPE, SCHEME), "mask": MASK_OF_ATTENTION}
T5_SIZES = {
    "num_buckets": (32, EVEN),
    "max_distance": (128, [*SIZE, (16, ValueError)]),
}
Q_AND_K = {
    "q_positions": (arange(4), OF_ATTENTION),
    "k_positions": (arange(4), OF_ATTENTION),
}
TABLES = [
    *CONTENT[:2],
    (torch.ones(4, dtype=torch.int64), TypeError),
    (torch.ones(4), ValueError),
    (torch.ones(4, 3), ValueError),
]

# For each callable: each argument with a valid value, and the values that it must
# refuse.
ARGUMENTS: dict[
    str,
    tuple[Callable[..., Any], dict[str, tuple[Any, list[tuple[Any, type[Exception]]]]]],
] = {
    "positions.arange": (arange, {"length": (4, SIZE), "offset": (0, FROM_ZERO)}),
    "positions.from_mask": (
        from_mask,
        {
            "mask": (torch.ones(2, 4), MASK),
            "first": (0, FROM_ZERO),
            "padding": (0, FROM_ZERO),
        },
    ),
    "positions.after_mask": (
        after_mask,
        {"mask": (torch.ones(2, 4), MASK), "steps": (1, SIZE), "first": (0, FROM_ZERO)},
    ),
    "positions.packed": (packed, {"lengths": ([2, 3], LENGTHS_OF_DOCUMENTS)}),
    "positions.segment_ids": (segment_ids, {"lengths": ([2, 3], LENGTHS_OF_DOCUMENTS)}),
    "positions.relative": (relative, Q_AND_K),
    "frequencies.inverse_frequencies": (
        inverse_frequencies,
        {"dim": (8, EVEN), "base": (1e4, NUMBER)},
    ),
    "frequencies.tensor2tensor_frequencies": (
        tensor2tensor_frequencies,
        {"dim": (8, FROM_FOUR), "base": (1e4, NUMBER)},
    ),
    "frequencies.octave_frequencies": (octave_frequencies, {"count": (4, SIZE)}),
    "frequencies.wavelengths": (
        wavelengths,
        {
            "frequencies": (
                torch.ones(4),
                [
                    *NO_TENSOR,
                    (torch.arange(4), TypeError),
                    (torch.tensor(1.0), ValueError),
                ],
            )
        },
    ),
    "frequencies.cos_sin": (
        cos_sin,
        {
            "positions": (arange(4), TIMES),
            "frequencies": (inverse_frequencies(8), FREQUENCIES),
            "dtype": (torch.float32, DTYPE),
        },
    ),
    "embedding.sinusoidal": (
        sinusoidal,
        {
            "positions": (arange(4), TIMES),
            "dim": (8, SIZE),
            "base": (1e4, NUMBER),
            "layout": ("interleaved", WORD),
            "dtype": (torch.float32, DTYPE),
        },
    ),
    "embedding.sinusoidal_tensor2tensor": (
        sinusoidal_tensor2tensor,
        {
            "positions": (arange(4), TIMES),
            "dim": (8, FROM_FOUR),
            "base": (1e4, NUMBER),
            "dtype": (torch.float32, DTYPE),
        },
    ),
    "embedding.LearnedEmbedding": (
        LearnedEmbedding,
        {
            "num_positions": (8, SIZE),
            "dim": (4, SIZE),
            "std": (0.02, NUMBER),
            "generator": (None, GENERATOR),
        },
    ),
    "embedding.LearnedEmbedding, called": (
        LearnedEmbedding(8, 4).forward,
        {
            "positions": (
                arange(4),
                [*INDICES, (arange(9), ValueError), (torch.tensor([-1]), ValueError)],
            )
        },
    ),
    "rotary.RoPE": (
        RoPE,
        {
            "frequencies": (inverse_frequencies(8), FREQUENCIES),
            "layout": ("half", WORD),
            "attention_factor": (1.0, NUMBER),
        },
    ),
    "rotary.RoPE, called": (
        ROPE.__call__,
        {"positions": (arange(4), OF_ATTENTION), "dtype": (torch.float32, DTYPE)},
    ),
    "rotary.RoPE, transform": (
        ROPE.transform,
        {
            name: (
                FOUR,
                [
                    *CONTENT,
                    (torch.ones(4), ValueError),
                    (torch.ones(5, WIDTH), ValueError),
                ],
            )
            for name in "qk"
        }
        | QK_AT,
    ),
    "rotary.Rotation": (
        Rotation,
        {
            "cos": (torch.ones(4, 2), TABLES),
            "sin": (torch.zeros(4, 2), TABLES),
            "layout": ("half", WORD),
            "scale": (1.0, NUMBER),
        },
    ),
    "rotary.Rotation, called": (
        ROPE(arange(4)).__call__,
        {
            "x": (
                FOUR,
                [
                    *CONTENT,
                    (torch.ones(4), ValueError),
                    (torch.ones(5, WIDTH), ValueError),
                    (torch.ones(4, WIDTH - 1), ValueError),
                ],
            ),
            "out": (None, [("x", TypeError), (torch.ones(3, WIDTH), ValueError)]),
        },
    ),
    "rotary.convert_layout": (
        convert_layout,
        {
            "x": (FOUR, [*NO_TENSOR, (torch.tensor(1.0), TypeError)]),
            "source": ("half", WORD),
            "target": ("half", WORD),
            "rotary_dim": (
                4,
                [*SIZE[:3], *SIZE[4:], (3, ValueError), (WIDTH + 2, ValueError)],
            ),
        },
    ),
    "rotary.convert_projection": (
        convert_projection,
        {
            "weight": (
                torch.ones(8, 3),
                [
                    *NO_TENSOR,
                    (torch.tensor(1.0), ValueError),
                    (torch.ones(7, 3), ValueError),
                ],
            ),
            "heads": (2, SIZE),
            "source": ("half", WORD),
            "target": ("half", WORD),
            "rotary_dim": (4, [*SIZE[:3], *SIZE[4:], (3, ValueError), (6, ValueError)]),
        },
    ),
    "bias.alibi_slopes": (alibi_slopes, {"heads": (4, SIZE)}),
    "bias.alibi": (
        alibi,
        Q_AND_K
        | {"slopes": (alibi_slopes(4), SLOPES), "dtype": (torch.float32, DTYPE)},
    ),
    "bias.t5_bucket_edges": (t5_bucket_edges, T5_SIZES),
    "bias.t5_bucket": (
        t5_bucket,
        {
            "relative_positions": (
                arange(4),
                [*POSITIONS, (torch.arange(4.0), TypeError)],
            ),
            "bidirectional": (False, FLAG),
        }
        | T5_SIZES,
    ),
    "bias.T5Bias": (
        T5Bias,
        {
            "heads": (4, SIZE),
            "bidirectional": (False, FLAG),
            "std": (1.0, NUMBER),
            "generator": (None, GENERATOR),
        }
        | T5_SIZES,
    ),
    "bias.T5Bias, called": (
        T5.forward,
        Q_AND_K,
    ),
    "attention.attention": (attention, ATTENTION | {"v": (FOUR, HEADS_OF_TOKENS)}),
    "attention.attention_weights": (attention_weights, ATTENTION),
    "attention.causal": (causal, Q_AND_K),
    "attention.sliding_window": (sliding_window, Q_AND_K | {"size": (3, SIZE)}),
    "attention.same_segment": (
        same_segment,
        {
            "q_segment_ids": (arange(4), OF_ATTENTION),
            "k_segment_ids": (arange(4), OF_ATTENTION),
        },
    ),
    "attention.key_padding_mask": (
        key_padding_mask,
        {"mask": (torch.ones(2, 4), MASK)},
    ),
    "scheme.PositionScheme": (
        PositionScheme,
        {
            "name": ("a", [("", ValueError), (None, ValueError), (3, ValueError)]),
            "scale": (1.0, [value for value in NUMBER if value[0] is not None]),
        }
        | {
            field: (None, CALLABLE)
            for field in ("embedding", "transform", "bias", "scores", "values", "mask")
        },
    ),
    "scheme.sinusoidal": (
        schemes.sinusoidal,
        {"dim": (8, SIZE), "base": (1e4, NUMBER), "layout": ("interleaved", WORD)},
    ),
    "scheme.learned": (
        schemes.learned,
        {"num_positions": (8, SIZE), "dim": (4, SIZE), "generator": (None, GENERATOR)},
    ),
    "scheme.rope": (
        schemes.rope,
        {
            "head_dim": (8, EVEN),
            "base": (1e4, NUMBER),
            "schedule": (unscaled, CALLABLE),
            "layout": ("half", WORD),
            "rotary_dim": (
                4,
                [*SIZE[:3], *SIZE[4:], (3, ValueError), (10, ValueError)],
            ),
        },
    ),
    "scheme.alibi": (schemes.alibi, {"heads": (4, SIZE)}),
    "scheme.t5": (
        schemes.t5,
        {
            "heads": (4, SIZE),
            "bidirectional": (False, FLAG),
            "std": (1.0, NUMBER),
            "generator": (None, GENERATOR),
        }
        | T5_SIZES,
    ),
}

REFUSED = [
    pytest.param(name, argument, value, error, id=f"{name}-{argument}-{i}")
    for name, (_, arguments) in ARGUMENTS.items()
    for argument, (_, refused) in arguments.items()
    for i, (value, error) in enumerate(refused)
]


@pytest.mark.parametrize(("name", "argument", "value", "error"), REFUSED)
def test_malformed_argument(
    name: str, argument: str, value: Any, error: type[Exception]
) -> None:
    call, arguments = ARGUMENTS[name]
    given = {key: valid for key, (valid, _) in arguments.items()}
    with pytest.raises(error, match=rf"(?<!\w){argument}(?!\w)"):
        call(**given | {argument: value})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_valid_arguments_are_taken(name: str) -> None:
    call, arguments = ARGUMENTS[name]
    call(**{key: valid for key, (valid, _) in arguments.items()})


TWO, THREE = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64)


def attend(
    q: Tensor = FOUR, k: Tensor = FOUR, v: Tensor = FOUR, **others: Any
) -> Tensor:
    return attention(
        q,
        k,
        v,
        **{"scheme": schemes.NOPE, "q_positions": arange(4), "k_positions": arange(4)}
        | others,
    )


MISMATCHES: dict[str, tuple[Callable[[], Any], str]] = {
    "two batches of positions": (
        lambda: relative(TWO, THREE),
        "q_positions and k_positions .* got 2 and 3",
    ),
    "causal of two batches": (lambda: causal(TWO, THREE), "same batch"),
    "alibi of two batches": (lambda: alibi(TWO, THREE, alibi_slopes(2)), "same batch"),
    "heads that do not divide": (
        lambda: attend(k=FOUR[:, :3], v=FOUR[:, :3]),
        "heads must divide",
    ),
    "more key heads than query heads": (
        lambda: attend(q=FOUR[:, :2]),
        "heads must divide",
    ),
    "no key heads": (lambda: attend(k=FOUR[:, :0], v=FOUR[:, :0]), "k"),
    "head dimensions of q and k": (lambda: attend(q=FOUR[..., :4]), "head dimension"),
    "batches of q and k": (lambda: attend(q=FOUR.expand(2, -1, -1, -1)), "batch"),
    "length of v": (lambda: attend(v=FOUR[:, :, :3]), "v must have k's .*length"),
    "heads of v": (lambda: attend(v=FOUR[:, :2]), "v must have k's .*heads"),
    "positions of another batch": (
        lambda: attend(q_positions=TWO),
        r"q_positions must have shape \(4,\)",
    ),
    "positions of keys for queries": (
        lambda: attend(q=FOUR[:, :, :2]),
        "q_positions must have shape",
    ),
    "batch of positions in a rotation": (
        lambda: ROPE(TWO)(normal(3, 1, 4, WIDTH)),
        "B = 2",
    ),
    "batch of positions without a batch": (
        lambda: ROPE(TWO)(normal(4, WIDTH)),
        "B = 2",
    ),
    "heads where the length should be": (
        lambda: ROPE(arange(4))(FOUR[:, :3].transpose(1, 2)),
        "axis −2",
    ),
    "tokens without positions": (
        lambda: attend(q=normal(1, HEADS, 5, WIDTH)),
        r"q_positions must have shape \(5,\)",
    ),
    "tables of two shapes": (
        lambda: Rotation(torch.ones(4, 2), torch.ones(4, 3)),
        "one shape",
    ),
    "product of two lengths": (
        lambda: ROPE(arange(4)) @ ROPE(arange(5)),
        "one layout and shape",
    ),
    "product of two layouts": (
        lambda: RoPE(ROPE.frequencies, "half")(arange(4)) @ ROPE(arange(4)),
        "one layout and shape",
    ),
    "an odd number of channels": (
        lambda: convert_layout(torch.ones(3), source="half", target="interleaved"),
        "even",
    ),
    "mask of the scheme": (
        lambda: attend(
            scheme=PositionScheme(
                "x", mask=lambda m, n: torch.ones(3, 3, dtype=torch.bool)
            )
        ),
        "mask must broadcast",
    ),
    "an odd head": (lambda: schemes.rope(7), "head_dim"),
    "bidirectional buckets": (
        lambda: t5_bucket(arange(4), bidirectional=True, num_buckets=6),
        "num_buckets .*got 6",
    ),
    "bidirectional table": (
        lambda: T5Bias(2, bidirectional=True, std=1.0, num_buckets=2),
        "num_buckets .*got 2",
    ),
    "rotary_dim of converted heads": (
        lambda: convert_projection(
            torch.ones(8, 3), 2, source="half", target="interleaved", rotary_dim=8
        ),
        "rotary_dim must be at most",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_arguments_that_do_not_fit_one_another(name: str) -> None:
    call, message = MISMATCHES[name]
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        call()


def test_other_types_than_wanted() -> None:
    with pytest.raises(TypeError, match="mask must be boolean"):
        attend(scheme=PositionScheme("x", mask=lambda m, n: torch.ones(4, 4)))
    with pytest.raises(TypeError, match="positions must be integers"):
        T5(torch.arange(4.0), arange(4))
    for other in (None, 1, FOUR):
        with pytest.raises(TypeError):
            ROPE(arange(4)) @ other


# ---- the groups: what an argument refuses follows from its type

EITHER: Any = (
    TypeError,
    ValueError,
)  # wrong in kind and in value: which is noticed first is of no account
WRONG_POSITIONS = [
    *NO_TENSOR,
    (torch.ones(4, dtype=torch.complex64), TypeError),
    (torch.tensor(3.5), EITHER),
]
WRONG_CONTENT = [
    *CONTENT[:3],
    (torch.ones(2, dtype=torch.complex64), TypeError),
    (torch.ones(()), ValueError),
]
WRONG_LIST: list[tuple[Any, type[Exception]]] = [
    (None, TypeError),
    (3, TypeError),
    (["a"], TypeError),
]
BY_TYPE: dict[str, list[tuple[Any, type[Exception]]]] = {
    "int": [(value, TypeError) for value in (True, 2.0, "4", None)]
    + [(-7, ValueError)],
    "float": [
        (True, TypeError),
        ("1", TypeError),
        ([1.0], TypeError),
        (NAN, ValueError),
        (INF, ValueError),
    ],
    "bool": FLAG,
    "str": WORD,
    "torch.Generator": GENERATOR,
    "torch.dtype": DTYPE,
    "Callable": [(1, TypeError), ("alibi", TypeError)],
    "RoPE": [(None, TypeError), (SCHEME, TypeError)],
    "PositionScheme": SCHEME,
    "PositionScheme | PreparedScheme": SCHEME,
    "PositionScheme | LayerSchemes": SCHEME,
    "Sequence[PositionScheme]": WRONG_LIST,
    "Sequence[Layer]": WRONG_LIST,
    "Sequence[int]": [
        (value, TypeError) for value in (None, 3, "23", (2, 2.0), (2, True))
    ]
    + [((), EITHER), ((2, -1), ValueError)],
    "Sequence[float]": [(None, TypeError), (3, TypeError), ([1.0, "2"], EITHER)],
    "Sequence[Block]": WRONG_LIST,
    "Sequence[int | Vision]": WRONG_LIST,
    "Sequence[Tensor]": WRONG_LIST,
    "tuple[Layer, ...]": WRONG_LIST,
    "Vision": [(None, TypeError), (3, TypeError)],
    "AudioVideo": [(None, TypeError), (3, TypeError)],
    "Schedule": [(None, TypeError), (3, TypeError)],
    "positions": WRONG_POSITIONS,
    "content": WRONG_CONTENT,
}


def one_of_some_strings(call: Callable[..., Any], argument: str) -> bool:
    """Whether an argument is a `Literal`, or one or None."""
    hints = get_type_hints(call.__init__ if inspect.isclass(call) else call)
    alternatives = (hints[argument], *get_args(hints[argument]))
    return any(get_origin(each) is Literal for each in alternatives)


def kind(call: Callable[..., Any], name: str) -> str | None:
    """The row of the table above for an argument, from its annotation."""
    annotation = str(inspect.signature(call).parameters[name].annotation)
    if one_of_some_strings(call, name):
        return "str"
    annotation = annotation.removesuffix(" | None")
    if annotation == "Tensor":
        return (
            "positions"
            if name.endswith("positions") or name in INTEGER_TENSORS
            else "content"
        )
    if annotation.startswith(("Callable", "Transform", "Branches", "ScheduleFunction")):
        return "Callable"
    return annotation if annotation in BY_TYPE else None


INTEGER_TENSORS = (
    "distance",
    "digits",
    "parents",
    "coordinates",
    "offsets",
    "adjacency",
    "mask",
)

# A device is PyTorch's to judge, hidden states are the scheme's, a state comes from an
# earlier call.
UNTYPED = {"device", "q_x", "k_x", "state"}

# Handed on unread: a temperature is the queries' alone.
UNREAD = {
    (name, key)
    for name in ("attention.tempered", "attention.SSMax, called")
    for key in ("k", "k_positions")
}

CALLS = every_call()
BROKEN = [
    pytest.param(name, argument, value, error, id=f"{name}-{argument}-{i}")
    for name, (call, given) in CALLS.items()
    for argument, parameter in inspect.signature(call).parameters.items()
    if name.split(",")[0] not in ARGUMENTS and (name, argument) not in UNREAD
    if argument not in UNTYPED or argument in given
    for i, (value, error) in enumerate(BY_TYPE.get(kind(call, argument) or "", ()))
    if not (value is None and "None" in str(parameter.annotation))
    and not (argument == "padding" and value == -7)  # masked in any case
]


@pytest.mark.parametrize(("name", "argument", "value", "error"), BROKEN)
def test_malformed_argument_of_the_groups(
    name: str, argument: str, value: Any, error: type[Exception]
) -> None:
    call, given = CALLS[name]
    with pytest.raises(error, match=rf"(?<!\w){argument}(?!\w)"):
        call(**given | {argument: value})


# Records: what is in them is checked where they are used. `block_frequencies` takes any
# number of vectors.
UNNAMED = {
    "attention.Branch",
    "attention.LinearState",
    "attention.PreparedLayers",
    "attention.PreparedScheme",
    "attention.RetentionState",
    "multimodal_positions.AudioVideo",
    "multimodal_positions.Vision",
    "rotary.Schedule",
    "rotary.block_frequencies",
}


def test_every_argument_is_refused_something() -> None:
    named = {name.split(",")[0] for name in [*ARGUMENTS, *CALLS]} | UNNAMED
    assert named == {name for name in public() if name.split(".")[0] not in ELSEWHERE}
    for name, (call, arguments) in ARGUMENTS.items():
        assert set(inspect.signature(call).parameters) - UNTYPED == set(arguments), name
    broken = {(case.values[0], case.values[1]) for case in BROKEN} | UNREAD
    for name, (call, _) in CALLS.items():
        if name.split(",")[0] not in ARGUMENTS:
            assert {
                (name, key)
                for key in inspect.signature(call).parameters
                if key not in UNTYPED
            } <= broken, name
