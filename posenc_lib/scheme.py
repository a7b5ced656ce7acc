"""The `PositionScheme`: an encoding is described by the fields that it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from posenc_lib import _checks, bias, embedding
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import RoPE
from posenc_lib.rotary.pairs import Layout


@dataclass(frozen=True, eq=False)
class PositionScheme:
    """An encoding: one optional field for each step of attention it can enter.

    Equation: e_mn = scale · (T_m q_m)ᵀ (T_n k_n) + b(m, n),  α = softmax over the n
        allowed by the mask, o_m = Σ_n α_mn v_n;  T is `transform`, b is `bias`
    Shapes: embedding (..., T) → (..., T, D);
        transform (B, H, Tq, d), (B, Hk, Tk, d) → the same; bias → (1 or B, H, Tq, Tk);
        scores → (B, H, Tq, Tk); values → (B, H, Tq, d_v);
        mask → (Tq, Tk) or (B, 1, Tq, Tk), True = may attend

    The fields, numbered in the order in which attention uses them:

        1   embedding   added to the token embeddings
        2   transform   of query and key, before their dot product
        3   bias        added to the score, blind to the content
        3′  scores      in place of the dot product, with the content
        4   values      in place of the weighted sum
        5   mask        who may attend to whom

    An encoding that depends on hidden states takes two more arguments in `transform`,
    `bias` or `scores`: `q_x` (B, Tq, D) and `k_x` (B, Tk, D). `attention` passes them
    on when it is given them.

    Args:
        name: its name in the literature.
        embedding: `embedding(positions)`, which the caller adds to the token
            embeddings.
        transform: `transform(q, k, q_positions, k_positions)` returns both,
            transformed.
        bias: `bias(q_positions, k_positions)`, added after the scale.
        scores: `scores(q, k, q_positions, k_positions)` in place of qᵀk.
        values: `values(weights, v, q_positions, k_positions)` in place of Σ α v.
        mask: `mask(q_positions, k_positions)`, True = may attend.
        scale: factor of the score before the bias; None is 1/√d. T5 sets 1.

    Raises:
        TypeError, ValueError: an empty name, a field that can't be called, a scale that
            is not above 0.

    Chapter: 03
    """

    name: str
    embedding: Callable[[Tensor], Tensor] | None = None
    transform: Callable[..., tuple[Tensor, Tensor]] | None = None
    bias: Callable[..., Tensor] | None = None
    scores: Callable[..., Tensor] | None = None
    values: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    mask: Callable[[Tensor, Tensor], Tensor] | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a non-empty string, got {self.name!r}")
        for place in PLACES:
            value: Any = getattr(self, place)
            if value is not None and not callable(value):
                raise TypeError(f"{place} must be a callable or None, got {value!r}")
        if self.scale is not None:
            _checks.positive("scale", self.scale)

    @property
    def places(self) -> tuple[str, ...]:
        """The places that this scheme fills, in order: ("transform",) for RoPE."""
        return tuple(place for place in PLACES if getattr(self, place) is not None)


PLACES = tuple(
    f.name for f in fields(PositionScheme) if f.name not in ("name", "scale")
)

NOPE = PositionScheme("NoPE")


def sinusoidal(
    dim: int,
    base: float = 10000.0,
    *,
    layout: Literal["interleaved", "concatenated"] = "interleaved",
) -> PositionScheme:
    """The sinusoidal embedding as a scheme (`embedding.sinusoidal`).

    Equation: x_m ← x_m + PE(m)
    Shapes: embedding (..., T) → (..., T, d)

    Args:
        dim: width d of the model.
        base: θ.
        layout: as in `embedding.sinusoidal`.

    Raises:
        TypeError, ValueError: as `embedding.sinusoidal`.

    Source: vaswani2017
    Chapter: 04
    """
    table = partial(embedding.sinusoidal, dim=dim, base=base, layout=layout)
    # Raises now rather than in the first forward.
    table(torch.zeros(1, dtype=torch.int64, device="cpu"))
    return PositionScheme("sinusoidal", embedding=table)


def learned(
    num_positions: int, dim: int, *, generator: torch.Generator | None = None
) -> PositionScheme:
    """A learned table as a scheme (`embedding.LearnedEmbedding`).

    Equation: x_m ← x_m + P[m]
    Shapes: embedding (..., T) → (..., T, d)

    Args:
        num_positions: rows L of the table.
        dim: width d of the model.
        generator: of the draw.

    Source: gehring2017
    Chapter: 03
    """
    table = embedding.LearnedEmbedding(num_positions, dim, generator=generator)
    return PositionScheme("learned", embedding=table)


def rope(
    head_dim: int,
    base: float = 10000.0,
    *,
    layout: Layout = "interleaved",
    rotary_dim: int | None = None,
) -> PositionScheme:
    """RoPE as a scheme (`rotary.RoPE`), with the paper's frequencies.

    Equation: e_mn = (R_m q_m)ᵀ (R_n k_n) / √d
    Shapes: transform (B, H, Tq, d), (B, Hk, Tk, d) → the same

    Args:
        head_dim: d, channels of a head.
        base: θ.
        layout: "interleaved" or "half".
        rotary_dim: leading channels that are rotated; all by default.

    Raises:
        TypeError, ValueError: `rotary_dim` is odd or above `head_dim`.

    Source: su2021
    Chapter: 10
    """
    if rotary_dim is None:
        rotary_dim = _checks.even_dimension("head_dim", head_dim)
    _checks.whole_number("head_dim", head_dim, least=1)
    _checks.even_dimension("rotary_dim", rotary_dim)
    if rotary_dim > head_dim:
        raise ValueError(
            f"rotary_dim must be at most head_dim = {head_dim}, got {rotary_dim}"
        )
    rotary = RoPE(inverse_frequencies(rotary_dim, base), layout=layout)
    return PositionScheme("RoPE", transform=rotary.transform)


def alibi(heads: int) -> PositionScheme:
    """ALiBi as a scheme (`bias.alibi` with the published slopes).

    Equation: e_mn = q_mᵀ k_n / √d − s_h |n − m|
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.

    Source: press2022
    Chapter: 07
    """
    return PositionScheme(
        "ALiBi", bias=partial(bias.alibi, slopes=bias.alibi_slopes(heads))
    )


def t5(
    heads: int,
    *,
    bidirectional: bool,
    std: float,
    num_buckets: int = 32,
    max_distance: int = 128,
    generator: torch.Generator | None = None,
) -> PositionScheme:
    """T5's bias as a scheme (`bias.T5Bias`), with T5's scale of 1.

    Equation: e_mn = q_mᵀ k_n + b[bucket(n − m), h]
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.
        bidirectional, std, num_buckets, max_distance, generator: as in `bias.T5Bias`.

    Source: raffel2020
    Chapter: 07
    """
    table = bias.T5Bias(
        heads,
        bidirectional=bidirectional,
        std=std,
        num_buckets=num_buckets,
        max_distance=max_distance,
        generator=generator,
    )
    return PositionScheme("T5", bias=table, scale=1.0)
