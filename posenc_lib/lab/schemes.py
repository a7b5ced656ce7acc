"""The schemes of a run, by the name that its row has, with parameters to be learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc_lib import _checks, bias, content, embedding, scheme
from posenc_lib.scheme import PositionScheme

if TYPE_CHECKING:
    from posenc_lib.lab.settings import Settings

Builder = Callable[["Settings", torch.Generator], PositionScheme]


def scrambled(positions: Tensor, dim: int) -> Tensor:
    """A deterministic formula without structure: positions' vectors are unrelated.

    Equation: PE(m, j) = √6 (frac(43758.5453 sin(12.9898 m + 78.233 j)) − ½)
    Shapes: positions (..., T) → (..., T, d)

    The fraction of a large multiple of a sine is a well-known cheap hash. The factor
    gives it the sinusoid's mean square, ½. Nobody uses it as an encoding; chapter 06
    needs one that can be computed and does not generalise.

    Args:
        positions: m.
        dim: d, at least 1.

    Raises:
        TypeError, ValueError: `positions` is not a tensor of integers, or `dim` is not
            an integer ≥ 1.

    Chapter: 06
    """
    m = _checks.position_tensor("positions", positions).to(torch.float64)
    _checks.whole_number("dim", dim, least=1)
    j = torch.arange(dim, dtype=torch.float64)
    large = 43758.5453 * torch.sin(12.9898 * m[..., None] + 78.233 * j)
    return (6**0.5 * (large - large.floor() - 0.5)).to(torch.float32)


def _learned(s: Settings, g: torch.Generator) -> PositionScheme:
    """A row for every position that is tested, as training leaves them."""
    table = embedding.LearnedEmbedding(s.last_position + 1, s.width, generator=g)
    return PositionScheme("learned", embedding=table)


def _t5(s: Settings, g: torch.Generator, buckets: int, far: int) -> PositionScheme:
    """T5's bias, in both directions where nothing is masked."""
    table = bias.T5Bias(
        s.heads,
        bidirectional=not s.masked,
        num_buckets=buckets,
        max_distance=far,
        std=0.02,
        generator=g,
    )
    return PositionScheme("T5", bias=table)


def _shaw(s: Settings, g: torch.Generator) -> PositionScheme:
    clip = 3 * s.length // 4  # a last distance that training meets often
    tables = content.Shaw(s.width // s.heads, clip, generator=g)
    return PositionScheme("Shaw", scores=tables.scores, values=tables.values)


def _xl(s: Settings, g: torch.Generator) -> PositionScheme:
    scores = content.TransformerXL(s.heads, s.width // s.heads, s.width, generator=g)
    return PositionScheme("Transformer-XL", scores=scores.scores)


def _cope(s: Settings, g: torch.Generator) -> PositionScheme:
    return PositionScheme(
        "CoPE", scores=content.CoPE(s.width // s.heads, s.length).scores
    )


def _rope(s: Settings, g: torch.Generator, share: int, base: float) -> PositionScheme:
    dim = s.width // s.heads
    return scheme.rope(dim, base=base, rotary_dim=dim // share)


SCHEMES: dict[str, Builder] = {
    "nope": lambda s, g: PositionScheme("NoPE"),
    "sinusoid": lambda s, g: scheme.sinusoidal(s.width),
    "learned": _learned,
    "scrambled": lambda s, g: PositionScheme(
        "scrambled", embedding=partial(scrambled, dim=s.width)
    ),
    "shaw": _shaw,
    "xl": _xl,
    "t5-small": partial(_t5, buckets=16, far=12),
    "t5": partial(_t5, buckets=32, far=128),
    "alibi": lambda s, g: scheme.alibi(s.heads),
    "kerple": lambda s, g: scheme.kerple(s.heads, generator=g),
    "fire": lambda s, g: scheme.fire(s.heads, threshold=float(s.length), generator=g),
    "cope": _cope,
    "rope": partial(_rope, share=1, base=10000.0),
    "rope-100": partial(_rope, share=1, base=100.0),
    "rope-half": partial(_rope, share=2, base=10000.0),
    "rope-half-100": partial(_rope, share=2, base=100.0),
}

SCHEMES_IN_WORDS = {
    "nope": "no positions",
    "sinusoid": "sinusoids, added",
    "learned": "a learned table, added",
    "scrambled": "vectors of a hash of the position, added",
    "shaw": "Shaw's vectors of distances, one for all from 3/4 of the length on",
    "xl": "Transformer-XL's score of four terms",
    "t5-small": "T5's bias: 16 buckets, one for all distances from 12 on",
    "t5": "T5's bias: 32 buckets, one for all distances from 128 on",
    "alibi": "ALiBi's fixed slopes",
    "kerple": "KERPLE's learned logarithm of the distance",
    "fire": "FIRE's network of the distance over the query's position",
    "cope": "CoPE: positions that count what the query finds",
    "rope": "RoPE with base 10,000",
    "rope-100": "RoPE with base 100",
    "rope-half": "RoPE on half of the channels",
    "rope-half-100": "RoPE on half of the channels, with base 100",
}


@contextmanager
def drawn_in_float64() -> Iterator[None]:
    """New parameters are float64 inside: float32 draws differ between processors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
