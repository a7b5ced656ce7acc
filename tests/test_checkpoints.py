"""Checkpoints: published settings give the published numbers; the rest is named.

Expected values never come from the shipped configurations: they are numbers that the
models' reports and code state, golden cases of other libraries, and loops straight from
a definition. The package is tested as a whole, through what it reads.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import normal, seeded
from torch import Tensor

from posenc_lib import layers
from posenc_lib.attention import attention_weights, causal
from posenc_lib.checkpoints import (
    LayerSettings,
    as_dict,
    collisions,
    differences,
    figure,
    read,
    shipped,
    text,
)
from posenc_lib.checkpoints.families import FAMILIES
from posenc_lib.checkpoints.report import (
    bands,
    indices_text,
    pairs_longer_than,
    rotations,
)
from posenc_lib.positions import merged_grid

ORACLES = Path(__file__).parent / "oracles"
NAMES = sorted(shipped())


def golden(case: str) -> dict[str, Any]:
    return json.loads((ORACLES / f"{case}.json").read_text(encoding="utf-8"))


def values(case: dict[str, Any], field: str, part: str = "outputs") -> Tensor:
    return torch.tensor(case[part][field], dtype=torch.float64)


def llama(**changes: Any) -> dict[str, Any]:
    """A small Llama, with changes; a change to None takes the key away."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    }
    return {
        key: value for key, value in (config | changes).items() if value is not None
    }


def with_key(name: str, path: str, value: Any) -> dict[str, Any]:
    """A shipped configuration with one key changed, or taken away by `...`."""
    config = copy.deepcopy(shipped()[name])
    *folders, key = path.split(".")
    inner = config
    for folder in folders:
        inner = inner[folder]
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    return config


def decoder(config: str | dict[str, Any]) -> tuple[LayerSettings, ...]:
    return read(config).stacks[0].layers


def gemma4_by_layer(extra: dict[str, Any], *, only: bool = False) -> dict[str, Any]:
    """Gemma 4 as transformers 5.24 writes it.

    Global heads have their width in entries of their own.
    """
    config = copy.deepcopy(shipped()["gemma-4-e2b"])
    size = config.pop("global_head_dim")
    full = [
        i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"
    ]
    own = extra if only else {f"{i:02d}": {"head_dim": size} for i in full} | extra
    return config | {"per_layer_config": own}


def omni(path: str = "", value: Any = None) -> dict[str, Any]:
    """Qwen2.5-Omni in its nested form, with one key changed, or taken away by `...`."""
    text = {
        **{
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "max_position_embeddings": 32768,
            "rope_theta": 1e6,
        },
        **{
            "num_hidden_layers": 28,
            "rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]},
        },
        "use_sliding_window": False,
    }
    vision = {
        **{
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": 32,
            "hidden_size": 1280,
            "num_heads": 16,
        },
        **{
            "window_size": 112,
            "patch_size": 14,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }
    audio = {
        **{
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "max_source_positions": 1500,
        },
        "n_window": 100,
    }
    config: dict[str, Any] = {
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "text_config": text,
            "vision_config": vision,
            "audio_config": audio,
        },
        "talker_config": copy.deepcopy(text)
        | {"num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 12}
        | {"head_dim": 128},
    }
    if path:
        *folders, key = path.split(".")
        inner = config
        for folder in folders:
            inner = inner[folder]
        inner[key] = value
        if value is ...:
            del inner[key]
    return config


XL = shipped()["class-default-transfo-xl"]
QWEN25_YARN = with_key(
    "qwen2.5-3b",
    "rope_scaling",
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
)


# ---- published numbers


@pytest.mark.parametrize(
    ("config", "length", "expected"),
    [
        ("llama-3.1-8b", 131072, (29, 6, 29)),
        (QWEN25_YARN, 131072, (24, 16, 24)),
        ("deepseek-v3", 163840, (11, 12, 9)),
        ("gpt-oss-20b", 131072, (9, 9, 14)),
    ],
    ids=["llama-3.1", "qwen2.5-yarn", "deepseek-v3", "gpt-oss"],
)
def test_pairs_kept_blended_and_divided(
    config: Any, length: int, expected: tuple[int, int, int]
) -> None:
    rotation = decoder(config)[0].rotation
    assert rotation is not None
    assert bands(rotation, length) == expected


@pytest.mark.parametrize(
    ("dim", "base", "last", "beyond_8192", "beyond_131072"),
    [
        (128, 1e4, 54_410, 14, 0),
        (128, 5e5, 2.56e6, 29, 15),
        (128, 1e6, 5.06e6, 30, 17),
        (128, 5e6, 2.47e7, 34, 22),
        (64, 1.5e5, 6.5e5, 12, 5),
        (256, 1e6, 5.64e6, 61, 35),
    ],
)
def test_last_wavelength_and_pairs_that_never_turn(
    dim: int, base: float, last: float, beyond_8192: int, beyond_131072: int
) -> None:
    rotation = decoder(llama(head_dim=dim, rope_theta=base))[0].rotation
    assert rotation is not None
    wavelengths = rotation.wavelengths()
    assert float(wavelengths[-1]) == pytest.approx(last, rel=5e-3)
    assert (
        pairs_longer_than(wavelengths, 8192),
        pairs_longer_than(wavelengths, 131072),
    ) == (
        beyond_8192,
        beyond_131072,
    )


def test_llama_3() -> None:
    rotation = decoder("llama-3-8b")[0].rotation
    assert rotation is not None
    assert (rotation.base, rotation.dim, rotation.kind, rotation.layout) == (
        500_000,
        128,
        "default",
        "half",
    )
    factors = [
        dict(decoder(name)[0].rotation.options)["factor"]
        for name in ("llama-3.1-8b", "llama-3.2-1b")
    ]  # type: ignore[union-attr]
    assert factors == [8, 32]
    assert [decoder(name)[0].head_dim for name in ("llama-3.2-1b", "llama-3.2-3b")] == [
        64,
        128,
    ]


def test_llama_4_scout_alternates_chunks_and_nope() -> None:
    plan = layers.llama4(48)
    for ours, theirs in zip(decoder("llama-4-scout"), plan, strict=True):
        assert (ours.rotation is None, ours.chunk) == (
            theirs.base is None,
            theirs.chunk,
        )
        assert ours.temperature == (None if theirs.temperature is None else (8192, 0.1))
    rotation = decoder("llama-4-scout")[0].rotation
    assert rotation is not None
    assert rotation.layout == "interleaved"
    assert dict(rotation.options) == {
        "factor": 16,
        "original_length": 8192,
        "low_freq_factor": 1,
        "high_freq_factor": 1,
    }
    assert bands(rotation, 131072)[1] == 0  # low = high: a step


def test_deepseek_v3_scales_the_softmax_and_not_the_rotation() -> None:
    (layer,) = set(decoder("deepseek-v3"))
    assert layer.rotation is not None
    assert (layer.skipped, layer.head_dim, layer.rotation.dim) == (128, 192, 64)
    assert layer.rotation.layout == "interleaved"
    assert layer.rotation.schedule().attention_factor == 1
    assert layer.scale is not None
    assert layer.scale * math.sqrt(192) == pytest.approx(1.3689**2, rel=1e-4)


def test_gpt_oss() -> None:
    stack = decoder("gpt-oss-20b")
    assert [layer.window for layer in stack] == [128, None] * 12
    rotation = stack[0].rotation
    assert rotation is not None
    assert rotation.base == 150_000
    assert rotation.schedule().attention_factor == pytest.approx(1.3466, abs=5e-5)
    # The page says that rounding the ramp's ends keeps the counts and changes every
    # blended pair.
    rounded = decoder(with_key("gpt-oss-20b", "rope_scaling.truncate", True))[
        0
    ].rotation
    assert rounded is not None
    assert bands(rounded, 131072) == bands(rotation, 131072)
    assert (rounded.wavelengths(1) != rotation.wavelengths(1)).tolist() == [
        9 <= i < 18 for i in range(32)
    ]
    # Where the ramp begins and ends, as vLLM's developers measured it: 8.0928 and
    # 17.3980.
    ratio = rotation.wavelengths(1) / rotation.wavelengths()
    blended = ((1 / ratio - 1) / (1 / 32 - 1))[9:18]
    measured = (torch.arange(9, 18, dtype=torch.float64) - 8.092779115512402) / (
        17.39802450158856 - 8.092779115512402
    )
    torch.testing.assert_close(blended, measured, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "count", "window", "factor"),
    [("gemma-3-1b", 26, 512, None), ("gemma-3-4b", 34, 1024, 8.0)],
)
def test_gemma_3_scales_global_layers_alone(
    name: str, count: int, window: int, factor: float | None
) -> None:
    plan = layers.gemma3(count, window=window, factor=factor or 1.0)
    for ours, theirs in zip(decoder(name), plan, strict=True):
        rotation = ours.rotation
        assert rotation is not None
        assert (rotation.base, ours.window) == (theirs.base, theirs.window)
        rope = theirs.rope(256)
        assert rope is not None
        assert torch.equal(rotation.schedule().frequencies, rope.frequencies)
    assert {
        dict(rotation.options).get("factor")
        for rotation in rotations(read(name).stacks[0])
    } == {None, factor}


