"""Configurations as transformers writes them: read, with its modules' frequencies."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from posenc_lib.checkpoints import LayerSettings, read

MROPE = {"rope_type": "default", "rope_theta": 1e6}
# What a class leaves to its code and every published file states.
STATED: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"rope_parameters": MROPE | {"mrope_section": [16, 24, 24]}},
    "qwen2_5_vl": {"rope_parameters": MROPE | {"mrope_section": [16, 24, 24]}},
    "qwen3_vl": {
        "rope_parameters": MROPE
        | {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
    },
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
OF_DEEPSEEK = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 40,
    "original_max_position_embeddings": 4096,
}
LISTS = {
    name: [1.0 + i / 10 for i in range(48)] for name in ("short_factor", "long_factor")
}
# Families with settings beside those of their class.
SCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3.1": ("llama", LLAMA3 | {"original_max_position_embeddings": 8192}),
    "llama 4": (
        "llama4_text",
        LLAMA3 | {"original_max_position_embeddings": 8192, "high_freq_factor": 1.0},
    ),
    "qwen 2.5": ("qwen2", YARN),
    "qwen 3": ("qwen3", YARN),
    "deepseek v3": (
        "deepseek_v3",
        OF_DEEPSEEK | {"mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "deepseek v2": (
        "deepseek_v2",
        OF_DEEPSEEK | {"mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    "phi 3.5": (
        "phi3",
        LISTS
        | {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 4096,
        },
    ),
    "linear": ("mistral", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
}
ALONE = (
    *(
        "llama",
        "llama4_text",
        "qwen2",
        "qwen3",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "gemma",
        "gemma2",
    ),
    *(
        "gemma3_text",
        "gemma4_text",
        "mistral",
        "mixtral",
        "phi3",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
        "smollm3",
    ),
    *(
        "cohere",
        "cohere2",
        "glm",
        "glm4",
        "gpt_neox",
        "olmo",
        "olmo2",
        "olmo3",
        "falcon",
        "modernbert",
    ),
)
CASES = {
    name: (name, STATED.get(name, {}).get("rope_parameters")) for name in ALONE
} | SCALED
MODULES = {"llama4_text": "llama4", "gemma3_text": "gemma3", "gemma4_text": "gemma4"}
NAMES = {
    "qwen2_5_vl": "Qwen2_5_VLRotaryEmbedding",
    "qwen3_vl": "Qwen3VLTextRotaryEmbedding",
}


def rotary_module(kind: str, config: Any) -> Any:
    module = import_module(
        "transformers.models.{0}.modeling_{0}".format(MODULES.get(kind, kind))
    )
    found = NAMES.get(kind) or next(
        name
        for name in sorted(vars(module))
        if name.endswith("RotaryEmbedding") and "Vision" not in name
    )
    return getattr(module, found)(config)


def frequencies(rotary: Any, layer: LayerSettings) -> tuple[Tensor, float]:
    """The peer's, for layers of this kind."""
    if hasattr(rotary, "inv_freq"):
        return rotary.inv_freq, float(rotary.attention_scaling)
    kind = "full_attention" if layer.window is None else "sliding_attention"
    return getattr(rotary, f"{kind}_inv_freq"), float(
        getattr(rotary, f"{kind}_attention_scaling")
    )


@pytest.mark.parametrize("case", CASES)
def test_frequencies_of_every_layer(case: str) -> None:
    kind, parameters = CASES[case]
    config = AutoConfig.for_model(kind)
    config = config.get_text_config()
    if parameters is not None:
        config.rope_parameters = parameters
        if "original_max_position_embeddings" in parameters:
            config.max_position_embeddings = int(
                4 * parameters["original_max_position_embeddings"]
            )
            config.original_max_position_embeddings = parameters[
                "original_max_position_embeddings"
            ]
    written = config.to_dict() | {"model_type": kind}
    stack = read(written).stacks[0]
    assert len(stack.layers) == config.num_hidden_layers
    rotary = rotary_module(kind, config)
    rotated = [layer for layer in stack.layers if layer.rotation is not None]
    assert rotated
    for layer in set(rotated):
        assert layer.rotation is not None
        theirs, factor = frequencies(rotary, layer)
        ours = layer.rotation.schedule()
        # The peer's powers are those of float32; a ramp between two of them adds a few
        # roundings.
        torch.testing.assert_close(ours.frequencies, theirs.double(), rtol=3e-6, atol=0)
        assert ours.attention_factor == pytest.approx(factor, rel=1e-9)


OTHER_FAMILIES = (
    *(
        "gptj",
        "bert",
        "roberta",
        "xlm-roberta",
        "gpt2",
        "opt",
        "t5",
        "mt5",
        "bloom",
        "mpt",
        "deberta-v2",
        "xlnet",
    ),
    *("whisper", "vit", "swin"),
)


@pytest.mark.parametrize("kind", OTHER_FAMILIES)
def test_other_families_are_read(kind: str) -> None:
    config = AutoConfig.for_model(kind).to_dict()
    stacks = read(config).stacks
    counts = [
        config.get(f"{name}_layers", config.get(f"num_{name}_layers"))
        for name in ("encoder", "decoder")
    ]
    count = config.get(
        "num_hidden_layers",
        config.get("num_layers", config.get("n_layer", config.get("n_layers"))),
    )
    depths = config.get("depths")
    expected = (
        [sum(depths)] if depths else [known or count for known in counts][: len(stacks)]
    )
    assert [len(stack.layers) for stack in stacks] == expected


@pytest.mark.parametrize("kind", ["llama4", "gemma3", "gemma4"])
def test_text_and_images(kind: str) -> None:
    config = AutoConfig.for_model(kind).to_dict()
    stacks = read(config).stacks
    assert stacks[0] == read(config["text_config"]).stacks[0]
    assert [stack.name for stack in stacks[1:]] == ["vision"] * (
        config.get("vision_config") is not None
    )
