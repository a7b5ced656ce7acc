"""Faults that users reported to other projects, each as a test, swept over its kind.

`bugs.json` holds the reports: symptom, cause, the smallest input, the right value and
how it was computed. Report F1-37 is tested by the tests named test_bug_37_…: those of
the basic encodings here, the others in the files of their modules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers import (
    EPS,
    HEADS,
    LENGTHS,
    SCHEMES,
    WIDTH,
    after_embedding,
    bucket_by_fractions,
    compilations,
    fake_device,
    layer,
    normal,
    rounds_to,
    same_but_for_rounding,
    tolerance,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    key_padding_mask,
    same_segment,
)
from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket
from posenc_lib.embedding import LearnedEmbedding, sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import (
    cos_sin,
    inverse_frequencies,
    octave_frequencies,
    tensor2tensor_frequencies,
    wavelengths,
)
from posenc_lib.positions import after_mask, arange, from_mask, packed, segment_ids
from posenc_lib.properties import max_error
from posenc_lib.rotary import LAYOUTS, RoPE, convert_layout, convert_projection
from posenc_lib.scheme import NOPE, PositionScheme

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def printed(actual: Tensor, expected: Sequence[float], *, digits: int = 6) -> bool:
    """Whether `actual` prints as `expected`, to so many digits after the point."""
    error = (actual.double() - torch.tensor(expected, dtype=torch.float64)).abs().max()
    return bool(error <= (0.5 + 1e-6) * 10.0**-digits)


def half_ulp(dtype: torch.dtype) -> float:
    """Largest error of rounding a number of magnitude at most 1 to `dtype`."""
    return torch.finfo(dtype).eps / 4


class Holder(nn.Module):
    """A model that keeps its encodings as attributes, as a user's would."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = RoPE(inverse_frequencies(128))
        self.slopes = alibi_slopes(12)
        self.bias = T5Bias(HEADS, bidirectional=True, std=1.0)
        self.table = LearnedEmbedding(16, WIDTH)


def test_bug_01_rope_layout() -> None:
    x, positions = (
        torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64),
        torch.tensor([1]),
    )
    half, paper = (
        RoPE(inverse_frequencies(4), layout=name)(positions, torch.float64)
        for name in ("half", "interleaved")
    )
    assert printed(half(x)[0], [-1.984111, 1.959901, 2.462378, 4.019800])
    assert printed(paper(x)[0], [-1.142640, 1.922076, 2.959851, 4.029800])
    assert same_but_for_rounding(paper(x)[:, [0, 2, 1, 3]], half(x[:, [0, 2, 1, 3]]))
    assert RoPE(inverse_frequencies(4)).layout == "interleaved"


@given(
    pairs=st.integers(1, 32),
    rest=st.integers(0, 5),
    length=st.integers(1, 6),
    start=st.integers(0, 10**6),
)
def test_bug_01_layouts_agree_through_the_permutation(
    pairs: int, rest: int, length: int, start: int
) -> None:
    x, positions = normal(2, 3, length, 2 * pairs + rest), arange(length, offset=start)
    order = [
        *range(0, 2 * pairs, 2),
        *range(1, 2 * pairs, 2),
        *range(2 * pairs, 2 * pairs + rest),
    ]
    half, paper = (
        RoPE(inverse_frequencies(2 * pairs), layout=name)(positions)
        for name in ("half", "interleaved")
    )
    assert same_but_for_rounding(half(x[..., order]), paper(x)[..., order])
    there = convert_layout(x, source="interleaved", target="half", rotary_dim=2 * pairs)
    assert torch.equal(there, x[..., order])
    assert torch.equal(
        convert_layout(
            there, source="half", target="interleaved", rotary_dim=2 * pairs
        ),
        x,
    )


@given(
    heads=st.integers(1, 4),
    pairs=st.integers(1, 4),
    rest=st.integers(0, 3),
    bias=st.booleans(),
)
def test_bug_01_a_converted_checkpoint_gives_the_same_scores(
    heads: int, pairs: int, rest: int, bias: bool
) -> None:
    width, positions, x = 2 * pairs + rest, arange(5), normal(1, 5, 6)
    frequencies = inverse_frequencies(2 * pairs)
    weights = [normal(heads * width, 6, seed=seed) for seed in (1, 2)]
    biases = [normal(heads * width, seed=seed) * bias for seed in (3, 4)]

    def scores(layout: str, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        q, k = (
            (x @ w.T + b).unflatten(-1, (heads, width)).transpose(1, 2)
            for w, b in zip(weights, biases, strict=True)
        )
        q, k = RoPE(frequencies, layout=layout).transform(q, k, positions, positions)
        return q @ k.mT

    def convert(weight: Tensor) -> Tensor:
        return convert_projection(
            weight, heads, source="interleaved", target="half", rotary_dim=2 * pairs
        )

    meta, ours = (
        scores("interleaved", weights, biases),
        scores("half", [*map(convert, weights)], [*map(convert, biases)]),
    )
    assert max_error(ours, meta) <= tolerance(meta)
    if pairs > 1:  # the symptom: unconverted weights are a broken model
        assert max_error(scores("half", weights, biases), meta) > 1e-3


def test_bug_03_rope_formula() -> None:
    assert (
        max_error(
            inverse_frequencies(8),
            torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64),
        )
        <= EPS
    )


