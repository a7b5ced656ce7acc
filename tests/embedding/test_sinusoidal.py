"""Sinusoidal embeddings."""

from __future__ import annotations

import torch
from helpers import (
    EPS,
)
from hypothesis import given
from hypothesis import strategies as st

from posenc_lib import properties
from posenc_lib.embedding import sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.properties import max_error
from posenc_lib.rotary import RoPE


@given(
    start=st.integers(-1000, 1000),
    shift=st.integers(-1000, 1000),
    pairs=st.integers(1, 16),
)
def test_sinusoids_shift_linearly_and_see_the_distance(
    start: int, shift: int, pairs: int
) -> None:
    positions = torch.arange(start, start + 6)
    here, there = (
        sinusoidal(p, 2 * pairs, dtype=torch.float64)
        for p in (positions, positions + shift)
    )
    bound = 64 * EPS * (1 + abs(start) + abs(shift)) * pairs
    assert max_error(here @ here.T, there @ there.T) <= bound
    assert properties.toeplitz_error(here @ here.T) <= bound
    assert (
        max_error((here @ here.T).diagonal(), torch.full((6,), float(pairs))) <= bound
    )
    # (cos, sin) of the shifted angle is the rotation by the shift: sines are second
    # members of pairs (cos, sin).
    swapped = here.unflatten(-1, (pairs, 2)).flip(-1).flatten(-2)
    rotated = RoPE(inverse_frequencies(2 * pairs))(
        torch.full((6,), shift), torch.float64
    )(swapped)
    assert (
        max_error(rotated.unflatten(-1, (pairs, 2)).flip(-1).flatten(-2), there)
        <= bound
    )


@given(start=st.floats(0, 1000, width=32), dim=st.integers(4, 9))
def test_positions_between_integers_are_taken_as_they_are(
    start: float, dim: int
) -> None:
    positions = torch.tensor([start], dtype=torch.float64)
    for embed in (sinusoidal, sinusoidal_tensor2tensor):
        assert torch.equal(embed(positions.float(), dim), embed(positions, dim))
        whole = torch.tensor([int(start)])
        assert torch.equal(embed(whole.double(), dim), embed(whole, dim))
