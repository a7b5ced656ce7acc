"""Rotations by several axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal, rotated_by_loop, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib import properties
from posenc_lib.attention.masks import tree_mask
from posenc_lib.frequencies import inverse_frequencies, pixel_frequencies
from posenc_lib.multimodal_positions import (
    AudioVideo,
    Vision,
    equal_axes,
    mrope_positions,
    next_positions,
    videorope_positions,
    vision_block,
)
from posenc_lib.positions import (
    abacus,
    arange,
    centred_grid,
    grid,
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

SERIES = inverse_frequencies(16)

SHARED = (mrope_frequencies, mrope_interleaved_frequencies, videorope_frequencies)


def scores(
    rope: AxialRoPE | MixedRoPE,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
) -> Tensor:
    q, k = rope.transform(q, k, q_positions, k_positions)
    return q @ k.mT


# ---- the equation, as a loop


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """One (d,) vector at one (axes,) position."""
    return rotated_by_loop(x, (positions @ frequencies).tolist(), layout)


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
    q_positions, k_positions = (
        normal(*((batch,) if batched else ()), length, axes, seed=s) * 5 for s in (4, 5)
    )
    q_out, k_out = AxialRoPE(frequencies, layout=layout).transform(
        q, k, q_positions, k_positions
    )
    for x, positions, out in ((q, q_positions, q_out), (k, k_positions, k_out)):
        for b, h, t in itertools.product(range(batch), range(heads), range(length)):
            p = positions[b, t] if batched else positions[t]
            one = rotated(
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
    q_positions, k_positions, shift = (
        normal(5, 2, seed=3),
        normal(6, 2, seed=4),
        torch.tensor([7.0, -3.0], dtype=torch.float64),
    )
    error = scores(rope, q, k, q_positions + shift, k_positions + shift) - scores(
        rope, q, k, q_positions, k_positions
    )
    assert float(error.abs().max()) < 1e-12
    one_axis = torch.tensor([7.0, 0.0], dtype=torch.float64)
    assert (
        float(
            (
                scores(rope, q, k, q_positions + one_axis, k_positions)
                - scores(rope, q, k, q_positions, k_positions)
            )
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
    q, k, positions = normal(1, 2, 4, 8), normal(1, 2, 4, 8, seed=1), grid((2, 2))
    plain, scaled = (AxialRoPE(normal(2, 4), attention_factor=a) for a in (1.0, 1.5))
    torch.testing.assert_close(
        scores(scaled, q, k, positions, positions),
        2.25 * scores(plain, q, k, positions, positions),
    )
    by_head = AxialRoPE(normal(2, 4).expand(2, 2, 4), attention_factor=1.5)
    torch.testing.assert_close(
        scores(by_head, q, k, positions, positions),
        scores(scaled, q, k, positions, positions),
    )


# ---- special cases: what the forms have in common


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frequencies", SHARED)
def test_equal_axes_are_rope_bit_by_bit(
    frequencies: Callable[..., Tensor], layout: str
) -> None:
    positions = torch.tensor([[0, 5, 9, 100_000], [1, 2, 3, 999_999]])
    matrix = frequencies(SERIES, (4, 2, 2))
    ours, plain = (
        AxialRoPE(matrix, layout)(equal_axes(positions)),
        RoPE(SERIES, layout)(positions),
    )
    assert torch.equal(ours.cos, plain.cos)
    assert torch.equal(ours.sin, plain.sin)
    assert torch.equal(matrix.sum(0), SERIES)


def test_one_axis_is_rope() -> None:
    positions = arange(7, offset=3)
    ours, plain = AxialRoPE(SERIES[None])(positions[:, None]), RoPE(SERIES)(positions)
    assert torch.equal(ours.cos, plain.cos)


def test_axial_is_one_rope_for_each_axis() -> None:
    positions, x = grid((2, 3, 4)), normal(1, 1, 24, 20)
    rotation = AxialRoPE(axial_frequencies((2, 3, 5), 100.0))(positions, torch.float64)
    parts = [
        RoPE(inverse_frequencies(part.shape[-1], 100.0))(
            positions[:, axis], torch.float64
        )(part)
        for axis, part in enumerate(x.split((4, 6, 10), -1))
    ]
    torch.testing.assert_close(rotation(x), torch.cat(parts, -1), atol=1e-13, rtol=0)


def test_mixed_with_directions_along_the_axes_is_axial() -> None:
    mixed = MixedRoPE(2, 8, base=10.0).double()
    with torch.no_grad():
        mixed.frequencies.copy_(axial_frequencies((2, 2), 10.0))
    q, k, positions = normal(1, 2, 6, 8), normal(1, 2, 6, 8, seed=1), grid((2, 3))
    axial = AxialRoPE(axial_frequencies((2, 2), 10.0)).transform(
        q, k, positions, positions
    )
    torch.testing.assert_close(mixed.transform(q, k, positions, positions), axial)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mixed_rope_is_the_equation(layout: str) -> None:
    mixed = MixedRoPE(3, 8, layout=layout, generator=seeded()).double()
    q, k, positions = (
        normal(2, 3, 5, 8),
        normal(2, 3, 5, 8, seed=1),
        normal(5, 2, seed=2),
    )
    q_out, k_out = mixed.transform(q, k, positions, positions)
    for x, out in ((q, q_out), (k, k_out)):
        for b, h, t in itertools.product(range(2), range(3), range(5)):
            expected = rotated(x[b, h, t], positions[t], mixed.frequencies[h], layout)
            torch.testing.assert_close(out[b, h, t], expected, atol=1e-12, rtol=0)


def test_shared_and_batched_positions_agree() -> None:
    q, k, positions = normal(2, 3, 6, 8), normal(2, 3, 6, 8, seed=1), grid((2, 3))
    for frequencies in (normal(2, 4), normal(3, 2, 4)):
        rope = AxialRoPE(frequencies, layout="half")
        torch.testing.assert_close(
            rope.transform(q, k, positions, positions),
            rope.transform(q, k, positions.expand(2, 6, 2), positions.expand(2, 6, 2)),
        )


def test_grouped_queries_share_a_matrix() -> None:
    positions = grid((2, 3))
    q, k = AxialRoPE(normal(2, 4)).transform(
        normal(1, 4, 6, 8), normal(1, 2, 6, 8), positions, positions
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
def test_bug_71_mrope(dtype: torch.dtype, layout: str, offset: int) -> None:
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
def test_bug_71_mrope_sections_of_every_size(sections: tuple[int, int, int]) -> None:
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


@pytest.mark.parametrize("sections", [(2, 1, 1), (1, 2, 1), (4, 6, 6), (16, 24, 24)])
def test_videorope_frequencies_are_the_equation(sections: tuple[int, int, int]) -> None:
    pairs = sum(sections)
    matrix = videorope_frequencies(inverse_frequencies(2 * pairs, 1e6), sections)
    for i in range(pairs):
        space = i < sections[1] + sections[2]  # height and width alternate, then time
        axis = 1 + i % 2 if space else 0
        for a in range(3):
            expected = 1e6 ** (-i / pairs) if a == axis else 0.0
            assert float(matrix[a, i]) == pytest.approx(expected, rel=1e-13)


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


def test_dinov3_frequencies_are_the_equation() -> None:
    matrix = dinov3_frequencies(16, 50.0)
    assert matrix.shape == (2, 8)
    for axis, i in itertools.product(range(2), range(8)):
        owned = i // 4 == axis  # the row's four pairs, then the column's
        expected = 2 * math.pi * 50 ** (-4 * (i % 4) / 16) if owned else 0.0
        assert float(matrix[axis, i]) == pytest.approx(expected, rel=1e-13)


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
    positions, half = (
        vision_block(Vision(2, 2, 3), 5),
        mrope_frequencies(SERIES / 2, (4, 2, 2)),
    )
    torch.testing.assert_close(
        AxialRoPE(half)(positions).cos,
        AxialRoPE(mrope_frequencies(SERIES, (4, 2, 2)))(positions / 2).cos,
    )


# ---- grids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("height", "width"), [(2, 3), (3, 2), (1, 5), (4, 4), (5, 1)])
def test_bug_73_rope_2d(
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


# ---- machinery


def test_tables_are_rounded_once() -> None:
    positions = torch.tensor([[1_000_000, 999_999]])
    tables = (
        AxialRoPE(axial_frequencies((2, 2)))(positions),
        AxialRoPE(axial_frequencies((2, 2)))(positions, torch.float64),
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
    q, k, positions = normal(1, 2, 4, 8), normal(1, 2, 4, 8, seed=1), grid((2, 2))

    def run(frequencies: Tensor, q: Tensor) -> Tensor:
        return scores(AxialRoPE(frequencies), q, k, positions, positions)

    start = mixed_frequencies(2, 8, generator=seeded()).requires_grad_()
    assert torch.autograd.gradcheck(run, (start, q.requires_grad_()))
    mixed = MixedRoPE(2, 8, generator=seeded())
    scores(mixed, q.float(), k.float(), positions, positions).square().sum().backward()
    assert mixed.frequencies.grad is not None
    assert float(mixed.frequencies.grad.abs().min()) > 0


def test_inputs_are_not_changed() -> None:
    q, positions = normal(1, 2, 6, 8), grid((2, 3))
    copies = q.clone(), positions.clone()
    AxialRoPE(normal(2, 2, 4)).transform(q, q, positions, positions)
    next_positions(positions, mask=None)
    assert torch.equal(q, copies[0])
    assert torch.equal(positions, copies[1])


X = normal(1, 2, 6, 8)

AT = grid((2, 3))

TEXT = equal_axes(arange(6))

AXES = torch.zeros(3, 2)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "AxialRoPE(SERIES)": (
        lambda: AxialRoPE(SERIES),
        ValueError,
        "frequencies",
    ),
    "AxialRoPE(normal(1, 2, 2, 4))": (
        lambda: AxialRoPE(normal(1, 2, 2, 4)),
        ValueError,
        "frequencies",
    ),
    "AxialRoPE(normal(2, 4).half())": (
        lambda: AxialRoPE(normal(2, 4).half()),
        TypeError,
        "frequencies",
    ),
    "AxialRoPE(torch.ones(2, 4, dtype=torch.int64))": (
        lambda: AxialRoPE(torch.ones(2, 4, dtype=torch.int64)),
        TypeError,
        "frequencies",
    ),
    "AxialRoPE: layout": (
        lambda: AxialRoPE(normal(2, 4), layout="halves"),
        ValueError,
        "layout",
    ),
    "AxialRoPE: attention_factor": (
        lambda: AxialRoPE(normal(2, 4), attention_factor=0.0),
        ValueError,
        "attention_factor",
    ),
    "AxialRoPE(normal(2, 4))(TEXT)": (
        lambda: AxialRoPE(normal(2, 4))(TEXT),
        ValueError,
        "positions",
    ),
    "AxialRoPE(normal(2, 4))(arange(2))": (
        lambda: AxialRoPE(normal(2, 4))(arange(2)),
        ValueError,
        "positions",
    ),
    "AxialRoPE(normal(2, 4))(AT.bfloat16())": (
        lambda: AxialRoPE(normal(2, 4))(AT.bfloat16()),
        TypeError,
        "positions",
    ),
    "AxialRoPE(normal(2, 4))(torch.tensor([[0.0, math.nan]]))": (
        lambda: AxialRoPE(normal(2, 4))(torch.tensor([[0.0, math.nan]])),
        ValueError,
        "positions",
    ),
    "AxialRoPE: dtype": (
        lambda: AxialRoPE(normal(2, 4))(AT, torch.int64),
        TypeError,
        "dtype",
    ),
    "AxialRoPE(normal(2, 2, 4))(AT)": (
        lambda: AxialRoPE(normal(2, 2, 4))(AT),
        ValueError,
        "frequencies",
    ),
    "AxialRoPE: k_positions": (
        lambda: AxialRoPE(normal(2, 4)).transform(X, X, AT, TEXT),
        ValueError,
        "k_positions",
    ),
    "AxialRoPE(normal(2, 4)).transform(X, X, AT[:5], AT)": (
        lambda: AxialRoPE(normal(2, 4)).transform(X, X, AT[:5], AT),
        ValueError,
        "q must have one token",
    ),
    "AxialRoPE(normal(2, 5)).transform(X, X, AT, AT)": (
        lambda: AxialRoPE(normal(2, 5)).transform(X, X, AT, AT),
        ValueError,
        "q must have at least 10",
    ),
    "AxialRoPE(normal(3, 2, 4)).transform(X, X, AT, AT)": (
        lambda: AxialRoPE(normal(3, 2, 4)).transform(X, X, AT, AT),
        ValueError,
        "q must have",
    ),
    "AxialRoPE(normal(2, 2, 4)).transform(X, X[:, :1], AT, AT)": (
        lambda: AxialRoPE(normal(2, 2, 4)).transform(X, X[:, :1], AT, AT),
        ValueError,
        "k must have",
    ),
    "AxialRoPE: positions of three rows": (
        lambda: AxialRoPE(normal(2, 2, 4)).transform(X, X, AT.expand(3, 6, 2), AT),
        ValueError,
        "q must have",
    ),
    "MixedRoPE: heads": (
        lambda: MixedRoPE(0, 8),
        ValueError,
        "heads",
    ),
    "MixedRoPE: dim": (
        lambda: MixedRoPE(2, 6),
        ValueError,
        "dim",
    ),
    "MixedRoPE: base": (
        lambda: MixedRoPE(2, 8, base=-1.0),
        ValueError,
        "base",
    ),
    "MixedRoPE: layout": (
        lambda: MixedRoPE(2, 8, layout="none"),
        ValueError,
        "layout",
    ),
    "block_frequencies: per_axis": (
        lambda: block_frequencies(),
        ValueError,
        "per_axis",
    ),
    "block_frequencies: per_axis[1]": (
        lambda: block_frequencies(SERIES, normal(2, 2)),
        ValueError,
        r"per_axis\[1\]",
    ),
    "axial_frequencies((2, 0))": (
        lambda: axial_frequencies((2, 0)),
        ValueError,
        r"sections\[1\]",
    ),
    "dinov3_frequencies(6)": (
        lambda: dinov3_frequencies(6),
        ValueError,
        "dim",
    ),
    "dinov3_frequencies(2)": (
        lambda: dinov3_frequencies(2),
        ValueError,
        "dim",
    ),
    "pixtral_frequencies(SERIES[:3])": (
        lambda: pixtral_frequencies(SERIES[:3]),
        ValueError,
        "frequencies",
    ),
    "mrope_frequencies(normal(2, 4), (2, 1, 1))": (
        lambda: mrope_frequencies(normal(2, 4), (2, 1, 1)),
        ValueError,
        "frequencies",
    ),
    "mrope_frequencies(SERIES, (4, 2, 1))": (
        lambda: mrope_frequencies(SERIES, (4, 2, 1)),
        ValueError,
        "sections",
    ),
    "mrope_frequencies(SERIES, (4, 4))": (
        lambda: mrope_frequencies(SERIES, (4, 4)),
        ValueError,
        "sections",
    ),
    "mrope_frequencies: sections[3]": (
        lambda: mrope_frequencies(SERIES, (6, 1, 1, 0)),
        ValueError,
        r"sections\[3\]",
    ),
    "mrope_interleaved_frequencies: sections": (
        lambda: mrope_interleaved_frequencies(SERIES, (2, 3, 3)),
        ValueError,
        "sections",
    ),
    "videorope_frequencies: sections": (
        lambda: videorope_frequencies(SERIES, (4, 1, 3)),
        ValueError,
        "sections",
    ),
    "mixed_frequencies: dim": (
        lambda: mixed_frequencies(2, 9),
        ValueError,
        "dim",
    ),
    "golden_gate_frequencies: fastest": (
        lambda: golden_gate_frequencies(2, 8, slowest=2.0, fastest=1.0),
        ValueError,
        "fastest",
    ),
    "golden_gate_frequencies: slowest": (
        lambda: golden_gate_frequencies(2, 8, slowest=0.0, fastest=1.0),
        ValueError,
        "slowest",
    ),
    "golden_gate_frequencies: still": (
        lambda: golden_gate_frequencies(2, 8, slowest=1.0, fastest=1.0, still=4),
        ValueError,
        "still",
    ),
    "AxialRoPE(torch.tensor([[1.0, math.nan], [0.0, 0.0]]))": (
        lambda: AxialRoPE(torch.tensor([[1.0, math.nan], [0.0, 0.0]])),
        ValueError,
        "frequencies must be finite, got nan",
    ),
    "AxialRoPE(torch.zeros(2, 0))": (
        lambda: AxialRoPE(torch.zeros(2, 0)),
        ValueError,
        r"frequencies must have shape .* got \(2, 0\)",
    ),
    "block_frequencies(torch.zeros(0))": (
        lambda: block_frequencies(torch.zeros(0)),
        ValueError,
        r"per_axis\[0\] must have shape",
    ),
    "block_frequencies(torch.ones(2, dtype=torch.bfloat16))": (
        lambda: block_frequencies(torch.ones(2, dtype=torch.bfloat16)),
        TypeError,
        r"per_axis\[0\] must be float64",
    ),
    "pixtral_frequencies(torch.tensor([math.inf, 1.0]))": (
        lambda: pixtral_frequencies(torch.tensor([math.inf, 1.0])),
        ValueError,
        "frequencies must be finite, got inf",
    ),
    "mrope_frequencies: frequencies in float16": (
        lambda: mrope_frequencies(torch.ones(3, dtype=torch.float16), (1, 1, 1)),
        TypeError,
        "frequencies must be",
    ),
    "AxialRoPE: k too narrow": (
        lambda: AxialRoPE(torch.ones(2, 3)).transform(
            torch.zeros(3, 6), torch.zeros(3, 4), AXES, AXES
        ),
        ValueError,
        "k must have at least 6 channels",
    ),
    "AxialRoPE: q longer than its positions": (
        lambda: AxialRoPE(torch.ones(2, 3)).transform(
            torch.zeros(4, 6), torch.zeros(3, 6), AXES, AXES
        ),
        ValueError,
        "q must have one token for each of the 3 q_positions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
