"""A Transformer of one or two layers, into which any `PositionScheme` fits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lib import _checks
from posenc_lib._draws import linear
from posenc_lib.attention import attention, attention_weights, causal
from posenc_lib.scheme import PLACES, PositionScheme


class Block(nn.Module):
    """One pre-norm layer: attention, then two linear maps with a GELU between them, each added to its input.

    Equation: x ← x + W^O concat_h attention(norm x),  x ← x + W² gelu(W¹ norm x)
    Shapes: (B, T, D) → (B, T, D)

    Args:
        width: D.
        heads: H, a divisor of D.
        generator: of the weights, each drawn from N(0, 1/inputs).

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1, or heads that don't
            divide the width.

    Chapter: 06
    """

    def __init__(self, width: int, heads: int, *, generator: torch.Generator) -> None:
        super().__init__()
        _checks.whole_number("width", width, least=1)
        if width % _checks.whole_number("heads", heads, least=1):
            raise ValueError(f"heads must divide the width {width}, got {heads}")
        self.heads = heads
        self.norm_attention, self.norm_mlp = (
            nn.LayerNorm(width, dtype=torch.float64) for _ in range(2)
        )
        self.qkv = _linear(width, 3 * width, generator)
        self.out = _linear(width, width, generator)
        self.up, self.down = (
            _linear(width, 4 * width, generator),
            _linear(4 * width, width, generator),
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, D/H) of the normed input."""
        q, k, v = (
            self.qkv(self.norm_attention(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        return q, k, v

    def forward(
        self, x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
    ) -> Tensor:
        q, k, v = self.project(x)
        how = _how(x, positions, scheme, mask)
        x = x + self.out(attention(q, k, v, **how).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        return out

    def weights(
        self, x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
    ) -> Tensor:
        """The attention weights (B, H, T, T) of this layer."""
        q, k, _ = self.project(x)
        return attention_weights(q, k, **_how(x, positions, scheme, mask))


class TinyTransformer(nn.Module):
    """A Transformer to train in seconds, under any position scheme, which may be another at test time.

    Equation: x_m = E[token_m] + p(m), then the layers, then logits = W norm x_m;  p is
        the scheme's `embedding`
    Shapes: tokens (B, T), positions (T,) or (B, T) → logits (B, T, V)

    Positions are an argument of every call. Parameters of the scheme are parameters of
    the model. The weights belong to no scheme: `model(tokens, positions, scheme=other)`
    runs them under another one.

    Args:
        vocabulary: V.
        scheme: the scheme to train with; all layers share it.
        width: D.
        heads: H, a divisor of D.
        layers: number of layers.
        masked: True lets a token see itself and what is before it, False everything.
        dtype: of the weights, the scheme's too. They are drawn in float64: float32
            draws differ between processors.
        generator: of the weights; token embeddings are drawn from N(0, 1), which is the
            paper's √D times N(0, 1/D).

    Raises:
        TypeError, ValueError: an argument of another kind; when called, tokens that are
            not integers of shape (B, T).

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
        self.scheme, self.masked = _checked(scheme), masked
        self.tokens = nn.Parameter(
            torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        )
        self.blocks = nn.ModuleList(
            [Block(width, heads, generator=generator) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = _linear(width, vocabulary, generator)
        self.learned = nn.ModuleList(_modules(scheme))
        self.to(_checks.floating_dtype("dtype", dtype))

    def embed(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> Tensor:
        """The input of the first layer (B, T, D): token embeddings, plus positions where the scheme adds them."""
        if (
            not isinstance(tokens, Tensor)
            or tokens.is_floating_point()
            or tokens.dim() != 2
        ):
            raise ValueError(
                "tokens must be integers of shape (B, T), got "
                f"{getattr(tokens, 'shape', tokens)!r}"
            )
        scheme = self.scheme if scheme is None else _checked(scheme)
        x = self.tokens[tokens]
        return x if scheme.embedding is None else x + scheme.embedding(positions)

    def forward(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> Tensor:
        scheme = self.scheme if scheme is None else _checked(scheme)
        x = self.embed(tokens, positions, scheme=scheme)
        for block in self._layers():
            x = block(x, positions, scheme, self._mask(positions))
        logits: Tensor = self.head(self.norm(x))
        return logits

    def weights(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> list[Tensor]:
        """The attention weights (B, H, T, T), one tensor for each layer."""
        scheme = self.scheme if scheme is None else _checked(scheme)
        x, maps = self.embed(tokens, positions, scheme=scheme), []
        for block in self._layers():
            maps.append(block.weights(x, positions, scheme, self._mask(positions)))
            x = block(x, positions, scheme, self._mask(positions))
        return maps

    def _layers(self) -> Iterator[Block]:
        return (block for block in self.blocks if isinstance(block, Block))

    def _mask(self, positions: Tensor) -> Tensor | None:
        return causal(positions, positions) if self.masked else None


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    weight = torch.empty(outputs, inputs, dtype=torch.float64)
    return linear(nn.init.normal_(weight, std=inputs**-0.5, generator=generator))


def _how(
    x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
) -> dict[str, Any]:
    """The arguments of `attention` beside q, k and v; hidden states only for schemes that take them."""
    hidden = {"q_x": x, "k_x": x} if _takes_hidden_states(scheme) else {}
    return {
        "q_positions": positions,
        "k_positions": positions,
        "scheme": scheme,
        "mask": mask,
        **hidden,
    }


def _takes_hidden_states(scheme: PositionScheme) -> bool:
    for place in (scheme.transform, scheme.bias, scheme.scores):
        callee = place.forward if isinstance(place, nn.Module) else place
        if callee is not None and "q_x" in inspect.signature(callee).parameters:
            return True
    return False


def _checked(scheme: Any) -> PositionScheme:
    if not isinstance(scheme, PositionScheme):
        raise TypeError(
            f"scheme must be a PositionScheme such as scheme.NOPE, got {scheme!r}"
        )
    return scheme


def _modules(scheme: PositionScheme) -> list[nn.Module]:
    """The modules that a scheme's places are, belong to, or were given, each once."""

    def inside(value: Any) -> Iterator[nn.Module]:
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                yield from inside(part)
        elif inspect.ismethod(value):
            yield from inside(value.__self__)

    found = (module for place in PLACES for module in inside(getattr(scheme, place)))
    return list({id(module): module for module in found}.values())
