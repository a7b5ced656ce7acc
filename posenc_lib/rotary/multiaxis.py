"""Rotary embedding of positions with several axes: rows, columns, time.

One idea covers every published form. A position is a vector p, pair i is rotated by
the angle Σ_a p_a ω_{a,i}, and a model is a matrix of frequencies ω (axes × pairs).
Axial models give each axis separate pairs (one non-zero entry a column), mixed ones
give every pair a direction. The functions below return these matrices, `AxialRoPE`
applies them. Where a model differs in its coordinates only (from 1, centred,
rescaled), the difference is in `positions`, not here.

A token at position 0 on all axes is not rotated: class and register tokens are encoded
in this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary._apply import apply_rotary_per_head
from posenc_lib.rotary.pairs import LAYOUTS, Layout
from posenc_lib.rotary.rope import Rotation, check_tokens


@dataclass(frozen=True, eq=False)
class AxialRoPE:
    """RoPE for positions with several axes: the score sees the difference on each axis.

    Equation: (R_p q)ᵀ (R_s k) = qᵀ R_{s−p} k,  R_p = ⊕_i rotation by Σ_a p_a ω_{a,i}
        (derived: rotations by angles linear in p add up; one axis is su2021 eq. 34)
    Shapes: positions (T, axes), or (B, T, axes), always with the axes last → a
        `Rotation`;  q, k as in `RoPE`

    Equal positions on all axes are plain RoPE with the frequencies Σ_a ω_{a,i}. With a
    matrix for each head there is no table that all heads share, so no `Rotation`: use
    `transform`, with q and k of H heads each.

    Args:
        frequencies: (axes, r/2) ω in radians per position, float64 or float32; or
            (H, axes, r/2), one matrix a head.
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
    layout: Layout = "interleaved"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _checks.one_of("layout", self.layout, LAYOUTS)
        _checks.positive("attention_factor", self.attention_factor)
        _checks.floating_tensor("frequencies", self.frequencies, least_dims=2)
        shape = tuple(self.frequencies.shape)
        if len(shape) > 3 or 0 in shape:
            raise ValueError(
                "frequencies must have shape (axes, r/2) or (H, axes, r/2), "
                f"none of them 0; got {shape}"
            )
        _checks.vector("frequencies", self.frequencies.flatten(), "axes · r/2")

    def __call__(
        self, positions: Tensor, dtype: torch.dtype = torch.float32
    ) -> Rotation:
        if self.frequencies.dim() == 3:
            raise ValueError(
                "frequencies must be (axes, r/2) for a Rotation, "
                f"got {tuple(self.frequencies.shape)}: "
                "with one matrix a head use transform(q, k, q_positions, k_positions)"
            )
        cos, sin = self._tables("positions", positions, dtype)
        return Rotation(cos, sin, self.layout, self.attention_factor)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        for name, x in (("q", q), ("k", k)):
            _checks.floating_tensor(name, x, least_dims=2)
        dtype = _checks.at_least_float32(q.dtype, k.dtype)  # float64 tables for float64
        q_tables = self._tables("q_positions", q_positions, dtype)
        same, k_tables = k_positions is q_positions, q_tables
        if not same:
            k_tables = self._tables("k_positions", k_positions, dtype)
        if self.frequencies.dim() == 3:
            return (
                apply_rotary_per_head("q", q, *q_tables, self.layout),
                apply_rotary_per_head("k", k, *k_tables, self.layout),
            )
        check_tokens(q, q_tables[0], "q", "q_positions")
        check_tokens(k, k_tables[0], "k", "k_positions")
        rotation = Rotation(*q_tables, self.layout, self.attention_factor)
        if same:
            return rotation.both(q, k)
        k_rotation = Rotation(*k_tables, self.layout, self.attention_factor)
        return rotation(q), k_rotation(k)

    def _tables(
        self, name: str, positions: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """cos and sin times the factor: ([B,] [H,] T, r/2)."""
        _checks.floating_dtype("dtype", dtype)
        cos, sin = _axial_cos_sin(name, positions, self.frequencies, dtype)
        return cos * self.attention_factor, sin * self.attention_factor


class MixedRoPE(nn.Module):
    """Mixed RoPE: every pair has a learned direction in the image plane, head by head.

    Equation: angle of pair i in head h = x ω^x_{h,i} + y ω^y_{h,i}      (heo2024)
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
    Checked: golden;
        naver-ai/rope-vit@ce85c2e56c5f:deit/models_v2_rope.py:compute_mixed_cis
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        dim: int,
        base: float = 10.0,
        *,
        layout: Layout = "interleaved",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.one_of("layout", layout, LAYOUTS)
        self.layout: Layout = layout
        start = mixed_frequencies(heads, dim, base, generator=generator)
        self.frequencies = nn.Parameter(start.to(torch.float32))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        compute = _checks.at_least_float32(self.frequencies.dtype)
        rope = AxialRoPE(self.frequencies.to(compute), self.layout)
        return rope.transform(q, k, q_positions, k_positions)


# ---- each axis has separate pairs and frequencies


def block_frequencies(*per_axis: Tensor) -> Tensor:
    """A matrix with a block of pairs for each axis, one block after the other.

    Equation: ω_{a,i} = f_a[i − n_0 − … − n_{a−1}] where pair i is in block a, else 0
    Shapes: (n_0,), (n_1,), … → (axes, n_0 + n_1 + …)

    Args:
        per_axis: the frequencies of each axis, in the order of the axes in a position.

    Raises:
        TypeError, ValueError: no axis; frequencies that are not a vector of finite
            float64 or float32.

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
    axis_of_pair = [a for a, f in enumerate(series) for _ in range(f.shape[0])]
    return _shared(torch.cat(series), axis_of_pair, len(series))


def axial_frequencies(sections: Sequence[int], base: float = 10000.0) -> Tensor:
    """Axial RoPE: a separate RoPE on each axis, for the channels that the axis has.

    Equation: ω_{a,i} = θ^(−2j/d_a),  j the index of pair i among the d_a/2 pairs of
        axis a      (heo2024, axial)
    Shapes: → (axes, Σ sections), float64, on the CPU

    The published models differ in the sections, θ and the coordinates. The layout is
    "half" in Qwen2-VL and "interleaved" in the others:

        Qwen2-VL, images   (d/4, d/4)            10,000   (row, column), `merged_grid`
        Llama 4, images    (d/4, d/4)            10,000   (column, row) from 1
        RoPE-ViT, axial    (d/4, d/4)               100   (column, row)
        EVA-02, timm       (d/4, d/4)            10,000   (row, column), `resized_grid`
        CogVideoX          (d/8, 3d/16, 3d/16)   10,000   (frame, row, column)
        HunyuanVideo       (8, 28, 28), d = 128     256   (frame, row, column)
        Wan, s = ⌊d/6⌋     (d/2 − 2s, s, s)      10,000   (frame, row, column)

    The two grids are in `positions`; Llama 4 has its class token at 0.

    Args:
        sections: the number of pairs of each axis, each at least 1; together r/2, half
            the rotated channels.
        base: θ.

    Raises:
        TypeError, ValueError: no section, or one that is not an integer ≥ 1; then as
            `inverse_frequencies`.

    Source: heo2024, qwen2-vl, llama4
    Checked: golden; parity
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
    """DINOv3's axial RoPE, for coordinates in (−1, 1).

    Equation: ω_{a,i} = 2π θ^(−4j/d),  d/4 pairs for the row, then d/4 for the column
        (simeoni2025)
    Shapes: → (2, d/2), float64, on the CPU

    The fastest pair makes a full turn per unit of the coordinate; the released code
    divides 2π by the period θ^(4j/d). Goes with `positions.centred_grid`, in training
    `positions.jittered`, and the half layout.

    Args:
        dim: channels d of a head, a multiple of 4.
        base: θ.

    Raises:
        TypeError, ValueError: `dim` is not a multiple of 4; then as
            `inverse_frequencies`.

    Source: simeoni2025
    Checked: golden;
        facebookresearch/dinov3@6876159a11b4:dinov3/layers/rope_position_encoding.py:RopePositionEmbedding._init_weights
    Chapter: 17
    """
    quarter = _quarter(dim)
    return 2 * math.pi * axial_frequencies((quarter, quarter), base)


# ---- the axes share one series of frequencies


def pixtral_frequencies(frequencies: Tensor) -> Tensor:
    """Pixtral's two-dimensional RoPE: even pairs for the row, odd pairs for the column.

    Equation: ω_{row,i} = ω_i for even i,  ω_{column,i} = ω_i for odd i,  else 0, over
        the pairs i of one series; then the row's pairs, then the column's
        (agrawal2024; the order as in transformers)
    Shapes: (d/2,) → (2, d/2) for positions (row, column)

    So the column has no pair as fast as the row's fastest. In transformers the layout
    is "half".

    Args:
        frequencies: ω_i, an even number of them: `inverse_frequencies(d)`.

    Raises:
        TypeError, ValueError: frequencies that are not a vector of finite float64 or
            float32, or an odd number of them.

    Source: agrawal2024
    Checked: golden
    Chapter: 17
    """
    series = _checks.vector("frequencies", frequencies, "pairs")
    if series.shape[0] % 2:
        raise ValueError(
            "frequencies must be even in number, half of them for each axis; "
            f"got {series.shape[0]}"
        )
    return block_frequencies(series[::2], series[1::2])


def mrope_frequencies(frequencies: Tensor, sections: Sequence[int]) -> Tensor:
    """M-RoPE in sections: time has the fastest pairs, width the slowest.

    Equation: ω_{a(i),i} = ω_i with a(i) = t, …, t, h, …, h, w, …, w,  else 0
        (qwen2-vl §2.1)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni have it. A checkpoint with sections in another
    order than its code's reads text well and images badly. Published: (16, 24, 24) of
    64 pairs, θ = 1,000,000, layout "half". Positions:
    `multimodal_positions.mrope_positions`.

    Args:
        frequencies: ω_i of all pairs: `inverse_frequencies(d)` or what a schedule
            returns.
        sections: the number of pairs of t, h and w, each at least 1, together all
            pairs.

    Raises:
        TypeError, ValueError: frequencies that are not a vector of finite float64 or
            float32; sections that are not three integers ≥ 1, or that don't add up to
            the number of pairs.

    Source: qwen2-vl, qwen2.5-vl
    Checked: golden; parity
    Chapter: 15
    """
    series = _checks.vector("frequencies", frequencies, "pairs")
    t, h, w = _sections(series, sections)
    return _shared(series, [0] * t + [1] * h + [2] * w)


def mrope_interleaved_frequencies(
    frequencies: Tensor, sections: Sequence[int]
) -> Tensor:
    """Interleaved M-RoPE (Qwen3-VL): each axis has fast and slow pairs.

    Equation: a(i) = h where i mod 3 = 1 and i < 3 s_h,  w where i mod 3 = 2 and
        i < 3 s_w,  else t      (qwen3-vl, huang2026)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    Published: (24, 20, 20) of 64 pairs in Qwen3-VL, (11, 11, 10) of 32 in Qwen3.5;
    layout "half". In the released code the sections are upper limits: sizes that the
    rule can't give, like (2, 3, 3), pass and yield other sizes. Here they raise.

    Args:
        frequencies: ω_i of all pairs, as in `mrope_frequencies`.
        sections: the number of pairs of t, h and w.

    Raises:
        TypeError, ValueError: as `mrope_frequencies`; sections that the rule can't
            give.

    Source: qwen3-vl, huang2026
    Checked: golden; parity
    Chapter: 15
    """
    series = _checks.vector("frequencies", frequencies, "pairs")
    sizes = _sections(series, sections)
    axis_of_pair = [
        i % 3 if i % 3 and i < 3 * sizes[i % 3] else 0 for i in range(sum(sizes))
    ]
    _check_sizes(axis_of_pair, sizes, "interleaving from the fastest pair on")
    return _shared(series, axis_of_pair)


def videorope_frequencies(frequencies: Tensor, sections: Sequence[int]) -> Tensor:
    """VideoRoPE: time has the slowest pairs, height and width alternate on the others.

    Equation: a(i) = h, w, h, w, … for the first s_h + s_w pairs, then t      (wei2025)
    Shapes: (r/2,) → (3, r/2) for positions (t, h, w)

    This is the released code; the paper's text is not available to us. A slow pair
    makes no full turn over a long video, so two distant frames can't look alike to it.
    Published: (16, 24, 24) of 64 pairs, layout "half". Positions:
    `multimodal_positions.videorope_positions`.

    Args:
        frequencies: ω_i of all pairs, as in `mrope_frequencies`.
        sections: the number of pairs of t, h and w; h and w equal, or h one more.

    Raises:
        TypeError, ValueError: as `mrope_frequencies`; sections that the rule can't
            give.

    Source: wei2025
    Checked:
        Wiselnn570/VideoRoPE@7712ca3f52b7:videorope-transformer/modeling_videorope.py:apply_m_modify_multimodal_rotary_pos_emb
    Chapter: 17
    """
    series = _checks.vector("frequencies", frequencies, "pairs")
    t, h, w = sizes = _sections(series, sections)
    axis_of_pair = [1 + i % 2 for i in range(h + w)] + [0] * t
    _check_sizes(axis_of_pair, sizes, "alternating from height on")
    return _shared(series, axis_of_pair)


# ---- a direction for each pair


def mixed_frequencies(
    heads: int,
    dim: int,
    base: float = 10.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The initial frequencies of mixed RoPE: two perpendicular directions a head.

    Equation: (ω^x, ω^y)_{h,i} = θ^(−4j/d) (cos φ, sin φ),  j = i mod d/4,  φ = α_h for
        i < d/4, α_h + π/2 beyond,  α_h uniform in [0, 2π)      (heo2024)
    Shapes: → (H, 2, d/2), float64, on the CPU, for positions (x, y)

    Args:
        heads: H, at least 1.
        dim: channels d of a head, a multiple of 4.
        base: θ, small because images are short.
        generator: of the draw.

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1, `dim` is not a multiple of
            4; then as `inverse_frequencies`.

    Source: heo2024
    Checked:
        naver-ai/rope-vit@ce85c2e56c5f:deit/models_v2_rope.py:init_random_2d_freqs
    Chapter: 17
    """
    _checks.whole_number("heads", heads, least=1)
    kw: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    size = inverse_frequencies(2 * _quarter(dim), base).repeat(2)  # (d/2,)
    alpha = 2 * math.pi * torch.rand(heads, 1, generator=generator, **kw)
    perpendicular = torch.tensor([0.0, math.pi / 2], **kw).repeat_interleave(dim // 4)
    phi = alpha + perpendicular  # (H, d/2)
    return torch.stack((size * phi.cos(), size * phi.sin()), 1)


def golden_gate_frequencies(
    heads: int, dim: int, *, slowest: float, fastest: float, still: int = 0
) -> Tensor:
    """Golden-gate RoPE: fixed directions, a golden angle apart from pair to pair.

    Equation: (ω^x, ω^y)_{h,i} = m_i (cos φ, sin φ),  φ = π (√5 − 1)/2 · (h d/2 + i),
        m_i = 0 for i < z, then geometric from ω_min to ω_max      (xiong2025)
    Shapes: → (H, 2, d/2), float64, on the CPU, for positions (x, y)

    So directions are covered evenly. A direction and its opposite are one, hence π and
    not 2π; the author writes that his experiments used 2π by mistake. His coordinates
    are `positions.spanning_grid` with x times √(W/H) and y times √(H/W), his layout is
    "half", and for −1 … 1 he recommends ω_min from 0.2 to 1 and ω_max from 20 to 100.

    Args:
        heads: H, at least 1.
        dim: channels d of a head, even.
        slowest: ω_min, above 0.
        fastest: ω_max, at least ω_min.
        still: z, leading pairs that are not rotated, below d/2.

    Raises:
        TypeError, ValueError: an argument outside the ranges above.

    Source: xiong2025
    Checked:
        jxiong21029/jxiong21029.github.io@2c041513abd2:posts/nd-rope/index.html:GoldenGateRoPE2d.__init__
    Chapter: 17
    """
    _checks.whole_number("heads", heads, least=1)
    pairs = _checks.even_dimension("dim", dim) // 2
    _checks.whole_number("still", still, least=0)
    if still >= pairs:
        raise ValueError(f"still must be below the {pairs} pairs, got {still}")
    _checks.positive("fastest", fastest)
    _checks.positive("slowest", slowest)
    if fastest < slowest:
        raise ValueError(f"fastest must be at least slowest = {slowest}, got {fastest}")
    kw: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    octaves = torch.linspace(0, math.log2(fastest / slowest), pairs - still, **kw)
    size = torch.cat((torch.zeros(still, **kw), slowest * 2.0**octaves))  # (d/2,)
    index = torch.arange(heads * pairs, **kw).reshape(heads, pairs)  # h d/2 + i
    phi = math.pi * (math.sqrt(5) - 1) / 2 * index
    return torch.stack((size * phi.cos(), size * phi.sin()), 1)


# ---- checks


def _axial_cos_sin(
    name: str, positions: Tensor, omega: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Tables of the angles Σ_a p_a ω_{a,i}: ([B,] [H,] T, r/2).

    They are computed in float64 and rounded once.
    """
    _checks.coordinates(name, positions, axes=omega.shape[-2], batched=True)
    device = positions.device
    p = _checks.in_float64(positions)
    omega = omega.to(p.device, torch.float64)
    angles = (p if omega.dim() == 2 else p[..., None, :, :]) @ omega
    return angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)


def _quarter(dim: int) -> int:
    _checks.whole_number("dim", dim, least=4)
    if dim % 4:
        raise ValueError(
            f"dim must be a multiple of 4, for pairs of channels on two axes; got {dim}"
        )
    return dim // 4


def _sections(series: Tensor, sections: Sequence[int]) -> tuple[int, int, int]:
    pairs = series.shape[0]
    sizes = [
        _checks.whole_number(f"sections[{a}]", size, least=1)
        for a, size in enumerate(_checks.sequence("sections", sections))
    ]
    if len(sizes) != 3 or sum(sizes) != pairs:
        raise ValueError(
            "sections must be three numbers (t, h, w) "
            f"that add up to the {pairs} pairs, got {sizes}"
        )
    return sizes[0], sizes[1], sizes[2]


def _check_sizes(
    axis_of_pair: list[int], sizes: tuple[int, int, int], rule: str
) -> None:
    """Whether the rule gave each axis as many pairs as its section says."""
    counts = tuple(axis_of_pair.count(a) for a in range(3))
    if counts != sizes:
        raise ValueError(
            f"sections must be sizes that the axes get by {rule}: "
            f"{sizes} would become {counts}"
        )


def _shared(series: Tensor, axis_of_pair: list[int], axes: int = 3) -> Tensor:
    """The matrix (axes, pairs) with pair i's frequency on its axis, else 0."""
    owner = torch.tensor(axis_of_pair, device="cpu").to(series.device)
    axis = torch.arange(axes, device=series.device)[:, None]
    return torch.where(owner == axis, series, 0.0)
