"""Attention in linear time: kernels in place of the softmax, and the positions that fit them.

The functions take features, φ(q) and φ(k), so that positions can enter before the feature map (a sinusoid added to the
tokens, `SineSPE`), inside it (`cosformer_features`) or after it (a rotation of the numerator).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.attention.fused import _checked_vector
from posenc_lib.positions import relative

Transform = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def elu_features(x: Tensor) -> Tensor:
    """The feature map of linear transformers: positive, smooth, and as wide as its input.

    Equation: φ(x) = elu(x) + 1 = x + 1 for x > 0, else exp(x)      (katharopoulos2020)
    Shapes: (..., d) → (..., d)

    Computed by its second form: the first rounds at the size of 1, and in float32 is 0 from x = −17 on.

    Args:
        x: queries or keys.

    Raises:
        TypeError, ValueError: x is no floating-point tensor with at least one dimension.

    Source: katharopoulos2020
    Chapter: 08
    """
    wide = _checks.floating_tensor("x", x, least_dims=1).to(_checks.at_least_float32(x.dtype))
    return torch.where(wide > 0, wide + 1, wide.clamp(max=0).exp()).to(x.dtype)


def orthogonal_projection(features: int, dim: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Random directions for `positive_features`: in blocks of d orthogonal to one another, each of Gaussian length.

    Equation: ω_1 … ω_M ~ N(0, I_d), made orthogonal in blocks of d, lengths drawn apart      (choromanski2021)
    Shapes: → (M, d), float64, on the CPU

    Args:
        features: M, at least 1.
        dim: d, at least 1.
        generator: of the draw, on the CPU.

    Raises:
        TypeError, ValueError: `features` or `dim` is no int of at least 1.

    Source: choromanski2021
    Chapter: 08
    """
    _checks.whole_number("features", features, least=1)
    _checks.whole_number("dim", dim, least=1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    def orthogonal() -> Tensor:
        # LAPACK makes the diagonal of Q never positive. Features that are not even would be biased by that: the signs
        # of R's diagonal undo it, and all orthogonal matrices are equally likely.
        q, r = torch.linalg.qr(normal(dim, dim))
        return torch.mul(q, r.diagonal().sign())

    blocks = [orthogonal() for _ in range(-(-features // dim))]
    lengths = normal(features, dim).norm(dim=-1, keepdim=True)
    return torch.mul(torch.cat(blocks)[:features], lengths)


def positive_features(x: Tensor, projection: Tensor) -> Tensor:
    """FAVOR+: random features whose dot products are, on average, softmax attention's weights.

    Equation: φ(x) = exp(Ω x − ‖x‖²/2) / √M,  E[φ(q)ᵀ φ(k)] = exp(qᵀ k)      (choromanski2021 lemma 1)
    Shapes: x (..., d), projection (M, d) → (..., M)

    For exp(qᵀk/√d) give q d^(−1/4) and k d^(−1/4). The variance grows exponentially with ‖q + k‖²: luo2021 normalises
    both to length 1. No running maximum is subtracted, so features don't depend on their neighbours. They get small,
    since the exponent is at most ‖ω‖²/2 and falls with ‖x‖²: in float32 it is below −88, and the feature 0, in most
    directions once ‖x‖² passes 176, and a query without any feature finds no key.

    Args:
        x: queries or keys.
        projection: Ω, from `orthogonal_projection`.

    Raises:
        TypeError, ValueError: x is no floating-point tensor; Ω has not its width.

    Source: choromanski2021, luo2021
    Chapter: 08
    """
    _checks.floating_tensor("x", x, least_dims=1)
    if _checks.floating_tensor("projection", projection, least_dims=2).shape[1:] != x.shape[-1:]:
        raise ValueError(f"projection must have shape (M, {x.shape[-1]}), got {tuple(projection.shape)}")
    compute = _checks.at_least_float32(x.dtype)
    wide, omega = x.to(compute), projection.to(compute).to(x.device)
    exponent = wide @ omega.mT - wide.square().sum(-1, keepdim=True) / 2
    return (exponent.exp() / math.sqrt(omega.shape[0])).to(x.dtype)


def cosformer_features(x: Tensor, positions: Tensor, *, length: int) -> Tensor:
    """cosFormer: a quarter turn spread over the sequence, so that weights fall with distance and stay positive.

    Equation: φ(x_m) = [ReLU(x) cos(πm/2M) | ReLU(x) sin(πm/2M)],  φ(q_m)ᵀ φ(k_n) = ReLU(q)ᵀ ReLU(k) cos(π(m − n)/2M)
        (qin2022; checked against the released code, which puts the sines first)
    Shapes: x (B, H, T, d), positions (T,) or (B, T) → (B, H, T, 2d)

    These features carry the position in numerator and denominator alike: no transform is needed.

    Args:
        x: queries or keys.
        positions: 0 … M, also of keys in a cache.
        length: M, the longest distance, fixed for all queries and keys. The released code takes the current length,
            which changes every old key with each new token.

    Raises:
        TypeError, ValueError: `length` is no int of at least 1; shapes that don't fit; on plain CPU tensors a position
            outside 0 … M, whose features would turn negative.

    Source: qin2022
    Chapter: 08
    """
    _checks.whole_number("length", length, least=1)
    if _checks.floating_tensor("x", x, least_dims=4).dim() != 4:
        raise ValueError(f"x must have shape (B, H, T, d), got {tuple(x.shape)}")
    _checks.token_positions("positions", positions, batch=x.shape[0], length=x.shape[2])
    if _checks.readable(positions) and bool(((positions < 0) | (positions > length)).any()):
        outside = positions[(positions < 0) | (positions > length)][0].item()
        raise ValueError(f"positions must lie in 0 … length = {length}, got {outside}")
    compute = _checks.at_least_float32(x.dtype)
    angle = positions.to(compute) * (math.pi / 2 / length)
    angle = angle[:, None] if angle.dim() == 1 else angle[:, None, :, None]  # (T, 1) or (B, 1, T, 1)
    content = x.to(compute).relu()
    # At m = M the cosine is 0, which rounding may turn into −4e-8.
    return torch.cat((content * angle.cos().clamp(min=0), content * angle.sin()), -1).to(x.dtype)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Linear attention over all keys: they are summed once, whatever the number of queries.

    Equation: o_m = Σ_n (R_m φ(q_m))ᵀ (R_n φ(k_n)) v_n / Σ_n φ(q_m)ᵀ φ(k_n)      (su2021 eq. 19; R = 1 is
        katharopoulos2020)
    Shapes: q (B, H, Tq, f), k (B, Hk, Tk, f), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v), in v's dtype

    Only the numerator is rotated: rotated features are not positive any more, and their sum can be zero or negative.
    So the weights may be negative, and they don't sum to 1. Positions added to the tokens need no transform.

    Args:
        q: φ(q), no entry below 0.
        k: φ(k), no entry below 0; Hk divides H.
        v: values.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        transform: of the numerator's features, such as `RoPE(inverse_frequencies(f)).transform`.
        mask: (B, Tk), True for a token, False for padding. A query without any key gets zeros.

    Raises:
        TypeError, ValueError: shapes that don't fit. On plain CPU tensors: a negative feature.

    Source: su2021, katharopoulos2020
    Chapter: 08
    """
    q, k, v, dtype = _operands(q, k, v, mask)
    _checks.token_positions("q_positions", q_positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("k_positions", k_positions, batch=k.shape[0], length=k.shape[2])
    turned_q, turned_k = _transformed(transform, q, k, q_positions, k_positions)
    return _quotient(turned_q @ (turned_k.mT @ v), q @ k.sum(2)[..., None]).to(dtype)


class LinearState(NamedTuple):
    """What causal linear attention keeps of all tokens so far, in place of a growing cache.

    Equation: S = Σ_n R_n φ(k_n) v_nᵀ,  z = Σ_n φ(k_n)
    Shapes: numerator (B, H, f, d_v), denominator (B, H, f)

    Args:
        numerator: S. Its keys are rotated by their own positions, so nothing in it changes with the next query.
        denominator: z.

    Source: katharopoulos2020
    Chapter: 08
    """

    numerator: Tensor
    denominator: Tensor


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
    state: LinearState | None = None,
) -> tuple[Tensor, LinearState]:
    """Causal linear attention by running sums; a recurrent step is the same function on one token.

    Equation: o_m = (R_m φ(q_m))ᵀ S_m / φ(q_m)ᵀ z_m,  S_m = S_{m−1} + R_m φ(k_m) v_mᵀ,  z_m = z_{m−1} + φ(k_m)
        (katharopoulos2020; su2021 eq. 19)
    Shapes: q (B, H, T, f), k (B, Hk, T, f), v (B, Hk, T, d_v) → (B, H, T, d_v) and the state after the last token

    A prompt may be cut into pieces anywhere: give each call the state that the last one returned. Tokens are summed in
    the order of the axis, whatever their positions, so a packed row must be cut at its documents. Holds S for every
    token of one call, T·f·d_v numbers a head; short pieces need less.

    Args:
        q, k, v, transform: as in `linear_attention`.
        positions: (T,) or (B, T), of queries and keys.
        mask: (B, T), True for a token, False for padding.
        state: after the tokens before these; none at the beginning.

    Raises:
        TypeError, ValueError: as `linear_attention`.

    Source: katharopoulos2020, su2021
    Chapter: 08
    """
    q, k, v, dtype = _operands(q, k, v, mask)
    _checks.token_positions("positions", positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("positions", positions, batch=k.shape[0], length=k.shape[2])
    turned_q, turned_k = _transformed(transform, q, k, positions, positions)
    numerator = (turned_k[..., :, None] * v[..., None, :]).cumsum(2)  # (B, H, T, f, d_v)
    denominator = k.cumsum(2)  # (B, H, T, f)
    if state is not None:
        _check_state(state, LinearState(numerator[:, :, 0], denominator[:, :, 0]))
        numerator = numerator + state.numerator[:, :, None]
        denominator = denominator + state.denominator[:, :, None]
    out = _quotient((turned_q[..., None, :] @ numerator).squeeze(-2), (q * denominator).sum(-1, keepdim=True))
    return out.to(dtype), LinearState(numerator[:, :, -1], denominator[:, :, -1])


# The costs by which `toeplitz_attention` chooses its form, in products of the form in chunks; measured, see there.
FFT_COST = 800  # of a number that the FFT convolves
PAIR_COST = 128  # of a pair of tokens, beside its f + d_v + 1 products: its weight is written, scaled and read
CHUNK = 128  # queries
COLUMNS = 16  # in one call of the FFT: with all 65 at 65,536 tokens it took twice as long


def toeplitz_attention(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """Linear attention with any relative bias: a Toeplitz matrix is applied by FFT and never built.

    Equation: o_m = Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) v_n / Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n),  c_r = exp(b_r)      (luo2021; derived,
        the paper's text was not at hand)
    Shapes: q (B, H, N, f), k (B, H, N, f), v (B, H, N, d_v), bias (H, 2N−1) → (B, H, N, d_v), in v's dtype

    In chunks of queries the matrix is a view of c: N² time, and exact. From some length on the FFT is faster, with
    N log N for each of f·(d_v + 1) columns. Measured on one thread of a CPU (AVX2) in float32 for d_v = 64: with 16
    features the FFT is faster from 4,000 tokens on (causal 8,000), with 64 features from 12,000 (causal 26,000); the
    form is chosen by that. Both hold O(N) numbers a head, for gradients too: each part is then computed twice.

    An FFT rounds at the size of its largest sum: a weight much below the head's largest c keeps few digits, and so does
    a row whose sums are much below the largest. With `causal` the future leaks into the first rows at that level. In
    float32 that is 1e-6 where c falls fast, but for a constant bias it grows with the length, to 1e-3 at 65,536 tokens.

    Args:
        q: φ(q), no entry below 0.
        k: φ(k), no entry below 0.
        v: values.
        bias: b_{−(N−1)} … b_{N−1} of consecutive positions, as `fused.relative_bias_vector` makes them; the middle of a
            longer vector is that of a shorter one.
        causal: set c_r = 0 for keys after the query.
        mask: (B, N), True for a token, False for padding.

    Raises:
        TypeError, ValueError: shapes that don't fit; `causal` is no bool. On plain CPU tensors: a negative feature.

    Source: luo2021
    Chapter: 08
    """
    q, k, v, dtype = _operands(q, k, v, mask)
    length, features, columns = k.shape[2], k.shape[3], v.shape[3] + 1
    if q.shape[2] != length:
        raise ValueError(f"q must have k's length {length}: both hold the same positions; got {q.shape[2]}")
    b = _checked_vector(bias, q.shape[1], length, length, causal).to(q.dtype).to(q.device)
    largest = b.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(b.dtype).min)  # not −∞, if all is hidden
    c = (b - largest).exp()  # the maximum cancels
    values = torch.cat((v, torch.ones_like(v[..., :1])), -1)  # of the numerator, and ones of the denominator
    pairs = length / 2 if causal else length  # of a query, on average
    by_fft = pairs * (features + columns + PAIR_COST) > FFT_COST * features * columns
    both = (_toeplitz_by_fft if by_fft else _toeplitz_in_chunks)(q, k, values, c, causal)
    return _quotient(both[..., :-1], both[..., -1:]).to(dtype)


def _toeplitz_in_chunks(q: Tensor, k: Tensor, values: Tensor, c: Tensor, causal: bool) -> Tensor:
    """Σ_n c_{n−m} φ(q_m)ᵀ φ(k_n) x_n for every column x: chunks of queries, whose part of the matrix is a view."""
    length, parts = k.shape[2], []

    def chunk(q: Tensor, k: Tensor, values: Tensor, c: Tensor) -> Tensor:
        weights = q.flip(-2) @ k.mT * c.unfold(-1, k.shape[2], 1)  # queries run backwards, as in `hankel_attention`
        return (weights @ values).flip(-2)

    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        keys = stop if causal else length
        window = c[:, length - stop : length - start + keys - 1]
        parts.append(_again(chunk, q[:, :, start:stop], k[:, :, :keys], values[:, :, :keys], window))
    return torch.cat(parts, 2)


def _toeplitz_by_fft(q: Tensor, k: Tensor, values: Tensor, c: Tensor, _: bool) -> Tensor:
    """The same sums as Σ_i φ_i(q_m) (c ∗ φ_i(k) x)_m: convolutions on a circle, those of one feature at a time."""
    length = k.shape[2]
    power = 1
    while 8 * power < 2 * length - 1:
        power *= 2
    around = -(-(2 * length - 1) // power) * power  # at least 2N − 1; 5 … 8 times a power of two, which FFTs like
    zeros = c.new_zeros(c.shape[0], around - 2 * length + 1)
    circle = torch.cat((c[:, :length].flip(-1), zeros, c[:, length:].flip(-1)), -1)  # of m − n, from 0 on
    wave = torch.fft.rfft(circle)[:, None]
    columns = values.mT.contiguous()  # (B, H, d_v + 1, N): neighbours in time are neighbours in memory
    sums = []

    def feature(q: Tensor, k: Tensor, columns: Tensor, wave: Tensor) -> Tensor:
        convolved = torch.fft.irfft(torch.fft.rfft(k[..., None, :] * columns, n=around) * wave, n=around)
        return torch.mul(q[..., None, :], convolved[..., :length])

    for some in columns.split(COLUMNS, 2):
        total = torch.zeros_like(some)
        for q_i, k_i in zip(q.unbind(-1), k.unbind(-1), strict=True):
            total = total + _again(feature, q_i, k_i, some, wave)
        sums.append(total)
    both = torch.cat(sums, 2).mT
    # Without keys both are the FFT's rounding, and their quotient is anything. Whole numbers of keys survive it.
    some_key = torch.zeros_like(q[..., 0], dtype=torch.bool)
    wave = torch.fft.rfft((circle.detach() != 0).to(c.dtype))
    for q_i, k_i in zip(q.detach().unbind(-1), k.detach().unbind(-1), strict=True):
        number = torch.fft.irfft(torch.fft.rfft((k_i != 0).to(c.dtype), n=around) * wave, n=around)[..., :length]
        some_key = some_key | ((q_i != 0) & (number > 0.5))
    return torch.cat((both[..., :-1], both[..., -1:].masked_fill(~some_key[..., None], 0)), -1)


def _again(part: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """One part of a sum. For the gradient it is computed again: kept, all parts would take N² or N·f·d_v numbers."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        part = partial(checkpoint, part, use_reentrant=False, preserve_rng_state=False)
    out: Tensor = part(*tensors)
    return out


def retention_decays(heads: int) -> Tensor:
    """RetNet's decays: each head forgets half as fast as the one before.

    Equation: γ_h = 1 − 2^(−5−h),  h = 0 … H−1      (sun2023r; checked against the released code)
    Shapes: → (H,), float64, on the CPU

    Args:
        heads: H, at least 1.

    Raises:
        TypeError, ValueError: `heads` is no int of at least 1.

    Source: sun2023r
    Chapter: 18
    """
    _checks.whole_number("heads", heads, least=1)
    return 1 - torch.exp2(-5 - torch.arange(heads, dtype=torch.float64, device="cpu"))


def retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    decays: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Retention, the quadratic form: no softmax, and weights that decay exponentially with distance.

    Equation: o_m = Σ_{n≤m} γ^(m−n) (R_m q_m)ᵀ (R_n k_n) v_n / √d      (sun2023r; checked against the released code)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v), decays (H,) → (B, H, Tq, d_v), in v's dtype

    γ^(m−n) is exp of ALiBi's bias with slope −log γ. RetNet rotates query and key (`transform`) and normalises each
    head of the output, which undoes any factor that a row has in common; that is left to the caller.

    Args:
        q: queries, projected; no feature map.
        k: keys, projected.
        v: values.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        decays: γ of each head, above 0 and at most 1.
        transform: rotation of query and key, such as `RoPE(...).transform`.
        mask: (B, Tk), True for a token, False for padding.

    Raises:
        TypeError, ValueError: shapes that don't fit. On plain CPU tensors: a decay outside (0, 1].

    Source: sun2023r
    Chapter: 18
    """
    q, k, v, dtype = _operands(q, k, v, mask, positive=False)
    _checks.token_positions("q_positions", q_positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("k_positions", k_positions, batch=k.shape[0], length=k.shape[2])
    rate = _log_decays(decays, q)[:, None, None]  # (H, 1, 1)
    turned_q, turned_k = _transformed(transform, q, k, q_positions, k_positions)
    r = relative(q_positions, k_positions)
    decay = (-rate * r.clamp(max=0).to(q.dtype)).exp() * (r <= 0)  # (H, Tq, Tk) or (B, H, Tq, Tk)
    weights = turned_q @ turned_k.mT * decay / math.sqrt(q.shape[-1])
    return (weights @ v).to(dtype)


class RetentionState(NamedTuple):
    """What the recurrent form of retention keeps of all tokens so far.

    Equation: S_m = γ^(m−m′) S_{m′} + R_m k_m v_mᵀ, m′ the token before
    Shapes: memory (B, H, d, d_v), positions () or (B,)

    Args:
        memory: S after the last token.
        positions: of the last token.

    Source: sun2023r
    Chapter: 18
    """

    memory: Tensor
    positions: Tensor


def recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor,
    decays: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
    state: RetentionState | None = None,
) -> tuple[Tensor, RetentionState]:
    """Retention, the recurrent form: one matrix a head is kept, and decays with every step.

    Equation: S_m = γ^(m−m′) S_{m′} + R_m k_m v_mᵀ,  o_m = (R_m q_m)ᵀ S_m / √d,  m′ the token before
        (sun2023r, where m − m′ = 1)
    Shapes: as `retention` with Tq = Tk = T → (B, H, T, d_v) and the state after the last token

    Args:
        q, k, v, decays, transform, mask: as in `retention`.
        positions: (T,) or (B, T), of queries and keys, which never go back.
        state: after the tokens before these; none at the beginning.

    Raises:
        TypeError, ValueError: as `retention`. On plain CPU tensors: positions that go back.

    Source: sun2023r
    Chapter: 18
    """
    q, k, v, dtype = _operands(q, k, v, mask, positive=False)
    _checks.token_positions("positions", positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("positions", positions, batch=k.shape[0], length=k.shape[2])
    positions = _checks.attention_positions("positions", positions)
    rate = _log_decays(decays, q)  # (H,)
    turned_q, turned_k = _transformed(transform, q, k, positions, positions)
    empty = RetentionState(q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), positions[..., 0])
    if state is not None:
        _check_state(state, empty)
    memory, last = empty if state is None else state
    out = []
    for t in range(q.shape[2]):
        gap = positions[..., t] - last  # () or (B,)
        if _checks.readable(gap) and bool((gap < 0).any()):
            raise ValueError(
                "positions must never go back, or what was forgotten would grow again: cut a packed row at its "
                f"documents; got a step of {gap.min().item()}"
            )
        step = gap.to(q.dtype)[..., None, None, None]  # (1, 1, 1) or (B, 1, 1, 1)
        memory = (rate[:, None, None] * step).exp() * memory + turned_k[:, :, t, :, None] * v[:, :, t, None, :]
        out.append(turned_q[:, :, t, None, :] @ memory)
        last = positions[..., t]
    return (torch.cat(out, 2) / math.sqrt(q.shape[-1])).to(dtype), RetentionState(memory, last)


class _StochasticPositions(nn.Module):
    """What sineSPE and convSPE share: q̂_m = Σ_c q_mc Q̄_c(m),  k̂_n = Σ_c k_nc K̄_c(n).  The codes Q̄ and K̄ are theirs."""

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each as R realizations."""
        q_codes, k_codes = self.codes(q_positions, k_positions, noise)
        return _realized("q", q, q_positions, q_codes), _realized("k", k, k_positions, k_codes)

    def codes(self, q_positions: Tensor, k_positions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class SineSPE(_StochasticPositions):
    """sineSPE: queries and keys meet random waves of their positions, whose correlation is a learned relative kernel.

    Equation: q̂_m = Σ_c q_mc Q̄_c(m),  k̂_n = Σ_c k_nc K̄_c(n),  E[q̂_mᵀ k̂_n] / √R = Σ_c q_mc k_nc P_c(m − n) / √d,
        P_c(r) = Σ_j λ_cj² cos(2π f_cj r + θ_cj) / 2J      (liutkus2021; normalised as in the released code)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, R), (B, H, Tk, R)

    The caller draws the noise and holds it: the same for queries and keys, in every layer or anew in each, for as long
    as a cache lives. With `partial(spe.transform, noise=noise)` as a scheme's transform, attention's own scale 1/√R is
    right. For linear attention apply the feature map to q̂ and k̂. No gate is included.

    Args:
        heads: H.
        head_dim: d.
        waves: J, for each channel. f = σ(frequencies)/2 and λ = softplus(gains) begin as in the released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are no ints of at least 1. When called: shapes that don't fit.

    Source: liutkus2021
    Chapter: 18
    """

    def __init__(self, heads: int, head_dim: int, *, waves: int = 1, generator: torch.Generator | None = None) -> None:
        super().__init__()
        _checks.sizes(heads=heads, head_dim=head_dim, waves=waves)
        self.frequencies, self.offsets, self.gains = (
            normal(heads, head_dim, waves, std=1.0, generator=generator) for _ in range(3)
        )
        with torch.no_grad():
            self.frequencies.sub_(4)  # slow waves, for a long reach
            self.gains.mul_(2 / self.gains.norm(dim=-1, keepdim=True).sqrt())

    def draw(self, realizations: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Noise z ~ N(0, 1) for R realizations: (H, d, 2J, R)."""
        _checks.whole_number("realizations", realizations, least=1)
        heads, head_dim, waves = self.gains.shape
        return _noise(heads, head_dim, 2 * waves, realizations, like=self.gains, generator=generator)

    def kernel(self, relative_positions: Tensor) -> Tensor:
        """P_c of the distance m − n, given n − m (key − query) of any shape S: (H, d, *S)."""
        r = _checks.position_tensor("relative_positions", relative_positions)[..., None]  # (*S, 1)
        f, theta, power = (x.reshape(*x.shape[:2], *[1] * (r.dim() - 1), -1) for x in _waves(self))
        wide = _checks.float64_on(r.device)
        angle = theta - 2 * math.pi * f.to(wide) * r.to(wide)
        return (power * angle.cos().to(power.dtype)).sum(-1).to(self.gains.dtype)

    def codes(self, q_positions: Tensor, k_positions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Q̄ and K̄, R realizations of each: (H, d, T, R) or (B, H, d, T, R)."""
        f, theta, power = _waves(self)
        _check_noise(noise, power, least=2 * power.shape[2], most=2 * power.shape[2])
        amplitude = power.sqrt().repeat_interleave(2, -1)[..., None] * noise.to(power.dtype)  # (H, d, 2J, R)

        def code(name: str, positions: Tensor, offsets: Tensor | float) -> Tensor:
            p = _column(_checks.attention_positions(name, positions))
            phase = 2 * math.pi * f[:, :, None].to(p.dtype) * p + offsets  # (H, d, T, J) or (B, H, d, T, J)
            waves = torch.stack((phase.cos(), phase.sin()), -1).flatten(-2)
            return waves.to(amplitude.dtype) @ amplitude

        return code("q_positions", q_positions, theta[:, :, None]), code("k_positions", k_positions, 0.0)


class ConvSPE(_StochasticPositions):
    """convSPE: the random codes are noise along the positions, smoothed by two learned filters.

    Equation: Q̄_c(m) = Σ_p φ_cp z_c(m + p),  K̄_c(n) = Σ_p ψ_cp z_c(n + p),  p = 0 … P−1;  then as in `SineSPE`, with
        P_c(r) = Σ_p φ_cp ψ_c,p+r, zero from |r| = P on      (liutkus2021; checked against the released code)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, R), (B, H, Tk, R)

    Args:
        heads: H.
        head_dim: d.
        kernel_size: P, the reach. The filters begin uniform in [0, √(2/P)), as in the released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are no ints of at least 1. When called: shapes that don't fit, positions that
            are no integers; on plain CPU tensors a position outside the noise.

    Source: liutkus2021
    Chapter: 18
    """

    def __init__(
        self, heads: int, head_dim: int, *, kernel_size: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        _checks.sizes(heads=heads, head_dim=head_dim, kernel_size=kernel_size)

        def uniform() -> nn.Parameter:
            empty = torch.empty(heads, head_dim, kernel_size)
            return nn.Parameter(nn.init.uniform_(empty, 0, (2 / kernel_size) ** 0.5, generator=generator))

        self.q_filter, self.k_filter = uniform(), uniform()

    def draw(self, length: int, realizations: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Noise z ~ N(0, 1) for positions 0 … length−1 and R realizations: (H, d, length + P − 1, R)."""
        _checks.sizes(length=length, realizations=realizations)
        heads, head_dim, size = self.q_filter.shape
        return _noise(heads, head_dim, length + size - 1, realizations, like=self.q_filter, generator=generator)

    def kernel(self, relative_positions: Tensor) -> Tensor:
        """P_c of the distance m − n, given n − m (key − query) of any shape S: (H, d, *S)."""
        size = self.q_filter.shape[-1]
        shifted = nn.functional.pad(self.k_filter, (size - 1, size)).unfold(-1, size, 1)  # (H, d, 2P, P)
        table = (shifted * self.q_filter[..., None, :]).sum(-1)  # of m − n = −(P−1) … P, where it is zero
        distance = -_checks.position_tensor("relative_positions", relative_positions)
        if distance.is_floating_point():
            raise TypeError(f"relative_positions must be integers, got {relative_positions.dtype}")
        return table[..., torch.where(distance.abs() < size, distance + size - 1, 2 * size - 1)]

    def codes(self, q_positions: Tensor, k_positions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Q̄ and K̄, R realizations of each: (H, d, T, R) or (B, H, d, T, R)."""
        _check_noise(noise, self.q_filter, least=self.q_filter.shape[2], most=None)

        def code(name: str, positions: Tensor, taps: Tensor) -> Tensor:
            length = noise.shape[2] - taps.shape[-1] + 1
            positions = _places(name, positions, length)
            channels = noise.to(taps.dtype).flatten(0, 1).movedim(-1, 0)  # (R, H·d, length + P − 1)
            smooth = nn.functional.conv1d(channels, taps.flatten(0, 1)[:, None], groups=channels.shape[1])
            picked = smooth.reshape(-1, *taps.shape[:2], length)[..., positions]  # (R, H, d, T) or (R, H, d, B, T)
            return picked.movedim(0, -1) if positions.dim() == 1 else picked.movedim(3, 0).movedim(1, -1)

        return code("q_positions", q_positions, self.q_filter), code("k_positions", k_positions, self.k_filter)


def _transformed(
    transform: Transform | None, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor]:
    if transform is None:
        return q, k
    turned: tuple[Tensor, Tensor] = _checks.called("transform", transform)(q, k, q_positions, k_positions)
    return turned


def _noise(*shape: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)


def _check_noise(noise: Tensor, like: Tensor, *, least: int, most: int | None) -> None:
    heads, head_dim = like.shape[:2]
    shape = tuple(_checks.floating_tensor("noise", noise, least_dims=4).shape)
    if len(shape) != 4 or shape[:2] != (heads, head_dim) or shape[2] < least or (most is not None and shape[2] > most):
        raise ValueError(f"noise must be what draw(...) of this module gave, ({heads}, {head_dim}, …, R); got {shape}")


def _waves(spe: SineSPE) -> tuple[Tensor, Tensor, Tensor]:
    """f, θ and λ²/2J of sineSPE, in float32 at least."""
    compute = _checks.at_least_float32(spe.gains.dtype)
    frequencies, offsets, gains = (x.to(compute) for x in (spe.frequencies, spe.offsets, spe.gains))
    power = nn.functional.softplus(gains).square() / (2 * gains.shape[-1])
    return frequencies.sigmoid() / 2, offsets, power


def _column(positions: Tensor) -> Tensor:
    """Positions as (T, 1) or (B, 1, 1, T, 1): beside heads, channels and waves, in float64 where the device has it."""
    wide = positions.to(_checks.float64_on(positions.device))
    return wide[:, None] if wide.dim() == 1 else wide[:, None, None, :, None]


def _places(name: str, positions: Tensor, length: int) -> Tensor:
    """Positions as indices into noise that was drawn for 0 … length − 1."""
    places = _checks.attention_positions(name, positions)
    if places.is_floating_point():
        raise TypeError(f"{name} must be integers, places in the noise; got {places.dtype}")
    if _checks.readable(places) and bool(((places < 0) | (places >= length)).any()):
        outside = places[(places < 0) | (places >= length)][0].item()
        raise ValueError(f"{name} must lie in 0 … {length - 1}, for which noise was drawn; got {outside}")
    return places


def _realized(name: str, x: Tensor, positions: Tensor, code: Tensor) -> Tensor:
    """x (B, H, T, d) with a code (H, d, T, R) or (B, H, d, T, R) → (B, H, T, R)."""
    heads, head_dim = code.shape[-4:-2]
    if _checks.floating_tensor(name, x, least_dims=4).dim() != 4 or (x.shape[1], x.shape[3]) != (heads, head_dim):
        raise ValueError(f"{name} must have shape (B, {heads}, T, {head_dim}), got {tuple(x.shape)}")
    _checks.token_positions(f"{name}_positions", positions, batch=x.shape[0], length=x.shape[2])
    compute = _checks.at_least_float32(x.dtype, code.dtype)
    batch = "b" if code.dim() == 5 else ""
    encoded = torch.einsum(f"bhtc,{batch}hctr->bhtr", x.to(compute), code.to(compute))
    return (encoded / math.sqrt(math.sqrt(code.shape[-1] * head_dim))).to(x.dtype)


def _operands(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, positive: bool = True
) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """q, k and v in float32 at least, keys repeated for their queries, padding zero; and the dtype of the result."""
    _checks.grouped_heads(q, k)
    _checks.values_of(k, v)
    for name, x in (("q", q), ("k", k)) if positive else ():
        if _checks.readable(x) and bool((x < 0).any()):
            raise ValueError(
                f"{name} must hold features of at least 0, as elu_features or positive_features give them; "
                f"got {x[x < 0][0].item()}"
            )
    compute, dtype = _checks.at_least_float32(q.dtype, k.dtype, v.dtype), v.dtype
    if mask is not None:
        tokens = _checks.token_mask("mask", mask)
        if tokens.shape != (k.shape[0], k.shape[2]):
            raise ValueError(f"mask must have shape (B, T) = {(k.shape[0], k.shape[2])}, got {tuple(mask.shape)}")
        k = k.masked_fill(~tokens[:, None, :, None], 0)
    groups = q.shape[1] // k.shape[1]
    k, v = (x.to(compute).repeat_interleave(groups, 1) for x in (k, v))
    return q.to(compute), k, v, dtype


def _check_state(state: LinearState | RetentionState, like: LinearState | RetentionState) -> None:
    """Whether the state is of this kind and, but for a position that a batch shares, of these shapes."""
    if not isinstance(state, type(like)):
        raise TypeError(f"state must be a {type(like).__name__} or None, got {state!r}")
    for name, got, wanted in zip(like._fields, state, like, strict=True):
        if got.shape != wanted.shape and name != "positions":
            raise ValueError(f"state.{name} must have shape {tuple(wanted.shape)}, got {tuple(got.shape)}")


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero, not NaN, where no key counts. A denominator that is NaN stays that."""
    none = denominator <= 0
    return torch.where(none, 0, numerator / torch.where(none, 1, denominator))


def _log_decays(decays: Tensor, q: Tensor) -> Tensor:
    if _checks.floating_tensor("decays", decays, least_dims=1).shape != (q.shape[1],):
        raise ValueError(f"decays must have shape (H,) = ({q.shape[1]},), got {tuple(decays.shape)}")
    if _checks.readable(decays) and not bool(((decays > 0) & (decays <= 1)).all()):
        outside = decays[~((decays > 0) & (decays <= 1))][0].item()
        raise ValueError(f"decays must be above 0 and at most 1, got {outside}")
    # In the decays' own dtype: near 1 a float32 γ has lost the digits that log γ consists of.
    return decays.log().to(q.dtype).to(q.device)
