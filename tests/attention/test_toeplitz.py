"""Linear attention with a relative bias, in chunks and by the FFT."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import (
    BIASES,
    HEADS,
    LENGTHS,
    qkv,
)
from helpers import normal, rounding, seeded
from torch import Tensor

from posenc_lib.attention import (
    causal,
    toeplitz,
)
from posenc_lib.attention.linear import (
    causal_linear_attention,
    elu_features,
    linear_attention,
)
from posenc_lib.attention.toeplitz import relative_bias_vector, toeplitz_attention
from posenc_lib.lab.costs import peak_bytes
from posenc_lib.positions import arange
from posenc_lib.properties import (
    max_error,
)


@pytest.fixture(params=["chunks", "fft"])
def toeplitz_form(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Each form at every length, with so few queries or columns at a time that small
    tensors have several parts.
    """
    monkeypatch.setattr(
        toeplitz, "FFT_COST", math.inf if request.param == "chunks" else 0
    )
    monkeypatch.setattr(toeplitz, "CHUNK", 5)
    monkeypatch.setattr(toeplitz, "COLUMNS", 2)
    return str(request.param)


@pytest.mark.usefixtures("toeplitz_form")
@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_toeplitz_attention_is_the_dense_form(
    name: str, length: int, causal_: bool
) -> None:
    q, k, v = qkv(length)
    q, k, m = elu_features(q), elu_features(k), arange(length)
    vector = relative_bias_vector(BIASES[name], length)
    out = toeplitz_attention(q, k, v, bias=vector, causal=causal_)
    weights = (q @ k.mT) * BIASES[name](m, m).exp()
    weights = weights * causal(m, m) if causal_ else weights
    want = (weights / weights.sum(-1, keepdim=True)) @ v
    assert max_error(out, want) < rounding(want, 4096)
    if name == "none":
        plain = (
            causal_linear_attention(q, k, v, positions=m)[0]
            if causal_
            else linear_attention(q, k, v, q_positions=m, k_positions=m)
        )
        assert max_error(out, plain) < rounding(plain, 4096)


@pytest.mark.usefixtures("toeplitz_form")
def test_toeplitz_attention_survives_large_biases_and_padding() -> None:
    q, k, v = qkv(9)
    q, k = elu_features(q), elu_features(k)
    vector = relative_bias_vector(BIASES["ALiBi"], 9)
    shifted = toeplitz_attention(q, k, v, bias=vector + 2000, causal=True)
    assert max_error(
        shifted, toeplitz_attention(q, k, v, bias=vector, causal=True)
    ) < rounding(v, 2**14)
    mask = (torch.arange(9) >= 4).expand(2, -1)
    padded = toeplitz_attention(q, k, v, bias=vector, causal=True, mask=mask)
    alone = toeplitz_attention(
        *(x[:, :, 4:] for x in (q, k, v)),
        bias=relative_bias_vector(BIASES["ALiBi"], 5),
        causal=True,
    )
    assert max_error(padded[:, :, 4:], alone) < rounding(alone, 4096)


@pytest.mark.usefixtures("toeplitz_form")
@pytest.mark.parametrize("causal_", [True, False])
def test_toeplitz_queries_without_a_key_get_zeros(causal_: bool) -> None:
    q, k, v = (x[:1] for x in qkv(16))
    q, k = elu_features(q), elu_features(k)
    bias = relative_bias_vector(BIASES["ALiBi"], 16)
    form = partial(toeplitz_attention, bias=bias, causal=causal_)
    for first in (5, 16):
        mask = (torch.arange(16) >= first)[None]
        out = form(q, k, v, mask=mask)
        alone = first if causal_ or first == 16 else 0
        assert bool((out[:, :, :alone] == 0).all())
        assert bool((out[:, :, alone:] != 0).all())
    k = k.clone()
    k[:, :, :5] = 0  # such as features of ReLU
    assert bool((form(q, k, v)[:, :, : 5 if causal_ else 0] == 0).all())


