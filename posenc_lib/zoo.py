"""The zoo: every encoding of this library in one table, from the objects themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from posenc_lib import bias, embedding, frequencies, rotary, scheme
from posenc_lib.scheme import NOPE, PositionScheme


@dataclass(frozen=True, eq=False)
class Entry:
    """An encoding as a row of the zoo.

    Equation: none
    Shapes: none

    Args:
        name: what people call it.
        scheme: a small example of it; its places are the column "where".
        source: the object whose docstring holds the equation, the citation and the chapter.
        cost: parameters, and work beside plain attention.
        used_by: published models that use it.
        golden: beginnings of the names of the golden cases in tests/oracles that it is checked against.

    Chapter: zoo
    """

    name: str
    scheme: PositionScheme
    source: Callable[..., Any] | type
    cost: str
    used_by: str
    golden: tuple[str, ...] = ()


def encodings() -> tuple[Entry, ...]:
    """All encodings, place by place.

    Equation: none
    Shapes: → one `Entry` for each encoding

    Chapter: zoo
    """
    draw = torch.Generator().manual_seed(0)
    tensor2tensor = PositionScheme("tensor2tensor", embedding=lambda p: embedding.sinusoidal_tensor2tensor(p, 8))
    return (
        Entry("NoPE", NOPE, PositionScheme, "none", "some layers of Llama 4, SmolLM3 and Cohere models"),
        Entry(
            "Sinusoidal",
            scheme.sinusoidal(8),
            embedding.sinusoidal,
            "no parameters; one addition a token",
            "the Transformer of 2017, XLM, Marian, Transformer-XL (of distances)",
            ("sinusoidal_interleaved", "sinusoidal_concat_marian", "sinusoidal_concat_transformerxl"),
        ),
        Entry(
            "Sinusoidal, tensor2tensor",
            tensor2tensor,
            embedding.sinusoidal_tensor2tensor,
            "no parameters; one addition a token",
            "fairseq models, Whisper, M2M-100, XGLM, Speech2Text",
            ("sinusoidal_concat_fairseq", "sinusoidal_concat_whisper", "sinusoidal_concat_m2m100"),
        ),
        Entry(
            "Learned absolute",
            scheme.learned(16, 8, generator=draw),
            embedding.LearnedEmbedding,
            "L·D parameters; one addition a token",
            "BERT, RoBERTa (from padding_idx + 1), GPT-2, OPT (from 2)",
            ("learned_offset_opt", "position_ids_roberta"),
        ),
        Entry(
            "RoPE, interleaved",
            scheme.rope(8),
            rotary.RoPE,
            "no parameters; 3 d operations a token for query and key each",
            "RoFormer, Llama in Meta's code, Cohere",
            ("rope_complex_interleaved_llama_official", "rope_interleaved"),
        ),
        Entry(
            "RoPE, half layout",
            scheme.rope(8, layout="half"),
            rotary.convert_layout,
            "the same",
            "Llama, Qwen, Mistral and Gemma in transformers",
            ("rope_half_split",),
        ),
        Entry(
            "RoPE, partial",
            scheme.rope(8, rotary_dim=4),
            frequencies.inverse_frequencies,
            "the same, for the first r channels",
            "GPT-J and CodeGen (interleaved), GPT-NeoX (half), GLM (interleaved)",
            ("rope_partial", "rope_interleaved_gptj_partial", "rope_interleaved_codegen_partial"),
        ),
        Entry(
            "T5 bias",
            scheme.t5(4, bidirectional=False, std=1.0, generator=draw),
            bias.T5Bias,
            "B·H parameters for all layers; one addition a score",
            "T5, mT5",
            ("t5_",),
        ),
        Entry(
            "ALiBi",
            scheme.alibi(4),
            bias.alibi,
            "no parameters; one addition a score",
            "Bloom, MPT, some Falcon models",
            ("alibi_",),
        ),
    )
