"""A relative bias as one vector, and linear attention with the matrix it stands for.

The matrix is a Toeplitz matrix, constant along its diagonals, and is never built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib.attention._operands import feature_operands, quotient

Form = Literal["chunks", "fft"]
FORMS: tuple[Form, ...] = get_args(Form)

# The costs by which `toeplitz_attention` chooses its form, in products of the form in
# chunks; measured, see there.
FFT_COST = 800  # of a number that the FFT convolves
# Of a pair of tokens, beside its f + d_v + 1 products: its weight is written, scaled
# and read.
PAIR_COST = 128
CHUNK = 128  # queries
# Columns in one call of the FFT: with all 65 at 65,536 tokens it took twice as long.
COLUMNS = 16


def relative_bias_vector(
    bias: Callable[[Tensor, Tensor], Tensor],
    length: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """A relative bias as one vector a head, in place of a matrix.

    Equation: b_r for r = −(N−1) … N−1, at index r + N − 1
    Shapes: → (H, 2N−1)

    Right for biases that depend on n − m alone (ALiBi, T5, KERPLE, Sandwich, windows),
    not for FIRE, which depends on m too. Gradients reach the bias' parameters.

    Args:
        bias: of a scheme, `bias(q_positions, k_positions)`. Called with one query at
            N − 1 and keys at 0 … 2N − 2.
        length: N, tokens of the sequence, at least 1.
        device: of the positions that the bias is called with.

    Raises:
        TypeError, ValueError: `length` is not an integer ≥ 1; the bias is not (1, H, 1,
            2N−1).

    Chapter: 08
    """
    _checks.whole_number("length", length, least=1)
    _checks.callable_("bias", bias)
    row = bias(
        torch.tensor([length - 1], device=device),
        torch.arange(2 * length - 1, device=device),
    )
    if row.dim() != 4 or row.shape[0] != 1 or row.shape[2:] != (1, 2 * length - 1):
        raise ValueError(
            f"bias must return shape (1, H, 1, {2 * length - 1}) for these positions, "
            f"got {tuple(row.shape)}"
        )
    return row[0, :, 0]


def checked_vector(
    bias: Tensor, heads: int, queries: int, keys: int, causal: bool
) -> Tensor:
    """b_{−(Tk−1)} … b_{Tq−1}, which is all that these queries and keys need.

    If causal, keys after the query have −∞.
    """
    size = _checks.floating_tensor("bias", bias, least_dims=2).shape[1]
    if (
        bias.dim() != 2
        or bias.shape[0] != heads
        or size % 2 == 0
        or size < 2 * keys - 1
    ):
        raise ValueError(
            f"bias must have shape (H, 2N−1) with H = {heads} and N ≥ {keys}, got "
            f"{tuple(bias.shape)}"
        )
    first = size // 2 - (keys - 1)
    if not _checks.boolean("causal", causal):
        return bias[:, first : first + keys + queries - 1]
    return pad(bias[:, first : first + keys], (0, queries - 1), value=-math.inf)


def toeplitz_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor,
    causal: bool,
    mask: Tensor | None = None,
    form: Form | None = None,
) -> Tensor:
    """Linear attention with any relative bias: a Toeplitz matrix that is never built.

    Equation: o_m = Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) v_n / Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n),
        c_r = exp(b_r)      (luo2021; derived, the paper's text is not available to us)
    Shapes: q (B, H, N, f), k (B, H, N, f), v (B, H, N, d_v), bias (H, 2N−1)
        → (B, H, N, d_v), in v's dtype

    In chunks of queries the matrix is a view of c: N² time, and exact. From some length
    on the FFT is faster, with N log N for each of f·(d_v + 1) columns. Measured on one
    thread of a CPU (AVX2) in float32 for d_v = 64: with 16 features the FFT is faster
    from 4,000 tokens on (causal 8,000), with 64 features from 12,000 (causal 26,000).
    Both hold O(N) numbers a head, for gradients too: each part is then computed twice.

    An FFT rounds at the size of its largest sum: a weight much below the head's largest
    c keeps few digits, and so does a row whose sums are much below the largest. With
    `causal` the future leaks into the first rows at that level. In float32 that is 1e-6
    where c falls fast, but for a constant bias it grows with the length, to 1e-3 at
    65,536 tokens.

    Args:
        q: φ(q), no entry below 0.
        k: φ(k), no entry below 0.
        v: values.
        bias: b_{−(N−1)} … b_{N−1} of consecutive positions, as `relative_bias_vector`
            makes them; the middle of a longer vector is that of a shorter one.
        causal: set c_r = 0 for keys after the query.
        mask: (B, N), True for a token, False for padding.
        form: "chunks" or "fft"; None is the faster one, by the measurement above.

    Raises:
        TypeError, ValueError: shapes that don't fit; `causal` is not a bool; an unknown
            form. On plain CPU tensors: a negative feature.

    Source: luo2021
    Checked: derived, unchecked
    Chapter: 08
    """
    if form is not None:
        _checks.one_of("form", form, FORMS)
    q, k, v, dtype = feature_operands(q, k, v, mask)
    length, features, columns = k.shape[2], k.shape[3], v.shape[3] + 1
    if q.shape[2] != length:
        raise ValueError(
            f"q must have k's length {length}: both hold the same positions; got "
            f"{q.shape[2]}"
        )
    b = checked_vector(bias, q.shape[1], length, length, causal)
    b = b.to(q.dtype).to(q.device)
    largest = b.detach().amax(-1, keepdim=True)
    largest = largest.clamp(min=torch.finfo(b.dtype).min)  # not −∞, if all is hidden
    c = (b - largest).exp()  # the maximum cancels
    # Values for the numerator, and a column of ones for the denominator.
    values = torch.cat((v, torch.ones_like(v[..., :1])), -1)
    if form is None:
        keys = length / 2 if causal else length  # of a query, on average
        cost_in_chunks = keys * (features + columns + PAIR_COST)
        form = "fft" if cost_in_chunks > FFT_COST * features * columns else "chunks"
    if form == "fft":
        sums = _toeplitz_by_fft(q, k, values, c)
    else:
        sums = _toeplitz_in_chunks(q, k, values, c, causal)
    return quotient(sums[..., :-1], sums[..., -1:]).to(dtype)


def _toeplitz_in_chunks(
    q: Tensor, k: Tensor, values: Tensor, c: Tensor, causal: bool
) -> Tensor:
    """Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) x_n for every column x, by chunks of queries.

    A chunk's part of the matrix is a view of c.
    """
    length, parts = k.shape[2], []

    def chunk(q: Tensor, k: Tensor, values: Tensor, c: Tensor) -> Tensor:
        # Queries run backwards, as in `hankel_attention`.
        weights = q.flip(-2) @ k.mT * c.unfold(-1, k.shape[2], 1)
        return (weights @ values).flip(-2)

    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        keys = stop if causal else length
        window = c[:, length - stop : length - start + keys - 1]
        operands = q[:, :, start:stop], k[:, :, :keys], values[:, :, :keys], window
        parts.append(_recomputed(chunk, *operands))
    return torch.cat(parts, 2)


def _toeplitz_by_fft(q: Tensor, k: Tensor, values: Tensor, c: Tensor) -> Tensor:
    """The same sums as Σ_i φ_i(q_m) (c ∗ φ_i(k) x)_m: convolutions by FFT."""
    circle = _on_circle(c, k.shape[2])
    spectrum = torch.fft.rfft(circle)[:, None]
    feature = partial(_feature_sums, period=circle.shape[-1])
    # (B, H, d_v + 1, N): neighbours in time are neighbours in memory.
    columns = values.mT.contiguous()
    sums = []
    for block in columns.split(COLUMNS, 2):
        total = torch.zeros_like(block)
        for q_i, k_i in zip(q.unbind(-1), k.unbind(-1), strict=True):
            total = total + _recomputed(feature, q_i, k_i, block, spectrum)
        sums.append(total)
    all_sums = torch.cat(sums, 2).mT
    # Without keys numerator and denominator are the FFT's rounding, and their quotient
    # is anything.
    has_key = _has_key(q.detach(), k.detach(), circle.detach())[..., None]
    denominator = all_sums[..., -1:].masked_fill(~has_key, 0)
    return torch.cat((all_sums[..., :-1], denominator), -1)


def _on_circle(c: Tensor, length: int) -> Tensor:
    """c by m − n on a circle: 0 … N−1, zeros, −(N−1) … −1.

    With at least 2N − 1 numbers no sum wraps around. FFTs are fast for 5 … 8 times a
    power of two.
    """
    power = 1
    while 8 * power < 2 * length - 1:
        power *= 2
    size = -(-(2 * length - 1) // power) * power
    zeros = c.new_zeros(c.shape[0], size - 2 * length + 1)
    return torch.cat((c[:, :length].flip(-1), zeros, c[:, length:].flip(-1)), -1)


def _feature_sums(
    q_i: Tensor, k_i: Tensor, columns: Tensor, spectrum: Tensor, *, period: int
) -> Tensor:
    """φ_i(q_m) (c ∗ φ_i(k) x)_m of one feature for columns x: (B, H, columns, N)."""
    transformed = torch.fft.rfft(k_i[..., None, :] * columns, n=period)
    convolved = torch.fft.irfft(transformed * spectrum, n=period)
    return torch.mul(q_i[..., None, :], convolved[..., : columns.shape[-1]])


def _has_key(q: Tensor, k: Tensor, circle: Tensor) -> Tensor:
    """Whether a query has a key with c > 0 and a feature in common: (B, H, N).

    Keys are counted, by the same FFT: whole numbers survive its rounding.
    """
    length, period = k.shape[2], circle.shape[-1]
    spectrum = torch.fft.rfft((circle != 0).to(circle.dtype))
    has_key = torch.zeros_like(q[..., 0], dtype=torch.bool)
    for q_i, k_i in zip(q.unbind(-1), k.unbind(-1), strict=True):
        present = torch.fft.rfft((k_i != 0).to(circle.dtype), n=period)
        count = torch.fft.irfft(present * spectrum, n=period)[..., :length]
        has_key = has_key | ((q_i != 0) & (count > 0.5))
    return has_key


def _recomputed(part: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """One part of a sum, which is computed again for the gradient.

    Kept, all parts would take N² or N·f·d_v numbers.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        part = partial(checkpoint, part, use_reentrant=False, preserve_rng_state=False)
    result: Tensor = part(*tensors)
    return result