def test_gemma_3_as_an_encoder_halves_its_window() -> None:
    layer = decoder(with_key("gemma-3-1b", "use_bidirectional_attention", True))[0]
    assert (layer.window, layer.causal) == (257, False)


def test_gemma_2_divides_by_its_own_number() -> None:
    layer = decoder("gemma-2-27b")[0]
    assert (layer.scale, layer.head_dim) == (144**-0.5, 128)
    assert [layer.window for layer in decoder("gemma-2-2b")] == [4096, None] * 13


def test_gemma_4_global_layers_turn_a_quarter_of_wider_heads() -> None:
    near, far = decoder("gemma-4-e2b")[0], decoder("gemma-4-e2b")[4]
    assert near.rotation is not None
    assert far.rotation is not None
    assert (near.head_dim, near.rotation.base, near.window) == (256, 1e4, 512)
    assert (far.head_dim, far.rotation.base, far.window) == (512, 1e6, None)
    frequencies = far.rotation.schedule().frequencies
    assert (len(frequencies), int((frequencies > 0).sum())) == (256, 64)
    assert float(frequencies[1]) == pytest.approx(1e6 ** (-2 / 512))


def test_smollm3_has_no_positions_in_every_fourth_layer() -> None:
    stack = decoder("smollm3-3b")
    assert [i for i, layer in enumerate(stack) if layer.rotation is None] == list(
        range(3, 36, 4)
    )
    assert {layer.rotation.base for layer in stack if layer.rotation is not None} == {
        5e6
    }


@pytest.mark.parametrize(
    ("name", "sections", "interleaved", "base", "length"),
    [
        ("qwen2.5-vl-3b", (16, 24, 24), False, 1e6, 128_000),
        ("qwen3-vl-8b", (24, 20, 20), True, 5e6, 262_144),
    ],
)
def test_qwen_vl_sections(
    name: str, sections: tuple[int, ...], interleaved: bool, base: float, length: int
) -> None:
    stack = read(name).stacks[0]
    rotation = stack.layers[0].rotation
    assert rotation is not None
    assert (rotation.sections, rotation.interleaved, rotation.base, stack.length) == (
        sections,
        interleaved,
        base,
        length,
    )


def test_qwen_2_5_vl_sees_windows_but_in_four_layers() -> None:
    tower = read("qwen2.5-vl-3b").stacks[1].layers
    assert [i for i, layer in enumerate(tower) if layer.patches is None] == [
        7,
        15,
        23,
        31,
    ]
    assert {layer.patches for layer in tower} == {None, (8, 0)}


def test_phi_3_changes_lists_past_the_trained_length() -> None:
    rotation = decoder("phi-3.5-mini")[0].rotation
    assert rotation is not None
    lists = golden("rope_longrope_phi35_mini_short")["params"]["rope_parameters"]
    for length, key in ((4096, "short_factor"), (4097, "long_factor")):
        ratio = rotation.wavelengths(length) / rotation.wavelengths()
        torch.testing.assert_close(
            ratio, torch.tensor(lists[key], dtype=torch.float64), rtol=1e-12, atol=0
        )
    assert rotation.schedule(1).attention_factor == pytest.approx(1.1902, abs=5e-5)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi_3_has_three_names_for_longrope(name: str) -> None:
    assert decoder(with_key("phi-3.5-mini", "rope_scaling.type", name)) == decoder(
        "phi-3.5-mini"
    )


def test_modernbert_sees_64_on_each_side() -> None:
    stack = decoder("class-default-modernbert")
    for ours, theirs in zip(stack, layers.modernbert(22), strict=True):
        assert ours.rotation is not None
        assert (ours.rotation.base, ours.window, ours.causal) == (
            theirs.base,
            theirs.window,
            False,
        )
    positions = torch.arange(200)
    mask = stack[1].scheme().mask
    assert mask is not None
    assert torch.equal(
        mask(positions, positions)[100].nonzero().flatten(), torch.arange(36, 165)
    )


def test_olmo_3_scales_full_layers_alone() -> None:
    scaling = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
    }
    config = shipped()["class-default-olmo3"] | {
        "rope_scaling": scaling,
        "max_position_embeddings": 65536,
    }
    kinds = [
        layer.rotation.kind for layer in decoder(config) if layer.rotation is not None
    ]
    assert kinds == ["default", "default", "default", "yarn"] * 8
    assert [layer.window for layer in decoder(config)] == [4096, 4096, 4096, None] * 8
    assert {
        layer.rotation.base for layer in decoder(config) if layer.rotation is not None
    } == {500_000}


def test_cohere_2_rotates_in_windows_alone() -> None:
    ours = decoder("class-default-cohere2")
    for layer, theirs in zip(ours, layers.cohere2(40, base=10_000.0), strict=True):
        assert (layer.rotation is None, layer.window) == (
            theirs.base is None,
            theirs.window,
        )
    assert ours[0].rotation is not None
    assert ours[0].rotation.layout == "interleaved"


