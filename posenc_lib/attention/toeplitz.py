"""A relative bias as one vector, which is a Toeplitz matrix that nobody builds, and linear attention with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib.attention._operands import feature_operands, quotient

# The costs by which `toeplitz_attention` chooses its form, in products of the form in
# chunks; measured, see there.
FFT_COST = 800  # of a number that the FFT convolves
# of a pair of tokens, beside its f + d_v + 1 products: its weight is written, scaled
# and read
PAIR_COST = 128
CHUNK = 128  # queries
COLUMNS = (
    16  # in one call of the FFT: with all 65 at 65,536 tokens it took twice as long
)


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
    not for FIRE, which looks at m. Gradients reach the bias' parameters.

    Args:
        bias: place 3 of a scheme, `bias(q_positions, k_positions)`. Called with one
            query at N − 1 and keys at 0 … 2N − 2.
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
    """b_{−(Tk−1)} … b_{Tq−1}, all that these queries and keys need; −∞ for keys after the query if causal."""
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
) -> Tensor:
    """Linear attention with any relative bias: a Toeplitz matrix is applied by FFT and never built.

    Equation: o_m = Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) v_n / Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n),  c_r =
        exp(b_r)      (luo2021; derived, the paper's text was not at hand)
    Shapes: q (B, H, N, f), k (B, H, N, f), v (B, H, N, d_v), bias (H, 2N−1) → (B, H, N,
        d_v), in v's dtype

    In chunks of queries the matrix is a view of c: N² time, and exact. From some length
    on the FFT is faster, with N log N for each of f·(d_v + 1) columns. Measured on one
    thread of a CPU (AVX2) in float32 for d_v = 64: with 16 features the FFT is faster
    from 4,000 tokens on (causal 8,000), with 64 features from 12,000 (causal 26,000);
    the form is chosen by that. Both hold O(N) numbers a head, for gradients too: each
    part is then computed twice.

    An FFT rounds at the size of its largest sum: a weight much below the head's largest
    c keeps few digits, and so does a row whose sums are much below the largest. With
    `causal` the future leaks into the first rows at that level. In float32 that is 1e-6
    where c falls fast, but for a constant bias it grows with the length, to 1e-3 at
    65,536 tokens.

    Args:
        q: φ(q), no entry below 0.
        k: φ(k), no entry below 0.
        v: values.
        bias: b_{−(N−1)} … b_{N−1} of consecutive positions, as
            `fused.relative_bias_vector` makes them; the middle of a longer vector is
            that of a shorter one.
        causal: set c_r = 0 for keys after the query.
        mask: (B, N), True for a token, False for padding.

    Raises:
        TypeError, ValueError: shapes that don't fit; `causal` is no bool. On plain CPU
            tensors: a negative feature.

    Source: luo2021
    Chapter: 08
    """
    q, k, v, dtype = feature_operands(q, k, v, mask)
    length, features, columns = k.shape[2], k.shape[3], v.shape[3] + 1
    if q.shape[2] != length:
        raise ValueError(
            f"q must have k's length {length}: both hold the same positions; got "
            f"{q.shape[2]}"
        )
    b = (
        checked_vector(bias, q.shape[1], length, length, causal)
        .to(q.dtype)
        .to(q.device)
    )
    largest = (
        b.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(b.dtype).min)
    )  # not −∞, if all is hidden
    c = (b - largest).exp()  # the maximum cancels
    values = torch.cat(
        (v, torch.ones_like(v[..., :1])), -1
    )  # of the numerator, and ones of the denominator
    pairs = length / 2 if causal else length  # of a query, on average
    by_fft = pairs * (features + columns + PAIR_COST) > FFT_COST * features * columns
    both = (_toeplitz_by_fft if by_fft else _toeplitz_in_chunks)(
        q, k, values, c, causal
    )
    return quotient(both[..., :-1], both[..., -1:]).to(dtype)


def _toeplitz_in_chunks(
    q: Tensor, k: Tensor, values: Tensor, c: Tensor, causal: bool
) -> Tensor:
    """Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) x_n for every column x: chunks of queries, whose part of the matrix is a view."""
    length, parts = k.shape[2], []

    def chunk(q: Tensor, k: Tensor, values: Tensor, c: Tensor) -> Tensor:
        weights = (
            q.flip(-2) @ k.mT * c.unfold(-1, k.shape[2], 1)
        )  # queries run backwards, as in `hankel_attention`
        return (weights @ values).flip(-2)

    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        keys = stop if causal else length
        window = c[:, length - stop : length - start + keys - 1]
        parts.append(
            _again(
                chunk, q[:, :, start:stop], k[:, :, :keys], values[:, :, :keys], window
            )
        )
    return torch.cat(parts, 2)


def _toeplitz_by_fft(
    q: Tensor, k: Tensor, values: Tensor, c: Tensor, _: bool
) -> Tensor:
    """The same sums as Σ_i φ_i(q_m) (c ∗ φ_i(k) x)_m: convolutions on a circle, those of one feature at a time."""
    length = k.shape[2]
    power = 1
    while 8 * power < 2 * length - 1:
        power *= 2
    around = (
        -(-(2 * length - 1) // power) * power
    )  # at least 2N − 1; 5 … 8 times a power of two, which FFTs like
    zeros = c.new_zeros(c.shape[0], around - 2 * length + 1)
    circle = torch.cat(
        (c[:, :length].flip(-1), zeros, c[:, length:].flip(-1)), -1
    )  # of m − n, from 0 on
    wave = torch.fft.rfft(circle)[:, None]
    columns = (
        values.mT.contiguous()
    )  # (B, H, d_v + 1, N): neighbours in time are neighbours in memory
    sums = []

    def feature(q: Tensor, k: Tensor, columns: Tensor, wave: Tensor) -> Tensor:
        convolved = torch.fft.irfft(
            torch.fft.rfft(k[..., None, :] * columns, n=around) * wave, n=around
        )
        return torch.mul(q[..., None, :], convolved[..., :length])

    for some in columns.split(COLUMNS, 2):
        total = torch.zeros_like(some)
        for q_i, k_i in zip(q.unbind(-1), k.unbind(-1), strict=True):
            total = total + _again(feature, q_i, k_i, some, wave)
        sums.append(total)
    both = torch.cat(sums, 2).mT
    # Without keys both are the FFT's rounding, and their quotient is anything. Whole
    # numbers of keys survive it.
    some_key = torch.zeros_like(q[..., 0], dtype=torch.bool)
    wave = torch.fft.rfft((circle.detach() != 0).to(c.dtype))
    for q_i, k_i in zip(q.detach().unbind(-1), k.detach().unbind(-1), strict=True):
        number = torch.fft.irfft(
            torch.fft.rfft((k_i != 0).to(c.dtype), n=around) * wave, n=around
        )[..., :length]
        some_key = some_key | ((q_i != 0) & (number > 0.5))
    return torch.cat(
        (both[..., :-1], both[..., -1:].masked_fill(~some_key[..., None], 0)), -1
    )


def _again(part: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """One part of a sum. For the gradient it is computed again: kept, all parts would take N² or N·f·d_v numbers."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        part = partial(checkpoint, part, use_reentrant=False, preserve_rng_state=False)
    out: Tensor = part(*tensors)
    return out
