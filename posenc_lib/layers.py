"""Plans of published models: which layer has which positions.

Models of 2025 don't treat all layers alike. Some see a window and rotate fast, some see
everything and rotate slowly or not at all. A plan is a tuple with one `Layer` for each
layer, the first one first, and each layer makes its `PositionScheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from posenc_lib import _checks
from posenc_lib.attention.long_context import llama4_temperature, tempered
from posenc_lib.attention.masks import chunk_mask, sliding_window
from posenc_lib.rotary import RoPE
from posenc_lib.rotary.pairs import Layout
from posenc_lib.rotary.scaling import (
    ScheduleFunction,
    linear_interpolation,
    unscaled,
    yarn_released,
)
from posenc_lib.scheme import LayerSchemes, PositionScheme


@dataclass(frozen=True)
class Layer:
    """The positions of one layer: its rotation or temperature, its window or chunk.

    Equation: transform R with θ and its schedule, or t_m on the queries, or nothing;
        allowed(m, n) = [|n − m| < w] or [⌊m/c⌋ = ⌊n/c⌋] or all

    The caller adds the causal mask.

    Args:
        base: θ of the rotation; None for a layer without one (NoPE).
        schedule: `schedule(head_dim, base)` gives frequencies and attention factor,
            such as `partial(yarn_released, factor=..., original_length=...)`.
        window: w, as in `attention.sliding_window`; None sees everything.
        chunk: c, tokens of a chunk; a token sees its own chunk only.
        temperature: t, of the queries of a layer without rotation, as in
            `long_context.tempered`.

    Raises:
        TypeError, ValueError: `base` is not above 0, `window` or `chunk` is not an
            integer ≥ 1; both a window and a chunk; both a rotation and a temperature; a
            schedule without a rotation.

    Chapter: 14
    """

    base: float | None = None
    schedule: ScheduleFunction = unscaled
    window: int | None = None
    chunk: int | None = None
    temperature: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        if self.base is not None:
            _checks.positive("base", self.base)
        for name, size in (("window", self.window), ("chunk", self.chunk)):
            if size is not None:
                _checks.whole_number(name, size, least=1)
        _checks.callable_("schedule", self.schedule)
        if self.temperature is not None:
            _checks.callable_("temperature", self.temperature)
        if self.window is not None and self.chunk is not None:
            raise ValueError(
                f"window and chunk exclude one another, got {self.window} and "
                f"{self.chunk}"
            )
        if self.base is None and self.schedule is not unscaled:
            raise ValueError(
                f"schedule is for layers with a rotation, got {self.schedule!r} "
                "without a base"
            )
        if self.base is not None and self.temperature is not None:
            raise ValueError(
                "temperature is for layers without a rotation, got one beside base "
                f"{self.base}"
            )

    def rope(self, head_dim: int, *, layout: Layout = "interleaved") -> RoPE | None:
        """This layer's rotation of heads of d channels; None in a layer without one."""
        if self.base is None:
            return None
        frequencies, factor = self.schedule(head_dim, self.base)
        return RoPE(frequencies, layout=layout, attention_factor=factor)

    def scheme(
        self, head_dim: int, *, layout: Layout = "interleaved"
    ) -> PositionScheme:
        """This layer as a scheme: it fills `transform`, `mask`, both or neither."""
        rope = self.rope(head_dim, layout=layout)
        transform = None if rope is None else rope.transform
        if self.temperature is not None:
            transform = partial(tempered, temperature=self.temperature)
        mask: Callable[[Tensor, Tensor], Tensor] | None = None
        if self.window is not None:
            mask = partial(sliding_window, size=self.window)
        if self.chunk is not None:
            mask = partial(chunk_mask, chunk=self.chunk)
        return PositionScheme(
            "NoPE" if rope is None else "RoPE", transform=transform, mask=mask
        )