def test_windows_that_must_be_switched_on() -> None:
    config = shipped()["qwen2-7b"]
    assert {layer.window for layer in decoder(config)} == {None}
    switched = decoder(config | {"use_sliding_window": True, "max_window_layers": 20})
    assert [layer.window for layer in switched] == [None] * 20 + [131_072] * 8
    assert {
        layer.window
        for layer in decoder(with_key("mistral-7b-v0.3", "sliding_window", 4096))
    } == {4096}
    smollm = with_key("smollm3-3b", "layer_types", ...) | {
        "use_sliding_window": True,
        "sliding_window": 512,
    }
    assert [layer.window for layer in decoder(smollm)] == [None, None, None, 512] * 9


def test_encoders_and_decoders() -> None:
    whisper = read("class-default-whisper").stacks
    assert [stack.inputs.encoding for stack in whisper if stack.inputs is not None] == [
        "sinusoidal, tensor2tensor",
        "learned",
    ]
    assert [[layer.causal for layer in stack.layers] for stack in whisper] == [
        [False] * 4,
        [True] * 4,
    ]
    assert [
        decoder(f"class-default-{name}")[0].causal
        for name in ("xlnet", "transfo-xl", "bert")
    ] == [
        False,
        True,
        False,
    ]
    assert decoder("class-default-falcon")[0].encoding == "RoPE"


@pytest.mark.parametrize(
    ("name", "rows", "first", "length"),
    [
        ("arctic-embed-m", 512, 0, 512),
        ("gpt2", 1024, 0, 1024),
        ("class-default-opt", 2050, 2, 2048),
        ("class-default-roberta", 512, 2, 510),
        ("class-default-vit", 197, 0, 197),
    ],
)
def test_learned_tables(name: str, rows: int, first: int, length: int) -> None:
    stack = read(name).stacks[0]
    assert stack.inputs is not None
    assert (stack.inputs.rows, stack.inputs.first, stack.length) == (
        rows,
        first,
        length,
    )
    assert {layer.encoding for layer in stack.layers} == {"NoPE"}


def test_where_first_positions_are() -> None:
    opt, roberta = golden("learned_offset_opt"), golden("position_ids_roberta")
    table = read("class-default-opt").stacks[0].inputs
    assert table is not None
    weight, rows = values(opt, "weight", "inputs"), values(opt, "embeddings")
    last = opt["inputs"]["attention_mask"][1]
    assert torch.equal(rows[1][last.index(1)], weight[table.first])
    table = read("class-default-roberta").stacks[0].inputs
    assert table is not None
    assert (
        min(i for row in roberta["outputs"]["position_ids"] for i in row if i != 1)
        == table.first
    )


def test_swin_shifts_every_other_layer() -> None:
    tower = read("class-default-swin").stacks[0].layers
    assert [layer.patches for layer in tower] == [(7, 0), (7, 3)] * 5 + [(7, 0)] * 2
    assert [layer.heads for layer in tower] == [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2


def test_clamped_distances_against_the_table_that_the_code_makes() -> None:
    heads, size, width, most = 2, 4, 8, 5
    (layer,) = set(
        decoder(dict(XL, n_head=heads, d_head=size, d_model=width, clamp_len=most))
    )
    scores = layer.scheme(generator=seeded(1)).scores
    assert scores is not None
    owner = layer.scheme(generator=seeded(1)).scores.keywords["layer"]  # type: ignore[union-attr]
    q, k = torch.randn(
        2,
        1,
        heads,
        9,
        size,
        generator=seeded(0),
        dtype=torch.float64,
    )
    q_positions, k_positions = (
        torch.arange(20, 29),
        torch.arange(16, 25),
    )  # some keys are ahead
    ours = scores(q, k, q_positions, k_positions)
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    for i, m in enumerate(q_positions.tolist()):
        for j, n in enumerate(k_positions.tolist()):
            angles = max(-most, min(most, m - n)) * frequencies
            row = owner.weight.detach().double().view(heads, size, width) @ torch.cat(
                (angles.sin(), angles.cos())
            )
            u, v = owner.u.detach().double(), owner.v.detach().double()
            expected = ((q[0, :, i] + u) * k[0, :, j] + (q[0, :, i] + v) * row).sum(-1)
            torch.testing.assert_close(ours[0, :, i, j].detach(), expected)
    padded = scores(q, k, q_positions[None], k_positions[None])
    torch.testing.assert_close(padded, ours)


def test_gemma_4_with_settings_for_each_layer() -> None:
    assert decoder(gemma4_by_layer({})) == decoder("gemma-4-e2b")


def test_qwen_2_5_omni_has_four_stacks() -> None:
    stacks = read(omni()).stacks
    assert [(stack.name, len(stack.layers)) for stack in stacks] == [
        ("decoder", 28),
        ("vision", 32),
        ("audio", 32),
        ("talker", 24),
    ]
    rotations = [stacks[i].layers[0].rotation for i in (0, 3)]
    assert [rotation.sections for rotation in rotations if rotation is not None] == [
        (16, 24, 24)
    ] * 2
    sound = stacks[2]
    assert sound.inputs is not None
    assert (sound.inputs.encoding, sound.inputs.rows, sound.length) == (
        "sinusoidal, tensor2tensor",
        1500,
        100,
    )
    assert "token2wav_config: not read" in read(omni() | {"token2wav_config": {}}).notes


def test_deberta_v2_without_relative_attention_is_plain() -> None:
    config = with_key("deberta-v2-xxlarge", "relative_attention", False)
    learned = read(config | {"position_biased_input": True}).stacks[0]
    assert (learned.layers[0].encoding, learned.layers[0].scale) == ("NoPE", None)
    assert learned.inputs is not None
    assert learned.inputs.rows == 512
    assert read(config | {"position_biased_input": False}).stacks[0].inputs is None


def test_deberta_v2() -> None:
    (layer,) = set(decoder("deberta-v2-xxlarge"))
    assert dict(layer.options) == {"dim": 1536, "span": 256, "max_distance": 512}
    assert layer.scale == pytest.approx((3 * 64) ** -0.5)


def test_t5_has_one_table_for_each_stack_and_no_scale() -> None:
    encoder, decoder_ = read("class-default-t5").stacks
    for stack, bidirectional in ((encoder, True), (decoder_, False)):
        assert dict(stack.layers[0].options)["bidirectional"] is bidirectional
        schemes = stack.schemes(generator=seeded(0))
        assert len({id(scheme.bias) for scheme in schemes}) == 1
        assert {scheme.scale for scheme in schemes} == {1.0}


# ---- golden cases, through configurations


SCHEDULES = sorted(
    path.stem
    for path in ORACLES.glob("rope_*.json")
    if "rope_parameters" in json.loads(path.read_text())["params"]
)
STATEFUL = {"rope_longrope_stateful_llama"}


def config_of(params: dict[str, Any], *, new: bool) -> dict[str, Any]:
    """A configuration of the golden case's settings, in the new form or the old."""
    turning = dict(params["rope_parameters"])
    base = {
        "head_dim": params["head_dim"],
        "max_position_embeddings": params["max_position_embeddings"],
    }
    if new:
        return llama(**base, rope_theta=None, rope_parameters=turning)
    theta, part = turning.pop("rope_theta"), turning.pop("partial_rotary_factor", None)
    return llama(
        **base, rope_theta=theta, partial_rotary_factor=part, rope_scaling=turning
    )


@pytest.mark.parametrize("new", [False, True], ids=["old form", "new form"])
@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - STATEFUL))
def test_schedules_agree_with_golden_cases(name: str, new: bool) -> None:
    case = golden(name)
    params = case["params"]
    rotation = decoder(config_of(params, new=new))[0].rotation
    assert rotation is not None
    schedule = rotation.schedule(params["seq_len"] or 1)
    expected = values(case, "inv_freq")
    torch.testing.assert_close(
        schedule.frequencies, expected, rtol=case["suggested_rtol"], atol=1e-12
    )
    assert schedule.attention_factor == pytest.approx(
        case["outputs"]["attention_factor"], rel=1e-9
    )


