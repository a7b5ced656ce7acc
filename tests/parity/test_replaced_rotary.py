"""The guide's recipe: models of transformers with the library's rotation.

The class is read from the guide's notebook, so that what readers see is what is tested.
Each model is small and random. Its weights are large enough for scores of about 1: with
the usual weights positions would hardly count.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
)

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "notebooks" / "92_use_it_in_your_model.ipynb"
CELL = "rotary-of-transformers"
NEW_TOKENS = 20


def recipe() -> Any:
    """The class `Rotary` of the guide's code cell with the tag `CELL`."""
    cells = json.loads(GUIDE.read_text(encoding="utf-8"))["cells"]
    (source,) = (
        "".join(cell["source"])
        for cell in cells
        if CELL in cell["metadata"].get("tags", ())
    )
    names: dict[str, Any] = {}
    exec(compile(source, CELL, "exec"), names)
    return names["Rotary"]


Rotary = recipe()


# ---- small models of each family


class Case(NamedTuple):
    """A family, settings beside `SMALL`, and the tokens of a prompt."""

    kind: str
    settings: dict[str, Any]
    length: int = 48


SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.125,  # of weights: 1/√64
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {"num_key_value_heads": 2}
STATED = GROUPED | {"head_dim": 16}
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
TWO_TABLES = {
    "sliding_window": 16,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
} | TWO_KINDS
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + i / 10 for i in range(8)],
        "long_factor": [1.0 + i for i in range(8)],
        "original_max_position_embeddings": 32,
    },
    "original_max_position_embeddings": 32,
} | GROUPED
LATENT = {
    "num_key_value_heads": 4,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
THREE_AXES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
WITH_IMAGES = {"layer_types": ["full_attention"] * 2} | STATED
TOWER = {
    "depth": 1,
    "embed_dim": 32,
    "hidden_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
}
CASES = {
    "Llama": Case("llama", GROUPED),
    "Llama, llama3": Case("llama", {"rope_parameters": LLAMA3} | GROUPED),
    "Llama, dynamic NTK": Case(
        "llama",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "factor": 4.0,
            },
            "max_position_embeddings": 32,
        },
    ),
    "Qwen2, YaRN": Case("qwen2", {"rope_parameters": YARN} | GROUPED),
    "Qwen3": Case("qwen3", STATED),
    "Qwen2-VL": Case(
        "qwen2_vl",
        {
            "text_config": {"rope_parameters": THREE_AXES} | WITH_IMAGES,
            "vision_config": TOWER,
        },
    ),
    "Qwen3-VL": Case(
        "qwen3_vl",
        {
            "text_config": {"rope_parameters": THREE_AXES | {"mrope_interleaved": True}}
            | WITH_IMAGES,
            "vision_config": TOWER
            | {"out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        },
    ),
    "Mistral, window": Case("mistral", {"sliding_window": 16} | GROUPED),
    "Mixtral": Case("mixtral", {"num_local_experts": 4} | GROUPED),
    "Gemma 2": Case("gemma2", {"sliding_window": 16} | TWO_KINDS | STATED),
    "Gemma 3, two tables": Case("gemma3_text", TWO_TABLES | STATED),
    "Gemma 4, two widths": Case(
        "gemma4_text",
        {
            "global_head_dim": 32,
            "vocab_size_per_layer_input": 64,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
        }
        | TWO_KINDS
        | STATED,
    ),
    "Phi-3, LongRoPE, short": Case("phi3", LONGROPE, 12),
    "Phi-3, LongRoPE, long": Case("phi3", LONGROPE),
    "Phi-3, LongRoPE, growing long": Case("phi3", LONGROPE, 24),
    "DeepSeek-V3, YaRN": Case(
        "deepseek_v3",
        {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}} | LATENT,
    ),
    "gpt-oss, YaRN": Case(
        "gpt_oss",
        {"rope_parameters": YARN, "num_local_experts": 4, "sliding_window": 16}
        | TWO_KINDS
        | STATED,
    ),
    "SmolLM3, NoPE": Case("smollm3", {"no_rope_layers": [1, 0]} | GROUPED),
    "Cohere": Case("cohere", {"logit_scale": 1.0} | GROUPED),
    "Cohere 2": Case(
        "cohere2",
        {"logit_scale": 1.0, "sliding_window": 16} | TWO_KINDS | GROUPED,
    ),
    "GLM-4, partial": Case("glm4", STATED),
    "GPT-NeoX, partial": Case(
        "gpt_neox",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "OLMo 2": Case("olmo2", GROUPED),
    "OLMo 3": Case("olmo3", {"sliding_window": 16} | TWO_KINDS | GROUPED),
    "Falcon": Case("falcon", {}),
    "ModernBERT": Case(
        "modernbert",
        TWO_TABLES
        | {
            "local_attention": 16,
            "cls_token_id": None,
            "sep_token_id": None,
            "initializer_cutoff_factor": 3.0,
        },
    ),
}


def small_model(case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """A model with random weights, always the same ones for a case."""
    settings = SMALL | case.settings
    auto = AutoModelForCausalLM
    if "text_config" in case.settings:
        settings = case.settings | {"text_config": SMALL | case.settings["text_config"]}
        auto = AutoModelForImageTextToText
    elif case.kind == "modernbert":
        auto = AutoModelForMaskedLM
    torch.manual_seed(0)
    config = AutoConfig.for_model(case.kind, **settings)
    return auto.from_config(config, dtype=dtype).eval()


def holder(model: Any) -> Any:
    """The part of the model that has `rotary_emb`: its decoder, or its encoder."""
    part = model.get_decoder() if model.can_generate() else model.base_model
    assert hasattr(part, "rotary_emb")  # else an assignment would change nothing
    return part


def padded_batch(case: Case) -> dict[str, Tensor]:
    """Two prompts, the first with 7 pads on its left, and their tokens' positions."""
    ids = torch.randint(
        1, 64, (2, case.length), generator=torch.Generator().manual_seed(1)
    )
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    if "text_config" in case.settings:  # as if an image were there: time, row, column
        positions = torch.stack((positions, positions // 2, positions % 5))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


@torch.no_grad()
def logits(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Of the tokens that aren't pads."""
    found: Tensor = model(**batch).logits[batch["attention_mask"].bool()]
    return found


@torch.no_grad()
def tables(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """All that `rotary_emb` returns in one forward pass, cos and sin by turns."""
    seen: list[Tensor] = []
    hook = holder(model).rotary_emb.register_forward_hook(
        lambda module, inputs, output: seen.extend(output)
    )
    model(**batch)
    hook.remove()
    return seen


def other_base(config: Any) -> Any:
    """The configuration with four times the base, in all its tables."""
    changed = deepcopy(config)
    parameters = changed.get_text_config().rope_parameters
    for entry in [parameters] if "rope_theta" in parameters else parameters.values():
        entry["rope_theta"] *= 4
    return changed


# ---- the recipe


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str) -> None:
    case = CASES[name]
    model, batch = small_model(case), padded_batch(case)
    before = logits(model, batch)
    holder(model).rotary_emb = Rotary(model.config)
    after = logits(model, batch)
    holder(model).rotary_emb = Rotary(other_base(model.config))
    wrong = logits(model, batch)
    # The peer's angles are float32: a frequency and its product with a position below L
    # have relative errors of 2^-24 or a little more, so an angle is off by about
    # L 2^-23, and with scores of about 1 the logits move by as large a part of theirs.
    size = float(before.abs().max())
    tolerance = case.length * 2**-23 * size
    delta, other = (float((x - before).abs().max()) for x in (after, wrong))
    print(f"{name}: |Δ| {delta:.1e}, wrong base {other:.1e}, logits to {size:.1f}")
    assert delta <= tolerance
    assert other > 100 * tolerance


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.kind != "modernbert"]
)
def test_generated_tokens(name: str) -> None:
    case = CASES[name]
    batch = padded_batch(case)
    del batch["position_ids"]  # `generate` counts them itself
    alone = {"input_ids": batch["input_ids"][1:]}

    def generated(inputs: dict[str, Tensor], replaced: bool) -> Tensor:
        model = small_model(case)  # a new one: the peer's dynamic NTK remembers lengths
        if replaced:
            holder(model).rotary_emb = Rotary(model.config)
        tokens: Tensor = model.generate(
            **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, use_cache=True
        )
        assert tokens.shape[-1] == case.length + NEW_TOKENS
        return tokens

    for inputs in (batch, alone):
        assert torch.equal(generated(inputs, True), generated(inputs, False))


@pytest.mark.parametrize("name", CASES)
def test_tables_of_bfloat16_models(name: str) -> None:
    case = CASES[name]
    model, batch = small_model(case, torch.bfloat16), padded_batch(case)
    before = tables(model, batch)
    holder(model).rotary_emb = Rotary(model.config)
    after = tables(model, batch)
    assert len(after) == len(before) > 0
    for ours, theirs in zip(after, before, strict=True):
        # float32 angles, and one step of bfloat16 where they fall on its other side
        step = 2**-8 if theirs.dtype == torch.bfloat16 else 0.0
        torch.testing.assert_close(
            ours, theirs, rtol=step, atol=case.length * 2**-23, check_stride=False
        )


def test_cast_of_the_whole_model() -> None:
    """The library keeps no buffer that `model.bfloat16()` could round."""
    model = small_model(CASES["Llama"])
    peer, recipe = model.model.rotary_emb, Rotary(model.config)
    x, positions = torch.zeros(1), torch.arange(4096)[None]
    exact, _ = recipe(x, positions)
    angle = 4096 * 2**-23  # as in `test_logits`
    torch.testing.assert_close(peer(x, positions)[0], exact, rtol=0, atol=angle)
    model.model.rotary_emb = torch.nn.ModuleList((peer, recipe))
    model.bfloat16()
    assert torch.equal(recipe(x, positions)[0], exact)
    assert (peer(x, positions)[0] - exact).abs().max() > 0.5
