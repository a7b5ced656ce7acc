"""Attention: with a bias, softmax and linear; and through a scheme or by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import measure
from benchmarks.rope import LAYOUTS, Row, normal
from posenc_lib import scheme
from posenc_lib.attention import (
    PreparedScheme,
    causal,
    elu_features,
    fused_attention,
    hankel_attention,
    prepare,
    relative_bias_vector,
    toeplitz_attention,
)
from posenc_lib.bias import T5Bias, alibi, alibi_slopes
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary import RoPE, Rotation
from posenc_lib.rotary.pairs import Layout

HEADS, DIM, FEATURES = 8, 64, 16


def bias(device: torch.device, seconds: float) -> Iterator[Row]:
    """Causal attention with a bias of the distance: 8 heads of 64 in float32."""
    for length in (2048, 4096, 8192):
        q, k, v = (
            normal(1, HEADS, length, DIM, device=device, seed=seed) for seed in range(3)
        )
        slopes = alibi_slopes(HEADS).to(device)
        vector = relative_bias_vector(
            partial(alibi, slopes=slopes), length, device=device
        )
        cases: dict[str, measure.Case] = {
            "no bias": partial(scaled_dot_product_attention, q, k, v, is_causal=True),
            "ours, ALiBi": partial(hankel_attention, q, k, v, bias=vector, causal=True),
        }
        # of 8 heads at 8192 the matrix and its intermediates take gigabytes
        if length == 2048:
            positions = arange(length, device=device)
            matrix = alibi(positions, positions, slopes=slopes).float()
            matrix = matrix.masked_fill(positions[:, None] < positions, -torch.inf)
            cases["bias as a matrix, given"] = partial(
                scaled_dot_product_attention, q, k, v, attn_mask=matrix
            )
            cases["bias as a matrix, made"] = partial(
                fused_attention,
                q,
                k,
                v,
                q_positions=positions,
                k_positions=positions,
                scheme=scheme.alibi(HEADS),
            )
        with torch.no_grad():
            yield from _rows("bias forward", length, cases, device, seconds)


def bias_backward(device: torch.device, seconds: float) -> Iterator[Row]:
    """Forward and backward with T5's learned bias; the gradient reaches its table."""
    for length in (2048, 4096, 8192):
        q, k, v, grad = (
            normal(1, HEADS, length, DIM, device=device, seed=seed) for seed in range(4)
        )
        for x in (q, k, v):
            x.requires_grad_()
        learned = T5Bias(HEADS, bidirectional=False, std=1.0).to(device)
        cases = {
            "no bias": partial(_no_bias_passes, q, k, v, grad),
            "ours, T5": partial(_t5_passes, learned, q, k, v, grad),
        }
        yield from _rows("bias forward and backward", length, cases, device, seconds)


def _no_bias_passes(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    torch.autograd.grad(
        scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), grad
    )


