"""This library beside the installed peers, on random settings and inputs.

`tests/oracles` holds what peers gave once; here they run. A difference says that one of
the two has changed. Peers compute their angles in float32, ours are rounded once from
float64: the bounds below are the peers' roundings.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.beit import modeling_beit
from transformers.models.bloom import modeling_bloom
from transformers.models.cohere import modeling_cohere
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.inkling import modeling_inkling
from transformers.models.llama import modeling_llama
from transformers.models.mpt import modeling_mpt
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.swin import modeling_swin
from transformers.models.t5 import modeling_t5
from transformers.models.whisper import modeling_whisper
from transformers.models.xlnet import modeling_xlnet
from x_transformers import x_transformers

from posenc_lib.bias import (
    DistanceMLPBias,
    T5Bias,
    alibi,
    alibi_slopes,
    cls_window_index,
    t5_bucket,
    window_index,
)
from posenc_lib.content import (
    CoPE,
    ForgetGate,
    RelativeLogits,
    contextual_positions,
    deberta_log_bucket,
    relative_shift,
)
from posenc_lib.embedding import sinusoidal, sinusoidal_grid, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies, pixel_frequencies
from posenc_lib.positions import arange, from_mask, grid, spanning_grid
from posenc_lib.rotary import (
    AxialRoPE,
    PoPE,
    RoPE,
    Schedule,
    XPos,
    axial_frequencies,
    block_frequencies,
    convert_layout,
    dynamic_ntk,
    linear_interpolation,
    llama3,
    longrope,
    mrope_frequencies,
    mrope_interleaved_frequencies,
    ntk_aware,
    proportional,
    yarn_attention_factor,
    yarn_released,
)

EPS = torch.finfo(torch.float32).eps
seeds = pytest.mark.parametrize("seed", range(5))


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(actual: Tensor, peer: Tensor, *, atol: float, rtol: float = 0.0) -> None:
    """Equal shapes, and numbers within what the peer's roundings allow."""
    torch.testing.assert_close(
        actual.detach().to(peer.dtype), peer.detach(), atol=atol, rtol=rtol
    )


def of_series(base: float) -> float:
    """Relative error of base^(−2i/d) in float32.

    The exponent's rounding times ln base, the power's, the quotient's.
    """
    return EPS * (math.log(base) + 2)


def of_turning(longest: int, base: float, size: Tensor) -> float:
    """Error of a rotation by float32 angles up to `longest`, whose own error is at most
    longest · (1 + of_series).
    """
    return (
        float(size.abs().max())
        * 2
        * (longest * (EPS + of_series(base) / math.e) + 3 * EPS)
    )


# ---- schedules


def llama_config(dim: int, length: int, **parameters: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=length,
        rope_parameters=parameters,
    )


