"""What a checkpoint's configuration says of positions, as plain values.

Equal settings are equal objects. A `Checkpoint` has stacks (decoder, encoder,
vision), a stack has one `LayerSettings` for each layer, and each of these makes its
`PositionScheme`. Nothing here reads a file or knows a model's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from posenc_lib.attention.long_context import llama4_temperature, tempered
from posenc_lib.attention.masks import chunk_mask, patch_window, sliding_window
from posenc_lib.bias import T5Bias, WindowBias, alibi, alibi_slopes
from posenc_lib.content.deberta import (
    DeBERTa,
    deberta_released_scores,
    deberta_v2_scores,
)
from posenc_lib.content.transformer_xl import TransformerXL
from posenc_lib.embedding import LearnedEmbedding, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies, wavelengths
from posenc_lib.rotary import (
    AxialRoPE,
    RoPE,
    axial_frequencies,
    mrope_frequencies,
    mrope_interleaved_frequencies,
)
from posenc_lib.rotary import scaling as schedules
from posenc_lib.rotary.pairs import Layout
from posenc_lib.rotary.scaling import Schedule
from posenc_lib.scheme import LayerSchemes, PositionScheme

RotationKind = Literal[
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"
]
InputEncoding = Literal[
    "learned", "learned, one table an axis", "sinusoidal, tensor2tensor"
]


@dataclass(frozen=True)
class RotationSettings:
    """A layer's rotation in a configuration's own terms, with what its schedule needs.

    Equation: ω′, a = schedule(r, θ, …), see `posenc_lib.rotary.scaling`
    Shapes: `schedule()` → (r/2,)

    Args:
        base: θ.
        dim: rotated channels r; the first r of a head's d channels.
        kind: "default", "linear", "dynamic", "yarn", "longrope", "llama3" or
            "proportional", as in `rope_type`.
        layout: "interleaved" or "half", as the checkpoint's published code expects.
        options: the arguments of the schedule beyond r, θ and the current length.
        sections: pairs of each axis of M-RoPE; empty for one axis.
        interleaved: the axes of M-RoPE alternate from pair to pair (Qwen3-VL)
            instead of forming blocks.

    Chapter: 14
    """

    base: float
    dim: int
    kind: RotationKind = "default"
    layout: Layout = "half"
    options: tuple[tuple[str, Any], ...] = ()
    sections: tuple[int, ...] = ()
    interleaved: bool = False

    def schedule(self, length: int = 1) -> Schedule:
        """Frequencies and attention factor; dynamic NTK and LongRoPE need `length`."""
        arguments: dict[str, Any] = dict(self.options)
        if self.kind in ("dynamic", "longrope"):
            arguments["length"] = length
        functions: dict[str, Callable[..., Schedule]] = {
            "default": lambda dim, base: Schedule(inverse_frequencies(dim, base)),
            "linear": schedules.linear_interpolation,
            "dynamic": schedules.dynamic_ntk,
            "yarn": schedules.yarn_released,
            "longrope": schedules.longrope,
            "llama3": schedules.llama3,
            "proportional": schedules.proportional,
        }
        return functions[self.kind](self.dim, self.base, **arguments)

    def rope(self, length: int = 1) -> RoPE | AxialRoPE:
        """The rotation itself; with sections it takes positions of three axes."""
        frequencies, factor = self.schedule(length)
        if not self.sections:
            return RoPE(frequencies, layout=self.layout, attention_factor=factor)
        split = mrope_interleaved_frequencies if self.interleaved else mrope_frequencies
        return AxialRoPE(
            split(frequencies, self.sections),
            layout=self.layout,
            attention_factor=factor,
        )

    def wavelengths(self, length: int | None = None) -> Tensor:
        """Positions in a full turn of each pair: unscaled, or scaled for a length."""
        if length is None:
            return wavelengths(inverse_frequencies(self.dim, self.base))
        return wavelengths(self.schedule(length).frequencies)

    @property
    def original_length(self) -> int | None:
        """L₀ of the schedule, the length before scaling; None where it has none."""
        return dict(self.options).get("original_length")


@dataclass(frozen=True)
class LayerSettings:
    """All that one layer of a checkpoint knows of positions.

    Equation: e_mn = scale · (T_m q_m)ᵀ (T_n k_n) + b(m, n)
        over the n that the layer may see

    Args:
        encoding: its name in the literature: "RoPE", "NoPE", "ALiBi", "T5 bias", …
        heads: H, of the queries.
        head_dim: d, all channels of a query, rotated or not.
        rotation: of query and key.
        skipped: leading channels that the rotation leaves alone (DeepSeek's content
            channels).
        window: w: keys less than w away.
        chunk: c: keys of the query's own chunk.
        patches: side and shift of a window of patches.
        causal: whether the future is hidden, by a mask that the caller applies.
        scale: of the scores where it is not 1/√d.
        temperature: steps of the queries' temperature (length of a step, size).
        options: sizes of a bias or of scores.

    Chapter: 14
    """

    encoding: str
    heads: int
    head_dim: int
    rotation: RotationSettings | None = None
    skipped: int = 0
    window: int | None = None
    chunk: int | None = None
    patches: tuple[int, int] | None = None
    causal: bool = True
    scale: float | None = None
    temperature: tuple[int, float] | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def scheme(
        self, *, length: int = 1, generator: torch.Generator | None = None
    ) -> PositionScheme:
        """The layer's `PositionScheme`.

        Learned tables are drawn at random: load the checkpoint's weights into them.
        """
        options = dict(self.options)
        fields: dict[str, Any] = {
            "transform": self._transform(length),
            "mask": self._mask(),
        }
        if self.encoding in ("ALiBi", "ALiBi, scaled by 1/√d"):
            shrink = 1.0 if self.encoding == "ALiBi" else self.head_dim**-0.5
            fields["bias"] = partial(alibi, slopes=alibi_slopes(self.heads) * shrink)
        elif self.encoding == "T5 bias":
            fields["bias"] = T5Bias(self.heads, generator=generator, **options)
        elif self.encoding == "window bias":
            fields["bias"] = WindowBias(
                self.heads, options["window"], generator=generator
            )
        elif self.encoding == "Transformer-XL":
            fields["scores"] = _transformer_xl(
                self.heads, self.head_dim, options, generator
            )
        elif self.encoding == "disentangled (DeBERTa)":
            fields["scores"] = _deberta(self.heads, self.head_dim, options, generator)
        return PositionScheme(self.encoding, scale=self.scale, **fields)

    def _transform(self, length: int) -> Callable[..., tuple[Tensor, Tensor]] | None:
        options = dict(self.options)
        if self.temperature is not None:
            step, size = self.temperature
            return partial(
                tempered,
                temperature=partial(
                    llama4_temperature, floor_scale=step, attn_scale=size
                ),
            )
        if self.encoding == "2-D RoPE":
            pairs = self.head_dim // 4
            return AxialRoPE(
                axial_frequencies((pairs, pairs), options["base"]),
                layout=options["layout"],
            ).transform
        if self.encoding == "2-D RoPE, axis by axis":
            rope = RoPE(
                inverse_frequencies(self.head_dim // 2, options["base"]), layout="half"
            )
            return partial(axis_by_axis, rope=rope)
        if self.rotation is None:
            return None
        rotate = self.rotation.rope(length).transform
        if not self.skipped:
            return rotate
        return partial(rotate_after, rotate=rotate, skipped=self.skipped)

    def _mask(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        if self.window is not None:
            return partial(sliding_window, size=self.window)
        if self.chunk is not None:
            return partial(chunk_mask, chunk=self.chunk)
        if self.patches is not None:
            return partial(patch_window, size=self.patches[0], shift=self.patches[1])
        return None


@dataclass(frozen=True)
class InputSettings:
    """What a stack adds to its tokens before the first layer.

    Equation: x_m ← x_m + P(m)

    Args:
        encoding: "learned", "learned, one table an axis" or "sinusoidal,
            tensor2tensor".
        rows: L of a learned table, reserved rows included; positions of a sinusoid.
        dim: D.
        first: position of the first token.

    Chapter: 14
    """

    encoding: InputEncoding
    rows: int
    dim: int
    first: int = 0

    def scheme(self, *, generator: torch.Generator | None = None) -> PositionScheme:
        """A scheme with the field `embedding`; a learned table is drawn at random."""
        if self.encoding == "sinusoidal, tensor2tensor":
            return PositionScheme(
                self.encoding, embedding=partial(sinusoidal_tensor2tensor, dim=self.dim)
            )
        axes = 2 if self.encoding == "learned, one table an axis" else 1
        tables = [
            LearnedEmbedding(self.rows, self.dim, generator=generator)
            for _ in range(axes)
        ]
        if axes == 1:
            return PositionScheme(self.encoding, embedding=tables[0])
        return PositionScheme(
            self.encoding,
            embedding=partial(sum_of_axes, rows=tables[0], columns=tables[1]),
        )


@dataclass(frozen=True)
class Stack:
    """Layers that see the same positions: a decoder, an encoder, an image tower.

    Args:
        name: "decoder", "encoder" or "vision".
        layers: one `LayerSettings` for each layer.
        length: positions that the model is made for; None where it states no limit.
        trained: positions before any scaling; None where it is `length`.
        inputs: what is added to the tokens.
        notes: sentences about what the settings alone don't show.

    Chapter: 14
    """

    name: str
    layers: tuple[LayerSettings, ...]
    length: int | None
    trained: int | None = None
    inputs: InputSettings | None = None
    notes: tuple[str, ...] = ()

    def schemes(
        self, *, length: int = 1, generator: torch.Generator | None = None
    ) -> LayerSchemes:
        """All that a model of these layers needs, for `attention.prepare`.

        Positions count the tokens from 0: what a table adds to them (RoBERTa's begin at
        2) is added here. Frequencies of dynamic NTK and LongRoPE are those of `length`
        tokens, by default those of a short input. T5's layers share one table, as in
        the model; equal layers without parameters share one scheme.
        """
        alike: dict[LayerSettings, PositionScheme] = {}
        schemes = []
        for layer in self.layers:
            scheme = alike.get(layer)
            if scheme is None:
                scheme = layer.scheme(length=length, generator=generator)
                learns = next(scheme.parameters(), None) is not None
                if not learns or layer.encoding == "T5 bias":
                    alike[layer] = scheme
            schemes.append(scheme)
        if self.inputs is None:
            return LayerSchemes(schemes)
        added = self.inputs.scheme(generator=generator).embedding
        if added is not None and self.inputs.first:
            added = partial(counted_from, embedding=added, first=self.inputs.first)
        return LayerSchemes(schemes, embedding=added)


# ---- parts of a scheme that apply others


def rotate_after(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    rotate: Callable[..., Any],
    skipped: int,
) -> tuple[Tensor, Tensor]:
    """Rotate all channels after the first `skipped`: latent attention."""
    rotated_q, rotated_k = rotate(
        q[..., skipped:], k[..., skipped:], q_positions, k_positions
    )
    return (
        torch.cat((q[..., :skipped], rotated_q), -1),
        torch.cat((k[..., :skipped], rotated_k), -1),
    )


def axis_by_axis(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *, rope: RoPE
) -> tuple[Tensor, Tensor]:
    """Gemma 4's image tower: each half of the channels is rotated for one axis."""
    halves = [
        rope.transform(*pair, q_positions[..., axis], k_positions[..., axis])
        for axis, pair in enumerate(zip(q.chunk(2, -1), k.chunk(2, -1), strict=True))
    ]
    rotated_q, rotated_k = zip(*halves, strict=True)
    return torch.cat(rotated_q, -1), torch.cat(rotated_k, -1)


