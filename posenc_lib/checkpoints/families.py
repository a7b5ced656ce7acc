"""From a configuration to the settings of each layer, a function for each family.

Families share a function where their models truly agree. What a model's code fixes and
no configuration states is written here, with the model's name: the order of
channels, the base of GPT-J, which of Gemma 2's layers are local. What a configuration
states is never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from posenc_lib.checkpoints.model import (
    InputEncoding,
    InputSettings,
    LayerSettings,
    RotationSettings,
    Stack,
)
from posenc_lib.checkpoints.parse import (
    LAYER_KINDS,
    Section,
    every,
    head_dim,
    layer_kinds,
    rotation,
    rotation_entries,
    uniform_entry,
)
from posenc_lib.checkpoints.vision import image_tower, swin, vit
from posenc_lib.rotary.pairs import Layout
from posenc_lib.rotary.scaling import deepseek_softmax_scale

FULL, SLIDING, CHUNKED = LAYER_KINDS
Family = Callable[[Section], tuple[Stack, ...]]


# ---- decoders whose layers are all alike, or differ by a window alone


def rotary(
    config: Section,
    *,
    layout: Layout = "half",
    stated_head_dim: bool = False,
    partial_stated: bool = False,
    kinds: Callable[[Section], list[str]] | None = None,
    names: Mapping[str, str] | None = None,
    scale: Callable[[Section], float] | None = None,
) -> tuple[Stack, ...]:
    """Llama and its many relatives: one rotation for all layers, a window on some."""
    if stated_head_dim:
        config.need("head_dim")
    size, entry = head_dim(config), uniform_entry(config, names=names)
    if partial_stated and "partial_rotary_factor" not in entry[0]:
        config.need("partial_rotary_factor")
    settings = rotation(config, entry, size, layout=layout)
    base = LayerSettings(
        "RoPE",
        config.whole("num_attention_heads"),
        size,
        settings,
        scale=None if scale is None else scale(config),
    )
    chosen = unwindowed_kinds(config) if kinds is None else kinds(config)
    local = replace(base, window=_window(config)) if SLIDING in chosen else base
    return (
        _decoder(
            config, [local if kind == SLIDING else base for kind in chosen], settings
        ),
    )


def unwindowed_kinds(config: Section) -> list[str]:
    """Models whose code has no window, unless `layer_types` says which layers do."""
    if config.get("layer_types") is None:
        config.only("sliding_window", (), f"{config.get('model_type')} has no window")
    return layer_kinds(config, [FULL] * config.whole("num_hidden_layers"))


def mistral_kinds(config: Section) -> list[str]:
    """Mistral and Phi-3: a window on all layers, where there is one."""
    kind = FULL if config.get("sliding_window") is None else SLIDING
    return layer_kinds(config, [kind] * config.whole("num_hidden_layers"))


def qwen_kinds(config: Section) -> list[str]:
    """Qwen: a window if it is switched on, from layer `max_window_layers` on."""
    count = config.whole("num_hidden_layers")
    if config.get("layer_types") is None and config.get("use_sliding_window"):
        first = config.whole("max_window_layers", least=0)
        return [SLIDING if i >= first else FULL for i in range(count)]
    return layer_kinds(config, [FULL] * count)


def gemma2_kinds(config: Section) -> list[str]:
    """Gemma 2: every other layer is local, beginning with the first."""
    return layer_kinds(
        config, every(config.whole("num_hidden_layers"), 2, SLIDING, FULL)
    )


def gemma_scale(config: Section) -> float:
    """Gemma divides by the root of a stated number, not always the head's width."""
    return float(config.number("query_pre_attn_scalar") ** -0.5)


def gpt_oss(config: Section) -> tuple[Stack, ...]:
    """gpt-oss: window and full layers alternate; the sinks are part of the softmax."""
    stacks = rotary(config, stated_head_dim=True, kinds=lambda c: layer_kinds(c, None))
    note = "each head has a learned sink logit in its softmax, which holds no position"
    return (replace(stacks[0], notes=(*stacks[0].notes, note)),)