def linear(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    factor = rng.uniform(1.5, 40)
    return (
        {"factor": factor},
        2048,
        None,
        linear_interpolation(dim, base, factor=factor),
    )


def dynamic(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    factor, trained, length = (
        rng.uniform(1.5, 8),
        rng.randrange(512, 8192),
        rng.randrange(1, 60000),
    )
    ours = dynamic_ntk(dim, base, factor=factor, original_length=trained, length=length)
    return {"factor": factor}, trained, length, ours


def yarn(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    factor, trained = rng.uniform(1.5, 40), rng.choice((2048, 4096, 8192, 32768))
    settings: dict[str, Any] = {
        "beta_fast": rng.uniform(16, 64),
        "beta_slow": rng.uniform(0.5, 4),
    }
    settings["truncate"] = rng.random() < 0.5
    magnitudes = (
        {"mscale": rng.uniform(0.5, 1), "mscale_all_dim": rng.uniform(0.5, 1)}
        if rng.random() < 0.5
        else {}
    )
    a = yarn_attention_factor(factor, **magnitudes)
    ours = yarn_released(
        dim,
        base,
        factor=factor,
        original_length=trained,
        attention_factor=a,
        **settings,
    )
    peer = {
        "factor": factor,
        "original_max_position_embeddings": trained,
        **settings,
        **magnitudes,
    }
    return peer, trained, None, ours


def long(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    trained, length = 4096, rng.choice((1, 4095, 4096, 4097, 100000))
    short_factors, long_factors = (
        [rng.uniform(1, top) for _ in range(dim // 2)] for top in (2, 60)
    )
    lists = {"short_factor": short_factors, "long_factor": long_factors, "factor": 32.0}
    ours = longrope(
        dim,
        base,
        short_factors=short_factors,
        long_factors=long_factors,
        factor=32.0,
        original_length=trained,
        length=length,
    )
    return (
        lists | {"original_max_position_embeddings": trained},
        32 * trained,
        length,
        ours,
    )


def banded(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    low, factor = rng.uniform(0.5, 2), rng.uniform(2, 32)
    bands = {"low_freq_factor": low, "high_freq_factor": low + rng.uniform(1, 4)}
    ours = llama3(dim, base, factor=factor, original_length=8192, **bands)
    return (
        {"factor": factor, "original_max_position_embeddings": 8192, **bands},
        131072,
        None,
        ours,
    )


def partly(
    rng: random.Random, dim: int, base: float
) -> tuple[dict[str, Any], int, int | None, Schedule]:
    fraction, factor = rng.choice((0.25, 0.5, 0.75, 1.0)), rng.uniform(1, 8)
    ours = proportional(dim, base, fraction=fraction, factor=factor)
    return {"partial_rotary_factor": fraction, "factor": factor}, 4096, None, ours


RULES: dict[
    str,
    Callable[
        [random.Random, int, float], tuple[dict[str, Any], int, int | None, Schedule]
    ],
] = {
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": long,
    "llama3": banded,
    "proportional": partly,
}


def test_every_rule_of_the_peer_is_compared() -> None:
    assert set(RULES) == set(ROPE_INIT_FUNCTIONS)


@seeds
@pytest.mark.parametrize("rule", RULES)
def test_schedules(rule: str, seed: int) -> None:
    rng = random.Random(seed)
    dim, base = rng.choice((16, 64, 96, 128)), rng.choice((1e4, 1.5e5, 5e5, 1e6))
    settings, length, seq_len, ours = RULES[rule](rng, dim, base)
    config = llama_config(dim, length, rope_type=rule, rope_theta=base, **settings)
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rule](
        config, None, seq_len=seq_len
    )
    # Dynamic NTK's base is larger; a ramp between two frequencies adds roundings of a
    # few sizes of the larger one.
    largest = base * 500 if rule == "dynamic" else base
    same(ours.frequencies, frequencies, atol=1e-12, rtol=4 * of_series(largest))
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)


# ---- rotations


def operands(seed: int, dim: int) -> tuple[Tensor, Tensor, Tensor, int]:
    q, k = draw(2, 4, 9, dim, seed=seed), draw(2, 2, 9, dim, seed=seed + 100)
    positions = torch.randint(
        0, 300, (2, 9), generator=torch.Generator().manual_seed(seed)
    )
    return q, k, positions, int(positions.max())


@seeds
@pytest.mark.parametrize("peer", ["llama", "cohere", "deepseek_v3"])
def test_rotations(peer: str, seed: int) -> None:
    dim, base = 32, (1e4, 5e5)[seed % 2]
    q, k, positions, longest = operands(seed, dim)
    config = llama_config(dim, 512, rope_type="default", rope_theta=base)
    rope = RoPE(
        inverse_frequencies(dim, base),
        layout="half" if peer == "llama" else "interleaved",
    )
    ours = rope.transform(q, k, positions, positions)
    if peer == "llama":
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, positions)
        theirs = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    elif peer == "cohere":
        cos, sin = modeling_cohere.CohereRotaryEmbedding(config)(q, positions)
        theirs = modeling_cohere.apply_rotary_pos_emb(q, k, cos, sin)
    else:  # takes pairs interleaved and leaves them in the half layout
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, positions)
        theirs = modeling_deepseek_v3.apply_rotary_pos_emb_interleave(q, k, cos, sin)
        theirs = tuple(
            convert_layout(x, source="half", target="interleaved") for x in theirs
        )
    for a, b in zip(ours, theirs, strict=True):
        same(a, b, atol=of_turning(longest, base, q))


@seeds
@pytest.mark.parametrize("peer", ["gptj", "gpt_neox"])
def test_partial_rotations(peer: str, seed: int) -> None:
    q, k, positions, longest = operands(seed, 32)
    rope = RoPE(
        inverse_frequencies(16), layout="interleaved" if peer == "gptj" else "half"
    )
    ours = rope.transform(q, k, positions, positions)
    if peer == "gptj":
        sin, cos = modeling_gptj.create_sinusoidal_positions(512, 16)[positions].chunk(
            2, -1
        )
        theirs = tuple(
            torch.cat(
                (
                    modeling_gptj.apply_rotary_pos_emb(
                        x[..., :16].transpose(1, 2), sin, cos
                    ).transpose(1, 2),
                    x[..., 16:],
                ),
                -1,
            )
            for x in (q, k)
        )
    else:
        config = llama_config(
            32, 512, rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5
        )
        cos, sin = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(q, positions)
        theirs = modeling_gpt_neox.apply_rotary_pos_emb(q, k, cos, sin)
    for a, b in zip(ours, theirs, strict=True):
        same(a, b, atol=of_turning(longest, 1e4, q))


@seeds
@pytest.mark.parametrize("peer", ["qwen2_vl", "qwen3_vl"])
def test_mrope(peer: str, seed: int) -> None:
    dim, base = 32, 1e6
    q, k, _, _ = operands(seed, dim)
    positions = torch.randint(
        0, 300, (2, 9, 3), generator=torch.Generator().manual_seed(seed)
    )
    sections = [(8, 4, 4), (6, 5, 5)][seed % 2]
    module = modeling_qwen2_vl if peer == "qwen2_vl" else modeling_qwen3_vl
    rotary = (
        module.Qwen2VLRotaryEmbedding
        if peer == "qwen2_vl"
        else module.Qwen3VLTextRotaryEmbedding
    )
    matrix = mrope_frequencies if peer == "qwen2_vl" else mrope_interleaved_frequencies
    config = llama_config(
        dim, 512, rope_type="default", rope_theta=base, mrope_section=list(sections)
    )
    cos, sin = rotary(config)(q, positions.permute(2, 0, 1))
    theirs = module.apply_rotary_pos_emb(q, k, cos, sin)
    ours = AxialRoPE(
        matrix(inverse_frequencies(dim, base), sections), layout="half"
    ).transform(q, k, positions, positions)
    for a, b in zip(ours, theirs, strict=True):
        same(a, b, atol=of_turning(int(positions.max()), base, q))


@seeds
@pytest.mark.parametrize("xpos", [False, True])
def test_x_transformers_rotary(xpos: bool, seed: int) -> None:
    dim, length = 32, 40
    factor = 1.0 if xpos else (1.0, 4.0)[seed % 2]
    peer = x_transformers.RotaryEmbedding(
        dim, use_xpos=xpos, base_rescale_factor=factor
    )
    freqs, scale = peer.forward_from_seq_len(length)
    q, k, positions = (
        draw(2, 4, length, dim, seed=seed),
        draw(2, 4, length, dim, seed=seed + 100),
        arange(length),
    )
    theirs = [
        x_transformers.apply_rotary_pos_emb(x, freqs, s)
        for x, s in ((q, scale), (k, scale**-1 if isinstance(scale, Tensor) else 1.0))
    ]
    if xpos:
        ours = XPos(inverse_frequencies(dim), centre=length // 2).transform(
            q, k, positions, positions
        )
    else:
        ours = RoPE(ntk_aware(dim, 1e4, factor=factor).frequencies).transform(
            q, k, positions, positions
        )
    # xPos: a scale up to ζ₀^(−20/512), and its own power's rounding.
    for a, b in zip(ours, theirs, strict=True):
        same(a, b, atol=of_turning(length, 1e4 * factor**1.1, q) * (1.2 if xpos else 1))


@seeds
def test_x_transformers_polar(seed: int) -> None:
    dim, heads, length = 16, 4, 24
    peer = x_transformers.PolarEmbedding(dim, heads, bias_uniform_init=False)
    peer.learned_bias.data.uniform_(
        -2 * math.pi, 0, generator=torch.Generator().manual_seed(seed)
    )
    pope = PoPE(dim, heads=heads)
    pope.load_state_dict({"phase": peer.learned_bias.detach()[:, 0]})
    q, k, positions = (
        draw(2, heads, length, dim, seed=seed),
        draw(2, heads, length, dim, seed=seed + 100),
        arange(length),
    )
    freqs, bias = peer(positions)
    freqs = freqs[:, None] if freqs.dim() == 3 else freqs
    theirs = torch.nn.functional.softplus(q), torch.nn.functional.softplus(k)
    turned_q = torch.cat((theirs[0] * freqs.cos(), theirs[0] * freqs.sin()), -1)
    turned_k = torch.cat(
        (theirs[1] * (freqs + bias).cos(), theirs[1] * (freqs + bias).sin()), -1
    )
    assert torch.equal(
        turned_q, x_transformers.apply_polar_pos_emb(q, freqs.expand(2, heads, -1, -1))
    )
    ours = pope.transform(q, k, positions, positions)
    # Phases add 2π to the largest angle.
    tolerance = of_turning(length + 7, 1e4, theirs[0].maximum(theirs[1]))
    same(
        ours[0] @ ours[1].mT,
        turned_q @ turned_k.mT,
        atol=2 * dim * tolerance * float(theirs[1].max()),
    )


# ---- sinusoids


@seeds
def test_whisper_sinusoids(seed: int) -> None:
    length, channels = (
        random.Random(seed).randrange(8, 300),
        2 * random.Random(seed).randrange(2, 64),
    )
    peer = modeling_whisper.sinusoids(length, channels)
    same(
        sinusoidal_tensor2tensor(arange(length), channels),
        peer,
        atol=of_turning(length, 1e4, torch.ones(1)),
    )


@seeds
def test_x_transformers_scaled_sinusoid(seed: int) -> None:
    dim, length, offset = 2 * random.Random(seed).randrange(2, 64), 50, seed
    peer = x_transformers.ScaledSinusoidalEmbedding(dim)(
        torch.zeros(1, length, dim), offset=offset
    )
    ours = sinusoidal(arange(length, offset), dim, layout="concatenated") * dim**-0.5
    same(ours, peer, atol=of_turning(length + offset, 1e4, torch.ones(1)))


# ---- biases


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (16, 64), (64, 256), (32, 512)]
)
def test_t5_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    relative = torch.arange(-1000, 1001)
    ours = t5_bucket(
        relative,
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    theirs = modeling_t5.T5Attention._relative_position_bucket(
        relative, bidirectional, num_buckets, max_distance
    )
    assert torch.equal(ours, theirs)
    other = x_transformers.RelativePositionBias._relative_position_bucket(
        relative, not bidirectional, num_buckets, max_distance
    )
    assert torch.equal(ours, other)


@seeds
def test_x_transformers_t5_bias(seed: int) -> None:
    heads, i, j = 3, 5, 12
    peer = x_transformers.RelativePositionBias(
        scale=1.0, causal=seed % 2 == 0, heads=heads
    )
    ours = T5Bias(heads, bidirectional=seed % 2 == 1, std=1.0)
    ours.load_state_dict({"table": peer.relative_attention_bias.weight.detach()})
    same(ours(arange(i, offset=j - i), arange(j))[0], peer(i, j), atol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 16, 20, 31, 32, 40, 64, 71, 112])
def test_alibi(heads: int) -> None:
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(heads)) < 0.7
    keys, slopes = from_mask(mask), alibi_slopes(heads)
    # Bloom adds +s·n, which is minus our bias as seen from position 0. A power of a
    # base rounded in float32 is off by the exponent times the rounding.
    bloom = modeling_bloom.build_alibi_tensor(mask.long(), heads, torch.float32)
    same(
        -alibi(torch.zeros(3, 1), keys, slopes).flatten(0, 1),
        bloom,
        atol=0,
        rtol=(heads + 2) * EPS,
    )
    mpt = modeling_mpt.build_mpt_alibi_tensor(heads, 20)
    same(alibi(arange(1, offset=19), arange(20), slopes)[0], mpt, atol=0, rtol=10 * EPS)
    symmetric = x_transformers.AlibiPositionalBias(heads)(7, 20)
    same(
        alibi(arange(7, offset=13), arange(20), slopes)[0],
        symmetric,
        atol=0,
        rtol=2 * EPS,
    )


