"""Valid arguments of every callable that takes more than tensors.

test_malformed.py replaces each of them by what must be refused.

What an argument refuses follows from its type: an int no bool, float or text, a
generator no seed, and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from cases import (
    CONV_CODES,
    LATENT,
    ROPE,
    SINE_CODES,
    TWO_BLOCKS,
    VIDEO,
    Case,
    biased,
)
from helpers import seeded

from posenc_lib import (
    attention,
    bias,
    content,
    embedding,
    frequencies,
    layers,
    multimodal_positions,
    positions,
    rotary,
    scheme,
)
from posenc_lib.positions import arange, grid

SERIES, BASE = frequencies.inverse_frequencies(8), 10_000.0
SCALED: dict[str, Any] = {"dim": 8, "base": BASE, "factor": 4.0}
SECTIONS = (2, 1, 1)
PLAN = layers.gemma3(6)
GENERATED = {"generator": seeded(3)}

# Calls without tensors: constructors, frequencies, schedules, plans and positions.
PLAIN: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "frequencies.pixel_frequencies": (
        frequencies.pixel_frequencies,
        {"count": 4, "max_resolution": 16.0, "spacing": "linear"},
    ),
    "positions.grid": (positions.grid, {"sizes": (2, 3), "first": 0}),
    "positions.merged_grid": (
        positions.merged_grid,
        {"height": 2, "width": 4, "merge": 2},
    ),
    "positions.resized_grid": (
        positions.resized_grid,
        {"sizes": (2, 3), "reference": (4, 6), "offset": 0.5, "dtype": torch.float64},
    ),
    "positions.centred_grid": (
        positions.centred_grid,
        {"sizes": (2, 3), "dtype": torch.float64},
    ),
    "positions.spanning_grid": (
        positions.spanning_grid,
        {"sizes": (2, 3), "dtype": torch.float64},
    ),
    "positions.jittered": (
        positions.jittered,
        {"coordinates": torch.ones(3, 2), "shift": 0.1, "jitter": 1.5, "rescale": 1.5}
        | GENERATED,
    ),
    "positions.randomised": (
        positions.randomised,
        {"length": 3, "maximum": 9} | GENERATED,
    ),
    "positions.abacus": (
        positions.abacus,
        {"digits": torch.ones(2, 3, dtype=torch.bool), "offset": 1},
    ),
    "positions.coupled_addition": (
        positions.coupled_addition,
        {"first": 2, "second": 3, "total": 3, "start": 1},
    ),
    "multimodal_positions.equal_axes": (
        multimodal_positions.equal_axes,
        {"positions": arange(3), "axes": 3},
    ),
    "multimodal_positions.mrope_positions": (
        multimodal_positions.mrope_positions,
        {"blocks": TWO_BLOCKS, "following": "maximum", "start": 0},
    ),
    "multimodal_positions.vision_block": (
        multimodal_positions.vision_block,
        {"vision": VIDEO, "start": 0},
    ),
    "multimodal_positions.audio_video_block": (
        multimodal_positions.audio_video_block,
        {"block": multimodal_positions.AudioVideo(VIDEO, 3), "start": 0},
    ),
    "multimodal_positions.timestamped": (
        multimodal_positions.timestamped,
        {"video": VIDEO, "text": (2, 3)},
    ),
    "multimodal_positions.videorope_positions": (
        multimodal_positions.videorope_positions,
        {"blocks": TWO_BLOCKS, "dtype": torch.float64},
    ),
    "multimodal_positions.place_rows": (
        multimodal_positions.place_rows,
        {"rows": [grid((2, 1))], "mask": torch.ones(1, 2), "padding": 0},
    ),
    "embedding.gaussian_matrix": (
        embedding.gaussian_matrix,
        {"count": 3, "axes": 2, "std": 1.0} | GENERATED,
    ),
    "embedding.LearnedGrid": (
        embedding.LearnedGrid,
        {"size": (2, 3), "dim": 4, "std": 0.02} | GENERATED,
    ),
    "embedding.LearnableFourier": (
        embedding.LearnableFourier,
        {"dim": 4, "axes": 2, "features": 4, "hidden": 3, "gamma": 1.0} | GENERATED,
    ),
    "embedding.PEG": (
        embedding.PEG,
        {"dim": 4, "kernel": 3, "prefix_tokens": 1} | GENERATED,
    ),
    "embedding.ConvolutionalEmbedding": (
        embedding.ConvolutionalEmbedding,
        {"dim": 4, "kernel": 3, "groups": 2} | GENERATED,
    ),
    "rotary.AxialRoPE": (
        rotary.AxialRoPE,
        {"frequencies": torch.ones(2, 4), "layout": "half", "attention_factor": 1.0},
    ),
    "rotary.MixedRoPE": (
        rotary.MixedRoPE,
        {"heads": 2, "dim": 8, "base": 10.0, "layout": "half"} | GENERATED,
    ),
    "rotary.axial_frequencies": (
        rotary.axial_frequencies,
        {"sections": (2, 2), "base": BASE},
    ),
    "rotary.dinov3_frequencies": (rotary.dinov3_frequencies, {"dim": 8, "base": 100.0}),
    "rotary.golden_gate_frequencies": (
        rotary.golden_gate_frequencies,
        {"heads": 2, "dim": 8, "slowest": 0.2, "fastest": 20.0, "still": 1},
    ),
    "rotary.mixed_frequencies": (
        rotary.mixed_frequencies,
        {"heads": 2, "dim": 8, "base": 10.0} | GENERATED,
    ),
    **{
        f"rotary.{function.__name__}": (
            function,
            {"frequencies": SERIES, "sections": SECTIONS},
        )
        for function in (
            rotary.mrope_frequencies,
            rotary.mrope_interleaved_frequencies,
            rotary.videorope_frequencies,
        )
    },
    "rotary.pixtral_frequencies": (rotary.pixtral_frequencies, {"frequencies": SERIES}),
    "rotary.linear_interpolation": (rotary.linear_interpolation, SCALED),
    "rotary.ntk_aware": (rotary.ntk_aware, SCALED),
    "rotary.dynamic_ntk": (
        rotary.dynamic_ntk,
        SCALED | {"original_length": 64, "length": 256},
    ),
    "rotary.ntk_by_parts": (
        rotary.ntk_by_parts,
        SCALED | {"original_length": 64, "alpha": 1.0, "beta": 32.0},
    ),
    "rotary.ntk_by_parts_original": (
        rotary.ntk_by_parts_original,
        SCALED | {"original_length": 64},
    ),
    "rotary.yarn": (
        rotary.yarn,
        SCALED | {"original_length": 64, "alpha": 1.0, "beta": 32.0},
    ),
    "rotary.yarn_attention_factor": (
        rotary.yarn_attention_factor,
        {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "rotary.yarn_released": (
        rotary.yarn_released,
        SCALED
        | {
            "original_length": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
            "attention_factor": 1.0,
        },
    ),
    "rotary.llama3": (
        rotary.llama3,
        SCALED
        | {"original_length": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "rotary.longrope": (
        rotary.longrope,
        SCALED
        | {
            "short_factors": [1.0] * 4,
            "long_factors": [2.0] * 4,
            "original_length": 64,
            "length": 65,
            "attention_factor": 1.0,
        },
    ),
    "rotary.proportional": (
        rotary.proportional,
        {"dim": 8, "base": BASE, "fraction": 0.5, "factor": 1.0},
    ),
    "rotary.clipped": (
        rotary.clipped,
        {"schedule": rotary.linear_interpolation(**SCALED), "count": 3},
    ),
    "rotary.deepseek_softmax_scale": (
        rotary.deepseek_softmax_scale,
        {"head_dim": 8, "factor": 4.0, "mscale_all_dim": 1.0},
    ),
    "rotary.XPos": (
        rotary.XPos,
        {
            "frequencies": SERIES,
            "layout": "half",
            "gamma": 0.4,
            "scale_base": 512.0,
            "centre": 0.0,
        },
    ),
    "rotary.PoPE": (rotary.PoPE, {"head_dim": 8, "base": BASE, "heads": 2}),
    "rotary.LieRE": (rotary.LieRE, {"head_dim": 8, "axes": 2, "block": 4} | GENERATED),
    "rotary.ComRoPE": (
        rotary.ComRoPE,
        {"head_dim": 8, "axes": 2, "block": 4, "heads": 2} | GENERATED,
    ),
    "rotary.CayleySTRING": (
        rotary.CayleySTRING,
        {"head_dim": 8, "transform": ROPE.transform},
    ),
    "rotary.FoPE": (
        rotary.FoPE,
        {
            "dim": 8,
            "base": BASE,
            "length": 64,
            "heads": 2,
            "layout": "half",
            "gain": 0.3,
        }
        | GENERATED,
    ),
    "rotary.RePo": (
        rotary.RePo,
        {"width": 8, "heads": 2, "rope": ROPE, "latent": 3} | GENERATED,
    ),
    "rotary.LatentQueries": (
        rotary.LatentQueries,
        {"width": 8, "heads": 2, "std": 0.1} | LATENT,
    ),
    "rotary.LatentKeys": (
        rotary.LatentKeys,
        {"width": 8, "heads": 2, "std": 0.1, "value_dim": 3} | LATENT,
    ),
    "bias.KerpleLog": (bias.KerpleLog, {"heads": 2} | GENERATED),
    "bias.KerplePower": (bias.KerplePower, {"heads": 2} | GENERATED),
    "bias.FIRE": (
        bias.FIRE,
        {"heads": 2, "hidden": 3, "c": 0.1, "threshold": 5.0} | GENERATED,
    ),
    "bias.WindowBias": (
        bias.WindowBias,
        {"heads": 2, "window": (2, 3), "std": 0.02} | GENERATED,
    ),
    "bias.ClsWindowBias": (bias.ClsWindowBias, {"heads": 2, "window": (2, 3)}),
    "bias.LogCoordinateBias": (
        bias.LogCoordinateBias,
        {"heads": 2, "window": (2, 3), "hidden": 4} | GENERATED,
    ),
    "bias.DynamicPositionBias": (
        bias.DynamicPositionBias,
        {"heads": 2, "width": 4, "axes": 2} | GENERATED,
    ),
    "bias.DistanceMLPBias": (
        bias.DistanceMLPBias,
        {"heads": 2, "width": 4, "depth": 2, "log_distance": True} | GENERATED,
    ),
    "bias.irpe_edges": (bias.irpe_edges, {"alpha": 1.9, "beta": 3.8, "gamma": 15.2}),
    **{
        f"bias.{kind.__name__}": (
            kind,
            {
                size: 2,
                "axes": 2,
                "method": "cross",
                "alpha": 1.9,
                "beta": 3.8,
                "gamma": 15.2,
            },
        )
        for kind, size in ((bias.IRPEBias, "heads"), (bias.IRPEContextual, "head_dim"))
    },
    "content.Shaw": (content.Shaw, {"head_dim": 4, "clip": 2} | GENERATED),
    "content.TransformerXL": (
        content.TransformerXL,
        {"heads": 2, "head_dim": 4, "dim": 6, "base": BASE, "std": 0.02} | GENERATED,
    ),
    "content.DeBERTa": (
        content.DeBERTa,
        {"heads": 2, "head_dim": 4, "dim": 6, "span": 3, "std": 0.02} | GENERATED,
    ),
    "content.TUPE": (
        content.TUPE,
        {"num_positions": 9, "dim": 6, "heads": 2, "head_dim": 4, "std": 0.02}
        | GENERATED,
    ),
    "content.CoPE": (content.CoPE, {"head_dim": 4, "num_positions": 5}),
    "content.DAPE": (
        content.DAPE,
        {"heads": 2, "bias": biased, "hidden": 3} | GENERATED,
    ),
    "content.ForgetGate": (
        content.ForgetGate,
        {"dim": 4, "heads": 2, "std": 0.02} | GENERATED,
    ),
    "content.PaTH": (
        content.PaTH,
        {"dim": 4, "heads": 2, "head_dim": 4, "rank": 3, "std": 0.02} | GENERATED,
    ),
    "content.RelativeLogits": (
        content.RelativeLogits,
        {"dim": 4, "heads": 2, "extent": 3, "rank": 2, "std": 0.02} | GENERATED,
    ),
    "attention.orthogonal_projection": (
        attention.orthogonal_projection,
        {"features": 6, "dim": 4} | GENERATED,
    ),
    "attention.retention_decays": (attention.retention_decays, {"heads": 4}),
    "attention.SSMax": (attention.SSMax, {"heads": 2, "initial": 0.2}),
    "attention.SineSPE": (
        attention.SineSPE,
        {"heads": 2, "head_dim": 4, "sines": 2} | GENERATED,
    ),
    "attention.SineSPE, draw": (SINE_CODES.draw, {"realizations": 4} | GENERATED),
    "attention.ConvSPE": (
        attention.ConvSPE,
        {"heads": 2, "head_dim": 4, "kernel_size": 3} | GENERATED,
    ),
    "attention.ConvSPE, draw": (
        CONV_CODES.draw,
        {"length": 5, "realizations": 4} | GENERATED,
    ),
    "attention.relative_bias_vector": (
        attention.relative_bias_vector,
        {"bias": biased, "length": 5},
    ),
    "rotary.unscaled": (rotary.unscaled, {"dim": 8, "base": BASE}),
    "attention.prepare": (
        attention.prepare,
        {
            "x": torch.zeros(1, 4, 8),
            "scheme": scheme.rope(8),
            "causal": True,
            "q_positions": arange(4),
            "k_positions": arange(4),
            "q_order": arange(4),
            "k_order": arange(4),
            "mask": torch.ones(4, 4, dtype=torch.bool),
            "transformed": False,
        },
    ),
    "scheme.LayerSchemes": (
        scheme.LayerSchemes,
        {"layers": [scheme.NOPE], "embedding": None},
    ),
    "layers.Layer": (
        layers.Layer,
        {
            "base": BASE,
            "schedule": rotary.unscaled,
            "window": 4,
            "chunk": None,
            "temperature": None,
        },
    ),
    "layers.gemma3": (layers.gemma3, {"layers": 6, "window": 4, "factor": 8.0}),
    "layers.llama4": (
        layers.llama4,
        {"layers": 4, "base": BASE, "chunk": 8, "schedule": rotary.unscaled},
    ),
    "layers.schemes": (
        layers.schemes,
        {"plan": layers.gemma3(6), "head_dim": 8, "layout": "half"},
    ),
    "layers.smollm3": (
        layers.smollm3,
        {"layers": 4, "base": BASE, "schedule": rotary.unscaled},
    ),
    "layers.cohere2": (layers.cohere2, {"layers": 4, "base": BASE, "window": 8}),
    "layers.gpt_oss": (layers.gpt_oss, {"layers": 4}),
    "layers.modernbert": (layers.modernbert, {"layers": 4}),
    "layers.drope": (layers.drope, {"plan": PLAN}),
}


def with_tensors(
    cases: dict[str, Case],
) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """The calls of these cases, with the options that a partial fills in."""
    found = {}
    for name, case in cases.items():
        call, options = case.target or case.call, {}
        if isinstance(call, partial):
            call, options = call.func, call.keywords
        wanted = inspect.signature(call).parameters
        given = options | {
            key: x for key, x in case.inputs(4, 0).items() if key in wanted
        }
        missing = {
            key
            for key, parameter in wanted.items()
            if parameter.default is parameter.empty
        } - set(given)
        given |= {key: OPTIONS[key] for key in missing if key in OPTIONS}
        if missing <= set(given):
            found[f"{name}, called" if name in PLAIN else name] = (call, given)
    return found


# What a case fills in itself.
OPTIONS: dict[str, Any] = {
    "causal": False,
    "size": (2, 4),
    "length": 4,
    "scheme": scheme.NOPE,
}