def phi3(config: Section) -> tuple[Stack, ...]:
    """Phi-3: LongRoPE under three names, its trained length beside `rope_scaling`."""
    names = {"su": "longrope", "yarn": "longrope"}
    original = config.get("original_max_position_embeddings")
    for key in ("rope_scaling", "rope_parameters"):
        entry = config.get(key)
        if (
            not isinstance(entry, Mapping)
            or original is None
            or "long_factor" not in entry
        ):
            continue
        inside = entry.get("original_max_position_embeddings", original)
        if inside != original:
            raise ValueError(
                f"{config.named(key)}.original_max_position_embeddings must agree with "
                f"{config.named('original_max_position_embeddings')} = {original!r}, "
                f"got {inside!r}"
            )
        config = Section(
            {
                **config.values,
                key: {**entry, "original_max_position_embeddings": original},
            },
            config.path,
        )
    return rotary(config, kinds=mistral_kinds, names=names)


def gpt_neox(config: Section) -> tuple[Stack, ...]:
    """GPT-NeoX: the first `rotary_pct` of each head's channels rotate."""
    size = head_dim(config)
    renamed = Section(
        {
            **config.values,
            "partial_rotary_factor": config.get("rotary_pct")
            or config.get("partial_rotary_factor"),
        },
        config.path,
    )
    entry = uniform_entry(renamed, theta="rotary_emb_base")
    if config.get("rotary_pct") is None and "partial_rotary_factor" not in entry[0]:
        config.need("rotary_pct")
    settings = rotation(renamed, entry, size)
    layer = LayerSettings("RoPE", config.whole("num_attention_heads"), size, settings)
    return (_decoder(config, [layer] * config.whole("num_hidden_layers"), settings),)


def gptj(config: Section) -> tuple[Stack, ...]:
    """GPT-J: `rotary_dim` channels in neighbouring pairs; the base is in its code."""
    size, part = head_dim(config), config.whole("rotary_dim", least=2)
    if part > size or part % 2:
        raise ValueError(
            f"{config.named('rotary_dim')} must be even and at most the head's {size}, "
            f"got {part}"
        )
    settings = RotationSettings(10000.0, part, layout="interleaved")
    layer = LayerSettings("RoPE", config.whole("num_attention_heads"), size, settings)
    return (_decoder(config, [layer] * config.whole("num_hidden_layers"), settings),)


def falcon(config: Section) -> tuple[Stack, ...]:
    """Falcon: RoPE or ALiBi; its code adds ALiBi's bias before the division by √d."""
    if not config.flag("alibi"):
        return rotary(config)
    size = head_dim(config)
    layer = LayerSettings(
        "ALiBi, scaled by 1/√d", config.whole("num_attention_heads"), size
    )
    layers = [layer] * config.whole("num_hidden_layers")
    return (
        replace(
            _decoder(config, layers, None),
            notes=("the released code rounds the bias to bfloat16",),
        ),
    )


# ---- latent attention


def deepseek(config: Section) -> tuple[Stack, ...]:
    """DeepSeek-V2 and V3: rotary channels after the content's; YaRN on softmax too."""
    content = config.whole("qk_nope_head_dim")
    rotated = config.whole("qk_rope_head_dim")
    entry, path = uniform_entry(config)
    layout: Layout = "half" if config.get("rope_interleave") is False else "interleaved"
    settings = rotation(config, (entry, path), rotated, layout=layout)
    scale = None
    if settings.kind != "default" and entry.get("mscale_all_dim"):
        scale = deepseek_softmax_scale(
            content + rotated,
            factor=entry["factor"],
            mscale_all_dim=entry["mscale_all_dim"],
        )
    layer = LayerSettings(
        "decoupled RoPE",
        config.whole("num_attention_heads"),
        content + rotated,
        settings,
        skipped=content,
        scale=scale,
    )
    return (_decoder(config, [layer] * config.whole("num_hidden_layers"), settings),)


