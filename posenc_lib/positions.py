"""Which position does a token have?

Every encoding in this library takes positions as an argument and never infers them from
a tensor's shape. A cache, left padding and packed documents then need no special case:
they are other position tensors, and this module makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._trees import ancestors


def arange(
    length: int, offset: int = 0, *, device: torch.device | str | None = None
) -> Tensor:
    """Consecutive positions, counted from `offset`.

    Equation: p_t = offset + t,  t = 0 … T−1
    Shapes: → (T,), int64

    Args:
        length: number of tokens T, at least 1.
        offset: position of the first token: with a key-value cache, the number of
            tokens already in it. At least 0.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: `length` is not an integer ≥ 1, or `offset` not
            one ≥ 0.

    Chapter: notation
    """
    _checks.whole_number("length", length, least=1)
    _checks.whole_number("offset", offset, least=0)
    return torch.arange(offset, offset + length, device=device)


def from_mask(mask: Tensor, *, first: int = 0, padding: int = 0) -> Tensor:
    """Positions in a padded batch: only the real tokens of each row are counted.

    Equation: p_t = first + Σ_{s≤t} mask_s − 1 where mask_t is True, and `padding`
        elsewhere
    Shapes: mask (B, T) → (B, T), int64

    Args:
        mask: (B, T), True (or 1) for a token, False (or 0) for padding on either side.
        first: position of the first real token. RoBERTa and fairseq tables begin at
            padding_idx + 1, OPT's at 2.
        padding: what padding slots get. It must be a valid row of a learned table, so
            −1 is not the default.

    Raises:
        TypeError, ValueError: `mask` is not a (B, T) tensor of two values; `first` or
            `padding` is not an integer ≥ 0.

    Chapter: notation
    """
    tokens = _checks.token_mask("mask", mask)
    _checks.whole_number("first", first, least=0)
    _checks.whole_number("padding", padding, least=0)
    count = tokens.to(torch.int64).cumsum(-1)
    return torch.where(tokens, count - 1 + first, padding)


def after_mask(mask: Tensor, steps: int = 1, *, first: int = 0) -> Tensor:
    """Positions of the next decoding steps after a padded batch.

    Equation: p_s = first + Σ_t mask_t + s,  s = 0 … steps−1
    Shapes: mask (B, T) → (B, steps), int64

    Args:
        mask: (B, T) mask of the tokens already seen, as in `from_mask`.
        steps: how many tokens follow, at least 1.
        first: position of the first real token, as in `from_mask`.

    Raises:
        TypeError, ValueError: as `from_mask`; `steps` is not an integer ≥ 1.

    Chapter: notation
    """
    _checks.whole_number("steps", steps, least=1)
    _checks.whole_number("first", first, least=0)
    seen = _checks.token_mask("mask", mask).to(torch.int64).sum(-1, keepdim=True)
    return first + seen + torch.arange(steps, device=mask.device)


def _lengths(lengths: Sequence[int]) -> list[int]:
    if isinstance(lengths, Tensor):
        raise TypeError(
            "lengths must be a list of integers (a size can't depend on tensor "
            "values); "
            "use lengths.tolist()"
        )
    if not isinstance(lengths, Sequence) or isinstance(lengths, str):
        raise TypeError(f"lengths must be a list of integers, got {lengths!r}")
    if len(lengths) == 0:
        raise ValueError("lengths must name at least one document, got none")
    return [
        _checks.whole_number(f"lengths[{i}]", length, least=1)
        for i, length in enumerate(lengths)
    ]


def packed(
    lengths: Sequence[int], *, device: torch.device | str | None = None
) -> Tensor:
    """Positions of documents packed into one row: each document starts at 0 again.

    Equation: p_t = t − (start of the document that holds t)
    Shapes: → (Σ lengths,), int64

    Args:
        lengths: the documents' lengths, each at least 1. From cumulative boundaries:
            their differences.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: a length is not an integer ≥ 1; there is none.

    Chapter: notation
    """
    return torch.cat(
        [torch.arange(length, device=device) for length in _lengths(lengths)]
    )


def segment_ids(
    lengths: Sequence[int], *, device: torch.device | str | None = None
) -> Tensor:
    """The number of the packed document of each token, for `attention.same_segment`.

    Equation: s_t = number of documents that end at or before t
    Shapes: → (Σ lengths,), int64

    Args:
        lengths: the documents' lengths, each at least 1.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: as `packed`.

    Chapter: notation
    """
    return torch.cat(
        [
            torch.full((length,), i, device=device)
            for i, length in enumerate(_lengths(lengths))
        ]
    )


def relative(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Relative positions, key − query: negative in the past, positive in the future.

    Equation: r_mn = n − m
    Shapes: (Tq,), (Tk,) → (Tq, Tk); with a batch on either side,
        (B, Tq), (B, Tk) → (B, 1, Tq, Tk)

    Args:
        q_positions: positions m of the queries, (Tq,) or (B, Tq), integers, float32 or
            float64.
        k_positions: positions n of the keys, (Tk,) or (B, Tk).

    Raises:
        TypeError, ValueError: positions of another dtype or shape; two batches of
            different size.

    Chapter: notation
    """
    m, n = _checks.pair_positions(
        "q_positions", q_positions, "k_positions", k_positions
    )
    return n - m