def test_there_are_golden_schedules() -> None:
    assert len(SCHEDULES) >= 12


def test_longrope_follows_the_length_and_keeps_no_state() -> None:
    case = golden("rope_longrope_stateful_llama")
    rotation = decoder(config_of(case["params"], new=True))[0].rotation
    assert rotation is not None
    rows = [
        rotation.schedule(length).frequencies
        for length in case["inputs"]["successive_seq_lens"]
    ]
    torch.testing.assert_close(
        torch.stack(rows), values(case, "inv_freq_after_each"), rtol=1e-6, atol=0
    )
    assert rotation.schedule().attention_factor == pytest.approx(
        case["outputs"]["attention_scaling"]
    )


def test_deepseek_scale_agrees_with_golden_case() -> None:
    case = golden("deepseek_softmax_scale_mscale")
    assert decoder("deepseek-v3")[0].scale == pytest.approx(
        case["outputs"]["s0"], abs=1e-9
    )


def test_gemma_3_agrees_with_golden_case() -> None:
    case = golden("rope_gemma3_local_global")
    config = with_key("gemma-3-4b", "vision_config", ...)
    config["text_config"] |= {
        "head_dim": 16,
        "num_hidden_layers": case["params"]["num_hidden_layers"],
    }
    stack = decoder(config)
    assert [int(layer.window is None) for layer in stack] == case["outputs"][
        "layer_is_full"
    ]
    for layer, field in ((stack[0], "sliding_inv_freq"), (stack[5], "full_inv_freq")):
        assert layer.rotation is not None
        torch.testing.assert_close(
            layer.rotation.schedule().frequencies,
            values(case, field),
            rtol=1e-6,
            atol=0,
        )


@pytest.mark.parametrize(
    ("name", "field"), [("smollm3-3b", "smollm3"), ("llama-4-scout", "llama4")]
)
def test_layers_without_rotation_agree_with_golden_case(name: str, field: str) -> None:
    case = golden("nope_layer_pattern")
    config = {
        key: value
        for key, value in shipped()[name].items()
        if key not in ("no_rope_layers", "layer_types")
    }
    stack = decoder(config | case["params"])
    assert [int(layer.rotation is not None) for layer in stack] == case["outputs"][
        f"{field}_uses_rope"
    ]
    if field == "llama4":
        assert [int(layer.chunk is not None) for layer in stack] == case["outputs"][
            "llama4_chunked"
        ]


TINY = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "max_position_embeddings": 64,
}
ROTATED: dict[str, dict[str, Any]] = {
    "rope_half_split_llama": {"model_type": "llama", "head_dim": 8, "rope_theta": 1e4},
    "rope_interleaved_cohere": {
        "model_type": "cohere",
        "hidden_size": 16,
        "rope_theta": 1e4,
    },
    "rope_partial_gpt_neox": {
        "model_type": "gpt_neox",
        "hidden_size": 32,
        "rotary_pct": 0.25,
        "rotary_emb_base": 1e4,
    },
    "rope_partial_interleaved_glm": {
        "model_type": "glm",
        "head_dim": 8,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1e4,
    },
}


@pytest.mark.parametrize("name", sorted(ROTATED))
def test_rotated_queries_and_keys_agree_with_golden_cases(name: str) -> None:
    case = golden(name)
    transform = decoder(TINY | ROTATED[name])[0].scheme().transform
    assert transform is not None
    positions = torch.tensor(case["inputs"]["position_ids"])
    q, k = transform(
        values(case, "q", "inputs"), values(case, "k", "inputs"), positions, positions
    )
    torch.testing.assert_close(
        q, values(case, "q_embed"), rtol=0, atol=case["suggested_atol"]
    )
    torch.testing.assert_close(
        k, values(case, "k_embed"), rtol=0, atol=case["suggested_atol"]
    )


def test_gpt_j_agrees_with_golden_case() -> None:
    case = golden("rope_interleaved_gptj_partial")
    config = {
        "model_type": "gptj",
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 16,
        "n_positions": 64,
        "rotary_dim": 4,
    }
    transform = decoder(config)[0].scheme().transform
    assert transform is not None
    q, positions = (
        values(case, "q", "inputs").transpose(1, 2),
        torch.tensor(case["inputs"]["position_ids"]),
    )
    torch.testing.assert_close(
        transform(q, q, positions, positions)[0].transpose(1, 2),
        values(case, "q_embed"),
        rtol=0,
        atol=case["suggested_atol"],
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mrope_sections_qwen2_vl", "qwen2_vl"),
        ("mrope_interleaved_qwen3_vl", "qwen3_vl"),
    ],
)
def test_three_axes_agree_with_golden_cases(name: str, kind: str) -> None:
    case = golden(name)
    scaling: dict[str, Any] = {
        "rope_type": "default",
        "mrope_section": case["params"]["mrope_section"],
    }
    if kind == "qwen3_vl":
        scaling["mrope_interleaved"] = True
    config = TINY | {
        "model_type": kind,
        "head_dim": 16,
        "rope_theta": 1e4,
        "rope_scaling": scaling,
    }
    transform = decoder(config)[0].scheme().transform
    assert transform is not None
    positions = torch.tensor(case["inputs"]["position_ids_thw"]).movedim(0, -1)
    q, k = transform(
        values(case, "q", "inputs"), values(case, "k", "inputs"), positions, positions
    )
    torch.testing.assert_close(
        q, values(case, "q_embed"), rtol=0, atol=case["suggested_atol"]
    )
    torch.testing.assert_close(
        k, values(case, "k_embed"), rtol=0, atol=case["suggested_atol"]
    )


def test_latent_attention_turns_the_last_channels_alone() -> None:
    case = golden("mla_decoupled_rope_deepseek")
    config = with_key("deepseek-v3", "rope_scaling", None) | {
        "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 8,
    }
    transform = decoder(config)[0].scheme().transform
    assert transform is not None
    q, k = values(case, "q_pe", "inputs"), values(case, "k_pe", "inputs")
    content = normal(1, 2, 4, 3, seed=0)
    positions = torch.arange(4)
    rotated_q, rotated_k = transform(
        torch.cat((content, q), -1),
        torch.cat((content[:, :1], k), -1),
        positions,
        positions,
    )
    assert torch.equal(rotated_q[..., :3], content)
    torch.testing.assert_close(
        rotated_q[..., 3:], values(case, "official_q"), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        rotated_k[..., 3:], values(case, "official_k"), rtol=0, atol=1e-5
    )