@pytest.mark.parametrize("window", [(2, 2), (7, 7), (3, 5), (8, 4)])
def test_windows(window: tuple[int, int]) -> None:
    positions = grid(window)
    swin = modeling_swin.SwinRelativePositionBias(
        1, window
    )._create_relative_position_index()
    assert torch.equal(window_index(positions, positions, window), swin)
    with_class = torch.nn.functional.pad(positions, (0, 0, 1, 0), value=-1)
    beit = modeling_beit.BeitRelativePositionBias.generate_relative_position_index(
        window
    )
    assert torch.equal(cls_window_index(with_class, with_class, window), beit)
    timm = timm_layer("pos_embed_rel").gen_relative_position_index
    assert torch.equal(window_index(positions, positions, window), timm(window))
    assert torch.equal(
        cls_window_index(with_class, with_class, window), timm(window, class_token=True)
    )


@seeds
@pytest.mark.parametrize("log_distance", [False, True])
def test_x_transformers_dynamic_bias(log_distance: bool, seed: int) -> None:
    heads, width, depth, i, j = 3, 8, 1 + seed % 3, 6, 10
    torch.manual_seed(seed)
    peer = x_transformers.DynamicPositionBias(
        width, heads=heads, depth=depth, log_distance=log_distance
    )
    ours = DistanceMLPBias(heads, width, depth=depth, log_distance=log_distance)
    layers = [layer[0] for layer in peer.mlp[:-1]] + [peer.mlp[-1]]
    ours.load_state_dict(
        {
            f"network.{n}": p.detach()
            for n, p in enumerate(
                p for layer in layers for p in (layer.weight, layer.bias)
            )
        }
    )
    # Sums of at most `width` products, in another order; values stay below 20.
    same(
        ours(arange(i, offset=j - i), arange(j))[0],
        peer(i, j),
        atol=20 * width * EPS,
        rtol=0,
    )


