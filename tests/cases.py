"""How to call every public function and class, with tensors and without.

`CASES` are calls with named tensors, `CONSTANTS` calls that take none.
test_callables.py runs them in every dtype, on every device, compiled and
differentiated; test_malformed.py breaks their arguments one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from examples import bias as bias_group
from helpers import HEADS, WIDTH, normal, seeded
from torch import Tensor, nn
from torch.func import functional_call

from posenc_lib import attention as attentions
from posenc_lib import bias as biases
from posenc_lib import (
    content,
    embedding,
    multimodal_positions,
    positions,
    rotary,
)
from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    key_padding_mask,
    same_segment,
    sliding_window,
)
from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket, t5_bucket_edges
from posenc_lib.embedding import LearnedEmbedding, sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import (
    cos_sin,
    inverse_frequencies,
    octave_frequencies,
    pixel_frequencies,
    tensor2tensor_frequencies,
    wavelengths,
)
from posenc_lib.positions import (
    after_mask,
    arange,
    from_mask,
    grid,
    packed,
    relative,
    segment_ids,
)
from posenc_lib.rotary import AxialRoPE, RoPE, convert_layout, convert_projection
from posenc_lib.scheme import PositionScheme

Inputs = dict[str, Tensor]

# Packages with other tests: test_properties.py, test_ledger.py, lab/test_*.py …
ELSEWHERE = ("properties", "ledger", "zoo", "lab", "checkpoints", "doctor")


# ---- how to call everything with tensors


@dataclass(frozen=True)
class Case:
    """A call with named tensors.

    `inputs(length, seed)` has positions as int64, masks as bool, the rest as float64.

    `result` is the documented dtype of a floating-point result: "input" (that of the
    floating-point tensors given), "at least float32", or "float32". `exact` is the same
    call in float64, where dtype is an argument. `noise` bounds the error of the
    arithmetic, in roundings of the dtype that it is done in; rounding the result comes
    on top.
    """

    call: Callable[..., Any]
    inputs: Callable[[int, int], Inputs]
    result: str = "input"
    exact: Callable[..., Any] | None = None
    noise: Callable[[Inputs, Tensor], Tensor | float] = lambda inputs, exact: 0.0
    floats: bool = True  # whether positions may be float32 or float64
    target: Callable[..., Any] | None = None  # what is called, if `call` wraps it
    parameters: tuple[str, ...] = ()  # inputs that are a module's, one for all examples
    differentiable: bool = True
    # roundings in the dtype that is given: of matrix products, say, which a model does
    # in its dtype
    steps: int = 0
    # compilations for lengths of all sizes: more where a loop is unrolled, 0 for none
    graphs: int = 2
    mapped: bool = True  # whether it works under vmap
    kernel: tuple[
        str, ...
    ] = ()  # devices whose own kernel it asks for, which no stand-in has


def at(length: int, seed: int) -> Tensor:
    return arange(length, offset=11 * seed)


def rows(length: int, seed: int) -> Tensor:
    return torch.stack((at(length, seed), at(length, seed + 1)))


def pair(length: int, seed: int) -> Inputs:
    return {"q_positions": rows(length, seed), "k_positions": at(length, seed + 2)}


def masks(length: int, seed: int) -> Inputs:
    return {"mask": torch.arange(length).remainder(seed + 3).gt(0).expand(2, length)}


def heads_of(length: int, seed: int) -> Inputs:
    return {
        "x": normal(2, HEADS, length, WIDTH, seed=seed),
        "positions": rows(length, seed),
    }


def q_and_k(length: int, seed: int) -> Inputs:
    q, k = (
        normal(2, HEADS, length, WIDTH, seed=seed),
        normal(2, HEADS // 2, length, WIDTH, seed=seed + 9),
    )
    return {"q": q, "k": k} | pair(length, seed)


def q_k_and_v(length: int, seed: int) -> Inputs:
    return {"v": normal(2, HEADS // 2, length, 3, seed=seed + 5)} | q_and_k(
        length, seed
    )


def wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def rotate(rope: RoPE) -> Callable[..., Tensor]:
    return lambda x, positions: rope(positions, wide(x))(x)


def rotation_noise(inputs: Inputs, exact: Tensor) -> float:
    """Four roundings (table, product, product, sum) of at most |a| + |b|."""
    return 8 * max(float(x.abs().max()) for name, x in inputs.items() if name in "xqk")


def score_noise(q: Tensor, k: Tensor) -> float:
    """d products, their sum, the scale and the bias, as a relative error of the
    weights, above and below the bar.
    """
    largest = float(q.abs().sum(-1).max() * k.abs().max()) * WIDTH**-0.5
    return 2 * (WIDTH + 4) * largest


def weights_noise(inputs: Inputs, exact: Tensor) -> Tensor:
    return exact * (score_noise(inputs["q"], inputs["k"]) + exact.shape[-1] + 6)


def attention_noise(inputs: Inputs, exact: Tensor) -> float:
    length = inputs["k"].shape[2]
    return float(inputs["v"].abs().max()) * (
        score_noise(inputs["q"], inputs["k"]) + 2 * length + 8
    )


def with_table(module: nn.Module) -> Callable[..., Tensor]:
    """The module as a function of its table and its positions."""
    return lambda table, **positions: functional_call(
        module, {"table": table}, (), positions
    )


def axial_q_and_k(length: int, seed: int) -> Inputs:
    """q and k at positions of three axes, (B, T, 3)."""
    inputs = q_and_k(length, seed)
    return inputs | {
        name: torch.stack((inputs[name], inputs[name] + 1, inputs[name] + 2), -1)
        for name in ("q_positions", "k_positions")
    }


def everywhere(q: Tensor, k: Tensor, v: Tensor, **positions: Tensor) -> Tensor:
    """A scheme that fills every place of attention at once."""
    rope = RoPE(inverse_frequencies(WIDTH))
    scheme = PositionScheme(
        "everywhere",
        transform=rope.transform,
        bias=partial(alibi, slopes=alibi_slopes(HEADS)),
        scores=lambda q, k, m, n: q @ k.mT,
        values=lambda weights, v, m, n: weights @ v,
        mask=partial(sliding_window, size=4),
        scale=0.5,
    )
    return attention(q, k, v, scheme=scheme, **positions)


ROPE, HALF = (
    RoPE(inverse_frequencies(WIDTH)),
    RoPE(inverse_frequencies(WIDTH // 2), layout="half"),
)
TABLE = LearnedEmbedding(64, WIDTH)
T5 = {
    name: T5Bias(HEADS, bidirectional=name == "both", std=1.0)
    for name in ("both", "causal")
}


def t5_inputs(length: int, seed: int) -> Inputs:
    return {"table": normal(32, HEADS, seed=seed)} | pair(length, seed)


def table_inputs(length: int, seed: int) -> Inputs:
    return {"table": normal(64, WIDTH, seed=seed), "positions": rows(length, seed)}


CASES: dict[str, Case] = {
    "positions.arange": Case(
        lambda x: arange(x.shape[-1], offset=2, device=x.device),
        lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)},
    ),
    "positions.packed": Case(
        lambda x: packed([3, x.shape[-1]], device=x.device),
        lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)},
    ),
    "positions.segment_ids": Case(
        lambda x: segment_ids([3, x.shape[-1]], device=x.device),
        lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)},
    ),
    "positions.from_mask": Case(partial(from_mask, first=2, padding=1), masks),
    "positions.after_mask": Case(partial(after_mask, steps=3, first=2), masks),
    "positions.relative": Case(relative, pair),
    "frequencies.wavelengths": Case(
        wavelengths,
        lambda t, seed: {"frequencies": normal(t, seed=seed).exp()},
        noise=lambda inputs, exact: 2 * exact,
    ),
    "frequencies.cos_sin": Case(
        partial(cos_sin, frequencies=inverse_frequencies(WIDTH)),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(
            cos_sin, frequencies=inverse_frequencies(WIDTH), dtype=torch.float64
        ),
    ),
    "embedding.sinusoidal": Case(
        partial(sinusoidal, dim=9),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal, dim=9, dtype=torch.float64),
    ),
    "embedding.sinusoidal_tensor2tensor": Case(
        partial(sinusoidal_tensor2tensor, dim=9),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal_tensor2tensor, dim=9, dtype=torch.float64),
    ),
    "embedding.LearnedEmbedding": Case(with_table(TABLE), table_inputs, floats=False),
    "rotary.RoPE": Case(
        lambda positions: (ROPE(positions).cos, ROPE(positions).sin),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=lambda positions: (
            ROPE(positions, torch.float64).cos,
            ROPE(positions, torch.float64).sin,
        ),
    ),
    "rotary.RoPE, transform": Case(ROPE.transform, q_and_k, noise=rotation_noise),
    "rotary.Rotation": Case(rotate(ROPE), heads_of, noise=rotation_noise),
    "rotary.Rotation, partial and half": Case(
        rotate(HALF), heads_of, noise=rotation_noise
    ),
    "rotary.Rotation, shared positions": Case(
        rotate(ROPE),
        lambda t, seed: {"x": normal(t, WIDTH, seed=seed), "positions": at(t, seed)},
        noise=rotation_noise,
    ),
    "rotary.Rotation, inverse": Case(
        lambda x, positions: ROPE(positions, wide(x)).inverse()(x),
        heads_of,
        noise=rotation_noise,
    ),
    "rotary.Rotation, product": Case(
        lambda x, positions: ROPE(positions, wide(x)).after(ROPE(positions, wide(x)))(
            x
        ),
        heads_of,
        # Two rounded tables, two products and a sum of at most 2 for each entry of the
        # product, beside the rotation.
        noise=lambda inputs, exact: 3 * rotation_noise(inputs, exact),
    ),
    "rotary.convert_layout": Case(
        partial(convert_layout, source="half", target="interleaved"),
        lambda t, seed: {"x": normal(2, HEADS, t, WIDTH, seed=seed)},
    ),
    "rotary.convert_projection": Case(
        partial(
            convert_projection,
            heads=HEADS,
            source="interleaved",
            target="half",
            rotary_dim=6,
        ),
        lambda t, seed: {"weight": normal(HEADS * WIDTH, t, seed=seed)},
    ),
    "bias.T5Bias": Case(with_table(T5["causal"]), t5_inputs, floats=False),
    "bias.T5Bias, bidirectional": Case(with_table(T5["both"]), t5_inputs, floats=False),
    "bias.t5_bucket": Case(
        partial(t5_bucket, bidirectional=True),
        lambda t, seed: {"relative_positions": at(t, seed) * 9},
        floats=False,
    ),
    "bias.alibi": Case(
        partial(alibi, slopes=alibi_slopes(3)),
        pair,
        result="float32",
        exact=partial(alibi, slopes=alibi_slopes(3), dtype=torch.float64),
        noise=lambda inputs, exact: 2 * exact.abs(),
    ),
    "attention.attention": Case(
        partial(attention, scheme=schemes.NOPE),
        q_k_and_v,
        target=attention,
        noise=attention_noise,
    ),
    "attention.attention_weights": Case(
        partial(attention_weights, scheme=schemes.NOPE),
        q_and_k,
        target=attention_weights,
        result="at least float32",
        noise=weights_noise,
    ),
    "attention.causal": Case(causal, pair),
    "attention.sliding_window": Case(partial(sliding_window, size=3), pair),
    "attention.same_segment": Case(
        same_segment,
        lambda t, seed: {
            "q_segment_ids": rows(t, seed) // 3,
            "k_segment_ids": rows(t, seed) // 3,
        },
    ),
    "attention.key_padding_mask": Case(key_padding_mask, masks),
    "scheme.PositionScheme": Case(
        everywhere, q_k_and_v, noise=lambda i, exact: 2 * attention_noise(i, exact)
    ),
    "scheme.sinusoidal": Case(
        lambda positions: schemes.sinusoidal(WIDTH).embedding(positions),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal, dim=WIDTH, dtype=torch.float64),
    ),
    "scheme.learned": Case(
        with_table(schemes.learned(64, WIDTH).embedding), table_inputs, floats=False
    ),
    "scheme.rope": Case(
        schemes.rope(WIDTH, rotary_dim=4).transform, q_and_k, noise=rotation_noise
    ),
    "scheme.mrope": Case(
        schemes.mrope(WIDTH, 1e4, (2, 1, 1), interleaved=False).transform,
        axial_q_and_k,
        noise=rotation_noise,
    ),
    "scheme.alibi": Case(
        lambda **at: schemes.alibi(3).bias(**at),
        pair,
        result="float32",
        exact=partial(alibi, slopes=alibi_slopes(3), dtype=torch.float64),
        noise=lambda inputs, exact: 2 * exact.abs(),
    ),
    "scheme.t5": Case(
        with_table(schemes.t5(HEADS, bidirectional=True, std=1.0).bias),
        t5_inputs,
        floats=False,
    ),
}

CONSTANTS: dict[str, Callable[[], Any]] = {
    "frequencies.inverse_frequencies": lambda: inverse_frequencies(8),
    "frequencies.tensor2tensor_frequencies": lambda: tensor2tensor_frequencies(9),
    "frequencies.octave_frequencies": lambda: octave_frequencies(4),
    "bias.alibi_slopes": lambda: alibi_slopes(12),
    "bias.t5_bucket_edges": lambda: t5_bucket_edges(16, 128),
}


# ---- the groups: inputs


def shared(length: int, seed: int) -> Inputs:
    return {"q_positions": at(length, seed), "k_positions": at(length, seed)}


def points(length: int, seed: int) -> Inputs:
    points = grid((length, 1)) + seed
    return {"q_positions": points, "k_positions": points}


def one_point(length: int, seed: int) -> Inputs:
    return {"positions": grid((length, 1)) + seed}


def self_attention(length: int, seed: int) -> Inputs:
    q, k = (normal(2, HEADS, length, WIDTH, seed=seed + i) for i in range(2))
    return {"q": q, "k": k} | shared(length, seed)


def on_points(length: int, seed: int) -> Inputs:
    return self_attention(length, seed) | points(length, seed)


def linear(length: int, seed: int) -> Inputs:
    q, k, v = (
        normal(2, HEADS, length, width, seed=seed + i).abs()
        for i, width in enumerate((WIDTH, WIDTH, 3))
    )
    return {"q": q, "k": k, "v": v}


def states(length: int, seed: int) -> Tensor:
    return normal(2, length, WIDTH, seed=seed + 7)


def path_graph(length: int, seed: int) -> Inputs:
    edge = torch.arange(length)
    return {
        "adjacency": ((edge[:, None] - edge[None]).abs() == 1).double() * (1 + seed)
    }


def roundings(count: int) -> Callable[[Inputs, Tensor], float]:
    """So many roundings of the largest result, and of 1 at least."""
    return lambda inputs, exact: count * max(1.0, float(exact.detach().abs().max()))


class Called(nn.Module):
    """A method of a module as its forward, so that parameters can be given from
    outside.
    """

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, **inputs: Tensor) -> Any:
        return getattr(self.module, self.method)(**inputs)


def learned(
    module: nn.Module,
    inputs: Callable[[int, int], Inputs],
    method: str = "forward",
    count: int = 256,
    **options: Any,
) -> Case:
    """A call of a module whose parameters are inputs like any other tensors."""
    module = bias_group.loud(module.double())
    model = Called(module, method)
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def call(**given: Tensor) -> Any:
        rest = {name: x for name, x in given.items() if name not in own}
        return functional_call(model, {name: given[name] for name in own}, (), rest)

    return Case(
        call,
        lambda length, seed: own | inputs(length, seed),
        noise=roundings(count),
        target=getattr(module, method),
        parameters=tuple(own),
        **options,
    )


def table(
    function: Callable[..., Any], inputs: Callable[[int, int], Inputs], **options: Any
) -> Case:
    """A table that is computed in float64 and rounded once."""
    return Case(
        function,
        inputs,
        result="float32",
        exact=partial(function, dtype=torch.float64),
        **options,
    )


def whole(function: Callable[..., Any], inputs: Callable[[int, int], Inputs]) -> Case:
    """Integers in, integers or booleans out."""
    return Case(function, inputs, floats=False)


def unrolled(
    function: Callable[..., Any], inputs: Callable[[int, int], Inputs]
) -> Case:
    """As `whole`, with a loop over the tokens that a compiler unrolls."""
    return Case(function, inputs, floats=False, graphs=5)


def content_of(
    function: Callable[..., Any],
    inputs: Callable[[int, int], Inputs],
    count: int = 256,
    **options: Any,
) -> Case:
    return Case(function, inputs, noise=roundings(count), **options)


def with_position_tables(length: int, seed: int) -> Inputs:
    keys, queries = (normal(HEADS, 8, WIDTH, seed=seed + i) for i in (3, 4))
    return self_attention(length, seed) | {
        "position_keys": keys,
        "position_queries": queries,
    }


def with_table_of_vectors(length: int, seed: int) -> Inputs:
    return self_attention(length, seed) | {"table": normal(7, WIDTH, seed=seed + 3)}


def with_bias_vector(length: int, seed: int) -> Inputs:
    return linear(length, seed) | {"bias": normal(HEADS, 2 * length - 1, seed=seed + 3)}


def with_decays(length: int, seed: int) -> Inputs:
    return linear(length, seed) | {
        "decays": torch.tensor([0.9, 0.8, 0.5, 0.99], dtype=torch.float64)
    }


def with_states(length: int, seed: int) -> Inputs:
    return self_attention(length, seed) | {
        "q_x": states(length, seed),
        "k_x": states(length, seed),
    }


def biased(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return alibi(q_positions, k_positions, alibi_slopes(HEADS))


def first(call: Callable[..., Any]) -> Callable[..., Any]:
    """The output of a call that returns a state too."""
    return lambda **inputs: call(**inputs)[0]


class InTwoColumns(embedding.PEG):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, (x.shape[1] // 2, 2))


REROPE, EXTEND = (
    partial(attentions.rerope, window=4),
    partial(attentions.self_extend, window=6, group=3),
)
AXES = rotary.axial_frequencies((2, 2))
SINE_CODES = attentions.SineSPE(HEADS, WIDTH, sines=2, generator=seeded(3))
CONV_CODES = attentions.ConvSPE(HEADS, WIDTH, kernel_size=4, generator=seeded(3))
SINE_NOISE = SINE_CODES.draw(4, generator=seeded(3)).double()
CONV_NOISE = CONV_CODES.draw(128, 4, generator=seeded(3)).double()
LATENT: dict[str, Any] = {
    "latent": 6,
    "content_dim": 4,
    "rope": RoPE(inverse_frequencies(4)),
    "generator": seeded(3),
}

CASES |= {
    # ---- positions
    "positions.jittered": content_of(
        lambda coordinates: positions.jittered(coordinates, jitter=1.0),
        lambda t, seed: {"coordinates": normal(t, 2, seed=seed)},
        target=positions.jittered,
        result="at least float32",
    ),
    "positions.abacus": whole(
        positions.abacus,
        lambda t, seed: {
            "digits": torch.arange(t).remainder(seed + 3).gt(0).expand(2, t)
        },
    ),
    "attention.tree_mask": unrolled(
        partial(attentions.tree_mask, past=2),
        lambda t, seed: {"parents": arange(t) // 2 - 1},
    ),
    "positions.tree_positions": unrolled(
        partial(positions.tree_positions, first=2),
        lambda t, seed: {"parents": arange(t) // 2 - 1},
    ),
    "multimodal_positions.equal_axes": Case(
        multimodal_positions.equal_axes, lambda t, seed: {"positions": rows(t, seed)}
    ),
    "multimodal_positions.next_positions": Case(
        partial(multimodal_positions.next_positions, steps=2),
        lambda t, seed: {"positions": grid((t, 1)) + seed},
    ),
    # ---- embedding
    "embedding.nerf": table(
        partial(embedding.nerf, count=3),
        lambda t, seed: {"positions": normal(t, 2, seed=seed).clamp(-1, 1)},
    ),
    "embedding.random_fourier": table(
        embedding.random_fourier,
        lambda t, seed: {
            "positions": normal(t, 2, seed=seed),
            "matrix": normal(3, 2, seed=seed + 1),
        },
    ),
    "embedding.perceiver_fourier": table(
        partial(embedding.perceiver_fourier, count=3, max_resolution=(8, 16)),
        lambda t, seed: {"positions": normal(t, 2, seed=seed).clamp(-1, 1)},
    ),
    "embedding.timestep": table(
        partial(embedding.timestep, dim=8, shift=1, cosine_first=False),
        lambda t, seed: {"positions": rows(t, seed)},
    ),
    "embedding.sinusoidal_grid": table(
        partial(embedding.sinusoidal_grid, dim=8), one_point
    ),
    "embedding.laplacian": table(embedding.laplacian, path_graph, differentiable=False),
    "embedding.laplacian_eigenvectors": table(
        partial(embedding.laplacian_eigenvectors, count=3),
        path_graph,
        differentiable=False,
    ),
    "embedding.random_walk": table(
        partial(embedding.random_walk, count=3), path_graph, differentiable=False
    ),
    "embedding.random_signs": content_of(
        lambda vectors: embedding.random_signs(vectors, generator=seeded(3)).abs(),
        lambda t, seed: {"vectors": normal(2, t, 3, seed=seed)},
        target=embedding.random_signs,
        mapped=False,
        graphs=0,
    ),
    "embedding.signnet": content_of(
        partial(embedding.signnet, network=torch.tanh, readout=torch.sin),
        lambda t, seed: {"vectors": normal(2, t, 3, seed=seed)},
    ),
    "embedding.resize_grid": content_of(
        partial(embedding.resize_grid, size=(5, 3)),
        lambda t, seed: {"table": normal(t, 2, 3, seed=seed)},
        graphs=0,
    ),
    "embedding.LearnedGrid": learned(
        embedding.LearnedGrid((64, 4), 3), one_point, floats=False
    ),
    "embedding.LearnableFourier": learned(
        embedding.LearnableFourier(WIDTH, axes=2, features=4, hidden=3),
        lambda t, seed: {"positions": normal(t, 2, seed=seed)},
        count=1024,
    ),
    "embedding.PEG": replace(
        learned(InTwoColumns(3), lambda t, seed: {"x": normal(2, 2 * t, 3, seed=seed)}),
        target=embedding.PEG(3).forward,
    ),
    "embedding.ConvolutionalEmbedding": learned(
        embedding.ConvolutionalEmbedding(4, kernel=4, groups=2),
        lambda t, seed: {"x": normal(2, t, 4, seed=seed)},
    ),
    # ---- transform
    "rotary.AxialRoPE": table(
        lambda positions, dtype=torch.float32: (
            AxialRoPE(AXES)(positions, dtype).cos,
            AxialRoPE(AXES)(positions, dtype).sin,
        ),
        one_point,
        target=AxialRoPE(AXES).__call__,
    ),
    "rotary.AxialRoPE, transform": Case(
        AxialRoPE(AXES).transform, on_points, noise=rotation_noise
    ),
    "rotary.MixedRoPE": learned(
        rotary.MixedRoPE(HEADS, WIDTH, generator=seeded(3)), on_points, "transform"
    ),
    "rotary.XPos": Case(
        rotary.XPos(inverse_frequencies(WIDTH)).transform,
        self_attention,
        noise=roundings(64),
    ),
    "rotary.PoPE": learned(
        rotary.PoPE(WIDTH, heads=HEADS), self_attention, "transform"
    ),
    "rotary.LieRE": learned(
        rotary.LieRE(WIDTH, axes=1, block=4), self_attention, "transform", count=2**14
    ),
    "rotary.ComRoPE": learned(
        rotary.ComRoPE(WIDTH, axes=1, block=4, heads=HEADS),
        self_attention,
        "transform",
        count=2**14,
    ),
    "rotary.CayleySTRING": learned(
        rotary.CayleySTRING(WIDTH, ROPE.transform), self_attention, "transform"
    ),
    "rotary.FoPE": learned(
        rotary.FoPE(WIDTH, length=64, heads=HEADS), self_attention, "transform"
    ),
    "rotary.RePo": learned(
        rotary.RePo(WIDTH, HEADS, ROPE, latent=3), with_states, "transform", count=2**12
    ),
    "rotary.grape": content_of(
        rotary.grape,
        lambda t, seed: (
            heads_of(t, seed)
            | {"a": normal(WIDTH, seed=seed + 1), "b": normal(WIDTH, seed=seed + 2)}
        ),
        count=2**12,
    ),
    "rotary.rotated_values": content_of(
        partial(rotary.rotated_values, rope=RoPE(inverse_frequencies(4))),
        lambda t, seed: (
            {
                "weights": normal(2, HEADS, t, t, seed=seed).softmax(-1),
                "v": normal(2, HEADS, t, 4, seed=seed),
            }
            | shared(t, seed)
        ),
    ),
    "rotary.tapa": content_of(
        rotary.tapa, self_attention, count=2**11, result="at least float32"
    ),
    "rotary.LatentQueries": learned(
        rotary.LatentQueries(WIDTH, HEADS, **LATENT),
        lambda t, seed: {"x": states(t, seed), "positions": at(t, seed)},
        steps=4,
    ),
    "rotary.LatentKeys": learned(
        rotary.LatentKeys(WIDTH, HEADS, value_dim=3, **LATENT),
        lambda t, seed: {"x": states(t, seed), "positions": at(t, seed)},
        steps=4,
    ),
    "rotary.LatentKeys, expand": learned(
        rotary.LatentKeys(WIDTH, HEADS, value_dim=3, **LATENT),
        lambda t, seed: {
            "latent": normal(2, t, 6, seed=seed),
            "rotary": normal(2, 1, t, 4, seed=seed + 1),
        },
        "expand",
    ),
    # ---- bias
    "scheme.kerple": learned(schemes.kerple(HEADS).bias, pair),
    "scheme.fire": learned(
        schemes.fire(HEADS, hidden=3, threshold=5.0).bias, shared, graphs=3
    ),
    "bias.KerpleLog": learned(biases.KerpleLog(HEADS), pair),
    "bias.KerplePower": learned(biases.KerplePower(HEADS), pair),
    "bias.FIRE": learned(biases.FIRE(HEADS, hidden=3, threshold=5.0), shared, graphs=3),
    "bias.sandwich": table(partial(biases.sandwich, heads=3, dim=8), pair),
    "bias.WindowBias": learned(biases.WindowBias(HEADS, (64, 2)), points, floats=False),
    "bias.ClsWindowBias": learned(
        biases.ClsWindowBias(HEADS, (64, 2)), points, floats=False
    ),
    "bias.IRPEBias": learned(biases.IRPEBias(HEADS), points, floats=False),
    "bias.IRPEContextual": learned(
        biases.IRPEContextual(WIDTH), on_points, "scores", floats=False
    ),
    "bias.DynamicPositionBias": learned(
        biases.DynamicPositionBias(HEADS, 4), points, count=2**12
    ),
    "bias.DistanceMLPBias": learned(
        biases.DistanceMLPBias(HEADS, 4), pair, count=2**12
    ),
    "bias.LogCoordinateBias": learned(
        biases.LogCoordinateBias(HEADS, (64, 2), hidden=3), points
    ),
    "bias.window_index": whole(partial(biases.window_index, window=(64, 2)), points),
    "bias.cls_window_index": whole(
        partial(biases.cls_window_index, window=(64, 2)), points
    ),
    "bias.irpe_index": whole(
        biases.irpe_index, lambda t, seed: {"relative_positions": at(t, seed) - 4}
    ),
    "bias.irpe_rows": whole(biases.irpe_rows, points),
    "bias.log_coordinates": content_of(
        partial(biases.log_coordinates, window=(4, 2)),
        lambda t, seed: {"offsets": normal(t, 2, seed=seed)},
        count=16,
        result="at least float32",
    ),
    # ---- scores
    "content.Shaw": learned(
        content.Shaw(WIDTH, 3), self_attention, "scores", floats=False
    ),
    "content.Shaw, values": learned(
        content.Shaw(WIDTH, 3),
        lambda t, seed: (
            {
                "weights": normal(2, HEADS, t, t, seed=seed).softmax(-1),
                "v": normal(2, HEADS, t, WIDTH, seed=seed),
            }
            | shared(t, seed)
        ),
        "values",
        floats=False,
        steps=4,
    ),
    "content.clipped_index": whole(
        partial(content.clipped_index, left=2, right=3), pair
    ),
    "content.relative_key_scores": content_of(
        partial(content.relative_key_scores, left=3),
        with_table_of_vectors,
        floats=False,
    ),
    "content.relative_key_query_scores": content_of(
        partial(content.relative_key_query_scores, left=3),
        with_table_of_vectors,
        floats=False,
    ),
    "content.TransformerXL": learned(
        content.TransformerXL(HEADS, WIDTH, 6), self_attention, "scores"
    ),
    "content.relative_shift": content_of(
        content.relative_shift,
        lambda t, seed: {"x": normal(2, 3, t, seed=seed)},
        count=0,
        graphs=3,
    ),
    "content.DeBERTa": learned(
        content.DeBERTa(HEADS, WIDTH, 3, 4),
        self_attention,
        "scores",
        floats=False,
        steps=4,
    ),
    "content.deberta_index": whole(partial(content.deberta_index, span=4), pair),
    "content.deberta_log_bucket": whole(
        partial(content.deberta_log_bucket, num_buckets=8, max_distance=16),
        lambda t, seed: {"distance": 3 * at(t, seed) - 9},
    ),
    "content.deberta_scores": content_of(
        content.deberta_scores, with_position_tables, floats=False
    ),
    "content.deberta_released_scores": content_of(
        content.deberta_released_scores, with_position_tables, floats=False
    ),
    "content.deberta_v2_scores": content_of(
        partial(content.deberta_v2_scores, max_distance=6),
        with_position_tables,
        floats=False,
    ),
    "content.TUPE": learned(
        content.TUPE(64, 3, HEADS, WIDTH),
        shared,
        floats=False,
        result="at least float32",
    ),
    "content.untie_cls": content_of(
        content.untie_cls,
        lambda t, seed: (
            {
                "bias": normal(1, HEADS, t, t, seed=seed),
                "theta": normal(2, HEADS, seed=seed + 1),
            }
            | shared(t, 0)
        ),
        count=0,
        floats=False,
    ),
    "content.CoPE": learned(content.CoPE(WIDTH, 6), self_attention, "scores"),
    "content.contextual_positions": content_of(
        content.contextual_positions,
        lambda t, seed: (
            {"gate_logits": normal(2, HEADS, t, t, seed=seed)} | shared(t, seed)
        ),
        result="at least float32",
    ),
    "content.DAPE": learned(
        content.DAPE(HEADS, biased, hidden=3), self_attention, "scores", count=2**12
    ),
    "content.ForgetGate": learned(
        content.ForgetGate(WIDTH, HEADS),
        lambda t, seed: {"k_x": states(t, seed)} | shared(t, seed),
        floats=False,
        result="at least float32",
    ),
    "content.path_sums": content_of(
        content.path_sums,
        lambda t, seed: {"steps": normal(2, HEADS, t, seed=seed)} | shared(t, seed),
        floats=False,
        result="at least float32",
    ),
    "content.PaTH": learned(
        content.PaTH(WIDTH, HEADS, WIDTH, rank=3),
        lambda t, seed: {"k_x": states(t, seed)} | self_attention(t, seed),
        "scores",
    ),
    "content.path_scores": content_of(
        content.path_scores,
        lambda t, seed: (
            {
                "w": torch.nn.functional.normalize(
                    normal(2, HEADS, t, WIDTH, seed=seed + 5), dim=-1
                ),
                "beta": normal(2, HEADS, t, seed=seed + 6).sigmoid(),
            }
            | self_attention(t, seed)
        ),
    ),
    "content.RelativeLogits": learned(
        content.RelativeLogits(WIDTH, HEADS, 5, rank=3),
        lambda t, seed: {"q_x": states(t, seed)} | shared(t, seed),
        floats=False,
        result="at least float32",
    ),
    # ---- mask, and the other forms of attention
    "attention.rerope": Case(REROPE, shared, mapped=False),
    "attention.leaky_rerope": Case(
        partial(attentions.leaky_rerope, window=4, factor=2), shared, mapped=False
    ),
    "attention.self_extend": Case(EXTEND, shared, mapped=False),
    "attention.dual_chunk": Case(
        partial(attentions.dual_chunk, chunk=4, local=1), shared, mapped=False
    ),
    "attention.branched_relative": Case(
        partial(attentions.branched_relative, branches=REROPE), shared
    ),
    "attention.branched_scores": content_of(
        partial(attentions.branched_scores, rope=ROPE, branches=EXTEND), self_attention
    ),
    "attention.lambda_mask": Case(
        partial(attentions.lambda_mask, sinks=1, window=3), pair
    ),
    "attention.evict": Case(
        partial(attentions.evict, sinks=1, window=3),
        lambda t, seed: {"positions": at(t, seed)},
    ),
    "attention.rerotate": Case(
        partial(attentions.rerotate, rope=ROPE),
        lambda t, seed: {
            "k": normal(2, HEADS, t, WIDTH, seed=seed),
            "positions": at(t, seed),
            "new_positions": at(t, seed + 1),
        },
        noise=roundings(64),
    ),
    "attention.llama4_temperature": table(
        partial(attentions.llama4_temperature, floor_scale=4),
        lambda t, seed: {"positions": rows(t, seed)},
    ),
    "attention.log_length_temperature": table(
        partial(attentions.log_length_temperature, trained_length=4),
        lambda t, seed: {"positions": rows(t, seed)},
    ),
    "attention.tempered": content_of(
        partial(
            attentions.tempered,
            temperature=partial(attentions.llama4_temperature, floor_scale=4),
        ),
        self_attention,
        count=8,
    ),
    "attention.SSMax": learned(attentions.SSMax(HEADS), self_attention, "transform"),
    "attention.SineSPE": learned(
        SINE_CODES,
        lambda t, seed: self_attention(t, seed) | {"noise": SINE_NOISE},
        "transform",
        count=2**12,
        steps=4,
    ),
    "attention.ConvSPE": learned(
        CONV_CODES,
        lambda t, seed: self_attention(t, seed) | {"noise": CONV_NOISE},
        "transform",
        floats=False,
        steps=4,
        kernel=("cuda", "mps"),
    ),
    "attention.SineSPE, kernel": learned(
        SINE_CODES,
        lambda t, seed: {"relative_positions": at(t, seed) - 5},
        "kernel",
        count=2**12,
        steps=4,
    ),
    "attention.ConvSPE, kernel": learned(
        CONV_CODES,
        lambda t, seed: {"relative_positions": at(t, seed) - 2},
        "kernel",
        floats=False,
        steps=4,
    ),
    "attention.elu_features": content_of(
        attentions.elu_features,
        lambda t, seed: {"x": normal(2, HEADS, t, WIDTH, seed=seed)},
        count=4,
    ),
    "attention.cosformer_features": content_of(
        partial(attentions.cosformer_features, length=64), heads_of, count=8
    ),
    "attention.positive_features": content_of(
        attentions.positive_features,
        lambda t, seed: {
            "x": normal(2, HEADS, t, WIDTH, seed=seed),
            "projection": normal(6, WIDTH, seed=seed + 1),
        },
    ),
    "attention.linear_attention": content_of(
        partial(attentions.linear_attention, transform=ROPE.transform),
        lambda t, seed: linear(t, seed) | shared(t, seed),
    ),
    "attention.causal_linear_attention": content_of(
        first(partial(attentions.causal_linear_attention, transform=ROPE.transform)),
        lambda t, seed: linear(t, seed) | {"positions": at(t, seed)},
        target=attentions.causal_linear_attention,
    ),
    "attention.toeplitz_attention": content_of(
        partial(attentions.toeplitz_attention, causal=True),
        with_bias_vector,
        count=2**14,
        graphs=5,
    ),
    "attention.hankel_attention": content_of(
        partial(attentions.hankel_attention, causal=True, chunk=4),
        lambda t, seed: (
            with_bias_vector(t, seed) | {"mask": masks(t, seed)["mask"].flip(1)}
        ),
        count=2**10,
        steps=4,
        graphs=5,
    ),
    "attention.retention": content_of(
        partial(attentions.retention, transform=ROPE.transform),
        lambda t, seed: with_decays(t, seed) | shared(t, seed),
        steps=4,
    ),
    "attention.recurrent_retention": content_of(
        first(partial(attentions.recurrent_retention, transform=ROPE.transform)),
        lambda t, seed: with_decays(t, seed) | {"positions": at(t, seed)},
        target=attentions.recurrent_retention,
        steps=4,
        graphs=5,
    ),
    "attention.fused_attention": content_of(
        lambda **inputs: attentions.fused_attention(
            **inputs, scheme=schemes.rope(WIDTH)
        ),
        lambda t, seed: linear(t, seed) | shared(t, seed),
        count=2**10,
        target=attentions.fused_attention,
        steps=4,
        kernel=("mps",),
    ),
    "attention.relative_bias_vector": content_of(
        lambda x: attentions.relative_bias_vector(
            biased, x.shape[-1], device=x.device
        ).to(x.dtype),
        lambda t, seed: {"x": normal(t, seed=seed)},
        target=attentions.relative_bias_vector,
        differentiable=False,
    ),
    "attention.relative_score_mod": content_of(
        lambda score, bias, q_positions, k_positions: attentions.relative_score_mod(
            bias, q_positions=q_positions, k_positions=k_positions, causal=False
        )(score, *torch.zeros(4, 1, dtype=torch.int64, device=score.device)),
        lambda t, seed: (
            {"score": normal(1, seed=seed), "bias": normal(HEADS, 2 * t - 1, seed=seed)}
            | shared(t, 0)
        ),
        floats=False,
        target=attentions.relative_score_mod,
    ),
    "attention.chunk_mask": Case(partial(attentions.chunk_mask, chunk=3), pair),
}

ROWS = [grid((2, 1)), grid((3, 1))]
PADDED = torch.tensor([[False, True, True], [True, True, True]])
VIDEO = multimodal_positions.Vision(2, 2, 2)
TWO_BLOCKS = [2, VIDEO, 1]
CONSTANTS |= {
    "frequencies.pixel_frequencies": lambda: pixel_frequencies(4, 16.0),
    "rotary.axial_frequencies": lambda: rotary.axial_frequencies((2, 2)),
    "rotary.block_frequencies": lambda: rotary.block_frequencies(
        inverse_frequencies(4), inverse_frequencies(4)
    ),
    "rotary.dinov3_frequencies": lambda: rotary.dinov3_frequencies(8),
    "rotary.golden_gate_frequencies": lambda: rotary.golden_gate_frequencies(
        2, 8, slowest=0.2, fastest=20.0
    ),
    "rotary.mixed_frequencies": lambda: rotary.mixed_frequencies(
        2, 8, generator=seeded(3)
    ),
    "rotary.mrope_frequencies": lambda: rotary.mrope_frequencies(
        inverse_frequencies(8), (2, 1, 1)
    ),
    "rotary.mrope_interleaved_frequencies": lambda: (
        rotary.mrope_interleaved_frequencies(inverse_frequencies(8), (2, 1, 1))
    ),
    "rotary.videorope_frequencies": lambda: rotary.videorope_frequencies(
        inverse_frequencies(8), (2, 1, 1)
    ),
    "rotary.pixtral_frequencies": lambda: rotary.pixtral_frequencies(
        inverse_frequencies(8)
    ),
    "rotary.linear_interpolation": lambda: rotary.linear_interpolation(
        8, 1e4, factor=4.0
    ),
    "rotary.ntk_aware": lambda: rotary.ntk_aware(8, 1e4, factor=4.0),
    "rotary.dynamic_ntk": lambda: rotary.dynamic_ntk(
        8, 1e4, factor=4.0, original_length=64, length=256
    ),
    "rotary.ntk_by_parts": lambda: rotary.ntk_by_parts(
        8, 1e4, factor=4.0, original_length=64
    ),
    "rotary.ntk_by_parts_original": lambda: rotary.ntk_by_parts_original(
        8, 1e4, factor=4.0, original_length=64
    ),
    "rotary.yarn": lambda: rotary.yarn(8, 1e4, factor=4.0, original_length=64),
    "rotary.yarn_released": lambda: rotary.yarn_released(
        8, 1e4, factor=4.0, original_length=64
    ),
    "rotary.llama3": lambda: rotary.llama3(8, 1e4, factor=4.0, original_length=64),
    "rotary.longrope": lambda: rotary.longrope(
        8,
        1e4,
        short_factors=[1.0] * 4,
        long_factors=[2.0] * 4,
        factor=4.0,
        original_length=64,
        length=65,
    ),
    "rotary.proportional": lambda: rotary.proportional(8, 1e4, fraction=0.5),
    "rotary.clipped": lambda: rotary.clipped(
        rotary.linear_interpolation(8, 1e4, factor=1.0), count=3
    ),
    "embedding.gaussian_matrix": lambda: embedding.gaussian_matrix(
        3, 2, std=1.0, generator=seeded(3)
    ),
    "attention.orthogonal_projection": lambda: attentions.orthogonal_projection(
        6, 4, generator=seeded(3)
    ),
    "attention.retention_decays": lambda: attentions.retention_decays(4),
    "multimodal_positions.place_rows": lambda: multimodal_positions.place_rows(
        ROWS, PADDED
    ),
    "rotary.unscaled": lambda: rotary.unscaled(8, 1e4),
    "multimodal_positions.vision_block": lambda: multimodal_positions.vision_block(
        VIDEO, 3
    ),
    "multimodal_positions.audio_video_block": lambda: (
        multimodal_positions.audio_video_block(
            multimodal_positions.AudioVideo(VIDEO, 3), 3
        )
    ),
}

# Integer or float positions, on the CPU or where `device` says.
COORDINATES: dict[str, Callable[..., Tensor]] = {
    "positions.grid": partial(positions.grid, (2, 3)),
    "positions.merged_grid": partial(positions.merged_grid, 2, 4, 2),
    "positions.resized_grid": partial(positions.resized_grid, (2, 3), (4, 6)),
    "positions.centred_grid": partial(positions.centred_grid, (2, 3)),
    "positions.spanning_grid": partial(positions.spanning_grid, (2, 3)),
    "positions.randomised": partial(positions.randomised, 4, 9),
    "positions.coupled_addition": partial(positions.coupled_addition, 2, 3, 3),
    "multimodal_positions.mrope_positions": partial(
        multimodal_positions.mrope_positions, TWO_BLOCKS
    ),
    "multimodal_positions.videorope_positions": partial(
        multimodal_positions.videorope_positions, TWO_BLOCKS
    ),
}