def schemes(plan: Sequence[Layer], head_dim: int, *, layout: Layout) -> LayerSchemes:
    """A plan for `attention.prepare`: `schemes(gemma3(26), 256, layout="half")`.

    Equation: layer ℓ attends under `plan[ℓ].scheme(head_dim)`
    Shapes: → one scheme for each layer; equal layers share one

    Args:
        plan: one `Layer` for each layer, the first one first.
        head_dim: d, channels of a head.
        layout: of the rotations: "half" for weights in transformers' layout, which
            are silently wrong in the other.

    Raises:
        TypeError, ValueError: a plan without a layer, or of something else; `head_dim`
            is not even; as `RoPE`.

    Chapter: 14
    """
    _checks.even_dimension("head_dim", head_dim)
    if not isinstance(plan, Sequence) or not all(isinstance(x, Layer) for x in plan):
        raise TypeError(f"plan must be one Layer for each layer, got {plan!r}")
    made = {layer: layer.scheme(head_dim, layout=layout) for layer in plan}
    return LayerSchemes([made[layer] for layer in plan])


def gemma3(
    layers: int, *, window: int = 1024, factor: float = 8.0
) -> tuple[Layer, ...]:
    """Gemma 3: five local layers, then a global one with a slower rotation.

    Equation: layer ℓ = 0, 1, … is global where 6 divides ℓ + 1: θ = 1,000,000, ω/s;
        else θ = 10,000, window w      (gemma3)
    Shapes: → `layers` layers

    Only the global layers are interpolated. Interpolating the local ones too, or none,
    is the usual mistake; short prompts don't show it.

    Args:
        layers: number of layers.
        window: w: 1024 in 4B, 12B and 27B, 512 in 1B and 270M.
        factor: s: 8 in 4B, 12B and 27B, 1 in 1B and 270M.

    Raises:
        TypeError, ValueError: `layers` or `window` is not an integer ≥ 1, `factor` is
            below 1.

    Source: gemma3
    Checked: golden; google-deepmind/gemma@9fec24caa489:gemma/gm/nn/_gemma.py:Gemma3_4B
    Chapter: 14
    """
    _checks.whole_number("window", window, least=1)
    far = Layer(1_000_000.0, schedule=partial(linear_interpolation, factor=factor))
    far.rope(2)  # raises now rather than in the first forward pass
    return _every(6, layers, Layer(10_000.0, window=window), far)


def llama4(
    layers: int,
    *,
    base: float = 500_000.0,
    chunk: int = 8192,
    schedule: ScheduleFunction = unscaled,
) -> tuple[Layer, ...]:
    """Llama 4 (iRoPE): three layers that rotate within chunks, then one without RoPE.

    Equation: layer ℓ = 0, 1, … has no rotation, but a temperature, where 4 divides
        ℓ + 1; the others rotate and see chunks      (llama4)
    Shapes: → `layers` layers

    In Scout, layers that rotate also normalise query and key, which is not part of the
    plan. For a single new token Meta's own code builds no mask, so that decoding there
    is not chunked.

    Args:
        layers: number of layers.
        base: θ.
        chunk: c.
        schedule: of the layers that rotate; Scout has `partial(llama3, factor=16,
            ...)`.

    Raises:
        TypeError, ValueError: as `Layer`; `layers` is not an integer ≥ 1.

    Source: llama4
    Checked: golden;
        meta-llama/llama-models@408c577168a1:models/llama4/model.py:TransformerBlock.__init__
    Chapter: 14
    """
    _checks.whole_number("chunk", chunk, least=1)
    return _every(
        4,
        layers,
        Layer(base, schedule=schedule, chunk=chunk),
        Layer(temperature=llama4_temperature),
    )


def smollm3(
    layers: int, *, base: float = 5_000_000.0, schedule: ScheduleFunction = unscaled
) -> tuple[Layer, ...]:
    """SmolLM3: every fourth layer has no positions; all layers see everything.

    Equation: layer ℓ = 0, 1, … has no rotation where 4 divides ℓ + 1
        (smollm3, yang2025)
    Shapes: → `layers` layers

    The configuration's list `no_rope_layers` holds 1 where a layer does rotate.

    Args:
        layers: number of layers.
        base: θ of the checkpoint; the configuration class has 2,000,000.
        schedule: of the layers that rotate; YaRN for contexts past 64k.

    Raises:
        TypeError, ValueError: as `Layer`; `layers` is not an integer ≥ 1.

    Source: smollm3, yang2025
    Checked: golden;
        huggingface/transformers@008e57439125:src/transformers/models/smollm3/configuration_smollm3.py:SmolLM3Config.__post_init__
    Chapter: 14
    """
    return _every(4, layers, Layer(base, schedule=schedule), Layer())