def test_qwen_tower_agrees_with_golden_case() -> None:
    case = golden("rope2d_qwen2_vl_vision")
    config = with_key(
        "qwen2.5-vl-3b",
        "vision_config",
        {"depth": 1, "hidden_size": 16, "num_heads": 2},
    )
    transform = read(config).stacks[1].layers[0].scheme().transform
    assert transform is not None
    (_, height, width), merge = (
        case["params"]["grid_thw"][0],
        case["params"]["spatial_merge_size"],
    )
    positions = merged_grid(height, width, merge)
    q, k = (values(case, name, "inputs").transpose(0, 1)[None] for name in "qk")
    q, k = transform(q, k, positions, positions)
    for rotated, field in ((q, "q_embed"), (k, "k_embed")):
        torch.testing.assert_close(
            rotated[0].transpose(0, 1), values(case, field), rtol=0, atol=1e-5
        )


def test_llama_4_tower_agrees_with_golden_case() -> None:
    case = golden("rope2d_llama4_vision")
    vision = {
        "model_type": "llama4_vision_model",
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 42,
        "patch_size": 14,
        "rope_theta": case["params"]["rope_theta"],
    }
    config = {
        "model_type": "llama4",
        "text_config": shipped()["llama-4-scout"],
        "vision_config": vision,
    }
    tower = read(config).stacks[1]
    transform = tower.layers[0].scheme().transform
    assert transform is not None
    assert tower.inputs is not None
    assert tower.inputs.rows == case["params"]["grid"] ** 2 + 1
    patches = [(column, row) for row in range(1, 4) for column in range(1, 4)]
    positions = torch.tensor([*patches, (0, 0)])  # the class token comes last
    q, k = (values(case, name, "inputs").transpose(1, 2) for name in "qk")
    q, k = transform(q, k, positions, positions)
    for rotated, field in ((q, "q_embed"), (k, "k_embed")):
        torch.testing.assert_close(
            rotated.transpose(1, 2), values(case, field), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(
    ("kind", "config", "shrink"),
    [
        ("mpt", {"d_model": 16, "n_heads": 4, "n_layers": 1, "max_seq_len": 64}, 1.0),
        ("bloom", {"n_embed": 12, "n_layer": 1, "num_attention_heads": 3}, 1.0),
        (
            "falcon",
            {
                "hidden_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 12,
                "alibi": True,
            },
            0.5,
        ),
    ],
)
def test_alibi_agrees_with_golden_cases(
    kind: str, config: dict[str, Any], shrink: float
) -> None:
    case = golden({"falcon": "alibi_bias_falcon_bf16"}.get(kind, f"alibi_bias_{kind}"))
    extra: dict[str, Any] = (
        {"attn_config": {"alibi": True, "alibi_bias_max": 8}} if kind == "mpt" else {}
    )
    if kind == "falcon":
        extra["max_position_embeddings"] = 64
    layer = decoder({"model_type": kind, **config, **extra})[0]
    scheme = layer.scheme()
    assert scheme.bias is not None
    peers = values(case, "alibi")
    last = peers.shape[-1] - 1
    ours = scheme.bias(torch.tensor([last]), torch.arange(last + 1))[0, :, 0].to(
        torch.float64
    )
    # The peers leave out what is the same for a whole row; Falcon's adds before it
    # divides by √d = 2.
    rows = peers[: layer.heads, 0]
    assert all(case["inputs"].get("attention_mask", [[1]])[0]), (
        "the first row of the golden case has no padding"
    )
    steps, expected = ours.diff(dim=-1), rows.diff(dim=-1) * shrink
    torch.testing.assert_close(
        steps, expected, rtol=1e-2 if kind == "falcon" else 1e-5, atol=1e-6
    )


# ---- both forms


def test_old_and_new_forms_are_the_same() -> None:
    old = shipped()["llama-3.1-8b"]
    new = {
        key: value
        for key, value in old.items()
        if key not in ("rope_theta", "rope_scaling")
    }
    new["rope_parameters"] = old["rope_scaling"] | {"rope_theta": old["rope_theta"]}
    assert read(new).stacks == read(old).stacks == read(old | new).stacks


def test_gemma_3_in_its_new_form_by_kind_of_layer() -> None:
    old = shipped()["gemma-3-4b"]
    inner = {
        key: value
        for key, value in old["text_config"].items()
        if key
        not in (
            "rope_theta",
            "rope_scaling",
            "rope_local_base_freq",
            "sliding_window_pattern",
        )
    }
    inner["layer_types"] = [
        "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(34)
    ]
    inner["rope_parameters"] = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    assert read(old | {"text_config": inner}).stacks == read(old).stacks


def test_modernbert_in_its_new_form() -> None:
    old = shipped()["class-default-modernbert"]
    new = {key: value for key, value in old.items() if "rope_theta" not in key}
    new["rope_parameters"] = {
        "full_attention": {"rope_theta": 160000.0},
        "sliding_attention": {"rope_theta": 10000.0},
    }
    assert read(new).stacks == read(old).stacks


def test_qwen_vl_flat_and_nested() -> None:
    flat = shipped()["qwen2.5-vl-3b"]
    text_keys = {
        key: value
        for key, value in flat.items()
        if key not in ("source", "vision_config", "model_type")
    }
    nested = {
        "model_type": "qwen2_5_vl",
        "text_config": text_keys | {"model_type": "qwen2_5_vl_text"},
        "vision_config": flat["vision_config"],
    }
    assert read(nested).stacks == read(flat).stacks


def test_reading_changes_nothing_and_gives_equal_values() -> None:
    for name, config in shipped().items():
        before = copy.deepcopy(config)
        one, other = read(config), read(config)
        assert config == before
        assert one == other, name
        assert hash(one.stacks) == hash(other.stacks)
        with pytest.raises(AttributeError):
            one.name = "another"  # type: ignore[misc]


# ---- schemes


def inputs(layer: LayerSettings, count: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    draw = seeded(0)
    q, k = (
        torch.randn(1, layer.heads, count, layer.head_dim, generator=draw)
        for _ in range(2)
    )
    if layer.encoding == "M-RoPE":
        return q, k, torch.arange(count)[None, :, None].expand(1, count, 3)
    if layer.encoding.startswith(("2-D", "window bias")):
        return (
            q,
            k,
            torch.stack((torch.arange(count) // 3, torch.arange(count) % 3), -1)[None],
        )
    return q, k, torch.arange(count)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_makes_a_scheme_that_attends(name: str) -> None:
    checkpoint = read(name)
    for layer in {layer for stack in checkpoint.stacks for layer in stack.layers}:
        q, k, positions = inputs(layer)
        scheme = layer.scheme(generator=seeded(0))
        mask = causal(torch.arange(6), torch.arange(6)) if layer.causal else None
        weights = attention_weights(
            q, k, q_positions=positions, k_positions=positions, scheme=scheme, mask=mask
        )
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    for stack in checkpoint.stacks:
        if stack.inputs is not None:
            embedding = stack.inputs.scheme().embedding
            assert embedding is not None
            positions = torch.arange(stack.inputs.rows - 3, stack.inputs.rows)
            assert embedding(positions).shape == (3, stack.inputs.dim)


@pytest.mark.parametrize(
    "name", ["llama-4-scout", "class-default-t5", "class-default-swin", "gpt2"]
)
def test_there_is_one_scheme_for_each_layer(name: str) -> None:
    for stack in read(name).stacks:
        schemes = stack.schemes()
        assert [scheme.name for scheme in schemes] == [
            layer.encoding for layer in stack.layers
        ]


def test_shifted_windows_of_patches() -> None:
    layer = read("class-default-swin").stacks[0].layers[1]
    mask = layer.scheme().mask
    assert mask is not None
    positions = torch.tensor(
        [(row, column) for row in range(14) for column in range(14)]
    )
    allowed = mask(positions, positions)
    for i in (0, 33, 100, 195):
        for j in range(196):
            same = all(
                (a - 3) // 7 == (b - 3) // 7
                for a, b in zip(
                    positions[i].tolist(), positions[j].tolist(), strict=True
                )
            )
            assert bool(allowed[i, j]) == same


def test_gemma_4_tower_turns_each_half_by_an_axis() -> None:
    vision = {
        "model_type": "gemma4_vision",
        "head_dim": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "position_embedding_size": 32,
        "rope_theta": 100.0,
    }
    config = {
        "model_type": "gemma4",
        "text_config": shipped()["gemma-4-e2b"],
        "vision_config": vision,
    }
    tower = read(config).stacks[1]
    q = normal(1, 2, 3, 8, seed=0)
    positions = torch.tensor([[0, 0], [2, 5], [7, 1]])
    transform, embedding = tower.layers[0].scheme().transform, tower.inputs
    assert transform is not None
    assert embedding is not None
    rotated, _ = transform(q, q, positions, positions)
    for token in range(3):
        for axis in range(2):
            for i in range(2):
                angle = positions[token, axis].item() * 100.0 ** (-2 * i / 4)
                first, second = 4 * axis + i, 4 * axis + i + 2
                a, b = q[0, 0, token, first].item(), q[0, 0, token, second].item()
                assert rotated[0, 0, token, first].item() == pytest.approx(
                    a * math.cos(angle) - b * math.sin(angle)
                )
                assert rotated[0, 0, token, second].item() == pytest.approx(
                    a * math.sin(angle) + b * math.cos(angle)
                )
    table = embedding.scheme().embedding
    assert table is not None
    assert table(positions).shape == (3, 16)


# ---- what must raise, and name its key


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 512,
}


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "model_type"),
    ({"model_type": "gpt5"}, "model_type"),
    ({"model_type": ["llama"]}, "model_type"),
    (llama(sliding_window=128), "sliding_window"),
    (llama(layer_types=["full_attention"] * 2), "layer_types"),
    (llama(layer_types=["sliding_attention"] * 3), "sliding_window"),
    (
        llama(rope_scaling={"rope_type": ["linear"], "factor": 2.0}),
        "rope_scaling.rope_type",
    ),
    (with_key("gpt-j-6b", "rope_scaling", {"rope_type": "gptj"}), "rope_scaling"),
    (with_key("gpt2", "rope_theta", 10000.0), "rope_theta"),
    (
        with_key(
            "class-default-modernbert",
            "rope_scaling",
            {"rope_type": "linear", "factor": 2.0},
        ),
        "rope_scaling",
    ),
    (
        with_key("qwen2.5-vl-3b", "vision_config.fullatt_block_indexes", 7),
        "vision_config.fullatt_block_indexes",
    ),
    (llama(rope_theta=None), "rope_theta"),
    (
        llama(rope_theta=None, rope_parameters={"rope_type": "default"}),
        "rope_parameters.rope_theta",
    ),
    (llama(rope_theta="10000"), "rope_theta"),
    (llama(rope_theta=-1.0), "rope_theta"),
    (llama(rope_theta=float("nan")), "rope_theta"),
    (llama(rope_theta=True), "rope_theta"),
    (llama(num_hidden_layers=None), "num_hidden_layers"),
    (llama(num_hidden_layers=0), "num_hidden_layers"),
    (llama(num_hidden_layers=2.0), "num_hidden_layers"),
    (llama(num_hidden_layers=3, n_layer=4), "n_layer"),
    (llama(max_position_embeddings=None), "max_position_embeddings"),
    (llama(hidden_size=66), "num_attention_heads"),
    (llama(head_dim=15), "head_dim"),
    (llama(rope_scaling={"rope_type": "ntk", "factor": 2.0}), "rope_scaling.rope_type"),
    (llama(rope_scaling={"type": "ntk", "factor": 2.0}), "rope_scaling.type"),
    (
        llama(rope_scaling={"type": "linear", "rope_type": "dynamic", "factor": 2.0}),
        "rope_scaling.type",
    ),
    (llama(rope_scaling={"rope_type": "linear"}), "rope_scaling.factor"),
    (
        llama(rope_scaling={"rope_type": "linear", "factor": 0.5}),
        "rope_scaling: factor",
    ),
    (llama(rope_scaling={"rope_type": "linear", "factor": "2"}), "rope_scaling.factor"),
    (
        llama(rope_scaling={"rope_type": "linear", "factor": 2.0, "finetuned": True}),
        "rope_scaling.finetuned",
    ),
    (llama(rope_scaling={"factor": 2.0}), "rope_scaling.factor"),
    (llama(rope_scaling="linear"), "rope_scaling"),
    (llama(rope_scaling={"rope_type": "dynamic"}), "rope_scaling.factor"),
    *[
        (llama(rope_scaling=without(YARN, key)), f"rope_scaling.{key}")
        for key in YARN
        if key != "rope_type"
    ],
    (
        llama(rope_scaling=YARN | {"beta_fast": 1, "beta_slow": 32}),
        "rope_scaling: beta_fast",
    ),
    (llama(rope_scaling=YARN | {"truncate": 1}), "rope_scaling.truncate"),
    (
        llama(rope_scaling=YARN | {"attention_factor": 0.0}),
        "rope_scaling.attention_factor",
    ),
    *[
        (llama(rope_scaling=without(LLAMA3, key)), f"rope_scaling.{key}")
        for key in LLAMA3
        if key != "rope_type"
    ],
    (
        llama(rope_scaling=LLAMA3 | {"high_freq_factor": 0.5}),
        "rope_scaling: high_freq_factor",
    ),
    (
        llama(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 512.5}),
        "rope_scaling.original_max_pos",
    ),
    *[
        (llama(rope_scaling=without(LONG, key)), f"rope_scaling.{key}")
        for key in LONG
        if key != "rope_type"
    ],
    (
        llama(rope_scaling=LONG | {"long_factor": [2.0] * 7}),
        "rope_scaling: long_factor",
    ),
    (llama(rope_scaling=LONG | {"short_factor": 1.0}), "rope_scaling.short_factor"),
    (
        llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        "rope_parameters.rope_theta",
    ),
    (
        llama(
            rope_scaling=LLAMA3,
            rope_parameters=LLAMA3 | {"factor": 32.0, "rope_theta": 1e4},
        ),
        "rope_parameters.factor",
    ),
    (
        llama(
            rope_scaling=LLAMA3,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        "rope_parameters.rope_type",
    ),
    (llama(rope_parameters={"full_attention": {"rope_theta": 1e4}}), "rope_parameters"),
    (llama(rope_parameters=[1]), "rope_parameters"),
    (llama(partial_rotary_factor=0.2), "partial_rotary_factor"),
    (llama(partial_rotary_factor=1.5), "partial_rotary_factor"),
    (
        llama(
            partial_rotary_factor=0.5,
            rope_theta=None,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.25,
            },
        ),
        "rope_parameters.partial_rotary_factor",
    ),
    (with_key("mistral-7b-v0.3", "sliding_window", 0), "sliding_window"),
    (
        with_key("mistral-7b-v0.3", "layer_types", ["sliding_attention"] * 32),
        "sliding_window",
    ),
    (
        with_key("mistral-7b-v0.3", "layer_types", ["full_attention"] * 31),
        "layer_types",
    ),
    (
        with_key("mistral-7b-v0.3", "layer_types", ["linear_attention"] * 32),
        r"layer_types\[0\]",
    ),
    (with_key("gpt-oss-20b", "layer_types", ["sliding_attention"] * 23), "layer_types"),
    (with_key("gpt-oss-20b", "layer_types", ...), "layer_types"),
    (with_key("gpt-oss-20b", "head_dim", ...), "head_dim"),
    (with_key("qwen3-0.6b", "head_dim", ...), "head_dim"),
    (
        with_key("qwen2-7b", "use_sliding_window", True) | {"max_window_layers": None},
        "max_window_layers",
    ),
    (with_key("gemma-2-2b", "query_pre_attn_scalar", ...), "query_pre_attn_scalar"),
    (
        with_key("gemma-3-4b", "text_config.rope_local_base_freq", ...),
        "text_config.rope_local_base_freq",
    ),
    (with_key("gemma-3-4b", "text_config.rope_theta", ...), "text_config.rope_theta"),
    (
        with_key("gemma-3-4b", "text_config.sliding_window_pattern", ...),
        "text_config.sliding_window_pattern",
    ),
    (
        with_key("gemma-3-4b", "text_config.rope_scaling.rope_type", "ntk"),
        "text_config.rope_scaling.rope_type",
    ),
    (
        with_key("gemma-3-4b", "vision_config.model_type", "clip"),
        "vision_config.model_type",
    ),
    (
        with_key("gemma-3-4b", "vision_config.image_size", 900),
        "vision_config.image_size",
    ),
    (
        with_key("gemma-4-e2b", "layer_types", ["sliding_attention"] * 35),
        r"layer_types\[-1\]",
    ),
    (with_key("gemma-4-e2b", "global_head_dim", ...), "global_head_dim"),
    (
        with_key("gemma-4-e2b", "rope_parameters.full_attention", ...),
        "rope_parameters.full_attention",
    ),
    (
        with_key(
            "gemma-4-e2b", "rope_parameters.full_attention.partial_rotary_factor", ...
        ),
        "rope_parameters.full_attention.partial_rotary_factor",
    ),
    (with_key("smollm3-3b", "no_rope_layers", [1, 1, 1, 0]), "no_rope_layers"),
    (with_key("smollm3-3b", "no_rope_layers", [2] * 36), r"no_rope_layers\[0\]"),
    (
        with_key("smollm3-3b", "no_rope_layers", ...)
        | {"no_rope_layer_interval": None},
        "no_rope_layer_interval",
    ),
    (
        with_key("llama-4-scout", "attn_temperature_tuning", ...),
        "attn_temperature_tuning",
    ),
    (with_key("llama-4-scout", "floor_scale", ...), "floor_scale"),
    (with_key("llama-4-scout", "attention_chunk_size", ...), "attention_chunk_size"),
    (
        with_key("qwen3-vl-8b", "text_config.rope_scaling.mrope_section", [24, 20, 19]),
        "text_config.*mrope_section",
    ),
    (
        with_key("qwen3-vl-8b", "text_config.rope_scaling.mrope_section", ...),
        "text_config.*mrope_section",
    ),
    (
        with_key("qwen3-vl-8b", "text_config.rope_scaling.mrope_interleaved", False),
        "text_config.*mrope_interleaved",
    ),
    (
        with_key("qwen2.5-vl-3b", "rope_scaling.mrope_section", [16, 24, 25]),
        "rope_scaling.mrope_section",
    ),
    (
        with_key("qwen2.5-vl-3b", "vision_config.window_size", 113),
        "vision_config.window_size",
    ),
    (with_key("deepseek-v3", "qk_rope_head_dim", ...), "qk_rope_head_dim"),
    (with_key("deepseek-v3", "rope_scaling.factor", ...), "rope_scaling.factor"),
    (
        with_key("phi-3.5-mini", "rope_scaling.original_max_position_embeddings", 8192),
        "rope_scaling.original",
    ),
    (
        with_key("phi-3.5-mini", "original_max_position_embeddings", ...),
        "rope_scaling.original_max_position",
    ),
    (with_key("gpt-j-6b", "rotary_dim", 300), "rotary_dim"),
    (with_key("gpt-j-6b", "rotary_dim", ...), "rotary_dim"),
    (with_key("pythia-14m", "rotary_pct", ...), "rotary_pct"),
    (with_key("pythia-14m", "rotary_emb_base", ...), "rotary_emb_base"),
    (
        with_key("class-default-glm", "partial_rotary_factor", ...),
        "partial_rotary_factor",
    ),
    (with_key("class-default-modernbert", "local_rope_theta", ...), "local_rope_theta"),
    (
        with_key("class-default-modernbert", "global_attn_every_n_layers", ...),
        "global_attn_every_n_layers",
    ),
    (with_key("class-default-modernbert", "local_attention", ...), "local_attention"),
    (
        with_key("class-default-cohere2", "sliding_window_pattern", ...),
        "sliding_window_pattern",
    ),
    (
        with_key("arctic-embed-m", "position_embedding_type", "relative_key"),
        "position_embedding_type",
    ),
    (with_key("class-default-roberta", "pad_token_id", ...), "pad_token_id"),
    (with_key("gpt2", "n_positions", ...), "max_position_embeddings or n_positions"),
    (
        with_key("gpt2", "scale_attn_by_inverse_layer_idx", True),
        "scale_attn_by_inverse_layer_idx",
    ),
    (
        with_key("class-default-t5", "relative_attention_max_distance", ...),
        "relative_attention_max_distance",
    ),
    (with_key("mpt-7b-instruct", "attn_config.alibi", ...), "attn_config.alibi"),
    (
        with_key("mpt-7b-instruct", "attn_config.alibi_bias_max", 16),
        "attn_config.alibi_bias_max",
    ),
    (
        with_key("mpt-7b-instruct", "attn_config.softmax_scale", 0.1),
        "attn_config.softmax_scale",
    ),
    (with_key("class-default-falcon", "alibi", ...), "alibi"),
    (with_key("deberta-v2-xxlarge", "pos_att_type", ["c2p"]), "pos_att_type"),
    (with_key("deberta-v2-xxlarge", "relative_attention", "no"), "relative_attention"),
    (llama(per_layer_config={"1": {"head_dim": 32}}), "per_layer_config"),
    (gemma4_by_layer({"04": {"head_dim": 512}}, only=True), "per_layer_config"),
    (gemma4_by_layer({"03": {"head_dim": 128}}), "per_layer_config"),
    (gemma4_by_layer({"04": {"sliding_window": 8}}), "per_layer_config"),
    (omni("thinker_config", ...), "thinker_config"),
    (
        omni("thinker_config.audio_config.n_window", ...),
        "thinker_config.audio_config.n_window",
    ),
    (
        omni("talker_config.rope_scaling.mrope_section", [1, 2]),
        "talker_config.rope_scaling.mrope_section",
    ),
    (
        omni("thinker_config.vision_config.fullatt_block_indexes", ...),
        "thinker_config.vision_config.fullatt",
    ),
    (with_key("class-default-xlnet", "clamp_len", ...), "clamp_len"),
    (
        with_key("class-default-whisper", "encoder_attention_heads", 5),
        "encoder_attention_heads",
    ),
    (with_key("class-default-swin", "num_heads", [3, 6, 12]), "num_heads"),
    (
        with_key("class-default-swin", "use_absolute_embeddings", True),
        "use_absolute_embeddings",
    ),
]


