"""A Transformer of one or two layers, into which any `PositionScheme` fits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lib import _checks
from posenc_lib._draws import linear
from posenc_lib.attention import (
    PreparedScheme,
    attention,
    attention_weights,
    prepare,
)
from posenc_lib.scheme import PositionScheme, checked_scheme


class Block(nn.Module):
    """One pre-norm layer: attention, then two linear maps with a GELU between them.

    Equation: x ← x + W^O concat_h attention(norm x),  x ← x + W² gelu(W¹ norm x)
    Shapes: (B, T, D) → (B, T, D)

    Args:
        width: D.
        heads: H, a divisor of D.
        generator: of the weights, each drawn from N(0, 1/inputs).

    Raises:
        TypeError, ValueError: a size is not an integer ≥ 1, or the heads don't divide
            the width.

    Chapter: 06
    """

    def __init__(self, width: int, heads: int, *, generator: torch.Generator) -> None:
        super().__init__()
        _checks.whole_number("width", width, least=1)
        _checks.whole_number("heads", heads, least=1)
        if width % heads:
            raise ValueError(f"heads must divide the width {width}, got {heads}")
        self.heads = heads
        self.norm_attention, self.norm_mlp = (
            nn.LayerNorm(width, dtype=torch.float64) for _ in range(2)
        )
        self.qkv = _linear(width, 3 * width, generator)
        self.out = _linear(width, width, generator)
        self.up = _linear(width, 4 * width, generator)
        self.down = _linear(4 * width, width, generator)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, D/H) of the normed input."""
        q, k, v = (
            self.qkv(self.norm_attention(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        return q, k, v

    def forward(self, x: Tensor, at: PreparedScheme) -> Tensor:
        q, k, v = self.project(x)
        values = attention(q, k, v, scheme=at, **_hidden_states(x, at))
        x = x + self.out(values.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        return out

    def weights(self, x: Tensor, at: PreparedScheme) -> Tensor:
        """The attention weights (B, H, T, T) of this layer."""
        q, k, _ = self.project(x)
        return attention_weights(q, k, scheme=at, **_hidden_states(x, at))


class TinyTransformer(nn.Module):
    """A Transformer to train in seconds, under any position scheme.

    Equation: x_m = E[token_m] + p(m), then the layers, then logits = W norm x_m;
        p is the scheme's `embedding`
    Shapes: tokens (B, T), positions (T,) or (B, T) → logits (B, T, V)

    Positions are an argument of every call. Parameters of the scheme are parameters of
    the model. The other weights belong to no scheme:
    `model(tokens, positions, scheme=other)` runs them under another one.

    Args:
        vocabulary: V.
        scheme: the scheme to train with; all layers share it.
        width: D.
        heads: H, a divisor of D.
        layers: number of layers.
        masked: whether a token sees only itself and earlier tokens, or all tokens.
        dtype: of the weights, the scheme's too. They are drawn in float64: float32
            draws differ between processors.
        generator: of the weights; token embeddings are drawn from N(0, 1), which is the
            paper's √D times N(0, 1/D).

    Raises:
        TypeError, ValueError: a size is not an integer ≥ 1, the heads don't divide the
            width, `scheme` is not a `PositionScheme`, or `dtype` is not floating; when
            called, the tokens are not integers of shape (B, T).

    Source: vaswani2017
    Chapter: 06
    """

    def __init__(
        self,
        vocabulary: int,
        scheme: PositionScheme,
        *,
        width: int = 32,
        heads: int = 1,
        layers: int = 1,
        masked: bool = False,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        _checks.whole_number("vocabulary", vocabulary, least=1)
        _checks.whole_number("layers", layers, least=1)
        self.scheme, self.masked = checked_scheme("scheme", scheme), masked
        self.heads = heads
        self.tokens = nn.Parameter(
            torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        )
        self.blocks = nn.ModuleList(
            [Block(width, heads, generator=generator) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = _linear(width, vocabulary, generator)
        self.to(_checks.floating_dtype("dtype", dtype))

    def embed(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> tuple[Tensor, PreparedScheme]:
        """The first layer's input (B, T, D), and the scheme for these positions."""
        if (
            not isinstance(tokens, Tensor)
            or tokens.is_floating_point()
            or tokens.dim() != 2
        ):
            raise ValueError(
                "tokens must be integers of shape (B, T), "
                f"got {getattr(tokens, 'shape', tokens)!r}"
            )
        scheme = self.scheme if scheme is None else checked_scheme("scheme", scheme)
        return prepare(
            self.tokens[tokens], scheme, q_positions=positions, causal=self.masked
        )

    def forward(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> Tensor:
        x, at = self.embed(tokens, positions, scheme=scheme)
        for block in self._layers():
            x = block(x, at)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def weights(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> list[Tensor]:
        """The attention weights (B, H, T, T), one tensor for each layer."""
        x, at = self.embed(tokens, positions, scheme=scheme)
        maps = []
        for block in self._layers():
            maps.append(block.weights(x, at))
            x = block(x, at)
        return maps

    def _layers(self) -> Iterator[Block]:
        return (block for block in self.blocks if isinstance(block, Block))


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    weight = torch.empty(outputs, inputs, dtype=torch.float64)
    return linear(nn.init.normal_(weight, std=inputs**-0.5, generator=generator))


def _hidden_states(x: Tensor, at: PreparedScheme) -> dict[str, Tensor]:
    """The tokens of a layer, for schemes that read them."""
    return {"q_x": x, "k_x": x} if at.scheme.reads_hidden_states else {}
