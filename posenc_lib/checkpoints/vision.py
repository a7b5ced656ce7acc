"""Image towers and image models: from a configuration to each layer's settings.

What a tower's code fixes and no configuration states is written here, with the model's
name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from posenc_lib.checkpoints.model import InputSettings, LayerSettings, Stack
from posenc_lib.checkpoints.parse import Section, head_dim, rotation, uniform_entry


def siglip_tower(config: Section) -> tuple[Stack, ...]:
    """SigLIP's image tower: a learned row for each patch, without a class token."""
    return _patches(config, class_tokens=0)


def vit(config: Section) -> tuple[Stack, ...]:
    """ViT: a learned row for the class token and for each patch."""
    return _patches(config, class_tokens=1)


def llama4_tower(config: Section) -> tuple[Stack, ...]:
    """Llama 4's image tower: 2-D RoPE over (column, row) from 1, a learned table."""
    size, heads = head_dim(config), config.whole("num_attention_heads")
    entry, path = uniform_entry(config)
    base = rotation(config, (entry, path), size).base
    layer = LayerSettings(
        "2-D RoPE",
        heads,
        size,
        causal=False,
        options=(("base", base), ("layout", "interleaved")),
    )
    return (
        _tower(config, [layer] * config.whole("num_hidden_layers"), _grid(config) + 1),
    )


def qwen_tower(config: Section) -> tuple[Stack, ...]:
    """Qwen's image towers: 2-D RoPE over (row, column), on some layers in windows."""
    heads = config.whole("num_attention_heads")
    width = config.whole(
        "embed_dim" if config.get("embed_dim") is not None else "hidden_size"
    )
    if width % heads or (width // heads) % 4:
        raise ValueError(
            f"{config.named('num_heads')} must leave a multiple of 4 channels a head, "
            f"got {heads}"
        )
    base = 1e4
    if config.get("rope_parameters"):  # in files of newer versions
        base = rotation(
            config,
            uniform_entry(config, names={"axial": "default"}),
            width // heads // 2,
        ).base
    layer = LayerSettings(
        "2-D RoPE",
        heads,
        width // heads,
        causal=False,
        options=(("base", base), ("layout", "half")),
    )
    count = config.whole("depth")
    layers = [layer] * count
    if config.get("window_size") is not None:
        full = config.need("fullatt_block_indexes")
        if not isinstance(full, list):
            raise ValueError(
                f"{config.named('fullatt_block_indexes')} must be a list of layers, "
                f"got {full!r}"
            )
        side, patch = config.whole("window_size"), config.whole("patch_size")
        if side % patch:
            raise ValueError(
                f"{config.named('window_size')} must be a multiple of patch_size = "
                f"{patch}, got {side}"
            )
        local = replace(layer, patches=(side // patch, 0))
        layers = [layer if i in full else local for i in range(count)]
    tower = Stack("vision", tuple(layers), None)
    if config.get("num_position_embeddings") is None:
        return (tower,)
    rows = config.whole("num_position_embeddings")
    note = "the learned grid is resized to each image, then RoPE is applied as well"
    return (
        replace(tower, inputs=InputSettings("learned", rows, width), notes=(note,)),
    )


def gemma4_tower(config: Section) -> tuple[Stack, ...]:
    """Gemma 4's image tower: half of the channels and a learned table for each axis."""
    size, heads = config.whole("head_dim"), config.whole("num_attention_heads")
    entry, path = uniform_entry(config, names={"axial": "default"})
    base = rotation(config, (entry, path), size // 2).base
    layer = LayerSettings(
        "2-D RoPE, axis by axis",
        heads,
        size,
        causal=False,
        scale=1.0,
        options=(("base", base),),
    )
    rows, width = config.whole("position_embedding_size"), config.whole("hidden_size")
    layers = (layer,) * config.whole("num_hidden_layers")
    return (
        Stack(
            "vision",
            layers,
            rows,
            inputs=InputSettings("learned, one table an axis", rows, width),
        ),
    )


def swin(config: Section) -> tuple[Stack, ...]:
    """Swin: windows of patches, every other one shifted, and a learned bias."""
    config.only(
        "use_absolute_embeddings", (False,), "its learned table is not modelled here"
    )
    depths, heads = config.need("depths"), config.need("num_heads")
    side = config.whole("window_size")
    if (
        not isinstance(depths, list)
        or not isinstance(heads, list)
        or len(depths) != len(heads)
    ):
        raise ValueError(
            f"{config.named('num_heads')} must be a list as long as depths = "
            f"{depths!r}, got {heads!r}"
        )
    width = config.whole("embed_dim")
    resolution = config.whole("image_size") // config.whole("patch_size")
    layers, patches = [], resolution**2
    for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
        if (width << stage) % count:
            raise ValueError(
                f"{config.named('num_heads')}[{stage}] must divide {width << stage}, "
                f"got {count}"
            )
        for i in range(depth):
            inside = min(side, resolution)
            shift = side // 2 if i % 2 and resolution > side else 0
            window = (("window", (inside, inside)),)
            size = (width << stage) // count
            layers.append(
                LayerSettings(
                    "window bias",
                    count,
                    size,
                    patches=(inside, shift),
                    causal=False,
                    options=window,
                )
            )
        resolution = (resolution + 1) // 2  # two by two patches become one
    return (Stack("vision", tuple(layers), patches),)


def _grid(config: Section) -> int:
    image, patch = config.whole("image_size"), config.whole("patch_size")
    if image % patch:
        raise ValueError(
            f"{config.named('image_size')} must be a multiple of patch_size = {patch}, "
            f"got {image}"
        )
    return (image // patch) ** 2


def _tower(config: Section, layers: list[LayerSettings], rows: int) -> Stack:
    table = InputSettings("learned", rows, config.whole("hidden_size"))
    return Stack("vision", tuple(layers), rows, inputs=table)


def _patches(config: Section, *, class_tokens: int) -> tuple[Stack, ...]:
    layer = LayerSettings(
        "NoPE", config.whole("num_attention_heads"), head_dim(config), causal=False
    )
    return (
        _tower(
            config,
            [layer] * config.whole("num_hidden_layers"),
            _grid(config) + class_tokens,
        ),
    )


TOWERS: dict[str, Callable[[Section], tuple[Stack, ...]]] = {
    "siglip_vision_model": siglip_tower,
    "llama4_vision_model": llama4_tower,
    "gemma4_vision": gemma4_tower,
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_vl_vision", "qwen2_5_vl", "qwen2_5_vl_vision"), qwen_tower
    ),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_vision"), qwen_tower),
    "qwen2_5_omni_vision_encoder": qwen_tower,
}


def image_tower(config: Section) -> tuple[Stack, ...]:
    """The image tower, if any; older Qwen files leave its type to the model's."""
    if config.get("vision_config") is None:
        return ()
    tower = config.section("vision_config")
    kind = tower.get("model_type") or config.get("model_type")
    if not isinstance(kind, str) or kind not in TOWERS:
        raise ValueError(
            f"{tower.named('model_type')} must be one "
            f"of {', '.join(map(repr, TOWERS))}; got {kind!r}"
        )
    return TOWERS[kind](tower)
