"""Place 3′: Shaw, Transformer-XL, DeBERTa, TUPE, CoPE, forget gates, PaTH, relative logits, DAPE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from content import HEADS, HIDDEN, SCHEMES, WIDTH, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc_lib.attention import attention, attention_weights, causal, key_padding_mask
from posenc_lib.bias import T5Bias, alibi, alibi_slopes
from posenc_lib.content import (
    DAPE,
    TUPE,
    CoPE,
    DeBERTa,
    ForgetGate,
    PaTH,
    RelativeLogits,
    Shaw,
    TransformerXL,
    clipped_index,
    contextual_positions,
    deberta_index,
    deberta_log_bucket,
    deberta_released_scores,
    deberta_scores,
    deberta_v2_scores,
    path_scores,
    path_sums,
    relative_key_query_scores,
    relative_key_scores,
    relative_shift,
    untie_cls,
)
from posenc_lib.embedding import sinusoidal
from posenc_lib.positions import arange, from_mask
from posenc_lib.properties import max_error
from posenc_lib.scheme import NOPE, PositionScheme

EPS = torch.finfo(torch.float64).eps
every_scheme = pytest.mark.parametrize("name", SCHEMES)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=draw(seed), dtype=torch.float64).to(dtype)


def rounding(x: Tensor, terms: int = 256) -> float:
    """Bound on the rounding of sums of at most `terms` products whose size is that of x."""
    return terms * EPS * max(1.0, float(x.detach().abs().max()))


# ---- properties, with hidden states for those that need them


def hidden(
    name: str, tokens: Tensor, queries: slice = slice(None), keys: slice = slice(None)
) -> dict[str, Tensor]:
    return {"q_x": tokens[:, queries], "k_x": tokens[:, keys]} if name in HIDDEN else {}


def layer(
    name: str,
    tokens: Tensor,
    positions: Tensor,
    mask: Tensor,
    queries: slice,
    keys: slice,
) -> Tensor:
    """Self-attention on tokens (B, T, WIDTH), whose projections are three fixed matrices."""
    q, k, v = (
        (tokens @ normal(HEADS, WIDTH, WIDTH, seed=s)[:, None] / 3).transpose(0, 1)
        for s in (11, 12, 13)
    )
    return attention(
        q[:, :, queries],
        k[:, :, keys],
        v[:, :, keys],
        q_positions=positions[..., queries],
        k_positions=positions[..., keys],
        scheme=SCHEMES[name],
        mask=mask[..., queries, keys],
        **hidden(name, tokens, queries, keys),
    )


ALL = slice(None)


def full(name: str, tokens: Tensor, offset: int = 0) -> Tensor:
    at = arange(tokens.shape[1], offset)
    return layer(name, tokens, at, causal(at, at), ALL, ALL)


@every_scheme
def test_positions_do_something(name: str) -> None:
    tokens, at = normal(2, 9, WIDTH), arange(9)
    q, k, v = (
        (tokens @ normal(HEADS, WIDTH, WIDTH, seed=s)[:, None] / 3).transpose(0, 1)
        for s in (11, 12, 13)
    )
    nope = attention(
        q, k, v, q_positions=at, k_positions=at, scheme=NOPE, mask=causal(at, at)
    )
    assert max_error(full(name, tokens), nope) > 1e-2


@every_scheme
def test_rows_padded_by_different_amounts_then_one_step(name: str) -> None:
    tokens = normal(2, 8, WIDTH)
    real = torch.arange(8) >= torch.tensor([[0], [3]])
    positions = from_mask(real)
    mask = causal(positions, positions) & key_padding_mask(real)
    out = layer(name, tokens, positions, mask, slice(7, 8), ALL)
    alone = torch.cat(
        (full(name, tokens[:1])[:, :, -1:], full(name, tokens[1:, 3:])[:, :, -1:])
    )
    assert max_error(out, alone) <= rounding(out)


@every_scheme
def test_one_row_of_positions_is_the_batch_with_that_row(name: str) -> None:
    tokens, at = normal(3, 6, WIDTH), arange(6)
    rows = at.expand(3, -1)
    batched = layer(name, tokens, rows, causal(rows, rows), ALL, ALL)
    assert max_error(batched, full(name, tokens)) <= rounding(batched)
    q = normal(3, HEADS, 6, WIDTH)
    mixed = attention_weights(
        q,
        q,
        q_positions=at,
        k_positions=rows,
        scheme=SCHEMES[name],
        **hidden(name, tokens),
    )
    assert max_error(
        mixed,
        attention_weights(
            q,
            q,
            q_positions=rows,
            k_positions=rows,
            scheme=SCHEMES[name],
            **hidden(name, tokens),
        ),
    ) <= rounding(mixed)


@every_scheme
def test_grouped_keys_are_repeated_keys(name: str) -> None:
    tokens, at, q, kv = (
        normal(2, 6, WIDTH),
        arange(6),
        normal(2, HEADS, 6, WIDTH),
        normal(2, 2, 6, WIDTH, seed=1),
    )
    how: dict[str, Any] = {
        "q_positions": at,
        "k_positions": at,
        "scheme": SCHEMES[name],
        **hidden(name, tokens),
    }
    grouped = attention(q, kv, kv, **how)
    repeated = kv.repeat_interleave(2, 1)
    assert max_error(grouped, attention(q, repeated, repeated, **how)) <= rounding(
        grouped
    )


def small_modules() -> dict[str, tuple[nn.Module, Callable[..., Tensor]]]:
    """Modules of 2 heads of 3 channels, with a function of (q, tokens) that reaches all of their parameters."""
    at = arange(4)
    shaw = Shaw(3, 2, generator=draw(0))
    xl = TransformerXL(2, 3, 4, std=1.0, generator=draw(0))
    deberta = DeBERTa(2, 3, 4, 2, std=1.0, generator=draw(0))
    tupe = TUPE(4, 3, 2, 3, std=1.0, generator=draw(0))
    cope = CoPE(3, 3)
    nn.init.normal_(cope.table, generator=draw(0))
    dape = DAPE(
        2,
        partial(alibi, slopes=alibi_slopes(2), dtype=torch.float64),
        hidden=3,
        generator=draw(0),
    )
    gate, path = (
        ForgetGate(3, 2, std=1.0, generator=draw(0)),
        PaTH(3, 2, 3, rank=2, std=1.0, generator=draw(0)),
    )
    curves = RelativeLogits(3, 2, 3, rank=2, std=1.0, generator=draw(0))

    def shaw_both(q: Tensor, x: Tensor) -> Tensor:
        return shaw.values(shaw.scores(q, q, at, at).softmax(-1), q, at, at)

    return {
        "Shaw": (shaw, shaw_both),
        "TransformerXL": (xl, lambda q, x: xl.scores(q, q, at, at)),
        "DeBERTa": (deberta, lambda q, x: deberta.scores(q, q, at, at)),
        "TUPE": (tupe, lambda q, x: tupe(at, at) + q.sum()),
        "CoPE": (cope, lambda q, x: cope.scores(q, q, at, at)),
        "DAPE": (dape, lambda q, x: dape.scores(q, q, at, at)),
        "ForgetGate": (gate, lambda q, x: gate(at, at, k_x=x)),
        "PaTH": (path, lambda q, x: path.scores(q, q, at, at, k_x=x)),
        "RelativeLogits": (curves, lambda q, x: curves(at, at, q_x=x)),
    }


class Call(nn.Module):
    """A function as the forward of the module whose parameters it uses."""

    def __init__(self, module: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self.function = module.double(), function

    def forward(self, q: Tensor, x: Tensor) -> Tensor:
        return self.function(q, x)


@pytest.mark.parametrize("name", small_modules())
def test_gradients_of_parameters_and_inputs(name: str) -> None:
    call = Call(*small_modules()[name])
    names = [n for n, _ in call.named_parameters()]

    def outputs(q: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(
            call, dict(zip(names, parameters, strict=True)), (q, x)
        )

    values = [p.detach().clone().requires_grad_() for p in call.parameters()]
    q, x = (
        normal(*shape, seed=5).requires_grad_() for shape in ((1, 2, 4, 3), (1, 4, 3))
    )
    assert torch.autograd.gradcheck(outputs, (q, x, *values))
    used = torch.autograd.grad(outputs(q, x, *values).square().sum(), values)
    assert all(bool((g != 0).any()) for g in used)


# ---- Shaw


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    clip=st.integers(1, 5),
    queries=st.integers(1, 7),
    keys=st.integers(1, 7),
    offset=st.integers(-6, 6),
)
def test_shaw_is_the_equation(clip: int, queries: int, keys: int, offset: int) -> None:
    shaw = Shaw(4, clip, generator=draw(0)).double()
    q, k, v = (
        normal(2, 3, n, 4, seed=s) for s, n in ((1, queries), (2, keys), (3, keys))
    )
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    scores, weights = shaw.scores(q, k, m, n), normal(2, 3, queries, keys, seed=4)
    values = shaw.values(weights, v, m, n)
    for i in range(queries):
        total = torch.zeros(2, 3, 4, dtype=torch.float64)
        for j in range(keys):
            c = max(-clip, min(clip, j - (i + offset))) + clip
            expected = (q[:, :, i] * (k[:, :, j] + shaw.key_table[c])).sum(-1)
            assert max_error(scores[:, :, i, j], expected) <= rounding(expected)
            total = total + weights[:, :, i, j, None] * (
                v[:, :, j] + shaw.value_table[c]
            )
        assert max_error(values[:, :, i], total) <= rounding(total)


def test_bert_forms_are_the_equation() -> None:
    q, k, table, at = (
        normal(1, 2, 5, 3),
        normal(1, 2, 5, 3, seed=1),
        normal(6, 3, seed=2),
        arange(5),
    )
    of_query = relative_key_scores(q, k, at, at, table=table, left=2)
    of_both = relative_key_query_scores(q, k, at, at, table=table, left=2)
    for m in range(5):
        for n in range(5):
            a = table[max(-2, min(3, n - m)) + 2]
            expected = (q[:, :, m] * (k[:, :, n] + a)).sum(-1)
            assert max_error(of_query[:, :, m, n], expected) <= rounding(expected)
            expected = expected + (k[:, :, n] * a).sum(-1)
            assert max_error(of_both[:, :, m, n], expected) <= rounding(expected)


def test_shaw_without_clipping_is_one_vector_for_each_distance_and_with_constant_rows_is_nope() -> (
    None
):
    shaw = Shaw(4, 2, generator=draw(0)).double()
    shaw.key_table.data.copy_(shaw.key_table[0].expand(5, -1))
    q, k, at = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    difference = shaw.scores(q, k, at, at) - q @ k.mT  # one constant for each row
    assert max_error(difference, difference[..., :1].expand_as(difference)) <= rounding(
        difference
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [1, 2, 3, 7, 16])
def test_F1_65_shaw_clipping(clip: int, dtype: torch.dtype) -> None:
    """Any length works, however short the table, and the rows at its ends learn."""
    for length, offset in itertools.product((1, 2, 6, 33), (0, 5, 100_000)):
        at = arange(length, offset)
        index = clipped_index(at, at, left=clip, right=clip)
        assert index.tolist() == [
            [max(-clip, min(clip, n - m)) + clip for n in range(length)]
            for m in range(length)
        ]
        if (clip, length) == (2, 6):
            assert index[0].tolist() == [2, 3, 4, 4, 4, 4]
            assert index[5].tolist() == [0, 0, 0, 0, 1, 2]
        shaw, q = Shaw(4, clip, generator=draw(0)), normal(1, 2, length, 4, dtype=dtype)
        assert shaw.key_table.shape == shaw.value_table.shape == (2 * clip + 1, 4)
        scores = shaw.scores(q, q, at, at)
        assert scores.dtype == dtype
        weights = torch.ones(1, 2, length, length)
        (
            scores.float().sum() + shaw.values(weights, q.float(), at, at).sum()
        ).backward()
        reached = (
            torch.arange(2 * clip + 1) - clip
        ).abs() < length  # some pair falls into the row, ends included
        for table in (shaw.key_table, shaw.value_table):
            assert table.grad is not None
            assert torch.equal((table.grad != 0).any(-1), reached)


# ---- Transformer-XL


def test_relative_shift_moves_rows_and_leaves_the_documented_junk() -> None:
    for rows, columns in ((1, 1), (1, 4), (3, 3), (2, 4), (4, 7), (5, 9), (3, 6)):
        x = normal(2, rows, columns)
        shifted = relative_shift(x)
        for i in range(rows):
            for c in range(columns):
                beyond = c - (
                    columns - rows + i
                )  # 1: the zero; 2, 3, …: the next row from its beginning
                if beyond <= 0:
                    expected = x[:, i, c + rows - 1 - i]
                else:
                    expected = (
                        torch.zeros(2) if beyond == 1 else x[:, i + 1, beyond - 2]
                    )
                assert torch.equal(shifted[:, i, c], expected.double())


def test_F1_67_rel_shift() -> None:
    square = torch.arange(1.0, 10).view(3, 3)
    assert relative_shift(square).tolist() == [[3, 0, 4], [5, 6, 0], [7, 8, 9]]
    assert relative_shift(torch.arange(1.0, 9).view(2, 4)).tolist() == [
        [2, 3, 4, 0],
        [5, 6, 7, 8],
    ]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize(
    ("queries", "memory"), [(1, 0), (3, 0), (1, 5), (4, 3), (7, 16), (9, 1)]
)
def test_F1_67_rel_shift_is_a_gather_on_the_causal_part(
    queries: int, memory: int, dtype: torch.dtype
) -> None:
    keys = queries + memory
    x = normal(2, 3, queries, keys).to(dtype)
    m, n = arange(queries, offset=memory), arange(keys)
    column = keys - 1 - (m[:, None] - n)  # of distance m − n
    allowed = causal(m, n)
    gathered = x.gather(-1, column.clamp(max=keys - 1).expand_as(x))
    assert torch.equal(relative_shift(x)[..., allowed], gathered[..., allowed])
    wide = normal(2, 3, queries, 2 * queries - 1).to(
        dtype
    )  # distances on both sides: no junk in the first T columns
    both = queries - 1 - (arange(queries)[:, None] - arange(queries))
    expected = wide.gather(-1, both.expand(2, 3, -1, -1))
    assert torch.equal(relative_shift(wide)[..., :queries], expected)


def xl_by_the_equation(
    xl: TransformerXL, q: Tensor, k: Tensor, m: Tensor, n: Tensor
) -> Tensor:
    heads, dim = xl.u.shape
    weight = xl.weight.view(heads, dim, -1)
    scores = q.new_zeros(q.shape[0], heads, q.shape[2], k.shape[2])
    for i in range(q.shape[2]):
        for j in range(k.shape[2]):
            distance = (m[..., i] - n[..., j]).reshape(-1)[:1]
            r = sinusoidal(
                distance, xl.dim, xl.base, layout="concatenated", dtype=torch.float64
            )[0]
            wr = weight @ r  # (H, d)
            terms = (
                q[:, :, i] * k[:, :, j],
                q[:, :, i] * wr,
                xl.u * k[:, :, j],
                xl.v * wr,
            )
            scores[:, :, i, j] = sum(term.sum(-1) for term in terms)
    return scores


@pytest.mark.parametrize(
    "positions", ["integers", "far", "fractions", "shuffled", "negative"]
)
def test_transformer_xl_is_the_equation(positions: str) -> None:
    xl = TransformerXL(2, 3, 6, base=500.0, std=1.0, generator=draw(0)).double()
    q, k = normal(2, 2, 4, 3), normal(2, 2, 7, 3, seed=1)
    m, n = arange(4, 3), arange(7)
    if positions == "far":
        m, n = m + 100_000, n + 100_000
    elif positions == "fractions":
        m, n = m / 3, n / 7
        m, n = m.double(), n.double()
    elif positions == "shuffled":
        n = n[torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    elif positions == "negative":
        m, n = m - 10, n - 10
    scores, expected = xl.scores(q, k, m, n), xl_by_the_equation(xl, q, k, m, n)
    angle = (
        EPS * 100_010 if positions == "far" else 0.0
    )  # an angle is rounded once, in proportion to its size
    assert max_error(scores, expected) <= rounding(expected) + 50 * angle


@pytest.mark.parametrize(("queries", "memory"), [(4, 0), (3, 5), (1, 8)])
def test_transformer_xl_is_the_shift_of_scores_by_distance(
    queries: int, memory: int
) -> None:
    xl = TransformerXL(2, 3, 6, std=1.0, generator=draw(0)).double()
    keys = queries + memory
    q, k, m, n = (
        normal(1, 2, queries, 3),
        normal(1, 2, keys, 3, seed=1),
        arange(queries, memory),
        arange(keys),
    )
    table = sinusoidal(
        keys - 1 - arange(keys), 6, layout="concatenated", dtype=torch.float64
    )  # descending distances
    by_distance = (q + xl.v[:, None]) @ (table @ xl.weight.mT).view(keys, 2, 3).permute(
        1, 2, 0
    )
    expected = (q + xl.u[:, None]) @ k.mT + relative_shift(by_distance)
    allowed = causal(m, n)
    assert max_error(
        xl.scores(q, k, m, n)[..., allowed], expected[..., allowed]
    ) <= rounding(expected)


def test_transformer_xl_reduces_to_nope_without_its_parameters() -> None:
    xl = TransformerXL(2, 3, 6, generator=draw(0)).double()
    for parameter in xl.parameters():
        parameter.data.zero_()
    q, k = normal(1, 2, 5, 3), normal(1, 2, 5, 3, seed=1)
    assert torch.equal(xl.scores(q, k, arange(5), arange(5)), q @ k.mT)


# ---- DeBERTa


def deberta_by_the_equation(
    q: Tensor,
    k: Tensor,
    m: Sequence[int],
    n: Sequence[int],
    keys: Tensor,
    queries: Tensor,
    delta: Any,
    third: Any,
) -> Tensor:
    rows = []
    for i, a in enumerate(m):
        row = [
            (q[:, :, i] * k[:, :, j]).sum(-1)
            + (q[:, :, i] * keys[:, delta(a, b)]).sum(-1)
            + (k[:, :, j] * queries[:, third(a, b)]).sum(-1)
            for j, b in enumerate(n)
        ]
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("span", [1, 2, 4, 9])
@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(5, 5, 0), (1, 8, 7), (3, 6, 2), (6, 3, 0)]
)
def test_deberta_is_the_equation_for_any_number_of_queries_and_keys(
    span: int, queries: int, keys: int, offset: int
) -> None:
    q, k = normal(2, 3, queries, 4), normal(2, 3, keys, 4, seed=1)
    tables = {
        name: normal(3, 2 * span, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    m, n = arange(queries, offset), arange(keys)

    def delta(a: int, b: int) -> int:
        return max(0, min(2 * span - 1, a - b + span))

    def turned(a: int, b: int) -> int:
        return delta(b, a)

    for function, third in ((deberta_scores, turned), (deberta_released_scores, delta)):
        scores = function(q, k, m, n, **tables)
        expected = deberta_by_the_equation(
            q, k, m.tolist(), n.tolist(), *tables.values(), delta, third
        )
        assert max_error(scores, expected) <= rounding(expected)


def test_the_paper_and_the_released_code_differ_in_the_third_term_alone() -> None:
    q, k, at = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    keys, queries = normal(2, 16, 4, seed=2), normal(2, 16, 4, seed=3)
    paper = deberta_scores(q, k, at, at, position_keys=keys, position_queries=queries)
    code = deberta_released_scores(
        q, k, at, at, position_keys=keys, position_queries=queries
    )
    assert max_error(paper, code) > 0.1
    # Inside the span, δ(n, m) = 2K − δ(m, n): the paper's score is the code's with the
    # rows turned round.
    turned = queries.flip(1).roll(1, 1)
    code = deberta_released_scores(
        q, k, at, at, position_keys=keys, position_queries=turned
    )
    assert max_error(paper, code) <= rounding(paper)
    none = torch.zeros_like(queries)
    assert torch.equal(
        deberta_scores(q, k, at, at, position_keys=keys, position_queries=none),
        deberta_released_scores(
            q, k, at, at, position_keys=keys, position_queries=none
        ),
    )


def test_deberta_module_projects_its_table() -> None:
    module = DeBERTa(2, 3, 5, 4, std=1.0, generator=draw(0)).double()
    keys, queries = module.tables()
    assert keys.shape == queries.shape == (2, 8, 3)
    expected = module.key_weight.view(2, 3, 5) @ module.table[6]
    assert max_error(keys[:, 6], expected) <= rounding(expected)
    expected = module.query_weight.view(2, 3, 5) @ module.table[6]
    assert max_error(queries[:, 6], expected) <= rounding(expected)


def exact_bucket(r: int, buckets: int, furthest: int) -> int:
    """The published formula in rationals: the least j with (|r|/E)^(E−1) ≤ ((M−1)/E)^j."""
    half = buckets // 2
    if abs(r) <= half:
        return r
    j = 0
    while Fraction(abs(r), half) ** (half - 1) > Fraction(furthest - 1, half) ** j:
        j += 1
    return int(math.copysign(min(buckets, half + j), r))


@pytest.mark.parametrize(
    ("buckets", "furthest"),
    [(4, 4), (4, 33), (6, 13), (8, 64), (16, 17), (32, 128), (32, 511)],
)
def test_deberta_log_bucket_is_the_formula_in_rationals(
    buckets: int, furthest: int
) -> None:
    distance = torch.arange(-furthest - 20, furthest + 21)
    bucket = deberta_log_bucket(distance, num_buckets=buckets, max_distance=furthest)
    assert bucket.tolist() == [
        exact_bucket(int(r), buckets, furthest) for r in distance
    ]


def test_F1_69_deberta_bucket() -> None:
    """The right values at any length: nothing but the two sizes goes in."""
    right = {200: 169, 300: 207, 511: 255, 127: 127, 128: 128, 129: 129, 0: 0}
    for length in (384, 512, 640):
        distances = arange(length)
        bucket = deberta_log_bucket(distances, num_buckets=256, max_distance=512)
        assert all(int(bucket[r]) == value for r, value in right.items() if r < length)
        assert torch.equal(
            deberta_log_bucket(-distances, num_buckets=256, max_distance=512), -bucket
        )
        assert bool((bucket.diff() >= 0).all())
    for dtype in (torch.int64, torch.int32, torch.int16):
        short = torch.tensor(list(right), dtype=dtype)
        assert deberta_log_bucket(
            short, num_buckets=256, max_distance=512
        ).tolist() == list(right.values())
    at = arange(400, offset=1_000_000)
    tables = {
        name: normal(1, 512, 2, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    q = normal(1, 1, 400, 2)
    scores = deberta_v2_scores(q, q, at, at, **tables, max_distance=512)
    short = deberta_v2_scores(
        q[:, :, 200:], q[:, :, :201], at[200:], at[:201], **tables, max_distance=512
    )
    assert max_error(scores[:, :, 200:, :201], short) <= rounding(scores)


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(1, 25, 24), (25, 1, 0), (4, 30, 12)]
)
def test_deberta_v2_is_the_equation_on_both_sides_beyond_the_last_bucket(
    queries: int, keys: int, offset: int
) -> None:
    q, k, span, furthest = normal(1, 2, queries, 4), normal(1, 2, keys, 4, seed=1), 6, 9
    tables = {
        name: normal(2, 2 * span, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    m, n = arange(queries, offset), arange(keys)

    def delta(a: int, b: int) -> int:
        return max(0, min(2 * span - 1, exact_bucket(a - b, span, furthest) + span))

    scores = deberta_v2_scores(q, k, m, n, **tables, max_distance=furthest)
    expected = deberta_by_the_equation(
        q, k, m.tolist(), n.tolist(), *tables.values(), delta, delta
    )
    assert max_error(scores, expected) <= rounding(expected)


def test_deberta_v2_with_a_span_that_holds_every_distance_is_the_released_score() -> (
    None
):
    q, at = normal(1, 2, 8, 4), arange(8)
    tables = {
        name: normal(2, 32, 4, seed=s)
        for s, name in ((2, "position_keys"), (3, "position_queries"))
    }
    assert torch.equal(
        deberta_v2_scores(q, q, at, at, **tables, max_distance=100),
        deberta_released_scores(q, q, at, at, **tables),
    )


def test_deberta_index_has_the_ends_of_the_paper() -> None:
    at = torch.arange(-9, 10)
    index = deberta_index(at, torch.zeros(1, dtype=torch.int64), 4)[
        :, 0
    ]  # distances −9 … 9
    assert index.tolist() == [0] * 6 + list(range(1, 8)) + [7] * 6


# ---- TUPE


def test_tupe_is_the_equation() -> None:
    tupe = TUPE(9, 5, 3, 4, std=1.0, generator=draw(0)).double()
    nn.init.normal_(tupe.theta, generator=draw(1))
    m, n = torch.tensor([0, 3, 8]), torch.tensor([0, 1, 3, 7])
    bias = tupe(m, n)
    assert bias.shape == (1, 3, 3, 4)
    for h in range(3):
        for i, a in enumerate(m.tolist()):
            for j, b in enumerate(n.tolist()):
                q = tupe.query_weight.view(3, 4, 5)[h] @ tupe.table[a]
                k = tupe.key_weight.view(3, 4, 5)[h] @ tupe.table[b]
                free = (q @ k) / math.sqrt(2 * 4)
                expected = (
                    tupe.theta[0, h] if a == 0 else tupe.theta[1, h] if b == 0 else free
                )
                assert max_error(bias[0, h, i, j], expected) <= rounding(expected)


def test_tupe_r_resets_the_sum_and_is_what_the_released_code_can_do() -> None:
    tupe = TUPE(9, 5, 2, 4, std=1.0, generator=draw(0)).double()
    nn.init.normal_(tupe.theta, generator=draw(1))
    t5, at = (
        T5Bias(
            2,
            bidirectional=True,
            std=1.0,
            num_buckets=8,
            max_distance=16,
            generator=draw(2),
        ).double(),
        arange(9),
    )
    paper = untie_cls(tupe.correlation(at, at) + t5(at, at), at, at, tupe.theta)
    free = tupe.correlation(at, at) + t5(at, at)
    assert torch.equal(paper[:, :, 1:, 1:], free[:, :, 1:, 1:])
    assert torch.equal(paper[0, :, 0], tupe.theta[0][:, None].expand(2, 9))
    assert torch.equal(paper[0, :, 1:, 0], tupe.theta[1][:, None].expand(2, 8))
    after = tupe(at, at) + t5(
        at, at
    )  # reset first, then b: [CLS] would still see the distance
    assert max_error(after[:, :, 0], after[:, :, 0, :1].expand(1, 2, 9)) > 0.1


def test_tupe_scores_are_scaled_by_the_root_of_2d() -> None:
    scheme, at, q = SCHEMES["TUPE"], arange(5), normal(1, HEADS, 5, WIDTH)
    assert scheme.bias is not None
    expected = (q @ q.mT / math.sqrt(2 * WIDTH) + scheme.bias(at, at)).softmax(-1)
    weights = attention_weights(q, q, q_positions=at, k_positions=at, scheme=scheme)
    assert max_error(weights, expected) <= rounding(expected)


# ---- CoPE


@settings(deadline=None, max_examples=15, derandomize=True, database=None)
@given(keys=st.integers(1, 8), queries=st.integers(1, 8), rows=st.integers(1, 6))
def test_cope_is_the_equation(keys: int, queries: int, rows: int) -> None:
    queries = min(queries, keys)
    cope = CoPE(3, rows).double()
    nn.init.normal_(cope.table, generator=draw(0))
    q, k = normal(1, 2, queries, 3), normal(1, 2, keys, 3, seed=1)
    m, n = arange(queries, keys - queries), arange(keys)
    scores = cope.scores(q, k, m, n)
    for i, a in enumerate(m.tolist()):
        for j in range(a + 1):
            for h in range(2):
                gates = [
                    torch.sigmoid(q[0, h, i] @ k[0, h, t]) for t in range(j, a + 1)
                ]
                p = min(float(sum(gates)), rows - 1)
                low, high = math.floor(p), math.ceil(p)
                e = (1 - (p - low)) * cope.table[low] + (p - low) * cope.table[high]
                expected = q[0, h, i] @ (k[0, h, j] + e)
                assert max_error(scores[0, h, i, j], expected) <= rounding(expected)


def test_cope_with_open_gates_counts_distances_and_future_keys_are_never_counted() -> (
    None
):
    at = arange(7)
    counts = contextual_positions(
        torch.full((1, 1, 7, 7), 100.0, dtype=torch.float64), at, at
    )
    assert torch.equal(counts[0, 0], (at[:, None] - at + 1).clamp(min=0).double())
    logits = normal(1, 2, 7, 7)
    future = ~causal(at, at)
    changed = logits.masked_fill(future, 50.0)
    assert torch.equal(
        contextual_positions(logits, at, at), contextual_positions(changed, at, at)
    )
    naive = changed.sigmoid().flip(-1).cumsum(-1).flip(-1)  # a sigmoid before the mask
    assert max_error(naive, contextual_positions(changed, at, at)) > 1
    cope = CoPE(3, 9).double()
    nn.init.normal_(cope.table, generator=draw(0))
    q = normal(1, 1, 7, 3)
    relative_form = relative_key_scores(
        q, torch.zeros_like(q), at, at, table=cope.table.flip(0), left=8
    )
    shifted = cope.interpolate(
        q, (counts - 1).clamp(min=0)
    )  # distance m − n, as a relative encoding has it
    assert max_error(shifted[..., ~future], relative_form[..., ~future]) <= rounding(
        shifted
    )


def test_a_position_that_does_not_grow_begins_a_new_document() -> None:
    at = torch.tensor(
        [4, 5, 5, 6]
    )  # two documents: the second begins where the first ends
    gates = torch.full((1, 1, 4, 4), 100.0, dtype=torch.float64)
    counts = contextual_positions(gates, at, at)[0, 0]
    assert counts[1, :2].tolist() == [2, 1]
    assert counts[3, 2:].tolist() == [2, 1]
    q = normal(1, 1, 4, 3)
    w, beta = unit(normal(1, 1, 4, 3, seed=1)), torch.ones(1, 1, 4, dtype=torch.float64)
    scores = path_scores(q, q, at, at, w=w, beta=beta)
    alone = path_scores(
        q[:, :, 2:], q[:, :, 2:], at[2:], at[2:], w=w[:, :, 2:], beta=beta[:, :, 2:]
    )
    assert max_error(scores[:, :, 2:, 2:], alone) <= rounding(scores)
    alone = path_scores(
        q[:, :, :2], q[:, :, :2], at[:2], at[:2], w=w[:, :, :2], beta=beta[:, :, :2]
    )
    assert max_error(scores[:, :, :2, :2], alone) <= rounding(scores)


def test_cope_takes_counts_that_rounding_moved_out_of_range() -> None:
    cope = CoPE(4, 3)
    with torch.no_grad():
        cope.table.copy_(normal(3, 4))
    counts = torch.tensor([-1e-7, 0.0, 2.0, 2 + 1e-6]).reshape(1, 1, 1, 4)
    q = torch.ones(1, 1, 1, 4)
    at_rows = cope.table.sum(-1)
    assert torch.allclose(cope.interpolate(q, counts).flatten(), at_rows[[0, 0, 2, 2]])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_path_sums_of_narrow_positions_stop_at_documents(dtype: torch.dtype) -> None:
    steps, m = normal(1, 2, 5), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(
        path_sums(steps, m.to(dtype), m.to(dtype)), path_sums(steps, m, m)
    )


def test_cope_begins_at_nope_and_passes_gradient_to_the_gates() -> None:
    cope, q, at = CoPE(3, 4).double(), normal(1, 1, 5, 3).requires_grad_(), arange(5)
    assert torch.equal(cope.scores(q, q, at, at), q @ q.mT)
    nn.init.normal_(cope.table, generator=draw(0))
    logits = normal(1, 1, 5, 5).requires_grad_()
    cope.interpolate(q.detach(), contextual_positions(logits, at, at)).sum().backward()
    assert bool((logits.grad[0, 0].tril() != 0).any())
    assert torch.equal(logits.grad[0, 0].triu(1), torch.zeros(5, 5).double())


# ---- forget gates


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 6), (1, 9), (4, 9)])
def test_forget_gate_is_the_equation(queries: int, keys: int) -> None:
    gate = ForgetGate(3, 2, std=1.0, generator=draw(0)).double()
    nn.init.normal_(gate.bias, generator=draw(1))
    x, m, n = normal(2, keys, 3), arange(queries, keys - queries), arange(keys)
    bias = gate(m, n, k_x=x)
    for b in range(2):
        for h in range(2):
            logs = [
                torch.log(torch.sigmoid(gate.weight[h] @ x[b, t] + gate.bias[h]))
                for t in range(keys)
            ]
            for i, a in enumerate(m.tolist()):
                for j in range(a + 1):
                    expected = sum(
                        logs[j + 1 : a + 1], torch.zeros((), dtype=torch.float64)
                    )
                    assert max_error(bias[b, h, i, j], expected) <= rounding(expected)


def test_a_constant_gate_is_alibi() -> None:
    slopes = alibi_slopes(4)
    gate = ForgetGate(3, 4, generator=draw(0)).double()
    gate.weight.data.zero_()
    gate.bias.data.copy_(-torch.log(torch.expm1(slopes)))  # log σ(b) = −slope
    m, n = arange(5, 7), arange(12)
    allowed = causal(m, n)
    bias, expected = (
        gate(m, n, k_x=normal(1, 12, 3)),
        alibi(m, n, slopes, dtype=torch.float64),
    )
    assert max_error(bias[..., allowed], expected[..., allowed]) <= rounding(expected)


def test_cable_is_a_forget_gate_with_the_sign_of_its_logits_turned() -> None:
    gate = ForgetGate(3, 2, std=1.0, generator=draw(0)).double()
    x, at = normal(1, 8, 3), arange(8)
    steps = -nn.functional.softplus(x @ -gate.weight.mT).mT  # −softplus(z), z = −w x
    bias = gate(at, at, k_x=x)
    assert max_error(path_sums(steps, at, at), bias) <= rounding(bias)


def test_sums_in_sixteen_bits_are_computed_in_float32() -> None:
    steps = -normal(1, 1, 3000).abs()
    at, query = arange(3000), arange(1, offset=2999)
    exact = path_sums(steps.to(torch.bfloat16).double(), query, at)
    assert path_sums(steps.to(torch.bfloat16), query, at).dtype == torch.float32
    error = max_error(path_sums(steps.to(torch.bfloat16), query, at), exact)
    assert error <= 3000 * torch.finfo(torch.float32).eps * float(exact.abs().max())


# ---- PaTH


def path_by_the_equation(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, m: Sequence[int]
) -> Tensor:
    """k_nᵀ H_{n+1} ⋯ H_m q_m with the matrices multiplied out; keys at 0, 1, 2, …"""
    dim = q.shape[-1]
    scores = q @ k.mT
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i, a in enumerate(m):
                for n in range(a):
                    product = torch.eye(dim, dtype=torch.float64)
                    for t in range(n + 1, a + 1):
                        product = product @ (
                            torch.eye(dim, dtype=torch.float64)
                            - beta[b, h, t] * torch.outer(w[b, h, t], w[b, h, t])
                        )
                    scores[b, h, i, n] = k[b, h, n] @ product @ q[b, h, i]
    return scores


def unit(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (1, 8), (3, 8)])
@pytest.mark.parametrize("dim", [2, 5])
def test_path_is_the_product_of_reflections_in_the_papers_order(
    queries: int, keys: int, dim: int
) -> None:
    q, k = normal(2, 2, queries, dim), normal(2, 2, keys, dim, seed=1)
    w, beta = (
        unit(normal(2, 2, keys, dim, seed=2)),
        2 * normal(2, 2, keys, seed=3).sigmoid(),
    )
    m, n = arange(queries, keys - queries), arange(keys)
    scores, expected = (
        path_scores(q, k, m, n, w=w, beta=beta),
        path_by_the_equation(q, k, w, beta, m.tolist()),
    )
    allowed = causal(m, n)
    assert max_error(scores[..., allowed], expected[..., allowed]) <= rounding(expected)
    if queries > 1:  # the other order is another score, so the test above can tell
        other = path_by_the_equation(q, k, w.flip(2), beta.flip(2), m.tolist())
        assert max_error(scores[..., allowed], other[..., allowed]) > 1e-2


def test_path_identities() -> None:
    q, k, at = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), arange(6)
    w = unit(normal(1, 2, 6, 4, seed=2))
    still = path_scores(q, k, at, at, w=w, beta=torch.zeros(1, 2, 6).double())
    assert torch.equal(still, q @ k.mT)  # β = 0: NoPE
    # β = 2 is a reflection: two in a row along one w undo each other, so key n meets
    # H^(m−n), of parity m − n.
    same = w[:, :, :1].expand_as(w)
    scores = path_scores(q, k, at, at, w=same, beta=torch.full((1, 2, 6), 2.0).double())
    mirrored = (q - 2 * (q * same).sum(-1, keepdim=True) * same) @ k.mT
    odd = (at[:, None] - at) % 2 == 1
    expected = torch.where(odd, mirrored, q @ k.mT)
    allowed = causal(at, at)
    assert max_error(scores[..., allowed], expected[..., allowed]) <= rounding(expected)
    # β = 1 forgets: what lies along w is gone after one step and stays gone.
    scores = path_scores(q, same, at, at, w=same, beta=torch.ones(1, 2, 6).double())
    assert float(scores[..., allowed & (at[:, None] > at)].abs().max()) <= rounding(
        scores
    )


def test_path_weights_are_reflections_of_every_hidden_state() -> None:
    path = PaTH(6, 3, 4, rank=2, std=1.0, generator=draw(0)).double()
    nn.init.normal_(path.beta_bias, generator=draw(1))
    x = normal(2, 5, 6)
    w, beta = path.reflections(x)
    assert w.shape == (2, 3, 5, 4)
    assert beta.shape == (2, 3, 5)
    assert max_error(w.norm(dim=-1), torch.ones(2, 3, 5).double()) <= rounding(w)
    raw = (path.up_weight.view(3, 4, 2)[1] @ path.down_weight) @ x[1, 2]
    assert max_error(w[1, 1, 2], raw / raw.norm()) <= rounding(w)
    expected = 2 * torch.sigmoid(path.beta_weight[1] @ x[1, 2] + path.beta_bias[1])
    assert max_error(beta[1, 1, 2], expected) <= rounding(expected)


# ---- relative logits, DAPE


@pytest.mark.parametrize(
    ("queries", "keys", "extent"), [(6, 6, 3), (2, 9, 4), (5, 5, 20)]
)
def test_relative_logits_are_the_equation(queries: int, keys: int, extent: int) -> None:
    module = RelativeLogits(5, 2, extent, rank=3, std=1.0, generator=draw(0)).double()
    x, m = normal(2, queries, 5), arange(queries, keys - queries)
    bias = module(m, arange(keys), q_x=x)
    for i, a in enumerate(m.tolist()):
        for j in range(keys):
            for h in range(2):
                mix = module.weight.view(2, 3, 5)[h] @ x[1, i]
                inside = 0 <= a - j < extent
                expected = (
                    mix @ module.curves[:, a - j]
                    if inside
                    else torch.zeros((), dtype=torch.float64)
                )
                assert max_error(bias[1, h, i, j], expected) <= rounding(expected)


def test_relative_logits_are_shaws_key_term_with_a_query_of_their_own() -> None:
    module = RelativeLogits(5, 2, 7, rank=3, std=1.0, generator=draw(0)).double()
    x, at = normal(1, 7, 5), arange(7)
    mix = (x @ module.weight.mT).view(1, 7, 2, 3).transpose(1, 2)
    shaw = relative_key_scores(
        mix, torch.zeros_like(mix), at, at, table=module.curves.mT.flip(0), left=6
    )
    allowed, bias = causal(at, at), module(at, at, q_x=x)
    assert max_error(bias[..., allowed], shaw[..., allowed]) <= rounding(bias)


def test_dape_is_the_equation_and_without_its_network_is_the_bias_alone() -> None:
    prior = partial(alibi, slopes=alibi_slopes(2), dtype=torch.float64)
    dape, q, k, at = (
        DAPE(2, prior, hidden=5, generator=draw(0)).double(),
        normal(1, 2, 4, 3),
        normal(1, 2, 4, 3),
        arange(4),
    )
    scores = dape.scores(q, k, at, at)
    for m in range(4):
        for n in range(4):
            a, b = (
                (q[0, :, m] * k[0, :, n]).sum(-1) / math.sqrt(3),
                prior(at, at)[0, :, m, n],
            )
            inner = dape.weight1 @ torch.cat((a, b)) + dape.bias1
            inner = torch.where(inner > 0, inner, 0.01 * inner)
            expected = a + b + dape.weight2 @ inner + dape.bias2
            assert max_error(scores[0, :, m, n], expected) <= rounding(expected)
    dape.weight2.data.zero_()
    dape.bias2.data.zero_()
    how: dict[str, Any] = {"q_positions": at, "k_positions": at}
    adapted = attention_weights(
        q, k, **how, scheme=PositionScheme("DAPE", scores=dape.scores, scale=1.0)
    )
    plain = attention_weights(q, k, **how, scheme=PositionScheme("ALiBi", bias=prior))
    assert max_error(adapted, plain) <= rounding(plain)


# ---- state, draws, errors


@pytest.mark.parametrize("name", small_modules())
def test_only_parameters_are_state_and_draws_repeat(name: str) -> None:
    module, other = small_modules()[name][0], small_modules()[name][0]
    assert not list(module.buffers())
    assert set(module.state_dict()) == {n for n, _ in module.named_parameters()}
    assert all(
        torch.equal(a, b)
        for a, b in zip(module.parameters(), other.parameters(), strict=True)
    )


AT, Q = arange(3), torch.ones(1, 2, 3, 4)
TABLES = {"position_keys": torch.ones(2, 8, 4), "position_queries": torch.ones(2, 8, 4)}
MALFORMED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "q of integers": (
        lambda: Shaw(4, 2).scores(Q.long(), Q, AT, AT),
        TypeError,
        "q must",
    ),
    "q of three axes": (
        lambda: Shaw(4, 2).scores(Q[0], Q, AT, AT),
        ValueError,
        "q must",
    ),
    "grouped keys outside attention": (
        lambda: Shaw(4, 2).scores(Q, Q[:, :1], AT, AT),
        ValueError,
        "q and k must",
    ),
    "too few positions": (
        lambda: Shaw(4, 2).scores(Q, Q, AT[:2], AT),
        ValueError,
        "q_positions must",
    ),
    "too many key positions": (
        lambda: Shaw(4, 2).scores(Q, Q, AT, arange(4)),
        ValueError,
        "k_positions must",
    ),
    "positions of another batch": (
        lambda: Shaw(4, 2).scores(Q, Q, AT.expand(2, -1), AT),
        ValueError,
        "q_positions must",
    ),
    "fractional distance": (
        lambda: Shaw(4, 2).scores(Q, Q, AT.float(), AT),
        TypeError,
        "must be integers",
    ),
    "clip 0": (lambda: Shaw(4, 0), ValueError, "clip must"),
    "clip a float": (lambda: Shaw(4, 2.0), TypeError, "clip must"),  # type: ignore[arg-type]
    "head_dim 0": (lambda: Shaw(0, 2), ValueError, "head_dim must"),
    "table of another width": (
        lambda: relative_key_scores(Q, Q, AT, AT, table=torch.ones(5, 3), left=2),
        ValueError,
        "table must",
    ),
    "left beyond the table": (
        lambda: relative_key_scores(Q, Q, AT, AT, table=torch.ones(5, 4), left=5),
        ValueError,
        "left must",
    ),
    "negative left": (
        lambda: clipped_index(AT, AT, left=-1, right=1),
        ValueError,
        "left must",
    ),
    "negative right": (
        lambda: clipped_index(AT, AT, left=1, right=-1),
        ValueError,
        "right must",
    ),
    "values of another width": (
        lambda: Shaw(4, 2).values(
            torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 5), AT, AT
        ),
        ValueError,
        "v must",
    ),
    "shift of a vector": (lambda: relative_shift(torch.ones(3)), ValueError, "x must"),
    "shift of integers": (
        lambda: relative_shift(torch.ones(3, 3, dtype=torch.int64)),
        TypeError,
        "x must",
    ),
    "shift with too few columns": (
        lambda: relative_shift(torch.ones(4, 3)),
        ValueError,
        "x must",
    ),
    "odd sinusoid": (lambda: TransformerXL(2, 4, 5), ValueError, "dim must be even"),
    "base 0": (lambda: TransformerXL(2, 4, 6, base=0.0), ValueError, "base must"),
    "std 0": (lambda: TransformerXL(2, 4, 6, std=0.0), ValueError, "std must"),
    "other heads": (
        lambda: TransformerXL(3, 4, 6).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
    "span 0": (lambda: deberta_index(AT, AT, 0), ValueError, "span must"),
    "float distances": (
        lambda: deberta_log_bucket(torch.ones(3), num_buckets=8, max_distance=16),
        TypeError,
        "distance must",
    ),
    "odd buckets": (
        lambda: deberta_log_bucket(AT, num_buckets=7, max_distance=16),
        ValueError,
        "num_buckets must",
    ),
    "two buckets": (
        lambda: deberta_log_bucket(AT, num_buckets=2, max_distance=16),
        ValueError,
        "num_buckets must",
    ),
    "max_distance inside the exact part": (
        lambda: deberta_log_bucket(AT, num_buckets=8, max_distance=5),
        ValueError,
        "max_distance must",
    ),
    "odd table": (
        lambda: deberta_scores(
            Q, Q, AT, AT, **TABLES | {"position_keys": torch.ones(2, 7, 4)}
        ),
        ValueError,
        "position_keys must",
    ),
    "tables of different length": (
        lambda: deberta_released_scores(
            Q, Q, AT, AT, **TABLES | {"position_queries": torch.ones(2, 6, 4)}
        ),
        ValueError,
        "position_keys and position_queries",
    ),
    "table of other heads": (
        lambda: deberta_v2_scores(
            Q,
            Q,
            AT,
            AT,
            **TABLES | {"position_queries": torch.ones(3, 8, 4)},
            max_distance=9,
        ),
        ValueError,
        "position_queries must",
    ),
    "position past the table": (
        lambda: TUPE(3, 4, 2, 4)(AT, arange(4)),
        ValueError,
        "k_positions must lie in 0 … 2",
    ),
    "negative position": (
        lambda: TUPE(3, 4, 2, 4)(AT - 1, AT),
        ValueError,
        "q_positions must lie in 0 … 2",
    ),
    "fractional position": (
        lambda: TUPE(3, 4, 2, 4)(AT.double(), AT),
        TypeError,
        "must be integers",
    ),
    "theta of another shape": (
        lambda: untie_cls(torch.ones(1, 2, 3, 3), AT, AT, torch.ones(2, 3)),
        ValueError,
        "theta must",
    ),
    "no positions to count": (lambda: CoPE(4, 0), ValueError, "num_positions must"),
    "channels CoPE doesn't have": (
        lambda: CoPE(3, 5).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
    "gates of three axes": (
        lambda: contextual_positions(torch.ones(2, 3, 3), AT, AT),
        ValueError,
        "gate_logits must",
    ),
    "no hidden states": (
        lambda: ForgetGate(4, 2)(AT, AT),
        TypeError,
        "k_x must be given",
    ),
    "hidden states of another width": (
        lambda: ForgetGate(4, 2)(AT, AT, k_x=torch.ones(1, 3, 5)),
        ValueError,
        "k_x must have shape",
    ),
    "hidden states of another length": (
        lambda: ForgetGate(4, 2)(AT, AT, k_x=torch.ones(1, 2, 4)),
        ValueError,
        "k_positions must",
    ),
    "a key missing": (
        lambda: path_sums(
            torch.ones(1, 1, 3), torch.tensor([4]), torch.tensor([0, 1, 4])
        ),
        ValueError,
        "jump after 1",
    ),
    "a query that is no key": (
        lambda: path_sums(torch.ones(1, 1, 3), torch.tensor([3]), AT),
        ValueError,
        "q_positions must .* got 3",
    ),
    "a query that is no key of its row": (
        lambda: path_sums(
            torch.ones(2, 1, 3), torch.tensor([[2], [2]]), torch.stack((AT, AT + 3))
        ),
        ValueError,
        "q_positions must .* got 2",
    ),
    "w of another shape": (
        lambda: path_scores(
            Q, Q, AT, AT, w=torch.ones(1, 2, 3, 5), beta=torch.ones(1, 2, 3)
        ),
        ValueError,
        "w must",
    ),
    "beta of another shape": (
        lambda: path_scores(Q, Q, AT, AT, w=Q, beta=torch.ones(1, 2, 3, 1)),
        ValueError,
        "beta must",
    ),
    "PaTH without hidden states": (
        lambda: PaTH(4, 2, 4).scores(Q, Q, AT, AT),
        TypeError,
        "k_x must be given",
    ),
    "rank 0": (lambda: PaTH(4, 2, 4, rank=0), ValueError, "rank must"),
    "logits without hidden states": (
        lambda: RelativeLogits(4, 2, 3)(AT, AT, k_x=Q[0]),
        TypeError,
        "q_x must be given",
    ),
    "extent 0": (lambda: RelativeLogits(4, 2, 0), ValueError, "extent must"),
    "a bias of other heads": (
        lambda: DAPE(2, lambda m, n: torch.zeros(1, 3, 3, 3)).scores(Q, Q, AT, AT),
        ValueError,
        "bias must broadcast",
    ),
    "a bias of two axes": (
        lambda: DAPE(2, lambda m, n: torch.zeros(3, 3)).scores(Q, Q, AT, AT),
        ValueError,
        "from four axes",
    ),
    "weights of other queries": (
        lambda: Shaw(4, 2).values(torch.ones(1, 2, 3, 3), Q, AT[:1], AT),
        ValueError,
        "q_positions must have shape",
    ),
    "weights of other keys": (
        lambda: Shaw(4, 2).values(torch.ones(1, 2, 3, 3), Q, AT, AT[:2]),
        ValueError,
        "k_positions must have shape",
    ),
    "counts of other heads": (
        lambda: CoPE(4, 3).interpolate(Q, torch.ones(1, 1, 3, 3)),
        ValueError,
        "counts must have q's batch",
    ),
    "a bias of other positions": (
        lambda: untie_cls(torch.ones(1, 2, 1, 1), AT, AT, torch.ones(2, 2)),
        ValueError,
        r"bias must have one number for each of \(3, 3\) pairs",
    ),
    "a bias that is none": (lambda: DAPE(2, torch.ones(2)), TypeError, "bias must"),  # type: ignore[arg-type]
    "DAPE of other heads": (
        lambda: DAPE(3, partial(alibi, slopes=alibi_slopes(3))).scores(Q, Q, AT, AT),
        ValueError,
        "q must",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_inputs_are_named(what: str) -> None:
    call, error, message = MALFORMED[what]
    with pytest.raises(error, match=message):
        call()


def test_attention_without_hidden_states_says_what_is_missing() -> None:
    q, at = normal(1, HEADS, 3, WIDTH), arange(3)
    for name in HIDDEN:
        with pytest.raises(TypeError, match="must be given"):
            attention(q, q, q, q_positions=at, k_positions=at, scheme=SCHEMES[name])