def _t5_passes(learned: T5Bias, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    vector = relative_bias_vector(learned, q.shape[2], device=q.device)
    out = hankel_attention(q, k, v, bias=vector, causal=True)
    torch.autograd.grad(out, (q, k, v, *learned.parameters()), grad)


def toeplitz(device: torch.device, seconds: float) -> Iterator[Row]:
    """Causal linear attention with a bias, one head of 16 features, in each form."""
    for length in (2**power for power in range(10, 17)):
        q, k, v = (
            normal(1, 1, length, width, device=device, seed=width)
            for width in (FEATURES, FEATURES, DIM)
        )
        vector = relative_bias_vector(
            partial(alibi, slopes=alibi_slopes(1).to(device)), length, device=device
        )
        call = partial(
            toeplitz_attention,
            elu_features(q),
            elu_features(k),
            v,
            bias=vector,
            causal=True,
        )
        cases = {"as chosen": call}
        if length <= 16_384:
            cases |= {
                "in chunks": partial(call, form="chunks"),
                "by FFT": partial(call, form="fft"),
            }
        with torch.no_grad():
            yield from _rows(
                "linear attention with a bias", length, cases, device, seconds
            )


def through_a_scheme(device: torch.device, seconds: float) -> Iterator[Row]:
    """Layers under `prepare`, and by hand: one `Rotation`, then PyTorch's kernel.

    8 heads of 128 for q and k; 32 layers of one token, 8 of 512. The table is made in
    both.
    """
    for length, dtype in product((1, 512), (torch.float32, torch.bfloat16)):
        x = normal(1, length, 64, dtype=dtype, device=device, seed=9)
        q, k, v = (
            normal(1, HEADS, length, 128, dtype=dtype, device=device, seed=seed)
            for seed in range(3)
        )
        positions = arange(length, offset=4096, device=device)
        layers = 32 if length == 1 else 8
        for layout in LAYOUTS:
            cases = _through_a_scheme(layers, layout, positions, x, q, k, v)
            with torch.no_grad():
                rows = measure.interleaved(cases, seconds=seconds, device=device)
            for name, row in rows.items():
                yield {
                    "what": "through a scheme",
                    "shape": length,
                    "dtype": str(dtype).removeprefix("torch."),
                    "layout": layout,
                    "case": name,
                    **row,
                }


def _through_a_scheme(
    layers: int,
    layout: Layout,
    positions: Tensor,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> dict[str, measure.Case]:
    rope = RoPE(inverse_frequencies(128).to(q.device), layout)
    own = scheme.PositionScheme("RoPE", transform=rope.transform)

    def prepared() -> PreparedScheme:
        return prepare(x, own, q_positions=positions, causal=True)[1]

    def by_hand(rotation: Rotation) -> Tensor:
        return scaled_dot_product_attention(*rotation.both(q, k), v, is_causal=True)

    by_part = {
        "rotation, by hand": (partial(rope, positions), lambda r: r.both(q, k)),
        "rotation": (prepared, lambda at: at.transform(q, k)),
        "attention, by hand": (partial(rope, positions), by_hand),
        "attention": (prepared, lambda at: fused_attention(q, k, v, scheme=at)),
    }
    return {name: partial(_forward, layers, *part) for name, part in by_part.items()}


def _forward(
    layers: int, once: Callable[[], Any], layer: Callable[[Any], object]
) -> None:
    made = once()
    for _ in range(layers):
        layer(made)


def causal_training(device: torch.device, seconds: float) -> Iterator[Row]:
    """Forward and backward of plain causal attention: 8 heads of 64 in float32."""
    length = 2048
    x = normal(1, length, 64, device=device, seed=9)
    q, k, v, grad = (
        normal(1, HEADS, length, DIM, device=device, seed=seed) for seed in range(4)
    )
    for each in (q, k, v):
        each.requires_grad_()
    positions = arange(length, device=device)
    given: tuple[Tensor, ...] = (positions, x, q, k, v, grad)
    cases = {
        "is_causal=True": partial(_no_bias_passes, q, k, v, grad),
        "ours, prepared": partial(_prepared_passes, *given),
        "ours, mask from positions": partial(_masked_passes, *given),
    }
    yield from _rows("causal training", length, cases, device, seconds)


def _prepared_passes(
    positions: Tensor, x: Tensor, q: Tensor, k: Tensor, v: Tensor, grad: Tensor
) -> None:
    _, at = prepare(x, scheme.NOPE, q_positions=positions, causal=True)
    torch.autograd.grad(fused_attention(q, k, v, scheme=at), (q, k, v), grad)


def _masked_passes(
    positions: Tensor, x: Tensor, q: Tensor, k: Tensor, v: Tensor, grad: Tensor
) -> None:
    at = {"q_positions": positions, "k_positions": positions}
    mask = causal(positions, positions)
    out = fused_attention(q, k, v, scheme=scheme.NOPE, mask=mask, **at)
    torch.autograd.grad(out, (q, k, v), grad)


def _rows(
    what: str,
    length: int,
    cases: dict[str, measure.Case],
    device: torch.device,
    seconds: float,
) -> Iterator[Row]:
    times = measure.interleaved(cases, seconds=seconds, device=device, least=3)
    memory = {name: measure.peak_memory(case, device) for name, case in cases.items()}
    for name, time in times.items():
        yield {
            "what": what,
            "shape": length,
            "dtype": "float32",
            "case": name,
            **time,
            "megabytes": round(memory[name] / 1e6, 1),
        }