@given(pairs=st.integers(1, 128), base=st.floats(1.5, 1e7))
def test_bug_03_first_frequency_is_one_and_the_ratio_constant(
    pairs: int, base: float
) -> None:
    frequencies = inverse_frequencies(2 * pairs, base)
    assert frequencies.dtype == torch.float64
    assert float(frequencies[0]) == 1.0
    expected = [math.pow(base, -2 * i / (2 * pairs)) for i in range(pairs)]
    assert (
        max_error(frequencies, torch.tensor(expected, dtype=torch.float64)) <= 4 * EPS
    )


def test_bug_05_rope_base() -> None:
    frequencies = inverse_frequencies(128, 500_000)
    assert printed(frequencies[63:], [2.455141e-06], digits=12)
    assert printed(frequencies[63:] * 4096, [0.0100563], digits=7)
    assert printed(inverse_frequencies(128)[63:], [1.154782e-04], digits=10)


@pytest.mark.parametrize("base", [100, 10_000, 500_000, 5e6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bug_05_the_base_arrives_and_none_is_assumed(base: float, layout: str) -> None:
    with pytest.raises(TypeError, match="frequencies"):
        RoPE()  # type: ignore[call-arg]
    rope = RoPE(inverse_frequencies(16, base), layout=layout)
    assert torch.equal(
        rope.frequencies, inverse_frequencies(16, base)
    )  # what it was built with can be read
    slowest = math.pow(base, -14 / 16)
    assert float(rope(torch.tensor([4096]), torch.float64).cos[0, 7]) == pytest.approx(
        math.cos(4096 * slowest), abs=4096 * slowest * EPS + EPS
    )


def test_bug_09_partial_rotary() -> None:
    x = torch.arange(1.0, 9.0, dtype=torch.float64)[None]
    out = RoPE(inverse_frequencies(4), layout="half")(torch.tensor([1]), torch.float64)(
        x
    )
    assert printed(out[0], [-1.984111, 1.959901, 2.462378, 4.0198, 5, 6, 7, 8])


@given(
    pairs=st.integers(1, 8),
    rest=st.integers(1, 9),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(FLOATS),
    start=st.integers(0, 10**5),
)
def test_bug_09_the_tail_passes_bit_by_bit(
    pairs: int, rest: int, layout: str, dtype: torch.dtype, start: int
) -> None:
    x = normal(1, 2, 5, 2 * pairs + rest, dtype=dtype)
    rotation = RoPE(inverse_frequencies(2 * pairs), layout=layout)(
        arange(5, offset=start)
    )
    assert torch.equal(rotation(x)[..., 2 * pairs :], x[..., 2 * pairs :])
    assert torch.equal(rotation(x)[..., : 2 * pairs], rotation(x[..., : 2 * pairs]))


def test_bug_11_cache_offset() -> None:
    mask = torch.ones(1, 9, dtype=torch.bool)
    assert arange(3, offset=9).tolist() == [9, 10, 11]
    assert after_mask(mask, 3).tolist() == [[9, 10, 11]]
    assert [after_mask(torch.ones(1, 9 + t)).item() for t in range(3)] == [9, 10, 11]
    rope, x = RoPE(inverse_frequencies(8)), normal(12, 8)
    assert torch.equal(rope(arange(1, offset=9))(x[9:10]), rope(arange(12))(x)[9:10])


@every_scheme
@given(cached=st.integers(1, 9), new=st.integers(1, 4), start=st.integers(0, 4000))
def test_bug_11_decoding_equals_the_uncached_run(
    scheme: PositionScheme, cached: int, new: int, start: int
) -> None:
    length = cached + new
    x, positions = normal(2, length, WIDTH), arange(length, offset=start)
    whole = layer(scheme, x, positions, mask=causal(positions, positions))
    step = layer(
        scheme,
        x,
        positions,
        queries=slice(cached, None),
        mask=causal(positions[cached:], positions),
    )
    assert max_error(step, whole[:, :, cached:]) <= tolerance(whole)


def test_bug_13_padding() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert from_mask(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert after_mask(mask).tolist() == [[3], [5]]
    assert (
        int(from_mask(torch.zeros(2, 4)).min()) == 0
    )  # never −1, which would read the last row of a table


@every_scheme
@given(left=st.integers(0, 4), right=st.integers(0, 4), length=st.integers(1, 6))
def test_bug_13_a_padded_row_equals_the_row_alone(
    scheme: PositionScheme, left: int, right: int, length: int
) -> None:
    x, at = normal(1, length, WIDTH), arange(length)
    mask = torch.tensor(
        [
            [False] * left + [True] * length + [False] * right,
            [True] * (left + length + right),
        ]
    )
    padded = normal(2, mask.shape[1], WIDTH, seed=1)
    padded[0, left : left + length] = x[0]
    positions = from_mask(mask)
    out = layer(
        scheme,
        padded,
        positions,
        mask=causal(positions, positions) & key_padding_mask(mask),
    )
    alone = layer(scheme, x, at, mask=causal(at, at))
    assert max_error(out[:1, :, left : left + length], alone) <= tolerance(alone)


def test_bug_15_alibi_under_padding() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    positions, slope = from_mask(mask), torch.tensor([0.5])
    assert positions.tolist() == [[0, 0, 0, 1, 2]]
    bias = alibi(positions, positions, slope)[0, 0, 2:, 2:]
    assert torch.equal(
        bias.tril(), torch.tensor([[0, 0, 0], [-0.5, 0, 0], [-1, -0.5, 0]])
    )
    assert torch.equal(bias, alibi(arange(3), arange(3), slope)[0, 0])


@given(left=st.integers(0, 5), length=st.integers(1, 6), heads=st.integers(1, 6))
def test_bug_15_softmax_of_the_padded_row_is_that_of_the_row(
    left: int, length: int, heads: int
) -> None:
    mask = (torch.arange(left + length) >= left)[None]
    positions, alone = from_mask(mask), arange(length)
    allowed = causal(positions, positions) & key_padding_mask(mask)
    weights = attention_weights(
        torch.zeros(1, heads, left + length, 2),
        torch.zeros(1, heads, left + length, 2),
        q_positions=positions,
        k_positions=positions,
        scheme=schemes.alibi(heads),
        mask=allowed,
    )
    expected = (
        alibi(alone, alone, alibi_slopes(heads))
        .masked_fill(~causal(alone, alone), -torch.inf)
        .softmax(-1)
    )
    # The same terms; but a sum over another number of them, zeros included, is taken in
    # another order.
    assert (
        max_error(weights[..., left:, left:], expected)
        <= torch.finfo(torch.float32).eps
    )
    # Bloom's form, +s·n for key n counted without padding, gives the same weights.
    keys = alibi_slopes(heads).float()[:, None, None] * positions[0, left:]
    bloom = (
        keys.expand(heads, length, length)
        .masked_fill(~causal(alone, alone), -torch.inf)
        .softmax(-1)
    )
    assert max_error(bloom[None], expected) <= 8 * torch.finfo(torch.float32).eps * (
        1 + length
    )


def test_bug_16_packing() -> None:
    boundaries = [0, 3, 5, 9]
    lengths = [end - start for start, end in pairwise(boundaries)]
    assert packed(lengths).tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert segment_ids(lengths).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]


@every_scheme
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_bug_16_packed_documents_equal_the_documents_alone(
    scheme: PositionScheme, lengths: list[int]
) -> None:
    x, positions, numbers = (
        normal(1, sum(lengths), WIDTH),
        packed(lengths),
        segment_ids(lengths),
    )
    together = layer(
        scheme,
        x,
        positions,
        mask=causal(positions, positions) & same_segment(numbers, numbers),
    )
    alone = [
        layer(
            scheme,
            part,
            arange(part.shape[1]),
            mask=causal(arange(part.shape[1]), arange(part.shape[1])),
        )
        for part in x.split(lengths, 1)
    ]
    assert max_error(together, torch.cat(alone, 2)) <= tolerance(together)


def test_bug_18_low_precision_positions() -> None:
    positions = torch.tensor([15962])
    cos, _ = cos_sin(positions, inverse_frequencies(8), dtype=torch.float64)
    assert printed(cos[:, 0], [-0.908016])
    assert cos_sin(positions, inverse_frequencies(8), dtype=torch.bfloat16)[0][
        0, 0
    ] == cos[0, 0].to(torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("table", ["rope", "sinusoidal", "tensor2tensor"])
def test_bug_18_tables_are_rounded_once(dtype: torch.dtype, table: str) -> None:
    make = {
        "rope": lambda positions, dtype: torch.cat(
            cos_sin(positions, inverse_frequencies(64), dtype=dtype), -1
        ),
        "sinusoidal": lambda positions, dtype: sinusoidal(positions, 64, dtype=dtype),
        "tensor2tensor": lambda positions, dtype: sinusoidal_tensor2tensor(
            positions, 64, dtype=dtype
        ),
    }[table]
    positions = torch.cat((torch.arange(8192), torch.tensor([131_072, 999_999, 10**7])))
    exact = make(positions, torch.float64)
    # PyTorch casts float64 to 16 bits by way of float32.
    assert max_error(make(positions, dtype), exact) <= half_ulp(dtype) + half_ulp(
        torch.float32
    ) * (dtype in SIXTEEN_BITS)
    assert torch.unique(make(positions, torch.float32), dim=0).shape[0] == len(
        positions
    )  # no two positions share a row


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_bug_18_sixteen_bit_positions_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"positions must be .*float16"):
        RoPE(inverse_frequencies(8))(torch.arange(4).to(dtype))


@given(
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from(LAYOUTS),
    start=st.integers(0, 10**6),
)
def test_bug_18_the_rotation_does_not_depend_on_the_input_dtype(
    dtype: torch.dtype, layout: str, start: int
) -> None:
    x, rope, positions = (
        normal(1, 1, 8, 64, dtype=dtype),
        RoPE(inverse_frequencies(64), layout=layout),
        arange(8, offset=start),
    )
    exact = rope(positions, torch.float64)(x.double())
    # The table, two products and a sum, in float32: four roundings of at most |a| +
    # |b|.
    assert rounds_to(
        rope(positions)(x),
        exact,
        4 * torch.finfo(torch.float32).eps / 2 * 2 * float(x.abs().max()),
    )


CASTS = {
    "half": lambda model: model.half(),
    "to bfloat16": lambda model: model.to(torch.bfloat16),
    "to bfloat16 and back": lambda model: model.to(torch.bfloat16).float(),
    "double": lambda model: model.double(),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_bug_20_buffer_cast(cast: Callable[[Holder], Holder]) -> None:
    positions, fresh = torch.tensor([4096]), Holder()
    model = cast(Holder())
    assert printed(model.rope.frequencies[1:2] * 4096, [3546.98987], digits=5)
    assert printed(model.rope(positions).cos[0, 1:2], [-0.991332])
    assert torch.equal(model.rope(positions).cos, fresh.rope(positions).cos)
    assert torch.equal(model.rope(positions).sin, fresh.rope(positions).sin)


@pytest.mark.parametrize(
    "make",
    [
        lambda: inverse_frequencies(8),
        lambda: tensor2tensor_frequencies(8),
        lambda: octave_frequencies(4),
        lambda: alibi_slopes(12),
    ],
    ids=[
        "inverse_frequencies",
        "tensor2tensor_frequencies",
        "octave_frequencies",
        "alibi_slopes",
    ],
)
def test_bug_22_constants_are_made_on_the_cpu(
    make: Callable[[], Tensor],
) -> None:
    expected = make()
    with torch.device("meta"):
        made = make()
    assert made.device.type == "cpu"
    assert torch.equal(made, expected)


def test_bug_22_buffer_lifecycle() -> None:
    with torch.device("meta"):
        model = Holder()
    model = model.to_empty(device="cpu")
    assert torch.equal(model.rope.frequencies, inverse_frequencies(128))
    assert torch.equal(
        model.rope(arange(4)).cos, RoPE(inverse_frequencies(128))(arange(4)).cos
    )
    assert torch.equal(model.slopes, alibi_slopes(12))


def test_bug_24_state_dict_holds_learned_tensors_only() -> None:
    model, other = Holder(), Holder()
    for length in (4, 16):  # two lengths of use leave nothing behind
        model.rope(arange(length))
        model.bias(arange(length), arange(length))
        model.table(arange(length))
        assert (
            set(model.state_dict())
            == {name for name, _ in model.named_parameters()}
            == {"bias.table", "table.table"}
        )
        assert list(model.buffers()) == []
        other.load_state_dict(model.state_dict(), strict=True)
        model.load_state_dict(other.state_dict(), strict=True)


BUCKETS = {
    True: {
        0: 0, -1: 1, 1: 17, -7: 7, -8: 8, -11: 8, -12: 9, -16: 10, -32: 12, -64: 14,
        -90: 14, -91: 15, -127: 15, -128: 15, -200: 15, 8: 24, 128: 31,
    },
    False: {
        5: 0, 0: 0, -15: 15, -16: 16, -32: 21, -64: 26, -91: 29, -128: 31, -200: 31,
    },
}  # fmt: skip


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bug_37_t5_bucket(bidirectional: bool) -> None:
    r = torch.tensor([*BUCKETS[bidirectional]])
    assert t5_bucket(r, bidirectional=bidirectional).tolist() == [
        *BUCKETS[bidirectional].values()
    ]


@given(half=st.integers(1, 12), beyond=st.integers(1, 120), bidirectional=st.booleans())
def test_bug_37_buckets_follow_the_equation_and_stay_in_range(
    half: int, beyond: int, bidirectional: bool
) -> None:
    num_buckets = 2 * half * (2 if bidirectional else 1)
    sizes = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": half + beyond,
    }
    r = torch.arange(-3 * (half + beyond), 3 * (half + beyond) + 1)
    expected = [bucket_by_fractions(value, **sizes) for value in r.tolist()]
    assert t5_bucket(r, **sizes).tolist() == expected
    assert 0 <= min(expected) <= max(expected) < num_buckets


def test_bug_39_bias_under_cache() -> None:
    r = torch.arange(5) - 4
    assert t5_bucket(r, bidirectional=False).tolist() == [4, 3, 2, 1, 0]
    bias = T5Bias(2, bidirectional=False, std=1.0)
    assert torch.equal(
        bias(torch.tensor([4]), arange(5)), bias(arange(5), arange(5))[..., 4:, :]
    )


@pytest.mark.parametrize("name", ["ALiBi", "T5, causal", "T5, bidirectional"])
@given(cached=st.integers(0, 40), new=st.integers(1, 5), start=st.integers(0, 10**6))
def test_bug_39_a_cached_bias_is_the_last_rows_of_the_whole(
    name: str, cached: int, new: int, start: int
) -> None:
    positions, bias = arange(cached + new, offset=start), SCHEMES[name].bias
    assert bias is not None
    assert torch.equal(
        bias(positions[cached:], positions), bias(positions, positions)[..., cached:, :]
    )


@given(d=st.integers(1, 128), b=st.floats(-3, 3))
def test_bug_41_bias_scaling(d: int, b: float) -> None:
    # A query of ones, a key of ones and one of zeros: the log ratio of the weights is
    # the first logit minus the second.
    q = torch.ones(1, 1, 1, d, dtype=torch.float64)
    k = torch.cat((q, 0 * q), 2)

    def logit(scale: float | None) -> float:
        scheme = PositionScheme(
            "constant",
            bias=lambda m, n: torch.tensor([[[[b, 0.0]]]]).double(),
            scale=scale,
        )
        weights = attention_weights(
            q, k, q_positions=arange(1), k_positions=arange(2), scheme=scheme
        )
        return float(weights[..., 0].log() - weights[..., 1].log())

    b32 = float(torch.tensor(b))
    assert logit(None) == pytest.approx(math.sqrt(d) + b32, abs=1e-12)
    assert logit(1.0) == pytest.approx(d + b32, abs=1e-12)
    assert SCHEMES["T5, causal"].scale == SCHEMES["T5, bidirectional"].scale == 1.0
    assert all(
        scheme.scale is None
        for name, scheme in SCHEMES.items()
        if not name.startswith("T5")
    )


def test_bug_43_alibi_slopes() -> None:
    expected = [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert (
        max_error(alibi_slopes(12), torch.tensor(expected, dtype=torch.float64)) <= EPS
    )
    assert printed(alibi_slopes(12)[8:], [0.707107, 0.353553, 0.176777, 0.088388])
    assert alibi_slopes(12).diff().max() > 0  # not sorted: the order of the checkpoints


@pytest.mark.parametrize("heads", range(1, 131))
def test_bug_43_slopes_of_any_number_of_heads(heads: int) -> None:
    power = 2 ** int(math.log2(heads))
    expected = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    expected += [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power, 2)][
        : heads - power
    ]
    slopes = alibi_slopes(heads)
    assert slopes.dtype == torch.float64
    assert max_error(slopes, torch.tensor(expected, dtype=torch.float64)) <= EPS
    assert len(set(slopes.tolist())) == heads


def test_bug_45_alibi_sign() -> None:
    assert alibi(torch.tensor([3]), arange(4), torch.tensor([0.5])).tolist() == [
        [[[-1.5, -1, -0.5, 0]]]
    ]


@given(
    heads=st.integers(1, 12),
    m=st.integers(0, 10**5),
    length=st.integers(1, 12),
    start=st.integers(0, 10**5),
)
def test_bug_45_no_key_is_rewarded(heads: int, m: int, length: int, start: int) -> None:
    keys = arange(length, offset=start)
    bias = alibi(torch.tensor([m]), keys, alibi_slopes(heads), dtype=torch.float64)[
        0, :, 0
    ]
    assert float(bias.max()) <= 0
    by_distance = bias[:, (keys - m).abs().argsort()]
    assert bool((by_distance.diff() <= 0).all())
    assert bool(((bias == 0) == (keys == m)).all())


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_bug_47_alibi_precision(cast: Callable[[Holder], Holder]) -> None:
    model = cast(Holder())
    assert printed(model.slopes[8:9], [0.70710678], digits=8)
    bias = alibi(torch.tensor([1000]), torch.tensor([0]), model.slopes)
    assert printed(bias[0, 8:9, 0, 0], [-707.107], digits=3)


@given(
    heads=st.integers(1, 24), dtype=st.sampled_from(FLOATS), m=st.integers(0, 60_000)
)
def test_bug_47_the_product_is_rounded_last(
    heads: int, dtype: torch.dtype, m: int
) -> None:
    bias = alibi(
        torch.tensor([m]), torch.tensor([0]), alibi_slopes(heads), dtype=dtype
    )[0, :, 0, 0]
    exact = -alibi_slopes(heads) * m
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    assert rounds_to(
        bias, exact, 2 * torch.finfo(compute).eps / 2 * exact.abs()
    )  # the slope and the product


def test_bug_49_masked_rows() -> None:
    q, k, v = (normal(1, 1, t, 4, seed=t).requires_grad_() for t in (2, 3, 3))
    mask = torch.tensor([[True, True, True], [False, False, False]])
    out = attention(
        q, k, v, q_positions=arange(2), k_positions=arange(3), mask=mask, scheme=NOPE
    )
    assert out[0, 0, 1].tolist() == [0, 0, 0, 0]
    out.square().sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert bool(x.grad.isfinite().all())
    assert q.grad is not None
    assert bool((q.grad[0, 0, 1] == 0).all())


@every_scheme
@pytest.mark.parametrize("dtype", FLOATS)
def test_bug_49_rows_without_a_key_are_zero_and_have_a_gradient(
    scheme: PositionScheme, dtype: torch.dtype
) -> None:
    scheme = after_embedding(scheme)
    q, k, v = (
        normal(2, HEADS, 5, WIDTH, seed=seed, dtype=dtype).requires_grad_()
        for seed in range(3)
    )
    real = torch.tensor(
        [[False, False, True, True, True], [False] * 5]
    )  # left padding, and a row of nothing else
    positions = from_mask(real)
    mask = (
        causal(positions, positions) & key_padding_mask(real) & real[:, None, :, None]
    )
    out = attention(
        q, k, v, q_positions=positions, k_positions=positions, scheme=scheme, mask=mask
    )
    weights = attention_weights(
        q, k, q_positions=positions, k_positions=positions, scheme=scheme, mask=mask
    )
    assert bool((out[0, :, :2] == 0).all())
    assert bool((out[1] == 0).all())
    assert bool((out[0, :, 2:] != 0).all())
    expected_sum = real[:, None, :].expand(2, HEADS, 5).double()
    assert (
        max_error(weights.sum(-1), expected_sum) <= 8 * torch.finfo(weights.dtype).eps
    )
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize(("queries", "expected"), [(1, [2.0]), (2, [1.5, 2.0])])
def test_bug_51_causal_alignment(queries: int, expected: list[float]) -> None:
    positions, v = arange(5), torch.arange(5.0)[None, None, :, None]
    mask = causal(positions[-queries:], positions)
    zeros = torch.zeros(1, 1, 5, 2)
    out = attention(
        zeros[:, :, :queries],
        zeros,
        v,
        q_positions=positions[-queries:],
        k_positions=positions,
        mask=mask,
        scheme=NOPE,
    )
    assert out.flatten().tolist() == expected


@given(q_len=st.integers(1, 6), cached=st.integers(0, 9), start=st.integers(0, 10**6))
def test_bug_51_the_last_query_sees_every_key(
    q_len: int, cached: int, start: int
) -> None:
    positions = arange(cached + q_len, offset=start)
    mask = causal(positions[cached:], positions)
    assert torch.equal(mask, torch.ones(q_len, cached + q_len).tril(cached).bool())
    assert bool(mask[-1].all())


def test_bug_53_sinusoid_odd_dim() -> None:
    out = sinusoidal(torch.tensor([1]), 5, dtype=torch.float64)[0]
    assert printed(out, [0.841471, 0.540302, 0.025116, 0.999685, 0.000631])


def position(m: float) -> Tensor:
    return torch.tensor([m], dtype=torch.int64 if isinstance(m, int) else torch.float64)


times = st.one_of(st.integers(-(10**4), 10**9), st.floats(-1e4, 1e6))


@given(d=st.integers(1, 33), m=times, base=st.floats(2, 1e6))
def test_bug_53_every_dimension_has_a_sinusoid(d: int, m: float, base: float) -> None:
    angles = [m * base ** (-2 * i / d) for i in range((d + 1) // 2)]
    cells = [f(angle) for angle in angles for f in (math.sin, math.cos)][:d]
    sines, cosines = cells[::2], cells[1::2]
    positions, unit = position(m), 4 * EPS * (1 + abs(m))
    paper = sinusoidal(positions, d, base, dtype=torch.float64)[0]
    concatenated = sinusoidal(
        positions, d, base, layout="concatenated", dtype=torch.float64
    )[0]
    assert max_error(paper, torch.tensor(cells, dtype=torch.float64)) <= unit
    assert (
        max_error(concatenated, torch.tensor(sines + cosines, dtype=torch.float64))
        <= unit
    )


@given(d=st.integers(4, 33), m=times)
def test_bug_53_tensor2tensor_has_a_zero_column(d: int, m: float) -> None:
    half = d // 2
    angles = [m * 10_000.0 ** (-j / (half - 1)) for j in range(half)]
    cells = [*map(math.sin, angles), *map(math.cos, angles), *[0.0] * (d % 2)]
    out = sinusoidal_tensor2tensor(position(m), d, dtype=torch.float64)[0]
    assert max_error(out, torch.tensor(cells, dtype=torch.float64)) <= 4 * EPS * (
        1 + abs(m)
    )


def test_bug_55_sinusoid_formula() -> None:
    # Half of the channels of a two-dimensional sinusoid encode one axis.
    assert (
        max_error(
            inverse_frequencies(8 // 2), torch.tensor([1, 0.01], dtype=torch.float64)
        )
        <= EPS
    )
    coefficient = inverse_frequencies(256 // 2).log()[1] / 2
    assert printed(coefficient[None], [-0.0719558], digits=7)


@given(pairs=st.integers(2, 64), base=st.floats(2, 1e7))
def test_bug_55_the_spectrum_spreads_over_the_whole_range(
    pairs: int, base: float
) -> None:
    lengths = wavelengths(inverse_frequencies(2 * pairs, base))
    ratio = lengths[1:] / lengths[:-1]
    assert float(lengths[0]) == pytest.approx(2 * math.pi)
    assert (
        max_error(ratio, torch.full_like(ratio, base ** (1 / pairs)))
        <= 16 * EPS * base ** (1 / pairs) * pairs
    )


def test_bug_57_learned_index() -> None:
    table = LearnedEmbedding(1024, 4)
    assert table(arange(1024)).shape == (1024, 4)
    for positions in (arange(1025), arange(5, offset=1020)):
        with pytest.raises(
            ValueError,
            match=r"positions must lie in 0 … 1023 .*1024 rows.*got \d+ … 1024",
        ):
            table(positions)


@given(
    rows=st.integers(1, 50),
    start=st.integers(0, 60),
    length=st.integers(1, 60),
    batched=st.booleans(),
)
def test_bug_57_a_position_past_the_table_is_named(
    rows: int, start: int, length: int, batched: bool
) -> None:
    table, positions = LearnedEmbedding(rows, 3), arange(length, offset=start)
    positions = torch.stack((positions, positions)) if batched else positions
    if start + length <= rows:
        assert torch.equal(table(positions), table.table[positions])
    else:
        with pytest.raises(
            ValueError, match=rf"{rows} rows\), got {start} … {start + length - 1}"
        ):
            table(positions)
    with pytest.raises(ValueError, match="got -1 …"):
        table(positions - start - 1)


def test_bug_59_learned_offset() -> None:
    ids = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7]])
    assert from_mask(ids != 1, first=2, padding=1).tolist() == [
        [2, 3, 4, 1, 1],
        [1, 1, 2, 3, 4],
    ]
    assert from_mask(torch.tensor([[1, 1, 1, 0]]), first=2, padding=1).tolist() == [
        [2, 3, 4, 1]
    ]
    assert from_mask(ids != 1).tolist() == [[0, 1, 2, 0, 0], [0, 0, 0, 1, 2]]


@given(
    mask=st.lists(
        st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3
    ),
    first=st.integers(0, 5),
    padding=st.integers(0, 5),
    steps=st.integers(1, 3),
)
def test_bug_59_any_mask_offset_and_padding_row(
    mask: list[list[bool]], first: int, padding: int, steps: int
) -> None:
    expected = [
        [first + sum(row[:t]) if row[t] else padding for t in range(6)] for row in mask
    ]
    following = [[first + sum(row) + s for s in range(steps)] for row in mask]
    for dtype in (torch.bool, torch.int64, torch.float32):
        assert (
            from_mask(
                torch.tensor(mask, dtype=dtype), first=first, padding=padding
            ).tolist()
            == expected
        )
        assert (
            after_mask(torch.tensor(mask, dtype=dtype), steps, first=first).tolist()
            == following
        )


def test_bug_77_eviction() -> None:
    old, new = torch.tensor([0, 1, 5, 6, 7]), arange(5)
    rope, k = RoPE(inverse_frequencies(8)), normal(5, 8)
    moved = rope(new - old, torch.float64)(rope(old, torch.float64)(k))
    assert (new - old).tolist() == [0, 0, -3, -3, -3]
    assert max_error(moved, rope(new, torch.float64)(k)) <= 16 * EPS * float(
        k.abs().max()
    )
    assert (5 - new).tolist() == [5, 4, 3, 2, 1]


@given(
    old=st.lists(st.integers(0, 10**5), min_size=1, max_size=5),
    shift=st.integers(-(10**5), 10**5),
    layout=st.sampled_from(LAYOUTS),
)
def test_bug_77_a_rotated_key_can_be_moved(
    old: list[int], shift: int, layout: str
) -> None:
    positions, rope = torch.tensor(old), RoPE(inverse_frequencies(8), layout=layout)
    k = normal(len(old), 8)
    moved = rope(torch.full_like(positions, shift), torch.float64)(
        rope(positions, torch.float64)(k)
    )
    furthest = 1 + int((positions.abs() + abs(shift)).max())
    assert max_error(
        moved, rope(positions + shift, torch.float64)(k)
    ) <= 8 * EPS * furthest * float(k.abs().max())


@every_scheme
def test_bug_79_device(scheme: PositionScheme) -> None:
    x, positions = normal(2, 5, WIDTH, dtype=torch.float32), arange(5)
    model = [
        part for part in (scheme.embedding, scheme.bias) if isinstance(part, nn.Module)
    ]
    before = layer(scheme, x, positions)
    if not model:  # learned tables live on one device, which is their owner's business
        q = x[:, None].expand(2, HEADS, 5, WIDTH).to("meta")
        out = attention(
            q,
            q,
            q,
            q_positions=positions.to("meta"),
            k_positions=positions.to("meta"),
            scheme=after_embedding(scheme),
        )
        assert out.device.type == "meta"
        if scheme.embedding is not None:
            assert scheme.embedding(positions.to("meta")).device.type == "meta"
    assert torch.equal(
        layer(scheme, x, positions), before
    )  # and back: nothing was left on the other device


@every_scheme
def test_bug_79_nothing_is_made_on_the_default_device(scheme: PositionScheme) -> None:
    x, positions = normal(2, 5, WIDTH, dtype=torch.float32), arange(5)
    q = x[:, None].expand(2, HEADS, 5, WIDTH)
    with torch.device("meta"):
        out = attention(
            q,
            q,
            q,
            q_positions=positions,
            k_positions=positions,
            scheme=after_embedding(scheme),
            mask=causal(positions, positions),
        )
        embedding = (
            positions if scheme.embedding is None else scheme.embedding(positions)
        )
    assert out.device.type == embedding.device.type == "cpu"


@pytest.mark.parametrize(
    "name", ["window", "sinusoidal", "learned", "RoPE, partial", "ALiBi", "T5, causal"]
)
def test_bug_81_compile(name: str) -> None:
    scheme = SCHEMES[
        name
    ]  # one for each place; the callables are compiled one by one in test_callables.py
    inputs = [
        (normal(2, length, WIDTH, dtype=torch.float32), arange(length))
        for length in LENGTHS
    ]
    compiled = compilations(
        lambda x, positions: layer(
            scheme, x, positions, mask=causal(positions, positions)
        ),
        inputs,
        rotates="RoPE" in name,
    )
    assert compiled <= 2


@every_scheme
@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bug_83_mps_dtype(
    scheme: PositionScheme, device: str, dtype: torch.dtype
) -> None:
    at = from_mask(torch.tensor([[True] * 5, [False, False, True, True, True]]))
    parts = {place: getattr(scheme, place) for place in ("embedding", "bias")}
    with fake_device(device) as move:
        for place, part in parts.items():
            if isinstance(
                part, nn.Module
            ):  # a learned table, moved like the rest of a model
                state = move(dict(part.state_dict()))
                parts[place] = lambda *at, part=part, state=state: (
                    torch.func.functional_call(part, state, at)
                )
        moved = PositionScheme(
            scheme.name,
            transform=scheme.transform,
            mask=scheme.mask,
            scale=scheme.scale,
            **parts,
        )
        q, positions = move((normal(2, HEADS, 5, WIDTH, dtype=dtype), at))
        out = attention(
            q,
            q,
            q,
            q_positions=positions,
            k_positions=positions,
            scheme=after_embedding(moved),
            mask=causal(positions, positions),
        )
        assert (out.device.type, out.dtype, out.shape) == (device, dtype, q.shape)
        if moved.embedding is not None:
            assert moved.embedding(positions).device.type == device


def test_bug_83_the_stand_in_refuses_float64_and_mixed_devices() -> None:
    with fake_device("mps") as move:
        x = move(torch.zeros(3))
        with pytest.raises(TypeError, match="float64"):
            x.double()
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)


def test_every_report_has_a_test() -> None:
    here = Path(__file__).parent
    reports = {
        row["id"]
        for row in json.loads((here / "bugs.json").read_text(encoding="utf-8"))
    }
    sources = [path.read_text(encoding="utf-8") for path in here.rglob("test_*.py")]
    tested = {
        f"F1-{number}"
        for source in sources
        for number in re.findall(r"^def test_bug_(\d\d)_", source, re.MULTILINE)
    }
    assert tested == reports