def test_toeplitz_leak_of_the_future_grows_with_the_length() -> None:
    leaks = []
    for length in (128, 2048, 16384):
        q = torch.rand(1, 1, length, 4, generator=seeded(0))
        v = torch.randn(1, 1, length, 4, generator=seeded(1))
        later = v + (torch.arange(length) >= length // 2)[:, None]
        for slope in (0.0, 0.1):
            bias = -slope * torch.arange(-(length - 1), length).abs()[None].float()
            form = partial(toeplitz_attention, q, q, bias=bias, causal=True)
            leaks.append(max_error(form(v)[:, :, :8], form(later)[:, :, :8]))
    assert leaks[:2] == [0, 0], "chunks see no future"
    assert 1e-6 < leaks[2] < 1e-4 < leaks[4] < 3e-3, "a constant bias"
    assert 0 < min(leaks[3], leaks[5]) <= max(leaks[3], leaks[5]) < 3e-6, (
        "one that falls"
    )


@pytest.mark.parametrize(
    ("features", "causal_", "first"),
    [(16, False, 3981), (16, True, 7962), (64, False, 12950), (64, True, 25899)],
)
def test_toeplitz_form_changes_where_it_was_measured(
    features: int, causal_: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in (("_toeplitz_in_chunks", 1.0), ("_toeplitz_by_fft", 2.0)):
        monkeypatch.setattr(
            toeplitz,
            name,
            lambda q, k, values, c, *causal, a=answer: (
                values * values.new_tensor([a] * 64 + [1])
            ),
        )
    chosen = []
    for length in (first - 1, first):
        q, v, bias = (
            torch.ones(1, 1, length, features),
            torch.ones(1, 1, length, 64),
            torch.zeros(1, 2 * length - 1),
        )
        chosen.append(
            float(toeplitz_attention(q, q, v, bias=bias, causal=causal_)[0, 0, 0, 0])
        )
    assert chosen == [1, 2], "chunks, then the FFT"


def test_toeplitz_form_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(6)
    q, k = elu_features(q), elu_features(k)
    call = partial(toeplitz_attention, q, k, v, bias=torch.zeros(HEADS, 11))
    for form, other in (("chunks", "_toeplitz_by_fft"), ("fft", "_toeplitz_in_chunks")):
        with monkeypatch.context() as patch:
            patch.setattr(toeplitz, other, None)
            out = call(causal=True, form=form)
        assert max_error(out, call(causal=True)) < rounding(out, 4096)
    with pytest.raises(ValueError, match="form must be one of 'chunks', 'fft'"):
        call(causal=True, form="FFT")


def test_toeplitz_forms_agree_in_float32_where_they_meet() -> None:
    length, features = 1024, 16
    q, k = (
        torch.rand(1, 1, length, features, generator=seeded(seed)) for seed in (0, 1)
    )
    values = torch.rand(1, 1, length, 9, generator=seeded(2))
    c = torch.rand(1, 2 * length - 1, generator=seeded(3))
    chunks = toeplitz._toeplitz_in_chunks(q, k, values, c, False)
    fft = toeplitz._toeplitz_by_fft(q, k, values, c)
    assert 0 < max_error(chunks, fft) < 1e-5 * float(chunks.max())


@pytest.mark.parametrize(
    "form",
    [partial(toeplitz._toeplitz_in_chunks, causal=True), toeplitz._toeplitz_by_fft],
)
def test_toeplitz_memory_is_linear_with_gradients(form: Callable[..., Tensor]) -> None:
    features, peaks = 8, []
    for length in (1024, 2048, 4096):
        q, k = (
            torch.rand(1, 1, length, features, generator=seeded(seed)).requires_grad_()
            for seed in (0, 1)
        )
        values = torch.rand(1, 1, length, 3, generator=seeded(2)).requires_grad_()
        c = torch.rand(1, 2 * length - 1, generator=seeded(3)).requires_grad_()
        peaks.append(peak_bytes(lambda: form(q, k, values, c).sum().backward()))  # noqa: B023
        assert all(
            x.grad is not None and bool(x.grad.isfinite().all())
            for x in (q, k, values, c)
        )
    assert max(peaks[1] / peaks[0], peaks[2] / peaks[1]) < 2.2


@pytest.mark.usefixtures("toeplitz_form")
def test_toeplitz_gradients() -> None:
    q, k = (elu_features(normal(1, 2, 6, 2, seed=s)).requires_grad_() for s in (1, 2))
    v, bias = (
        normal(*shape, seed=3).requires_grad_() for shape in ((1, 2, 6, 2), (2, 11))
    )
    for causal_ in (False, True):
        form = partial(toeplitz_attention, causal=causal_)
        assert torch.autograd.gradcheck(
            lambda q, k, v, b, form=form: form(q, k, v, bias=b), (q, k, v, bias)
        )


@pytest.mark.usefixtures("toeplitz_form")
@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_toeplitz_rows_without_a_key_are_zero(
    dtype: torch.dtype, causal_: bool
) -> None:
    length = 40
    q, k = (
        elu_features(normal(1, 2, length, 3, seed=s)).to(dtype).requires_grad_()
        for s in (1, 2)
    )
    v = normal(1, 2, length, 2, seed=3).to(dtype)
    r = torch.arange(1 - length, length)
    bias = torch.stack((r * 0.1, torch.zeros(2 * length - 1))).masked_fill(
        r.abs() > 2, -math.inf
    )  # a window
    mask = (torch.arange(length) < 10)[None]
    out = toeplitz_attention(q, k, v, bias=bias, causal=causal_, mask=mask)
    assert bool((out[:, :, 12:] == 0).all())
    assert bool((out[:, :, :12] != 0).all())
    bias[1] = -math.inf  # a head that sees nothing
    out = toeplitz_attention(q, k, v, bias=bias, causal=causal_, mask=mask)
    assert bool((out[:, 1] == 0).all())
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(out.sum(), (q, k)))


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_bias_vector_holds_every_diagonal(name: str, length: int) -> None:
    vector = relative_bias_vector(BIASES[name], length)
    dense = BIASES[name](arange(length), arange(length))[0]
    for i, j in itertools.product(range(length), range(length)):
        assert torch.equal(vector[:, j - i + length - 1], dense[:, i, j])


Q, K, V = qkv(4)

FQ, FK = elu_features(Q), elu_features(K)

VECTOR = torch.zeros(HEADS, 7, dtype=torch.float64)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "toeplitz_attention: bias": (
        lambda: toeplitz_attention(FQ, FK, V, bias=VECTOR[:, :5], causal=True),
        ValueError,
        r"bias must have shape \(H, 2N−1\) with H = 4 and N ≥ 4, got \(4, 5\)",
    ),
    "toeplitz_attention: q": (
        lambda: toeplitz_attention(FQ[:, :, :2], FK, V, bias=VECTOR, causal=True),
        ValueError,
        "q must have k's length 4",
    ),
    "relative_bias_vector: length": (
        lambda: relative_bias_vector(BIASES["ALiBi"], 0),
        ValueError,
        "length must be an integer ≥ 1",
    ),
    "relative_bias_vector: bias": (
        lambda: relative_bias_vector(causal, 4),
        ValueError,
        r"bias must return shape \(1, H, 1, 7\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
