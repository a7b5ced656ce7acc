"""Softmax attention with a relative bias and no n×n matrix of biases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc_lib import _checks
from posenc_lib._torch import flash_attention_on_cpu
from posenc_lib.attention.toeplitz import checked_vector

_READ_VIEWS = ("cpu",)  # devices whose kernel takes an overlapping view as its mask
_PIECE = (
    2**20
)  # scores that a backward pass holds at a time: more heads together where the sequence is short


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
    """Softmax attention with a relative bias and no n×n tensor: the matrix of biases is a view of one vector.

    Equation: e_mn = scale · q_mᵀ k_n + b_{n−m}; with the queries counted from the last,
        u = Tk − 1 − m, the bias of (u, n) is entry u + n of the vector
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v), bias (H, 2N−1) → (B,
        H, Tq, d_v), in v's dtype

    A Toeplitz matrix with its rows reversed is a Hankel matrix, constant along
    anti-diagonals: an overlapping view, which the kernel on the CPU reads without
    copying it. The backward pass makes the weights again, chunk by chunk, and sums
    their gradient along anti-diagonals. Memory is linear in the length both ways; there
    is no second derivative. On a GPU the scores of a chunk are made in full:
    FlexAttention is faster there (`relative_score_mod`).

    Keys are consecutive and the queries are the last Tq of them: all, or with a cache
    the new ones. Padding keeps its place in the count, so that distances stay right,
    and `mask` hides its keys. A query without a key gives zeros. 16-bit inputs are
    multiplied in 16 bits forwards, and in float32 backwards.

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
        TypeError, ValueError: shapes that don't fit; `causal` is no bool; `chunk` is
            not an integer ≥ 1.

    Source: dao2022
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
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    vector = checked_vector(bias, q.shape[1], queries, keys, causal).to(
        q.device, _checks.at_least_float32(dtype)
    )
    vector = vector.contiguous()  # a view of neighbours is what the kernel reads fast
    run = (
        _Hankel.apply if torch.is_grad_enabled() else _Hankel.forward
    )  # which is half of the time of a short call
    with _checks.without_autocast(q.device):
        out, _ = run(
            q.to(dtype), k.to(dtype), v.to(dtype), vector, mask, causal, scale, chunk
        )
    return cast(Tensor, out).to(v.dtype)


