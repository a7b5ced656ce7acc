"""The reference attention: each field of a scheme is used once, in its place."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers import (
    EPS,
    HEADS,
    SCHEMES,
    WIDTH,
    after_embedding,
    normal,
    tolerance,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    sliding_window,
)
from posenc_lib.positions import arange
from posenc_lib.properties import max_error
from posenc_lib.scheme import NOPE, PLACES, PositionScheme

offsets = st.integers(0, 4000)
seeds = st.integers(0, 1000)
QKV = [normal(2, HEADS, 5, WIDTH, seed=seed) for seed in range(3)]
AT = {"q_positions": arange(5), "k_positions": arange(5)}


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | float = 0.0,
    scale: float = WIDTH**-0.5,
) -> Tensor:
    return (q @ k.mT * scale + bias).softmax(-1) @ v


def test_places_are_used_in_the_order_of_the_equation() -> None:
    q, k, v = QKV
    seen: list[str] = []

    def note(field: str, value: Any) -> Any:
        seen.append(field)
        return value

    rows = torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)
    allowed = torch.ones(5, 5).tril().bool()
    scheme = PositionScheme(
        "all",
        transform=lambda q, k, m, n: note("transform", (2 * q, 3 * k)),
        scores=lambda q, k, m, n: note("scores", q @ k.mT + 1),
        bias=lambda m, n: note("bias", rows[None, None, None]),
        mask=lambda m, n: note("mask", allowed),
        values=lambda weights, v, m, n: note("values", weights @ v + 7),
        scale=0.25,
    )
    expected = ((6 * q @ k.mT + 1) * 0.25 + rows).masked_fill(
        ~allowed, -torch.inf
    ).softmax(-1) @ v + 7
    assert max_error(
        attention(q, k, v, scheme=scheme, **AT), expected
    ) <= 8 * tolerance(expected)
    assert seen == ["mask", "transform", "scores", "bias", "values"]
    assert scheme.places == ("transform", "bias", "scores", "values", "mask")
    assert set(scheme.places) | {"embedding"} == set(PLACES)
    assert NOPE.places == ()


def test_hidden_states_are_handed_on_to_schemes_that_take_them() -> None:
    q, k, v = QKV
    q_x, k_x = normal(2, 5, 3, seed=8), normal(2, 5, 3, seed=9)
    content = q_x.sum(-1)[:, None, :, None] + k_x.square().sum(-1)[:, None, None, :]
    scheme = PositionScheme(
        "content",
        transform=lambda q, k, m, n, *, q_x, k_x: (
            q * q_x[:, None, :, :1],
            k * k_x[:, None, :, :1],
        ),
        bias=lambda m, n, *, q_x, k_x: content,
        scores=lambda q, k, m, n, *, q_x, k_x: q @ k.mT,
    )
    out = attention(q, k, v, scheme=scheme, q_x=q_x, k_x=k_x, **AT)
    expected = plain(q * q_x[:, None, :, :1], k * k_x[:, None, :, :1], v, content)
    assert max_error(out, expected) <= 8 * tolerance(expected)


@given(
    groups=st.sampled_from([1, 2, 4]),
    q_len=st.integers(1, 4),
    k_len=st.integers(1, 5),
    seed=seeds,
)
def test_grouped_queries_share_keys(
    groups: int, q_len: int, k_len: int, seed: int
) -> None:
    q = normal(2, HEADS, q_len, WIDTH, seed=seed)
    k, v = (
        normal(2, groups, k_len, WIDTH, seed=seed + 1),
        normal(2, groups, k_len, 3, seed=seed + 2),
    )
    positions = {"q_positions": arange(q_len), "k_positions": arange(k_len)}
    out = attention(q, k, v, scheme=NOPE, **positions)
    assert out.shape == (2, HEADS, q_len, 3)
    for h in range(HEADS):
        group = h * groups // HEADS
        assert max_error(
            out[:, h], plain(q[:, h], k[:, group], v[:, group])
        ) <= 8 * tolerance(v)


@given(rows=st.booleans(), start=offsets)
def test_positions_of_a_batch_are_positions_of_each_row(rows: bool, start: int) -> None:
    q, k, v = QKV
    positions = torch.stack((arange(5, offset=start), arange(5).flip(0)))
    for scheme in map(after_embedding, SCHEMES.values()):
        together = attention(
            q,
            k,
            v,
            q_positions=positions,
            k_positions=positions if rows else positions[0],
            scheme=scheme,
        )
        for i in range(2):
            keys = positions[i] if rows else positions[0]
            alone = attention(
                q[i : i + 1],
                k[i : i + 1],
                v[i : i + 1],
                q_positions=positions[i],
                k_positions=keys,
                scheme=scheme,
            )
            assert max_error(together[i : i + 1], alone) <= tolerance(v)


@pytest.mark.parametrize(
    "shape",
    [(5, 5), (1, 5), (1, HEADS, 5, 5), (2, 1, 5, 5), (2, HEADS, 1, 5), (1, 1, 1, 1)],
)
def test_masks_broadcast_and_meet_the_mask_of_the_scheme(
    shape: tuple[int, ...],
) -> None:
    q, k, _ = QKV
    mask = normal(*shape) < 0.7
    banded = PositionScheme("banded", mask=partial(sliding_window, size=2))
    weights = attention_weights(q, k, scheme=banded, mask=mask, **AT)
    allowed = (mask & sliding_window(arange(5), arange(5), 2)).expand(2, HEADS, 5, 5)
    assert torch.equal(weights > 0, allowed)
    assert max_error(weights.sum(-1), allowed.any(-1).double()) <= 8 * EPS


@given(
    q_type=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    v_type=st.sampled_from([torch.float64, torch.float32, torch.float16]),
)
def test_attention_returns_the_dtype_of_the_values(
    q_type: torch.dtype, v_type: torch.dtype
) -> None:
    q, k, v = QKV[0].to(q_type), QKV[1].to(torch.float32), QKV[2].to(v_type)
    assert attention(q, k, v, scheme=NOPE, **AT).dtype == v_type
    assert attention_weights(q, k, scheme=NOPE, **AT).dtype == torch.promote_types(
        q_type, torch.float32
    )


def heads(count: int, batch: int = 1) -> Tensor:
    return normal(batch, count, 3, 4, seed=count, dtype=torch.float32)


@pytest.mark.parametrize(("has", "wants"), [(1, 8), (8, 1), (4, 3)])
def test_a_bias_for_other_heads_is_refused(has: int, wants: int) -> None:
    positions, x = arange(3), heads(has)
    if wants == 1:
        attention(
            x,
            x,
            x,
            q_positions=positions,
            k_positions=positions,
            scheme=schemes.alibi(wants),
        )  # one bias for all heads
        return
    with pytest.raises(ValueError, match="bias"):
        attention(
            x,
            x,
            x,
            q_positions=positions,
            k_positions=positions,
            scheme=schemes.alibi(wants),
        )


def test_a_bias_for_another_batch_is_refused() -> None:
    positions, x = arange(3), heads(2)
    wrong = PositionScheme("of five rows", bias=lambda m, n: torch.zeros(5, 1, 3, 3))
    with pytest.raises(ValueError, match="bias"):
        attention(x, x, x, q_positions=positions, k_positions=positions, scheme=wrong)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 3)])
def test_masks_that_could_be_read_in_two_ways_are_refused(
    shape: tuple[int, ...],
) -> None:
    positions, x = arange(3), heads(2, batch=2)
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask"):
        attention(
            x,
            x,
            x,
            q_positions=positions,
            k_positions=positions,
            mask=mask,
            scheme=NOPE,
        )


def test_hidden_states_come_in_pairs() -> None:
    positions, x = arange(3), heads(2)
    with pytest.raises(ValueError, match="q_x and k_x"):
        attention(
            x,
            x,
            x,
            q_positions=positions,
            k_positions=positions,
            q_x=torch.ones(1, 3, 4),
            scheme=NOPE,
        )


def test_masked_keys_weigh_nothing_beside_scores_far_below_zero() -> None:
    far = torch.tensor([[[[-1e6, -2e6, 0.0]]]])
    positions, x = arange(3), torch.zeros(1, 1, 3, 4)
    low = PositionScheme("far below zero", bias=lambda m, n: far.expand(1, 1, 3, 3))
    weights = attention_weights(
        x,
        x,
        q_positions=positions,
        k_positions=positions,
        scheme=low,
        mask=causal(positions, positions),
    )
    assert weights[0, 0, 1].tolist() == [1.0, 0.0, 0.0]
