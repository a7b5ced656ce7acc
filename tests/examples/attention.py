"""Golden cases and example schemes of `posenc_lib.attention` and of the layer plans."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from helpers import normal, seeded
from torch import Tensor

from posenc_lib import scheme as schemes
from posenc_lib.attention.long_context import (
    dual_chunk,
    leaky_rerope,
    llama4_temperature,
    rerope,
    self_extend,
)
from posenc_lib.bias import (
    alibi,
    alibi_slopes,
)
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.layers import (
    Layer,
    gemma3,
    llama4,
    modernbert,
    smollm3,
)
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import PositionScheme

Fields = dict[str, Tensor]
Case = dict[str, Any]


def llama4_attention_temperature(p: Case, x: Case) -> Fields:
    positions = torch.tensor(x["positions"])
    return {
        "q_scale": llama4_temperature(
            positions, floor_scale=p["floor_scale"], attn_scale=p["attn_scale"]
        )
    }


def flags(plan: tuple[Layer, ...], field: str) -> Tensor:
    return torch.tensor([int(getattr(layer, field) is not None) for layer in plan])


def nope_layer_pattern(p: Case, x: Case) -> Fields:
    assert p["no_rope_layer_interval"] == 4, (
        "the plans know the published interval only"
    )
    return {
        "smollm3_uses_rope": flags(smollm3(p["num_hidden_layers"]), "base"),
        "llama4_uses_rope": flags(llama4(p["num_hidden_layers"]), "base"),
        "llama4_chunked": flags(llama4(p["num_hidden_layers"]), "chunk"),
    }


def rope_gemma3_local_global(p: Case, x: Case) -> Fields:
    plan = gemma3(p["num_hidden_layers"], factor=p["rope_scaling"]["factor"])
    local, far = (plan[i].rope(p["head_dim"], layout="half") for i in (0, 5))
    assert local is not None
    assert far is not None
    return {
        "sliding_inv_freq": local.frequencies,
        "full_inv_freq": far.frequencies,
        "layer_is_full": 1 - flags(plan, "window"),
    }


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "llama4_attention_temperature": llama4_attention_temperature,
    "nope_layer_pattern": nope_layer_pattern,
    "rope_gemma3_local_global": rope_gemma3_local_global,
}

# ---- examples: 4 heads of 8 channels, all parameters in float64

HEADS, WIDTH = 4, 8


rope = RoPE(inverse_frequencies(WIDTH))
BRANCHES: dict[str, Callable[..., Any]] = {
    "ReRoPE": partial(rerope, window=5),
    "leaky ReRoPE": partial(leaky_rerope, window=5, factor=4),
    "Self-Extend": partial(self_extend, window=6, group=3),
    "dual chunk attention": partial(dual_chunk, chunk=5, local=2),
}

SCHEMES: dict[str, PositionScheme] = {
    "Gemma 3, local": gemma3(6, window=4)[0].scheme(WIDTH),
    "Gemma 3, global": gemma3(6, window=4)[5].scheme(WIDTH),
    "Llama 4, chunk": llama4(4, chunk=4)[0].scheme(WIDTH),
    "ModernBERT, local": modernbert(2)[1].scheme(WIDTH),
}

COUNTED = "which keys are in one chunk depends on where counting begins"
NOT: dict[tuple[str, str], str] = {
    ("Llama 4, chunk", "relative"): COUNTED,
    ("Llama 4, chunk", "Toeplitz"): COUNTED,
    **{(name, "decays with distance"): "its cosines turn back up" for name in SCHEMES},
}


LENGTHS = (1, 2, 3, 8, 17)


def qkv(
    length: int, *, heads: int = HEADS, kv_heads: int = HEADS, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(batch, heads, length, WIDTH, seed=1),
        normal(batch, kv_heads, length, WIDTH, seed=2),
        normal(batch, kv_heads, length, 6, seed=3),
    )


BIASES: dict[str, Callable[..., Tensor]] = {
    "ALiBi": partial(alibi, slopes=alibi_slopes(HEADS), dtype=torch.float64),
    "T5": schemes.t5(
        HEADS, bidirectional=True, std=1.0, generator=seeded(5)
    ).bias.double(),  # type: ignore[union-attr]
    "none": lambda m, n: torch.zeros(1, HEADS, len(m), len(n), dtype=torch.float64),
}
