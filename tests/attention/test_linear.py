"""Linear attention with rotations, its features, and retention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.attention import (
    HEADS,
    LENGTHS,
    WIDTH,
    qkv,
    rope,
)
from helpers import EPS, normal, rotated_by_loop, rounding, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.attention import (
    causal,
)
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
from posenc_lib.attention.toeplitz import toeplitz_attention
from posenc_lib.bias import (
    alibi,
)
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, from_mask
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.rotary import LAYOUTS, RoPE

# ---- linear attention


def linear_by_hand(
    q: Tensor, k: Tensor, v: Tensor, m: list[float], n: list[float], causal_: bool
) -> Tensor:
    frequencies = inverse_frequencies(q.shape[-1])
    out = torch.zeros(len(m), v.shape[-1], dtype=torch.float64)
    for i, j in itertools.product(range(len(m)), range(len(n))):
        if causal_ and n[j] > m[i]:
            continue
        rotated_q = rotated_by_loop(q[i], (m[i] * frequencies).tolist())
        rotated_k = rotated_by_loop(k[j], (n[j] * frequencies).tolist())
        weight = rotated_q @ rotated_k
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


def test_bug_85_linear_attention() -> None:
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
def test_bug_85_linear_attention_stays_finite(
    layout: str, dtype: torch.dtype, dim: int
) -> None:
    """Whatever the rotation, no output exceeds the largest value.

    |cos| ≤ 1 over an unrotated, positive sum.
    """
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


def test_elu_features_are_positive_and_smooth() -> None:
    x = torch.tensor([-30.0, -1.0, 0.0, 1.0, 5.0], dtype=torch.float64)
    want = torch.where(x > 0, x + 1, x.exp())
    assert max_error(elu_features(x), want) < 4 * EPS
    assert bool((elu_features(x) > 0).all())


@pytest.mark.parametrize(("features", "dim"), [(3, 8), (8, 8), (20, 8), (5, 1)])
def test_projection_is_orthogonal_in_blocks(features: int, dim: int) -> None:
    omega = orthogonal_projection(features, dim, generator=seeded(0))
    assert omega.shape == (features, dim)
    assert omega.dtype == torch.float64
    for block in omega.split(dim):
        gram = block @ block.mT
        assert max_error(
            gram - torch.diag(gram.diag()), torch.zeros_like(gram)
        ) < rounding(gram)
    many = torch.stack(
        [
            orthogonal_projection(8, 8, generator=seeded(s)).square().sum(-1)
            for s in range(400)
        ]
    )
    error = many.std() / math.sqrt(many.numel())
    assert abs(float(many.mean()) - 8) < 5 * error, (
        "squared lengths are χ² with d degrees of freedom"
    )


@pytest.mark.parametrize(("length", "all_zero"), [(6, False), (30, True)])
def test_positive_features_of_long_vectors_get_small(
    length: float, all_zero: bool
) -> None:
    x = length * torch.nn.functional.normalize(
        normal(8, 64, seed=1, dtype=torch.float32), dim=-1
    )
    omega = orthogonal_projection(64, 64, generator=seeded(0))
    features = positive_features(x, omega)
    assert float((x.double() @ omega.mT).max()) > 88 or not all_zero
    assert float(features.max()) < 1
    assert bool((features == 0).all()) == all_zero


def test_positive_features_are_unbiased() -> None:
    q, k = normal(4, 6, seed=1) * 0.5, normal(4, 6, seed=2) * 0.5
    samples = []
    for seed in range(2000):
        omega = orthogonal_projection(12, 6, generator=seeded(seed))
        samples.append(
            (positive_features(q, omega) * positive_features(k, omega)).sum(-1)
        )
    estimates = torch.stack(samples)
    error = estimates.std(0) / math.sqrt(len(samples))
    truth = (q * k).sum(-1).exp()
    assert bool((estimates > 0).all())
    assert bool(((estimates.mean(0) - truth).abs() < 5 * error).all())
    assert bool((error < 0.05 * truth).all()), "otherwise the test above could not fail"


def test_positive_features_are_the_equation() -> None:
    x, omega = normal(3, 5), normal(4, 5, seed=1)
    features = positive_features(x, omega)
    for row, m in itertools.product(range(3), range(4)):
        product = sum(float(omega[m, c]) * float(x[row, c]) for c in range(5))
        square = sum(float(x[row, c]) ** 2 for c in range(5))
        expected = math.exp(product - square / 2) / math.sqrt(4)
        assert float(features[row, m]) == pytest.approx(expected, rel=1e-12)


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
                * rotated_by_loop(q[b, h, i], (i * w).tolist())
                @ rotated_by_loop(k[b, h, j], (j * w).tolist())
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


Q, K, V = qkv(4)

FQ, FK = elu_features(Q), elu_features(K)

M = arange(4)

DECAYS = retention_decays(HEADS)

AFTER_FOUR = recurrent_retention(Q, K, V, positions=M, decays=DECAYS)[1]

BOTH: dict[str, Any] = {"q_positions": M, "k_positions": M}


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "elu_features: x": (
        lambda: elu_features(torch.arange(3)),
        TypeError,
        "x must be a floating-point",
    ),
    "orthogonal_projection: features": (
        lambda: orthogonal_projection(0, 4),
        ValueError,
        "features must be an integer ≥ 1, got 0",
    ),
    "orthogonal_projection: dim": (
        lambda: orthogonal_projection(4, 4.0),  # type: ignore[arg-type]
        TypeError,
        "dim must be an integer",
    ),
    "positive_features: projection": (
        lambda: positive_features(Q, torch.ones(3, 4)),
        ValueError,
        r"projection must have shape \(M, 8\)",
    ),
    "cosformer_features: length": (
        lambda: cosformer_features(Q, M, length=0),
        ValueError,
        "length must be an integer ≥ 1",
    ),
    "cosformer_features: positions": (
        lambda: cosformer_features(Q, M, length=2),
        ValueError,
        "positions must lie in 0 … length = 2, got 3",
    ),
    "cosformer_features: x": (
        lambda: cosformer_features(Q[None], M, length=9),
        ValueError,
        r"x must have shape \(B, H, T, d\)",
    ),
    "linear_attention: q": (
        lambda: linear_attention(Q, FK, V, **BOTH),
        ValueError,
        "q must hold features of at least 0",
    ),
    "causal_linear_attention: k": (
        lambda: causal_linear_attention(FQ, K, V, positions=M),
        ValueError,
        "k must hold features of at least 0",
    ),
    "linear_attention: q_positions": (
        lambda: linear_attention(FQ, FK, V, q_positions=M[:3], k_positions=M),
        ValueError,
        r"q_positions must have shape \(4,\)",
    ),
    "causal_linear_attention: positions": (
        lambda: causal_linear_attention(FQ, FK, V, positions=M[:3]),
        ValueError,
        r"positions must have shape \(4,\)",
    ),
    "linear_attention: q and k": (
        lambda: linear_attention(FQ, FK[..., :4], V, **BOTH),
        ValueError,
        "q and k must agree",
    ),
    "linear_attention: v": (
        lambda: linear_attention(FQ, FK, V[:, :2], **BOTH),
        ValueError,
        "v must have k's batch",
    ),
    "linear_attention: mask": (
        lambda: linear_attention(FQ, FK, V, mask=torch.ones(2, 3), **BOTH),
        ValueError,
        r"mask must have shape \(B, T\) = \(2, 4\)",
    ),
    "retention_decays: heads": (
        lambda: retention_decays(0),
        ValueError,
        "heads must be an integer ≥ 1",
    ),
    "retention(Q, K, V, decays=DECAYS[:2], **BOTH)": (
        lambda: retention(Q, K, V, decays=DECAYS[:2], **BOTH),
        ValueError,
        r"decays must have shape \(H,\) = \(4,\)",
    ),
    "retention(Q, K, V, decays=DECAYS * 0 + 2, **BOTH)": (
        lambda: retention(Q, K, V, decays=DECAYS * 0 + 2, **BOTH),
        ValueError,
        r"decays must be above 0 and at most 1, got 2\.0",
    ),
    "recurrent_retention: positions": (
        lambda: recurrent_retention(
            Q, K, V, positions=torch.tensor([0, 1, 0, 1]), decays=DECAYS
        ),
        ValueError,
        "positions must never go back",
    ),
    "recurrent_retention: got a step of -3": (
        lambda: recurrent_retention(
            Q, K, V, positions=M.to(torch.uint8), decays=DECAYS, state=AFTER_FOUR
        ),
        ValueError,
        "got a step of -3",
    ),
    "recurrent_retention: state.memory": (
        lambda: recurrent_retention(
            Q,
            K,
            V,
            positions=M + 4,
            decays=DECAYS,
            state=AFTER_FOUR._replace(memory=AFTER_FOUR.memory[:1]),
        ),
        ValueError,
        r"state\.memory must have shape \(2, 4, 8, 6\), got \(1, 4, 8, 6\)",
    ),
    "causal_linear_attention: state.numerator": (
        lambda: causal_linear_attention(
            FQ,
            FK,
            V,
            positions=M,
            state=LinearState(torch.zeros(2, 4, 1, 6), torch.zeros(2, 4, 8)),
        ),
        ValueError,
        r"state\.numerator must have shape \(2, 4, 8, 6\), got \(2, 4, 1, 6\)",
    ),
    "causal_linear_attention: state": (
        lambda: causal_linear_attention(FQ, FK, V, positions=M, state=AFTER_FOUR),  # type: ignore[arg-type]
        TypeError,
        "state must be a LinearState",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