# ---- decoders whose layers differ


def gemma3(config: Section) -> tuple[Stack, ...]:
    """Gemma 3: local layers rotate fast and unscaled, global ones are scaled."""
    if config.get("text_config") is not None:
        return (*gemma3(config.section("text_config")), *image_tower(config))
    config.need("head_dim")
    count, window = config.whole("num_hidden_layers"), _window(config)
    bidirectional = config.get("use_bidirectional_attention") is True
    if bidirectional:
        window = window // 2 + 1  # so many on each side
    usual = None
    if config.get("layer_types") is None:
        usual = every(count, config.whole("sliding_window_pattern"), SLIDING, FULL)
    old = {
        SLIDING: {"rope_theta": config.get("rope_local_base_freq")},
        FULL: {
            **(config.get("rope_scaling") or {}),
            "rope_theta": config.get("rope_theta"),
        },
    }
    if not config.get("rope_parameters") and config.get("rope_local_base_freq") is None:
        config.need("rope_local_base_freq")
    return _two_rotations(
        config,
        old,
        layer_kinds(config, usual),
        window,
        scale=gemma_scale(config),
        causal=not bidirectional,
    )


def gemma4(config: Section) -> tuple[Stack, ...]:
    """Gemma 4: like Gemma 3, but global heads are wider and rotate only fast pairs."""
    if config.get("text_config") is not None:
        return (*gemma4(config.section("text_config")), *image_tower(config))
    config.need("rope_parameters")
    config.only(
        "use_bidirectional_attention",
        (False, "vision"),
        "its masks are not modelled here",
    )
    kinds = layer_kinds(config, None)
    sizes = config.whole("head_dim"), _global_head_dim(config, kinds)
    if kinds[-1] != FULL:
        raise ValueError(
            f"{config.named('layer_types')}[-1] must be {FULL!r}, got {kinds[-1]!r}"
        )
    return _two_rotations(
        config,
        {SLIDING: {}, FULL: {}},
        kinds,
        _window(config),
        sizes=sizes,
        scale=1.0,
    )


def _global_head_dim(config: Section, kinds: list[str]) -> int:
    """Gemma 4's global head width: one key, or newer files' `per_layer_config`."""
    if not config.get("per_layer_config"):
        return config.whole("global_head_dim")
    per_layer = config.section("per_layer_config")
    widths: dict[str, dict[str, int]] = {FULL: {}, SLIDING: {}}
    for i, kind in enumerate(kinds):
        key = next(
            (key for key in per_layer.values if str(key).lstrip("0") == str(i or "")),
            None,
        )
        part = per_layer.section(key) if key is not None else Section({})
        for name in part.values:
            if name not in ("head_dim", "num_key_value_heads"):
                raise ValueError(f"{part.named(name)} is unknown for a single layer")
        size = (
            config.whole("head_dim")
            if part.get("head_dim") is None
            else part.whole("head_dim")
        )
        widths[kind][per_layer.named(key or str(i))] = size
    for kind, known in widths.items():
        first = (
            config.whole("head_dim") if kind == SLIDING else next(iter(known.values()))
        )
        for name, size in known.items():
            if size != first:
                raise ValueError(
                    f"{name}.head_dim must be {first} as in the other layers "
                    f"of {kind}, got {size}"
                )
    return int(next(iter(widths[FULL].values())))


def olmo3(config: Section) -> tuple[Stack, ...]:
    """OLMo 3: three layers with a window to one without, which alone is scaled."""
    base = {"rope_theta": config.get("rope_theta")}
    old = {SLIDING: base, FULL: {**(config.get("rope_scaling") or {}), **base}}
    usual = every(config.whole("num_hidden_layers"), 4, SLIDING, FULL)
    return _two_rotations(config, old, layer_kinds(config, usual), _window(config))


