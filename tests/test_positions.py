"""Positions: rows, grids, samples and trees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import (
    normal,
    seeded,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_lib.attention import (
    attention,
    causal,
)
from posenc_lib.attention.masks import tree_mask
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import (
    abacus,
    arange,
    centred_grid,
    coupled_addition,
    grid,
    jittered,
    merged_grid,
    packed,
    randomised,
    relative,
    resized_grid,
    segment_ids,
    spanning_grid,
    tree_positions,
)
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import PositionScheme


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
    positions = centred_grid((2, 3))
    assert torch.equal(jittered(positions), positions)
    draw = seeded(4)
    u = [2 * torch.rand(n, dtype=torch.float64, generator=draw) - 1 for n in (2, 2, 1)]
    expected = (
        (positions + 0.3 * u[0])
        * (math.log(1.5) * u[1]).exp()
        * (math.log(2) * u[2]).exp()
    )
    torch.testing.assert_close(
        jittered(positions, shift=0.3, jitter=1.5, rescale=2.0, generator=seeded(4)),
        expected,
    )
    only = jittered(positions, rescale=2.0, generator=seeded(5)) / positions
    torch.testing.assert_close(
        only[positions != 0], only[0, 0].expand_as(only[positions != 0])
    )
    assert 0.5 <= float(only[0, 0]) <= 2
    for seed in range(20):
        moved = jittered(positions, shift=0.25, generator=seeded(seed)) - positions
        assert float(moved.abs().max()) <= 0.25
        assert float((moved - moved[0]).abs().max()) < 1e-15
    assert jittered(positions.float(), shift=0.1).dtype == torch.float32


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
    by_position: dict[int, list[str]] = {}
    for character, p in zip(text, coupled_addition(3, 3, 4).tolist(), strict=True):
        by_position.setdefault(p, []).append(character)
    assert by_position == {
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
    positions = arange(length)
    assert torch.equal(tree_positions(parents), positions)
    assert torch.equal(tree_mask(parents), causal(positions, positions))


def test_every_path_is_scored_as_if_alone() -> None:
    parents, past = torch.tensor([-1, -1, 0, 0, 1, 2, 2, 4]), 3
    total = past + len(parents)
    scheme = PositionScheme("RoPE", transform=RoPE(inverse_frequencies(8)).transform)
    q, k, v = (normal(1, 2, total, 8, seed=s) for s in range(3))
    positions = torch.cat((arange(past), tree_positions(parents, first=past)))
    together = attention(
        q[:, :, past:],
        k,
        v,
        q_positions=positions[past:],
        k_positions=positions,
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


AT = grid((2, 3))

MASK = torch.tensor([[1, 1, 1]])


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_packing_is_its_loop(parts: list[int]) -> None:
    assert packed(parts).tolist() == [t for length in parts for t in range(length)]
    assert segment_ids(parts).tolist() == [
        i for i, length in enumerate(parts) for _ in range(length)
    ]
    assert packed(parts).dtype == segment_ids(parts).dtype == torch.int64


def test_integers_and_fractions_keep_large_distances() -> None:
    m, n = torch.tensor([10**9 + 1]), torch.tensor([1e9], dtype=torch.float64)
    assert relative(m, n).item() == -1
    assert relative(torch.tensor([10**9 + 1]), torch.tensor([1e9])).item() == -1


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "grid: sizes[1]": (
        lambda: grid((2, 0)),
        ValueError,
        r"sizes\[1\]",
    ),
    "grid: first": (
        lambda: grid((2, 2), first=-1),
        ValueError,
        "first",
    ),
    "merged_grid: width": (
        lambda: merged_grid(4, 5, 2),
        ValueError,
        "width",
    ),
    "merged_grid: merge": (
        lambda: merged_grid(4, 4, 0),
        ValueError,
        "merge",
    ),
    "resized_grid: reference": (
        lambda: resized_grid((2, 2), (4,)),
        ValueError,
        "reference",
    ),
    "centred_grid: dtype": (
        lambda: centred_grid((2, 2), dtype=torch.bfloat16),
        TypeError,
        "dtype",
    ),
    "spanning_grid: dtype": (
        lambda: spanning_grid((2, 2), dtype=torch.int64),
        TypeError,
        "dtype",
    ),
    "jittered: coordinates": (
        lambda: jittered(AT),
        TypeError,
        "coordinates",
    ),
    "jittered: shift": (
        lambda: jittered(AT.float(), shift=-0.1),
        ValueError,
        "shift",
    ),
    "jittered: jitter": (
        lambda: jittered(AT.float(), jitter=0.5),
        ValueError,
        "jitter",
    ),
    "randomised: length": (
        lambda: randomised(0, 5),
        ValueError,
        "length",
    ),
    "randomised: maximum": (
        lambda: randomised(6, 5),
        ValueError,
        "maximum",
    ),
    "abacus(torch.tensor([1, 0]))": (
        lambda: abacus(torch.tensor([1, 0])),
        ValueError,
        "digits",
    ),
    "abacus(torch.tensor([[1, 2]]))": (
        lambda: abacus(torch.tensor([[1, 2]])),
        ValueError,
        "digits",
    ),
    "abacus: offset": (
        lambda: abacus(MASK, offset=-1),
        ValueError,
        "offset",
    ),
    "coupled_addition: second": (
        lambda: coupled_addition(3, 0, 3),
        ValueError,
        "second",
    ),
    "coupled_addition: start": (
        lambda: coupled_addition(3, 3, 3, start=-1),
        ValueError,
        "start",
    ),
    "tree_positions(torch.tensor([-1, -2]))": (
        lambda: tree_positions(torch.tensor([-1, -2])),
        ValueError,
        "parents",
    ),
    "tree_positions(torch.tensor([[-1]]))": (
        lambda: tree_positions(torch.tensor([[-1]])),
        ValueError,
        "parents",
    ),
    "tree_positions(torch.tensor([-1.0]))": (
        lambda: tree_positions(torch.tensor([-1.0])),
        TypeError,
        "parents",
    ),
    "tree_positions([-1])": (
        lambda: tree_positions([-1]),
        TypeError,
        "parents",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
