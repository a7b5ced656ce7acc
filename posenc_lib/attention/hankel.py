"""Softmax attention with a relative bias and no n×n matrix of biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc_lib import _checks
from posenc_lib._torch import flash_attention_on_cpu
from posenc_lib.attention.toeplitz import checked_vector

# Devices whose kernel takes an overlapping view as its mask.
_READ_VIEWS = ("cpu",)
# Scores that a backward pass holds at a time: more heads at once for short sequences.
_PIECE = 2**20

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def hankel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor,
    causal: bool,
    mask: Tensor | None = None,
    scale: float | None = None,
    chunk: int = 256,
) -> Tensor:
    """Softmax attention with a relative bias, whose matrix is a view of one vector.

    Equation: e_mn = scale · q_mᵀ k_n + b_{n−m}; with the queries counted from the last,
        u = Tk − 1 − m, the bias of (u, n) is entry u + n of the vector
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v), bias (H, 2N−1)
        → (B, H, Tq, d_v), in v's dtype

    A Toeplitz matrix with its rows reversed is a Hankel matrix, constant along
    anti-diagonals: an overlapping view, which the kernel on the CPU reads without
    copying it. The backward pass computes the weights again, chunk by chunk, and sums
    their gradient along anti-diagonals. Memory is linear in the length both ways; there
    is no second derivative. On a GPU the scores of a chunk are made in full:
    FlexAttention is faster there (`relative_score_mod`).

    Keys are consecutive and the queries are the last Tq of them: all, or with a cache
    the new ones. Padding counts as tokens, so that distances stay right, and `mask`
    hides its keys. A query without a key gives zeros. 16-bit inputs are multiplied in
    16 bits forwards, and in float32 backwards.

    Args:
        q: queries, the last Tq of the Tk tokens.
        k: keys.
        v: values.
        bias: b_{−(N−1)} … b_{N−1}, from `relative_bias_vector`, N at least Tk: one
            vector serves a growing cache.
        causal: hide keys after the query.
        mask: (B, Tk), True for a token, False for padding.
        scale: factor of qᵀk; None is 1/√d. T5 has 1.
        chunk: queries whose scores are made together.

    Raises:
        TypeError, ValueError: shapes that don't fit; `causal` is not a bool; `chunk` is
            not an integer ≥ 1.

    Source: dao2022
    Checked: derived, unchecked
    Chapter: 08
    """
    _checks.grouped_heads(q, k)
    _checks.values_of(k, v)
    queries, keys = q.shape[2], k.shape[2]
    if not 1 <= queries <= keys:
        raise ValueError(
            f"q must be the last of k's {keys} tokens, got {queries} queries"
        )
    _checks.whole_number("chunk", chunk, least=1)
    scale = q.shape[3] ** -0.5 if scale is None else _checks.positive("scale", scale)
    if mask is not None:
        mask = _checks.token_mask("mask", mask).to(q.device)
        if mask.shape != (k.shape[0], keys):
            raise ValueError(
                f"mask must have shape (B, Tk) = {(k.shape[0], keys)}, got "
                f"{tuple(mask.shape)}"
            )
    vector = checked_vector(bias, q.shape[1], queries, keys, causal)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    vector = vector.to(q.device, _checks.at_least_float32(dtype))
    vector = vector.contiguous()  # a view of neighbours is what the kernel reads fast
    # Without gradients `apply` would be half of the time of a short call.
    run = _Hankel.apply if torch.is_grad_enabled() else _Hankel.forward
    with _checks.without_autocast(q.device):
        out, _ = run(
            q.to(dtype), k.to(dtype), v.to(dtype), vector, mask, causal, scale, chunk
        )
    return cast(Tensor, out).to(v.dtype)


class _Hankel(torch.autograd.Function):
    """`hankel_attention` on checked inputs of one dtype.

    `vector` (H, Tq + Tk − 1) has −∞ for keys that are hidden. The second result is the
    log of each softmax's denominator, (B, H, Tq), from which the backward pass computes
    the weights again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        vector: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        queries, value_dim = q.shape[2], v.shape[3]
        attend: Attend = _by_products
        if q.device.type in _READ_VIEWS:
            attend = flash_attention_on_cpu
            # The view can't hide padding: it holds one number for a whole
            # anti-diagonal, which crosses many keys. A channel of q and k hides it.
            # With one query (decoding) the bias is one row, which is masked below.
            if mask is not None and queries > 1:
                q, k = _with_mask_channel(q, k, mask)
                mask = None
            q, k, v = _of_one_width(q, k, v)
        outputs, denominators = [], []
        for start, stop, seen in _chunks(queries, k.shape[2], causal, chunk):
            rows = slice(queries - stop, queries - start)
            biases = vector[:, start : stop + seen - 1]
            biases = biases.unfold(-1, seen, 1)[None]  # (1, H, stop − start, seen)
            if mask is not None:
                biases = biases.masked_fill(~mask[:, None, None, :seen], -math.inf)
            q_rows = q[:, :, rows].flip(2)
            output, denominator = attend(
                q_rows, k[:, :, :seen], v[:, :, :seen], biases, scale
            )
            outputs.append(output[..., :value_dim].flip(2))
            denominators.append(denominator.flip(2))
        del q, k, v  # frees the wider copies before the results are joined
        return torch.cat(outputs[::-1], 2), torch.cat(denominators[::-1], 2)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*inputs[:5], *output)
        ctx.mark_non_differentiable(output[1])
        ctx.options = inputs[5:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        with _checks.without_autocast(grad.device):
            grads = _HankelGradients.apply(grad, *ctx.saved_tensors, *ctx.options)  # type: ignore[no-untyped-call]
        return *grads, None, None, None, None


class _HankelGradients(torch.autograd.Function):
    """The gradients, which have none themselves.

    Without this class a second derivative would be wrong without an error.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return _hankel_gradients(*inputs)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]
    ) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            "hankel_attention has no second derivative; attention(...) has"
        )


def _chunks(
    queries: int, keys: int, causal: bool, chunk: int
) -> Iterator[tuple[int, int, int]]:
    """Chunks start … stop of the queries, counted from the last, and their keys."""
    for start in range(0, queries, chunk):
        yield start, min(start + chunk, queries), keys - start if causal else keys


def _with_mask_channel(q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """One more channel: 1 in every query, and 0 in a key, or −∞ where it is hidden."""
    channel = torch.zeros_like(k[..., :1])
    channel = channel.masked_fill(~mask[:, None, :, None], -math.inf)
    return pad(q, (0, 1), value=1.0), torch.cat((k, channel), -1)


def _of_one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Channels of zeros, which change no sum: the kernel requires d = d_v."""
    width = max(q.shape[3], v.shape[3])
    q, k, v = (
        x if x.shape[3] == width else pad(x, (0, width - x.shape[3])) for x in (q, k, v)
    )
    return q, k, v


def _by_products(
    q: Tensor, k: Tensor, v: Tensor, biases: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain products.

    It is for devices whose kernels require a mask that is aligned in memory.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1).to(biases.dtype) for x in (k, v))
    scores = (q.to(biases.dtype) @ k.mT) * scale + biases
    denominators = scores.logsumexp(-1)
    # 0 in place of −∞ gives weights of 0 where there is no key.
    denominators = denominators.masked_fill(denominators == -math.inf, 0)
    return ((scores - denominators[..., None]).exp() @ v).to(q.dtype), denominators


