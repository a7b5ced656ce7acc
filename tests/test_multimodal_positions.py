"""Positions of text, pictures, video and sound in one prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from posenc_lib.attention import attention, causal, key_padding_mask
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.multimodal_positions import (
    AudioVideo,
    Block,
    Vision,
    audio_video_block,
    equal_axes,
    mrope_positions,
    next_positions,
    place_rows,
    timestamped,
    videorope_positions,
    vision_block,
)
from posenc_lib.positions import (
    arange,
    grid,
)
from posenc_lib.rotary.multiaxis import (
    AxialRoPE,
    mrope_frequencies,
)
from posenc_lib.scheme import NOPE


def reference_positions(blocks: list[Block], following: str) -> list[list[int]]:
    """Token by token, in plain Python."""
    out: list[list[int]] = []
    start = 0
    for block in blocks:
        if isinstance(block, int):
            for _ in range(block):
                out.append([start] * 3)
                start += 1
            continue
        assert isinstance(block, Vision)
        mine = []
        for f in range(block.frames):
            for row in range(block.height):
                for column in range(block.width):
                    mine.append(
                        [
                            start + math.floor(f * block.step),
                            start + row,
                            start + column,
                        ]
                    )
        out += mine
        start = (
            max(max(p) for p in mine) + 1
            if following == "maximum"
            else start + max(block.height, block.width)
        )
    return out


vision = st.builds(
    Vision,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2, 0.5, 0.75, 25.0]),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 5) | vision, min_size=1, max_size=6),
    st.sampled_from(["maximum", "longest side"]),
)
def test_prompts_token_by_token(blocks: list[Block], following: str) -> None:
    positions = mrope_positions(blocks, following=following)
    assert positions.tolist() == reference_positions(blocks, following)
    assert torch.equal(
        mrope_positions(blocks, following=following, start=7), positions + 7
    )
    assert positions.dtype == torch.int64
    if all(
        not isinstance(b, Vision) or b.frames == 1 for b in blocks
    ):  # images: both rules are one
        assert torch.equal(
            mrope_positions(blocks, following="maximum"),
            mrope_positions(blocks, following="longest side"),
        )


def test_the_rules_differ_after_a_long_video() -> None:
    blocks = [2, Vision(5, 2, 2, 2.0), 4]
    assert mrope_positions(blocks)[-4:, 0].tolist() == [11, 12, 13, 14]
    overlapping = mrope_positions(blocks, following="longest side")
    assert overlapping[-4:, 0].tolist() == [4, 5, 6, 7]
    assert int(overlapping[:-4].max()) == 10  # the text stands where the video still is
    assert next_positions(overlapping).tolist() == [[11, 11, 11]]


def test_times_are_cut_not_rounded() -> None:
    assert vision_block(Vision(5, 1, 1, 2 * 0.45))[:, 0].tolist() == [0, 0, 1, 2, 3]
    assert vision_block(Vision(3, 1, 1, 2 * int(0.5)))[:, 0].tolist() == [
        0,
        0,
        0,
    ]  # transformers 4
    assert vision_block(Vision(3, 1, 1, 2 * 0.5))[:, 0].tolist() == [0, 1, 2]


def reference_audio_video(
    video: list[list[int]], audio: int, start: int, chunk: int
) -> list[list[int]]:
    """The released rule with one counter for each stream, written as a walk through the
    two streams.
    """

    def cut(times: list[int]) -> list[int]:
        """Chunk number of every token."""
        current, numbers = 0, []
        for time in times:
            if time - start - 1 >= (current + 1) * chunk:
                current += 1
            numbers.append(current)
        return numbers

    sound = [[start + 1 + i] * 3 for i in range(audio)]
    tagged = [(c, 0, p) for c, p in zip(cut([p[0] for p in video]), video, strict=True)]
    tagged += [
        (c, 1, p) for c, p in zip(cut([p[0] for p in sound]), sound, strict=True)
    ]
    tagged.sort(key=lambda item: item[:2])  # stable: the order within a piece stays
    last = [p for c, stream, p in tagged if (c, stream) == tagged[-1][:2]]
    end = max(max(p) for p in last) + 1
    return [[start] * 3] * 2 + [p for _, _, p in tagged] + [[end] * 3] * 2


@settings(deadline=None, max_examples=60)
@given(vision, st.integers(1, 30), st.sampled_from([1, 3, 10, 50]), st.integers(0, 9))
def test_audio_in_video_token_by_token(
    video: Vision, audio: int, chunk: int, start: int
) -> None:
    block = AudioVideo(video, audio, chunk)
    positions = audio_video_block(block, start)
    expected = reference_audio_video(
        vision_block(video, start + 1).tolist(), audio, start, chunk
    )
    assert positions.tolist() == expected
    prompt = mrope_positions([3, block, 2])
    assert prompt[-2:, 0].tolist() == [int(prompt[-3, 0]) + 1, int(prompt[-3, 0]) + 2]
    assert torch.equal(prompt[3:-2], audio_video_block(block, 3))


def test_sound_and_picture_share_a_clock() -> None:
    positions = audio_video_block(
        AudioVideo(Vision(4, 2, 2, 25.0), 100)
    )  # four seconds, one frame each
    body = positions[2:-2]
    assert body[:8, 0].tolist() == [1] * 4 + [26] * 4  # two seconds of video
    assert torch.equal(
        body[8:58], equal_axes(torch.arange(1, 51))
    )  # then two seconds of sound
    assert body[58:66, 0].tolist() == [51] * 4 + [76] * 4
    assert torch.equal(body[66:], equal_axes(torch.arange(51, 101)))


def test_timestamps() -> None:
    frame = Vision(1, 2, 3)
    assert timestamped(Vision(2, 2, 3, 9.0), [4, 5]) == [4, frame, 5, frame]
    blocks = [*timestamped(Vision(3, 2, 3), [4, 5, 5]), 2]
    assert torch.equal(
        mrope_positions(blocks), mrope_positions(blocks, following="longest side")
    )


@pytest.mark.parametrize("step", [1, 2, 0.5])
def test_videorope_token_by_token(step: float) -> None:
    blocks = [2, Vision(3, 3, 4, step), 2, Vision(1, 2, 2), 3]
    out: list[list[float]] = []
    start = 0.0
    for block in blocks:
        if isinstance(block, int):
            out += [[start + i] * 3 for i in range(block)]
            start += block
            continue
        for f, row, column in itertools.product(*(range(n) for n in block[:3])):
            tau = start + block.step * f
            out.append(
                [
                    tau,
                    tau + row - (block.height - 1) // 2,
                    tau + column - (block.width - 1) // 2,
                ]
            )
        start = out[-1][0] + 1
    assert videorope_positions(blocks).tolist() == out
    assert videorope_positions(blocks, dtype=torch.float32).dtype == torch.float32
    assert torch.equal(
        videorope_positions([4]), equal_axes(torch.arange(4.0, dtype=torch.float64))
    )


def test_videorope_decodes_after_the_last_time() -> None:
    positions = videorope_positions([1, Vision(2, 1, 9)])
    assert float(positions.max()) == 6  # the last column is ahead of the diagonal
    assert next_positions(positions, axis=0).tolist() == [[3.0] * 3]
    assert torch.equal(
        next_positions(positions, axis=0)[0],
        videorope_positions([1, Vision(2, 1, 9), 1])[-1],
    )


def test_decoding_goes_on_as_the_prompt_would() -> None:
    blocks = [3, Vision(4, 2, 3, 2.0), 2]
    prompt = mrope_positions(blocks)
    for steps in (1, 2, 5):  # windows of drafted tokens advance too
        assert torch.equal(
            next_positions(prompt, steps), mrope_positions([*blocks, steps])[-steps:]
        )
    assert int(next_positions(prompt)[0, 0]) != len(
        prompt
    )  # the number of tokens is not the position


def test_axes_are_moved_one_by_one() -> None:
    """Positions of text may be written to.

    No axis is a view of another, or of what was given.
    """
    text = arange(3)
    positions = equal_axes(text)
    positions[:, 1] += 10
    assert torch.equal(positions, torch.tensor([[0, 10, 0], [1, 11, 1], [2, 12, 2]]))
    assert torch.equal(text, arange(3))
    following = next_positions(mrope_positions([3]), 3)
    following[:, 1] += 10
    assert torch.equal(following, torch.tensor([[3, 13, 3], [4, 14, 4], [5, 15, 5]]))


def test_nothing_follows_a_row_of_padding() -> None:
    positions, mask = (
        torch.tensor([[[5, 5, 5]], [[9, 9, 9]]]),
        torch.tensor([[True], [False]]),
    )
    with pytest.raises(ValueError, match="mask must have a token in every row"):
        next_positions(positions, mask=mask)


def test_decoding_a_batch() -> None:
    rows = [mrope_positions([1, Vision(1, 2, 2), 2]), mrope_positions([3])]
    for mask in ([[1] * 7, [0, 0, 0, 0, 1, 1, 1]], [[1] * 7, [1, 1, 1, 0, 0, 0, 0]]):
        real = torch.tensor(mask)
        positions = place_rows(rows, real, padding=99)
        assert positions[1][real[1] == 1].tolist() == rows[1].tolist()
        assert bool((positions[real == 0] == 99).all())
        ahead = next_positions(positions, 2, mask=real)
        assert ahead[0].tolist() == next_positions(rows[0], 2).tolist()
        assert ahead[1].tolist() == [[3] * 3, [4] * 3]


@pytest.mark.parametrize("left", [True, False])
def test_a_padded_row_is_as_the_row_alone(left: bool) -> None:
    matrix = mrope_frequencies(inverse_frequencies(8), (2, 1, 1))
    rope = AxialRoPE(matrix, layout="half")
    row, padding = mrope_positions([2, Vision(1, 2, 2), 1]), 3
    q, k, v = (normal(1, 2, 7, 8, seed=s) for s in range(3))
    alone = weighted(rope, q, k, v, row[None], torch.ones(1, 7, dtype=torch.bool))
    sides = (padding, 0) if left else (0, padding)
    mask = pad(torch.ones(1, 7, dtype=torch.bool), sides)
    padded = [pad(x, (0, 0, *sides), value=1.0) for x in (q, k, v)]
    out = weighted(rope, *padded, place_rows([row], mask), mask)
    torch.testing.assert_close(out[:, :, mask[0]], alone)


def weighted(
    rope: AxialRoPE, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, mask: Tensor
) -> Tensor:
    q, k = rope.transform(q, k, positions, positions)
    count = arange(q.shape[2])
    allowed = causal(count, count) & key_padding_mask(mask)
    return attention(
        q, k, v, scheme=NOPE, q_positions=count, k_positions=count, mask=allowed
    )


AT = grid((2, 3))

TEXT = equal_axes(arange(6))

MASK = torch.tensor([[1, 1, 1]])


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "equal_axes: axes": (
        lambda: equal_axes(AT, 0),
        ValueError,
        "axes",
    ),
    "mrope_positions: blocks": (
        lambda: mrope_positions([]),
        ValueError,
        "blocks",
    ),
    "mrope_positions([2, 0])": (
        lambda: mrope_positions([2, 0]),
        ValueError,
        r"blocks\[1\]",
    ),
    "mrope_positions([2, True])": (
        lambda: mrope_positions([2, True]),
        TypeError,
        r"blocks\[1\]",
    ),
    "mrope_positions([2, (1, 2, 2)])": (
        lambda: mrope_positions([2, (1, 2, 2)]),
        TypeError,
        r"blocks\[1\]",
    ),
    "mrope_positions: blocks[0].height": (
        lambda: mrope_positions([Vision(1, 0, 2)]),
        ValueError,
        r"blocks\[0\].height",
    ),
    "mrope_positions: blocks[0].step": (
        lambda: mrope_positions([Vision(1, 2, 2, -1.0)]),
        ValueError,
        r"blocks\[0\].step",
    ),
    "mrope_positions: blocks[0].audio": (
        lambda: mrope_positions([AudioVideo(Vision(1, 2, 2), 0)]),
        ValueError,
        r"blocks\[0\].audio",
    ),
    "mrope_positions: blocks[0].video": (
        lambda: mrope_positions([AudioVideo((1, 2, 2), 3)]),
        TypeError,
        r"blocks\[0\].video",
    ),
    "mrope_positions: blocks[0].chunk": (
        lambda: mrope_positions([AudioVideo(Vision(1, 2, 2), 3, 0)]),
        ValueError,
        r"blocks\[0\].chunk",
    ),
    "mrope_positions: following": (
        lambda: mrope_positions([2], following="max"),
        ValueError,
        "following",
    ),
    "mrope_positions: start": (
        lambda: mrope_positions([2], start=-1),
        ValueError,
        "start",
    ),
    "vision_block: vision": (
        lambda: vision_block((1, 2, 2)),
        TypeError,
        "vision",
    ),
    "vision_block: start": (
        lambda: vision_block(Vision(1, 2, 2), -1),
        ValueError,
        "start",
    ),
    "audio_video_block: block": (
        lambda: audio_video_block(Vision(1, 2, 2)),
        TypeError,
        "block",
    ),
    "timestamped: text": (
        lambda: timestamped(Vision(2, 2, 2), [3]),
        ValueError,
        "text",
    ),
    "timestamped: text[0]": (
        lambda: timestamped(Vision(1, 2, 2), [0]),
        ValueError,
        r"text\[0\]",
    ),
    "videorope_positions: blocks[0]": (
        lambda: videorope_positions([AudioVideo(Vision(1, 2, 2), 3)]),
        TypeError,
        r"blocks\[0\]",
    ),
    "videorope_positions: dtype": (
        lambda: videorope_positions([3], dtype=torch.float16),
        TypeError,
        "dtype",
    ),
    "place_rows: rows[0]": (
        lambda: place_rows([TEXT], MASK),
        ValueError,
        r"rows\[0\]",
    ),
    "place_rows: rows": (
        lambda: place_rows([TEXT, TEXT], MASK),
        ValueError,
        "rows",
    ),
    "place_rows: mask": (
        lambda: place_rows([TEXT[:3]], torch.tensor([1, 1, 1])),
        ValueError,
        "mask",
    ),
    "place_rows: rows[1]": (
        lambda: place_rows([TEXT[:3], AT[:3]], MASK.expand(2, 3)),
        ValueError,
        r"rows\[1\]",
    ),
    "next_positions: steps": (
        lambda: next_positions(TEXT, 0),
        ValueError,
        "steps",
    ),
    "next_positions: positions": (
        lambda: next_positions(arange(3)),
        ValueError,
        "positions",
    ),
    "next_positions: axis": (
        lambda: next_positions(TEXT, axis=3),
        ValueError,
        "axis",
    ),
    "next_positions: mask": (
        lambda: next_positions(TEXT[None], mask=MASK),
        ValueError,
        "mask",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
