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

    def forward(
        self, x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
    ) -> Tensor:
        q, k, v = self.project(x)
        values = attention(q, k, v, **_attention_arguments(x, positions, scheme, mask))
        x = x + self.out(values.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        return out

    def weights(
        self, x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
    ) -> Tensor:
        """The attention weights (B, H, T, T) of this layer."""
        q, k, _ = self.project(x)
        arguments = _attention_arguments(x, positions, scheme, mask)
        return attention_weights(q, k, **arguments)


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
        _check_scheme(scheme)
        self.scheme, self.masked = scheme, masked
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
        """The first layer's input (B, T, D): embeddings, and what the scheme adds."""
        if (
            not isinstance(tokens, Tensor)
            or tokens.is_floating_point()
            or tokens.dim() != 2
        ):
            raise ValueError(
                "tokens must be integers of shape (B, T), "
                f"got {getattr(tokens, 'shape', tokens)!r}"
            )
        scheme = self._chosen(scheme)
        x = self.tokens[tokens]
        return x if scheme.embedding is None else x + scheme.embedding(positions)

    def forward(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> Tensor:
        scheme = self._chosen(scheme)
        x = self.embed(tokens, positions, scheme=scheme)
        for block in self._layers():
            x = block(x, positions, scheme, self._mask(positions))
        logits: Tensor = self.head(self.norm(x))
        return logits

    def weights(
        self, tokens: Tensor, positions: Tensor, *, scheme: PositionScheme | None = None
    ) -> list[Tensor]:
        """The attention weights (B, H, T, T), one tensor for each layer."""
        scheme = self._chosen(scheme)
        x, maps = self.embed(tokens, positions, scheme=scheme), []
        for block in self._layers():
            maps.append(block.weights(x, positions, scheme, self._mask(positions)))
            x = block(x, positions, scheme, self._mask(positions))
        return maps

    def _chosen(self, scheme: PositionScheme | None) -> PositionScheme:
        if scheme is None:
            return self.scheme
        _check_scheme(scheme)
        return scheme

    def _layers(self) -> Iterator[Block]:
        return (block for block in self.blocks if isinstance(block, Block))

    def _mask(self, positions: Tensor) -> Tensor | None:
        return causal(positions, positions) if self.masked else None


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    weight = torch.empty(outputs, inputs, dtype=torch.float64)
    return linear(nn.init.normal_(weight, std=inputs**-0.5, generator=generator))


def _attention_arguments(
    x: Tensor, positions: Tensor, scheme: PositionScheme, mask: Tensor | None
) -> dict[str, Any]:
    """The arguments of `attention` besides q, k, v; hidden states where used."""
    hidden = {"q_x": x, "k_x": x} if _takes_hidden_states(scheme) else {}
    return {
        "q_positions": positions,
        "k_positions": positions,
        "scheme": scheme,
        "mask": mask,
        **hidden,
    }


def _takes_hidden_states(scheme: PositionScheme) -> bool:
    for function in (scheme.transform, scheme.bias, scheme.scores):
        callee = function.forward if isinstance(function, nn.Module) else function
        if callee is not None and "q_x" in inspect.signature(callee).parameters:
            return True
    return False


def _check_scheme(scheme: Any) -> None:
    if not isinstance(scheme, PositionScheme):
        raise TypeError(
            f"scheme must be a PositionScheme such as scheme.NOPE, got {scheme!r}"
        )


def _modules(scheme: PositionScheme) -> list[nn.Module]:
    """The modules that a scheme's fields are, belong to or hold, each once."""

    def inside(value: Any) -> Iterator[nn.Module]:
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                yield from inside(part)
        elif inspect.ismethod(value):
            yield from inside(value.__self__)

    modules = (module for field in PLACES for module in inside(getattr(scheme, field)))
    return list({id(module): module for module in modules}.values())
