"""What should be true of an encoding, measured on every scheme by one table.

Where a property does not hold for a scheme, the table says why, and the test asserts
that it fails there.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import (
    EPS,
    HEADS,
    PROJECTIONS,
    SCHEMES,
    WIDTH,
    after_embedding,
    bucket_by_fractions,
    hidden,
    layer,
    modules_of,
    normal,
    tolerance,
)
from hypothesis import given
from hypothesis import strategies as st
from registry import every_scheme, lacking
from torch import Tensor, nn
from torch.func import functional_call

from posenc_lib import properties
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    key_padding_mask,
    same_segment,
)
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, from_mask, packed, segment_ids
from posenc_lib.properties import max_error
from posenc_lib.rotary import LAYOUTS, RoPE, Rotation
from posenc_lib.scheme import NOPE, PositionScheme

lengths = st.integers(2, 9)
offsets = st.integers(0, 4000)
seeds = st.integers(0, 1000)
layouts = st.sampled_from(LAYOUTS)


# ---- one table: property by scheme

EMBEDDINGS = (
    "sinusoidal",
    "sinusoidal, concatenated",
    "sinusoidal, tensor2tensor",
    "learned",
)
T5S = ("T5, causal", "T5, bidirectional")
ROPES = ("RoPE", "RoPE, half", "RoPE, partial", "RoPE, attention factor")


def log_ratios(scheme: PositionScheme, x: Tensor, at: Tensor) -> Tensor:
    """e_mn − e_mm, the score of each key less that of the query's own place, (1, H, T,
    T); a masked key has −700.
    """
    x = x if scheme.embedding is None else x + scheme.embedding(at)
    q, k = (x[:, None] @ weight for weight in PROJECTIONS[:2])
    logs = attention_weights(
        q,
        k,
        q_positions=at,
        k_positions=at,
        scheme=after_embedding(scheme),
        **hidden(scheme, x),
    ).log()
    return (logs - logs.diagonal(dim1=-2, dim2=-1)[..., None]).clamp(min=-700)


def relative_only(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    return max_error(layer(scheme, x, at + shift), layer(scheme, x, at))


def toeplitz(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    return properties.toeplitz_error(log_ratios(scheme, x[:, :1].expand_as(x), at))


def order_blind(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    order = torch.arange(x.shape[1]).roll(1 + shift % (x.shape[1] - 1))
    return properties.equivariance_error(
        lambda x: layer(scheme, x[:, 0], at), x[:, None], order
    )


def order_blind_with_positions(
    scheme: PositionScheme, x: Tensor, at: Tensor, shift: int
) -> float:
    order = torch.arange(x.shape[1]).roll(1 + shift % (x.shape[1] - 1))
    return max_error(
        layer(scheme, x[:, order], at[order]), layer(scheme, x, at)[:, :, order]
    )


def nothing_at_zero(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    return max_error(layer(scheme, x, 0 * at), layer(NOPE, x, 0 * at))


def token_by_token(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    steps = [
        layer(scheme, x[:, : t + 1], at[: t + 1], queries=slice(t, None))
        for t in range(x.shape[1])
    ]
    return max_error(torch.cat(steps, 2), layer(scheme, x, at, mask=causal(at, at)))


def no_look_ahead(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    half = x.shape[1] // 2
    changed = torch.cat((x[:, :half], 1 - x[:, half:]), 1)
    before, after = (
        layer(scheme, tokens, at, mask=causal(at, at)) for tokens in (x, changed)
    )
    return max_error(before[:, :, :half], after[:, :, :half])


def padding(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    left, length, right = 1 + shift % 4, x.shape[1], shift % 3
    ones = torch.ones(1, left + length + right, WIDTH, dtype=x.dtype)
    real = torch.arange(left + length + right).ge(left)[None].clone()
    real[:, left + length :] = False
    positions = from_mask(real)
    mask = causal(positions, positions) & key_padding_mask(real)
    padded = layer(
        scheme, torch.cat((ones[:, :left], x, ones[:, :right]), 1), positions, mask=mask
    )
    return max_error(padded[:, :, left : left + length], alone(scheme, x))


def packing(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    first = 1 + shift % (x.shape[1] - 1)
    parts = [first, x.shape[1] - first]
    positions, numbers = packed(parts), segment_ids(parts)
    mask = causal(positions, positions) & same_segment(numbers, numbers)
    each = [alone(scheme, tokens) for tokens in x.split(parts, 1)]
    return max_error(layer(scheme, x, positions, mask=mask), torch.cat(each, 2))


def alone(scheme: PositionScheme, x: Tensor) -> Tensor:
    positions = arange(x.shape[1])
    return layer(scheme, x, positions, mask=causal(positions, positions))


def later_queries_are_a_slice(
    scheme: PositionScheme, x: Tensor, at: Tensor, shift: int
) -> float:
    """A few queries at the end of a cache of many keys, and their rows of the
    embedding.
    """
    whole, start = arange(200), 200 - x.shape[1] - shift % 100
    part = slice(start, start + x.shape[1])
    tokens = normal(1, 200, WIDTH, seed=shift)
    mask = causal(whole, whole)
    some = layer(scheme, tokens, whole, queries=part, mask=mask[part])
    error = max_error(some, layer(scheme, tokens, whole, mask=mask)[:, :, part])
    if scheme.embedding is not None:
        error += max_error(scheme.embedding(whole[part]), scheme.embedding(whole)[part])
    return error


def inputs_stay(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    given = [x.clone() for x in (x, at)]
    layer(scheme, *given, mask=causal(at, at))
    return max_error(given[0], x) + max_error(given[1], at)


def keeps_lengths(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    q, k = (x[:, None] @ weight for weight in PROJECTIONS[:2])
    turned = (
        (q, k)
        if scheme.transform is None
        else scheme.transform(q, k, at, at, **hidden(scheme, x))
    )
    return max(
        max_error(a.norm(dim=-1), b.norm(dim=-1))
        for a, b in zip(turned, (q, k), strict=True)
    )


def decays_with_distance(
    scheme: PositionScheme, x: Tensor, at: Tensor, shift: int
) -> float:
    """By how much the score of a vector with itself ever rises as the key moves away
    into the past.
    """
    far = arange(64, offset=int(at[0]))
    if scheme.embedding is None:
        by_distance = log_ratios(scheme, x[:, :1].expand(1, 64, WIDTH), far)
    else:
        by_distance = scheme.embedding(far) @ scheme.embedding(far).mT
    return float(by_distance[..., -1, :].flip(-1).diff().clamp(min=0).max())


def float32_angles(scheme: PositionScheme, x: Tensor, at: Tensor, shift: int) -> float:
    """By how much queries, keys and values of 16 bits give more than one rounding of
    the result of the same numbers.

    With angles in 16 bits it would be the whole result.
    """
    at, excess = arange(x.shape[1], offset=1300), 0.0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v, tokens = (
            normal(1, h, *x.shape[1:], seed=shift + h).to(dtype)
            for h in (HEADS, HEADS, HEADS, 1)
        )

        def run(q: Tensor, k: Tensor, v: Tensor, tokens: Tensor) -> Tensor:
            how = {
                "q_positions": at,
                "k_positions": at,
                "scheme": after_embedding(scheme),
                "mask": causal(at, at),
            }
            return attention(q, k, v, **how, **hidden(scheme, tokens[:, 0]))

        out, exact = run(q, k, v, tokens), run(*(x.double() for x in (q, k, v, tokens)))
        assert out.dtype == dtype
        # Beside the rounding: 64 roundings in float32 of scores below 16.
        inside = 16 * 64 * torch.finfo(torch.float32).eps * float(v.abs().max())
        error = (
            (out.double() - exact).abs()
            - torch.finfo(dtype).eps / 2 * exact.abs()
            - inside
        )
        excess = max(excess, float(error.detach().max()))
    return excess


Measure = Callable[[PositionScheme, Tensor, Tensor, int], float]

OWN_POSITION = (
    "it gives each token its own position, which enters scores through "
    "content · position too"
)
TABLE: dict[str, tuple[Measure, dict[str, str]]] = {
    "relative": (relative_only, dict.fromkeys(EMBEDDINGS, OWN_POSITION)),
    "Toeplitz": (toeplitz, dict.fromkeys(EMBEDDINGS, OWN_POSITION)),
    "blind to order": (
        order_blind,
        # RePo reads its positions from the tokens: without a mask it tells no order.
        {
            name: "telling the order is what it is for"
            for name in every_scheme()
            if name not in ("NoPE", "RePo")
        },
    ),
    "blind to order when positions move along": (order_blind_with_positions, {}),
    "nothing at position zero": (
        nothing_at_zero,
        {
            "sinusoidal": "cos 0 = 1 is added",
            "sinusoidal, concatenated": "cos 0 = 1 is added",
            "sinusoidal, tensor2tensor": "cos 0 = 1 is added",
            "learned": "row 0 is a vector like any other",
            "RoPE, attention factor": "the factor scales all positions, 0 included",
            "T5, causal": "T5 does not divide by √d",
            "T5, bidirectional": "T5 does not divide by √d",
        },
    ),
    "token by token": (token_by_token, {}),
    "no look ahead": (no_look_ahead, {}),
    "padding": (padding, {}),
    "packing": (packing, {}),
    "later queries are a slice": (later_queries_are_a_slice, {}),
    "inputs stay": (inputs_stay, {}),
    "float32 angles": (float32_angles, {}),
    "norm": (keeps_lengths, {"RoPE, attention factor": "the factor scales"}),
    "decays with distance": (
        decays_with_distance,
        dict.fromkeys(ROPES, "its cosines turn back up")
        | dict.fromkeys(EMBEDDINGS, "dot products of its vectors rise again")
        | dict.fromkeys(T5S, "its numbers are learned"),
    ),
}
for (name, property), reason in lacking().items():
    TABLE[property][1].setdefault(name, reason)


def bound(x: Tensor, start: int, shift: int) -> float:
    """A float64 angle is off by one rounding of itself: EPS times the position."""
    return tolerance(x) + 64 * EPS * (start + shift + x.shape[1])


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("property", TABLE)
@given(length=lengths, start=offsets, shift=st.integers(1, 4000), seed=seeds)
def test_property(
    property: str, name: str, length: int, start: int, shift: int, seed: int
) -> None:
    measure, fails = TABLE[property]
    if name in fails:
        length = max(
            length, 4
        )  # of two tokens the one is as far from the other as the other from the one
    x, positions, scheme = (
        normal(1, length, WIDTH, seed=seed),
        arange(length, offset=start),
        SCHEMES[name],
    )
    error = measure(scheme, x, positions, shift)
    if name not in fails:
        assert error <= bound(x, start, shift)
    else:
        assert error > 1e-6, f"{property} should fail for {name}: {fails[name]}"


EXAMPLES = [
    (4, 0, 7),
    (9, 0, 2),
    (9, 13, 5),
    (6, 30, 20),
    (9, 900, 800),
]  # length, start, shift: within every table


# Positions that 16 bits can't tell apart, for the schemes that have so many.
FAR = (9, 4001, 1003)


def examples_of(scheme: PositionScheme) -> list[tuple[int, int, int]]:
    length, start, shift = FAR
    try:
        layer(scheme, normal(1, length, WIDTH), arange(length, offset=start + shift))
    except ValueError:
        return EXAMPLES  # a table with fewer rows
    return [*EXAMPLES, FAR]


@pytest.mark.parametrize(
    "name",
    [name for name, scheme in every_scheme().items() if scheme.embedding is not None],
)
def test_embeddings_tell_far_neighbours_apart(name: str) -> None:
    embedding = every_scheme()[name].embedding
    assert embedding is not None
    start = FAR[1] if len(examples_of(every_scheme()[name])) > len(EXAMPLES) else 1025
    rows = embedding(arange(9, offset=start)).detach()
    apart = (rows[1:] - rows[:-1]).abs().amax(-1)
    assert bool((apart > 0).all()), "two positions have one vector"


@pytest.mark.parametrize(
    "name", [name for name in every_scheme() if name not in SCHEMES]
)
@pytest.mark.parametrize("property", TABLE)
def test_property_of_the_groups(property: str, name: str) -> None:
    measure, fails = TABLE[property]
    ratios = []
    with torch.no_grad():
        for seed, (length, start, shift) in enumerate(
            examples_of(every_scheme()[name])
        ):
            x = normal(1, length, WIDTH, seed=seed)
            error = measure(
                every_scheme()[name], x, arange(length, offset=start), shift
            )
            ratios.append(error / (1e-6 if name in fails else bound(x, start, shift)))
    if name in fails:
        assert max(ratios) > 1, f"{property} should fail for {name}: {fails[name]}"
    else:
        assert max(ratios) <= 1


def test_reasons_are_about_schemes_that_are_there() -> None:
    assert all(set(fails) <= set(every_scheme()) for _, fails in TABLE.values())


@pytest.mark.parametrize(
    "name", [name for name, scheme in every_scheme().items() if modules_of(scheme)]
)
def test_gradients_of_what_is_learned(name: str) -> None:
    scheme, x, positions = (
        every_scheme()[name],
        normal(1, 5, WIDTH).requires_grad_(),
        arange(5),
    )
    model = Layer(scheme)
    names = [key for key, _ in model.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return functional_call(
            model, state, (x, positions, causal(positions, positions))
        )

    # Other tests use the same modules, so the parameters in float64 are copies.
    values = [
        parameter.detach().double().clone().requires_grad_()
        for parameter in model.parameters()
    ]
    assert names
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
    grads = torch.autograd.grad(
        run(x, *values).square().sum(), values, allow_unused=True
    )
    assert any(grad is not None and bool((grad != 0).any()) for grad in grads)


class Layer(nn.Module):
    """One layer under a scheme, with the modules behind the scheme as its own."""

    def __init__(self, scheme: PositionScheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.parts = nn.ModuleList(modules_of(scheme))

    def forward(self, x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        return layer(self.scheme, x, at, mask=mask)


@given(length=st.integers(3, 9), seed=seeds)
def test_a_causal_mask_alone_tells_the_order(length: int, seed: int) -> None:
    x, positions = normal(1, length, WIDTH, seed=seed), arange(length)

    def blind(mask: Tensor | None) -> float:
        return properties.equivariance_error(
            lambda x: layer(NOPE, x[:, 0], positions, mask=mask),
            x[:, None],
            positions.flip(0),
        )

    assert blind(None) <= tolerance(x)
    assert blind(causal(positions, positions)) > 1e-6


# ---- a loop for each equation


def embedded(name: str, m: int) -> list[float]:
    """The vector added at position m, entry by entry."""
    half = WIDTH // 2
    paper = [10_000.0 ** (-2 * i / WIDTH) for i in range(half)]
    tensor2tensor = [10_000.0 ** (-j / (half - 1)) for j in range(half)]
    match name:
        case "sinusoidal":
            return [f(m * w) for w in paper for f in (math.sin, math.cos)]
        case "sinusoidal, concatenated":
            return [f(m * w) for f in (math.sin, math.cos) for w in paper]
        case "sinusoidal, tensor2tensor":
            return [f(m * w) for f in (math.sin, math.cos) for w in tensor2tensor]
        case "learned":
            embedding = SCHEMES["learned"].embedding
            assert isinstance(embedding, nn.Module)
            return embedding.table[m].tolist()
    return [0.0] * WIDTH


def score(name: str, q: list[float], k: list[float], h: int, m: int, n: int) -> float:
    """e_mn of head h, from the equations, in complex numbers where pairs turn."""
    content, scale = sum(a * b for a, b in zip(q, k, strict=True)), WIDTH**-0.5
    if name in ROPES:
        width = WIDTH // 2 if name == "RoPE, partial" else WIDTH
        pairs = [
            (i, i + width // 2) if name == "RoPE, half" else (2 * i, 2 * i + 1)
            for i in range(width // 2)
        ]
        content = sum(a * b for a, b in zip(q[width:], k[width:], strict=True))
        for i, (first, second) in enumerate(pairs):
            turn = cmath.exp(1j * (m - n) * 10_000.0 ** (-2 * i / width))
            content += (
                complex(q[first], q[second])
                * complex(k[first], k[second]).conjugate()
                * turn
            ).real
        content *= 1.25**2 if name == "RoPE, attention factor" else 1
    if name == "ALiBi":
        return content * scale - 2.0 ** (-8 * (h + 1) / HEADS) * abs(n - m)
    if name in T5S:
        both, table = name == "T5, bidirectional", SCHEMES[name].bias
        assert isinstance(table, nn.Module)
        return content + float(
            table.table[
                bucket_by_fractions(
                    n - m, bidirectional=both, num_buckets=32, max_distance=128
                ),
                h,
            ]
        )
    return content * scale


def looped(name: str, x: Tensor, at: list[int]) -> Tensor:
    """Causal attention on tokens x (T, D), one number after the other."""
    # The library rounds an embedding once to float32, and so does the loop.
    vectors = (
        torch.tensor([embedded(name, m) for m in at], dtype=torch.float64)
        .float()
        .double()
    )
    q, k, v = (((x + vectors) @ weight).tolist() for weight in PROJECTIONS)
    out = torch.zeros(HEADS, len(at), WIDTH, dtype=torch.float64)
    for h in range(HEADS):
        for i, m in enumerate(at):
            seen = [
                j
                for j, n in enumerate(at)
                if n <= m and not (name == "window" and m - n >= 3)
            ]
            powers = [
                math.exp(score(name, q[h][i], k[h][j], h, m, at[j])) for j in seen
            ]
            for c in range(WIDTH):
                out[h, i, c] = sum(
                    p * v[h][j][c] for p, j in zip(powers, seen, strict=True)
                ) / sum(powers)
    return out


@pytest.mark.parametrize("name", SCHEMES)
@given(at=st.lists(st.integers(0, 300), min_size=1, max_size=8), seed=seeds)
def test_layer_is_the_loop_of_its_equation(name: str, at: list[int], seed: int) -> None:
    x = normal(1, len(at), WIDTH, seed=seed)
    positions = torch.tensor(at)
    out = layer(SCHEMES[name], x, positions, mask=causal(positions, positions))
    assert max_error(out[0], looped(name, x[0], at)) <= tolerance(x) + 64 * EPS * max(
        at
    )


QKV = [normal(2, HEADS, 5, WIDTH, seed=seed) for seed in range(3)]
AT = {"q_positions": arange(5), "k_positions": arange(5)}


# ---- the probes: zero where the property holds, and not where it is broken


def by_index(q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """The classic fault.

    Positions are counted on the tensors, whatever the caller says.
    """
    return RoPE(inverse_frequencies(WIDTH)).transform(
        q, k, arange(q.shape[2]), arange(k.shape[2])
    )


def against(q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    rope = RoPE(inverse_frequencies(WIDTH))
    return rope.transform(q, k, m, -n)


INDEX = PositionScheme("counts queries by index", transform=by_index)
SIGN = PositionScheme("keys turn the other way", transform=against)
KEY_INDEX = PositionScheme(
    "counts keys by index",
    bias=lambda m, n: -0.01 * torch.arange(n.shape[-1]).double()[None, None, None] ** 2,
)
LEAK = PositionScheme(
    "sees all values",
    values=lambda weights, v, m, n: weights @ (v + v.mean(2, keepdim=True)),
)

STATES = normal(2, 9, WIDTH, seed=9)
HALF = RoPE(inverse_frequencies(WIDTH), layout="half")
PROBES: dict[str, tuple[Callable[..., float], PositionScheme]] = {
    "relative_error": (
        partial(properties.relative_error, positions=arange(9), shift=7),
        SIGN,
    ),
    "incremental_error": (properties.incremental_error, INDEX),
    "left_padding_error": (
        partial(properties.left_padding_error, padding=3),
        KEY_INDEX,
    ),
    "packing_error": (partial(properties.packing_error, lengths=[2, 3, 4]), KEY_INDEX),
    "causality_error": (properties.causality_error, LEAK),
}


def probed(probe: str, scheme: PositionScheme) -> float:
    measure, _ = PROBES[probe]
    given = [
        normal(2, HEADS, 9, WIDTH, seed=seed)
        for seed in range(2 if probe == "relative_error" else 3)
    ]
    with torch.no_grad():
        return measure(scheme, *given, **hidden(scheme, STATES))


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    "name",
    [name for name, scheme in every_scheme().items() if scheme.embedding is None],
)
def test_probes_are_zero_for_schemes_of_the_library(probe: str, name: str) -> None:
    error = probed(probe, every_scheme()[name])
    if probe == "relative_error" and name in TABLE["relative"][1]:
        assert error > 1e-6
    else:
        assert 0 <= error <= 8 * tolerance(QKV[2])


def test_relative_error_takes_any_shift() -> None:
    half = partial(
        properties.relative_error, q=QKV[0], k=QKV[1], positions=arange(5), shift=3.5
    )
    assert half(SCHEMES["RoPE"]) <= 8 * tolerance(QKV[2])
    with pytest.raises(TypeError, match="must be integers"):  # T5 has no half positions
        half(SCHEMES["T5, causal"])


@pytest.mark.parametrize(
    "name", [name for name, scheme in every_scheme().items() if hidden(scheme, STATES)]
)
def test_probes_change_hidden_states_with_the_tokens(name: str) -> None:
    """Without that, a scheme that looks ahead in the hidden states would pass."""
    scheme = every_scheme()[name]

    def ahead(place: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, q_x, k_x: place(
            *given, q_x=q_x + k_x.mean(1, keepdim=True), k_x=k_x + k_x.mean()
        )

    leaks = {place: ahead(getattr(scheme, place)) for place in scheme.places}
    with torch.no_grad():
        leaking = PositionScheme("leaks", **leaks, scale=scheme.scale)
        assert (
            properties.causality_error(
                leaking, *QKV, q_x=STATES[:, :5], k_x=STATES[:, :5]
            )
            > 1e-3
        )


@pytest.mark.parametrize("probe", PROBES)
def test_probes_notice_a_fault(probe: str) -> None:
    _, faulty = PROBES[probe]
    assert probed(probe, faulty) > 1e-3


def test_probes_of_functions_and_matrices() -> None:
    x, order = normal(2, 5, 3), torch.tensor([3, 1, 4, 0, 2])
    assert properties.equivariance_error(lambda x: x.softmax(-1), x, order) == 0
    assert properties.equivariance_error(lambda x: x.cumsum(-2), x, order) > 0.1
    diagonals = torch.tensor(
        [[c - r for c in range(4)] for r in range(4)], dtype=torch.float64
    )
    assert properties.toeplitz_error(diagonals) == 0
    diagonals[2, 1] += 0.5
    assert properties.toeplitz_error(diagonals) == 0.5
    positions = arange(5)
    assert (
        properties.norm_error(
            Rotation(torch.ones(5, 1), torch.ones(5, 1)), torch.ones(5, 2)
        )
        > 0.5
    )
    assert (
        properties.group_error(HALF, normal(5, WIDTH), positions, positions) <= 64 * EPS
    )
    assert max_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == 0.5
    assert math.isnan(max_error(torch.tensor([1.0, math.nan]), torch.ones(2)))


PROBED = normal(3, 1, 2, 4, WIDTH)  # query, key and value
REFUSED: dict[str, Callable[[], Any]] = {
    "actual and expected must have one shape": lambda: max_error(
        torch.ones(2), torch.ones(1, 2)
    ),
    "must keep the number of tokens": lambda: properties.equivariance_error(
        lambda x: x[:1], torch.ones(3, 2), torch.tensor([2, 1, 0])
    ),
    "matrix must have at least two": lambda: properties.toeplitz_error(
        torch.ones(1, 5)
    ),
    "actual must hold at least one number": lambda: max_error(
        torch.ones(0), torch.ones(0)
    ),
    "q must have at least two tokens": lambda: properties.causality_error(
        NOPE, *PROBED[:, :, :, :1]
    ),
    "padding must be an integer ≥ 0, got -1": lambda: properties.left_padding_error(
        NOPE, *PROBED, padding=-1
    ),
    "lengths must add up to the 4 tokens of q": lambda: properties.packing_error(
        NOPE, *PROBED, lengths=[2, 3]
    ),
    "x must have one token": lambda: properties.norm_error(
        HALF(arange(4)), torch.ones(5, WIDTH)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_probes_refuse_what_they_cannot_measure(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()
    with pytest.raises(
        TypeError, match="actual must be real"
    ):  # the imaginary part would be dropped, and i found to be 0
        max_error(torch.tensor([1j]), torch.tensor([0j]))


def test_every_probe_is_tested_here() -> None:
    tested = set(PROBES) | {
        "equivariance_error",
        "toeplitz_error",
        "norm_error",
        "group_error",
        "max_error",
    }
    assert tested == set(properties.__all__)


def test_padding_probe_sees_an_absolute_scheme_that_counts_slots() -> None:
    x = normal(1, 1, 5, 4)
    honest = PositionScheme(
        "of the key",
        bias=lambda m, n: n.double().expand(1, 1, m.shape[-1], -1) ** 2 / 4,
    )
    assert properties.left_padding_error(honest, x, x, x, padding=3) < 1e-9
    slots = PositionScheme(
        "of the slot",
        bias=lambda m, n: (
            torch.arange(n.shape[-1]).double().expand(1, 1, m.shape[-1], -1) ** 2 / 4
        ),
    )
    assert properties.left_padding_error(slots, x, x, x, padding=3) > 1e-3


def test_equivariance_probe_refuses_what_is_no_permutation() -> None:
    with pytest.raises(ValueError, match="permutation"):
        properties.equivariance_error(
            lambda x: x, torch.ones(3, 2), torch.tensor([0, 0, 0])
        )