def cohere2(layers: int, *, base: float, window: int = 4096) -> tuple[Layer, ...]:
    """Command R7B and Command A: three layers with RoPE and a window, one with neither.

    Equation: layer ℓ = 0, 1, … has neither rotation nor window where 4 divides ℓ + 1
        (yang2025)
    Shapes: → `layers` layers

    Args:
        layers: number of layers.
        base: θ of the checkpoint.
        window: w.

    Raises:
        TypeError, ValueError: as `Layer`; `layers` is not an integer ≥ 1.

    Source: yang2025
    Checked:
        huggingface/transformers@015bfeb86891:src/transformers/models/cohere2/modeling_cohere2.py:Cohere2Attention.__init__
    Chapter: 18
    """
    _checks.whole_number("window", window, least=1)
    return _every(4, layers, Layer(base, window=window), Layer())


def gpt_oss(layers: int) -> tuple[Layer, ...]:
    """gpt-oss: layers alternate between a window and the full context.

    Equation: layer ℓ = 0, 2, 4, … has window 128; θ = 150,000, s = 32, L₀ = 4096
        (gpt-oss)
    Shapes: → `layers` layers

    All have YaRN, whose ramp is not rounded to whole pairs. The learned sink logit of
    each head is part of the softmax, not of the positions, and is not included.

    Args:
        layers: number of layers.

    Raises:
        TypeError, ValueError: `layers` is not an integer ≥ 1.

    Source: gpt-oss
    Checked: openai/gpt-oss@0568dfc94f09:gpt_oss/torch/model.py:AttentionBlock.__init__
    Chapter: 18
    """
    yarn = partial(yarn_released, factor=32.0, original_length=4096, truncate=False)
    return _every(
        2,
        layers,
        Layer(150_000.0, schedule=yarn, window=128),
        Layer(150_000.0, schedule=yarn),
    )


def modernbert(layers: int) -> tuple[Layer, ...]:
    """ModernBERT, an encoder: every third layer sees everything and rotates slowly.

    Equation: layer ℓ = 0, 3, 6, … has θ = 160,000; the others θ = 10,000 and
        |n − m| ≤ 64      (modernbert)
    Shapes: → `layers` layers

    Its "local attention 128" is 64 tokens on each side and the query: a window of size
    65 here.

    Args:
        layers: number of layers.

    Raises:
        TypeError, ValueError: `layers` is not an integer ≥ 1.

    Source: modernbert
    Checked:
        huggingface/transformers@000c33fdfde1:src/transformers/models/modernbert/modeling_modernbert.py:ModernBertAttention.__init__
    Chapter: 18
    """
    _checks.whole_number("layers", layers, least=1)
    far, near = Layer(160_000.0), Layer(10_000.0, window=65)
    return tuple(near if i % 3 else far for i in range(layers))


def drope(plan: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """DroPE: the rotations of a trained model are dropped from all layers.

    Equation: R_m → 1 in every layer      (gelberg2026)
    Shapes: a plan → a plan

    This is only the plan: the model is useless without the short recalibration that
    follows, at the trained length. Windows and chunks stay. The released code can also
    normalise q and k and change the softmax scale; both are off by default.

    Args:
        plan: the layers of a model that was trained with rotations.

    Raises:
        TypeError, ValueError: `plan` is not a tuple of layers; no layer has a rotation
            to drop.

    Source: gelberg2026
    Checked: SakanaAI/DroPE@260a8bb9f4fd:custom_models/attention.py:nope
    Chapter: 18
    """
    is_plan = isinstance(plan, tuple) and all(isinstance(x, Layer) for x in plan)
    if not is_plan:
        raise TypeError(f"plan must be a tuple of layers, got {plan!r}")
    if all(layer.base is None for layer in plan):
        raise ValueError("plan must have a layer with a rotation, got none")
    return tuple(replace(layer, base=None, schedule=unscaled) for layer in plan)


def _every(period: int, layers: int, usual: Layer, last: Layer) -> tuple[Layer, ...]:
    """`last` in every layer whose number, from 1, `period` divides; else `usual`."""
    _checks.whole_number("layers", layers, least=1)
    return tuple(usual if (i + 1) % period else last for i in range(layers))