# ---- content


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (32, 128), (64, 512)])
def test_deberta_v2_buckets(buckets: int, longest: int) -> None:
    distance = torch.arange(-2 * longest, 2 * longest + 1)
    peer = modeling_deberta_v2.make_log_bucket_position(distance, buckets, longest)
    ours = deberta_log_bucket(distance, num_buckets=buckets, max_distance=longest)
    # The peer counts on past the last bucket; both are cut off there by δ.
    assert torch.equal(ours, peer.long().clamp(-buckets, buckets))


@seeds
def test_xlnet_shift(seed: int) -> None:
    length = 3 + seed
    x = draw(2, 3, length, 2 * length, seed=seed)
    peer = modeling_xlnet.XLNetRelativeAttention.rel_shift_bnij(x, klen=length)
    assert torch.equal(relative_shift(x[..., 1:])[..., :length], peer)


@seeds
def test_x_transformers_cope(seed: int) -> None:
    dim, heads, length, count = 8, 2, 11, 5
    peer = x_transformers.CoPE(dim, heads, count)
    peer.pos_emb.data.copy_(draw(count, dim, seed=seed))
    ours = CoPE(dim, count)
    ours.load_state_dict({"table": peer.pos_emb.detach()})
    q, positions = draw(2, heads, length, dim, seed=seed), arange(length)
    logits = draw(2, heads, length, length, seed=seed + 100)
    masked = logits.masked_fill(
        torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf
    )
    contextual = ours.interpolate(q, contextual_positions(masked, positions, positions))
    # A count of up to 11 gates, summed from the other end, moves along a table whose
    # rows differ by q·e.
    size = float((q @ peer.pos_emb.detach().T).abs().max())
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    same(
        contextual[..., allowed],
        peer(q, masked)[..., allowed],
        atol=4 * length * EPS * size,
    )


