"""Measure a map by what it does to unit vectors, and read angles off it.

Everything measured is a numpy array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class CallError(Exception):
    """The function raised, or returned something of another shape."""


def call(fn: Callable[..., Any], *arguments: Any) -> Tensor:
    """fn(*arguments) as a tensor; whatever goes wrong inside becomes a CallError."""
    try:
        with torch.no_grad():
            result = fn(*arguments)
            if isinstance(result, Tensor):
                result = result.cpu()
    except Exception as error:
        raise CallError(
            f"{type(error).__name__}: {' '.join(str(error).split())[:120].rstrip('.!')}"
        ) from error
    if not isinstance(result, Tensor):
        raise CallError(f"a {type(result).__name__} was returned, not a tensor")
    if result.is_complex():
        raise CallError("a complex tensor was returned, not a real one")
    return result


class Rotary:
    """A function (x, positions) → x′, as a matrix for each position.

    The unit vectors lie along the batch axis, so that tokens, positions and shapes are
    those of an ordinary call.
    """

    def __init__(self, fn: Callable[..., Any], dim: int, token_axis: int) -> None:
        self.fn, self.dim, self.token_axis = fn, dim, token_axis
        self.dtype, self.dims = torch.float64, 4
        self.rows = False  # whether positions must be (B, T)
        self._settle()

    def _settle(self) -> None:
        """Find a shape and dtype of x that the function takes, the library's first."""
        refusals = []
        for dtype, dims, rows in product(
            (torch.float64, torch.float32), (4, 3, 2), (False, True)
        ):
            self.dtype, self.dims, self.rows = dtype, dims, rows
            try:
                self.matrices(range(5))
                return
            except CallError as refusal:
                refusals.append(str(refusal))
        raise CallError(refusals[0])

    def apply(self, x: Tensor, positions: Sequence[int] | Tensor) -> Tensor:
        positions = torch.as_tensor(positions)
        if self.rows and positions.dim() == 1:
            positions = positions.expand(x.shape[0] if self.dims > 2 else 1, -1)
        y = call(self.fn, x, positions)
        if y.shape != x.shape:
            raise CallError(
                f"x of shape {tuple(x.shape)} came back as {tuple(y.shape)}"
            )
        if not y.is_floating_point():
            raise CallError(f"x in {x.dtype} came back in {y.dtype}")
        return y

    def vectors(self, x: Tensor, positions: Sequence[int]) -> Tensor:
        """Vectors x (N, d), each at all the positions → (N, T, d)."""
        tokens = x[:, None].expand(-1, len(positions), -1).clone()
        if self.dims == 2:
            return torch.stack([self.apply(vector, positions) for vector in tokens])
        if self.dims == 3:
            return self.apply(tokens, positions)
        axis = 2 if self.token_axis == 1 else 1
        return self.apply(tokens.unsqueeze(axis), positions).squeeze(axis)

    def matrices(
        self, positions: Sequence[int], dtype: torch.dtype | None = None
    ) -> Array:
        """The matrix of the map at each position: (T, out, in)."""
        unit = torch.eye(self.dim, dtype=dtype or self.dtype)
        return self.vectors(unit, positions).double().permute(1, 2, 0).numpy()


def other_axis(fn: Callable[..., Any], dim: int) -> bool:
    """Whether x (B, H, T, d) is rotated by its head index and in no call by its token.

    Code that wants positions (B, T) broadcasts those of shape (T,) along the heads:
    both are tried.
    """
    size = 7 if dim != 7 else 5
    rotated = set()
    for dtype, rows in product((torch.float64, torch.float32), (False, True)):
        positions = torch.arange(size).expand(2, -1) if rows else torch.arange(size)
        try:
            y = call(fn, torch.ones(2, size, size, dim, dtype=dtype), positions)
        except CallError:
            continue
        if y.shape != (2, size, size, dim):
            continue
        over_heads, over_tokens = (
            float(y.diff(dim=axis).abs().max()) for axis in (1, 2)
        )
        rotated.add(
            "tokens" if over_tokens > 1e-9 else "heads" if over_heads > 1e-6 else ""
        )
    return "heads" in rotated and "tokens" not in rotated


def wrap(angle: Array | float) -> Array:
    """An angle in (−π, π]."""
    return np.asarray(np.angle(np.exp(1j * np.asarray(angle, dtype=float))))


def measured_frequencies(z: Array) -> tuple[Array, Array]:
    """Frequencies and first angles of phasors z (T, n) at consecutive positions."""
    count = len(z) - 1
    # a mean, so that a step of half a turn has one sign
    step = np.angle((z[1:] * z[:-1].conj()).sum(0))
    drift = wrap(np.angle(z[-1] * z[0].conj()) - step * count) / count
    return step + drift, np.angle(z[0])


def displacement(
    difference: Array, frequencies: Array, tolerance: float, reach: float = 0
) -> float | None:
    """The shift δ that explains the differences of angle in all pairs, ω_i δ, or None.

    From the slowest pair, which gives a large δ roughly, to the fastest, which gives it
    precisely. The slowest pair is allowed whole turns, as many as it takes to find
    every |δ| ≤ `reach`.
    """
    order = np.argsort(np.abs(frequencies))
    order = order[np.abs(frequencies[order]) > 1e-12]
    slowest = float(frequencies[order[0]]) if len(order) else 1.0
    most = round(reach * abs(slowest) / (2 * math.pi))
    turns = sorted(range(-most, most + 1), key=abs)  # 0, −1, 1, …: the smallest first
    delta = 2 * math.pi * np.array(turns) / slowest
    for i in order:
        delta = delta + wrap(difference[i] - frequencies[i] * delta) / frequencies[i]
    misfit = np.abs(wrap(difference[:, None] - frequencies[:, None] * delta)).max(0)
    fitting = delta[misfit < tolerance]
    return float(fitting[0]) if len(fitting) else None


def apparent_positions(
    difference: Array, positions: Any, frequencies: Array
) -> Array | None:
    """The position as which each token is rotated, or None if one has no such position.

    From differences of angle (T, n).
    """
    positions = np.asarray(positions, dtype=float)
    # from p to −p, where int16 wraps; two pairs fit too many
    reach = 2 * positions[-1] if len(frequencies) > 2 else 0
    shifts = [displacement(row, frequencies, 1e-2, reach) for row in difference]
    if None in shifts:
        return None
    return np.asarray(positions + np.asarray(shifts, dtype=float)) + 0.0


def rounded(values: Array | float, dtype: torch.dtype) -> Array:
    """Values as they are in another dtype."""
    return torch.as_tensor(np.asarray(values, dtype=float)).to(dtype).double().numpy()


@dataclass
class Model:
    """What positions near 0 show: pairs, their angles ω p + φ, and the factor on x."""

    pairs: Array  # (n, 2) input channels
    rows: Array  # (d,) output channel where input channel j is kept
    frequencies: Array  # (n,) signed, modulo 2π
    first: Array  # (n,)
    factor: float = 1.0

    def phasors(self, matrices: Array) -> tuple[Array, Array]:
        """c + is of each pair, (T, n), by its first and its second row."""
        m = matrices[:, self.rows]
        a, b = self.pairs.T
        return m[:, a, a] - 1j * m[:, a, b], m[:, b, b] + 1j * m[:, b, a]

    def angles(self, positions: Any) -> Array:
        return (
            np.asarray(positions, dtype=float)[:, None] * self.frequencies + self.first
        )

    def difference(self, matrices: Array, positions: Any) -> Array:
        """Measured minus expected angles, (T, n)."""
        return wrap(np.angle(self.phasors(matrices)[0]) - self.angles(positions))
