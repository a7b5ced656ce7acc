"""Linear attention, long contexts, fused kernels and layer plans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attention import BRANCHES, HEADS, SCHEMES, WIDTH, conv, draw, rope, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    fused,
    key_padding_mask,
    linear,
    sliding_window,
)
from posenc_lib.attention.fused import fused_attention, relative_score_mod
from posenc_lib.attention.hankel import hankel_attention
from posenc_lib.attention.linear import (
    LinearState,
    causal_linear_attention,
    cosformer_features,
    elu_features,
    linear_attention,
    orthogonal_projection,
    positive_features,
    recurrent_retention,
    retention,
    retention_decays,
)
from posenc_lib.attention.long_context import (
    SSMax,
    branched_relative,
    branched_scores,
    dual_chunk,
    evict,
    leaky_rerope,
    llama4_temperature,
    log_length_temperature,
    rerope,
    rerotate,
    self_extend,
    tempered,
)
from posenc_lib.attention.masks import chunk_mask, lambda_mask
from posenc_lib.attention.stochastic import ConvSPE, SineSPE, _waves
from posenc_lib.attention.toeplitz import relative_bias_vector, toeplitz_attention
from posenc_lib.bias import (
    FIRE,
    DistanceMLPBias,
    KerpleLog,
    KerplePower,
    alibi,
    alibi_slopes,
    sandwich,
)
from posenc_lib.content import ForgetGate
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.lab.costs import peak_bytes
from posenc_lib.layers import (
    Layer,
    cohere2,
    drope,
    gemma3,
    gpt_oss,
    llama4,
    modernbert,
    smollm3,
)
from posenc_lib.positions import arange, from_mask
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.rotary import LAYOUTS, RoPE, llama3
from posenc_lib.scheme import NOPE, PositionScheme

EPS = torch.finfo(torch.float64).eps
LENGTHS = (1, 2, 3, 8, 17)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=draw(seed), dtype=torch.float64).to(dtype)


def qkv(
    length: int, *, heads: int = HEADS, kv_heads: int = HEADS, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(batch, heads, length, WIDTH, seed=1),
        normal(batch, kv_heads, length, WIDTH, seed=2),
        normal(batch, kv_heads, length, 6, seed=3),
    )


def rounding(x: Tensor, terms: int = 256) -> float:
    """Bound on the rounding of sums of at most `terms` products whose size is that of x."""
    return terms * EPS * max(1.0, float(x.detach().abs().max()))


def turned(x: Tensor, angle: float, frequencies: Tensor) -> Tensor:
    """One vector rotated pair by pair (interleaved), straight from the definition."""
    out = x.clone()
    for i, w in enumerate(frequencies.tolist()):
        a, b = x[2 * i], x[2 * i + 1]
        out[2 * i] = a * math.cos(angle * w) - b * math.sin(angle * w)
        out[2 * i + 1] = a * math.sin(angle * w) + b * math.cos(angle * w)
    return out


# ---- linear attention


def linear_by_hand(
    q: Tensor, k: Tensor, v: Tensor, m: list[float], n: list[float], causal_: bool
) -> Tensor:
    frequencies = inverse_frequencies(q.shape[-1])
    out = torch.zeros(len(m), v.shape[-1], dtype=torch.float64)
    for i, j in itertools.product(range(len(m)), range(len(n))):
        if causal_ and n[j] > m[i]:
            continue
        weight = turned(q[i], m[i], frequencies) @ turned(k[j], n[j], frequencies)
        total = sum(
            q[i] @ k[each] for each in range(len(n)) if not causal_ or n[each] <= m[i]
        )
        out[i] += weight / total * v[j]
    return out


@pytest.mark.parametrize("length", LENGTHS)
def test_linear_attention_is_equation_19(length: int) -> None:
    q, k, v = qkv(length)
    q, k = elu_features(q), elu_features(k)
    m = arange(length, offset=5)
    out = linear_attention(
        q, k, v, q_positions=m, k_positions=m, transform=rope.transform
    )
    parallel, state = causal_linear_attention(
        q, k, v, positions=m, transform=rope.transform
    )
    for b, h in ((0, 0), (1, 3)):
        args = (q[b, h], k[b, h], v[b, h], m.tolist(), m.tolist())
        assert max_error(out[b, h], linear_by_hand(*args, False)) < rounding(out)
        assert max_error(parallel[b, h], linear_by_hand(*args, True)) < rounding(
            parallel
        )
    assert max_error(state.denominator, k.sum(2)) < rounding(k.sum(2))
    assert max_error(out[:, :, -1], parallel[:, :, -1]) < rounding(out), (
        "the last token sees all keys"
    )


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_linear_attention_cut_anywhere_is_the_parallel_form(
    pieces: list[int], offset: int, rotate: bool
) -> None:
    length = sum(pieces)
    q, k, v = qkv(length, kv_heads=2)
    q, k, m = elu_features(q), elu_features(k), arange(length, offset=offset)
    transform = rope.transform if rotate else None
    parallel, final = causal_linear_attention(q, k, v, positions=m, transform=transform)
    state, parts = None, []
    for piece in torch.split(torch.arange(length), pieces):
        inputs = (x[:, :, piece] for x in (q, k, v))
        out, state = causal_linear_attention(
            *inputs, positions=m[piece], transform=transform, state=state
        )
        parts.append(out)
    assert state is not None
    assert max_error(torch.cat(parts, 2), parallel) < rounding(parallel, 1024)
    assert max_error(state.numerator, final.numerator) < rounding(final.numerator, 1024)


def test_padding_counts_for_nothing_in_linear_attention() -> None:
    q, k, v = qkv(9)
    q, k = elu_features(q), elu_features(k)
    mask = (torch.arange(9) >= 4).expand(2, -1)
    m = from_mask(mask)
    alone = [x[:, :, 4:] for x in (q, k, v)]
    for form in (linear_attention, retention):
        kwargs: dict[str, Any] = (
            {"decays": retention_decays(HEADS).double()} if form is retention else {}
        )
        out = form(
            q,
            k,
            v,
            q_positions=m,
            k_positions=m,
            transform=rope.transform,
            mask=mask,
            **kwargs,
        )
        want = form(
            *alone,
            q_positions=arange(5),
            k_positions=arange(5),
            transform=rope.transform,
            **kwargs,
        )
        assert max_error(out[:, :, 4:], want) < rounding(want)
    out, _ = causal_linear_attention(
        q, k, v, positions=m, transform=rope.transform, mask=mask
    )
    want, _ = causal_linear_attention(
        *alone, positions=arange(5), transform=rope.transform
    )
    assert max_error(out[:, :, 4:], want) < rounding(want)
    assert bool((out[:, :, :4] == 0).all()), "a query without any key gets zeros"


def weights_of(form: Callable[..., Tensor], length: int) -> Tensor:
    """The weights that a form gives, from one-hot values."""
    return form(torch.eye(length, dtype=torch.float64)[None, None])[0, 0]


def test_F1_85_linear_attention() -> None:
    feature = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 1, 5, 2)
    turn = RoPE(inverse_frequencies(2)).transform

    def form(v: Tensor) -> Tensor:
        return causal_linear_attention(
            feature, feature, v, positions=arange(5), transform=turn
        )[0]

    weights = weights_of(form, 5)
    reported = torch.tensor(
        [-0.1307, -0.1980, -0.0832, 0.1081, 0.2], dtype=torch.float64
    )
    assert max_error(weights[4], reported) < 5e-5
    assert (
        max_error(
            weights[4],
            torch.tensor([math.cos(4 - j) / 5 for j in range(5)], dtype=torch.float64),
        )
        < EPS
    )
    rotated_sum = sum(math.cos(4 - j) for j in range(5))
    assert rotated_sum == pytest.approx(-0.519481, abs=5e-7)
    assert weights[4].sum() == pytest.approx(rotated_sum / 5), (
        "weights may be negative and need not sum to 1"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16]
)
@pytest.mark.parametrize("dim", [2, 4, 16])
def test_F1_85_linear_attention_stays_finite(
    layout: str, dtype: torch.dtype, dim: int
) -> None:
    """Whatever the rotation, no output exceeds the largest value: |cos| ≤ 1 over an unrotated, positive sum."""
    turn = RoPE(inverse_frequencies(dim), layout=layout).transform
    for offset in (0, 7, 100_000):
        q, k = (
            elu_features(normal(1, 2, 40, dim, seed=seed, dtype=dtype))
            for seed in (1, 2)
        )
        v = torch.ones(1, 2, 40, 1, dtype=dtype)
        out, state = causal_linear_attention(
            q, k, v, positions=arange(40, offset=offset), transform=turn
        )
        assert out.dtype == dtype
        assert bool((state.denominator > 0).all())
        bound = (q.double().norm(dim=-1) * k.double().norm(dim=-1).cumsum(-1)) / (
            (q.double() * k.double().cumsum(2)).sum(-1)
        )
        assert bool(
            (
                out.double().abs()[..., 0] <= bound * (1 + 4 * torch.finfo(dtype).eps)
            ).all()
        )
    parts = [
        causal_linear_attention(
            q, k, v, positions=arange(40, offset=o), transform=turn
        )[0]
        for o in (0, 1024)
    ]
    assert max_error(*parts) <= 64 * torch.finfo(dtype).eps * float(
        parts[0].abs().max() + 1
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_elu_features_keep_their_digits_far_below_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([-80.0, -20.0, -17.0, -1e-9, 0.0, 3.0], dtype=dtype)
    want = torch.where(x > 0, x.double() + 1, x.double().exp())
    assert bool(
        (
            (elu_features(x).double() - want).abs() <= 4 * torch.finfo(dtype).eps * want
        ).all()
    )
    k, v = elu_features(torch.full((1, 1, 4, 8), -20.0)), torch.ones(1, 1, 4, 3)
    out = linear_attention(
        elu_features(torch.zeros_like(k)),
        k,
        v,
        q_positions=arange(4),
        k_positions=arange(4),
    )
    assert torch.allclose(out, v), "a mean of equal values, however small the weights"


def test_elu_features_are_positive_and_their_gradient_is_continuous() -> None:
    x = torch.tensor([-30.0, -1.0, 0.0, 1.0, 5.0], dtype=torch.float64)
    want = torch.where(x > 0, x + 1, x.exp())
    assert max_error(elu_features(x), want) < 4 * EPS
    assert bool((elu_features(x) > 0).all())


@pytest.mark.parametrize(("features", "dim"), [(3, 8), (8, 8), (20, 8), (5, 1)])
def test_projection_is_orthogonal_in_blocks(features: int, dim: int) -> None:
    omega = orthogonal_projection(features, dim, generator=draw(0))
    assert omega.shape == (features, dim)
    assert omega.dtype == torch.float64
    for block in omega.split(dim):
        gram = block @ block.mT
        assert max_error(
            gram - torch.diag(gram.diag()), torch.zeros_like(gram)
        ) < rounding(gram)
    many = torch.stack(
        [
            orthogonal_projection(8, 8, generator=draw(s)).square().sum(-1)
            for s in range(400)
        ]
    )
    error = many.std() / math.sqrt(many.numel())
    assert abs(float(many.mean()) - 8) < 5 * error, (
        "squared lengths are χ² with d degrees of freedom"
    )


@pytest.mark.parametrize(("length", "all_zero"), [(6, False), (30, True)])
def test_positive_features_of_long_vectors_get_small_and_not_large(
    length: float, all_zero: bool
) -> None:
    x = length * torch.nn.functional.normalize(
        normal(8, 64, seed=1, dtype=torch.float32), dim=-1
    )
    omega = orthogonal_projection(64, 64, generator=draw(0))
    features = positive_features(x, omega)
    assert float((x.double() @ omega.mT).max()) > 88 or not all_zero
    assert float(features.max()) < 1
    assert bool((features == 0).all()) == all_zero


def test_positive_features_are_unbiased() -> None:
    q, k = normal(4, 6, seed=1) * 0.5, normal(4, 6, seed=2) * 0.5
    samples = []
    for seed in range(2000):
        omega = orthogonal_projection(12, 6, generator=draw(seed))
        samples.append(
            (positive_features(q, omega) * positive_features(k, omega)).sum(-1)
        )
    estimates = torch.stack(samples)
    error = estimates.std(0) / math.sqrt(len(samples))
    truth = (q * k).sum(-1).exp()
    assert bool((estimates > 0).all())
    assert bool(((estimates.mean(0) - truth).abs() < 5 * error).all())
    assert bool((error < 0.05 * truth).all()), "otherwise the test above could not fail"


@pytest.mark.parametrize("length", [5, 40])
def test_cosformer_is_its_equation(length: int) -> None:
    q, k, v = qkv(5)
    m, n = arange(5), arange(5)
    fq, fk = (cosformer_features(x, p, length=length) for x, p in ((q, m), (k, n)))
    cosine = torch.tensor(
        [[math.cos(math.pi * (i - j) / 2 / length) for j in range(5)] for i in range(5)]
    )
    weights = (q.relu() @ k.relu().mT) * cosine.double()
    assert max_error(fq @ fk.mT, weights) < 1e-7 * float(weights.max()), (
        "cosines were rounded to float32"
    )
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    out = linear_attention(fq, fk, v, q_positions=m, k_positions=n)
    assert max_error(out, weights @ v) < 1e-6
    assert bool(
        (cosformer_features(q, torch.full((5,), length), length=length) >= 0).all()
    )


# ---- Toeplitz by FFT


BIASES: dict[str, Callable[..., Tensor]] = {
    "ALiBi": partial(alibi, slopes=alibi_slopes(HEADS), dtype=torch.float64),
    "T5": schemes.t5(
        HEADS, bidirectional=True, std=1.0, generator=draw(5)
    ).bias.double(),  # type: ignore[union-attr]
    "none": lambda m, n: torch.zeros(1, HEADS, len(m), len(n), dtype=torch.float64),
}


@pytest.fixture(params=["chunks", "fft"])
def toeplitz_form(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Each form at every length, with so few queries or columns at a time that small tensors have several parts."""
    monkeypatch.setattr(
        linear, "FFT_COST", math.inf if request.param == "chunks" else 0
    )
    monkeypatch.setattr(linear, "CHUNK", 5)
    monkeypatch.setattr(linear, "COLUMNS", 2)
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
        q = torch.rand(1, 1, length, 4, generator=draw(0))
        v = torch.randn(1, 1, length, 4, generator=draw(1))
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
            linear,
            name,
            lambda q, k, values, c, causal, a=answer: (
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


def test_toeplitz_forms_agree_in_float32_where_they_meet() -> None:
    length, features = 1024, 16
    q, k = (torch.rand(1, 1, length, features, generator=draw(seed)) for seed in (0, 1))
    values = torch.rand(1, 1, length, 9, generator=draw(2))
    c = torch.rand(1, 2 * length - 1, generator=draw(3))
    chunks, fft = (
        form(q, k, values, c, False)
        for form in (linear._toeplitz_in_chunks, linear._toeplitz_by_fft)
    )
    assert 0 < max_error(chunks, fft) < 1e-5 * float(chunks.max())


@pytest.mark.parametrize("form", [linear._toeplitz_in_chunks, linear._toeplitz_by_fft])
def test_toeplitz_memory_is_linear_with_gradients(form: Callable[..., Tensor]) -> None:
    features, peaks = 8, []
    for length in (1024, 2048, 4096):
        q, k = (
            torch.rand(1, 1, length, features, generator=draw(seed)).requires_grad_()
            for seed in (0, 1)
        )
        values = torch.rand(1, 1, length, 3, generator=draw(2)).requires_grad_()
        c = torch.rand(1, 2 * length - 1, generator=draw(3)).requires_grad_()
        peaks.append(peak_bytes(lambda: form(q, k, values, c, True).sum().backward()))  # noqa: B023
        assert all(
            x.grad is not None and bool(x.grad.isfinite().all())
            for x in (q, k, values, c)
        )
    assert max(peaks[1] / peaks[0], peaks[2] / peaks[1]) < 2.2


def test_what_is_no_number_stays_none_in_linear_attention() -> None:
    q, k, v = qkv(4)
    q, k, m = elu_features(q), elu_features(k), arange(4)
    broken = q.clone()
    broken[:, :, 1, 0] = math.nan
    for out in (
        linear_attention(broken, k, v, q_positions=m, k_positions=m),
        causal_linear_attention(broken, k, v, positions=m)[0],
        toeplitz_attention(broken, k, v, bias=torch.zeros(HEADS, 7), causal=True),
    ):
        assert bool(out[:, :, 1].isnan().all())
        assert bool(out[:, :, [0, 2, 3]].isfinite().all())


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
def test_toeplitz_rows_are_zero_where_bias_and_mask_hide_every_key(
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


# ---- retention


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_retention_is_its_equation(length: int, rotate: bool) -> None:
    q, k, v = qkv(length)
    decays, m = retention_decays(HEADS), arange(length, offset=3)
    transform = rope.transform if rotate else None
    out = retention(
        q, k, v, q_positions=m, k_positions=m, decays=decays, transform=transform
    )
    w = inverse_frequencies(WIDTH) if rotate else torch.zeros(WIDTH // 2)
    for b, h in itertools.product(range(2), range(HEADS)):
        gamma = 1 - 2.0 ** (-5 - h)
        for i in range(length):
            want = sum(
                gamma ** (i - j)
                * (turned(q[b, h, i], i, w) @ turned(k[b, h, j], j, w))
                * v[b, h, j]
                for j in range(i + 1)
            )
            assert max_error(out[b, h, i], want / math.sqrt(WIDTH)) < rounding(out)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=24, max_size=24),
)
@settings(max_examples=15, deadline=None)
def test_retention_recurrent_is_quadratic(pieces: list[int], gaps: list[int]) -> None:
    length = sum(pieces)
    q, k, v = qkv(length, kv_heads=2)
    m = torch.tensor([1 + g for g in gaps[:length]]).cumsum(0)  # positions may jump
    kwargs: dict[str, Any] = {
        "decays": retention_decays(HEADS),
        "transform": rope.transform,
    }
    quadratic = retention(q, k, v, q_positions=m, k_positions=m, **kwargs)
    state, parts = None, []
    for piece in torch.split(torch.arange(length), pieces):
        inputs = (x[:, :, piece] for x in (q, k, v))
        out, state = recurrent_retention(
            *inputs, positions=m[piece], state=state, **kwargs
        )
        parts.append(out)
    assert max_error(torch.cat(parts, 2), quadratic) < rounding(quadratic, 1024)
    rows = m.expand(2, -1)
    assert max_error(
        recurrent_retention(q, k, v, positions=rows, **kwargs)[0], quadratic
    ) < rounding(quadratic, 1024)


def test_retention_decays_are_alibi_in_disguise() -> None:
    decays, m = retention_decays(HEADS), arange(9)
    q, k = (
        torch.ones(1, HEADS, 9, 1, dtype=torch.float64),
        torch.ones(1, HEADS, 9, 1, dtype=torch.float64),
    )
    eye = torch.eye(9, dtype=torch.float64).expand(1, HEADS, 9, 9)
    weights = retention(q, k, eye, q_positions=m, k_positions=m, decays=decays)
    want = alibi(m, m, -decays.log(), dtype=torch.float64).exp() * causal(m, m)
    assert max_error(weights, want) < rounding(want)
    assert (
        max_error(
            retention_decays(2),
            torch.tensor([1 - 1 / 32, 1 - 1 / 64], dtype=torch.float64),
        )
        == 0
    )


def test_retention_of_far_future_keys_is_zero_and_has_gradients() -> None:
    q, k, v = (normal(1, 1, 2, 4, seed=s) for s in (1, 2, 3))
    decays = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    out = retention(
        q, k, v, q_positions=arange(2), k_positions=arange(2) + 100_000, decays=decays
    )
    assert bool((out == 0).all())
    out.sum().backward()
    assert decays.grad is not None
    assert bool(decays.grad.isfinite().all())


# ---- stochastic positional encoding


SPES: dict[str, tuple[Any, Callable[[int], Tensor]]] = {
    "sineSPE": (sine, lambda s: sine.draw(16, generator=draw(s))),
    "convSPE": (conv, lambda s: conv.draw(24, 16, generator=draw(s))),
}


@pytest.mark.parametrize("name", SPES)
def test_stochastic_scores_are_a_relative_kernel_on_average(name: str) -> None:
    spe, noise = SPES[name]
    q, k, _ = qkv(4, batch=1)
    m, n = torch.tensor([3, 3, 9, 20]), torch.tensor([3, 5, 8, 2])
    samples = []
    with torch.no_grad():
        for seed in range(600):
            a, b = spe.transform(q, k, m, n, noise=noise(seed))
            samples.append(a @ b.mT / math.sqrt(a.shape[-1]))
        drawn = torch.stack(samples)
        kernel = spe.kernel(n[None, :] - m[:, None])  # (H, d, Tq, Tk)
        truth = torch.einsum("bhmc,bhnc,hcmn->bhmn", q, k, kernel) / math.sqrt(WIDTH)
        mirrored = torch.einsum(
            "bhmc,bhnc,hcmn->bhmn", q, k, spe.kernel(m[:, None] - n[None, :])
        ) / math.sqrt(WIDTH)
    error = drawn.std(0) / math.sqrt(len(samples))
    assert bool(((drawn.mean(0) - truth).abs() < 5 * error).all())
    assert float(((drawn.mean(0) - mirrored) / error).abs().max()) > 15, (
        "the test must notice a wrong sign"
    )


def test_conv_kernel_is_the_correlation_of_the_filters() -> None:
    a, b = (f.detach() for f in (conv.q_filter, conv.k_filter))
    for m, n in itertools.product(range(7), range(7)):
        want = sum(
            a[..., p] * b[..., p + m - n] for p in range(4) if 0 <= p + m - n < 4
        )
        got = conv.kernel(torch.tensor([n - m])).detach()[..., 0]
        assert max_error(
            got, want if isinstance(want, Tensor) else torch.zeros_like(got)
        ) < rounding(got)


def test_sine_kernel_is_a_sum_of_cosines() -> None:
    got = sine.kernel(torch.tensor([-3, 0, 2])).detach()
    parameters = [p.detach() for p in (sine.frequencies, sine.offsets, sine.gains)]
    for h, c, (i, r) in itertools.product(
        range(HEADS), range(WIDTH), enumerate((-3, 0, 2))
    ):
        want = 0.0
        for j in range(2):
            f, theta, g = (float(x[h, c, j]) for x in parameters)
            want += (
                math.log1p(math.exp(g)) ** 2
                / 4
                * math.cos(2 * math.pi * -r / (1 + math.exp(-f)) / 2 + theta)
            )
        assert float(got[h, c, i]) == pytest.approx(want, abs=1e-12)


def test_sine_kernel_has_exact_angles_far_away() -> None:
    spe = SineSPE(2, 3, waves=4, generator=draw(0))
    f, theta, power = (x.double() for x in _waves(spe))
    for r in (1000, 10**6, 10**8):
        want = (power * torch.cos(2 * math.pi * f * r + theta)).sum(-1)
        assert max_error(spe.kernel(torch.tensor([-r]))[..., 0], want) < 1e-6


def test_stochastic_initialisation_follows_the_released_code() -> None:
    spe = SineSPE(64, 64, waves=3, generator=draw(1)).requires_grad_(False)
    assert float(spe.frequencies.mean()) == pytest.approx(-4, abs=0.05)
    assert float(spe.offsets.std()) == pytest.approx(1, abs=0.05)
    norms = spe.gains.norm(dim=-1)  # 2 ‖g‖^(1/2) for g ~ N(0, 1)³
    assert float(norms.square().mean()) == pytest.approx(
        4 * math.sqrt(8 / math.pi), rel=0.02
    )
    filters = ConvSPE(64, 64, kernel_size=8, generator=draw(1)).q_filter.detach()
    assert 0 <= float(filters.min()) < 1e-3
    assert float(filters.max()) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("name", SPES)
def test_stochastic_codes_of_batched_positions(name: str) -> None:
    spe, noise = SPES[name]
    q, k, _ = qkv(4)
    rows = torch.tensor([[0, 1, 2, 3], [5, 7, 9, 11]])
    batched = spe.transform(q, k, rows, rows, noise=noise(0))
    for b in range(2):
        one = spe.transform(
            q[b : b + 1], k[b : b + 1], rows[b], rows[b], noise=noise(0)
        )
        for got, want in zip(batched, one, strict=True):
            assert max_error(got[b : b + 1], want) < rounding(want)


@pytest.mark.parametrize(
    "kind", [partial(SineSPE, waves=2), partial(ConvSPE, kernel_size=3)]
)
def test_stochastic_gradients(kind: Callable[..., Any]) -> None:
    spe = kind(2, 3, generator=draw(1)).double()
    noise = (
        spe.draw(4, generator=draw(2))
        if isinstance(spe, SineSPE)
        else spe.draw(5, 4, generator=draw(2))
    )
    q, k = (normal(1, 2, 3, 3, seed=s) for s in (1, 2))
    names = [name for name, _ in spe.named_parameters()]
    assert names == (
        ["frequencies", "offsets", "gains"]
        if isinstance(spe, SineSPE)
        else ["q_filter", "k_filter"]
    )

    def form(*values: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(names, values, strict=True))
        return torch.func.functional_call(
            Call(spe, noise), {f"spe.{n}": x for n, x in own.items()}, (q, k)
        )

    assert torch.autograd.gradcheck(
        form, [p.detach().clone().requires_grad_() for p in spe.parameters()]
    )


class Call(nn.Module):
    def __init__(self, spe: Any, noise: Tensor) -> None:
        super().__init__()
        self.spe, self.noise = spe, noise

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.spe.transform(q, k, arange(3), arange(3), noise=self.noise)


# ---- distances inside the trained range


def distance_by_hand(name: str, m: int, n: int) -> float:
    r = m - n
    if name == "ReRoPE":
        return r if r < 5 else 5
    if name == "leaky ReRoPE":
        return r if r < 5 else 5 + (r - 5) / 4
    if name == "Self-Extend":
        return r if r < 6 else m // 3 - n // 3 + 6 - 6 // 3
    assert name == "dual chunk attention"
    place, ahead = m % 5, m // 5 - n // 5
    return (place if ahead <= 0 else min(place + 5, 7) if ahead == 1 else 7) - n % 5


@pytest.mark.parametrize("name", BRANCHES)
def test_distances_and_scores_are_their_equations(name: str) -> None:
    q, k, _ = qkv(23, batch=1)
    m = arange(23)
    seen = branched_relative(m, m, branches=BRANCHES[name])
    scores = branched_scores(q, k, m, m, rope=rope, branches=BRANCHES[name])
    w = inverse_frequencies(WIDTH)
    for i, j in itertools.product(range(23), range(23)):
        if j > i:
            continue
        distance = distance_by_hand(name, i, j)
        assert -float(seen[i, j]) == pytest.approx(distance, abs=1e-12)
        for h in range(HEADS):
            want = turned(q[0, h, i], distance, w) @ k[0, h, j]
            assert float(scores[0, h, i, j]) == pytest.approx(float(want), abs=1e-12)


@pytest.mark.parametrize("window", [1, 2, 4, 6, 12])
@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_distances_stay_in_range_grow_and_are_continuous(
    window: int, group: int
) -> None:
    length = 40
    m = arange(length)
    kinds = {
        "rerope": (partial(rerope, window=window), window),
        "leaky": (
            partial(leaky_rerope, window=window, factor=group),
            (length - 1 + window * (group - 1)) / group,
        ),
        "self_extend": (
            partial(self_extend, window=window, group=group),
            max(window - 1, (length - 1) // group + window - window // group),
        ),
    }
    for name, (
        branches,
        most,
    ) in kinds.items():  # each with the largest distance that its equation allows
        distance = -branched_relative(m, m, branches=branches)
        lower = torch.tril(distance)
        assert float(lower.max()) <= most
        assert bool((distance.diagonal() == 0).all())
        for i in range(length):
            row = distance[i, : i + 1].flip(0)  # from the query backwards
            steps = row.diff()
            assert bool((steps >= 0).all()), name
            near = min(i + 1, window)
            assert torch.equal(row[:near], torch.arange(near, dtype=torch.float64))
            if window % group == 0 or name != "self_extend":
                assert bool((steps <= 1).all()), f"{name} jumps"
            if i >= window and (window % group == 0 or name != "self_extend"):
                assert float(row[window]) == window, "continuous at w"


def test_self_extend_rounds_down_when_its_group_does_not_divide_the_window() -> None:
    m = arange(30)
    seen = branched_relative(m, m, branches=partial(self_extend, window=7, group=3))
    for i, j in itertools.product(range(30), range(30)):
        if j <= i:
            assert -int(seen[i, j]) == (
                i - j if i - j < 7 else i // 3 - j // 3 + 7 - 7 // 3
            )
            assert float(seen[i, j]) == int(seen[i, j])


@given(st.integers(1, 12), st.data())
@settings(max_examples=15, deadline=None)
def test_dual_chunk_distances(chunk: int, data: st.DataObject) -> None:
    local = data.draw(st.integers(0, chunk - 1))
    m = arange(5 * chunk + 3)
    distance = -branched_relative(
        m, m, branches=partial(dual_chunk, chunk=chunk, local=local)
    )
    true = m[:, None] - m[None, :]
    past = true >= 0
    assert float(distance[past].min()) >= 0
    assert float(distance[past].max()) <= chunk + local
    assert torch.equal(
        distance[past & (true <= local)], true[past & (true <= local)].double()
    )
    # the released code's tables, written with its own names
    chunk_size, local_window = chunk + local, local
    chunk_len = chunk_size - local_window
    q_t = torch.arange(chunk_len)
    qc_t = (q_t + chunk_len).clamp(max=chunk_size)
    for i, j in itertools.product(range(len(m)), range(len(m))):
        ahead = i // chunk_len - j // chunk_len
        if ahead < 0:
            continue
        at = (
            q_t[i % chunk_len]
            if ahead == 0
            else qc_t[i % chunk_len]
            if ahead == 1
            else qc_t[chunk_len - 1]
        )
        if ahead > 1 and local_window == chunk_len:
            continue
        assert int(distance[i, j]) == int(at) - j % chunk_len


@pytest.mark.parametrize(
    "branches",
    [
        partial(rerope, window=9),
        partial(leaky_rerope, window=1, factor=1),
        partial(self_extend, window=1, group=1),
        partial(dual_chunk, chunk=9, local=0),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_branches_reduce_to_rope(branches: Callable[..., Any], layout: str) -> None:
    own = RoPE(inverse_frequencies(WIDTH), layout=layout, attention_factor=1.25)
    q, k, _ = qkv(9)
    m = arange(9)
    turned_q, turned_k = own.transform(q, k, m, m)
    want = turned_q @ turned_k.mT
    got = branched_scores(q, k, m, m, rope=own, branches=branches)
    assert max_error(torch.tril(got), torch.tril(want)) < rounding(want)


def test_rerope_is_the_limit_of_leaky_rerope() -> None:
    m = arange(30)
    limit = branched_relative(m, m, branches=partial(rerope, window=4))
    for factor in (10, 1000, 10**9):
        leaky = branched_relative(
            m, m, branches=partial(leaky_rerope, window=4, factor=factor)
        )
        assert max_error(torch.tril(leaky), torch.tril(limit)) <= 30 / factor


@pytest.mark.parametrize("name", ["ReRoPE", "leaky ReRoPE"])
def test_rerope_is_relative_and_the_others_depend_on_where_counting_begins(
    name: str,
) -> None:
    q, k, _ = qkv(20)
    at = [arange(20), arange(20, offset=1)]
    a, b = (
        torch.tril(branched_scores(q, k, m, m, rope=rope, branches=BRANCHES[name]))
        for m in at
    )
    assert max_error(a, b) < rounding(a)
    for other in ("Self-Extend", "dual chunk attention"):
        a, b = (
            torch.tril(branched_scores(q, k, m, m, rope=rope, branches=BRANCHES[other]))
            for m in at
        )
        assert max_error(a, b) > 1e-2


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_of_batched_positions(name: str) -> None:
    q, k, _ = qkv(12)
    rows = torch.stack((arange(12), arange(12, offset=4)))
    scores = branched_scores(q, k, rows, rows, rope=rope, branches=BRANCHES[name])
    for b in range(2):
        one = branched_scores(
            q[b : b + 1],
            k[b : b + 1],
            rows[b],
            rows[b],
            rope=rope,
            branches=BRANCHES[name],
        )
        assert max_error(scores[b : b + 1], one) == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_narrow_integers_hold_positions_and_not_what_is_added_to_them(
    dtype: torch.dtype,
) -> None:
    q, k, m = normal(1, 2, 100, 8, seed=0), normal(1, 2, 100, 8, seed=1), arange(100)
    narrow = m.to(dtype)
    for branches in (
        partial(rerope, window=300),
        partial(leaky_rerope, window=60, factor=1000),
        partial(self_extend, window=300, group=2),
        partial(dual_chunk, chunk=200, local=100),
        partial(dual_chunk, chunk=80, local=60),
    ):
        scores = partial(
            branched_scores, q, k, rope=RoPE(inverse_frequencies(8)), branches=branches
        )
        assert torch.equal(scores(narrow, narrow), scores(m, m))
        seen = branched_relative(m, m, branches=branches)
        assert torch.equal(branched_relative(narrow, narrow, branches=branches), seen)
    turned = partial(rerotate, k, rope=RoPE(inverse_frequencies(8)))
    assert torch.equal(turned(narrow, narrow.flip(0)), turned(m, m.flip(0)))
    with pytest.raises(
        ValueError, match=r"positions must grow from slot to slot, got \[5, 3\]"
    ):
        evict(torch.tensor([2, 5, 3], dtype=dtype), sinks=1, window=1)


def test_lambda_mask_is_its_definition() -> None:
    m = arange(15)
    allowed = lambda_mask(m, m, sinks=2, window=4)
    for i, j in itertools.product(range(15), range(15)):
        assert bool(allowed[i, j]) == (j <= i and (i - j < 4 or j < 2))
    rows = m.expand(2, -1)
    assert torch.equal(
        lambda_mask(rows, rows, sinks=2, window=4), allowed.expand(2, 1, -1, -1)
    )
    assert torch.equal(
        lambda_mask(m, m, sinks=0, window=4), causal(m, m) & sliding_window(m, m, 4)
    )


# ---- eviction


def test_F1_77_eviction() -> None:
    old = torch.tensor([0, 1, 5, 6, 7])
    slots, new = evict(old, sinks=2, window=3)
    assert slots.tolist() == [0, 1, 2, 3, 4]
    assert new.tolist() == [0, 1, 2, 3, 4], "the newest key moves with the kept ones"
    assert (new - old[slots]).tolist() == [0, 0, -3, -3, -3]
    assert (len(new) - new).tolist() == [5, 4, 3, 2, 1]
    slots, new = evict(torch.tensor([0, 1, 2, 3, 4, 5]), sinks=2, window=3)
    assert slots.tolist() == [0, 1, 3, 4, 5]
    assert new.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_F1_77_eviction_rotates_as_if_from_the_start(
    layout: str, dtype: torch.dtype, factor: float
) -> None:
    own = RoPE(inverse_frequencies(WIDTH), layout=layout, attention_factor=factor)
    k = normal(2, HEADS, 9, WIDTH, seed=1)
    for start in (0, 12_345):
        old = torch.cat((arange(2), arange(7, offset=start + 5)))
        slots, new = evict(old, sinks=2, window=4)
        moved = rerotate(own(old)(k.to(dtype))[:, :, slots], old[slots], new, rope=own)
        assert moved.dtype == dtype
        fresh = own(new, torch.float64)(k[:, :, slots])
        tolerance = {
            torch.float64: 64 * 2**-24,
            torch.float32: 64 * 2**-24,
            torch.bfloat16: 2**-7,
        }[dtype]
        assert max_error(moved, fresh) <= tolerance * factor * float(k.abs().max())


def test_F1_77_eviction_while_streaming() -> None:
    """Tokens one by one, keys cached rotated and moved at each eviction: the same as rotating the kept keys afresh."""
    q, k, v = qkv(30)
    sinks, recent = 2, 5
    scheme = PositionScheme("RoPE", transform=rope.transform)
    cached, positions, kept = (
        k[:, :, :0],
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, dtype=torch.int64),
    )
    for t in range(30):
        if len(positions):
            slots, new = evict(positions, sinks=sinks, window=recent)
            cached = rerotate(cached[:, :, slots], positions[slots], new, rope=rope)
            positions, kept = new, kept[slots]
        at = torch.tensor([len(positions)])
        positions, kept = (
            torch.cat((positions, at)),
            torch.cat((kept, torch.tensor([t]))),
        )
        cached = torch.cat((cached, rope(at, torch.float64)(k[:, :, t : t + 1])), 2)
        turned_q = rope(at, torch.float64)(q[:, :, t : t + 1])
        out = attention(
            turned_q, cached, v[:, :, kept], q_positions=at, k_positions=positions
        )
        want = attention(
            q[:, :, t : t + 1],
            k[:, :, kept],
            v[:, :, kept],
            q_positions=at,
            k_positions=positions,
            scheme=scheme,
        )
        assert max_error(out, want) < rounding(want, 4096)
        assert kept.tolist() == sorted(
            {*range(min(t + 1, sinks)), *range(max(0, t - recent), t + 1)}
        )


# ---- temperatures


def test_temperatures_are_their_equations() -> None:
    m = torch.tensor([0, 1, 6, 7, 8, 15, 10**6])
    got = llama4_temperature(m, torch.float64, floor_scale=8, attn_scale=0.2)
    want = [1 + 0.2 * math.log(1 + (p + 1) // 8) for p in m.tolist()]
    assert max_error(got, torch.tensor(want, dtype=torch.float64)) < 8 * EPS
    assert got[:3].tolist() == [1, 1, 1]
    got = log_length_temperature(m, torch.float64, trained_length=16)
    want = [max(1.0, math.log(p + 1) / math.log(16)) for p in m.tolist()]
    assert max_error(got, torch.tensor(want, dtype=torch.float64)) < 16 * EPS
    assert float(got[5]) == 1, "nothing changes within the trained length"


def test_temperature_multiplies_scaled_scores_and_commutes_with_rope() -> None:
    q, k, _ = qkv(12)
    m, temperature = arange(12), partial(llama4_temperature, floor_scale=4)
    scheme = PositionScheme(
        "tempered", transform=partial(tempered, temperature=temperature)
    )
    weights = attention_weights(q, k, q_positions=m, k_positions=m, scheme=scheme)
    want = (
        (q @ k.mT) / math.sqrt(WIDTH) * temperature(m, torch.float64)[:, None]
    ).softmax(-1)
    assert max_error(weights, want) < rounding(want)
    first = rope.transform(*tempered(q, k, m, m, temperature=temperature), m, m)
    last = tempered(*rope.transform(q, k, m, m), m, m, temperature=temperature)
    assert max_error(first[0], last[0]) < rounding(last[0])
    rows = torch.stack((m, m + 3))
    batched, _ = tempered(q, k, rows, rows, temperature=temperature)
    assert (
        max_error(
            batched[1], tempered(q, k, m + 3, m + 3, temperature=temperature)[0][1]
        )
        == 0
    )


def test_ssmax_is_its_equation() -> None:
    q, k, _ = qkv(9, batch=1)
    ssmax, m = SSMax(HEADS).double(), arange(9)
    with torch.no_grad():
        ssmax.scale.copy_(torch.tensor([0.1, 0.4, 1.0, 2.0], dtype=torch.float64))
    scheme = PositionScheme("SSMax", transform=ssmax.transform)
    weights = attention_weights(
        q, k, q_positions=m, k_positions=m, scheme=scheme, mask=causal(m, m)
    ).detach()
    scores = (q @ k.mT) / math.sqrt(WIDTH)
    for h, i in itertools.product(range(HEADS), range(9)):
        s = (0.1, 0.4, 1.0, 2.0)[h]
        powers = torch.stack(
            [
                torch.as_tensor(float(i + 1)).double() ** (s * scores[0, h, i, j])
                for j in range(i + 1)
            ]
        )
        assert max_error(weights[0, h, i, : i + 1], powers / powers.sum()) < rounding(
            powers
        )
    assert bool((SSMax(3).scale == torch.tensor(0.168)).all())
    mean = sum(math.log(n) for n in range(1, 1025)) / 1024
    assert 0.168 * mean == pytest.approx(1, abs=0.005), (
        "what the docstring says about the initial value"
    )
    out, _ = ssmax.transform(q, k, m, m)
    (grad,) = torch.autograd.grad(out.sum(), ssmax.scale)
    logs = torch.tensor([math.log(i + 1) for i in range(9)], dtype=torch.float64)
    assert max_error(grad, (q[0].sum(-1) * logs).sum(-1)) < rounding(grad)


# ---- fused kernels


FUSED: dict[str, PositionScheme] = {
    "NoPE": NOPE,
    "RoPE": schemes.rope(WIDTH),
    "ALiBi": PositionScheme("ALiBi", bias=BIASES["ALiBi"]),
    "T5": PositionScheme("T5", bias=BIASES["T5"], scale=1.0),
    "window": PositionScheme("window", mask=partial(sliding_window, size=3)),
    "RoPE, ALiBi and window": PositionScheme(
        "RoPE, ALiBi and window",
        transform=rope.transform,
        bias=BIASES["ALiBi"],
        mask=partial(sliding_window, size=3),
        scale=0.3,
    ),
    **{
        name: scheme
        for name, scheme in SCHEMES.items()
        if not {"scores", "values"} & set(scheme.places)
    },
}


# sineSPE's and convSPE's codes belong to a head: there are no grouped keys
GROUPED = [
    (name, heads)
    for name in FUSED
    for heads in (HEADS, 2)
    if heads == HEADS or "SPE" not in name
]


@pytest.mark.parametrize(("name", "kv_heads"), GROUPED)
def test_fused_attention_is_attention(name: str, kv_heads: int) -> None:
    q, k, v = qkv(11, kv_heads=kv_heads)
    cases: list[tuple[slice, Tensor, Tensor, Tensor | None]] = [
        (slice(None), arange(11), arange(11), None),
        (slice(None), arange(11), arange(11), causal(arange(11), arange(11))),
        (
            slice(8, None),
            arange(3, offset=8),
            arange(11),
            causal(arange(3, offset=8), arange(11)),
        ),  # a cache
    ]
    padding = torch.stack((torch.arange(11) >= 4, torch.arange(11) >= 0))
    rows = from_mask(padding)
    cases.append(
        (slice(None), rows, rows, causal(rows, rows) & key_padding_mask(padding))
    )
    none = torch.ones(11, 11, dtype=torch.bool)
    none[3] = False
    cases.append((slice(None), arange(11), arange(11), none))
    for queries, m, n, mask in cases:
        kwargs: dict[str, Any] = {
            "q_positions": m,
            "k_positions": n,
            "scheme": FUSED[name],
            "mask": mask,
        }
        want = attention(q[:, :, queries], k, v, **kwargs)
        for chunk in (None, 1, 4, 99):
            out = fused_attention(q[:, :, queries], k, v, chunk=chunk, **kwargs)
            assert out.dtype == want.dtype
            assert max_error(out, want) < rounding(want)
    assert bool((out[:, :, 3] == 0).all()), "a row without any key gives zeros"


def plain_kernel(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, **_: Any
) -> Tensor:
    """A kernel by the book, which makes NaN of a row without any key."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    masked = (
        scores.masked_fill(~attn_mask, -math.inf)
        if attn_mask.dtype == torch.bool
        else scores + attn_mask
    )
    return masked.softmax(-1) @ v


@pytest.mark.parametrize(
    "kernel", [nn.functional.scaled_dot_product_attention, plain_kernel]
)
@pytest.mark.parametrize("name", ["NoPE", "ALiBi"])
def test_gradients_of_fused_attention_are_those_of_attention(
    name: str, kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "scaled_dot_product_attention", kernel)
    none = torch.ones(7, 7, dtype=torch.bool)
    none[2] = False
    grads = []
    for form in (attention, fused_attention):
        inputs = [x.requires_grad_() for x in qkv(7)]
        form(
            *inputs,
            q_positions=arange(7),
            k_positions=arange(7),
            scheme=FUSED[name],
            mask=none,
        ).square().sum().backward()
        grads.append([x.grad for x in inputs])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        assert b is not None
        assert bool(b.isfinite().all())
        assert max_error(a, b) < rounding(a, 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fused_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in qkv(9))
    scheme = PositionScheme(
        "RoPE + ALiBi",
        transform=rope.transform,
        bias=partial(alibi, slopes=alibi_slopes(HEADS)),
    )
    kwargs: dict[str, Any] = {
        "q_positions": arange(9),
        "k_positions": arange(9),
        "scheme": scheme,
    }
    out = fused_attention(q, k, v, **kwargs)
    assert out.dtype == dtype
    assert max_error(out, attention(q, k, v, **kwargs)) < 16 * torch.finfo(
        dtype
    ).eps * float(v.abs().max())


def test_own_masks_are_aligned_by_position_and_not_by_index() -> None:
    """PyTorch's `is_causal` lets a single query see the first key only; ours sees the whole cache."""
    q, k, v = qkv(6)
    one = q[:, :, 5:]
    wrong = nn.functional.scaled_dot_product_attention(one, k, v, is_causal=True)
    assert max_error(wrong, v[:, :, :1]) < rounding(v)
    at, keys = arange(1, offset=5), arange(6)
    right = fused_attention(
        one, k, v, q_positions=at, k_positions=keys, mask=causal(at, keys)
    )
    assert max_error(
        right, nn.functional.scaled_dot_product_attention(one, k, v)
    ) < rounding(v)


@pytest.mark.parametrize("name", ["ReRoPE", "LM-Infinite"])
def test_schemes_with_their_own_scores_are_refused(name: str) -> None:
    q, k, v = qkv(3)
    with pytest.raises(ValueError, match=r"scheme must leave scores empty.*" + name):
        fused_attention(
            q, k, v, q_positions=arange(3), k_positions=arange(3), scheme=SCHEMES[name]
        )


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_bias_vector_holds_every_diagonal(name: str, length: int) -> None:
    vector = relative_bias_vector(BIASES[name], length)
    dense = BIASES[name](arange(length), arange(length))[0]
    for i, j in itertools.product(range(length), range(length)):
        assert torch.equal(vector[:, j - i + length - 1], dense[:, i, j])


class Content(nn.Module):
    """A bias of both hidden states."""

    def forward(
        self, q_positions: Tensor, k_positions: Tensor, *, q_x: Tensor, k_x: Tensor
    ) -> Tensor:
        return (q_x @ k_x.mT)[:, None]


@pytest.mark.parametrize("name", ["FIRE", "forget gate", "content"])
def test_gradients_of_chunks_are_those_of_attention(name: str) -> None:
    """Biases that look at the query's position, or at the hidden states: the parameters' gradients too."""
    biases: dict[str, nn.Module] = {
        "FIRE": FIRE(HEADS, hidden=5, threshold=4.0, generator=draw(1)),
        "forget gate": ForgetGate(WIDTH, HEADS, std=1.0, generator=draw(1)),
        "content": Content(),
    }
    bias = biases[name].double()
    turn = rope.transform if name == "FIRE" else None  # it takes no hidden states
    scheme = PositionScheme(name, transform=turn, bias=bias, mask=causal)
    x = normal(2, 11, WIDTH, seed=7)
    q, k, v = qkv(11, kv_heads=2)
    kwargs: dict[str, Any] = {
        "q_positions": arange(7, offset=4),
        "k_positions": arange(11),
        "scheme": scheme,
    }
    if name != "FIRE":
        kwargs |= {
            "q_x": x[:, 4:].clone().requires_grad_(),
            "k_x": x.clone().requires_grad_(),
        }
    given = [
        q[:, :, 4:].requires_grad_(),
        k.requires_grad_(),
        v.requires_grad_(),
        *bias.parameters(),
    ]
    given += [x for x in kwargs.values() if isinstance(x, Tensor) and x.requires_grad]
    results = []
    for form in (attention, partial(fused_attention, chunk=3)):
        out = form(*given[:3], **kwargs)  # type: ignore[operator]
        results.append(
            torch.autograd.grad(out.square().sum(), given, allow_unused=True)
        )
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (
            float(a.abs().max()) > 0 and max_error(a, b) < rounding(a, 4096)
        )


class Largest(TorchDispatchMode):
    """The most numbers in one storage that an operation inside made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage()._cdata
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor)
        }
        for x in tree_leaves(out):
            if (
                isinstance(x, Tensor) and x.untyped_storage()._cdata not in given
            ):  # no view
                self.numbers = max(
                    self.numbers, x.untyped_storage().nbytes() // x.element_size()
                )
        return out


def both_ways(form: Callable[..., Tensor], *inputs: Tensor) -> int:
    """The largest storage of a forward and a backward pass."""
    given = [x.requires_grad_() for x in inputs]
    with Largest() as largest:
        torch.autograd.grad(form(*given).sum(), given)
    return largest.numbers


def test_chunks_of_fused_attention_make_no_square() -> None:
    scheme = PositionScheme(
        "FIRE", bias=FIRE(1, hidden=2, generator=draw(1)), mask=causal
    )
    sizes = {}
    for length, chunk in ((256, 4), (256, None)):
        inputs = [normal(1, 1, length, 4, seed=seed).float() for seed in range(3)]
        at: dict[str, Any] = {
            "q_positions": arange(length),
            "k_positions": arange(length),
            "chunk": chunk,
        }
        sizes[chunk] = both_ways(
            lambda *x, at=at: fused_attention(*x, scheme=scheme, **at), *inputs
        )
    assert sizes[4] <= 2 * 4 * 256, (
        "the two channels of FIRE's network for four queries"
    )
    assert sizes[None] >= 256**2, "otherwise the line above could not fail"
    kept = {}
    for chunk in (4, None):
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=numbers: to.append(x.numel()) or x, lambda x: x
        ):
            fused_attention(*inputs, scheme=scheme, **at | {"chunk": chunk})
        kept[chunk] = sum(numbers)
    assert kept[4] < 256**2 < kept[None], "the backward pass makes them again"


# Biases of the distance alone, with what they learn.
DISTANCES: dict[str, nn.Module | Callable[..., Tensor]] = {
    "ALiBi": BIASES["ALiBi"],
    "T5": schemes.t5(
        HEADS,
        bidirectional=True,
        std=1.0,
        num_buckets=8,
        max_distance=9,
        generator=draw(5),
    ).bias,  # type: ignore[dict-item]
    "T5, one way": schemes.t5(
        HEADS,
        bidirectional=False,
        std=1.0,
        num_buckets=4,
        max_distance=9,
        generator=draw(6),
    ).bias,  # type: ignore[dict-item]
    "KERPLE, logarithmic": KerpleLog(HEADS, generator=draw(7)),
    "KERPLE, power": KerplePower(HEADS, generator=draw(8)),
    "Sandwich": partial(sandwich, heads=HEADS, dtype=torch.float64),
    "network": DistanceMLPBias(HEADS, 6, generator=draw(9)),
    "window": lambda m, n: (
        torch.where(sliding_window(m, n, 3), 0.0, -math.inf)
        .double()
        .expand(1, HEADS, -1, -1)
    ),
}
for _bias in DISTANCES.values():
    if isinstance(_bias, nn.Module):
        _bias.double()


@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("name", DISTANCES)
def test_hankel_attention_is_attention(name: str, causal_: bool) -> None:
    """Forward and all gradients: whole sequences, a cache, padding on the left, on the right and in between."""
    bias = DISTANCES[name]
    learned = list(bias.parameters()) if isinstance(bias, nn.Module) else []
    scheme = PositionScheme(name, bias=bias, scale=1.0 if name == "T5" else None)
    padding = torch.ones(2, 13, dtype=torch.bool)
    padding[0, :5], padding[1, 7:9], padding[1, 12] = False, False, False
    for queries, mask, kv_heads, chunk in (
        (13, None, HEADS, 5),
        (13, padding, 2, 1),
        (13, padding, HEADS, 256),
        (4, padding, 1, 3),
        (1, None, 2, 256),
        (1, padding, 2, 256),
    ):
        q, k, v = (x.requires_grad_() for x in qkv(13, kv_heads=kv_heads))
        last, m, n = (
            q[:, :, 13 - queries :],
            arange(queries, offset=13 - queries),
            arange(13),
        )
        allowed = causal(m, n) if causal_ else torch.ones(queries, 13, dtype=torch.bool)
        allowed = allowed if mask is None else allowed & key_padding_mask(mask)
        want = attention(
            last, k, v, q_positions=m, k_positions=n, scheme=scheme, mask=allowed
        )
        out = hankel_attention(
            *(last, k, v),
            bias=relative_bias_vector(bias, 15),
            causal=causal_,
            mask=mask,
            scale=scheme.scale,
            chunk=chunk,
        )
        assert max_error(out, want) < rounding(want)
        given = [q, k, v, *learned]
        left, right = (
            torch.autograd.grad(x.square().sum(), given) for x in (out, want)
        )
        for a, b in zip(left, right, strict=True):
            assert max_error(a, b) < rounding(b, 2048)
        assert all(float(x.abs().max()) > 0 for x in right[2:]) or (
            name.startswith("KERPLE") and queries == 1
        )
        if mask is not None and causal_ and queries == 13:
            assert bool((out[0, :, :5] == 0).all()), "a query without a key gives zeros"


@pytest.mark.parametrize("length", LENGTHS)
def test_hankel_attention_of_any_length(length: int) -> None:
    q, k, v = qkv(length)
    v = normal(2, HEADS, length, WIDTH, seed=4)
    m, scheme = arange(length), PositionScheme("T5", bias=BIASES["T5"], scale=1.0)
    vector = relative_bias_vector(BIASES["T5"], length)
    for causal_, chunk in itertools.product((False, True), (1, 2, 7, 256)):
        want = attention(
            q,
            k,
            v,
            q_positions=m,
            k_positions=m,
            scheme=scheme,
            mask=causal(m, m) if causal_ else None,
        )
        out = hankel_attention(
            q, k, v, bias=vector, causal=causal_, scale=1.0, chunk=chunk
        )
        assert max_error(out, want) < rounding(want)


def test_long_padding_leaves_the_same_as_no_padding() -> None:
    """Padding that fills whole blocks of the kernel, in both of its widths."""
    for width in (WIDTH, 6):
        q, k, v = (
            normal(1, 2, 1500, width, seed=seed).requires_grad_() for seed in range(3)
        )
        bias = normal(2, 2999, seed=4).requires_grad_()
        mask = torch.arange(1500)[None] >= 1100
        padded = hankel_attention(q, k, v, bias=bias, causal=True, mask=mask)
        alone = hankel_attention(
            *(x[:, :, 1100:] for x in (q, k, v)), bias=bias, causal=True
        )
        assert max_error(padded[:, :, 1100:], alone) < rounding(alone, 4096)
        assert bool((padded[:, :, :1100] == 0).all())
        for a, b in zip(
            *(torch.autograd.grad(x.sum(), (q, k, v, bias)) for x in (padded, alone)),
            strict=True,
        ):
            assert max_error(a, b) < rounding(b, 2**14)


def test_hankel_gradients() -> None:
    """By finite differences, q, k, v and the vector; a second derivative is refused."""
    inputs = (
        normal(2, 2, 3, 3, seed=1),
        normal(2, 1, 5, 3, seed=2),
        normal(2, 1, 5, 2, seed=3),
        normal(2, 9, seed=4),
    )
    given = tuple(x.requires_grad_() for x in inputs)
    mask = torch.tensor(
        [[False, False, False, True, True], [True, False, True, True, True]]
    )
    for causal_, some in itertools.product((False, True), (None, mask)):

        def form(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            bias: Tensor,
            causal_: bool = causal_,
            some: Any = some,
        ) -> Tensor:
            return hankel_attention(
                q, k, v, bias=bias, causal=causal_, mask=some, chunk=2
            )

        assert torch.autograd.gradcheck(form, given)
    grads = torch.autograd.grad(form(*given).sum(), given, create_graph=True)
    for grad in grads:
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(grad.sum(), given)


def test_gradients_of_fewer_inputs() -> None:
    """Each input may be the only one that wants a gradient."""
    inputs = [*qkv(6), normal(HEADS, 11, seed=4)]
    every = [x.clone().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(
        hankel_attention(*every[:3], bias=every[3], causal=True, chunk=4).sum(), every
    )
    for i in range(4):
        some = [x.clone().requires_grad_(j == i) for j, x in enumerate(inputs)]
        (grad,) = torch.autograd.grad(
            hankel_attention(*some[:3], bias=some[3], causal=True, chunk=4).sum(),
            some[i : i + 1],
        )
        assert torch.equal(grad, wanted[i])
    with torch.no_grad():
        quick = hankel_attention(*every[:3], bias=every[3], causal=True)
    assert torch.equal(quick, hankel_attention(*every[:3], bias=every[3], causal=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_hankel_gradients_one_example_at_a_time() -> None:
    examples = [torch.stack((x, 2 * x)) for x in (*qkv(6), normal(HEADS, 11, seed=4))]

    def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return hankel_attention(q, k, v, bias=bias, causal=True, chunk=4).square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    for shared in (None, *range(4)):
        given = [x[0] if i == shared else x for i, x in enumerate(examples)]
        together = torch.func.vmap(
            gradients, tuple(None if i == shared else 0 for i in range(4))
        )(*given)
        for example in range(2):
            alone = [
                (x if i == shared else x[example]).clone().requires_grad_()
                for i, x in enumerate(given)
            ]
            for a, b in zip(
                together, torch.autograd.grad(loss(*alone), alone), strict=True
            ):
                assert max_error(a[example], b) < rounding(b)


@pytest.mark.parametrize("padded", [False, True])
def test_devices_without_such_a_kernel_get_the_same(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [*qkv(9, kv_heads=2), normal(HEADS, 17, seed=4)]
    mask = (torch.arange(9) >= torch.tensor([[4], [0]])) if padded else None
    results = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(fused, "_READ_VIEWS", devices)
        given = [x.clone().requires_grad_() for x in inputs]
        out = hankel_attention(
            *given[:3], bias=given[3], causal=True, mask=mask, chunk=4
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < rounding(a)


def test_hankel_bias_is_a_view_of_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of the kernel gets strides (1, 1) on one storage of 2N − 1 numbers a head: no bias is ever built."""
    seen, kernel = [], fused._by_kernel

    def spy(
        q: Tensor, k: Tensor, v: Tensor, view: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        seen.append(view)
        return kernel(q, k, v, view, scale)

    monkeypatch.setattr(fused, "_by_kernel", spy)
    q, k, v = qkv(13)
    vector = relative_bias_vector(BIASES["T5"], 13).detach()
    for causal_, mask in itertools.product((False, True), (None, torch.ones(2, 13))):
        hankel_attention(q, k, v, bias=vector, causal=causal_, mask=mask, chunk=4)
    assert len(seen) == 16
    assert all(view.stride()[2:] == (1, 1) for view in seen)
    assert all(view.untyped_storage().nbytes() == 8 * HEADS * 25 for view in seen)


@pytest.mark.parametrize("devices", [("cpu",), ()])
def test_hankel_attention_makes_no_square(
    devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_READ_VIEWS", devices)
    monkeypatch.setattr(fused, "_PIECE", 1)
    heads = (
        1 if devices else 2
    )  # whose scores exist together: plain products take all heads at once, forwards
    for length, padded, causal_ in itertools.product(
        (512, 1024), (False, True), (False, True)
    ):
        inputs = [normal(1, 2, length, 3, seed=seed).float() for seed in range(3)]
        bias, mask = (
            normal(2, 2 * length - 1, seed=3).float(),
            torch.arange(length)[None] >= 9 if padded else None,
        )

        def form(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            b: Tensor,
            causal_: bool = causal_,
            mask: Any = mask,
        ) -> Tensor:
            return hankel_attention(q, k, v, bias=b, causal=causal_, mask=mask, chunk=8)

        assert both_ways(form, *inputs, bias) <= heads * 8 * (length + 8)
    m, scheme = arange(512), schemes.alibi(1)
    dense = both_ways(
        lambda *x: attention(*x, q_positions=m, k_positions=m, scheme=scheme),
        *(normal(1, 1, 512, 4, seed=seed).float() for seed in range(3)),
    )
    assert dense >= 512**2, "otherwise the lines above could not fail"


def test_one_token_copies_no_cache() -> None:
    """Decoding: one call of the kernel, and nothing of the cache's size is made."""
    _, k, v = qkv(64)
    v = normal(2, HEADS, 64, WIDTH, seed=3)
    q, mask = (
        normal(2, HEADS, 1, WIDTH, seed=4),
        torch.arange(64) >= torch.tensor([[20], [0]]),
    )
    vector = relative_bias_vector(BIASES["ALiBi"], 64)
    with torch.no_grad(), Largest() as largest:
        hankel_attention(q, k, v, bias=vector, causal=True, mask=mask)
    assert largest.numbers <= max(vector.numel(), 2 * HEADS * 64) < k.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hankel_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    vector = relative_bias_vector(partial(alibi, slopes=alibi_slopes(HEADS)), 40)
    m, mask, results = arange(40), torch.arange(40)[None].expand(2, -1) >= 9, []
    for kind in (dtype, torch.float64):
        q, k, v = (x.to(dtype).to(kind).requires_grad_() for x in qkv(40))
        bias = vector.to(kind).requires_grad_()
        out = hankel_attention(q, k, v, bias=bias, causal=True, mask=mask, chunk=16)
        assert out.dtype == kind
        grads = torch.autograd.grad(out.square().sum(), (q, k, v, bias))
        assert [x.dtype for x in grads] == [kind] * 4
        results.append([out, *grads])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < 16 * torch.finfo(dtype).eps * float(
            b.detach().abs().max()
        )
    q, k, v = (x.to(dtype) for x in qkv(40))
    own = causal(m, m) & key_padding_mask(mask)
    want = attention(
        q, k, v, q_positions=m, k_positions=m, scheme=schemes.alibi(HEADS), mask=own
    )
    assert max_error(
        hankel_attention(q, k, v, bias=vector, causal=True, mask=mask), want
    ) < (16 * torch.finfo(dtype).eps * float(v.abs().max()))


def test_hankel_attention_compiles_with_its_gradients() -> None:
    mask = torch.arange(9) >= torch.tensor([[4], [0]])

    def form(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return hankel_attention(q, k, v, bias=bias, causal=True, mask=mask, chunk=4)

    results = []
    for run in (form, torch.compile(form, backend="aot_eager")):
        given = [x.requires_grad_() for x in (*qkv(9), normal(HEADS, 17, seed=4))]
        out = run(*given)
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < rounding(a)


def test_hankel_gradients_on_meta_have_shapes() -> None:
    given = [
        x.to("meta").requires_grad_() for x in (*qkv(9, kv_heads=2), normal(HEADS, 17))
    ]
    out = hankel_attention(
        *given[:3], bias=given[3], causal=True, mask=torch.ones(2, 9), chunk=4
    )
    assert [x.shape for x in torch.autograd.grad(out.sum(), given)] == [
        x.shape for x in given
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "causal_"), [("ALiBi", True), ("T5", False)])
def test_flex_attention_with_a_relative_bias_is_attention(
    name: str, causal_: bool
) -> None:
    q, k, v = (x.float() for x in qkv(12))
    v = normal(2, HEADS, 12, WIDTH, seed=4).float()
    scheme = PositionScheme(name, bias=BIASES[name])
    vector = relative_bias_vector(BIASES[name], 16).float()
    for m, n in (
        (arange(12), arange(12)),
        (arange(4, offset=8), arange(12)),
        (torch.stack((arange(12), arange(12, offset=3))),) * 2,
    ):
        queries = q[:, :, -m.shape[-1] :]
        mod = relative_score_mod(vector, q_positions=m, k_positions=n, causal=causal_)
        with torch.no_grad():
            out = flex_attention(queries, k, v, score_mod=mod)
            want = attention(
                queries,
                k,
                v,
                q_positions=m,
                k_positions=n,
                scheme=scheme,
                mask=causal(m, n) if causal_ else None,
            )
        assert isinstance(out, Tensor)
        assert max_error(out, want) < 64 * torch.finfo(torch.float32).eps * float(
            v.abs().max()
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_padding_as_a_block_mask() -> None:
    q, k, v = (normal(2, HEADS, 12, WIDTH, seed=seed).float() for seed in range(3))
    mask = torch.arange(12) >= torch.tensor([[5], [0]])
    rows = from_mask(mask)
    vector = relative_bias_vector(BIASES["T5"], 12).float().detach()

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[batch, key] & (key <= query)

    blocks = create_block_mask(visible, 2, None, 12, 12, device="cpu")
    mod = relative_score_mod(vector, q_positions=rows, k_positions=rows, causal=True)
    out = flex_attention(q, k, v, score_mod=mod, block_mask=blocks)
    want = hankel_attention(q, k, v, bias=vector, causal=True, mask=mask)
    assert isinstance(out, Tensor)
    assert max_error(out, want) < 64 * torch.finfo(torch.float32).eps * float(
        v.abs().max()
    )


# ---- layer plans


def test_plans_put_the_full_layers_where_the_models_have_them() -> None:
    full = {
        "Gemma 3": [i for i, layer in enumerate(gemma3(26)) if layer.window is None],
        "Llama 4": [i for i, layer in enumerate(llama4(48)) if layer.chunk is None],
        "SmolLM3": [i for i, layer in enumerate(smollm3(36)) if layer.base is None],
        "Command": [
            i
            for i, layer in enumerate(cohere2(32, base=50_000.0))
            if layer.window is None
        ],
        "gpt-oss": [i for i, layer in enumerate(gpt_oss(24)) if layer.window is None],
        "ModernBERT": [
            i for i, layer in enumerate(modernbert(22)) if layer.window is None
        ],
    }
    assert full == {
        "Gemma 3": [5, 11, 17, 23],
        "Llama 4": list(range(3, 48, 4)),
        "SmolLM3": list(range(3, 36, 4)),
        "Command": list(range(3, 32, 4)),
        "gpt-oss": list(range(1, 24, 2)),
        "ModernBERT": list(range(0, 22, 3)),
    }
    assert all(
        (layer.base is None) == (layer.window is None)
        for layer in cohere2(32, base=50_000.0)
    )
    assert all(
        (layer.temperature is None) == (layer.base is not None) for layer in llama4(48)
    )
    assert {layer.base for layer in modernbert(22) if layer.window is None} == {
        160_000.0
    }


def test_only_global_layers_of_gemma3_are_interpolated() -> None:
    for layer in gemma3(12, factor=8.0):
        rope = layer.rope(256, layout="half")
        assert rope is not None
        far = layer.window is None
        want = (
            inverse_frequencies(256, 1e6) / 8 if far else inverse_frequencies(256, 1e4)
        )
        assert torch.equal(rope.frequencies, want)
        assert rope.layout == "half"
    small = gemma3(6, window=512, factor=1.0)[5].rope(256)
    assert small is not None
    assert torch.equal(small.frequencies, inverse_frequencies(256, 1e6))


def test_gpt_oss_layers_rotate_as_its_configuration_says() -> None:
    rope = gpt_oss(2)[1].rope(64)
    assert rope is not None
    assert rope.attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    plain = inverse_frequencies(64, 150_000.0)
    ratio = plain / rope.frequencies
    kinds = [int((abs(ratio - 1) < 1e-12).sum()), int((abs(ratio - 32) < 1e-9).sum())]
    assert kinds == [9, 14], "9 pairs left alone, 14 interpolated, 9 in between"
    low, high = (
        64 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(150_000))
        for turns in (32, 1)
    )
    for i in range(9, 18):  # the ramp begins and ends between pairs
        t = (i - low) / (high - low)
        assert float(rope.frequencies[i] / plain[i]) == pytest.approx(
            1 - t + t / 32, rel=1e-12
        )


def test_masks_of_the_layers() -> None:
    m = arange(200)
    r = m[None, :] - m[:, None]
    local = modernbert(2)[1].scheme(8)
    assert local.mask is not None
    assert torch.equal(local.mask(m, m), r.abs() <= 64)
    sliding = gemma3(1, window=5)[0].scheme(8)
    assert sliding.mask is not None
    assert torch.equal(sliding.mask(m, m) & causal(m, m), (r <= 0) & (r > -5))
    chunks = chunk_mask(m, m, chunk=7)
    for i, j in itertools.product(range(30), range(30)):
        assert bool(chunks[i, j]) == (i // 7 == j // 7)
    nope = llama4(4)[3].scheme(8)
    assert (nope.name, nope.places) == ("NoPE", ("transform",))
    assert smollm3(4)[3].scheme(8).places == ()


def test_a_llama4_layer_without_rotation_scales_its_queries() -> None:
    q, k, _ = qkv(3)
    m = torch.tensor([0, 8191, 100_000])
    scheme = llama4(4)[3].scheme(WIDTH)
    assert scheme.transform is not None
    got, same = scheme.transform(q, k, m, m)
    assert same is k
    assert max_error(got, q * llama4_temperature(m, torch.float64)[:, None]) == 0


def test_drope_drops_rotations_and_nothing_else() -> None:
    plan = gemma3(6)
    dropped = drope(plan)
    assert all(layer.base is None for layer in dropped)
    assert [layer.window for layer in dropped] == [layer.window for layer in plan]
    q, k, v = qkv(5)
    m = arange(5)
    scheme = drope((Layer(10_000.0),))[0].scheme(WIDTH)
    kwargs: dict[str, Any] = {"q_positions": m, "k_positions": m, "mask": causal(m, m)}
    assert (
        max_error(
            attention(q, k, v, scheme=scheme, **kwargs), attention(q, k, v, **kwargs)
        )
        == 0
    )
    with pytest.raises(ValueError, match="plan"):
        drope(dropped)


# ---- dtypes, meta tensors, compilation


def test_random_draws_follow_their_generator_and_nothing_else_is_in_a_state_dict() -> (
    None
):
    for make in (
        partial(SineSPE, HEADS, WIDTH),
        partial(ConvSPE, HEADS, WIDTH, kernel_size=3),
    ):
        a, b, c = (make(generator=draw(seed)).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert all(not torch.equal(a[name], c[name]) for name in a)
    assert list(SSMax(2).state_dict()) == ["scale"]
    assert torch.equal(sine.draw(3, generator=draw(0)), sine.draw(3, generator=draw(0)))


# ---- malformed inputs


Q, K, V = qkv(4)
FQ, FK = elu_features(Q), elu_features(K)
M = arange(4)
DECAYS = retention_decays(HEADS)
AFTER_FOUR = recurrent_retention(Q, K, V, positions=M, decays=DECAYS)[1]
VECTOR = torch.zeros(HEADS, 7, dtype=torch.float64)
BOTH: dict[str, Any] = {"q_positions": M, "k_positions": M}

MALFORMED: list[tuple[str, type[Exception], Callable[[], Any]]] = [
    ("x must be a floating-point", TypeError, lambda: elu_features(torch.arange(3))),
    (
        "features must be an integer ≥ 1, got 0",
        ValueError,
        lambda: orthogonal_projection(0, 4),
    ),
    ("dim must be an integer", TypeError, lambda: orthogonal_projection(4, 4.0)),  # type: ignore[arg-type]
    (
        "projection must have shape (M, 8)",
        ValueError,
        lambda: positive_features(Q, torch.ones(3, 4)),
    ),
    (
        "length must be an integer ≥ 1",
        ValueError,
        lambda: cosformer_features(Q, M, length=0),
    ),
    (
        "positions must lie in 0 … length = 2, got 3",
        ValueError,
        lambda: cosformer_features(Q, M, length=2),
    ),
    (
        "x must have shape (B, H, T, d)",
        ValueError,
        lambda: cosformer_features(Q[None], M, length=9),
    ),
    (
        "q must hold features of at least 0",
        ValueError,
        lambda: linear_attention(Q, FK, V, **BOTH),
    ),
    (
        "k must hold features of at least 0",
        ValueError,
        lambda: causal_linear_attention(FQ, K, V, positions=M),
    ),
    (
        "q_positions must have shape (4,)",
        ValueError,
        lambda: linear_attention(FQ, FK, V, q_positions=M[:3], k_positions=M),
    ),
    (
        "positions must have shape (4,)",
        ValueError,
        lambda: causal_linear_attention(FQ, FK, V, positions=M[:3]),
    ),
    (
        "q and k must agree",
        ValueError,
        lambda: linear_attention(FQ, FK[..., :4], V, **BOTH),
    ),
    (
        "v must have k's batch",
        ValueError,
        lambda: linear_attention(FQ, FK, V[:, :2], **BOTH),
    ),
    (
        "mask must have shape (B, T) = (2, 4)",
        ValueError,
        lambda: linear_attention(FQ, FK, V, mask=torch.ones(2, 3), **BOTH),
    ),
    (
        "bias must have shape (H, 2N−1) with H = 4 and N ≥ 4, got (4, 5)",
        ValueError,
        lambda: toeplitz_attention(FQ, FK, V, bias=VECTOR[:, :5], causal=True),
    ),
    (
        "causal must be True or False, got 1",
        TypeError,
        lambda: toeplitz_attention(FQ, FK, V, bias=VECTOR, causal=1),
    ),  # type: ignore[arg-type]
    (
        "q must have k's length 4",
        ValueError,
        lambda: toeplitz_attention(FQ[:, :, :2], FK, V, bias=VECTOR, causal=True),
    ),
    ("heads must be an integer ≥ 1", ValueError, lambda: retention_decays(0)),
    (
        "decays must have shape (H,) = (4,)",
        ValueError,
        lambda: retention(Q, K, V, decays=DECAYS[:2], **BOTH),
    ),
    (
        "decays must be above 0 and at most 1, got 2.0",
        ValueError,
        lambda: retention(Q, K, V, decays=DECAYS * 0 + 2, **BOTH),
    ),
    ("waves must be an integer ≥ 1", ValueError, lambda: SineSPE(2, 4, waves=0)),
    (
        "kernel_size must be an integer",
        TypeError,
        lambda: ConvSPE(2, 4, kernel_size="3"),
    ),  # type: ignore[arg-type]
    ("realizations must be an integer ≥ 1", ValueError, lambda: sine.draw(0)),
    ("length must be an integer ≥ 1", ValueError, lambda: conv.draw(0, 4)),
    (
        "noise must be what draw",
        ValueError,
        lambda: sine.transform(Q, K, M, M, noise=conv.draw(8, 2)),
    ),
    (
        "q must have shape (B, 4, T, 8)",
        ValueError,
        lambda: sine.transform(Q[:, :2], K, M, M, noise=sine.draw(2)),
    ),
    (
        "k_positions must lie in 0 … 1",
        ValueError,
        lambda: conv.transform(Q, K, M % 2, M, noise=conv.draw(2, 2)),
    ),
    (
        "q_positions must be integers",
        TypeError,
        lambda: conv.transform(Q, K, M / 2, M, noise=conv.draw(8, 2)),
    ),
    (
        "window must be an integer ≥ 1, got 0",
        ValueError,
        lambda: rerope(M, M, window=0),
    ),
    (
        "factor must be an integer",
        TypeError,
        lambda: leaky_rerope(M, M, window=2, factor=1.5),
    ),  # type: ignore[arg-type]
    (
        "group must be an integer ≥ 1",
        ValueError,
        lambda: self_extend(M, M, window=2, group=0),
    ),
    (
        "local must be below chunk = 4, got 4",
        ValueError,
        lambda: dual_chunk(M, M, chunk=4, local=4),
    ),
    (
        "chunk must be an integer ≥ 1",
        ValueError,
        lambda: dual_chunk(M, M, chunk=0, local=0),
    ),
    (
        "q_positions must be a tensor",
        TypeError,
        lambda: self_extend([0], M, window=2, group=2),
    ),  # type: ignore[arg-type]
    (
        "q and k must agree",
        ValueError,
        lambda: branched_scores(
            Q, K[:, :2], M, M, rope=rope, branches=BRANCHES["ReRoPE"]
        ),
    ),
    (
        "sinks must be an integer ≥ 0, got -1",
        ValueError,
        lambda: lambda_mask(M, M, sinks=-1, window=2),
    ),
    (
        "positions must have shape (T,), one row",
        ValueError,
        lambda: evict(M[None], sinks=1, window=1),
    ),
    ("positions must grow", ValueError, lambda: evict(M.flip(0), sinks=1, window=1)),
    ("window must be an integer ≥ 1", ValueError, lambda: evict(M, sinks=1, window=0)),
    (
        "new_positions must have the shape",
        ValueError,
        lambda: rerotate(K, M, M[:2], rope=rope),
    ),
    (
        "floor_scale must be an integer ≥ 1",
        ValueError,
        lambda: llama4_temperature(M, floor_scale=0),
    ),
    (
        "attn_scale must be finite and above 0",
        ValueError,
        lambda: llama4_temperature(M, attn_scale=-1.0),
    ),
    (
        "trained_length must be an integer ≥ 2",
        ValueError,
        lambda: log_length_temperature(M, trained_length=1),
    ),
    (
        "q_positions must have shape (4,)",
        ValueError,
        lambda: tempered(Q, K, M[:2], M, temperature=llama4_temperature),
    ),
    ("initial must be finite and above 0", ValueError, lambda: SSMax(2, initial=0.0)),
    (
        "q must have shape (B, 2, T, d)",
        ValueError,
        lambda: SSMax(2).transform(Q, K, M, M),
    ),
    (
        "mask must be boolean",
        TypeError,
        lambda: fused_attention(Q, K, V, mask=torch.ones(4, 4), **BOTH),
    ),
    (
        "k_positions must have shape (4,)",
        ValueError,
        lambda: fused_attention(Q, K, V, q_positions=M, k_positions=M[:2]),
    ),
    ("v must have k's batch", ValueError, lambda: fused_attention(Q, K, V[:1], **BOTH)),
    (
        "length must be an integer ≥ 1",
        ValueError,
        lambda: relative_bias_vector(BIASES["ALiBi"], 0),
    ),
    (
        "bias must return shape (1, H, 1, 7)",
        ValueError,
        lambda: relative_bias_vector(causal, 4),
    ),
    (
        "bias must have shape (H, 2N−1) with H = 4 and N ≥ 4, got (2, 7)",
        ValueError,
        lambda: hankel_attention(Q, K, V, bias=VECTOR[:2], causal=True),
    ),
    (
        "mask must have shape (B, Tk) = (2, 4), got (2, 3)",
        ValueError,
        lambda: hankel_attention(
            Q, K, V, bias=VECTOR, causal=True, mask=torch.ones(2, 3)
        ),
    ),
    (
        "got (4, 6)",
        ValueError,
        lambda: hankel_attention(Q, K, V, bias=VECTOR[:, :6], causal=True),
    ),
    (
        "chunk must be an integer ≥ 1",
        ValueError,
        lambda: fused_attention(Q, K, V, chunk=0, **BOTH),
    ),
    (
        "mask must broadcast to (2, 4, 4, 4)",
        ValueError,
        lambda: fused_attention(
            Q, K, V, mask=torch.ones(3, 4, dtype=torch.bool), chunk=3, **BOTH
        ),
    ),
    (
        "chunk must be an integer ≥ 1",
        ValueError,
        lambda: hankel_attention(Q, K, V, bias=VECTOR, causal=True, chunk=0),
    ),
    (
        "q must be the last of k's 2 tokens, got 4 queries",
        ValueError,
        lambda: hankel_attention(Q, K[:, :, :2], V[:, :, :2], bias=VECTOR, causal=True),
    ),
    (
        "q must be the last of k's 4 tokens, got 0 queries",
        ValueError,
        lambda: hankel_attention(Q[:, :, :0], K, V, bias=VECTOR, causal=True),
    ),
    (
        "bias must have shape (H, 2N−1)",
        ValueError,
        lambda: relative_score_mod(VECTOR[:, :6], causal=True, **BOTH),
    ),
    (
        "bias must hold distances up to 3",
        ValueError,
        lambda: relative_score_mod(VECTOR[:, :5], causal=True, **BOTH),
    ),
    (
        "k_positions must be integers",
        TypeError,
        lambda: relative_score_mod(
            VECTOR, q_positions=M, k_positions=M / 2, causal=True
        ),
    ),
    ("layers must be an integer ≥ 1, got 0", ValueError, lambda: gemma3(0)),
    ("factor must be", ValueError, lambda: gemma3(6, factor=0.5)),
    (
        "window must be an integer ≥ 1",
        ValueError,
        lambda: cohere2(4, base=1e4, window=0),
    ),
    ("base must be finite and above 0", ValueError, lambda: smollm3(4, base=0.0)),
    (
        "window and chunk exclude one another",
        ValueError,
        lambda: Layer(window=3, chunk=3),
    ),
    (
        "schedule is for layers with a rotation",
        ValueError,
        lambda: Layer(schedule=partial(llama3, factor=8.0)),
    ),
    (
        "temperature is for layers without a rotation",
        ValueError,
        lambda: Layer(1e4, temperature=llama4_temperature),
    ),
    ("schedule must be a callable", TypeError, lambda: Layer(1e4, schedule=None)),  # type: ignore[arg-type]
    ("chunk must be an integer ≥ 1", ValueError, lambda: chunk_mask(M, M, chunk=0)),
    (
        "positions must be at least 0, since a query at m has",
        ValueError,
        lambda: llama4_temperature(M - 1),
    ),
    ("got -3", ValueError, lambda: log_length_temperature(M - 3, trained_length=8)),
    (
        "q_positions must be an integer ≥ 0",
        ValueError,
        lambda: SSMax(HEADS).transform(Q, K, M - 1, M),
    ),
    (
        "positions must never go back",
        ValueError,
        lambda: recurrent_retention(
            Q, K, V, positions=torch.tensor([0, 1, 0, 1]), decays=DECAYS
        ),
    ),
    (
        "got a step of -3",
        ValueError,
        lambda: recurrent_retention(
            Q, K, V, positions=M.to(torch.uint8), decays=DECAYS, state=AFTER_FOUR
        ),
    ),
    (
        "state.memory must have shape (2, 4, 8, 6), got (1, 4, 8, 6)",
        ValueError,
        lambda: recurrent_retention(
            Q,
            K,
            V,
            positions=M + 4,
            decays=DECAYS,
            state=AFTER_FOUR._replace(memory=AFTER_FOUR.memory[:1]),
        ),
    ),
    (
        "state.numerator must have shape (2, 4, 8, 6), got (2, 4, 1, 6)",
        ValueError,
        lambda: causal_linear_attention(
            FQ,
            FK,
            V,
            positions=M,
            state=LinearState(torch.zeros(2, 4, 1, 6), torch.zeros(2, 4, 8)),
        ),
    ),
    (
        "state must be a LinearState",
        TypeError,
        lambda: causal_linear_attention(FQ, FK, V, positions=M, state=AFTER_FOUR),  # type: ignore[arg-type]
    ),
    (
        "bias must broadcast to (2, 4, 4, 4) from four axes, got (4, 4, 4)",
        ValueError,
        lambda: fused_attention(
            Q,
            K,
            V,
            scheme=PositionScheme("three axes", bias=lambda m, n: torch.zeros(4, 4, 4)),
            **BOTH,
        ),
    ),
    (
        "q_x and k_x must be given together, got q_x alone",
        ValueError,
        lambda: fused_attention(Q, K, V, q_x=torch.ones(2, 4, 3), **BOTH),
    ),
]


@pytest.mark.parametrize(
    ("message", "error", "call"), MALFORMED, ids=[f"{i}" for i in range(len(MALFORMED))]
)
def test_malformed_inputs_are_named(
    message: str, error: type[Exception], call: Callable[[], Any]
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
