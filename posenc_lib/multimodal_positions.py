"""Positions (time, height, width) of text with images, video and sound, for M-RoPE.

A sequence is described by its blocks: an int is a run of text tokens, `Vision` an image
or a video, `AudioVideo` a video with its sound. Markers around a block
(<|vision_start|> and the like) are text, and so is sound alone. Positions have the axes
last, (T, 3), where transformers puts them first. They are built on the CPU, once for
each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.positions import grid

Rule = Literal["maximum", "longest side"]


class Vision(NamedTuple):
    """An image or a video in a prompt: frames × height × width tokens.

    Equation: tokens = T · H · W,  t_f = trunc(f · step) for frame f

    Args:
        frames: T, after the temporal merge; 1 for an image.
        height: rows H of tokens: rows of patches over the merge size.
        width: columns W.
        step: positions from one frame to the next. 1 in Qwen2-VL; in Qwen2.5-VL
            `tokens_per_second` × seconds per frame, in Qwen2.5-Omni 25 × seconds per
            frame; VideoRoPE's δ. For Qwen2.5-VL transformers 4 cuts the seconds to an
            integer first (0.5 → 0), transformers 5 does not; `tokens_per_second *
            int(seconds)` is the former.

    Source: qwen2-vl, qwen2.5-vl
    Chapter: 15
    """

    frames: int
    height: int
    width: int
    step: float = 1


class AudioVideo(NamedTuple):
    """A video and its sound in alternating chunks of equal time, between markers.

    Equation: tokens = 2 + T · H · W + audio + 2, two markers before and two after

    Args:
        video: the video; its `step` is 25 × seconds per frame.
        audio: audio tokens, one position (40 ms) each.
        chunk: positions in a chunk: 25 a second, two seconds.

    Source: xu2025
    Chapter: 17
    """

    video: Vision
    audio: int
    chunk: int = 50


Block = int | Vision | AudioVideo


def equal_axes(positions: Tensor, axes: int = 3) -> Tensor:
    """Text, for an encoding with several axes: the same position on each.

    Equation: p_a = p for all a
    Shapes: (..., T) → (..., T, axes)

    On text M-RoPE is then plain RoPE.

    Args:
        positions: of the tokens: (T,) or (B, T).
        axes: number of axes, at least 1.

    Raises:
        TypeError, ValueError: positions of another dtype; `axes` is not an integer ≥ 1.

    Source: qwen2-vl
    Chapter: 15
    """
    _checks.whole_number("axes", axes, least=1)
    positions = _checks.position_tensor("positions", positions)
    return torch.stack([positions] * axes, -1)  # a copy: an axis may be changed alone


def mrope_positions(
    blocks: Sequence[Block],
    *,
    following: Rule = "maximum",
    start: int = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Positions of a prompt for M-RoPE and TMRoPE: text counts on all three axes alike.

    Equation: text: (p, p, p), p = s, s+1, …;
        vision: s + (trunc(f · step), row, column), the column fastest;
        after vision s ← max + 1 ("maximum") or s + max(H, W) ("longest side")
        (qwen2-vl §2.1)
    Shapes: → (T, 3), int64

    "maximum" is the papers' rule and transformers 4's. transformers 5 has "longest
    side": the same for images, but text after a video with more temporal positions than
    rows and columns then overlaps the video's. f · step is a product in float64; the
    released code has float32, which can differ where the product falls on an integer.

    Args:
        blocks: the prompt, as described in this module's first lines.
        following: where the block after vision starts, "maximum" or "longest side".
        start: position of the first token, at least 0.
        device: where the result is.

    Raises:
        TypeError, ValueError: no blocks; a block of another kind, or with a size that
            is not an integer ≥ 1; an unknown rule.

    Source: qwen2-vl, qwen2.5-vl, xu2025
    Checked: golden
    Chapter: 15
    """
    _checks.one_of("following", following, get_args(Rule))
    position = _checks.whole_number("start", start, least=0)
    parts = []
    for block in _blocks(blocks):
        if isinstance(block, Vision):
            part = vision_block(block, position)
            if following == "longest side":
                position += max(block.height, block.width)
            else:
                position = int(part.max()) + 1
        elif isinstance(block, AudioVideo):
            part = audio_video_block(block, position)
            position = int(part[-1, 0]) + 1
        else:
            part = equal_axes(torch.arange(position, position + block, device="cpu"))
            position += block
        parts.append(part)
    return torch.cat(parts).to(device)