def modernbert(config: Section) -> tuple[Stack, ...]:
    """ModernBERT: `local_attention` counts both sides, ⌊w/2⌋ keys on each."""
    if config.get("layer_types") is None:
        period = config.whole("global_attn_every_n_layers")
        count = config.whole("num_hidden_layers")
        usual: list[str] | None = [
            SLIDING if i % period else FULL for i in range(count)
        ]
    else:
        usual = None
    old = {
        SLIDING: {"rope_theta": config.get("local_rope_theta")},
        FULL: {"rope_theta": config.get("global_rope_theta")},
    }
    if not config.get("rope_parameters"):
        config.need("local_rope_theta")
        config.need("global_rope_theta")
    config.only("rope_scaling", (), "a scaled ModernBERT is not modelled here")
    window = config.whole("local_attention") // 2 + 1
    stacks = _two_rotations(
        config, old, layer_kinds(config, usual), window, causal=False
    )
    return (replace(stacks[0], name="encoder"),)


def cohere2(config: Section) -> tuple[Stack, ...]:
    """Cohere 2: layers with a window rotate, the others have no positions."""
    size, heads = head_dim(config), config.whole("num_attention_heads")
    usual = None
    if config.get("layer_types") is None:
        usual = every(
            config.whole("num_hidden_layers"),
            config.whole("sliding_window_pattern"),
            SLIDING,
            FULL,
        )
    settings = rotation(config, uniform_entry(config), size, layout="interleaved")
    local = LayerSettings("RoPE", heads, size, settings, window=_window(config))
    layers = [
        local if kind == SLIDING else LayerSettings("NoPE", heads, size)
        for kind in layer_kinds(config, usual)
    ]
    return (_decoder(config, layers, settings),)


def smollm3(config: Section) -> tuple[Stack, ...]:
    """SmolLM3: layers with a 0 in `no_rope_layers` have no positions."""
    size, heads = head_dim(config), config.whole("num_attention_heads")
    settings = rotation(config, uniform_entry(config), size)
    rotated = LayerSettings("RoPE", heads, size, settings)
    plain = LayerSettings("NoPE", heads, size)
    if config.get("use_sliding_window"):
        plain = replace(plain, window=_window(config))
    layers = [rotated if rotates else plain for rotates in _rope_layers(config)]
    kinds = layer_kinds(
        config, [FULL if layer.window is None else SLIDING for layer in layers]
    )
    for i, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
        if (kind == SLIDING) != (layer.window is not None):
            raise ValueError(
                f"{config.named('layer_types')}[{i}] must agree "
                f"with use_sliding_window, got {kind!r}"
            )
    return (_decoder(config, layers, settings),)


def llama4(config: Section) -> tuple[Stack, ...]:
    """Llama 4 (iRoPE): layers rotate and see a chunk, or see all with a temperature."""
    if config.get("text_config") is not None:
        return (*llama4(config.section("text_config")), *image_tower(config))
    config.need("head_dim")
    size, heads = head_dim(config), config.whole("num_attention_heads")
    settings = rotation(config, uniform_entry(config), size, layout="interleaved")
    temperature = None
    if config.need("attn_temperature_tuning"):
        temperature = (config.whole("floor_scale"), config.number("attn_scale"))
    rope_layers = _rope_layers(config)
    chunked = (
        "attention_chunk_size" not in config.values
        or config.values["attention_chunk_size"] is not None
    )
    usual = [CHUNKED if rotates and chunked else FULL for rotates in rope_layers]
    layers = []
    for rotates, kind in zip(
        rope_layers, layer_kinds(config, usual, (FULL, CHUNKED)), strict=True
    ):
        layer = (
            LayerSettings("RoPE", heads, size, settings)
            if rotates
            else LayerSettings("NoPE", heads, size)
        )
        layer = replace(
            layer,
            chunk=config.whole("attention_chunk_size") if kind == CHUNKED else None,
        )
        layers.append(layer if rotates else replace(layer, temperature=temperature))
    return (_decoder(config, layers, settings),)


