"""Biases computed from the offset by a small network, so that every offset has one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.bias._pairs import dense, heads_first, pairs, run_dense
from posenc_lib.positions import relative


class DynamicPositionBias(nn.Module):
    """CrossFormer's dynamic position bias: a network of the offset on every axis.

    Equation: b(m, n) = L₃(L₂(L₁(W₀ x + c₀))) ∈ ℝ^H,  x = m − n,
        L_j(z) = W_j ReLU(LayerNorm(z)) + c_j      (wang2022)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch
        → (B, H, Tq, Tk)

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
            of another shape.

    Source: wang2022
    Checked:
        cheerss/CrossFormer@f20000d81e76:models/crossformer.py:DynamicPosBias.forward
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
            normal(outputs, inputs, std=0.02, generator=generator)
            for inputs, outputs in pairwise(widths)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(o)) for o in widths[1:])
        self.norm_weights = nn.ParameterList(
            nn.Parameter(torch.ones(width)) for _ in range(3)
        )
        self.norm_biases = nn.ParameterList(
            nn.Parameter(torch.zeros(width)) for _ in range(3)
        )

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        m, n = _offset_pair(q_positions, k_positions, self.axes)
        dtype = self.biases[0].dtype
        compute = _checks.at_least_float32(dtype)
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


def _offset_pair(
    q_positions: Tensor, k_positions: Tensor, axes: int
) -> tuple[Tensor, Tensor]:
    """m and n, checked, whose difference is the offset of every pair."""
    m = _checks.coordinates("q_positions", q_positions, axes=axes, batched=True)
    n = _checks.coordinates("k_positions", k_positions, axes=axes, batched=True)
    return pairs(m, n)


class DistanceMLPBias(nn.Module):
    """The dynamic bias of x-transformers: a network of the signed distance.

    Equation: b(m, n) = W_p SiLU(… SiLU(W₁ x + c₁) …) + c_p ∈ ℝ^H,  p = depth + 1,
        x = m − n, or sign(m − n) ln(1 + |m − n|)      (after wang2022)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    The distance is query − key, unlike `relative`. The library's option norm=True is
    left out.

    Args:
        heads: H, at least 1.
        width: of the hidden layers.
        depth: number of hidden layers, at least 1.
        log_distance: whether the network reads the logarithm, which stays small where
            distances don't.
        generator: of the draw, uniform in ±1/√inputs like PyTorch's layers.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `positions.relative`.

    Source: wang2022
    Checked: golden; parity;
        lucidrains/x-transformers@003275c607ca:x_transformers/x_transformers.py:DynamicPositionBias.forward
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
        self.log_distance = _checks.boolean("log_distance", log_distance)
        self.network = dense((1, *[width] * depth, heads), generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        dtype = self.network[0].dtype
        x = -relative(q_positions, k_positions).to(_checks.at_least_float32(dtype))
        if self.log_distance:
            x = x.sign() * x.abs().log1p()
        biases = run_dense(self.network, x[..., None], torch.nn.functional.silu)
        return heads_first(biases).to(dtype)


def log_coordinates(offsets: Tensor, window: Sequence[int]) -> Tensor:
    """Swin-V2's log-spaced coordinates: all windows fill nearly the same range.

    Equation: x̂_a = sign(x_a) log₂(1 + |8 x_a / (M_a − 1)|) / log₂ 8,
        so that the window's edge is at ±log₂(9)/3
        (liu2022 eq. 4 has sign(x) ln(1 + |x|); the factors are the released code's)
    Shapes: (..., axes) → (..., axes)

    Args:
        offsets: x on each axis, integers, float32 or float64.
        window: M on each axis; that of pre-training, where a model is used with
            another. On an axis of size 1, where the only offset is 0, M − 1 is taken
            as 1; the released code divides by 0.

    Raises:
        TypeError, ValueError: offsets that are not a tensor of numbers, or with another
            number of axes than the window.

    Source: liu2022
    Checked:
        microsoft/Swin-Transformer@055c506510dd:models/swin_transformer_v2.py:WindowAttention.__init__
    Chapter: 17
    """
    x = _checks.position_tensor("offsets", offsets)
    window = _checks.axis_sizes("window", window)
    if x.shape[-1] != len(window):
        raise ValueError(
            f"offsets must have {len(window)} axes, as many as window, got shape "
            f"{tuple(x.shape)}"
        )
    if not x.is_floating_point():
        x = x.to(torch.float32)
    largest = [max(size - 1, 1) for size in window]
    x = 8 * x / torch.tensor(largest, dtype=x.dtype, device=x.device)
    return x.sign() * x.abs().log1p() / math.log(8)


class LogCoordinateBias(nn.Module):
    """Swin-V2's continuous bias: a network of log-spaced coordinates, and a sigmoid.

    Equation: b(m, n) = 16 σ(W₂ ReLU(W₁ x̂ + c₁)) ∈ (0, 16)^H,
        x̂ = `log_coordinates`(m − n)
        (liu2022; 16 σ and the missing second bias are the released code's)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch
        → (B, H, Tq, Tk)

    The offset is query − key, unlike `relative`. Swin-V2's score is a cosine times a
    learned factor, in place of qᵀk/√d; the bias is added after it.

    Args:
        heads: H, at least 1.
        window: M on each axis, that of pre-training; any other window may be used with
            it.
        hidden: width of the network, 512 in the released code.
        generator: of the draw: weights from N(0, 0.02²), the bias 0.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, coordinates
            of another shape.

    Source: liu2022
    Checked: golden;
        microsoft/Swin-Transformer@055c506510dd:models/swin_transformer_v2.py:WindowAttention.forward
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
        self.window = _checks.axis_sizes("window", window)
        axes = len(self.window)
        self.weight1 = normal(hidden, axes, std=0.02, generator=generator)
        self.bias1 = nn.Parameter(torch.zeros(hidden))
        self.weight2 = normal(heads, hidden, std=0.02, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        m, n = _offset_pair(q_positions, k_positions, len(self.window))
        parameters = self.weight1, self.bias1, self.weight2
        compute = _checks.at_least_float32(self.bias1.dtype)
        weight1, bias1, weight2 = (p.to(compute) for p in parameters)
        # (Tq, Tk, axes) or (B, 1, Tq, Tk, axes)
        x = log_coordinates((m - n).to(compute), self.window)
        with _checks.without_autocast(x.device):
            hidden = (x @ weight1.mT + bias1).relu()
            biases = 16 * (hidden @ weight2.mT).sigmoid()
        return heads_first(biases).to(self.bias1.dtype)