class _Hankel(torch.autograd.Function):
    """`hankel_attention` on checked inputs of one dtype; `vector` (H, Tq + Tk − 1) has −∞ for keys that are hidden.

    Returns the log of each softmax's denominator too, (B, H, Tq), from which the
    backward pass has the weights again.
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
        queries, width = q.shape[2], v.shape[3]
        attend = _by_products
        if q.device.type in _READ_VIEWS:
            attend = flash_attention_on_cpu
            # A view can hide no column. Decoding, a bias of one row hides it; else one
            # more channel of q and k does.
            q, k, v = _of_one_width(q, k, v, None if queries == 1 else mask)
            mask = mask if queries == 1 else None
        parts, denominators = [], []
        for start, stop, seen in _chunks(queries, k.shape[2], causal, chunk):
            view = vector[:, start : stop + seen - 1].unfold(-1, seen, 1)[
                None
            ]  # (1, H, stop − start, seen)
            if mask is not None:
                view = view.masked_fill(~mask[:, None, None, :seen], -math.inf)
            some = q[:, :, queries - stop : queries - start].flip(2)
            part, denominator = attend(
                some, k[:, :, :seen], v[:, :, :seen], view, scale
            )
            parts.append(part[..., :width].flip(2))
            denominators.append(denominator.flip(2))
        del q, k, v  # where they were copied to be wider
        return torch.cat(parts[::-1], 2), torch.cat(denominators[::-1], 2)

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
    """The gradients, which have none themselves: without this a second derivative would be wrong in silence."""

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
    """Chunks start … stop of the queries, counted from the last, and the number of keys that they see."""
    for start in range(0, queries, chunk):
        yield start, min(start + chunk, queries), keys - start if causal else keys


def _of_one_width(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """More channels, which change no sum: the kernel wants d = d_v. With a mask, 1 in q meets −∞ in a hidden key."""
    if mask is not None:
        hidden = torch.zeros_like(k[..., :1]).masked_fill(
            ~mask[:, None, :, None], -math.inf
        )
        q, k = pad(q, (0, 1), value=1.0), torch.cat((k, hidden), -1)
    width = max(q.shape[3], v.shape[3])
    q, k, v = (
        x if x.shape[3] == width else pad(x, (0, width - x.shape[3])) for x in (q, k, v)
    )
    return q, k, v


def _by_products(
    q: Tensor, k: Tensor, v: Tensor, view: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain products, for devices whose kernels want a mask that is aligned in memory."""
    k, v = (
        x.repeat_interleave(q.shape[1] // k.shape[1], 1).to(view.dtype) for x in (k, v)
    )
    scores = (q.to(view.dtype) @ k.mT) * scale + view
    denominators = scores.logsumexp(-1)
    denominators = denominators.masked_fill(
        denominators == -math.inf, 0
    )  # weights of 0 where there is no key
    return ((scores - denominators[..., None]).exp() @ v).to(q.dtype), denominators


def _hankel_gradients(
    grad: Tensor,
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
    """Gradients to q, k, v and the vector, from weights that are made again for some heads and queries at a time."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    q_, k_, v_, grad_ = (
        _pairs(x, heads, vector.dtype) for x in (q, k, v, grad)
    )  # (B·H, T, d)
    less = _pairs(denominators[..., None], heads, vector.dtype)  # (B·H, Tq, 1)
    mean = _pairs(
        (grad.to(vector.dtype) * out).sum(-1, keepdim=True), heads, vector.dtype
    )
    vectors = vector.repeat(batch, 1)  # (B·H, Tq + Tk − 1)
    if mask is not None:
        hidden = (
            vector.new_zeros(batch, 1, keys)
            .masked_fill(~mask[:, None], -math.inf)
            .repeat_interleave(heads, 0)
        )
    to_q, to_k, to_v, to_vector = (
        grad_.new_zeros(x.shape) for x in (q_, k_, v_, vectors)
    )
    together = max(1, _PIECE // (min(chunk, queries) * keys))
    for first in range(0, batch * heads, together):
        some = slice(first, first + together)
        for start, stop, seen in _chunks(queries, keys, causal, chunk):
            size, rows, diagonals = (
                stop - start,
                slice(queries - stop, queries - start),
                slice(start, stop + seen - 1),
            )
            q_rows, grad_rows, less_rows, mean_rows = (
                x[some, rows].flip(1) for x in (q_, grad_, less, mean)
            )
            weights = vectors[some, diagonals].unfold(-1, seen, 1) - less_rows
            weights.baddbmm_(q_rows, k_[some, :seen].mT, alpha=scale)
            if mask is not None:
                weights += hidden[some, :, :seen]
            weights.exp_()
            to_v[some, :seen].baddbmm_(weights.mT, grad_rows)
            wide = grad_.new_empty(
                weights.shape[0], size, seen + size
            )  # with room for the shift below
            wide[..., seen:] = 0
            to_scores = wide[..., :seen]
            to_scores.baddbmm_(grad_rows, v_[some, :seen].mT, beta=0).sub_(
                mean_rows
            ).mul_(weights)
            to_q[some, rows] = (to_scores @ k_[some, :seen]).mul_(scale).flip(1)
            to_k[some, :seen].baddbmm_(to_scores.mT, q_rows, alpha=scale)
            # Row i moves i places to the right, and anti-diagonals become columns.
            to_vector[some, diagonals] += (
                wide.flatten(1)[:, :-size].unflatten(1, (size, -1)).sum(1)
            )
    return (
        to_q.unflatten(0, (batch, heads)).to(q.dtype),
        _grouped(to_k, heads, k),
        _grouped(to_v, heads, v),
        to_vector.unflatten(0, (batch, heads)).sum(0),
    )


def _pairs(x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """One matrix for each sequence and head of q: (B, Hk, T, d) → (B·H, T, d)."""
    return (
        x.to(dtype)[:, :, None]
        .expand(-1, -1, heads // x.shape[1], -1, -1)
        .flatten(0, 2)
    )


def _grouped(gradient: Tensor, heads: int, x: Tensor) -> Tensor:
    """The sum over the pairs of each head of x: (B·H, T, d) → (B, Hk, T, d); no copy where a head has one."""
    groups: Tensor = gradient.unflatten(
        0, (x.shape[0], x.shape[1], heads // x.shape[1])
    )
    return (groups.squeeze(2) if groups.shape[2] == 1 else groups.sum(2)).to(x.dtype)