@pytest.mark.parametrize(
    ("config", "key"),
    REFUSED,
    ids=[f"{i}-{key}" for i, (_, key) in enumerate(REFUSED)],
)
def test_malformed_settings_raise_and_name_their_key(
    config: dict[str, Any], key: str
) -> None:
    with pytest.raises(ValueError, match=f"^{key}"):
        read(config)


def test_the_cases_above_are_malformed_by_one_key_alone() -> None:
    for scaling in (YARN, LLAMA3, LONG):
        read(llama(rope_scaling=scaling))
    for name in NAMES:
        read(name)


# ---- what a class fills in


def test_class_defaults_are_asked_for_and_named() -> None:
    config = without(shipped()["llama-2-7b"], "rope_theta")
    with pytest.raises(ValueError, match=r"^rope_theta is missing"):
        read(config)
    filled = read(config, class_defaults=True)
    assert filled.stacks == read("llama-2-7b").stacks
    assert filled.notes == ("from the class, not from the file: rope_theta",)


def test_class_defaults_complete_the_published_file_of_gemma_3() -> None:
    # All that google/gemma-3-4b-it states of its text.
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "text_config": inner}
    assert (
        read(config, class_defaults=True).stacks
        == read(with_key("gemma-3-4b", "vision_config", ...)).stacks
    )
    with pytest.raises(ValueError, match=r"^text_config\."):
        read(config)