def _hankel_gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    vector: Tensor,
    mask: Tensor | None,
    out: Tensor,
    denominators: Tensor,
    causal: bool,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the vector, for some heads and some queries at a time.

    With weights α and outputs o: ∂v_n = Σ_m α_mn ∂o_m, and the gradient of a score is
    α_mn (∂o_mᵀ v_n − ∂o_mᵀ o_m). From it follow those of q, k and b.
    """
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    dtype = vector.dtype
    # One matrix (T, channels) for each sequence and head: (B·H, T, channels).
    flat_q, flat_k, flat_v, flat_grad = (
        _flat_heads(x, heads, dtype) for x in (q, k, v, grad_out)
    )
    log_sums = _flat_heads(denominators[..., None], heads, dtype)  # (B·H, Tq, 1)
    products = (grad_out.to(dtype) * out).sum(-1, keepdim=True)
    products = _flat_heads(products, heads, dtype)  # ∂o_mᵀ o_m: (B·H, Tq, 1)
    vectors = vector.repeat(batch, 1)  # (B·H, Tq + Tk − 1)
    if mask is not None:
        hidden = vector.new_zeros(batch, 1, keys)
        hidden = hidden.masked_fill(~mask[:, None], -math.inf)
        hidden = hidden.repeat_interleave(heads, 0)  # (B·H, 1, Tk)
    grad_q, grad_k, grad_v, grad_vector = (
        flat_grad.new_zeros(x.shape) for x in (flat_q, flat_k, flat_v, vectors)
    )
    heads_at_once = max(1, _PIECE // (min(chunk, queries) * keys))
    for first in range(0, batch * heads, heads_at_once):
        group = slice(first, first + heads_at_once)
        for start, stop, seen in _chunks(queries, keys, causal, chunk):
            rows = slice(queries - stop, queries - start)
            diagonals = slice(start, stop + seen - 1)
            size = stop - start
            chunk_q, chunk_grad, chunk_log_sums, chunk_products = (
                x[group, rows].flip(1) for x in (flat_q, flat_grad, log_sums, products)
            )
            biases = vectors[group, diagonals].unfold(-1, seen, 1)
            weights = biases - chunk_log_sums
            weights.baddbmm_(chunk_q, flat_k[group, :seen].mT, alpha=scale)
            if mask is not None:
                weights += hidden[group, :, :seen]
            weights.exp_()
            grad_v[group, :seen].baddbmm_(weights.mT, chunk_grad)
            # `size` columns of zeros behind the scores are what `_diagonal_sums` needs.
            padded = flat_grad.new_empty(weights.shape[0], size, seen + size)
            padded[..., seen:] = 0
            grad_scores = padded[..., :seen]
            grad_scores.baddbmm_(chunk_grad, flat_v[group, :seen].mT, beta=0)
            grad_scores.sub_(chunk_products).mul_(weights)
            rows_of_q = (grad_scores @ flat_k[group, :seen]).mul_(scale)
            grad_q[group, rows] = rows_of_q.flip(1)
            grad_k[group, :seen].baddbmm_(grad_scores.mT, chunk_q, alpha=scale)
            grad_vector[group, diagonals] += _diagonal_sums(padded)
    return (
        grad_q.unflatten(0, (batch, heads)).to(q.dtype),
        _grouped(grad_k, heads, k),
        _grouped(grad_v, heads, v),
        grad_vector.unflatten(0, (batch, heads)).sum(0),
    )


def _diagonal_sums(padded: Tensor) -> Tensor:
    """Sums along the anti-diagonals of (…, size, seen): (…, size + seen − 1).

    `padded` has `size` more columns of zeros. Read as rows that are one number shorter,
    row i moves i columns to the right, and anti-diagonals become columns.
    """
    size = padded.shape[-2]
    columns: Tensor = padded.flatten(1)[:, :-size].unflatten(1, (size, -1))
    return columns.sum(1)


def _flat_heads(x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """One matrix for each sequence and head of q: (B, Hk, T, d) → (B·H, T, d)."""
    groups = heads // x.shape[1]
    return x.to(dtype)[:, :, None].expand(-1, -1, groups, -1, -1).flatten(0, 2)


def _grouped(gradient: Tensor, heads: int, x: Tensor) -> Tensor:
    """The sum over the queries' heads of each head of x: (B·H, T, d) → (B, Hk, T, d).

    No copy is made where a head of x serves one head of q.
    """
    batch, x_heads = x.shape[:2]
    groups: Tensor = gradient.unflatten(0, (batch, x_heads, heads // x_heads))
    return (groups.squeeze(2) if groups.shape[2] == 1 else groups.sum(2)).to(x.dtype)
