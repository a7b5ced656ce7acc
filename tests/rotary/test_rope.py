"""RoPE and its rotations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers import (
    EPS,
    WIDTH,
    normal,
)
from hypothesis import given
from hypothesis import strategies as st

from posenc_lib import properties
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.properties import max_error
from posenc_lib.rotary import LAYOUTS, RoPE, Rotation

layouts = st.sampled_from(LAYOUTS)
offsets = st.integers(0, 4000)
seeds = st.integers(0, 1000)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_rope_is_the_equation(layout: str, rotary_dim: int) -> None:
    q, k = normal(2, 3, 5, 8), normal(2, 3, 5, 8, seed=1)
    m, n = torch.tensor([0, 1, 5, 70, 1000]), torch.arange(5) + 3
    rotary = RoPE(inverse_frequencies(rotary_dim, 500.0), layout=layout)
    q_out, k_out = rotary.transform(q, k, m, n)
    pairs = rotary_dim // 2
    for x, positions, out in ((q, m, q_out), (k, n, k_out)):
        for b, h, t in itertools.product(range(2), range(3), range(5)):
            expected = x[b, h, t].clone()
            for i in range(pairs):
                angle = int(positions[t]) * 500.0 ** (-2 * i / rotary_dim)
                first, second = (2 * i, 2 * i + 1)
                if layout == "half":
                    first, second = (i, i + pairs)
                one, two = float(x[b, h, t, first]), float(x[b, h, t, second])
                expected[first] = one * math.cos(angle) - two * math.sin(angle)
                expected[second] = one * math.sin(angle) + two * math.cos(angle)
            torch.testing.assert_close(out[b, h, t], expected, atol=1e-11, rtol=0)


def rope_of(layout: str, pairs: int = WIDTH // 2, factor: float = 1.0) -> RoPE:
    return RoPE(inverse_frequencies(2 * pairs), layout=layout, attention_factor=factor)


@given(
    layout=layouts,
    pairs=st.integers(1, 8),
    rest=st.integers(0, 3),
    start=offsets,
    seed=seeds,
)
def test_a_rotation_changes_no_length(
    layout: str, pairs: int, rest: int, start: int, seed: int
) -> None:
    x, positions = normal(2, 3, 5, 2 * pairs + rest, seed=seed), arange(5, offset=start)
    bound = 16 * EPS * float(x.norm(dim=-1).max())
    assert (
        properties.norm_error(rope_of(layout, pairs)(positions, torch.float64), x)
        <= bound
    )
    scaled = properties.norm_error(
        rope_of(layout, pairs, 1.5)(positions, torch.float64), x[..., : 2 * pairs]
    )
    assert scaled == pytest.approx(0.5 * float(x[..., : 2 * pairs].norm(dim=-1).max()))


@given(
    layout=layouts, m=st.integers(-4000, 4000), n=st.integers(-4000, 4000), seed=seeds
)
def test_rotations_are_a_group(layout: str, m: int, n: int, seed: int) -> None:
    rope, x, one = rope_of(layout), normal(1, WIDTH, seed=seed), torch.tensor([1])
    bound = 16 * EPS * (1 + abs(m) + abs(n)) * float(x.abs().max())

    def rotation(p: float) -> Rotation:
        return rope(torch.tensor([p]), torch.float64)

    assert properties.group_error(rope, x, m * one, n * one) <= bound
    assert (
        properties.group_error(rope_of(layout, factor=1.1), x, m * one, n * one) > 1e-2
    )  # a factor is no group
    assert max_error((rotation(m) @ rotation(n))(x), rotation(m + n)(x)) <= bound
    assert max_error(rotation(m / 2)(rotation(m / 2)(x)), rotation(m)(x)) <= bound
    assert torch.equal(rotation(0)(x), x)
    assert max_error(rotation(m).inverse()(x), rotation(-m)(x)) <= bound
    assert max_error(rotation(m).inverse()(rotation(m)(x)), x) <= bound
    eye = torch.eye(WIDTH, dtype=torch.float64)[
        :, None
    ]  # (channels, 1, channels): one token in a batch of unit vectors
    assert max_error(rotation(-m)(eye)[:, 0], rotation(m)(eye)[:, 0].T) <= bound


@given(layout=layouts, factor=st.floats(0.5, 2), m=offsets, n=offsets, seed=seeds)
def test_a_factor_is_undone_and_multiplied(
    layout: str, factor: float, m: int, n: int, seed: int
) -> None:
    x = normal(1, WIDTH, seed=seed)
    scaled, plain = (
        rope_of(layout, factor=f)(torch.tensor([m]), torch.float64)
        for f in (factor, 1.0)
    )
    other = rope_of(layout, factor=factor)(torch.tensor([n]), torch.float64)
    bound = 16 * EPS * float(x.abs().max()) * max(factor, 1 / factor) ** 2
    assert max_error(scaled(x), factor * plain(x)) <= bound
    assert max_error(scaled.inverse()(scaled(x)), x) <= bound
    assert (scaled @ other).scale == factor**2
    assert max_error((scaled @ other)(x), scaled(other(x))) <= bound
    assert max_error(scaled.inverse().inverse()(x), scaled(x)) <= bound


@given(layout=layouts, m=offsets, n=offsets, seed=seeds)
def test_the_score_of_rotated_vectors_is_that_of_one_rotation(
    layout: str, m: int, n: int, seed: int
) -> None:
    rope, (q, k) = rope_of(layout), (normal(1, WIDTH, seed=seed + i) for i in range(2))
    rotations = [rope(torch.tensor([p]), torch.float64) for p in (m, n, n - m)]
    absolute = (rotations[0](q) * rotations[1](k)).sum()
    bound = 16 * EPS * (1 + m + n) * float(q.norm() * k.norm())
    assert float((absolute - (q * rotations[2](k)).sum()).abs()) <= bound


@given(layout=layouts, start=offsets)
def test_a_rotation_by_rows_is_a_rotation_of_each_row(layout: str, start: int) -> None:
    rope, x = rope_of(layout), normal(2, 3, 5, WIDTH)
    positions = torch.stack((arange(5, offset=start), arange(5).flip(0)))
    assert torch.equal(
        rope(positions)(x),
        torch.stack(
            [rope(row)(tokens) for row, tokens in zip(positions, x, strict=True)]
        ),
    )


def test_rotation_compiles_with_dynamic_shapes_and_factors() -> None:
    def rotated(x: torch.Tensor, factor: float) -> torch.Tensor:
        frequencies = torch.tensor([1.0, 0.1], dtype=torch.float64)
        return RoPE(frequencies, attention_factor=factor)(torch.arange(x.shape[-2]))(x)

    compiled = torch.compile(rotated, fullgraph=True, dynamic=True, backend="aot_eager")
    for length, factor in ((5, 1.0), (9, 1.25)):
        x = normal(1, 2, length, 4, dtype=torch.float32)
        torch.testing.assert_close(compiled(x, factor), rotated(x, factor))