def test_class_defaults_leave_a_complete_file_alone() -> None:
    new = llama(
        rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    assert read(new, class_defaults=True).stacks == read(llama(rope_theta=5e5)).stacks
    for name in (
        "llama-3.1-8b",
        "gemma-4-e2b",
        "gpt-oss-20b",
        "pythia-14m",
        "qwen3-vl-8b",
    ):
        assert read(name, class_defaults=True).stacks == read(name).stacks


def test_shipped_configurations_state_their_source() -> None:
    for name, config in shipped().items():
        assert len(config["source"]) > 20, name
        assert ("class defaults" in config["source"]) == name.startswith(
            "class-default-"
        ), name


def test_every_family_is_shipped_or_tested_here() -> None:
    kinds = {config["model_type"] for config in shipped().values()}
    inside = {
        part["model_type"]
        for config in shipped().values()
        for part in [config.get("text_config", {})]
        if part
    }
    tested = {
        "qwen2_vl",
        "qwen2_5_omni",
        "llama4",
        "gemma4",
        "gemma3",
        "gemma",
        "xlm-roberta",
    }
    assert set(FAMILIES) <= kinds | inside | tested
    assert read(
        shipped()["class-default-roberta"] | {"model_type": "xlm-roberta"}
    ).stacks == (read("class-default-roberta").stacks)
    assert decoder(llama(model_type="gemma", head_dim=256))[0].head_dim == 256


# ---- reports


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
@pytest.mark.parametrize("length", [1, 2, 257, 258, 2048, 2049, 2050, 8192, 70_000])
def test_collisions_against_a_loop(dtype: torch.dtype, bits: int, length: int) -> None:
    def rounded(m: int) -> float:
        step = max(1, 2 ** (m.bit_length() - bits))  # distance of neighbours at m
        down, rest = m - m % step, m % step
        even = (down // step) % 2 == 0
        nearest = (
            down if rest * 2 < step or (rest * 2 == step and even) else down + step
        )
        return math.inf if dtype == torch.float16 and nearest > 65504 else nearest

    seen = [rounded(m) for m in range(length)]
    first = next((m for m in range(1, length) if seen[m] == seen[m - 1]), None)
    assert collisions(length, dtype) == (first, len(set(seen)))


def test_bfloat16_has_897_integers_below_8192() -> None:
    assert collisions(8192, torch.bfloat16) == (257, 897)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([0], "0"),
        ([0, 1, 2], "0–2"),
        ([0, 2, 4], "0, 2, 4"),
        (list(range(0, 20, 2)), "0, 2, …, 18"),
        ([0, 1, 3, 4, 6, 7, 9, 10, 12], "0–1, 3–4, …, 12"),
    ],
)
def test_rows_of_layers_in_words(indices: list[int], expected: str) -> None:
    assert indices_text(indices) == expected