def vision_block(vision: Vision, start: int = 0) -> Tensor:
    """Positions of an image or a video.

    Equation: p = start + (trunc(f · step), row, column), the column fastest
    Shapes: → (T·H·W, 3), int64, on the CPU

    Args:
        vision: the block.
        start: position of its first token.

    Raises:
        TypeError, ValueError: as `mrope_positions`.

    Source: qwen2-vl, qwen2.5-vl
    Chapter: 15
    """
    _checks.whole_number("start", start, least=0)
    _check_vision("vision", vision)
    times = [int(f * vision.step) for f in range(vision.frames)]
    index = grid((vision.frames, vision.height, vision.width), device="cpu")
    time = torch.tensor(times, device="cpu")[index[:, :1]]  # (T·H·W, 1)
    return start + torch.cat((time, index[:, 1:]), -1)


def audio_video_block(block: AudioVideo, start: int = 0) -> Tensor:
    """Positions of a video and its sound, chunk by chunk: TMRoPE's interleaving.

    Equation: both opening markers at s; video s + 1 + (trunc(f · step), row, column),
        audio s + 1 + i on all axes; the first chunk of the video, the first of the
        audio, the second of the video, …; both closing markers at (maximum of the last
        piece) + 1      (xu2025)
    Shapes: → (2 + T·H·W + audio + 2, 3), int64, on the CPU

    A chunk ends before the first token that is at c · chunk or later, c = 1, 2, …, but
    one token ends one chunk only: a video with less than one frame a chunk gets pieces
    of single tokens. The processor of the released model orders the tokens so, hence
    the positions must follow. The closing markers look at the last piece, not at all:
    sound that ends before the video in the last chunk leaves them below the video's
    last positions.

    Args:
        block: video, sound and chunk.
        start: position of the opening markers.

    Raises:
        TypeError, ValueError: as `mrope_positions`.

    Source: xu2025
    Checked: golden
    Chapter: 17
    """
    _check_audio_video("block", block)
    video = vision_block(block.video, _checks.whole_number("start", start, least=0) + 1)
    audio = equal_axes(torch.arange(start + 1, start + 1 + block.audio, device="cpu"))
    pieces = [torch.full((2, 3), start, device="cpu")]
    chunks = [_chunks(part, start + 1, block.chunk) for part in (video, audio)]
    for number in range(max(len(chunk) for chunk in chunks)):
        pieces += [chunk[number] for chunk in chunks if number < len(chunk)]
    closing = torch.full((2, 3), int(pieces[-1].max()) + 1, device="cpu")
    return torch.cat((*pieces, closing))


def timestamped(video: Vision, text: Sequence[int]) -> list[Block]:
    """Qwen3-VL's video: every frame is an image after a timestamp written as text.

    Equation: (T, H, W) → n_1, (1, H, W), n_2, (1, H, W), …
    Shapes: → blocks for `mrope_positions`

    The words then hold the time, and the temporal axis is constant within a frame: both
    rules of `mrope_positions` agree.

    Args:
        video: the video; its step is not used.
        text: tokens before each frame: the previous frame's end marker, the timestamp,
            the start marker.

    Raises:
        TypeError, ValueError: as `mrope_positions`; `text` does not have one number
            for each frame.

    Source: qwen3-vl
    Checked: golden
    Chapter: 15
    """
    _check_vision("video", video)
    if len(_checks.sequence("text", text)) != video.frames:
        raise ValueError(
            f"text must have one number for each of the {video.frames} frames, got "
            f"{len(text)}"
        )
    frame = Vision(1, video.height, video.width)
    return [
        block
        for f, n in enumerate(text)
        for block in (_checks.whole_number(f"text[{f}]", n, least=1), frame)
    ]