@seeds
def test_x_transformers_forgetting(seed: int) -> None:
    dim, heads, length = 8, 3, 20
    torch.manual_seed(seed)
    peer = x_transformers.DataDependentAlibi(dim, heads)
    ours = ForgetGate(dim, heads)
    linear_layer = peer.to_forget_gates[0]
    ours.load_state_dict(
        {"weight": linear_layer.weight.detach(), "bias": linear_layer.bias.detach()}
    )
    x, positions = draw(2, length, dim, seed=seed), arange(length)
    theirs = peer(x)
    allowed = torch.ones(
        length, length, dtype=torch.bool
    ).tril()  # the peer leaves the rest to its mask
    size = float(theirs.detach().abs().max()) + 1
    same(
        ours(positions, positions, k_x=x)[..., allowed],
        theirs[..., allowed],
        atol=2 * length * EPS * size,
    )


@seeds
def test_inkling_relative_logits(seed: int) -> None:
    dim, heads, extent, rank, length = 8, 3, 6, 4, 15
    ours = RelativeLogits(dim, heads, extent, rank=rank)
    ours.load_state_dict(
        {
            "weight": draw(heads * rank, dim, seed=seed),
            "curves": draw(rank, extent, seed=seed + 50),
        }
    )
    x, positions = draw(2, length, dim, seed=seed + 100), arange(length)
    states = (x @ ours.weight.detach().T).unflatten(-1, (heads, rank))
    peer = modeling_inkling.InklingRelativeLogits(rank, extent)
    peer.proj.data.copy_(ours.curves.detach())
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    theirs = peer(states, positions, positions)
    bound = (
        4
        * (dim + rank)
        * EPS
        * float(states.abs().max() * ours.curves.detach().abs().max())
    )
    same(
        ours(positions, positions, q_x=x)[..., allowed],
        theirs[..., allowed],
        atol=bound,
    )

    other = x_transformers.RelativeProjPositionalBias(dim, heads, rank, extent)
    layer = other.to_distance_weights[0]
    layer.weight.data.copy_(ours.weight.detach())
    layer.bias.data.zero_()
    other.distance_bank.data.copy_(ours.curves.detach())
    same(
        ours(positions, positions, q_x=x)[..., allowed],
        other(x)[..., allowed],
        atol=bound,
    )