def qwen_vl(config: Section, *, interleaved: bool) -> tuple[Stack, ...]:
    """Qwen's image and text models: three axes, in blocks of pairs or interleaved."""
    text = (
        config if config.get("text_config") is None else config.section("text_config")
    )
    entry, path = uniform_entry(text, names={"mrope": "default"})
    if interleaved:
        text.need("head_dim")
        if entry.get("mrope_interleaved") is not True:
            raise ValueError(
                f"{path}.mrope_interleaved must be true, "
                f"got {entry.get('mrope_interleaved')!r}"
            )
    size = head_dim(text)
    extra = (
        ("mrope_section", "mrope_interleaved") if interleaved else ("mrope_section",)
    )
    settings = rotation(text, (entry, path), size, ignored=extra)
    sections = entry.get("mrope_section")
    if not isinstance(sections, list):
        raise ValueError(
            f"{path or text.named('rope_scaling')}.mrope_section must be a list "
            f"of three, got {sections!r}"
        )
    settings = replace(settings, sections=tuple(sections), interleaved=interleaved)
    try:
        settings.rope()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}.mrope_section: {error}") from error
    kinds = qwen_kinds(text)
    layer = LayerSettings("M-RoPE", text.whole("num_attention_heads"), size, settings)
    local = replace(layer, window=_window(text)) if SLIDING in kinds else layer
    decoder = _decoder(
        text, [local if kind == SLIDING else layer for kind in kinds], settings
    )
    return (decoder, *image_tower(config))


def qwen_omni(config: Section) -> tuple[Stack, ...]:
    """Qwen2.5-Omni: a thinker for text, images and sound, and a talker that speaks."""
    thinker = config.section("thinker_config")
    talker = qwen_vl(config.section("talker_config"), interleaved=False)[0]
    return (
        *qwen_vl(thinker, interleaved=False),
        sound_tower(thinker.section("audio_config")),
        replace(talker, name="talker"),
    )