def sum_of_axes(
    positions: Tensor, *, rows: LearnedEmbedding, columns: LearnedEmbedding
) -> Tensor:
    """The sum of two tables, one an axis: positions (..., T, 2)."""
    total: Tensor = rows(positions[..., 0]) + columns(positions[..., 1])
    return total


def counted_from(
    positions: Tensor, *, embedding: Callable[[Tensor], Tensor], first: int
) -> Tensor:
    """An embedding whose first token has position `first`."""
    return embedding(positions + first)


def _transformer_xl(
    heads: int, dim: int, options: dict[str, Any], generator: torch.Generator | None
) -> Any:
    layer = TransformerXL(heads, dim, options["dim"], generator=generator)
    most = options["clamp_len"]
    return layer.scores if most <= 0 else partial(clamped, layer=layer, most=most)


def clamped(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    layer: TransformerXL,
    most: int,
) -> Tensor:
    """Transformer-XL's scores, with distances clamped to `most` (`clamp_len`)."""
    relative = k_positions[..., None, :] - q_positions[..., :, None]
    relative = relative if relative.dim() == 2 else relative[:, None]
    scores = layer.scores(q, k, q_positions, k_positions)
    for side in (-most, most):
        at_most = layer.scores(
            q,
            k,
            torch.full_like(q_positions, most),
            torch.full_like(k_positions, most + side),
        )
        beyond = relative < side if side < 0 else relative > side
        scores = torch.where(beyond, at_most, scores)
    return scores


def _deberta(
    heads: int, dim: int, options: dict[str, Any], generator: torch.Generator | None
) -> Any:
    tables = DeBERTa(heads, dim, options["dim"], options["span"], generator=generator)
    released = (
        deberta_released_scores
        if options["max_distance"] is None
        else partial(deberta_v2_scores, max_distance=options["max_distance"])
    )

    return partial(tables.scores, form=released)