# ---- grids


def grid(
    sizes: Sequence[int], *, first: int = 0, device: torch.device | str | None = None
) -> Tensor:
    """Coordinates on a grid, row-major: the last axis runs fastest.

    Equation: p_t = first + (⌊t/W⌋, t mod W) on H × W, and so on for more axes
    Shapes: → (Π sizes, axes), int64

    Row and column, in this order. Models whose first axis is the column (x) take
    `grid(sizes).flip(-1)`, which keeps the order of the tokens: the two differ on
    images that are not square. Llama 4 counts from 1.

    Args:
        sizes: length of each axis, each at least 1: (height, width) or (frames, height,
            width).
        first: coordinate of the first token on every axis, at least 0.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, or none; `first` below
            0.

    Chapter: 17
    """
    _checks.whole_number("first", first, least=0)
    return _grid(_checks.axis_sizes("sizes", sizes), device) + first


def merged_grid(
    height: int, width: int, merge: int, *, device: torch.device | str | None = None
) -> Tensor:
    """Rows and columns in Qwen2-VL's order: block by block.

    Patches that the model merges later are neighbours in this order.

    Equation: p = (m·B_row + b_row, m·B_column + b_column) over blocks (B_row,
        B_column), then within each, row-major
    Shapes: → (H·W, 2), int64

    Args:
        height: rows H, a multiple of `merge`.
        width: columns W, a multiple of `merge`.
        merge: side m of a block; 2 in the published models.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1, or no multiple of
            `merge`.

    Source: qwen2-vl
    Checked: huggingface/transformers@00b676f8f048:
        src/transformers/models/qwen2_vl/modeling_qwen2_vl.py:
        Qwen2VisionTransformerPretrainedModel.rot_pos_emb
    Chapter: 15
    """
    _checks.whole_number("merge", merge, least=1)
    for name, size in (("height", height), ("width", width)):
        if _checks.whole_number(name, size, least=1) % merge:
            raise ValueError(
                f"{name} must be a multiple of merge = {merge}, got {size}"
            )
    block = _grid([height // merge, width // merge, merge, merge], device)
    return block[:, :2] * merge + block[:, 2:]


def resized_grid(
    sizes: Sequence[int],
    reference: Sequence[int],
    *,
    offset: float = 0.0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """A grid rescaled to the extent of the training grid, as in EVA-02.

    Equation: p_a = (i_a + offset) · R_a / N_a
    Shapes: → (Π sizes, axes)

    Args:
        sizes: length N of each axis.
        reference: length R of each axis in training.
        offset: added before; 0.5 counts from the centre of a patch.
        dtype: of the coordinates.
        device: where they are.

    Raises:
        TypeError, ValueError: sizes as in `grid`; a reference of another number of
            axes; a dtype with 16 bits.

    Source: fang2023
    Checked: huggingface/pytorch-image-models@aa4b5850c154:
        timm/layers/pos_embed_sincos.py:build_fourier_pos_embed
    Chapter: 17
    """
    lengths = _checks.axis_sizes("sizes", sizes)
    trained = _checks.axis_sizes("reference", reference)
    if len(trained) != len(lengths):
        raise ValueError(
            f"reference must have {len(lengths)} axes as sizes has, got {len(trained)}"
        )
    _checks.finite("offset", offset)
    shifted = _grid(lengths, "cpu").to(torch.float64) + offset
    return _coordinates(shifted * _row(trained) / _row(lengths), dtype, device)


def centred_grid(
    sizes: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Centres of the patches in (−1, 1) on every axis, as in DINOv3.

    Equation: p_a = 2 (i_a + ½)/N_a − 1, each axis normalised separately
    Shapes: → (Π sizes, axes)

    An image has the same extent at any resolution.

    Args:
        sizes: length N of each axis.
        dtype: of the coordinates.
        device: where they are.

    Raises:
        TypeError, ValueError: sizes as in `grid`; a dtype with 16 bits.

    Source: simeoni2025
    Checked: facebookresearch/dinov3@6876159a11b4:
        dinov3/layers/rope_position_encoding.py:RopePositionEmbedding.forward
    Chapter: 17
    """
    lengths = _checks.axis_sizes("sizes", sizes)
    index = _grid(lengths, "cpu").to(torch.float64)
    return _coordinates(2 * (index + 0.5) / _row(lengths) - 1, dtype, device)


def spanning_grid(
    sizes: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Coordinates from −1 to 1 on every axis, both ends included.

    Equation: p_a = 2 i_a/(N_a − 1) − 1, and −1 on an axis of length 1
    Shapes: → (Π sizes, axes)

    Args:
        sizes: length N of each axis.
        dtype: of the coordinates.
        device: where they are.

    Raises:
        TypeError, ValueError: sizes as in `grid`; a dtype with 16 bits.

    Checked: huggingface/pytorch-image-models@aa4b5850c154:
        timm/layers/pos_embed_sincos.py:build_fourier_pos_embed
    Chapter: 17
    """
    lengths = _checks.axis_sizes("sizes", sizes)
    index = _grid(lengths, "cpu").to(torch.float64)
    steps = _row([max(length - 1, 1) for length in lengths])
    return _coordinates(2 * index / steps - 1, dtype, device)


def jittered(
    coordinates: Tensor,
    *,
    shift: float = 0.0,
    jitter: float = 1.0,
    rescale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Coordinates shifted and rescaled at random, one draw for all tokens (DINOv3).

    Equation: p_a ← (p_a + u_a) e^{v_a} e^w,  u_a ∈ [−s, s],  v_a ∈ [−ln j, ln j],
        w ∈ [−ln r, ln r], all uniform
    Shapes: (..., axes) → (..., axes)

    Class tokens stay at 0: join them afterwards.

    Args:
        coordinates: float32 or float64, the axes last: `centred_grid(sizes)`.
        shift: s, at least 0; 0 leaves this step out, draw included.
        jitter: j, at least 1: stretches each axis separately; 1 leaves it out.
        rescale: r, at least 1: stretches all axes alike; 1 leaves it out.
        generator: of the draws, on the CPU.

    Raises:
        TypeError, ValueError: integer coordinates; an argument below its least value.

    Source: simeoni2025
    Checked: facebookresearch/dinov3@6876159a11b4:
        dinov3/layers/rope_position_encoding.py:RopePositionEmbedding.forward
    Chapter: 17
    """
    if not _checks.position_tensor("coordinates", coordinates).is_floating_point():
        raise TypeError(
            f"coordinates must be float32 or float64, got {coordinates.dtype}"
        )
    for name, value, least in (
        ("shift", shift, 0.0),
        ("jitter", jitter, 1.0),
        ("rescale", rescale, 1.0),
    ):
        if _checks.finite(name, value) < least:
            raise ValueError(f"{name} must be at least {least:g}, got {value}")
    _checks.generator("generator", generator)

    def uniform(count: int, limit: float) -> Tensor:
        draw = torch.rand(count, dtype=torch.float64, device="cpu", generator=generator)
        return (2 * draw - 1) * limit

    axes = coordinates.shape[-1]
    offset = (
        uniform(axes, shift)
        if shift > 0
        else torch.zeros(axes, dtype=torch.float64, device="cpu")
    )
    log_scale = torch.zeros(axes, dtype=torch.float64, device="cpu")
    if jitter > 1:
        log_scale = log_scale + uniform(axes, math.log(jitter))
    if rescale > 1:
        log_scale = log_scale + uniform(1, math.log(rescale))
    moved, stretch = (
        x.to(coordinates.dtype).to(coordinates.device)
        for x in (offset, log_scale.exp())
    )
    return (coordinates + moved) * stretch


def _grid(sizes: Sequence[int], device: torch.device | str | None) -> Tensor:
    axes = [torch.arange(size, device=device) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)


def _row(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _coordinates(
    values: Tensor, dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return values.to(dtype).to(device)


# ---- positions for length generalisation


def randomised(
    length: int,
    maximum: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Randomised positions: an ordered sample of a longer range.

    Equation: p = sort(n positions drawn without replacement from 0 … L−1)
        (ruoss2023 §3)
    Shapes: → (n,), int64

    Every position up to L is met in training. For any encoding. One draw serves a
    batch, and the released code draws anew at each evaluation too.

    Args:
        length: tokens n, at least 1.
        maximum: L, at least n: above the longest sequence that will ever be evaluated.
        generator: of the draw, on the CPU.
        device: where the result is.

    Raises:
        TypeError, ValueError: `length` is not an integer ≥ 1, `maximum` is below it.

    Source: ruoss2023
    Checked: google-deepmind/randomized_positional_encodings@e8c64749d8ca:
        models/positional_encodings.py:noisy_fixed_positional_encodings
    Chapter: 21
    """
    _checks.whole_number("length", length, least=1)
    _checks.whole_number("maximum", maximum, least=length)
    drawn = torch.randperm(maximum, generator=generator, device="cpu")[:length]
    return drawn.sort().values.to(device)


def abacus(digits: Tensor, *, offset: int = 0) -> Tensor:
    """Abacus positions: digits of one place value share a position.

    Equation: p_t = offset + 1 + (digits of the same number before t) where t is a
        digit, 0 elsewhere      (mcleish2024)
    Shapes: (B, T) → (B, T), int64

    Numbers are to be written least significant digit first; only then is the position
    the place value. A table with these rows has row 0 for all that is not a digit.

    Args:
        digits: (B, T), True (or 1) where a token is a digit.
        offset: at least 0. In training the paper draws one a batch, from 0 … 99: then
            larger places are met too.

    Raises:
        TypeError, ValueError: `digits` is not a (B, T) tensor of two values; `offset`
            is not an integer ≥ 0.

    Source: mcleish2024
    Checked: mcleish7/arithmetic@86022a57d38c:abacus.py:Abacus.helper
    Chapter: 21
    """
    inside = _checks.token_mask("digits", digits)
    _checks.whole_number("offset", offset, least=0)
    count = inside.to(torch.int64).cumsum(-1)
    # Digits up to the last token that is not one.
    before = torch.where(inside, 0, count).cummax(-1).values
    return torch.where(inside, count - before + offset, 0)


def coupled_addition(
    first: int,
    second: int,
    total: int,
    *,
    start: int = 1,
    device: torch.device | str | None = None,
) -> Tensor:
    """Position coupling for "a+b=c": equal place values share a position.

    Equation: p = start + 1 + (place value, 0 for the ones); "+" and "=" are at start
        (cho2024)
    Shapes: → (first + second + total + 2,), int64

    Operands are written most significant digit first, the sum least significant first.

    Args:
        first: digits of a, at least 1.
        second: digits of b, at least 1.
        total: digits of c, at least 1; the paper pads with zeros to one more than the
            longer operand.
        start: at least 0; in training it is drawn at random, 0 being kept for padding.
        device: where the tensor is made.

    Raises:
        TypeError, ValueError: a number of digits that is not an integer ≥ 1; `start`
            below 0.

    Source: cho2024
    Checked: HanseulJo/position-coupling@b9cad9476b10:src/data/addition.py:
        AdditionDatasetWithCoupledPositions.__getitem__
    Chapter: 21
    """
    _checks.sizes(first=first, second=second, total=total)
    _checks.whole_number("start", start, least=0)
    sign = torch.full((1,), start, device=device)
    a, b, c = (
        torch.arange(start + 1, start + 1 + count, device=device)
        for count in (first, second, total)
    )
    return torch.cat((a.flip(0), sign, b.flip(0), sign, c))


# ---- trees of draft tokens


def tree_positions(parents: Tensor, *, first: int = 0) -> Tensor:
    """Positions in a tree of draft tokens: siblings share a position.

    Equation: p_i = first + depth(i), roots at depth 0      (miao2024, cai2024)
    Shapes: (N,) → (N,), int64

    Args:
        parents: as in `attention.tree_mask`.
        first: position of the roots: the number of tokens before them.

    Raises:
        TypeError, ValueError: as `attention.tree_mask`.

    Source: miao2024, cai2024
    Checked: FasterDecoding/Medusa@e2a5d20c048a:medusa/model/utils.py:
        generate_medusa_buffers
    Chapter: 20
    """
    _checks.whole_number("first", first, least=0)
    return ancestors(parents).sum(-1) - 1 + first