@pytest.mark.parametrize("name", NAMES)
def test_reports_fit_80_columns_and_name_every_layer(name: str) -> None:
    checkpoint = read(name)
    report = text(checkpoint)
    assert max(map(len, report.splitlines())) <= 80
    assert str(checkpoint) == report
    data = json.loads(json.dumps(as_dict(checkpoint)))
    for stack, listed in zip(checkpoint.stacks, data["stacks"], strict=True):
        assert len(listed["layers"]) == len(stack.layers)
        for rotation, numbers in zip(
            rotations(stack), listed["rotations"], strict=True
        ):
            assert len(numbers["wavelengths"]) == len(rotation.wavelengths())
            for frequency, wave in zip(
                numbers["frequencies"], numbers["wavelengths"], strict=True
            ):
                assert (wave is None and frequency == 0) or wave == pytest.approx(
                    2 * math.pi / frequency
                )


def test_report_of_llama_3_1() -> None:
    report = text(read("llama-3.1-8b"))
    for part in (
        "layers 0–31 (32)",
        "θ = 500,000",
        "29 pairs unchanged, 6 blended, 29 divided by 8",
        "29 of 64 pairs never turn once in 8,192 (before scaling)",
        "257 = 256 is the first collision",
    ):
        assert part in report


def test_differences() -> None:
    lines = differences(read("llama-3-8b"), read("llama-3.1-8b"))
    assert "decoder: length 8,192 → 131,072" in lines
    assert "decoder: layers 0–31: rotation kind default → llama3" in lines
    assert differences(read("llama-3.1-8b"), read("llama-3.1-8b")) == []
    gemma = differences(read("gemma-3-1b"), read("gemma-3-4b"))
    assert "vision: none → there" in gemma
    assert "decoder: layers 26 → 34" in gemma
    assert any(
        line.startswith("decoder: layers 5, 11, 17, 23: rotation kind")
        for line in gemma
    )


def test_figures_draw_every_group_and_rotation() -> None:
    drawn = figure(read("gemma-3-1b"))
    left, right = drawn.axes
    assert len(left.patches) == 26
    assert len(right.lines) == 3
    assert len(figure(read("gpt2")).axes) == 2