def videorope_positions(
    blocks: Sequence[int | Vision],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Positions of a prompt for VideoRoPE: frames are centred on the text's diagonal.

    Equation: vision: τ = s + δ f,
        p = (τ, τ + row − ⌊(H−1)/2⌋, τ + column − ⌊(W−1)/2⌋);
        text as in `mrope_positions`; after a block s ← (its last τ) + 1
        (wei2025; the paper's text is not available to us)
    Shapes: → (T, 3)

    Args:
        blocks: text as ints and `Vision`, whose step is δ and may be a fraction.
        dtype: float64, or float32 for a device without it.
        device: where the result is.

    Raises:
        TypeError, ValueError: as `mrope_positions`; a block of audio; a dtype with 16
            bits.

    Source: wei2025
    Checked: Wiselnn570/VideoRoPE@7712ca3f52b7:
        videorope-transformer/modeling_videorope.py:
        Qwen2VLForConditionalGeneration.get_t_scale_rope_index
    Chapter: 17
    """
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    start, parts = 0.0, []
    for number, block in enumerate(_blocks(blocks)):
        if isinstance(block, AudioVideo):
            raise TypeError(
                f"blocks[{number}] must be an integer or a Vision, got {block!r}"
            )
        if isinstance(block, Vision):
            index = grid((block.frames, block.height, block.width), device="cpu")
            index = index.to(torch.float64)
            tau = start + index[:, :1] * block.step  # (T·H·W, 1)
            middle = [(block.height - 1) // 2, (block.width - 1) // 2]
            offset = index[:, 1:] - torch.tensor(middle, device="cpu")
            parts.append(torch.cat((tau, tau + offset), -1))
            start += block.step * (block.frames - 1) + 1
        else:
            count = torch.arange(block, dtype=torch.float64, device="cpu")
            parts.append(equal_axes(start + count))
            start += block
    return torch.cat(parts).to(dtype).to(device)


def place_rows(rows: Sequence[Tensor], mask: Tensor, *, padding: int = 0) -> Tensor:
    """The positions of a padded batch, from those of each prompt.

    Equation: p_{b,t} = the next position of row b where mask is True, and `padding`
        elsewhere
    Shapes: rows (T_b, axes), mask (B, T) → (B, T, axes)

    Args:
        rows: positions of each prompt: `mrope_positions(blocks)`.
        mask: (B, T), True (or 1) for a token, False (or 0) for padding on either side.
        padding: position of padding slots; keys there are masked, so any will do.

    Raises:
        TypeError, ValueError: `mask` is not a (B, T) tensor of two values; rows of
            another number, length or shape; `padding` is not an integer.

    Source: qwen2-vl
    Chapter: 15
    """
    if isinstance(padding, bool) or not isinstance(padding, _checks.INTEGERS):
        raise TypeError(f"padding must be an integer, got {padding!r}")
    real = _checks.token_mask("mask", mask)
    counts = real.sum(-1).tolist()
    if len(_checks.sequence("rows", rows)) != len(counts):
        raise ValueError(
            f"rows must have one entry for each of the {len(counts)} rows of mask, got "
            f"{len(rows)}"
        )
    for b, (row, count) in enumerate(zip(rows, counts, strict=True)):
        _checks.position_tensor(f"rows[{b}]", row)
        if row.dim() != 2 or row.shape != (count, rows[0].shape[-1]):
            raise ValueError(
                f"rows[{b}] must have shape ({count}, axes), one position for each "
                "True in mask and as many axes as the other rows; got "
                f"{tuple(row.shape)}"
            )
    flat = torch.cat(list(rows)).to(mask.device)
    out = flat.new_full((*real.shape, flat.shape[-1]), padding)
    out[real] = flat
    return out


def next_positions(
    positions: Tensor,
    steps: int = 1,
    *,
    mask: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """Positions of the next decoding steps: text follows the largest position.

    Equation: p_s = max over real tokens and axes + 1 + s on all axes,  s = 0 … steps−1
    Shapes: positions (T, axes) → (steps, axes);
        positions (B, T, axes), mask (B, T) → (B, steps, axes)

    The number of tokens does not tell it. The released `rope_delta` is this maximum + 1
    minus the number of real tokens in transformers 5, and minus the padded length in
    transformers 4 and VideoRoPE.

    Args:
        positions: of the prompt.
        steps: how many tokens follow, at least 1: more than one for drafted tokens.
        mask: (B, T) as in `place_rows`; all tokens are real by default.
        axis: the one axis whose maximum counts, as in VideoRoPE (0, time); all axes by
            default.

    Raises:
        TypeError, ValueError: positions or mask of another shape; a row of padding
            alone; `steps` is not an integer ≥ 1; no such axis.

    Source: qwen2-vl, wei2025
    Checked: huggingface/transformers@00b676f8f048:
        src/transformers/models/qwen2_vl/modeling_qwen2_vl.py:
        Qwen2VLModel.get_rope_index
    Chapter: 15
    """
    _checks.whole_number("steps", steps, least=1)
    positions = _checks.coordinates("positions", positions, batched=True)
    axes = positions.shape[-1]
    if axis is not None:
        if not 0 <= _checks.whole_number("axis", axis, least=0) < axes:
            raise ValueError(
                f"axis must be below the {axes} axes of positions, got {axis}"
            )
        positions = positions[..., axis : axis + 1]
    largest = positions.amax(-1)  # (T,) or (B, T)
    if mask is not None:
        real = _checks.token_mask("mask", mask)
        if real.shape != largest.shape:
            raise ValueError(
                f"mask must have shape (B, T) = {tuple(largest.shape)}, got "
                f"{tuple(real.shape)}"
            )
        if values_known(real) and not bool(real.any(-1).all()):
            raise ValueError(
                "mask must have a token in every row, got a row of padding, after "
                "which nothing follows"
            )
        largest = torch.where(real, largest, largest.amin())
    ahead = 1 + torch.arange(steps, device=positions.device)
    return equal_axes(largest.amax(-1, keepdim=True) + ahead, axes)


# ---- helpers


def _blocks(blocks: Sequence[Block]) -> Sequence[Block]:
    if len(_checks.sequence("blocks", blocks)) == 0:
        raise ValueError("blocks must describe at least one token, got none")
    for number, block in enumerate(blocks):
        name = f"blocks[{number}]"
        if isinstance(block, Vision):
            _check_vision(name, block)
        elif isinstance(block, AudioVideo):
            _check_audio_video(name, block)
        elif isinstance(block, bool) or not isinstance(block, _checks.INTEGERS):
            raise TypeError(
                f"{name} must be an integer (tokens of text), a Vision or an "
                f"AudioVideo, got {block!r}"
            )
        else:
            _checks.whole_number(name, block, least=1)
    return blocks


def _check_vision(name: str, value: Vision) -> None:
    if not isinstance(value, Vision):
        raise TypeError(
            f"{name} must be a Vision(frames, height, width, step), got {value!r}"
        )
    for field in ("frames", "height", "width"):
        _checks.whole_number(f"{name}.{field}", getattr(value, field), least=1)
    # 0 puts all frames at one position: transformers 4 made that of half seconds.
    if value.step != 0:
        _checks.positive(f"{name}.step", value.step)


def _check_audio_video(name: str, value: AudioVideo) -> None:
    if not isinstance(value, AudioVideo):
        raise TypeError(
            f"{name} must be an AudioVideo(video, audio, chunk), got {value!r}"
        )
    _check_vision(f"{name}.video", value.video)
    _checks.whole_number(f"{name}.audio", value.audio, least=1)
    _checks.whole_number(f"{name}.chunk", value.chunk, least=1)


def _chunks(positions: Tensor, start: int, chunk: int) -> list[Tensor]:
    cuts, number = [0], 1
    for index, time in enumerate(positions[:, 0].tolist()):
        if time - start >= number * chunk:
            cuts.append(index)
            number += 1
    return [
        positions[a:b] for a, b in zip(cuts, [*cuts[1:], len(positions)], strict=True)
    ]
