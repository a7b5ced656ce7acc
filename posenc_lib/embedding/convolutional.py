"""Positions from a convolution over the tokens; its zero padding marks the borders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal


class PEG(nn.Module):
    """Conditional position encoding: a depth-wise convolution over the grid of tokens.

    Equation: x ← x + DWConv_k(x),  k odd, (k − 1)/2 zeros on every side
        (chu2023; this returns the summand)
    Shapes: x (B, P + H·W, D) → (B, P + H·W, D)

    One layer gives position to tokens near the border but not to those deep inside the
    grid; without the zeros (circular padding, or none) no token gets any. Class tokens
    are not on the grid: they get zeros, which is our choice; the released code, that of
    Twins, has none.

    Args:
        dim: D, at least 1.
        kernel: k, odd; 3 in the paper.
        prefix_tokens: P, tokens in front of the grid (the class token), at least 0.
        generator: of the draw: weights from N(0, 2/k²), the bias 0, as in the released
            code.

    Raises:
        TypeError, ValueError: a size that is not an integer, or too small; an even
            kernel; when called, x that is not (B, P + H·W, D).

    Source: chu2023
    Checked: Meituan-AutoML/Twins@c1ff6714969a:gvt.py:PosCNN.forward
    Chapter: 17
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel: int = 3,
        prefix_tokens: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(dim=dim, kernel=kernel)
        self.prefix_tokens = _checks.whole_number(
            "prefix_tokens", prefix_tokens, least=0
        )
        if kernel % 2 == 0:
            raise ValueError(
                f"kernel must be odd, so that it has a centre; got {kernel}"
            )
        std = 2**0.5 / kernel
        self.weight = normal(dim, 1, kernel, kernel, std=std, generator=generator)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """The summand for x.

        Args:
            x: tokens (B, P + H·W, D), the grid row by row.
            size: (H, W).
        """
        rows, columns = _checks.axis_sizes("size", size, axes=2)
        _checks.floating_tensor("x", x, least_dims=3)
        dim, prefix = self.weight.shape[0], self.prefix_tokens
        length = prefix + rows * columns
        if x.dim() != 3 or tuple(x.shape[1:]) != (length, dim):
            raise ValueError(
                f"x must have shape (B, {length}, {dim}): {prefix} prefix tokens and "
                f"{rows} × {columns} of the grid; got {tuple(x.shape)}"
            )
        compute = _checks.at_least_float32(x.dtype, self.weight.dtype)
        grid = x[:, prefix:].to(compute).mT.reshape(x.shape[0], dim, rows, columns)
        weight, bias = self.weight.to(compute), self.bias.to(compute)
        margin = weight.shape[-1] // 2
        out = nn.functional.conv2d(grid, weight, bias, padding=margin, groups=dim)
        return nn.functional.pad(out.flatten(2).mT, (0, 0, prefix, 0)).to(x.dtype)


class ConvolutionalEmbedding(nn.Module):
    """wav2vec 2.0's position embedding: a wide, grouped convolution over the frames.

    Equation: x ← x + GELU(Conv_k(x)),  the weight of each tap j normalised:
        w_j = g_j v_j / ‖v_j‖      (baevski2020 §2; this returns the summand)
    Shapes: x (B, T, D) → (B, T, D)

    ⌊k/2⌋ zeros stand on either side. With an even k that makes one frame too many, and
    the last one is dropped: the window of frame t is t − k/2 … t + k/2 − 1. Frames that
    are padding must be zero before this, or they change their neighbours.

    Args:
        dim: D, at least 1.
        kernel: k, 128 in the paper.
        groups: groups of channels, a divisor of D; 16 in the paper.
        generator: of the draw: v from N(0, 4/(k·D)), g = ‖v‖, the bias 0.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1; `groups` does not
            divide `dim`; when called, x that is not (B, T, D).

    Source: baevski2020
    Checked:
        facebookresearch/fairseq@3d262bb25690:fairseq/models/wav2vec/wav2vec2.py:make_conv_pos
    Chapter: 17
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel: int = 128,
        groups: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(dim=dim, kernel=kernel)
        self.groups = _checks.whole_number("groups", groups, least=1)
        if dim % groups:
            raise ValueError(f"dim must be a multiple of groups = {groups}, got {dim}")
        std = 2 / (kernel * dim) ** 0.5
        self.direction = normal(
            dim, dim // groups, kernel, std=std, generator=generator
        )
        norm = torch.linalg.vector_norm(
            self.direction.detach(), dim=(0, 1), keepdim=True
        )
        self.magnitude = nn.Parameter(norm)  # (1, 1, k)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """The summand for x, the frames (B, T, D)."""
        _checks.floating_tensor("x", x, least_dims=3)
        dim, _, kernel = self.direction.shape
        if x.dim() != 3 or x.shape[2] != dim or x.shape[1] == 0:
            raise ValueError(f"x must have shape (B, T, {dim}), got {tuple(x.shape)}")
        compute = _checks.at_least_float32(x.dtype, self.direction.dtype)
        direction = self.direction.to(compute)
        norm = torch.linalg.vector_norm(
            direction, dim=(0, 1), keepdim=True
        )  # (1, 1, k)
        weight = direction * (self.magnitude.to(compute) / norm)
        bias = self.bias.to(compute)
        # The same as ⌊k/2⌋ zeros on both sides, and the last frame dropped for even k.
        zeros = (kernel // 2, (kernel - 1) // 2)
        frames = nn.functional.pad(x.to(compute).mT, zeros)  # (B, D, T + k − 1)
        out = nn.functional.conv1d(frames, weight, bias, groups=self.groups)
        return nn.functional.gelu(out.mT).to(x.dtype)
