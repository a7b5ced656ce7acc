"""Golden cases and example schemes of rotations by several axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import seeded
from torch import Tensor
from torch.nn.functional import pad

from posenc_lib.frequencies import inverse_frequencies, pixel_frequencies
from posenc_lib.multimodal_positions import (
    AudioVideo,
    Block,
    Vision,
    mrope_positions,
    next_positions,
    place_rows,
    timestamped,
)
from posenc_lib.positions import centred_grid, grid, merged_grid, spanning_grid
from posenc_lib.rotary.multiaxis import (
    AxialRoPE,
    MixedRoPE,
    axial_frequencies,
    block_frequencies,
    dinov3_frequencies,
    golden_gate_frequencies,
    mrope_frequencies,
    mrope_interleaved_frequencies,
    pixtral_frequencies,
)
from posenc_lib.scheme import PositionScheme

Fields = dict[str, Tensor]


# ---- rotations


def half_tables(rope: AxialRoPE, positions: Tensor) -> Fields:
    """The peer has one entry a channel; in the half layout both halves are equal."""
    rotation = rope(positions)
    return {
        "cos": torch.cat((rotation.cos,) * 2, -1),
        "sin": torch.cat((rotation.sin,) * 2, -1),
    }


def rotated(rope: AxialRoPE, positions: Tensor, x: dict[str, Any]) -> Fields:
    q, k = torch.tensor(x["q"]), torch.tensor(x["k"])
    q, k = rope.transform(q, k, positions, positions)
    return {"q_embed": q, "k_embed": k}


def axes_last(x: list[Any]) -> Tensor:
    return torch.tensor(x).permute(1, 2, 0)  # (3, B, T) → (B, T, 3)


def mrope_sections_qwen2_vl(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    series = inverse_frequencies(p["head_dim"], p["rope_theta"])
    rope = AxialRoPE(mrope_frequencies(series, p["mrope_section"]), layout="half")
    positions = axes_last(x["position_ids_thw"])
    return half_tables(rope, positions) | rotated(rope, positions, x)


def mrope_interleaved_qwen3_vl(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    series = inverse_frequencies(p["head_dim"], p["rope_theta"])
    matrix = mrope_interleaved_frequencies(series, p["mrope_section"])
    rope, positions = AxialRoPE(matrix, layout="half"), axes_last(x["position_ids_thw"])
    owner = {"axis_of_frequency": (matrix != 0).int().argmax(0)}
    return half_tables(rope, positions) | rotated(rope, positions, x) | owner


def rope2d_pixtral(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = AxialRoPE(
        pixtral_frequencies(inverse_frequencies(p["head_dim"], p["rope_theta"])),
        layout="half",
    )
    positions = grid(p["grid"])
    assert positions.tolist() == x["position_ids_hw"]
    return half_tables(rope, positions) | rotated(rope, positions, x)


def rope2d_qwen2_vl_vision(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frames, height, width = p["grid_thw"][0]
    positions = merged_grid(height, width, p["spatial_merge_size"]).repeat(frames, 1)
    rope = AxialRoPE(
        axial_frequencies((p["head_dim"] // 4,) * 2, p["rope_theta"]), layout="half"
    )
    heads_first = {name: torch.tensor(x[name]).transpose(0, 1) for name in ("q", "k")}
    q, k = rope.transform(heads_first["q"], heads_first["k"], positions, positions)
    turned = {"q_embed": q.transpose(0, 1), "k_embed": k.transpose(0, 1)}
    return half_tables(rope, positions) | turned | {"position_ids_hw": positions}


def rope2d_dinov3(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = AxialRoPE(dinov3_frequencies(p["head_dim"], p["rope_theta"]), layout="half")
    patches = centred_grid(p["num_patches"])
    tokens = pad(
        patches, (0, 0, p["num_prefix_tokens"], 0)
    )  # a prefix token is at 0: not rotated
    return half_tables(rope, patches) | rotated(rope, tokens, x)


def complex_tables(rope: AxialRoPE, positions: Tensor) -> Tensor:
    rotation = rope(positions)
    return torch.complex(rotation.cos, rotation.sin)


def rope2d_llama4_vision(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = AxialRoPE(axial_frequencies((p["head_dim"] // 4,) * 2, p["rope_theta"]))
    patches = grid((p["grid"], p["grid"]), first=1).flip(-1)  # (column, row)
    positions = pad(patches, (0, 0, 0, 1))  # the class token comes last, at 0
    q, k = (torch.tensor(x[name]).transpose(1, 2) for name in ("q", "k"))
    q, k = rope.transform(q, k, positions, positions)
    turned = {"q_embed": q.transpose(1, 2), "k_embed": k.transpose(1, 2)}
    return {"freqs_ci": complex_tables(rope, positions)[:, None]} | turned


def rope2d_axial_rope_vit(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    rope = AxialRoPE(axial_frequencies((p["head_dim"] // 4,) * 2, p["theta"]))
    positions = grid((p["end_y"], p["end_x"])).flip(-1)
    return {"freqs_cis": complex_tables(rope, positions)} | rotated(rope, positions, x)


def rope2d_mixed_rope_vit(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    heads, pairs, depth = p["heads"], p["head_dim"] // 2, p["depth"]
    frequencies = (
        torch.tensor(x["freqs"]).reshape(2, depth, heads, pairs).permute(1, 2, 0, 3)
    )  # (depth, H, 2, d/2)
    positions = grid((p["end_y"], p["end_x"])).flip(-1)
    one = (
        torch.tensor([1.0, 0.0]).repeat(pairs).expand(1, heads, len(positions), -1)
    )  # 1 + 0i in every pair
    layers = [
        AxialRoPE(layer).transform(one, one, positions, positions)[0]
        for layer in frequencies
    ]
    return {
        "freqs_cis": torch.view_as_complex(torch.cat(layers).unflatten(-1, (pairs, 2)))
    }


def per_channel(table: Tensor) -> Tensor:
    return table.repeat_interleave(2, -1)


def rope2d_timm_eva_cat(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    assert p["grid_indexing"] == "ij"
    assert p["ref_feat_shape"] is None
    rope = AxialRoPE(axial_frequencies((p["dim"] // 4,) * 2, p["temperature"]))
    rotation = rope(grid(p["feat_shape"]) + p["grid_offset"])
    embed = torch.cat((per_channel(rotation.sin), per_channel(rotation.cos)), -1)
    return {"embed": embed, "out": rotation(torch.tensor(x["x"]))}


def rope2d_timm_pixel(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    bands = pixel_frequencies(
        p["dim"] // 4,
        p["max_res"],
        spacing="linear" if p["linear_bands"] else "geometric",
    )
    rotation = AxialRoPE(block_frequencies(bands, bands))(
        spanning_grid(p["feat_shape"])
    )
    return {"sin": per_channel(rotation.sin), "cos": per_channel(rotation.cos)}


def rope_axial_rotary_embedding_torch(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    matrix = block_frequencies(
        *[pixel_frequencies(p["dim"] // 2, p["max_freq"]) for _ in p["dims"]]
    )
    positions = spanning_grid(p["dims"])
    angles = per_channel(positions @ matrix).reshape(*p["dims"], -1)
    tokens = torch.tensor(x["t"])
    out = AxialRoPE(matrix)(positions)(tokens.flatten(1, 2)).reshape(tokens.shape)
    return {"axial_freqs": angles, "out": out}


# ---- position ids


def peer_ids(positions: Tensor) -> Tensor:
    return positions[None].permute(2, 0, 1)  # (T, 3) → (3, 1, T)


def rope_delta(
    positions: Tensor, tokens: Tensor | int, mask: Tensor | None = None
) -> Tensor:
    """The peer stores how far the next position is ahead of the number of tokens."""
    return (next_positions(positions, mask=mask)[..., 0, :1] - tokens).reshape(-1, 1)


def blocks_of(p: dict[str, Any], *, whole_seconds: bool) -> list[Block]:
    """The blocks of a case.

    Text, or a grid in merged units with seconds per frame; images have one frame.
    """
    blocks: list[Block] = []
    for kind, size, *rest in p["segments"]:
        seconds = int(rest[0]) if rest and whole_seconds else (rest or [1])[0]
        step = 1 if p["tokens_per_second"] is None else p["tokens_per_second"] * seconds
        blocks.append(
            size if kind == "t" else Vision(*size, step if kind == "v" else 1)
        )
    return blocks


def mrope_position_ids(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    fields = {}
    for version, following in (("v5", "longest side"), ("v4", "maximum")):
        positions = mrope_positions(
            blocks_of(p, whole_seconds=version == "v4"), following=following
        )
        fields[f"position_ids_{version}"] = peer_ids(positions)
        fields[f"rope_delta_{version}"] = rope_delta(positions, len(x["input_ids"][0]))
    return fields


def mrope_left_padded_batch(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frames, *sides = x["image_grid_thw"][0]
    image = Vision(frames, *(side // p["spatial_merge_size"] for side in sides))
    rows = [mrope_positions([2, image, 3]), mrope_positions([11])]
    mask = torch.tensor(x["attention_mask"])
    positions = place_rows(rows, mask)
    delta = rope_delta(positions, mask.sum(-1, keepdim=True), mask)
    return {"position_ids": positions.permute(2, 0, 1), "rope_delta": delta}


def mrope_position_ids_qwen3_vl_timestamps(
    p: dict[str, Any], x: dict[str, Any]
) -> Fields:
    frames, *sides = x["video_grid_thw"][0]
    video = Vision(frames, *(side // p["spatial_merge_size"] for side in sides))
    text = [size for kind, size in p["segments"] if kind == "t"]
    blocks = [*timestamped(video, text[:-1]), text[-1]]
    by_side, by_maximum = (
        mrope_positions(blocks, following=rule) for rule in ("longest side", "maximum")
    )
    return {
        "position_ids": peer_ids(by_side),
        "rope_delta": rope_delta(by_side, len(x["input_ids"][0])),
        "position_ids_max_plus_one_rule": peer_ids(by_maximum),
    }


def tmrope_audio_in_video(p: dict[str, Any], x: dict[str, Any]) -> Fields:
    frames, *sides = p["video_grid_thw_unmerged"]
    sides = [side // p["spatial_merge_size"] for side in sides]
    video = Vision(frames, *sides, p["position_id_per_seconds"] * p["second_per_grid"])
    chunk = int(p["position_id_per_seconds"] * p["seconds_per_chunk"])
    positions = mrope_positions([2, AudioVideo(video, p["audio_tokens"], chunk), 3])
    return {
        "position_ids": peer_ids(positions),
        "rope_delta": rope_delta(positions, len(x["input_ids"][0])),
    }


ADAPTERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Fields]] = {
    "mrope_interleaved_qwen3_vl": mrope_interleaved_qwen3_vl,
    "mrope_position_ids_qwen2_5_vl_a": mrope_position_ids,
    "mrope_position_ids_qwen2_5_vl_b": mrope_position_ids,
    "mrope_position_ids_qwen2_vl_a": mrope_position_ids,
    "mrope_position_ids_qwen2_vl_b": mrope_position_ids,
    "mrope_position_ids_qwen2_vl_left_padded_batch": mrope_left_padded_batch,
    "mrope_position_ids_qwen3_vl_timestamps": mrope_position_ids_qwen3_vl_timestamps,
    "mrope_sections_qwen2_vl": mrope_sections_qwen2_vl,
    "rope2d_axial_rope_vit": rope2d_axial_rope_vit,
    "rope2d_dinov3": rope2d_dinov3,
    "rope2d_llama4_vision": rope2d_llama4_vision,
    "rope2d_mixed_rope_vit": rope2d_mixed_rope_vit,
    "rope2d_pixtral": rope2d_pixtral,
    "rope2d_qwen2_vl_vision": rope2d_qwen2_vl_vision,
    "rope2d_timm_eva_cat": rope2d_timm_eva_cat,
    "rope2d_timm_pixel": rope2d_timm_pixel,
    "rope_axial_rotary_embedding_torch": rope_axial_rotary_embedding_torch,
    "tmrope_position_ids_qwen2_5_omni_audio_in_video": tmrope_audio_in_video,
}


# ---- example schemes: head_dim 8, 4 heads


def on_axes(
    rope: AxialRoPE | MixedRoPE, place: Callable[[Tensor], Tensor]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A transform of token numbers, each of which `place` puts at a point with several
    axes.
    """
    return lambda q, k, m, n: rope.transform(q, k, place(m), place(n))


