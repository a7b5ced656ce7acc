"""Frequencies and wavelengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc_lib.frequencies import (
    octave_frequencies,
    pixel_frequencies,
    wavelengths,
)
from posenc_lib.properties import max_error


def test_pixel_frequencies_are_the_equations() -> None:
    for spacing, wanted in (
        ("linear", [1 + k * 15 / 4 for k in range(5)]),
        ("geometric", [16 ** (k / 4) for k in range(5)]),
    ):
        out = pixel_frequencies(5, 32, spacing=spacing)
        assert (
            max_error(out, math.pi * torch.tensor(wanted, dtype=torch.float64)) <= 1e-12
        )
        assert pixel_frequencies(1, 32, spacing=spacing).tolist() == [math.pi]
    # half a turn from one pixel to the next on a circle of 32: as fast as a grid can
    # alternate
    assert float(pixel_frequencies(5, 32)[-1] * 2 / 32) == pytest.approx(math.pi)


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


@given(count=st.integers(1, 12))
def test_octaves_double(count: int) -> None:
    frequencies = octave_frequencies(count)
    assert frequencies.tolist() == [math.pi * 2**k for k in range(count)]
    assert wavelengths(frequencies).tolist() == pytest.approx(
        [2 * 0.5**k for k in range(count)]
    )
    assert wavelengths(torch.zeros(1)).item() == math.inf


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "pixel_frequencies(0, 8)": (
        lambda: pixel_frequencies(0, 8),
        ValueError,
        "count",
    ),
    "pixel_frequencies: max_resolution": (
        lambda: pixel_frequencies(3, 1),
        ValueError,
        "max_resolution must be at least 2",
    ),
    "pixel_frequencies: spacing": (
        lambda: pixel_frequencies(3, 8, spacing="log"),
        ValueError,
        "spacing",
    ),
    "pixel_frequencies(2, 1)": (
        lambda: pixel_frequencies(2, 1),
        ValueError,
        "resolution",
    ),
    "pixel_frequencies(2, 1.5, spacing='geometric')": (
        lambda: pixel_frequencies(2, 1.5, spacing="geometric"),
        ValueError,
        "resolution",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