def sound_tower(config: Section) -> Stack:
    """Qwen2.5-Omni's sound tower: Whisper's sinusoids, from 0 in each piece."""
    width, heads, piece = (
        config.whole(key)
        for key in ("hidden_size", "encoder_attention_heads", "n_window")
    )
    if width % heads:
        raise ValueError(
            f"{config.named('encoder_attention_heads')} must divide d_model = {width}, "
            f"got {heads}"
        )
    layers = (
        LayerSettings("NoPE", heads, width // heads, causal=False),
    ) * config.whole("encoder_layers")
    rows = config.whole("max_source_positions")
    note = (
        f"sound is cut into pieces of {piece} tokens, "
        "which see themselves alone and are counted from 0 each"
    )
    return Stack(
        "audio",
        layers,
        piece,
        inputs=InputSettings("sinusoidal, tensor2tensor", rows, width),
        notes=(note,),
    )


# ---- learned tables and sinusoids


def learned_encoder(config: Section, *, reserved: bool = False) -> tuple[Stack, ...]:
    """BERT, and RoBERTa, whose positions begin after the padding index."""
    config.only(
        "position_embedding_type", ("absolute",), "relative keys are not modelled here"
    )
    rows, width = config.whole("max_position_embeddings"), config.whole("hidden_size")
    first = config.whole("pad_token_id", least=0) + 1 if reserved else 0
    layer = LayerSettings(
        "NoPE", config.whole("num_attention_heads"), head_dim(config), causal=False
    )
    layers = (layer,) * config.whole("num_hidden_layers")
    return (
        Stack(
            "encoder",
            layers,
            rows - first,
            inputs=InputSettings("learned", rows, width, first),
        ),
    )


def learned_decoder(config: Section, *, first: int = 0) -> tuple[Stack, ...]:
    """GPT-2, and OPT, whose table has two rows before the first position."""
    config.only(
        "scale_attn_by_inverse_layer_idx",
        (False,),
        "a scale for each layer is not modelled here",
    )
    config.only(
        "scale_attn_weights", (True,), "scores without 1/√d are not modelled here"
    )
    length, width = config.whole("max_position_embeddings"), config.whole("hidden_size")
    layer = LayerSettings("NoPE", config.whole("num_attention_heads"), head_dim(config))
    layers = (layer,) * config.whole("num_hidden_layers")
    return (
        Stack(
            "decoder",
            layers,
            length,
            inputs=InputSettings("learned", length + first, width, first),
        ),
    )


def whisper(config: Section) -> tuple[Stack, ...]:
    """Whisper: tensor2tensor's sinusoids for sound, a learned table for text."""
    width = config.whole("hidden_size")
    stacks = []
    parts: tuple[tuple[str, str, InputEncoding], ...] = (
        ("encoder", "max_source_positions", "sinusoidal, tensor2tensor"),
        ("decoder", "max_target_positions", "learned"),
    )
    for name, key, encoding in parts:
        heads, rows = config.whole(f"{name}_attention_heads"), config.whole(key)
        if width % heads:
            raise ValueError(
                f"{config.named(f'{name}_attention_heads')} must divide d_model = "
                f"{width}, got {heads}"
            )
        layer = LayerSettings("NoPE", heads, width // heads, causal=name == "decoder")
        layers = (layer,) * config.whole(f"{name}_layers")
        stacks.append(
            Stack(name, layers, rows, inputs=InputSettings(encoding, rows, width))
        )
    return tuple(stacks)


# ---- biases and content


def t5(config: Section) -> tuple[Stack, ...]:
    """T5 and mT5: a bias for each bucket, one table for all layers, and no 1/√d."""
    heads, size = config.whole("num_attention_heads"), config.whole("head_dim")
    width = config.whole("hidden_size")
    sizes = (
        ("num_buckets", config.whole("relative_attention_num_buckets")),
        ("max_distance", config.whole("relative_attention_max_distance")),
        ("std", width**-0.5),
    )
    counts = {"encoder": config.whole("num_hidden_layers")}
    decoder = config.get("num_decoder_layers")
    counts["decoder"] = (
        counts["encoder"] if decoder is None else config.whole("num_decoder_layers")
    )
    stacks = []
    for name, count in counts.items():
        options = (("bidirectional", name == "encoder"), *sizes)
        layer = LayerSettings(
            "T5 bias", heads, size, causal=name == "decoder", scale=1.0, options=options
        )
        stacks.append(
            Stack(
                name,
                (layer,) * count,
                None,
                notes=("all layers share the first one's table",),
            )
        )
    return tuple(stacks)


def bloom(config: Section) -> tuple[Stack, ...]:
    """Bloom: ALiBi."""
    layer = LayerSettings(
        "ALiBi", config.whole("num_attention_heads"), head_dim(config)
    )
    length = None if config.get("seq_length") is None else config.whole("seq_length")
    return (Stack("decoder", (layer,) * config.whole("num_hidden_layers"), length),)


def mpt(config: Section) -> tuple[Stack, ...]:
    """MPT: ALiBi, or a learned table."""
    attention = config.section("attn_config")
    attention.only("softmax_scale", (), "another scale than 1/√d is not modelled here")
    attention.only(
        "prefix_lm", (False,), "a prefix without causal mask is not modelled here"
    )
    heads, size = config.whole("num_attention_heads"), head_dim(config)
    length = config.whole("max_seq_len")
    count = config.whole("num_hidden_layers")
    if not attention.flag("alibi"):
        if not config.flag("learned_pos_emb"):
            return (
                Stack("decoder", (LayerSettings("NoPE", heads, size),) * count, length),
            )
        table = InputSettings("learned", length, config.whole("hidden_size"))
        return (
            Stack(
                "decoder",
                (LayerSettings("NoPE", heads, size),) * count,
                length,
                inputs=table,
            ),
        )
    attention.need("alibi_bias_max")
    attention.only(
        "alibi_bias_max", (8,), "slopes of another series are not modelled here"
    )
    return (Stack("decoder", (LayerSettings("ALiBi", heads, size),) * count, length),)


def deberta_v2(config: Section) -> tuple[Stack, ...]:
    """DeBERTa v2 and v3: scores of content and distance, with or without buckets."""
    if not config.flag("relative_attention"):
        if config.flag("position_biased_input"):
            return learned_encoder(config)
        layer = LayerSettings(
            "NoPE", config.whole("num_attention_heads"), head_dim(config), causal=False
        )
        layers = (layer,) * config.whole("num_hidden_layers")
        return (Stack("encoder", layers, config.whole("max_position_embeddings")),)
    terms = config.need("pos_att_type")
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(terms, list) or {str(term).strip() for term in terms} != {
        "c2p",
        "p2c",
    }:
        raise ValueError(
            f"{config.named('pos_att_type')} must name c2p and p2c, "
            f"got {config.get('pos_att_type')!r}"
        )
    length, width = config.whole("max_position_embeddings"), config.whole("hidden_size")
    furthest = config.need("max_relative_positions")
    furthest = length if furthest < 1 else furthest
    buckets = config.get("position_buckets")
    bucketed = buckets is not None and buckets > 0
    options = (
        ("dim", width),
        ("span", buckets if bucketed else furthest),
        ("max_distance", furthest if bucketed else None),
    )
    heads, size = config.whole("num_attention_heads"), head_dim(config)
    scale = (3 * size) ** -0.5
    layer = LayerSettings(
        "disentangled (DeBERTa)",
        heads,
        size,
        causal=False,
        scale=scale,
        options=options,
    )
    layers = (layer,) * config.whole("num_hidden_layers")
    if not config.flag("position_biased_input"):
        return (Stack("encoder", layers, length),)
    return (
        Stack(
            "encoder", layers, length, inputs=InputSettings("learned", length, width)
        ),
    )


def transformer_xl(config: Section) -> tuple[Stack, ...]:
    """Transformer-XL and XLNet: a sinusoid of the distance, and four terms."""
    heads, size = config.whole("num_attention_heads"), head_dim(config)
    width = config.whole("hidden_size")
    clamp = config.need("clamp_len")
    if isinstance(clamp, bool) or not isinstance(clamp, int):
        raise ValueError(
            f"{config.named('clamp_len')} must be a whole number, got {clamp!r}"
        )
    bidirectional = config.get("attn_type") == "bi"
    layer = LayerSettings(
        "Transformer-XL",
        heads,
        size,
        causal=not bidirectional,
        options=(("dim", width), ("clamp_len", clamp)),
    )
    name = "encoder" if bidirectional else "decoder"
    return (Stack(name, (layer,) * config.whole("num_hidden_layers"), None),)


# ---- shared parts


def _window(config: Section) -> int:
    return config.whole("sliding_window")


def _decoder(
    config: Section, layers: list[LayerSettings], settings: RotationSettings | None
) -> Stack:
    length = config.whole("max_position_embeddings")
    trained = None if settings is None else settings.original_length
    notes: tuple[str, ...] = ()
    factor = None if settings is None else dict(settings.options).get("factor")
    if (
        trained is not None
        and settings is not None
        and settings.kind == "yarn"
        and factor != length / trained
    ):
        notes = (
            f"factor {factor:g} is not max_position_embeddings / "
            f"original_max_position_embeddings = {length / trained:g}; "
            "the factor counts",
        )
    return Stack("decoder", tuple(layers), length, trained, notes=notes)


def _two_rotations(
    config: Section,
    old: Mapping[str, Mapping[str, Any]],
    kinds: list[str],
    window: int,
    *,
    sizes: tuple[int, int] | None = None,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Stack, ...]:
    """Local layers with one rotation, global layers with another."""
    local_dim, global_dim = sizes or (head_dim(config),) * 2
    entries, heads = rotation_entries(config, old), config.whole("num_attention_heads")
    near = rotation(config, entries[SLIDING], local_dim)
    far = rotation(config, entries[FULL], global_dim)
    layers = {
        SLIDING: LayerSettings(
            "RoPE", heads, local_dim, near, window=window, scale=scale, causal=causal
        ),
        FULL: LayerSettings("RoPE", heads, global_dim, far, scale=scale, causal=causal),
    }
    return (_decoder(config, [layers[kind] for kind in kinds], far),)


def _rope_layers(config: Section) -> list[int]:
    """`no_rope_layers`, where 1 means that the layer rotates, or from its interval."""
    count = config.whole("num_hidden_layers")
    if config.get("no_rope_layers"):
        return config.row("no_rope_layers", count, (0, 1))
    interval = config.whole("no_rope_layer_interval")
    return [int((i + 1) % interval != 0) for i in range(count)]


WITHOUT_ROPE_SETTINGS = frozenset(
    (
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
        "transfo-xl",
    )
) | frozenset(("xlnet", "whisper", "vit", "swin"))


def stacks(config: Section) -> tuple[Stack, ...]:
    """The stacks of a configuration, by the family that its `model_type` names."""
    kind = config.need("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"model_type must be one of {', '.join(map(repr, sorted(FAMILIES)))}; "
            f"got {kind!r}"
        )
    if kind in WITHOUT_ROPE_SETTINGS:
        for key in ("rope_theta", "rope_scaling", "rope_parameters"):
            config.only(key, (), f"no setting of {kind} says how it rotates")
    if not kind.startswith("gemma4"):
        config.only(
            "per_layer_config",
            ({},),
            "settings for single layers are not modelled here",
        )
    return FAMILIES[kind](config)


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "olmo", "olmo2"), rotary),
    **dict.fromkeys(("mistral", "mixtral"), partial(rotary, kinds=mistral_kinds)),
    "qwen2": partial(rotary, kinds=qwen_kinds),
    "qwen3": partial(rotary, kinds=qwen_kinds, stated_head_dim=True),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), partial(qwen_vl, interleaved=False)),
    "qwen3_vl": partial(qwen_vl, interleaved=True),
    "qwen2_5_omni": qwen_omni,
    "gemma": partial(rotary, stated_head_dim=True),
    "gemma2": partial(
        rotary, stated_head_dim=True, kinds=gemma2_kinds, scale=gemma_scale
    ),
    **dict.fromkeys(("gemma3", "gemma3_text"), gemma3),
    **dict.fromkeys(("gemma4", "gemma4_text"), gemma4),
    **dict.fromkeys(("llama4", "llama4_text"), llama4),
    "phi3": phi3,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), deepseek),
    "gpt_oss": gpt_oss,
    "smollm3": smollm3,
    "cohere": partial(rotary, layout="interleaved"),
    "cohere2": cohere2,
    **dict.fromkeys(
        ("glm", "glm4"),
        partial(
            rotary, layout="interleaved", stated_head_dim=True, partial_stated=True
        ),
    ),
    "gptj": gptj,
    "gpt_neox": gpt_neox,
    "olmo3": olmo3,
    "modernbert": modernbert,
    "bert": learned_encoder,
    **dict.fromkeys(
        ("roberta", "xlm-roberta"), partial(learned_encoder, reserved=True)
    ),
    "gpt2": learned_decoder,
    "opt": partial(learned_decoder, first=2),
    **dict.fromkeys(("t5", "mt5"), t5),
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
    "deberta-v2": deberta_v2,
    **dict.fromkeys(("transfo-xl", "xlnet"), transformer_xl),
    "whisper": whisper,
    "vit": vit,
    "swin": swin,
}
