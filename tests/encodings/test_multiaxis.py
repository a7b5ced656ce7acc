"""Several axes and multimodal positions: equations as loops, special cases, faults, refused input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from posenc_lib import properties
from posenc_lib.attention import attention, causal, key_padding_mask
from posenc_lib.attention.masks import tree_mask
from posenc_lib.frequencies import inverse_frequencies, pixel_frequencies
from posenc_lib.multimodal_positions import (
    AudioVideo,
    Block,
    Vision,
    audio_video_block,
    equal_axes,
    mrope_positions,
    next_positions,
    place_rows,
    timestamped,
    videorope_positions,
    vision_block,
)
from posenc_lib.positions import (
    abacus,
    arange,
    centred_grid,
    coupled_addition,
    grid,
    jittered,
    merged_grid,
    randomised,
    resized_grid,
    spanning_grid,
    tree_positions,
)
from posenc_lib.rotary.multiaxis import (
    AxialRoPE,
    MixedRoPE,
    axial_frequencies,
    block_frequencies,
    dinov3_frequencies,
    golden_gate_frequencies,
    mixed_frequencies,
    mrope_frequencies,
    mrope_interleaved_frequencies,
    pixtral_frequencies,
    videorope_frequencies,
)
from posenc_lib.rotary.pairs import LAYOUTS
from posenc_lib.rotary.rope import RoPE
from posenc_lib.scheme import PositionScheme

SERIES = inverse_frequencies(16)
SHARED = (mrope_frequencies, mrope_interleaved_frequencies, videorope_frequencies)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def scores(
    rope: AxialRoPE | MixedRoPE, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor
) -> Tensor:
    q, k = rope.transform(q, k, q_at, k_at)
    return q @ k.mT


# ---- the equation, as a loop


def turned(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """One (d,) vector at one (axes,) position, pair by pair."""
    out, pairs = x.clone(), frequencies.shape[-1]
    for i in range(pairs):
        angle = sum(
            float(p) * float(w)
            for p, w in zip(positions, frequencies[:, i], strict=True)
        )
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("by_head", [False, True])
def test_brute_force(layout: str, batched: bool, by_head: bool) -> None:
    batch, heads, length, axes = 2, 3, 4, 3
    frequencies = normal(heads, axes, 3, seed=1) if by_head else normal(axes, 3, seed=1)
    q, k = (
        normal(batch, heads, length, 8, seed=2),
        normal(batch, heads, length, 8, seed=3),
    )
    q_at, k_at = (
        normal(*((batch,) if batched else ()), length, axes, seed=s) * 5 for s in (4, 5)
    )
    q_out, k_out = AxialRoPE(frequencies, layout=layout).transform(q, k, q_at, k_at)
    for x, at, out in ((q, q_at, q_out), (k, k_at, k_out)):
        for b, h, t in itertools.product(range(batch), range(heads), range(length)):
            p = at[b, t] if batched else at[t]
            one = turned(
                x[b, h, t, :6], p, frequencies[h] if by_head else frequencies, layout
            )
            torch.testing.assert_close(out[b, h, t, :6], one, atol=1e-12, rtol=0)
        assert torch.equal(
            out[..., 6:], x[..., 6:]
        )  # three pairs: the last two channels pass


@pytest.mark.parametrize("name", ["shared", "by head"])
def test_scores_see_the_difference_on_each_axis(name: str) -> None:
    frequencies = normal(2, 4) if name == "shared" else normal(3, 2, 4)
    rope = AxialRoPE(frequencies)
    q, k = normal(1, 3, 5, 8, seed=1), normal(1, 3, 6, 8, seed=2)
    q_at, k_at, shift = (
        normal(5, 2, seed=3),
        normal(6, 2, seed=4),
        torch.tensor([7.0, -3.0], dtype=torch.float64),
    )
    error = scores(rope, q, k, q_at + shift, k_at + shift) - scores(
        rope, q, k, q_at, k_at
    )
    assert float(error.abs().max()) < 1e-12
    one_axis = torch.tensor([7.0, 0.0], dtype=torch.float64)
    assert (
        float(
            (scores(rope, q, k, q_at + one_axis, k_at) - scores(rope, q, k, q_at, k_at))
            .abs()
            .max()
        )
        > 0.1
    )


def test_rotation_keeps_norms_and_is_the_identity_at_zero() -> None:
    rotation = AxialRoPE(normal(2, 4))(normal(5, 2, seed=1), torch.float64)
    x = normal(1, 2, 5, 8, seed=2)
    assert properties.norm_error(rotation, x) < 1e-12
    assert properties.max_error(rotation.inverse()(rotation(x)), x) < 1e-12
    assert torch.equal(
        AxialRoPE(normal(2, 4))(torch.zeros(5, 2))(x), x
    )  # class and register tokens


def test_attention_factor_is_in_cos_and_sin_once() -> None:
    q, k, at = normal(1, 2, 4, 8), normal(1, 2, 4, 8, seed=1), grid((2, 2))
    plain, scaled = (AxialRoPE(normal(2, 4), attention_factor=a) for a in (1.0, 1.5))
    torch.testing.assert_close(
        scores(scaled, q, k, at, at), 2.25 * scores(plain, q, k, at, at)
    )
    by_head = AxialRoPE(normal(2, 4).expand(2, 2, 4), attention_factor=1.5)
    torch.testing.assert_close(
        scores(by_head, q, k, at, at), scores(scaled, q, k, at, at)
    )


# ---- special cases: what the forms have in common


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frequencies", SHARED)
def test_equal_axes_are_rope_bit_by_bit(
    frequencies: Callable[..., Tensor], layout: str
) -> None:
    at = torch.tensor([[0, 5, 9, 100_000], [1, 2, 3, 999_999]])
    matrix = frequencies(SERIES, (4, 2, 2))
    ours, plain = AxialRoPE(matrix, layout)(equal_axes(at)), RoPE(SERIES, layout)(at)
    assert torch.equal(ours.cos, plain.cos)
    assert torch.equal(ours.sin, plain.sin)
    assert torch.equal(matrix.sum(0), SERIES)


def test_one_axis_is_rope() -> None:
    at = arange(7, offset=3)
    ours, plain = AxialRoPE(SERIES[None])(at[:, None]), RoPE(SERIES)(at)
    assert torch.equal(ours.cos, plain.cos)


def test_axial_is_one_rope_for_each_axis() -> None:
    at, x = grid((2, 3, 4)), normal(1, 1, 24, 20)
    turn = AxialRoPE(axial_frequencies((2, 3, 5), 100.0))(at, torch.float64)
    parts = [
        RoPE(inverse_frequencies(part.shape[-1], 100.0))(at[:, axis], torch.float64)(
            part
        )
        for axis, part in enumerate(x.split((4, 6, 10), -1))
    ]
    torch.testing.assert_close(turn(x), torch.cat(parts, -1), atol=1e-13, rtol=0)


def test_mixed_with_directions_along_the_axes_is_axial() -> None:
    mixed = MixedRoPE(2, 8, base=10.0).double()
    with torch.no_grad():
        mixed.frequencies.copy_(axial_frequencies((2, 2), 10.0))
    q, k, at = normal(1, 2, 6, 8), normal(1, 2, 6, 8, seed=1), grid((2, 3))
    axial = AxialRoPE(axial_frequencies((2, 2), 10.0)).transform(q, k, at, at)
    torch.testing.assert_close(mixed.transform(q, k, at, at), axial)


def test_shared_and_batched_positions_agree() -> None:
    q, k, at = normal(2, 3, 6, 8), normal(2, 3, 6, 8, seed=1), grid((2, 3))
    for frequencies in (normal(2, 4), normal(3, 2, 4)):
        rope = AxialRoPE(frequencies, layout="half")
        torch.testing.assert_close(
            rope.transform(q, k, at, at),
            rope.transform(q, k, at.expand(2, 6, 2), at.expand(2, 6, 2)),
        )


def test_grouped_queries_share_a_matrix() -> None:
    at = grid((2, 3))
    q, k = AxialRoPE(normal(2, 4)).transform(
        normal(1, 4, 6, 8), normal(1, 2, 6, 8), at, at
    )
    assert (q.shape, k.shape) == ((1, 4, 6, 8), (1, 2, 6, 8))


# ---- the matrices of the models


def owner(matrix: Tensor) -> str:
    assert int((matrix != 0).sum()) == matrix.shape[1]  # one axis a pair
    return "".join("THW"[a] for a in (matrix != 0).int().argmax(0))


@pytest.mark.parametrize("offset", [0, 1, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_F1_71_mrope(dtype: torch.dtype, layout: str, offset: int) -> None:
    series, sections = inverse_frequencies(16), (4, 2, 2)
    chunked, interleaved = (
        mrope_frequencies(series, sections),
        mrope_interleaved_frequencies(series, sections),
    )
    assert owner(chunked) == "TTTTHHWW"
    assert owner(interleaved) == "THWTHWTT"
    q, k = normal(2, 2, 5, 16, dtype=dtype), normal(2, 2, 5, 16, seed=1, dtype=dtype)
    text = arange(5, offset=offset)
    for matrix in (chunked, interleaved):
        actual = AxialRoPE(matrix, layout).transform(
            q, k, equal_axes(text), equal_axes(text)
        )
        expected = RoPE(series, layout).transform(q, k, text, text)
        assert all(
            torch.equal(a, e) and a.dtype == dtype
            for a, e in zip(actual, expected, strict=True)
        )
    # An image tells the two apart: that is how the swap goes unseen on text.
    image = vision_block(Vision(1, 1, 5))
    by_chunks, in_turn = (
        AxialRoPE(m, layout).transform(q, k, image, image)[0]
        for m in (chunked, interleaved)
    )
    assert float((by_chunks - in_turn).abs().max()) > 0.1


@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 12)] * 3))
def test_F1_71_mrope_sections_of_every_size(sections: tuple[int, int, int]) -> None:
    t, h, w = sections
    pairs = t + h + w
    series = inverse_frequencies(2 * pairs)
    assert owner(mrope_frequencies(series, sections)) == "T" * t + "H" * h + "W" * w
    rule = "".join(
        "H" if c % 3 == 1 and c < 3 * h else "W" if c % 3 == 2 and c < 3 * w else "T"
        for c in range(pairs)
    )
    if (rule.count("T"), rule.count("H"), rule.count("W")) == sections:
        assert owner(mrope_interleaved_frequencies(series, sections)) == rule
    else:
        with pytest.raises(ValueError, match="sections"):
            mrope_interleaved_frequencies(series, sections)
    for frequencies in (
        mrope_frequencies,
        mrope_interleaved_frequencies,
        videorope_frequencies,
    ):
        with pytest.raises(ValueError, match=r"sections .*add up to the"):
            frequencies(inverse_frequencies(2 * pairs + 2), sections)


def test_published_sections() -> None:
    assert (
        owner(mrope_frequencies(inverse_frequencies(128, 1e6), (16, 24, 24))).count("T")
        == 16
    )
    assert (
        owner(
            mrope_interleaved_frequencies(inverse_frequencies(128, 5e6), (24, 20, 20))
        )
        == "THW" * 20 + "TTTT"
    )
    assert (
        owner(mrope_interleaved_frequencies(inverse_frequencies(64), (11, 11, 10)))
        == "THW" * 10 + "TH"
    )
    assert (
        owner(videorope_frequencies(inverse_frequencies(128, 1e6), (16, 24, 24)))
        == "HW" * 24 + "T" * 16
    )
    assert owner(videorope_frequencies(inverse_frequencies(8), (1, 2, 1))) == "HWHT"


def test_pixtral_shares_the_series() -> None:
    matrix = pixtral_frequencies(SERIES)
    assert torch.equal(
        matrix[0], torch.cat((SERIES[::2], torch.zeros(4, dtype=torch.float64)))
    )
    assert torch.equal(
        matrix[1], torch.cat((torch.zeros(4, dtype=torch.float64), SERIES[1::2]))
    )


def test_axial_blocks() -> None:
    matrix = axial_frequencies((8, 28, 28), 256.0)  # HunyuanVideo
    assert matrix.shape == (3, 64)
    assert torch.equal(matrix[1, 8:36], inverse_frequencies(56, 256.0))
    assert int((matrix[1] != 0).sum()) == 28
    assert torch.equal(block_frequencies(SERIES, SERIES[:3])[1, 8:], SERIES[:3])
    assert matrix.dtype == torch.float64


def test_dinov3_turns_once_across_half_the_image() -> None:
    matrix = dinov3_frequencies(16)
    assert matrix[0, 0] == matrix[1, 4] == 2 * math.pi
    torch.testing.assert_close(
        matrix[0, 1] / matrix[0, 0],
        torch.tensor(100.0, dtype=torch.float64) ** (-4 / 16),
    )


def test_pixel_frequencies_end_at_the_nyquist_rate() -> None:
    expected = [math.pi, 2 * math.pi, 3 * math.pi, 4 * math.pi, 5 * math.pi]
    torch.testing.assert_close(
        pixel_frequencies(5, 10), torch.tensor(expected, dtype=torch.float64)
    )
    expected = [math.pi * 2**k for k in range(4)]
    torch.testing.assert_close(
        pixel_frequencies(4, 16, spacing="geometric"),
        torch.tensor(expected, dtype=torch.float64),
    )
    assert pixel_frequencies(1, 10).tolist() == [math.pi]


def test_mixed_frequencies_are_two_perpendicular_directions() -> None:
    matrix = mixed_frequencies(3, 16, 10.0, generator=seeded())
    x, y = matrix.unbind(1)  # (H, d/2)
    size = inverse_frequencies(8, 10.0)  # θ^(−4j/d), j < d/4
    torch.testing.assert_close(x.hypot(y), size.repeat(2).expand(3, 8))
    phi = torch.atan2(y, x)
    torch.testing.assert_close(phi[:, :4], phi[:, :1].expand(3, 4))
    torch.testing.assert_close(
        (phi[:, 4:] - phi[:, :4]).cos(), torch.zeros(3, 4, dtype=torch.float64)
    )
    assert (
        float(((x[:, :4] * y[:, 4:] - y[:, :4] * x[:, 4:]) / size**2 - 1).abs().max())
        < 1e-12
    )  # + π/2, not − π/2
    assert len({round(float(p), 6) for p in phi[:, 0]}) == 3
    assert torch.equal(matrix, mixed_frequencies(3, 16, 10.0, generator=seeded()))
    assert MixedRoPE(3, 16).frequencies.dtype == torch.float32
    assert list(MixedRoPE(3, 16).state_dict()) == ["frequencies"]


def test_golden_gate_directions() -> None:
    matrix = golden_gate_frequencies(2, 12, slowest=0.2, fastest=20.0, still=2)
    for h, i in itertools.product(range(2), range(6)):
        size = 0.0 if i < 2 else 0.2 * (20 / 0.2) ** ((i - 2) / 3)
        phi = math.pi * (math.sqrt(5) - 1) / 2 * (6 * h + i)
        expected = torch.tensor(
            [size * math.cos(phi), size * math.sin(phi)], dtype=torch.float64
        )
        torch.testing.assert_close(matrix[h, :, i], expected, atol=1e-12, rtol=0)
    # Even cover: no gap between neighbouring directions (mod π) exceeds 1 + 2/√5 means,
    # the bound of the golden ratio.
    for pairs in (10, 50, 128):
        x, y = golden_gate_frequencies(1, 2 * pairs, slowest=1.0, fastest=1.0)[0]
        angle = torch.atan2(y, x).remainder(math.pi).sort().values
        gaps = torch.cat((angle.diff(), angle[:1] + math.pi - angle[-1:]))
        assert float(gaps.max()) <= (1 + 2 / math.sqrt(5)) * math.pi / pairs


def test_a_schedule_goes_through() -> None:
    at, half = (
        vision_block(Vision(2, 2, 3), 5),
        mrope_frequencies(SERIES / 2, (4, 2, 2)),
    )
    torch.testing.assert_close(
        AxialRoPE(half)(at).cos,
        AxialRoPE(mrope_frequencies(SERIES, (4, 2, 2)))(at / 2).cos,
    )


# ---- grids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("height", "width"), [(2, 3), (3, 2), (1, 5), (4, 4), (5, 1)])
def test_F1_73_rope_2d(
    height: int, width: int, dtype: torch.dtype, layout: str
) -> None:
    positions = grid((height, width))
    assert positions.tolist() == [[y, x] for y in range(height) for x in range(width)]
    if (height, width) == (2, 3):
        assert [tuple(p) for p in positions.tolist()] == [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
            (1, 2),
        ]
    x = normal(1, 1, 1, 8, dtype=dtype).expand(1, 1, height * width, 8)
    out = AxialRoPE(axial_frequencies((2, 2)), layout)(positions, dtype)(x).reshape(
        height, width, 8
    )
    row, column = (
        ([0, 1, 2, 3], [4, 5, 6, 7])
        if layout == "interleaved"
        else ([0, 1, 4, 5], [2, 3, 6, 7])
    )
    for y, z in itertools.product(range(height), range(width)):
        assert torch.equal(
            out[y, z, row], out[y, 0, row]
        )  # one column on: only the column's channels change
        assert torch.equal(out[y, z, column], out[0, z, column])
        assert z == 0 or not torch.equal(out[y, z, column], out[y, z - 1, column])
        assert y == 0 or not torch.equal(out[y, z, row], out[y - 1, z, row])
    if (
        height != width
    ):  # the other axis order keeps the order of the tokens, and differs on rectangles
        swapped = grid((width, height))
        assert swapped.tolist() != positions.flip(-1).tolist() or 1 in (height, width)
        assert positions.flip(-1).tolist() == [
            [x, y] for y in range(height) for x in range(width)
        ]


def test_grids_count() -> None:
    assert grid((2, 1, 2), first=1).tolist() == [
        [1, 1, 1],
        [1, 1, 2],
        [2, 1, 1],
        [2, 1, 2],
    ]
    assert grid((3,)).tolist() == [[0], [1], [2]]
    assert grid((2, 2)).dtype == torch.int64


def test_merged_grid_goes_block_by_block() -> None:
    height, width, merge = 4, 6, 2
    expected = [
        [b_row * merge + row, b_column * merge + column]
        for b_row in range(height // merge)
        for b_column in range(width // merge)
        for row in range(merge)
        for column in range(merge)
    ]
    assert merged_grid(height, width, merge).tolist() == expected
    assert merged_grid(height, width, 1).tolist() == grid((height, width)).tolist()
    assert sorted(merged_grid(6, 4, 2).tolist()) == grid((6, 4)).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_grids_of_coordinates(dtype: torch.dtype) -> None:
    exact = {"atol": 0, "rtol": torch.finfo(dtype).eps}
    cells = [[i, j] for i in range(2) for j in range(3)]
    expected = [[2 * (i + 0.5) / 2 - 1, 2 * (j + 0.5) / 3 - 1] for i, j in cells]
    torch.testing.assert_close(
        centred_grid((2, 3), dtype=dtype),
        torch.tensor(expected, dtype=dtype),
        atol=1e-7,
        rtol=0,
    )
    expected = [[2 * i - 1, j - 1] for i, j in cells]
    torch.testing.assert_close(
        spanning_grid((2, 3), dtype=dtype), torch.tensor(expected, dtype=dtype), **exact
    )
    expected = [[(i + 0.5) * 16 / 2, (j + 0.5) * 16 / 3] for i, j in cells]
    actual = resized_grid((2, 3), (16, 16), offset=0.5, dtype=dtype)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=dtype), **exact)
    assert spanning_grid((1, 2)).tolist() == [[-1, -1], [-1, 1]]
    assert torch.equal(resized_grid((3, 4), (3, 4)), grid((3, 4)).double())


def test_a_finer_grid_of_the_same_image_has_the_same_extent() -> None:
    coarse, fine = centred_grid((4, 4)), centred_grid((8, 8)).reshape(8, 8, 2)
    means = fine.reshape(4, 2, 4, 2, 2).mean((1, 3)).reshape(16, 2)
    torch.testing.assert_close(means, coarse)


def test_jitter_is_the_released_order_of_steps() -> None:
    at = centred_grid((2, 3))
    assert torch.equal(jittered(at), at)
    draw = seeded(4)
    u = [2 * torch.rand(n, dtype=torch.float64, generator=draw) - 1 for n in (2, 2, 1)]
    expected = (
        (at + 0.3 * u[0]) * (math.log(1.5) * u[1]).exp() * (math.log(2) * u[2]).exp()
    )
    torch.testing.assert_close(
        jittered(at, shift=0.3, jitter=1.5, rescale=2.0, generator=seeded(4)), expected
    )
    only = jittered(at, rescale=2.0, generator=seeded(5)) / at
    torch.testing.assert_close(only[at != 0], only[0, 0].expand_as(only[at != 0]))
    assert 0.5 <= float(only[0, 0]) <= 2
    for seed in range(20):
        moved = jittered(at, shift=0.25, generator=seeded(seed)) - at
        assert float(moved.abs().max()) <= 0.25
        assert float((moved - moved[0]).abs().max()) < 1e-15
    assert jittered(at.float(), shift=0.1).dtype == torch.float32


# ---- prompts


def reference_positions(blocks: list[Block], following: str) -> list[list[int]]:
    """Token by token, in plain Python."""
    out: list[list[int]] = []
    start = 0
    for block in blocks:
        if isinstance(block, int):
            for _ in range(block):
                out.append([start] * 3)
                start += 1
            continue
        assert isinstance(block, Vision)
        mine = []
        for f in range(block.frames):
            for row in range(block.height):
                for column in range(block.width):
                    mine.append(
                        [
                            start + math.floor(f * block.step),
                            start + row,
                            start + column,
                        ]
                    )
        out += mine
        start = (
            max(max(p) for p in mine) + 1
            if following == "maximum"
            else start + max(block.height, block.width)
        )
    return out


vision = st.builds(
    Vision,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2, 0.5, 0.75, 25.0]),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 5) | vision, min_size=1, max_size=6),
    st.sampled_from(["maximum", "longest side"]),
)
def test_prompts_token_by_token(blocks: list[Block], following: str) -> None:
    positions = mrope_positions(blocks, following=following)
    assert positions.tolist() == reference_positions(blocks, following)
    assert torch.equal(
        mrope_positions(blocks, following=following, start=7), positions + 7
    )
    assert positions.dtype == torch.int64
    if all(
        not isinstance(b, Vision) or b.frames == 1 for b in blocks
    ):  # images: both rules are one
        assert torch.equal(
            mrope_positions(blocks, following="maximum"),
            mrope_positions(blocks, following="longest side"),
        )


def test_the_rules_differ_after_a_long_video() -> None:
    blocks = [2, Vision(5, 2, 2, 2.0), 4]
    assert mrope_positions(blocks)[-4:, 0].tolist() == [11, 12, 13, 14]
    overlapping = mrope_positions(blocks, following="longest side")
    assert overlapping[-4:, 0].tolist() == [4, 5, 6, 7]
    assert int(overlapping[:-4].max()) == 10  # the text stands where the video still is
    assert next_positions(overlapping).tolist() == [[11, 11, 11]]


def test_times_are_cut_not_rounded() -> None:
    assert vision_block(Vision(5, 1, 1, 2 * 0.45))[:, 0].tolist() == [0, 0, 1, 2, 3]
    assert vision_block(Vision(3, 1, 1, 2 * int(0.5)))[:, 0].tolist() == [
        0,
        0,
        0,
    ]  # transformers 4
    assert vision_block(Vision(3, 1, 1, 2 * 0.5))[:, 0].tolist() == [0, 1, 2]


def reference_audio_video(
    video: list[list[int]], audio: int, start: int, chunk: int
) -> list[list[int]]:
    """The released rule with one counter for each stream, written as a walk through the two streams."""

    def cut(times: list[int]) -> list[int]:
        """Chunk number of every token."""
        current, numbers = 0, []
        for time in times:
            if time - start - 1 >= (current + 1) * chunk:
                current += 1
            numbers.append(current)
        return numbers

    sound = [[start + 1 + i] * 3 for i in range(audio)]
    tagged = [(c, 0, p) for c, p in zip(cut([p[0] for p in video]), video, strict=True)]
    tagged += [
        (c, 1, p) for c, p in zip(cut([p[0] for p in sound]), sound, strict=True)
    ]
    tagged.sort(key=lambda item: item[:2])  # stable: the order within a piece stays
    last = [p for c, stream, p in tagged if (c, stream) == tagged[-1][:2]]
    end = max(max(p) for p in last) + 1
    return [[start] * 3] * 2 + [p for _, _, p in tagged] + [[end] * 3] * 2


@settings(deadline=None, max_examples=60)
@given(vision, st.integers(1, 30), st.sampled_from([1, 3, 10, 50]), st.integers(0, 9))
def test_audio_in_video_token_by_token(
    video: Vision, audio: int, chunk: int, start: int
) -> None:
    block = AudioVideo(video, audio, chunk)
    positions = audio_video_block(block, start)
    expected = reference_audio_video(
        vision_block(video, start + 1).tolist(), audio, start, chunk
    )
    assert positions.tolist() == expected
    prompt = mrope_positions([3, block, 2])
    assert prompt[-2:, 0].tolist() == [int(prompt[-3, 0]) + 1, int(prompt[-3, 0]) + 2]
    assert torch.equal(prompt[3:-2], audio_video_block(block, 3))


def test_sound_and_picture_share_a_clock() -> None:
    positions = audio_video_block(
        AudioVideo(Vision(4, 2, 2, 25.0), 100)
    )  # four seconds, one frame each
    body = positions[2:-2]
    assert body[:8, 0].tolist() == [1] * 4 + [26] * 4  # two seconds of video
    assert torch.equal(
        body[8:58], equal_axes(torch.arange(1, 51))
    )  # then two seconds of sound
    assert body[58:66, 0].tolist() == [51] * 4 + [76] * 4
    assert torch.equal(body[66:], equal_axes(torch.arange(51, 101)))


def test_timestamps() -> None:
    frame = Vision(1, 2, 3)
    assert timestamped(Vision(2, 2, 3, 9.0), [4, 5]) == [4, frame, 5, frame]
    blocks = [*timestamped(Vision(3, 2, 3), [4, 5, 5]), 2]
    assert torch.equal(
        mrope_positions(blocks), mrope_positions(blocks, following="longest side")
    )


@pytest.mark.parametrize("step", [1, 2, 0.5])
def test_videorope_token_by_token(step: float) -> None:
    blocks = [2, Vision(3, 3, 4, step), 2, Vision(1, 2, 2), 3]
    out: list[list[float]] = []
    start = 0.0
    for block in blocks:
        if isinstance(block, int):
            out += [[start + i] * 3 for i in range(block)]
            start += block
            continue
        for f, row, column in itertools.product(*(range(n) for n in block[:3])):
            tau = start + block.step * f
            out.append(
                [
                    tau,
                    tau + row - (block.height - 1) // 2,
                    tau + column - (block.width - 1) // 2,
                ]
            )
        start = out[-1][0] + 1
    assert videorope_positions(blocks).tolist() == out
    assert videorope_positions(blocks, dtype=torch.float32).dtype == torch.float32
    assert torch.equal(
        videorope_positions([4]), equal_axes(torch.arange(4.0, dtype=torch.float64))
    )


def test_videorope_decodes_after_the_last_time() -> None:
    positions = videorope_positions([1, Vision(2, 1, 9)])
    assert float(positions.max()) == 6  # the last column is ahead of the diagonal
    assert next_positions(positions, axis=0).tolist() == [[3.0] * 3]
    assert torch.equal(
        next_positions(positions, axis=0)[0],
        videorope_positions([1, Vision(2, 1, 9), 1])[-1],
    )


def test_decoding_goes_on_as_the_prompt_would() -> None:
    blocks = [3, Vision(4, 2, 3, 2.0), 2]
    prompt = mrope_positions(blocks)
    for steps in (1, 2, 5):  # windows of drafted tokens advance too
        assert torch.equal(
            next_positions(prompt, steps), mrope_positions([*blocks, steps])[-steps:]
        )
    assert int(next_positions(prompt)[0, 0]) != len(
        prompt
    )  # the number of tokens is not the position


def test_axes_are_moved_one_by_one() -> None:
    """Positions of text may be written to: no axis is a view of another, or of what was given."""
    text = arange(3)
    at = equal_axes(text)
    at[:, 1] += 10
    assert torch.equal(at, torch.tensor([[0, 10, 0], [1, 11, 1], [2, 12, 2]]))
    assert torch.equal(text, arange(3))
    following = next_positions(mrope_positions([3]), 3)
    following[:, 1] += 10
    assert torch.equal(following, torch.tensor([[3, 13, 3], [4, 14, 4], [5, 15, 5]]))


def test_nothing_follows_a_row_of_padding() -> None:
    at, mask = torch.tensor([[[5, 5, 5]], [[9, 9, 9]]]), torch.tensor([[True], [False]])
    with pytest.raises(ValueError, match="mask must have a token in every row"):
        next_positions(at, mask=mask)


def test_decoding_a_batch() -> None:
    rows = [mrope_positions([1, Vision(1, 2, 2), 2]), mrope_positions([3])]
    for mask in ([[1] * 7, [0, 0, 0, 0, 1, 1, 1]], [[1] * 7, [1, 1, 1, 0, 0, 0, 0]]):
        real = torch.tensor(mask)
        positions = place_rows(rows, real, padding=99)
        assert positions[1][real[1] == 1].tolist() == rows[1].tolist()
        assert bool((positions[real == 0] == 99).all())
        ahead = next_positions(positions, 2, mask=real)
        assert ahead[0].tolist() == next_positions(rows[0], 2).tolist()
        assert ahead[1].tolist() == [[3] * 3, [4] * 3]


@pytest.mark.parametrize("left", [True, False])
def test_a_padded_row_is_as_the_row_alone(left: bool) -> None:
    matrix = mrope_frequencies(inverse_frequencies(8), (2, 1, 1))
    rope = AxialRoPE(matrix, layout="half")
    row, padding = mrope_positions([2, Vision(1, 2, 2), 1]), 3
    q, k, v = (normal(1, 2, 7, 8, seed=s) for s in range(3))
    alone = weighted(rope, q, k, v, row[None], torch.ones(1, 7, dtype=torch.bool))
    sides = (padding, 0) if left else (0, padding)
    mask = pad(torch.ones(1, 7, dtype=torch.bool), sides)
    padded = [pad(x, (0, 0, *sides), value=1.0) for x in (q, k, v)]
    out = weighted(rope, *padded, place_rows([row], mask), mask)
    torch.testing.assert_close(out[:, :, mask[0]], alone)


def weighted(
    rope: AxialRoPE, q: Tensor, k: Tensor, v: Tensor, at: Tensor, mask: Tensor
) -> Tensor:
    q, k = rope.transform(q, k, at, at)
    count = arange(q.shape[2])
    allowed = causal(count, count) & key_padding_mask(mask)
    return attention(q, k, v, q_positions=count, k_positions=count, mask=allowed)


# ---- positions for length generalisation


def test_randomised_positions_are_an_ordered_sample() -> None:
    for length, maximum in ((1, 1), (5, 5), (5, 40), (40, 2048)):
        p = randomised(length, maximum, generator=seeded(length))
        assert p.shape == (length,)
        assert bool((p.diff() > 0).all())
        assert 0 <= int(p[0]) <= int(p[-1]) < maximum
        assert torch.equal(p, randomised(length, maximum, generator=seeded(length)))
    assert randomised(6, 6).tolist() == list(range(6))
    draw = seeded()
    seen = torch.stack([randomised(2, 4, generator=draw) for _ in range(6000)])
    counts = torch.bincount(4 * seen[:, 0] + seen[:, 1], minlength=16).reshape(4, 4)
    assert int((counts > 0).sum()) == 6  # every pair, in order only
    assert float((counts[counts > 0] - 1000).abs().max()) < 6 * math.sqrt(1000)


def test_abacus_counts_digits_of_each_number() -> None:
    text = "12+345=6,789"
    digits = torch.tensor([[c.isdigit() for c in text]])
    expected = [[1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3]]
    assert abacus(digits).tolist() == expected
    assert abacus(digits.int(), offset=10).tolist() == [
        [p + 10 if p else 0 for p in expected[0]]
    ]
    assert abacus(torch.tensor([[1, 1, 1], [0, 0, 1]])).tolist() == [
        [1, 2, 3],
        [0, 0, 1],
    ]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4)
)
def test_abacus_brute_force(rows: list[list[bool]]) -> None:
    expected = []
    for row in rows:
        run = 0
        expected.append([run := run + 1 if digit else 0 for digit in row])
    assert abacus(torch.tensor(rows)).tolist() == expected


def test_coupled_addition_gives_a_place_value_one_position() -> None:
    # 653+49=2070: the sum has its ones first, "+" and "=" are one below the ones
    assert coupled_addition(3, 2, 4, start=5).tolist() == [
        8,
        7,
        6,
        5,
        7,
        6,
        5,
        6,
        7,
        8,
        9,
    ]
    a, b, total = "653", "049", "2070"[::-1]
    text = f"{a}+{b}={total}"
    places: dict[int, list[str]] = {}
    for character, p in zip(text, coupled_addition(3, 3, 4).tolist(), strict=True):
        places.setdefault(p, []).append(character)
    assert places == {
        1: ["+", "="],
        2: ["3", "9", "0"],
        3: ["5", "4", "7"],
        4: ["6", "0", "0"],
        5: ["2"],
    }


# ---- trees


def reference_tree(parents: list[int]) -> tuple[list[list[bool]], list[int]]:
    mask = [[False] * len(parents) for _ in parents]
    depth = []
    for i in range(len(parents)):
        node, count = i, -1
        while node >= 0:
            mask[i][node] = True
            node, count = parents[node], count + 1
        depth.append(count)
    return mask, depth


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=33))
def test_tree_brute_force(draws: list[int]) -> None:
    parents = [draw % (i + 1) - 1 for i, draw in enumerate(draws)]
    mask, depth = reference_tree(parents)
    assert tree_mask(torch.tensor(parents)).tolist() == mask
    assert tree_positions(torch.tensor(parents), first=4).tolist() == [
        4 + d for d in depth
    ]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33])
def test_a_chain_is_a_causal_sequence(length: int) -> None:
    parents = torch.arange(length) - 1
    at = arange(length)
    assert torch.equal(tree_positions(parents), at)
    assert torch.equal(tree_mask(parents), causal(at, at))


def test_every_path_is_scored_as_if_alone() -> None:
    parents, past = torch.tensor([-1, -1, 0, 0, 1, 2, 2, 4]), 3
    total = past + len(parents)
    scheme = PositionScheme("RoPE", transform=RoPE(inverse_frequencies(8)).transform)
    q, k, v = (normal(1, 2, total, 8, seed=s) for s in range(3))
    at = torch.cat((arange(past), tree_positions(parents, first=past)))
    together = attention(
        q[:, :, past:],
        k,
        v,
        q_positions=at[past:],
        k_positions=at,
        scheme=scheme,
        mask=tree_mask(parents, past=past),
    )
    for leaf in range(len(parents)):
        path = [leaf]
        while int(parents[path[0]]) >= 0:
            path.insert(0, int(parents[path[0]]))
        index = list(range(past)) + [past + node for node in path]
        line = arange(len(index))
        alone = attention(
            *(x[:, :, index] for x in (q, k, v)),
            q_positions=line,
            k_positions=line,
            scheme=scheme,
            mask=causal(line, line),
        )
        torch.testing.assert_close(
            together[:, :, leaf], alone[:, :, -1], atol=1e-12, rtol=0
        )


# ---- the shared properties


Q, K, V = (normal(2, 4, 6, 8, seed=s) for s in range(3))


# ---- machinery


def test_tables_are_rounded_once() -> None:
    at = torch.tensor([[1_000_000, 999_999]])
    tables = (
        AxialRoPE(axial_frequencies((2, 2)))(at),
        AxialRoPE(axial_frequencies((2, 2)))(at, torch.float64),
    )
    assert float((tables[0].cos.double() - tables[1].cos).abs().max()) < 4e-8


def test_module_and_positions_compile() -> None:
    mixed, at = MixedRoPE(2, 8, generator=seeded()), grid((2, 3))
    q, k = (
        normal(1, 2, 6, 8, dtype=torch.float32),
        normal(1, 2, 6, 8, seed=1, dtype=torch.float32),
    )
    compiled = torch.compile(mixed.transform, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, at, at), mixed.transform(q, k, at, at))

    def positions(digits: Tensor, parents: Tensor) -> tuple[Tensor, ...]:
        return (
            abacus(digits),
            tree_positions(parents, first=2),
            tree_mask(parents, past=1),
            next_positions(grid((2, 2))),
        )

    digits, parents = torch.tensor([[1, 1, 0, 1]]), torch.tensor([-1, 0, 0, 2])
    together = torch.compile(positions, fullgraph=True, backend="aot_eager")(
        digits, parents
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(together, positions(digits, parents), strict=True)
    )


def test_what_is_built_on_the_cpu_stays_there() -> None:
    blocks = [2, Vision(2, 2, 2, 0.5), AudioVideo(Vision(2, 1, 1, 25.0), 3)]
    makers: dict[str, Callable[[], Tensor]] = {
        "mrope": lambda: mrope_positions(blocks),
        "videorope": lambda: videorope_positions(blocks[:2]),
        "centred": lambda: centred_grid((2, 3)),
        "spanning": lambda: spanning_grid((2, 3)),
        "resized": lambda: resized_grid((2, 3), (4, 4)),
        "randomised": lambda: randomised(3, 9, generator=seeded()),
        "pixel": lambda: pixel_frequencies(3, 8),
        "octave": lambda: pixel_frequencies(3, 8, spacing="geometric"),
        "golden gate": lambda: golden_gate_frequencies(2, 8, slowest=1.0, fastest=2.0),
        "interleaved": lambda: mrope_interleaved_frequencies(SERIES, (4, 2, 2)),
    }
    for name, make in makers.items():
        expected = make()
        with torch.device("meta"):
            actual = make()
        assert torch.equal(actual, expected), name


def test_gradcheck_of_the_learned_frequencies() -> None:
    q, k, at = normal(1, 2, 4, 8), normal(1, 2, 4, 8, seed=1), grid((2, 2))

    def run(frequencies: Tensor, q: Tensor) -> Tensor:
        return scores(AxialRoPE(frequencies), q, k, at, at)

    start = mixed_frequencies(2, 8, generator=seeded()).requires_grad_()
    assert torch.autograd.gradcheck(run, (start, q.requires_grad_()))
    mixed = MixedRoPE(2, 8, generator=seeded())
    scores(mixed, q.float(), k.float(), at, at).square().sum().backward()
    assert mixed.frequencies.grad is not None
    assert float(mixed.frequencies.grad.abs().min()) > 0


def test_inputs_are_not_changed() -> None:
    q, at = normal(1, 2, 6, 8), grid((2, 3))
    copies = q.clone(), at.clone()
    AxialRoPE(normal(2, 2, 4)).transform(q, q, at, at)
    next_positions(at, mask=None)
    assert torch.equal(q, copies[0])
    assert torch.equal(at, copies[1])


# ---- refused input


X = normal(1, 2, 6, 8)
AT = grid((2, 3))
TEXT = equal_axes(arange(6))
MASK = torch.tensor([[1, 1, 1]])
AXES = torch.zeros(3, 2)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: AxialRoPE(SERIES), ValueError, "frequencies"),
    (lambda: AxialRoPE(normal(1, 2, 2, 4)), ValueError, "frequencies"),
    (lambda: AxialRoPE(normal(2, 4).half()), TypeError, "frequencies"),
    (lambda: AxialRoPE(torch.ones(2, 4, dtype=torch.int64)), TypeError, "frequencies"),
    (lambda: AxialRoPE(normal(2, 4), layout="halves"), ValueError, "layout"),
    (
        lambda: AxialRoPE(normal(2, 4), attention_factor=0.0),
        ValueError,
        "attention_factor",
    ),
    (lambda: AxialRoPE(normal(2, 4))(TEXT), ValueError, "positions"),
    (lambda: AxialRoPE(normal(2, 4))(arange(2)), ValueError, "positions"),
    (lambda: AxialRoPE(normal(2, 4))(AT.bfloat16()), TypeError, "positions"),
    (
        lambda: AxialRoPE(normal(2, 4))(torch.tensor([[0.0, math.nan]])),
        ValueError,
        "positions",
    ),
    (lambda: AxialRoPE(normal(2, 4))(AT, torch.int64), TypeError, "dtype"),
    (lambda: AxialRoPE(normal(2, 2, 4))(AT), ValueError, "frequencies"),
    (
        lambda: AxialRoPE(normal(2, 4)).transform(X, X, AT, TEXT),
        ValueError,
        "k_positions",
    ),
    (
        lambda: AxialRoPE(normal(2, 4)).transform(X, X, AT[:5], AT),
        ValueError,
        "q must have one token",
    ),
    (
        lambda: AxialRoPE(normal(2, 5)).transform(X, X, AT, AT),
        ValueError,
        "q must have at least 10",
    ),
    (
        lambda: AxialRoPE(normal(3, 2, 4)).transform(X, X, AT, AT),
        ValueError,
        "q must have",
    ),
    (
        lambda: AxialRoPE(normal(2, 2, 4)).transform(X, X[:, :1], AT, AT),
        ValueError,
        "k must have",
    ),
    (
        lambda: AxialRoPE(normal(2, 2, 4)).transform(X, X, AT.expand(3, 6, 2), AT),
        ValueError,
        "q must have",
    ),
    (lambda: MixedRoPE(0, 8), ValueError, "heads"),
    (lambda: MixedRoPE(2, 6), ValueError, "dim"),
    (lambda: MixedRoPE(2, 8, base=-1.0), ValueError, "base"),
    (lambda: MixedRoPE(2, 8, layout="none"), ValueError, "layout"),
    (lambda: block_frequencies(), ValueError, "per_axis"),
    (lambda: block_frequencies(SERIES, normal(2, 2)), ValueError, r"per_axis\[1\]"),
    (lambda: axial_frequencies(()), ValueError, "sections"),
    (lambda: axial_frequencies((2, 0)), ValueError, r"sections\[1\]"),
    (lambda: axial_frequencies((2, 2.0)), TypeError, r"sections\[1\]"),
    (lambda: dinov3_frequencies(6), ValueError, "dim"),
    (lambda: dinov3_frequencies(2), ValueError, "dim"),
    (lambda: pixel_frequencies(0, 8), ValueError, "count"),
    (lambda: pixel_frequencies(2, 1), ValueError, "resolution"),
    (lambda: pixel_frequencies(2, 1.5, spacing="geometric"), ValueError, "resolution"),
    (lambda: pixtral_frequencies(SERIES[:3]), ValueError, "frequencies"),
    (lambda: mrope_frequencies(normal(2, 4), (2, 1, 1)), ValueError, "frequencies"),
    (lambda: mrope_frequencies(SERIES, (4, 2, 1)), ValueError, "sections"),
    (lambda: mrope_frequencies(SERIES, (4, 4)), ValueError, "sections"),
    (lambda: mrope_frequencies(SERIES, (6, 1, 1, 0)), ValueError, r"sections\[3\]"),
    (lambda: mrope_interleaved_frequencies(SERIES, (2, 3, 3)), ValueError, "sections"),
    (lambda: videorope_frequencies(SERIES, (4, 1, 3)), ValueError, "sections"),
    (lambda: mixed_frequencies(2, 9), ValueError, "dim"),
    (
        lambda: golden_gate_frequencies(2, 8, slowest=2.0, fastest=1.0),
        ValueError,
        "fastest",
    ),
    (
        lambda: golden_gate_frequencies(2, 8, slowest=0.0, fastest=1.0),
        ValueError,
        "slowest",
    ),
    (
        lambda: golden_gate_frequencies(2, 8, slowest=1.0, fastest=1.0, still=4),
        ValueError,
        "still",
    ),
    (lambda: grid(()), ValueError, "sizes"),
    (lambda: grid((2, 0)), ValueError, r"sizes\[1\]"),
    (lambda: grid((2, 2), first=-1), ValueError, "first"),
    (lambda: merged_grid(4, 5, 2), ValueError, "width"),
    (lambda: merged_grid(4, 4, 0), ValueError, "merge"),
    (lambda: resized_grid((2, 2), (4,)), ValueError, "reference"),
    (lambda: centred_grid((2, 2), dtype=torch.bfloat16), TypeError, "dtype"),
    (lambda: spanning_grid((2, 2), dtype=torch.int64), TypeError, "dtype"),
    (lambda: jittered(AT), TypeError, "coordinates"),
    (lambda: jittered(AT.float(), shift=-0.1), ValueError, "shift"),
    (lambda: jittered(AT.float(), jitter=0.5), ValueError, "jitter"),
    (lambda: jittered(AT.float(), rescale=math.inf), ValueError, "rescale"),
    (lambda: randomised(0, 5), ValueError, "length"),
    (lambda: randomised(6, 5), ValueError, "maximum"),
    (lambda: abacus(torch.tensor([1, 0])), ValueError, "digits"),
    (lambda: abacus(torch.tensor([[1, 2]])), ValueError, "digits"),
    (lambda: abacus(MASK, offset=-1), ValueError, "offset"),
    (lambda: coupled_addition(3, 0, 3), ValueError, "second"),
    (lambda: coupled_addition(3, 3, 3, start=-1), ValueError, "start"),
    (lambda: tree_mask(torch.tensor([0])), ValueError, "parents"),
    (lambda: tree_mask(torch.tensor([-1, 1])), ValueError, "parents"),
    (lambda: tree_positions(torch.tensor([-1, -2])), ValueError, "parents"),
    (lambda: tree_positions(torch.tensor([[-1]])), ValueError, "parents"),
    (lambda: tree_positions(torch.tensor([-1.0])), TypeError, "parents"),
    (lambda: tree_positions([-1]), TypeError, "parents"),
    (lambda: tree_mask(torch.tensor([-1]), past=-1), ValueError, "past"),
    (lambda: equal_axes(AT, 0), ValueError, "axes"),
    (lambda: mrope_positions([]), ValueError, "blocks"),
    (lambda: mrope_positions([2, 0]), ValueError, r"blocks\[1\]"),
    (lambda: mrope_positions([2, True]), TypeError, r"blocks\[1\]"),
    (lambda: mrope_positions([2, (1, 2, 2)]), TypeError, r"blocks\[1\]"),
    (lambda: mrope_positions([Vision(1, 0, 2)]), ValueError, r"blocks\[0\].height"),
    (lambda: mrope_positions([Vision(1, 2, 2, -1.0)]), ValueError, r"blocks\[0\].step"),
    (
        lambda: mrope_positions([AudioVideo(Vision(1, 2, 2), 0)]),
        ValueError,
        r"blocks\[0\].audio",
    ),
    (
        lambda: mrope_positions([AudioVideo((1, 2, 2), 3)]),
        TypeError,
        r"blocks\[0\].video",
    ),
    (
        lambda: mrope_positions([AudioVideo(Vision(1, 2, 2), 3, 0)]),
        ValueError,
        r"blocks\[0\].chunk",
    ),
    (lambda: mrope_positions([2], following="max"), ValueError, "following"),
    (lambda: mrope_positions([2], start=-1), ValueError, "start"),
    (lambda: vision_block((1, 2, 2)), TypeError, "vision"),
    (lambda: vision_block(Vision(1, 2, 2), -1), ValueError, "start"),
    (lambda: audio_video_block(Vision(1, 2, 2)), TypeError, "block"),
    (lambda: timestamped(Vision(2, 2, 2), [3]), ValueError, "text"),
    (lambda: timestamped(Vision(1, 2, 2), [0]), ValueError, r"text\[0\]"),
    (
        lambda: videorope_positions([AudioVideo(Vision(1, 2, 2), 3)]),
        TypeError,
        r"blocks\[0\]",
    ),
    (lambda: videorope_positions([3], dtype=torch.float16), TypeError, "dtype"),
    (lambda: place_rows([TEXT], MASK), ValueError, r"rows\[0\]"),
    (lambda: place_rows([TEXT, TEXT], MASK), ValueError, "rows"),
    (lambda: place_rows([TEXT[:3]], torch.tensor([1, 1, 1])), ValueError, "mask"),
    (
        lambda: place_rows([TEXT[:3], AT[:3]], MASK.expand(2, 3)),
        ValueError,
        r"rows\[1\]",
    ),
    (lambda: next_positions(TEXT, 0), ValueError, "steps"),
    (lambda: next_positions(arange(3)), ValueError, "positions"),
    (lambda: next_positions(TEXT, axis=3), ValueError, "axis"),
    (lambda: next_positions(TEXT[None], mask=MASK), ValueError, "mask"),
    (
        lambda: AxialRoPE(torch.tensor([[1.0, math.nan], [0.0, 0.0]])),
        ValueError,
        "frequencies must be finite, got nan",
    ),
    (
        lambda: AxialRoPE(torch.zeros(2, 0)),
        ValueError,
        r"frequencies must have shape .* got \(2, 0\)",
    ),
    (
        lambda: block_frequencies(torch.zeros(0)),
        ValueError,
        r"per_axis\[0\] must have shape",
    ),
    (
        lambda: block_frequencies(torch.ones(2, dtype=torch.bfloat16)),
        TypeError,
        r"per_axis\[0\] must be float64",
    ),
    (
        lambda: pixtral_frequencies(torch.tensor([math.inf, 1.0])),
        ValueError,
        "frequencies must be finite, got inf",
    ),
    (
        lambda: mrope_frequencies(torch.ones(3, dtype=torch.float16), (1, 1, 1)),
        TypeError,
        "frequencies must be",
    ),
    (
        lambda: AxialRoPE(torch.ones(2, 3)).transform(
            torch.zeros(3, 6), torch.zeros(3, 4), AXES, AXES
        ),
        ValueError,
        "k must have at least 6 channels",
    ),
    (
        lambda: AxialRoPE(torch.ones(2, 3)).transform(
            torch.zeros(4, 6), torch.zeros(3, 6), AXES, AXES
        ),
        ValueError,
        "q must have one token for each of the 3 q_positions",
    ),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_refused_input(number: int) -> None:
    call, error, message = BAD[number]
    with pytest.raises(error, match=message):
        call()
