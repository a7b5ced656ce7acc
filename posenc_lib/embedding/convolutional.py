"""Positions from a convolution over the tokens themselves: what tells it where it is, is the padding with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc_lib import _checks


class PEG(nn.Module):
    """Conditional position encoding: a depth-wise convolution over the grid of tokens, padded with zeros.

    Equation: x ← x + DWConv_k(x), k odd, (k − 1)/2 zeros on every side      (chu2023;
        this returns the summand)
    Shapes: x (B, P + H·W, D) → (B, P + H·W, D)

    A token deep inside the grid learns nothing of where it is from one layer, one near
    the border does; without the zeros (padding in a circle, or none) nobody does. Class
    tokens have no place on the grid: they get zeros.

    Args:
        dim: D, at least 1.
        kernel: k, odd; 3 in the paper.
        prefix_tokens: P, tokens in front of the grid (the class token), at least 0.
        generator: of the draw: weights from N(0, 2/k²), the bias 0, as in the released
            code.

    Raises:
        TypeError, ValueError: sizes of another kind, an even kernel; when called, x
            that is no (B, P + H·W, D).

    Source: chu2023
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
        _checks.whole_number("dim", dim, least=1)
        self.prefix_tokens = _checks.whole_number(
            "prefix_tokens", prefix_tokens, least=0
        )
        if _checks.whole_number("kernel", kernel, least=1) % 2 == 0:
            raise ValueError(
                f"kernel must be odd, so that it has a centre; got {kernel}"
            )
        self.weight = nn.Parameter(torch.empty(dim, 1, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.normal_(self.weight, std=2**0.5 / kernel, generator=generator)

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """What is to be added to x.

        Args:
            x: tokens (B, P + H·W, D), the grid row by row.
            size: (H, W).
        """
        if (
            isinstance(size, (str, Tensor))
            or not isinstance(size, Sequence)
            or len(size) != 2
        ):
            raise TypeError(
                "size must be two ints, rows and columns, such as (14, 14); got "
                f"{size!r}"
            )
        rows, columns = (
            _checks.whole_number(f"size[{i}]", n, least=1) for i, n in enumerate(size)
        )
        dim, prefix = self.weight.shape[0], self.prefix_tokens
        length = prefix + rows * columns
        if _checks.floating_tensor("x", x, least_dims=3).dim() != 3 or tuple(
            x.shape[1:]
        ) != (length, dim):
            raise ValueError(
                f"x must have shape (B, {length}, {dim}): {prefix} prefix tokens and "
                f"{rows} × {columns} of the grid; "
                f"got {tuple(x.shape)}"
            )
        compute = _checks.at_least_float32(x.dtype, self.weight.dtype)
        grid = x[:, prefix:].to(compute).mT.reshape(x.shape[0], dim, rows, columns)
        weight, bias = self.weight.to(compute), self.bias.to(compute)
        out = torch.nn.functional.conv2d(
            grid, weight, bias, padding=weight.shape[-1] // 2, groups=dim
        )
        return torch.nn.functional.pad(out.flatten(2).mT, (0, 0, prefix, 0)).to(x.dtype)


class ConvolutionalEmbedding(nn.Module):
    """wav2vec 2.0's position embedding: a wide convolution over the frames, in groups of channels.

    Equation: x ← x + GELU(Conv_k(x)), the weight of each tap j normalised: w_j = g_j
        v_j / ‖v_j‖ (baevski2020 §2; checked against the released code; this returns the
        summand)
    Shapes: x (B, T, D) → (B, T, D)

    ⌊k/2⌋ zeros stand on either side. With an even k that makes one frame too many, and
    the last one is dropped: the window of frame t is t − k/2 … t + k/2 − 1. Frames that
    are padding must be zero before this, or they are heard.

    Args:
        dim: D, at least 1.
        kernel: k, 128 in the paper.
        groups: groups of channels, a divisor of D; 16 in the paper.
        generator: of the draw: v from N(0, 4/(k·D)), g = ‖v‖, the bias 0.

    Raises:
        TypeError, ValueError: sizes of another kind; when called, x that is no (B, T,
            D).

    Source: baevski2020
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
        _checks.whole_number("kernel", kernel, least=1)
        self.groups = _checks.whole_number("groups", groups, least=1)
        if _checks.whole_number("dim", dim, least=1) % groups:
            raise ValueError(f"dim must be a multiple of groups = {groups}, got {dim}")
        self.direction = nn.Parameter(torch.empty(dim, dim // groups, kernel))
        nn.init.normal_(
            self.direction, std=2 / (kernel * dim) ** 0.5, generator=generator
        )
        self.magnitude = nn.Parameter(
            torch.linalg.vector_norm(self.direction.detach(), dim=(0, 1), keepdim=True)
        )
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """What is to be added to x, the frames (B, T, D)."""
        dim, _, kernel = self.direction.shape
        if (
            _checks.floating_tensor("x", x, least_dims=3).dim() != 3
            or x.shape[2] != dim
            or x.shape[1] == 0
        ):
            raise ValueError(f"x must have shape (B, T, {dim}), got {tuple(x.shape)}")
        compute = _checks.at_least_float32(x.dtype, self.direction.dtype)
        direction = self.direction.to(compute)
        norm = torch.linalg.vector_norm(
            direction, dim=(0, 1), keepdim=True
        )  # (1, 1, k)
        weight = direction * (self.magnitude.to(compute) / norm)
        bias = self.bias.to(compute)
        # As ⌊k/2⌋ zeros on both sides and the last frame dropped where k is even.
        frames = torch.nn.functional.pad(
            x.to(compute).mT, (kernel // 2, (kernel - 1) // 2)
        )  # (B, D, T + k − 1)
        out = torch.nn.functional.conv1d(
            frames, weight, bias, groups=self.groups
        )  # (B, D, T)
        return torch.nn.functional.gelu(out.mT).to(x.dtype)
