"""Golden cases and example schemes of the schedules and of latent attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_lib.positions import arange
from posenc_lib.rotary.rope import RoPE
from posenc_lib.rotary.scaling import (
    Schedule,
    deepseek_softmax_scale,
    dynamic_ntk,
    llama3,
    longrope,
    ntk_by_parts_original,
    proportional,
    yarn_attention_factor,
    yarn_released,
)
from posenc_lib.scheme import PositionScheme

Case = dict[str, Any]
Fields = dict[str, Tensor]


def fields(schedule: Schedule) -> Fields:
    return {
        "inv_freq": schedule.frequencies,
        "attention_factor": torch.tensor(schedule.attention_factor),
    }


def rope_dynamic(p: Case, x: Case) -> Fields:
    settings = p["rope_parameters"]
    lengths = dict(original_length=p["max_position_embeddings"], length=p["seq_len"])
    return fields(
        dynamic_ntk(
            p["head_dim"], settings["rope_theta"], factor=settings["factor"], **lengths
        )
    )


def rope_dynamic_stateful_llama(p: Case, x: Case) -> Fields:
    # The peer keeps the setting of the longest input until one is shorter than the
    # trained length. Ours is a function of the length, so what the peer remembers is an
    # argument here.
    trained, longest, used = p["max_position_embeddings"], 0, []
    for length in x["successive_seq_lens"]:
        longest = 0 if length < trained else max(longest, length)
        used.append(max(longest, length))
    rows = [
        dynamic_ntk(
            p["head_dim"],
            p["rope_theta"],
            factor=p["factor"],
            original_length=trained,
            length=length,
        )
        for length in used
    ]
    return {"inv_freq_after_each": torch.stack([row.frequencies for row in rows])}


def longrope_at(p: Case, length: int) -> Schedule:
    settings = p["rope_parameters"]
    trained = settings["original_max_position_embeddings"]
    return longrope(
        p["head_dim"],
        settings["rope_theta"],
        short_factors=settings["short_factor"],
        long_factors=settings["long_factor"],
        factor=p["max_position_embeddings"] / trained,
        original_length=trained,
        length=length,
    )


def rope_longrope(p: Case, x: Case) -> Fields:
    return fields(
        longrope_at(p, p["seq_len"] or 1)
    )  # a peer without a length takes the short list


def rope_longrope_stateful_llama(p: Case, x: Case) -> Fields:
    rows = [longrope_at(p, length) for length in x["successive_seq_lens"]]
    return {
        "inv_freq_after_each": torch.stack([row.frequencies for row in rows]),
        "attention_scaling": torch.tensor(rows[0].attention_factor),
    }


def rope_llama3(p: Case, x: Case) -> Fields:
    settings = p["rope_parameters"]
    return fields(
        llama3(
            p["head_dim"],
            settings["rope_theta"],
            factor=settings["factor"],
            original_length=settings["original_max_position_embeddings"],
            low_freq_factor=settings["low_freq_factor"],
            high_freq_factor=settings["high_freq_factor"],
        )
    )


def rope_proportional(p: Case, x: Case) -> Fields:
    settings = p["rope_parameters"]
    return fields(
        proportional(
            p["head_dim"],
            settings["rope_theta"],
            fraction=settings["partial_rotary_factor"],
        )
    )


def rope_yarn(p: Case, x: Case) -> Fields:
    settings = p["rope_parameters"]
    names = {"beta_fast", "beta_slow", "truncate"} & set(settings)
    given = {name: settings[name] for name in names}
    if "mscale" in settings:
        magnitudes = {name: settings[name] for name in ("mscale", "mscale_all_dim")}
        given["attention_factor"] = yarn_attention_factor(
            settings["factor"], **magnitudes
        )
    lengths = dict(
        factor=settings["factor"],
        original_length=settings["original_max_position_embeddings"],
    )
    return fields(
        yarn_released(p["head_dim"], settings["rope_theta"], **lengths, **given)
    )


def rope_yarn_gpt_oss_official(p: Case, x: Case) -> Fields:
    schedule = yarn_released(
        p["head_dim"],
        p["base"],
        factor=p["scaling_factor"],
        original_length=p["initial_context_length"],
        beta_fast=p["ntk_beta"],
        beta_slow=p["ntk_alpha"],
        truncate=False,
    )
    rotation = RoPE(**schedule._asdict(), layout="half")(arange(len(x["query"])))
    return {
        "inv_freq": schedule.frequencies,
        "concentration": torch.tensor(schedule.attention_factor),
        "query_out": rotation(torch.tensor(x["query"])),
        "key_out": rotation(torch.tensor(x["key"])),
    }


def yarn_original_repo(p: Case, x: Case) -> Fields:
    assert p["attn_factor"] == 1
    names = ("beta_fast", "beta_slow")
    schedule = yarn_released(
        p["dim"],
        p["base"],
        factor=p["scale"],
        original_length=p["original_max_position_embeddings"],
        **{name: p[name] for name in names},
    )
    rotation = RoPE(**schedule._asdict(), layout="half")(
        arange(8)
    )  # the case keeps the first 8 rows
    return {
        "inv_freq": schedule.frequencies,
        "mscale": torch.tensor(schedule.attention_factor),
        "cos_cached": torch.cat((rotation.cos, rotation.cos), -1),
        "sin_cached": torch.cat((rotation.sin, rotation.sin), -1),
    }


def ntk_by_parts_original_repo(p: Case, x: Case) -> Fields:
    assert [p[name] for name in ("beta_0", "beta_1", "gamma_0", "gamma_1")] == [
        1.25,
        0.75,
        16,
        2,
    ]
    trained = p["original_max_position_embeddings"]
    schedule = ntk_by_parts_original(
        p["dim"], p["base"], factor=p["scale"], original_length=trained
    )
    return {"inv_freq": schedule.frequencies}


def deepseek_official_yarn_freqs_cis(p: Case, x: Case) -> Fields:
    assert p["max_seq_len"] > p["original_seq_len"]
    schedule = yarn_released(
        p["qk_rope_head_dim"],
        p["rope_theta"],
        factor=p["rope_factor"],
        original_length=p["original_seq_len"],
        beta_fast=p["beta_fast"],
        beta_slow=p["beta_slow"],
        attention_factor=1.0,
    )
    rotation = RoPE(**schedule._asdict())(torch.tensor(x["rows"]))
    return {"freqs_cis_rows": torch.complex(rotation.cos, rotation.sin)}


def deepseek_softmax_scale_mscale(p: Case, x: Case) -> Fields:
    scales = {}
    for i, case in enumerate(p["cases"]):
        settings = {
            name: case["rope_parameters"][name] for name in ("factor", "mscale_all_dim")
        }
        scales[f"s{i}"] = torch.tensor(
            deepseek_softmax_scale(case["qk_head_dim"], **settings), dtype=torch.float64
        )
    return scales


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "deepseek_official_yarn_freqs_cis": deepseek_official_yarn_freqs_cis,
    "deepseek_softmax_scale_mscale": deepseek_softmax_scale_mscale,
    "ntk_by_parts_original_repo": ntk_by_parts_original_repo,
    "rope_dynamic_above": rope_dynamic,
    "rope_dynamic_below": rope_dynamic,
    "rope_dynamic_stateful_llama": rope_dynamic_stateful_llama,
    "rope_llama3_1_f8": rope_llama3,
    "rope_longrope_long": rope_longrope,
    "rope_longrope_phi35_mini_short": rope_longrope,
    "rope_longrope_short": rope_longrope,
    "rope_longrope_stateful_llama": rope_longrope_stateful_llama,
    "rope_proportional_p25": rope_proportional,
    "rope_yarn_deepseek_v3": rope_yarn,
    "rope_yarn_f4_default": rope_yarn,
    "rope_yarn_gpt_oss": rope_yarn,
    "rope_yarn_gpt_oss_official": rope_yarn_gpt_oss_official,
    "rope_yarn_mscale_unequal": rope_yarn,
    "yarn_original_repo": yarn_original_repo,
}

DIM, BASE, TRAINED = 8, 10000.0, 64  # of the examples

SCHEMES: dict[str, PositionScheme] = {
    "YaRN, not truncated": PositionScheme(
        "YaRN, not truncated",
        transform=RoPE(
            **yarn_released(
                DIM, BASE, factor=4.0, original_length=TRAINED, truncate=False
            )._asdict()
        ).transform,
    )
}

# An attention factor makes the transform a rotation times a number: scores stay
# relative, vectors get longer.
NOT: dict[tuple[str, str], str] = {
    ("YaRN, not truncated", "norm"): "its attention factor scales",
    ("YaRN, not truncated", "nothing at position zero"): "its attention factor scales",
    ("YaRN, not truncated", "decays with distance"): "its cosines turn back up",
}