# ---- grids


@seeds
@pytest.mark.parametrize("pixels", [False, True])
def test_timm_rotary(pixels: bool, seed: int) -> None:
    rng = random.Random(seed)
    shape, dim, offset = (
        (rng.randrange(2, 20), rng.randrange(2, 20)),
        8 * rng.randrange(1, 9),
        rng.choice((0.0, 0.5)),
    )
    peer = timm_layer("pos_embed_sincos").build_rotary_pos_embed
    sin, cos = peer(
        list(shape),
        dim=dim,
        in_pixels=pixels,
        max_res=224,
        linear_bands=seed % 2 == 0,
        grid_offset=offset,
    )
    if pixels:
        bands = pixel_frequencies(
            dim // 4, 224, spacing="linear" if seed % 2 == 0 else "geometric"
        )
        matrix, positions, longest = (
            block_frequencies(bands, bands),
            spanning_grid(shape),
            112 * math.pi,
        )
    else:
        matrix, positions, longest = (
            axial_frequencies((dim // 4,) * 2),
            grid(shape) + offset,
            max(shape) + 1,
        )
    rotation = AxialRoPE(matrix)(positions)
    # Pixel frequencies are spaced in float32 too, by a series whose last member counts
    # 112 half turns.
    for ours, theirs in ((rotation.sin, sin), (rotation.cos, cos)):
        same(
            ours.repeat_interleave(2, -1),
            theirs,
            atol=of_turning(math.ceil(longest), 1e4, torch.ones(1)),
        )


@seeds
def test_timm_sinusoids(seed: int) -> None:
    rng = random.Random(seed)
    shape, dim = (rng.randrange(2, 20), rng.randrange(2, 20)), 4 * rng.randrange(1, 17)
    layout = "axis" if seed % 2 else "function"
    build = timm_layer("pos_embed_sincos").build_sincos2d_pos_embed
    peer = build(list(shape), dim, interleave_sin_cos=layout == "axis")
    same(
        sinusoidal_grid(grid(shape), dim, layout=layout),
        peer,
        atol=of_turning(20, 1e4, torch.ones(1)),
    )


def timm_layer(name: str) -> Any:
    """A module of timm.layers without the rest of timm, which asks for torchvision and
    its compiled operators.
    """
    spec = PathFinder.find_spec("timm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    [folder] = spec.submodule_search_locations
    for package, path in (("timm", folder), ("timm.layers", f"{folder}/layers")):
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [path]
    return import_module(f"timm.layers.{name}")