def on_grid(width: int) -> Callable[[Tensor], Tensor]:
    return lambda p: torch.stack(
        (p.div(width, rounding_mode="floor"), p.remainder(width)), -1
    )


def _schemes() -> dict[str, PositionScheme]:
    series, draw = inverse_frequencies(8), seeded(0)
    images: dict[str, AxialRoPE | MixedRoPE] = {
        "axial RoPE on a grid": AxialRoPE(axial_frequencies((2, 2), 100.0)),
        "Pixtral's RoPE on a grid": AxialRoPE(
            pixtral_frequencies(series), layout="half"
        ),
        "golden-gate RoPE on a grid": AxialRoPE(
            golden_gate_frequencies(4, 8, slowest=0.2, fastest=20.0), layout="half"
        ),
        "mixed RoPE on a grid": MixedRoPE(4, 8, generator=draw),
    }
    return {
        name: PositionScheme(name, transform=on_axes(rope, on_grid(3)))
        for name, rope in images.items()
    }


SCHEMES: dict[str, PositionScheme] = _schemes()

# Token numbers run along the rows of a grid of width 3. Moving all tokens by one moves
# some to the next row, so the scores are relative in the two coordinates and not in the
# token number.
_GRID = "relative in row and column, not in the number of a token on a grid"
NOT: dict[tuple[str, str], str] = {
    **{(name, p): _GRID for name in SCHEMES for p in ("relative", "Toeplitz")},
    **{(name, "decays with distance"): "its cosines turn back up" for name in SCHEMES},
}
