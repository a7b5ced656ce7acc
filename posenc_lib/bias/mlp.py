"""Biases computed by a small network from the offset, so that no offset is without one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.bias._pairs import (
    coordinates,
    dense,
    heads_first,
    pairs,
    run_dense,
    sizes,
)
from posenc_lib.positions import relative


class DynamicPositionBias(nn.Module):
    """CrossFormer's dynamic position bias: a network of four layers reads the offset on every axis.

    Equation: b(m, n) = L₃(L₂(L₁(W₀ x + c₀))) ∈ ℝ^H,  x = m − n,  L_j(z) = W_j
        ReLU(LayerNorm(z)) + c_j (wang2022; checked against the released code)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch → (B, H,
        Tq, Tk)

    The offset is query − key, unlike `relative`. Coordinates may be any numbers, not
    only those of a window. The network runs once a pair; where many pairs share an
    offset, call it on the few offsets and index the result.

    Args:
        heads: H, at least 1.
        width: of the layers; D/16 in the released code.
        axes: number of axes, at least 1.
        generator: of the draw: weights from N(0, 0.02²), the rest 0 and 1.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, coordinates
            of another kind.

    Source: wang2022
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        width: int,
        *,
        axes: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("width", width, least=1)
        self.axes = _checks.whole_number("axes", axes, least=1)
        widths = (axes, width, width, width, heads)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(o, i)) for i, o in pairwise(widths)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(o)) for o in widths[1:])
        self.norm_weights = nn.ParameterList(
            nn.Parameter(torch.ones(width)) for _ in range(3)
        )
        self.norm_biases = nn.ParameterList(
            nn.Parameter(torch.zeros(width)) for _ in range(3)
        )
        for weight in self.weights:
            nn.init.normal_(weight, std=0.02, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        dtype = self.biases[0].dtype
        compute = _checks.at_least_float32(dtype)
        m, n = pairs(
            coordinates("q_positions", q_positions, self.axes),
            coordinates("k_positions", k_positions, self.axes),
        )
        layers = [
            (w.to(compute), c.to(compute))
            for w, c in zip(self.weights, self.biases, strict=True)
        ]
        with _checks.without_autocast(m.device):
            x = torch.nn.functional.linear((m - n).to(compute), *layers[0])
            for scale, shift, layer in zip(
                self.norm_weights, self.norm_biases, layers[1:], strict=True
            ):
                x = torch.nn.functional.layer_norm(
                    x, x.shape[-1:], scale.to(compute), shift.to(compute)
                )
                x = torch.nn.functional.linear(x.relu(), *layer)
        return heads_first(x).to(dtype)


class DistanceMLPBias(nn.Module):
    """The dynamic bias of x-transformers, for sequences: a network with SiLU reads the signed distance.

    Equation: b(m, n) = W_p SiLU(… SiLU(W₁ x + c₁) …) + c_p ∈ ℝ^H,  p = depth + 1, x = m
        − n, or sign(m − n) ln(1 + |m − n|)      (read in that library, after wang2022)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    The distance is query − key, unlike `relative`.

    Args:
        heads: H, at least 1.
        width: of the hidden layers.
        depth: number of hidden layers, at least 1.
        log_distance: whether the network reads the logarithm, which stays small where
            distances don't.
        generator: of the draw, uniform in ±1/√(inputs), which is PyTorch's for linear
            layers.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `positions.relative`.

    Source: wang2022
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        width: int,
        *,
        depth: int = 2,
        log_distance: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("width", width, least=1)
        _checks.whole_number("depth", depth, least=1)
        if not isinstance(log_distance, bool):
            raise TypeError(f"log_distance must be True or False, got {log_distance!r}")
        self.log_distance = log_distance
        self.network = dense((1, *[width] * depth, heads), generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        dtype = self.network[0].dtype
        x = -relative(q_positions, k_positions).to(_checks.at_least_float32(dtype))[
            ..., None
        ]
        if self.log_distance:
            x = x.sign() * x.abs().log1p()
        return heads_first(run_dense(self.network, x, torch.nn.functional.silu)).to(
            dtype
        )


def log_coordinates(offsets: Tensor, window: Sequence[int]) -> Tensor:
    """Swin-V2's log-spaced coordinates: a window of any size fills nearly the same range.

    Equation: x̂_a = sign(x_a) log₂(1 + |8 x_a / (M_a − 1)|) / log₂ 8,  so that the
        window's edge is at ±log₂(9)/3 (liu2022 eq. 4 has sign(x) ln(1 + |x|); the
        factors are the released code's)
    Shapes: (..., axes) → (..., axes)

    Args:
        offsets: x on each axis, integers, float32 or float64.
        window: M on each axis; that of pre-training, where a model is used with
            another. On an axis of size 1 there is no offset but 0.

    Raises:
        TypeError, ValueError: offsets of another kind, or with another number of axes
            than the window.

    Source: liu2022
    Chapter: 17
    """
    x = _checks.position_tensor("offsets", offsets)
    window = sizes("window", window)
    if x.shape[-1] != len(window):
        raise ValueError(
            f"offsets must have {len(window)} axes, as many as window, got shape "
            f"{tuple(x.shape)}"
        )
    if not x.is_floating_point():
        x = x.to(torch.float32)
    reach = torch.tensor(
        [max(size - 1, 1) for size in window], dtype=x.dtype, device=x.device
    )
    x = 8 * x / reach
    return x.sign() * x.abs().log1p() / math.log(8)


class LogCoordinateBias(nn.Module):
    """Swin-V2's continuous bias: a network of two layers reads log-spaced coordinates, a sigmoid bounds its answer.

    Equation: b(m, n) = 16 σ(W₂ ReLU(W₁ x̂ + c₁)) ∈ (0, 16)^H,  x̂ = `log_coordinates`(m
        − n) (liu2022; 16 σ and the missing second bias are the released code's)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch → (B, H,
        Tq, Tk)

    The offset is query − key, unlike `relative`. Swin-V2's score is a cosine times a
    learned factor, in place of qᵀk/√d; the bias is added after it.

    Args:
        heads: H, at least 1.
        window: M on each axis, that of pre-training; any other window may be used with
            it.
        hidden: width of the network, 512 in the released code.
        generator: of the draw: weights from N(0, 0.02²), the bias 0.

    Raises:
        TypeError, ValueError: sizes of another kind; when called, coordinates of
            another kind.

    Source: liu2022
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        window: Sequence[int],
        *,
        hidden: int = 512,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("hidden", hidden, least=1)
        self.window = sizes("window", window)
        self.weight1 = nn.Parameter(torch.empty(hidden, len(self.window)))
        self.bias1 = nn.Parameter(torch.zeros(hidden))
        self.weight2 = nn.Parameter(torch.empty(heads, hidden))
        for weight in (self.weight1, self.weight2):
            nn.init.normal_(weight, std=0.02, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        dtype, axes = self.bias1.dtype, len(self.window)
        compute = _checks.at_least_float32(dtype)
        m, n = pairs(
            coordinates("q_positions", q_positions, axes),
            coordinates("k_positions", k_positions, axes),
        )
        x = log_coordinates(
            (m - n).to(compute), self.window
        )  # (Tq, Tk, axes) or (B, 1, Tq, Tk, axes)
        with _checks.without_autocast(x.device):
            hidden = (x @ self.weight1.to(compute).mT + self.bias1.to(compute)).relu()
            return heads_first(
                16 * (hidden @ self.weight2.to(compute).mT).sigmoid()
            ).to(dtype)
