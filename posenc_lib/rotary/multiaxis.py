"""Rotary embedding of positions with more than one axis: image rows and columns, time, height and width.

One idea covers every published form. A position is a vector p, pair i turns by the
angle Σ_a p_a ω_{a,i}, and a model is a matrix of frequencies ω (axes × pairs). Axial
models give each axis pairs of its own (one non-zero entry a column), mixed ones give
every pair a direction. The functions below return these matrices, `AxialRoPE` applies
them. Where a model differs in its coordinates only (from 1, centred, rescaled), the
difference is in `positions`, not here.

A token at position 0 on all axes is not rotated: that is how class and register tokens
are encoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary._apply import apply_rotary_per_head
from posenc_lib.rotary.pairs import LAYOUTS
from posenc_lib.rotary.rope import Rotation, check_tokens


@dataclass(frozen=True, eq=False)
class AxialRoPE:
    """RoPE for positions with several axes: the score sees the difference on each axis.

    Equation: (R_p q)ᵀ (R_s k) = qᵀ R_{s−p} k,  R_p = ⊕_i rotation by Σ_a p_a ω_{a,i}
        (derived: rotations by angles linear in p add up; one axis is su2021 eq. 34)
    Shapes: positions (T, axes), or (B, T, axes), always with the axes last → a
        `Rotation`;  q, k as in `RoPE`

    Equal positions on all axes are plain RoPE with the frequencies Σ_a ω_{a,i}. With a
    matrix for each head there is no table that all heads share, so no `Rotation`: then
    only `transform` serves, for q and k of H heads each.

    Args:
        frequencies: (axes, r/2) ω in radians per position, float64 or float32; or (H,
            axes, r/2), one matrix a head.
        layout: as in `RoPE`.
        attention_factor: as in `RoPE`.

    Raises:
        TypeError, ValueError: frequencies of another dtype or shape, or not finite; an
            unknown layout, a factor that is not above 0. When called: positions of
            another dtype, or without an entry for each row of ω.

    Source: su2021, heo2024
    Chapter: 17
    """

    frequencies: Tensor
    layout: str = "interleaved"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _checks.one_of("layout", self.layout, LAYOUTS)
        _checks.positive("attention_factor", self.attention_factor)
        shape = tuple(
            _checks.floating_tensor("frequencies", self.frequencies, least_dims=2).shape
        )
        if len(shape) > 3 or 0 in shape:
            raise ValueError(
                "frequencies must have shape (axes, r/2) or (H, axes, r/2), none of "
                f"them 0; got {shape}"
            )
        _checks.vector("frequencies", self.frequencies.flatten(), "axes · r/2")

    def __call__(
        self, positions: Tensor, dtype: torch.dtype = torch.float32
    ) -> Rotation:
        if self.frequencies.dim() == 3:
            raise ValueError(
                "frequencies must be (axes, r/2) for a Rotation, got "
                f"{tuple(self.frequencies.shape)}: "
                "with one matrix a head use transform(q, k, q_positions, k_positions)"
            )
        cos, sin = self._tables("positions", positions, dtype)
        return Rotation(cos, sin, self.layout, self.attention_factor)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions; float64 tensors get float64 tables."""
        for name, x in (("q", q), ("k", k)):
            _checks.floating_tensor(name, x, least_dims=2)
        dtype = _checks.at_least_float32(q.dtype, k.dtype)
        return self._turn("q", q, q_positions, dtype), self._turn(
            "k", k, k_positions, dtype
        )

    def _turn(
        self, name: str, x: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> Tensor:
        cos, sin = self._tables(
            f"{name}_positions", positions, dtype
        )  # ([B,] [H,] T, r/2)
        if self.frequencies.dim() == 3:
            return apply_rotary_per_head(name, x, cos, sin, self.layout)
        check_tokens(x, cos, name, f"{name}_positions")
        return Rotation(cos, sin, self.layout, self.attention_factor)(x)

    def _tables(
        self, name: str, positions: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        cos, sin = _axial_cos_sin(
            name, positions, self.frequencies, _checks.floating_dtype("dtype", dtype)
        )
        return cos * self.attention_factor, sin * self.attention_factor


class MixedRoPE(nn.Module):
    """Mixed RoPE: every pair turns along a direction in the image plane of its own, learned for each head.

    Equation: angle of pair i in head h = x ω^x_{h,i} + y ω^y_{h,i}      (heo2024;
        checked against the released code)
    Shapes: q, k (B, H, T, d), positions (T, 2) or (B, T, 2) as (x, y) → q, k

    A model has one such module for each layer. Axial RoPE is the special case of
    axis-parallel directions.

    Args:
        heads: H, of query and key.
        dim: rotated channels, a multiple of 4; all d in the paper.
        base: of the initial frequencies, as in `mixed_frequencies`.
        layout: as in `RoPE`; "interleaved" in the released code.
        generator: of the initial directions.

    Raises:
        TypeError, ValueError: as `mixed_frequencies`, and as `AxialRoPE`.

    Source: heo2024
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        dim: int,
        base: float = 10.0,
        *,
        layout: str = "interleaved",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.layout = _checks.one_of("layout", layout, LAYOUTS)
        self.frequencies = nn.Parameter(
            mixed_frequencies(heads, dim, base, generator=generator).to(torch.float32)
        )

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        frequencies = self.frequencies.to(
            _checks.at_least_float32(self.frequencies.dtype)
        )
        return AxialRoPE(frequencies, self.layout).transform(
            q, k, q_positions, k_positions
        )


# ---- each axis has pairs and frequencies of its own


def block_frequencies(*per_axis: Tensor) -> Tensor:
    """A matrix in which every axis has frequencies of its own, one block of pairs after the other.

    Equation: ω_{a,i} = f_a[i − n_0 − … − n_{a−1}] where pair i is in block a, else 0
    Shapes: (n_0,), (n_1,), … → (axes, n_0 + n_1 + …)

    Args:
        per_axis: the frequencies of each axis, in the order of the axes in a position.

    Raises:
        TypeError, ValueError: no axis; frequencies that are no vector of finite float64
            or float32.

    Source: heo2024
    Chapter: 17
    """
    if not per_axis:
        raise ValueError(
            "per_axis must name the frequencies of at least one axis, got none"
        )
    series = [
        _checks.vector(f"per_axis[{a}]", f, "pairs") for a, f in enumerate(per_axis)
    ]
    return _shared(
        torch.cat(series),
        [a for a, f in enumerate(series) for _ in range(f.shape[0])],
        len(series),
    )


def axial_frequencies(sections: Sequence[int], base: float = 10000.0) -> Tensor:
    """Axial RoPE: on each axis a RoPE of its own, with the paper's series for the channels that the axis has.

    Equation: ω_{a,i} = θ^(−2j/d_a), j the place of pair i among the d_a/2 pairs of axis
        a      (heo2024, axial)
    Shapes: → (axes, Σ sections), float64, on the CPU

    The published models differ in the sections, θ, the coordinates and the layout:

        Qwen2-VL, images     half         (d/4, d/4)               10,000   (row, column), `positions.merged_grid`
        Llama 4, images      interleaved  (d/4, d/4)               10,000   (column, row) from 1, class token at 0
        RoPE-ViT axial       interleaved  (d/4, d/4)                  100   (column, row)
        EVA-02, timm         interleaved  (d/4, d/4)               10,000   (row, column), `positions.resized_grid`
        CogVideoX            interleaved  (d/8, 3d/16, 3d/16)      10,000   (frame, row, column)
        HunyuanVideo         interleaved  (8, 28, 28) of d = 128      256   (frame, row, column)
        Wan                  interleaved  (d/2 − 2s, s, s)         10,000   (frame, row, column); s = ⌊d/6⌋

    Args:
        sections: the number of pairs of each axis, each at least 1; together r/2, half
            the rotated channels.
        base: θ.

    Raises:
        TypeError, ValueError: no section, or one that is not an integer ≥ 1; then as
            `inverse_frequencies`.

    Source: heo2024, qwen2-vl, llama4
    Chapter: 17
    """
    pairs = [
        _checks.whole_number(f"sections[{a}]", size, least=1)
        for a, size in enumerate(_checks.sequence("sections", sections))
    ]
    if not pairs:
        raise ValueError("sections must name at least one axis, got none")
    return block_frequencies(*[inverse_frequencies(2 * size, base) for size in pairs])


def dinov3_frequencies(dim: int, base: float = 100.0) -> Tensor:
    """DINOv3's axial RoPE, for coordinates in (−1, 1): whole turns, so that the slowest pair sees the image too.

    Equation: ω_{a,i} = 2π θ^(−4j/d), d/4 pairs for the row, then d/4 for the column
        (checked against the released code, which divides 2π by the period θ^(4j/d))
    Shapes: → (2, d/2), float64, on the CPU

    Goes with `positions.centred_grid`, in training `positions.jittered`, and the half
    layout.

    Args:
        dim: channels d of a head, a multiple of 4.
        base: θ.

    Raises:
        TypeError, ValueError: `dim` is no multiple of 4; then as `inverse_frequencies`.

    Source: simeoni2025
    Chapter: 17
    """
    quarter = _quarter(dim)
    return 2 * math.pi * axial_frequencies((quarter, quarter), base)


# ---- the axes share one series of frequencies


def pixtral_frequencies(frequencies: Tensor) -> Tensor:
    """Pixtral's two-dimensional RoPE: even pairs turn with the row, odd pairs with the column.

    Equation: ω_{row,i} = ω_i for even i, ω_{column,i} = ω_i for odd i, else 0, over the
        pairs i of one series; then the row's pairs, then the column's      (checked
        against the code of transformers)
    Shapes: (d/2,) → (2, d/2) for positions (row, column)

    So the column has no pair as fast as the row's fastest. In transformers the layout
    is "half".

    Args:
        frequencies: ω_i, an even number of them: `inverse_frequencies(d)`.

    Raises:
        TypeError, ValueError: frequencies that are no vector of finite float64 or
            float32, or an odd number of them.

    Source: agrawal2024
    Chapter: 17
    """
    series = _checks.vector("frequencies", frequencies, "pairs")
    if series.shape[0] % 2:
        raise ValueError(
            "frequencies must be even in number, half of them for each axis; got "
            f"{series.shape[0]}"
        )
    return block_frequencies(series[::2], series[1::2])


def mrope_frequencies(frequencies: Tensor, sections: Sequence[int]) -> Tensor:
    """M-RoPE in sections (Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni): time has the fastest pairs, width the slowest.

    Equation: ω_{a(i),i} = ω_i with a(i) = t, …, t, h, …, h, w, …, w, else 0
        (qwen2-vl §2.1; checked against the released code)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    A checkpoint with sections in another order than its code's reads text well and
    images badly. Published: (16, 24, 24) of 64 pairs, θ = 1,000,000, layout "half".
    Positions: `multimodal_positions.mrope_positions`.

    Args:
        frequencies: ω_i of all pairs: `inverse_frequencies(d)` or what a schedule
            returns.
        sections: the number of pairs of t, h and w, each at least 1, together all
            pairs.

    Raises:
        TypeError, ValueError: frequencies that are no vector of finite float64 or
            float32; sections that are not three ints of at least 1, or that don't add
            up to the number of pairs.

    Source: qwen2-vl, qwen2.5-vl
    Chapter: 15
    """
    series, (t, h, w) = (
        _checks.vector("frequencies", frequencies, "pairs"),
        _sections(frequencies, sections),
    )
    return _shared(series, [0] * t + [1] * h + [2] * w)


def mrope_interleaved_frequencies(
    frequencies: Tensor, sections: Sequence[int]
) -> Tensor:
    """Interleaved M-RoPE (Qwen3-VL): the axes take turns, so that each has fast and slow pairs.

    Equation: a(i) = h where i mod 3 = 1 and i < 3 s_h,  w where i mod 3 = 2 and i < 3
        s_w,  else t (qwen3-vl, huang2026; checked against the released code)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    Published: (24, 20, 20) of 64 pairs in Qwen3-VL, (11, 11, 10) of 32 in Qwen3.5;
    layout "half". In the released code the sections are caps: sizes that the rule can't
    give, like (2, 3, 3), pass and yield other sizes. Here they raise.

    Args:
        frequencies: ω_i of all pairs, as in `mrope_frequencies`.
        sections: the number of pairs of t, h and w.

    Raises:
        TypeError, ValueError: as `mrope_frequencies`; sections that the rule can't
            give.

    Source: qwen3-vl, huang2026
    Chapter: 15
    """
    series, sizes = (
        _checks.vector("frequencies", frequencies, "pairs"),
        _sections(frequencies, sections),
    )
    axis = [i % 3 if i % 3 and i < 3 * sizes[i % 3] else 0 for i in range(sum(sizes))]
    return _shared(
        series, _of_sizes(axis, sizes, "taking turns from the fastest pair on")
    )


def videorope_frequencies(frequencies: Tensor, sections: Sequence[int]) -> Tensor:
    """VideoRoPE: time has the slowest pairs, height and width alternate on the others.

    Equation: a(i) = h, w, h, w, … for the first s_h + s_w pairs, then t      (wei2025;
        checked against the released code, the paper's text was not at hand)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    A slow pair makes no full turn over a long video, so two distant frames can't look
    alike to it. Published: (16, 24, 24) of 64 pairs, layout "half". Positions:
    `multimodal_positions.videorope_positions`.

    Args:
        frequencies: ω_i of all pairs, as in `mrope_frequencies`.
        sections: the number of pairs of t, h and w; h and w equal, or h one more.

    Raises:
        TypeError, ValueError: as `mrope_frequencies`; sections that the rule can't
            give.

    Source: wei2025
    Chapter: 17
    """
    series, sizes = (
        _checks.vector("frequencies", frequencies, "pairs"),
        _sections(frequencies, sections),
    )
    t, h, w = sizes
    axis = [1 + i % 2 for i in range(h + w)] + [0] * t
    return _shared(series, _of_sizes(axis, sizes, "alternating from height on"))


# ---- a direction for each pair


def mixed_frequencies(
    heads: int,
    dim: int,
    base: float = 10.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Where mixed RoPE starts: two perpendicular directions a head, drawn at random, each with the axial series.

    Equation: (ω^x, ω^y)_{h,i} = θ^(−4j/d) (cos φ, sin φ),  j = i mod d/4,  φ = α_h for
        i < d/4, α_h + π/2 beyond, α_h uniform in [0, 2π)      (heo2024; checked against
        the released code)
    Shapes: → (H, 2, d/2), float64, on the CPU, for positions (x, y)

    Args:
        heads: H, at least 1.
        dim: channels d of a head, a multiple of 4.
        base: θ, small because images are short.
        generator: of the draw.

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1, `dim` no multiple of 4;
            then as `inverse_frequencies`.

    Source: heo2024
    Chapter: 17
    """
    _checks.whole_number("heads", heads, least=1)
    size = inverse_frequencies(2 * _quarter(dim), base).repeat(2)  # (d/2,)
    alpha = (
        2
        * math.pi
        * torch.rand(heads, 1, dtype=torch.float64, device="cpu", generator=generator)
    )
    turn = torch.tensor(
        [0.0, math.pi / 2], dtype=torch.float64, device="cpu"
    ).repeat_interleave(dim // 4)
    return torch.stack((size * (alpha + turn).cos(), size * (alpha + turn).sin()), 1)


def golden_gate_frequencies(
    heads: int, dim: int, *, slowest: float, fastest: float, still: int = 0
) -> Tensor:
    """Golden-gate RoPE: fixed directions, turned by the golden angle from pair to pair, so that all are covered evenly.

    Equation: (ω^x, ω^y)_{h,i} = m_i (cos φ, sin φ),  φ = π (√5 − 1)/2 · (h d/2 + i),
        m_i = 0 for i < z, then geometric from ω_min to ω_max      (xiong2025; checked
        against ports of its code)
    Shapes: → (H, 2, d/2), float64, on the CPU, for positions (x, y)

    A direction and its opposite are one, hence π and not 2π. The author's coordinates
    are `positions.spanning_grid` with x times √(W/H) and y times √(H/W), his layout
    "half", his frequencies 0.2 to 20.

    Args:
        heads: H, at least 1.
        dim: channels d of a head, even.
        slowest: ω_min, above 0.
        fastest: ω_max, at least ω_min.
        still: z, leading pairs that are not rotated, below d/2.

    Raises:
        TypeError, ValueError: an argument outside the ranges above.

    Source: xiong2025
    Chapter: 17
    """
    _checks.whole_number("heads", heads, least=1)
    pairs = _checks.even_dimension("dim", dim) // 2
    if _checks.whole_number("still", still, least=0) >= pairs:
        raise ValueError(f"still must be below the {pairs} pairs, got {still}")
    if _checks.positive("fastest", fastest) < _checks.positive("slowest", slowest):
        raise ValueError(f"fastest must be at least slowest = {slowest}, got {fastest}")
    octaves = torch.linspace(
        0,
        math.log2(fastest / slowest),
        pairs - still,
        dtype=torch.float64,
        device="cpu",
    )
    size = torch.cat(
        (torch.zeros(still, dtype=torch.float64, device="cpu"), slowest * 2.0**octaves)
    )
    number = torch.arange(heads * pairs, dtype=torch.float64, device="cpu").reshape(
        heads, pairs
    )
    phi = math.pi * (math.sqrt(5) - 1) / 2 * number
    return torch.stack((size * phi.cos(), size * phi.sin()), 1)


# ---- checks


def _axial_cos_sin(
    name: str, positions: Tensor, omega: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Tables of the angles Σ_a p_a ω_{a,i}, made in float64 and rounded once: ([B,] [H,] T, r/2)."""
    at = _axis_positions(name, positions, omega.shape[-2])
    # Apple's mps has no float64: there the table is made on the CPU, rounded, and then
    # moved.
    workplace = torch.device("cpu") if at.device.type == "mps" else at.device
    p, omega = at.to(workplace, torch.float64), omega.to(workplace, torch.float64)
    angles = (p if omega.dim() == 2 else p[..., None, :, :]) @ omega
    return angles.cos().to(dtype).to(at.device), angles.sin().to(dtype).to(at.device)


def _axis_positions(name: str, value: Tensor, axes: int) -> Tensor:
    positions = _checks.position_tensor(name, value)
    if positions.dim() not in (2, 3) or positions.shape[-1] != axes:
        raise ValueError(
            f"{name} must have shape (T, {axes}) or (B, T, {axes}), the axes last; got "
            f"{tuple(positions.shape)}"
        )
    return positions


def _quarter(dim: int) -> int:
    if _checks.whole_number("dim", dim, least=4) % 4:
        raise ValueError(
            "dim must be a multiple of 4, two axes with pairs of channels each; got "
            f"{dim}"
        )
    return dim // 4


def _sections(frequencies: Tensor, sections: Sequence[int]) -> tuple[int, int, int]:
    pairs = frequencies.shape[0]
    sizes = [
        _checks.whole_number(f"sections[{a}]", size, least=1)
        for a, size in enumerate(_checks.sequence("sections", sections))
    ]
    if len(sizes) != 3 or sum(sizes) != pairs:
        raise ValueError(
            f"sections must be three numbers (t, h, w) that add up to the {pairs} "
            f"pairs, got {sizes}"
        )
    return sizes[0], sizes[1], sizes[2]


def _of_sizes(axis: list[int], sizes: tuple[int, int, int], rule: str) -> list[int]:
    given = tuple(axis.count(a) for a in range(3))
    if given != sizes:
        raise ValueError(
            f"sections must be sizes that the axes get by {rule}: {sizes} would become "
            f"{given}"
        )
    return axis


def _shared(series: Tensor, axis: list[int], axes: int = 3) -> Tensor:
    """The matrix (axes, pairs) that gives pair i to the axis `axis[i]`."""
    owner = torch.tensor(axis, device="cpu").to(series.device)
    return torch.where(
        owner == torch.arange(axes, device=series.device)[:, None], series, 0.0
    )
