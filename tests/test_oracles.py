"""Every output of every golden file, at the tolerance that the file states.

An adapter calls the library with the case's inputs and brings the result into the
peer's shape. It may transpose, scale and mask as the peer does around its encoding; the
formula itself must come from the library. The adapters of the basic encodings are here,
those of the others in `examples`, a file for each group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import groups
from torch import Tensor

from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket
from posenc_lib.embedding import LearnedEmbedding, sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, from_mask
from posenc_lib.rotary import RoPE, convert_layout

ORACLES = Path(__file__).parent / "oracles"
Fields = dict[str, Tensor]


# ---- embedding: sinusoids and learned tables


def without_row(embedding: Tensor, positions: Tensor, row: int) -> Tensor:
    """The peer has zeros in the row of the padding index."""
    return embedding.masked_fill((positions == row)[..., None], 0)


def sinusoidal_concat_fairseq(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    pad = p["padding_idx"]
    positions = from_mask(
        torch.tensor(x["input_ids"]) != pad, first=pad + 1, padding=pad
    )
    step = arange(1, offset=pad + 1 + p["timestep"]).expand(len(positions), 1)
    embed = sinusoidal_tensor2tensor(positions, p["embedding_dim"])
    return {
        "embeddings": without_row(embed, positions, pad),
        "incremental_step_embedding": sinusoidal_tensor2tensor(
            step, p["embedding_dim"]
        ),
    }


def sinusoidal_concat_m2m100_padding_offset(
    p: dict[str, Any], x: dict[str, Any]
) -> Fields:
    pad, dim = p["padding_idx"], p["embedding_dim"]
    positions = from_mask(
        torch.tensor(x["input_ids"]) != pad, first=pad + 1, padding=pad
    )
    rows = arange(p["num_positions"] + 2)
    return {
        "weights": without_row(sinusoidal_tensor2tensor(rows, dim), rows, pad),
        "position_ids": positions,
        "embeddings": without_row(
            sinusoidal_tensor2tensor(positions, dim), positions, pad
        ),
    }


def sinusoidal_concat_speech2text_odd_dim(
    p: dict[str, Any], x: dict[str, Any]
) -> Fields:
    fields = sinusoidal_concat_m2m100_padding_offset(p, x)
    return {name: fields[name] for name in ("weights", "embeddings")}


def sinusoidal_concat_xglm_offset2(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "embeddings": sinusoidal_tensor2tensor(
            torch.tensor(x["position_ids"]) + p["offset"], p["embedding_dim"]
        )
    }


def sinusoidal_concat_whisper(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "weights": sinusoidal_tensor2tensor(
            arange(p["length"]), p["channels"], p["max_timescale"]
        )
    }


def sinusoidal_concat_marian(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "weights": sinusoidal(
            arange(p["num_positions"]), p["embedding_dim"], layout="concatenated"
        )
    }


def sinusoidal_concat_transformerxl(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "embeddings": sinusoidal(
            torch.tensor(x["pos_seq"]), p["demb"], layout="concatenated"
        )[:, None]
    }


def sinusoidal_interleaved_xlm(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {"weights": sinusoidal(arange(p["n_pos"]), p["dim"])}


def sinusoidal_interleaved_scaled_cramming(
    p: dict[str, Any], x: dict[str, Any]
) -> Fields:
    dim = p["embedding_dim"]
    return {"embeddings": sinusoidal(arange(p["seq_len"]), dim)[None] * dim**-0.5}


def sinusoidal_scaled_xtransformers(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    positions = arange(p["seq_len"], offset=p["offset"])
    return {
        "embeddings": sinusoidal(positions, p["dim"], p["theta"], layout="concatenated")
        * p["dim"] ** -0.5
    }


def learned_offset_opt(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    table = LearnedEmbedding(p["num_embeddings"] + p["offset"], p["embedding_dim"])
    table.load_state_dict({"table": torch.tensor(x["weight"])})
    positions = from_mask(
        torch.tensor(x["attention_mask"]), first=p["offset"], padding=p["offset"] - 1
    )
    return {"embeddings": table(positions[:, p["cache_length"] :])}


def position_ids_roberta(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    pad = p["padding_idx"]
    mask = torch.tensor(x["input_ids"]) != pad
    return {
        "position_ids": from_mask(mask, first=p["cache_length"] + pad + 1, padding=pad)
    }


# ---- bias: T5 and ALiBi


def t5_buckets(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    buckets = t5_bucket(torch.arange(*x["relative_position"]["arange"]), **p)
    return {"buckets": buckets, "exact_arithmetic_buckets": buckets}


def t5_compute_bias(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    sizes = {name: p[name] for name in ("num_buckets", "max_distance")}
    bias = T5Bias(p["num_heads"], bidirectional=not p["is_decoder"], std=1.0, **sizes)
    bias.load_state_dict({"table": torch.tensor(x["embedding_weight"])})
    return {
        "bias": bias(
            arange(p["query_length"], offset=p["past_seen_tokens"]),
            arange(p["key_length"]),
        )
    }


def slopes(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {f"h{heads}": alibi_slopes(heads) for heads in p["heads"]}


def alibi_of_keys(
    mask: Tensor, slopes: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """+s·n, the form of Bloom.

    Minus our bias as seen by a query at position 0. (B·H, 1, Tk)
    """
    keys = from_mask(mask)
    return -alibi(torch.zeros(len(keys), 1), keys, slopes, dtype=dtype).flatten(0, 1)


def alibi_bias_bloom(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "alibi": alibi_of_keys(
            torch.tensor(x["attention_mask"]), alibi_slopes(p["num_heads"])
        )
    }


def alibi_bias_falcon_bf16(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    # The peer is the coarser side: it rounds slopes and products to bfloat16, and so
    # must we, to compare.
    coarse = alibi_slopes(p["num_heads"]).bfloat16().float()
    return {
        "alibi": alibi_of_keys(
            torch.tensor(x["attention_mask"]), coarse, torch.bfloat16
        ).float()
    }


def alibi_bias_mpt(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    assert p["alibi_bias_max"] == 8  # the paper's
    length = p["sequence_length"]
    return {
        "alibi": alibi(
            arange(1, offset=length - 1), arange(length), alibi_slopes(p["num_heads"])
        )[0]
    }


def alibi_bias_neox_causal(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    positions, heads = arange(p["seq_len"]), alibi_slopes(p["num_heads"])
    return {
        "bias": alibi(
            positions, positions, heads
        ).tril(),  # the peer leaves zeros where its causal mask falls
        "bias_single_query": alibi(positions[-1:], positions, heads),
    }


def alibi_bias_xtransformers_symmetric(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    assert p["heads"] == p["total_heads"]
    queries = arange(p["i"], offset=p["j"] - p["i"])
    return {"bias": alibi(queries, arange(p["j"]), alibi_slopes(p["heads"]))[0]}


# ---- transform: RoPE


def rotated(
    rope: RoPE, positions: Tensor, x: dict[str, Any], *, heads_last: bool = False
) -> Fields:
    """The case's q, k and v as far as it has them, rotated.

    `heads_last` is the peer's (B, T, H, d).
    """
    rotation = rope(positions)
    fields = {}
    for name in ("q", "k", "v"):
        if name in x:
            tensor = torch.tensor(x[name])
            turned = (
                rotation(tensor.transpose(1, 2)).transpose(1, 2)
                if heads_last
                else rotation(tensor)
            )
            fields[f"{name}_embed"] = turned
    return fields


def rope_half_split_llama(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frequencies, positions = (
        inverse_frequencies(p["head_dim"], p["rope_theta"]),
        torch.tensor(x["position_ids"]),
    )
    rope = RoPE(frequencies, layout="half")
    cos, sin = rope(positions).cos, rope(positions).sin
    tables = {
        "inv_freq": frequencies,
        "cos": torch.cat((cos, cos), -1),
        "sin": torch.cat((sin, sin), -1),
    }
    return tables | rotated(rope, positions, x)


def rope_interleaved_cohere(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope, positions = (
        RoPE(inverse_frequencies(p["head_dim"], p["rope_theta"])),
        torch.tensor(x["position_ids"]),
    )
    tables = {
        "cos": rope(positions).cos.repeat_interleave(2, -1),
        "sin": rope(positions).sin.repeat_interleave(2, -1),
    }
    return tables | rotated(rope, positions, x)


def complex_form(rope: RoPE, positions: Tensor, x: dict[str, Any]) -> Fields:
    rotation = rope(positions)
    return {"freqs_cis": torch.complex(rotation.cos, rotation.sin)} | rotated(
        rope, positions, x, heads_last=True
    )


def rope_complex_interleaved_llama_official(
    p: dict[str, Any], x: dict[str, Any]
) -> Fields:
    assert not p["use_scaled"]
    positions = arange(p["length"], offset=p["start_pos"])
    return complex_form(
        RoPE(inverse_frequencies(p["head_dim"], p["theta"])), positions, x
    )


def rope_half_split_gemma_official(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frequencies = (
        inverse_frequencies(p["head_dim"], p["theta"]) / p["rope_scaling_factor"]
    )
    return complex_form(RoPE(frequencies, layout="half"), arange(p["length"]), x)


def rope_interleaved_gptj_partial(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope, positions = (
        RoPE(inverse_frequencies(p["rotary_dim"], p["base"])),
        torch.tensor(x["position_ids"]),
    )
    rows = torch.cat((rope(positions).sin, rope(positions).cos), -1)
    return {"sincos_rows": rows} | rotated(rope, positions, x, heads_last=True)


def rope_interleaved_roformer_qkv(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    positions = arange(len(x["q"][0][0]))
    table = sinusoidal(positions, p["head_dim"], p["base"], layout="concatenated")[
        None, None
    ]
    return {"sinusoidal_pos": table} | rotated(
        RoPE(inverse_frequencies(p["head_dim"], p["base"])), positions, x
    )


def rope_partial_gpt_neox(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frequencies = inverse_frequencies(p["rotary_dim"], p["rope_theta"])
    positions = torch.tensor(x["position_ids"])
    return {"inv_freq": frequencies} | rotated(
        RoPE(frequencies, layout="half"), positions, x
    )


def rope_partial_interleaved_glm(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = RoPE(inverse_frequencies(p["rotary_dim"], p["rope_theta"]))
    return rotated(rope, torch.tensor(x["position_ids"]), x)


def rope_diffusers_1d(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    assert p["repeat_interleave_real"]  # interleaved pairs
    frequencies = (
        inverse_frequencies(p["dim"], p["theta"] * p["ntk_factor"]) / p["linear_factor"]
    )
    rotation = RoPE(frequencies)(arange(p["length"]))
    return {
        "cos": rotation.cos.repeat_interleave(2, -1),
        "sin": rotation.sin.repeat_interleave(2, -1),
        "out": rotation(torch.tensor(x["x"])),
    }


def rope_rotary_embedding_torch_lang(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    tensor = torch.tensor(x["t"])
    return {
        "out": RoPE(inverse_frequencies(p["dim"]))(
            arange(tensor.shape[2], offset=p["offset"])
        )(tensor)
    }


def base_of_ntk(dim: int, base: float, factor: float) -> float:
    """The base with which the slowest pair turns `factor` times slower, and the fastest
    as before.
    """
    return base * factor ** (dim / (dim - 2))


def rope_xtransformers(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = RoPE(
        inverse_frequencies(
            p["dim"], base_of_ntk(p["dim"], 10000.0, p["base_rescale_factor"])
        )
    )
    rotation = rope(arange(p["length"]))
    angles = torch.atan2(
        rotation.sin, rotation.cos
    )  # all below π here, so nothing is lost
    return {
        "freqs": angles.repeat_interleave(2, -1)[None],
        "out": rotation(torch.tensor(x["t"])),
    }


def rope_ntk_theta_rescale(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    return {
        "freqs": inverse_frequencies(
            p["dim"], base_of_ntk(p["dim"], p["theta"], p["theta_rescale_factor"])
        )
    }


def rope_linear(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    settings = p["rope_parameters"]
    rotary_dim = int(p["head_dim"] * settings.get("partial_rotary_factor", 1))
    rope = RoPE(
        inverse_frequencies(rotary_dim, settings["rope_theta"]) / settings["factor"]
    )
    return {
        "inv_freq": rope.frequencies,
        "attention_factor": torch.tensor(rope.attention_factor),
    }


def mla_decoupled_rope_deepseek(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = RoPE(inverse_frequencies(p["qk_rope_head_dim"], p["rope_theta"]))
    q, k = torch.tensor(x["q_pe"]), torch.tensor(x["k_pe"])
    positions = arange(q.shape[2], offset=p["start_pos"])
    q, k = rope.transform(q, k, positions, positions)
    # One peer returns the pairs where they were; the other leaves them in the half
    # layout, on both sides alike.
    halves = {
        name: convert_layout(v, source="interleaved", target="half")
        for name, v in {"q": q, "k": k}.items()
    }
    return {
        "official_q": q,
        "official_k": k,
        "hf_q": halves["q"],
        "hf_k": halves["k"],
        "logits": q @ k.mT,
    }


ADAPTERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Fields]] = {
    "alibi_bias_bloom": alibi_bias_bloom,
    "alibi_bias_falcon_bf16": alibi_bias_falcon_bf16,
    "alibi_bias_mpt": alibi_bias_mpt,
    "alibi_bias_neox_causal": alibi_bias_neox_causal,
    "alibi_bias_xtransformers_symmetric": alibi_bias_xtransformers_symmetric,
    "alibi_slopes_bloom": slopes,
    "alibi_slopes_mpt": slopes,
    "alibi_slopes_xtransformers": slopes,
    "learned_offset_opt": learned_offset_opt,
    "mla_decoupled_rope_deepseek": mla_decoupled_rope_deepseek,
    "position_ids_roberta": position_ids_roberta,
    "rope_complex_interleaved_llama_official": rope_complex_interleaved_llama_official,
    "rope_diffusers_1d": rope_diffusers_1d,
    "rope_half_split_gemma_official": rope_half_split_gemma_official,
    "rope_half_split_llama": rope_half_split_llama,
    "rope_interleaved_codegen_partial": rope_interleaved_gptj_partial,
    "rope_interleaved_cohere": rope_interleaved_cohere,
    "rope_interleaved_gptj_partial": rope_interleaved_gptj_partial,
    "rope_interleaved_roformer_qkv": rope_interleaved_roformer_qkv,
    "rope_linear_f4": rope_linear,
    "rope_linear_partial": rope_linear,
    "rope_ntk_theta_rescale_rotary_embedding_torch": rope_ntk_theta_rescale,
    "rope_partial_gpt_neox": rope_partial_gpt_neox,
    "rope_partial_interleaved_glm": rope_partial_interleaved_glm,
    "rope_rotary_embedding_torch_lang": rope_rotary_embedding_torch_lang,
    "rope_xtransformers": rope_xtransformers,
    "sinusoidal_concat_fairseq": sinusoidal_concat_fairseq,
    "sinusoidal_concat_m2m100_padding_offset": sinusoidal_concat_m2m100_padding_offset,
    "sinusoidal_concat_marian": sinusoidal_concat_marian,
    "sinusoidal_concat_speech2text_odd_dim": sinusoidal_concat_speech2text_odd_dim,
    "sinusoidal_concat_transformerxl": sinusoidal_concat_transformerxl,
    "sinusoidal_concat_whisper": sinusoidal_concat_whisper,
    "sinusoidal_concat_xglm_offset2": sinusoidal_concat_xglm_offset2,
    "sinusoidal_interleaved_scaled_cramming": sinusoidal_interleaved_scaled_cramming,
    "sinusoidal_interleaved_xlm": sinusoidal_interleaved_xlm,
    "sinusoidal_scaled_xtransformers": sinusoidal_scaled_xtransformers,
    "t5_bucket_nb16_md64_bidirectional": t5_buckets,
    "t5_bucket_nb16_md64_causal": t5_buckets,
    "t5_bucket_nb32_md128_bidirectional": t5_buckets,
    "t5_bucket_nb32_md128_causal": t5_buckets,
    "t5_compute_bias": t5_compute_bias,
}

for group in groups().values():
    assert not set(ADAPTERS) & set(group.ADAPTERS), "a case has two adapters"
    ADAPTERS |= group.ADAPTERS

# Whole files whose encoding is not in the library, with the reason.
EXCLUDED: dict[str, str] = {}

# Fields ("case:field") where the peer is wrong: the reason, and how the right value
# follows from the peer's.
CORRECTED: dict[str, tuple[str, Callable[[Tensor, dict[str, Any]], Tensor]]] = {}
for group in groups().values():
    CORRECTED |= getattr(group, "CORRECTED", {})


@cache
def load(case: str) -> dict[str, Any]:
    return json.loads((ORACLES / f"{case}.json").read_text(encoding="utf-8"))


@cache
def computed(case: str) -> Fields:
    return ADAPTERS[case](load(case)["params"], load(case)["inputs"])


def golden(value: Any) -> Tensor:
    if isinstance(value, dict):
        return torch.complex(
            *(
                torch.tensor(value[part], dtype=torch.float64)
                for part in ("real", "imag")
            )
        )
    tensor = torch.tensor(value)
    return (
        torch.tensor(value, dtype=torch.float64)
        if tensor.is_floating_point()
        else tensor
    )


FIELDS = [(case, field) for case in ADAPTERS for field in load(case)["outputs"]]


@pytest.mark.parametrize(
    ("case", "field"), FIELDS, ids=[f"{case}:{field}" for case, field in FIELDS]
)
def test_golden_field(case: str, field: str) -> None:
    file, actual = load(case), computed(case)[field].detach()
    expected = golden(file["outputs"][field])
    assert actual.shape == expected.shape
    if f"{case}:{field}" in CORRECTED:
        _, right = CORRECTED[f"{case}:{field}"]
        assert not torch.equal(right(expected, file["params"]), expected), (
            "the peer needs no correction"
        )
        expected = right(expected, file["params"])
    if not (expected.is_floating_point() or expected.is_complex()):
        assert not actual.is_floating_point()
        assert torch.equal(actual, expected)
        return
    allowed = file["suggested_atol"] + file["suggested_rtol"] * expected.abs()
    difference = (actual.to(expected.dtype) - expected).abs()
    assert bool((difference <= allowed).all()), (
        f"largest difference {difference.max()}, of {file['suggested_atol']}"
    )


def test_adapters_compute_every_field_and_no_other() -> None:
    assert {case: set(computed(case)) for case in ADAPTERS} == {
        case: set(load(case)["outputs"]) for case in ADAPTERS
    }


def test_every_file_has_an_adapter_or_a_reason() -> None:
    files = {path.stem for path in ORACLES.glob("*.json")}
    assert set(ADAPTERS) | set(EXCLUDED) == files
    assert not set(ADAPTERS) & set(EXCLUDED)
    assert {name.split(":")[0] for name in CORRECTED} <= set(ADAPTERS)
    assert all(load(case)["case"] == case for case in files)
