"""The doctor on the peers' own functions: right conventions, no false alarm.

Each function is called as the peer's own attention calls it. Where a peer does have a
fault, it is written down here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import rotary_embedding_torch
import torch
from parity.test_parity import timm_layer
from torch import Tensor
from transformers import AutoConfig
from transformers.models.bloom import modeling_bloom
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.falcon import modeling_falcon
from transformers.models.fsmt import modeling_fsmt
from transformers.models.gptj import configuration_gptj, modeling_gptj
from transformers.models.llama4 import configuration_llama4, modeling_llama4
from transformers.models.m2m_100 import modeling_m2m_100
from transformers.models.marian import modeling_marian
from transformers.models.mpt import modeling_mpt
from transformers.models.musicgen import modeling_musicgen
from transformers.models.t5 import configuration_t5, modeling_t5
from transformers.models.whisper import modeling_whisper
from x_transformers import x_transformers

from posenc_lib.doctor import Report, diagnose
from posenc_lib.rotary import ntk_aware

Function = Callable[[Tensor, Tensor], Tensor]


def agrees(report: Report, **facts: Any) -> None:
    """Nothing is wrong, and the facts are these."""
    assert report.ok, str(report)
    for name, value in facts.items():
        known = report.facts[name]
        assert known == (
            pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        ), str(report)


# ---- rotations with Llama's signatures: family, layout, share of the head rotated

FAMILIES = [
    *[
        (name, "half", 1.0)
        for name in (
            "llama",
            "qwen2",
            "qwen3",
            "mistral",
            "mixtral",
            "phi3",
            "gemma",
            "gemma2",
        )
    ],
    *[
        (name, "half", 1.0)
        for name in (
            "gemma3",
            "olmo",
            "olmo2",
            "olmo3",
            "smollm3",
            "falcon",
            "granite",
            "esm",
        )
    ],
    *[(name, "half", 1.0) for name in ("modernbert", "starcoder2", "gpt_oss")],
    *[(name, "half", 0.25) for name in ("gpt_neox", "stablelm")],
    *[(name, "half", 0.5) for name in ("phi", "persimmon", "nemotron")],
    *[
        (name, "interleaved", 1.0)
        for name in ("cohere", "cohere2", "helium", "ernie4_5")
    ],
    *[(name, "interleaved", 0.5) for name in ("glm", "glm4")],
]
PER_KIND = ("gemma3", "olmo3", "modernbert")  # a rotation for each kind of layer
SLICED = (
    "phi",
    "stablelm",
    "persimmon",
)  # the attention layer cuts the rotated channels off


@pytest.mark.parametrize(
    ("family", "layout", "share"), FAMILIES, ids=[family for family, _, _ in FAMILIES]
)
def test_families_of_transformers(family: str, layout: str, share: float) -> None:
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    config = AutoConfig.for_model("gemma3_text" if family == "gemma3" else family)
    rotary = next(
        value
        for name, value in vars(module).items()
        if name.endswith("RotaryEmbedding")
    )(config)
    kind = ("full_attention",) if family in PER_KIND else ()
    dim = (
        getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads
    )
    part = int(dim * share)

    def apply(x: Tensor, positions: Tensor) -> Tensor:
        turned, rest = (
            (x[..., :part], x[..., part:]) if family in SLICED else (x, x[..., :0])
        )
        return torch.cat(
            (
                module.apply_rotary_pos_emb(
                    turned, turned, *rotary(x, positions, *kind)
                )[0],
                rest,
            ),
            -1,
        )

    parameters = getattr(config, "rope_parameters", None) or {
        "rope_theta": config.rope_theta
    }
    parameters = parameters.get(*kind, parameters) if kind else parameters
    base = float(parameters["rope_theta"])
    facts: dict[str, Any] = {
        "layout": layout,
        "base": base,
        "rotated channels": f"{part} of {dim}",
    }
    scaled = parameters.get("rope_type", "default") != "default"
    facts["schedule"] = "yarn_released" if scaled else "none"
    for wanted in ({}, {"layout": layout, "base": base, "rotary_dim": part}):
        agrees(
            diagnose(apply, dim, **wanted),
            **facts,
            **{"positions per row": "yes", "first position": 0.0},
        )


# ---- rotations with signatures of their own


def gptj(x: Tensor, positions: Tensor, *, rotary: Any) -> Tensor:
    sin, cos = rotary(x, positions)
    return torch.cat(
        (modeling_gptj.apply_rotary_pos_emb(x[..., :32], sin, cos), x[..., 32:]), -1
    )


def timm(x: Tensor, positions: Tensor, *, half: bool) -> Tensor:
    module = timm_layer("pos_embed_sincos")
    angles = positions[..., None] * module.freq_bands(32, temperature=10000.0, step=1)
    angles = (
        torch.cat((angles, angles), -1) if half else angles.repeat_interleave(2, -1)
    )
    return module.apply_rot_embed(x, angles.sin(), angles.cos(), half=half)


def timm_grid(x: Tensor, positions: Tensor) -> Tensor:
    """A grid of one axis."""
    module = timm_layer("pos_embed_sincos")
    sin, cos = module.build_rotary_pos_embed(
        [int(positions.max()) + 1], dim=128, in_pixels=False
    )
    return module.apply_rot_embed(x, sin[positions], cos[positions])


def single(apply: Callable[..., Any], rotary: Any) -> Function:
    """The query of (query, key)."""
    return lambda x, positions: apply(x, x, rotary(x, positions))[0]


def rotations() -> dict[str, tuple[Function, int, dict[str, Any], dict[str, Any]]]:
    """Function, width, what is said to the doctor, and the facts."""
    heads_third = {"token_axis": 1}
    v2, v3 = modeling_deepseek_v2, modeling_deepseek_v3
    of_gptj = modeling_gptj.GPTJRotaryEmbedding(
        configuration_gptj.GPTJConfig(n_embd=256, n_head=4, rotary_dim=32)
    )
    of_llama4 = modeling_llama4.Llama4TextRotaryEmbedding(
        configuration_llama4.Llama4TextConfig()
    )
    of_v2, of_v3 = (
        v2.DeepseekV2RotaryEmbedding(v2.DeepseekV2Config()),
        v3.DeepseekV3RotaryEmbedding(v3.DeepseekV3Config()),
    )
    of_x = {
        factor: x_transformers.RotaryEmbedding(32, interpolation_factor=factor)
        for factor in (1.0, 4.0)
    }
    torch_ = rotary_embedding_torch.RotaryEmbedding
    of_torch = {
        factor: torch_(32, theta_rescale_factor=factor, cache_if_possible=False)
        for factor in (1.0, 4.0)
    }
    neighbours = {"layout": "interleaved", "base": 10_000.0}
    part = neighbours | {"rotated channels": "32 of 64"}
    linear = {"schedule": "linear_interpolation", "factor": 4.0}
    raised = part | {
        "base": (ntk_aware(32, 1e4, factor=4.0).frequencies[1] ** -16).item()
    }

    def x_rotary(factor: float) -> Function:
        return lambda x, positions: x_transformers.apply_rotary_pos_emb(
            x, of_x[factor](positions)[0]
        )

    def torch_rotary(factor: float) -> Function:
        return lambda x, positions: rotary_embedding_torch.apply_rotary_emb(
            of_torch[factor](positions), x
        )

    return {
        "gptj": (partial(gptj, rotary=of_gptj), 64, heads_third, part),
        "llama4": (
            single(modeling_llama4.apply_rotary_emb, of_llama4),
            128,
            heads_third,
            neighbours | {"base": 5e5},
        ),
        "deepseek_v2": (single(v2.apply_rotary_emb, of_v2), 64, {}, neighbours),
        "deepseek_v3": (
            lambda x, positions: v3.apply_rotary_pos_emb_interleave(
                x, x, *of_v3(x, positions)
            )[0],
            *(64, {}, {"layout": "interleaved in, half out", "base": 10_000.0}),
        ),
        "x-transformers": (x_rotary(1.0), 64, {}, part),
        "x-transformers, interpolated": (x_rotary(4.0), 64, {}, part | linear),
        "timm": (partial(timm, half=False), 64, {}, neighbours),
        "timm, half": (
            partial(timm, half=True),
            64,
            {},
            neighbours | {"layout": "half"},
        ),
        "timm, a grid": (timm_grid, 64, {}, neighbours),
        "rotary-embedding-torch": (torch_rotary(1.0), 64, {}, part),
        "rotary-embedding-torch, rescaled": (torch_rotary(4.0), 64, {}, raised),
    }


ROTATIONS = rotations()


@pytest.mark.parametrize("name", ROTATIONS)
def test_other_rotations(name: str) -> None:
    function, dim, said, facts = ROTATIONS[name]
    agrees(diagnose(function, dim, **said), **facts)


def test_rotary_embedding_torch_counts_in_the_dtype_of_the_query() -> None:
    """`rotate_queries_or_keys` makes positions in the query's dtype and takes one
    offset for all of them.
    """
    rotary = rotary_embedding_torch.RotaryEmbedding(64)
    report = diagnose(
        lambda x, positions: rotary.rotate_queries_or_keys(x, offset=int(positions[0])),
        64,
        base=1e4,
    )
    assert report.codes == {"low-precision", "order-ignored"}, str(report)
    x = torch.tensor([1.0, 0.0] * 32, dtype=torch.bfloat16).expand(1, 1, 2, -1)
    first, second = rotary.rotate_queries_or_keys(x, offset=257)[0, 0]
    assert torch.equal(first, second)  # 257 and 258


# ---- tables

LONG = 20_000


def tables() -> dict[
    str, tuple[Callable[[Tensor], Tensor], dict[str, Any], dict[str, Any]]
]:
    """Function, what is said to the doctor, and the facts, all of width 64."""
    marian = modeling_marian.MarianSinusoidalPositionalEmbedding(512, 64)
    marian.weight.data = marian.create_weight()
    m2m = modeling_m2m_100.M2M100SinusoidalPositionalEmbedding(1024, 64, padding_idx=1)
    musicgen = modeling_musicgen.MusicgenSinusoidalPositionalEmbedding(1024, 64)
    scaled = x_transformers.ScaledSinusoidalEmbedding(64)
    sine, cosine = (
        {"layout": "concatenated", "base": 10_000.0, "first in a pair": name}
        for name in ("sine", "cosine")
    )
    divided = {"form": "tensor2tensor (the last frequency is 1/base)"}
    fsmt = modeling_fsmt.SinusoidalPositionalEmbedding.get_embedding(LONG, 64, None)
    return {
        "whisper": (
            lambda positions: modeling_whisper.sinusoids(LONG, 64)[positions],
            {},
            sine | divided,
        ),
        "marian": (lambda positions: marian(None, position_ids=positions), {}, sine),
        "m2m_100": (
            lambda positions: m2m.weights[positions + 2],
            {"offset": 2},
            sine | divided,
        ),  # from padding_idx + 1
        "musicgen": (
            lambda positions: musicgen.weights[positions],
            {},
            cosine | divided,
        ),
        "fsmt": (lambda positions: fsmt[positions], {}, sine | divided),
        "gptj": (
            lambda positions: modeling_gptj.create_sinusoidal_positions(LONG, 64)[
                positions
            ],
            {},
            sine,
        ),
        "x-transformers": (
            lambda positions: scaled(torch.zeros(1, len(positions), 64), pos=positions),
            *({}, sine | {"length of a pair": 0.125}),
        ),
    }


TABLES = tables()


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    function, said, facts = TABLES[name]
    agrees(diagnose(function, 64, **said), **facts)


def test_the_row_of_padding() -> None:
    m2m = modeling_m2m_100.M2M100SinusoidalPositionalEmbedding(1024, 64, padding_idx=1)
    assert diagnose(lambda positions: m2m.weights[positions], 64).codes == {"zero-row"}


# ---- biases


def of_mask(module: Any, heads: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Bloom's and Falcon's, which take a mask of the tokens 0 … n.

    One row for all queries.
    """

    def function(q: Tensor, k: Tensor) -> Tensor:
        mask = torch.ones(1, int(k.max()) + 1, dtype=torch.long)
        return module.build_alibi_tensor(mask, heads, torch.float32).view(heads, 1, -1)[
            ..., k
        ]

    return function


