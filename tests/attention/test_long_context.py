"""Attention for contexts longer than those of training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import BRANCHES, HEADS, WIDTH, qkv, rope
from helpers import EPS, normal, rotated_by_loop, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
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
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.rotary import LAYOUTS, RoPE
from posenc_lib.scheme import NOPE, PositionScheme

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
    offset, ahead = m % 5, m // 5 - n // 5
    return (offset if ahead <= 0 else min(offset + 5, 7) if ahead == 1 else 7) - n % 5


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
            want = rotated_by_loop(q[0, h, i], (distance * w).tolist()) @ k[0, h, j]
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


def test_self_extend_rounds_down() -> None:
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
        positions = (
            q_t[i % chunk_len]
            if ahead == 0
            else qc_t[i % chunk_len]
            if ahead == 1
            else qc_t[chunk_len - 1]
        )
        if ahead > 1 and local_window == chunk_len:
            continue
        assert int(distance[i, j]) == int(positions) - j % chunk_len


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
    rotated_q, rotated_k = own.transform(q, k, m, m)
    want = rotated_q @ rotated_k.mT
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
def test_rerope_is_relative_and_the_others_are_not(
    name: str,
) -> None:
    q, k, _ = qkv(20)
    positions = [arange(20), arange(20, offset=1)]
    a, b = (
        torch.tril(branched_scores(q, k, m, m, rope=rope, branches=BRANCHES[name]))
        for m in positions
    )
    assert max_error(a, b) < rounding(a)
    for other in ("Self-Extend", "dual chunk attention"):
        a, b = (
            torch.tril(branched_scores(q, k, m, m, rope=rope, branches=BRANCHES[other]))
            for m in positions
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
def test_narrow_integers_hold_positions_alone(
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
    moved = partial(rerotate, k, rope=RoPE(inverse_frequencies(8)))
    assert torch.equal(moved(narrow, narrow.flip(0)), moved(m, m.flip(0)))
    with pytest.raises(
        ValueError, match=r"positions must grow from slot to slot, got \[5, 3\]"
    ):
        evict(torch.tensor([2, 5, 3], dtype=dtype), sinks=1, window=1)


# ---- eviction


def test_bug_77_eviction() -> None:
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
def test_bug_77_eviction_rotates_as_if_from_the_start(
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


def test_bug_77_eviction_while_streaming() -> None:
    """Tokens one by one, keys cached rotated and moved at each eviction.

    The same as rotating the kept keys afresh.
    """
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
        rotated_q = rope(at, torch.float64)(q[:, :, t : t + 1])
        out = attention(
            rotated_q,
            cached,
            v[:, :, kept],
            q_positions=at,
            k_positions=positions,
            scheme=NOPE,
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


def test_temperature_multiplies_scores_and_commutes() -> None:
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


Q, K, V = qkv(4)

M = arange(4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "rerope: window": (
        lambda: rerope(M, M, window=0),
        ValueError,
        "window must be an integer ≥ 1, got 0",
    ),
    "leaky_rerope: factor": (
        lambda: leaky_rerope(M, M, window=2, factor=1.5),  # type: ignore[arg-type]
        TypeError,
        "factor must be an integer",
    ),
    "self_extend: group": (
        lambda: self_extend(M, M, window=2, group=0),
        ValueError,
        "group must be an integer ≥ 1",
    ),
    "dual_chunk: local": (
        lambda: dual_chunk(M, M, chunk=4, local=4),
        ValueError,
        "local must be below chunk = 4, got 4",
    ),
    "dual_chunk: chunk": (
        lambda: dual_chunk(M, M, chunk=0, local=0),
        ValueError,
        "chunk must be an integer ≥ 1",
    ),
    "self_extend: q_positions": (
        lambda: self_extend([0], M, window=2, group=2),  # type: ignore[arg-type]
        TypeError,
        "q_positions must be a tensor",
    ),
    "branched_scores: q and k": (
        lambda: branched_scores(
            Q, K[:, :2], M, M, rope=rope, branches=BRANCHES["ReRoPE"]
        ),
        ValueError,
        "q and k must agree",
    ),
    "evict(M[None], sinks=1, window=1)": (
        lambda: evict(M[None], sinks=1, window=1),
        ValueError,
        r"positions must have shape \(T,\), one row",
    ),
    "evict(M.flip(0), sinks=1, window=1)": (
        lambda: evict(M.flip(0), sinks=1, window=1),
        ValueError,
        "positions must grow",
    ),
    "evict: window": (
        lambda: evict(M, sinks=1, window=0),
        ValueError,
        "window must be an integer ≥ 1",
    ),
    "rerotate: new_positions": (
        lambda: rerotate(K, M, M[:2], rope=rope),
        ValueError,
        "new_positions must have the shape",
    ),
    "llama4_temperature: floor_scale": (
        lambda: llama4_temperature(M, floor_scale=0),
        ValueError,
        "floor_scale must be an integer ≥ 1",
    ),
    "llama4_temperature: attn_scale": (
        lambda: llama4_temperature(M, attn_scale=-1.0),
        ValueError,
        "attn_scale must be finite and above 0",
    ),
    "log_length_temperature: trained_length": (
        lambda: log_length_temperature(M, trained_length=1),
        ValueError,
        "trained_length must be an integer ≥ 2",
    ),
    "tempered: q_positions": (
        lambda: tempered(Q, K, M[:2], M, temperature=llama4_temperature),
        ValueError,
        r"q_positions must have shape \(4,\)",
    ),
    "SSMax: initial": (
        lambda: SSMax(2, initial=0.0),
        ValueError,
        "initial must be finite and above 0",
    ),
    "SSMax: q": (
        lambda: SSMax(2).transform(Q, K, M, M),
        ValueError,
        r"q must have shape \(B, 2, T, d\)",
    ),
    "llama4_temperature: positions": (
        lambda: llama4_temperature(M - 1),
        ValueError,
        "positions must be at least 0, since a query at m has",
    ),
    "log_length_temperature: got -3": (
        lambda: log_length_temperature(M - 3, trained_length=8),
        ValueError,
        "got -3",
    ),
    "SSMax: q_positions": (
        lambda: SSMax(HEADS).transform(Q, K, M - 1, M),
        ValueError,
        "q_positions must be at least 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