@pytest.mark.parametrize("heads", [1, 8, 12, 20])
def test_alibi(heads: int) -> None:
    x_bias = x_transformers.AlibiPositionalBias(heads)
    key_alone = "ALiBi, of the key's position alone (the same softmax)"
    agrees(diagnose(of_mask(modeling_bloom, heads)), heads=heads, form=key_alone)
    agrees(
        diagnose(
            lambda q, k: modeling_mpt.build_mpt_alibi_tensor(heads, int(k.max()) + 1)[
                ..., k
            ]
        ),
        heads=heads,
        form=key_alone,
    )
    agrees(diagnose(x_bias.forward_custom_pos), heads=heads, form="ALiBi")
    rounds = diagnose(
        of_mask(modeling_falcon, heads)
    )  # products of positions and slopes, both in bfloat16
    assert rounds.codes & {"low-precision", "slopes-cast"}, str(rounds)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("count", "longest"), [(32, 128), (16, 64), (64, 256)])
def test_t5(causal: bool, count: int, longest: int) -> None:
    torch.manual_seed(count)
    config = configuration_t5.T5Config(
        relative_attention_num_buckets=count,
        relative_attention_max_distance=longest,
        is_decoder=causal,
        num_heads=1,
    )
    layer = modeling_t5.T5Attention(
        config, has_relative_attention_bias=True, layer_idx=0
    )
    rule = x_transformers.RelativePositionBias._relative_position_bucket
    facts = {"directions": 2 - causal, "largest distance": longest}

    def bias(q: Tensor, k: Tensor) -> Tensor:
        first, last = int(q.min()), int(q.max())
        return layer.compute_bias(
            last - first + 1, int(k.max()) + 1, past_seen_tokens=first
        )[:, :, q - first][..., k]

    for wanted in (
        {},
        {"bidirectional": not causal, "num_buckets": count, "max_distance": longest},
    ):
        agrees(diagnose(bias, **wanted), **facts)
        for buckets in (
            lambda r: modeling_t5.T5Attention._relative_position_bucket(
                r, not causal, count, longest
            ),
            lambda r: rule(r, causal, count, longest),
        ):
            agrees(diagnose(buckets, **wanted), **facts)
