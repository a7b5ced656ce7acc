"""Place 3: KERPLE, FIRE, Sandwich; Swin, BEiT and iRPE; the biases that a network computes."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bias import HEADS, NOT, SCHEMES, OnGrid, draw, loud, with_class
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.bias.kernels import FIRE, KerpleLog, KerplePower, sandwich
from posenc_lib.bias.mlp import (
    DistanceMLPBias,
    DynamicPositionBias,
    LogCoordinateBias,
    log_coordinates,
)
from posenc_lib.bias.window import (
    ClsWindowBias,
    IRPEBias,
    IRPEContextual,
    WindowBias,
    cls_window_index,
    irpe_edges,
    irpe_index,
    irpe_rows,
    window_index,
)
from posenc_lib.embedding import sinusoidal
from posenc_lib.positions import arange, from_mask, grid
from posenc_lib.properties import (
    max_error,
    toeplitz_error,
)
from posenc_lib.scheme import PositionScheme

EPS = torch.finfo(torch.float64).eps
every_scheme = pytest.mark.parametrize("name", SCHEMES)
BIASES = [name for name, scheme in SCHEMES.items() if scheme.bias is not None]
every_bias = pytest.mark.parametrize("name", BIASES)
MODULES = [
    name for name, scheme in SCHEMES.items() if isinstance(scheme.bias, nn.Module)
]
PRODUCT: dict[str, float] = {"alpha": 1.9, "beta": 3.8, "gamma": 15.2}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=draw(seed), dtype=torch.float64).to(dtype)


def rounding(x: Tensor, terms: int = 256) -> float:
    """Bound on the rounding of sums of at most `terms` products whose size is that of x."""
    return terms * EPS * max(1.0, float(x.detach().abs().max()))


def same(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order of a matrix product's sums, which may differ with its size."""
    return max_error(a, b) <= rounding(b)


def bias_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    bias = SCHEMES[name].bias
    assert bias is not None
    return bias


# ---- properties of all of them


@every_bias
def test_shapes_for_a_cache_and_for_batches(name: str) -> None:
    bias, m, n = bias_of(name), arange(3, offset=4), arange(7)
    alone = bias(m, n)
    assert alone.shape == (1, HEADS, 3, 7)
    assert same(
        alone, bias(n, n)[:, :, 4:]
    )  # F1-39: queries stand where their positions say
    rows = torch.stack((m, m + 2))
    batched = bias(rows, n)
    assert batched.shape == bias(m, n.expand(2, -1)).shape == (2, HEADS, 3, 7)
    assert same(batched[:1], alone)
    assert same(batched[1:], bias(m + 2, n))
    assert same(batched, bias(rows, n.expand(2, -1)))


@pytest.mark.parametrize(
    "name", [name for name in BIASES if "grid" in NOT.get((name, "relative"), "")]
)
def test_relative_on_the_grid(name: str) -> None:
    at = arange(
        12, offset=1 if name in ("BEiT", "iRPE cross") else 0
    )  # no class token, which stays where it is
    assert torch.equal(bias_of(name)(at, at), bias_of(name)(at + 40, at + 40))


@pytest.mark.parametrize("name", MODULES)
def test_F1_24_state_is_learned_and_F1_22_survives_the_meta_device(name: str) -> None:
    module = copy.deepcopy(SCHEMES[name].bias)
    assert isinstance(module, nn.Module)
    assert set(module.state_dict()) == {n for n, _ in module.named_parameters()}
    state = copy.deepcopy(module.state_dict())
    there = module.to("meta").to_empty(device="cpu")
    there.load_state_dict(state)
    at = arange(6)
    assert torch.equal(there(at, at), bias_of(name)(at, at))


def test_modules_draw_from_their_generator_alone() -> None:
    makers: list[Callable[[torch.Generator], nn.Module]] = [
        lambda g: KerpleLog(3, generator=g),
        lambda g: KerplePower(3, generator=g),
        lambda g: FIRE(3, generator=g),
        lambda g: WindowBias(3, (2, 2), generator=g),
        lambda g: DynamicPositionBias(3, 4, generator=g),
        lambda g: DistanceMLPBias(3, 4, generator=g),
        lambda g: LogCoordinateBias(3, (2, 2), generator=g),
    ]
    before = torch.get_rng_state()
    for make in makers:
        one, same, other = (make(draw(seed)).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(one[n], same[n]) for n in one)
        assert any(not torch.equal(one[n], other[n]) for n in one)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("made_on", ["meta"])
def test_F1_79_nothing_is_made_on_the_default_device(made_on: str) -> None:
    at = arange(5)
    wanted = {name: bias_of(name)(at, at) for name in BIASES}
    with torch.device(made_on):
        for name, bias in wanted.items():
            assert torch.equal(bias_of(name)(at, at), bias)


def small_modules() -> dict[str, tuple[nn.Module, Tensor]]:
    places, line = grid((2, 2)), arange(4, offset=3)
    return {
        "KERPLE log": (KerpleLog(2, generator=draw()), line),
        "KERPLE power": (KerplePower(2, generator=draw()), line),
        "FIRE": (FIRE(2, hidden=3, threshold=4.5, generator=draw()), line),
        "window": (WindowBias(2, (2, 2), std=1.0, generator=draw()), places),
        "class window": (loud(ClsWindowBias(2, (2, 2))), with_class(places)),
        "iRPE": (loud(IRPEBias(2)), with_class(places)),
        "CrossFormer": (loud(DynamicPositionBias(2, 3)), places),
        "distance network": (DistanceMLPBias(2, 3, generator=draw()), line),
        "Swin-V2": (loud(LogCoordinateBias(2, (3, 3), hidden=3)), places),
    }


@pytest.mark.parametrize("name", small_modules())
def test_gradients_of_parameters(name: str) -> None:
    module, at = small_modules()[name]
    module = module.double()
    names = [n for n, _ in module.named_parameters()]

    def outputs(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(
            module, dict(zip(names, parameters, strict=True)), (at, at)
        )

    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(outputs, values)
    used = torch.autograd.grad(outputs(*values).square().sum(), values)
    assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in used)


# ---- KERPLE


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    offset=st.integers(-9, 9),
    seed=st.integers(0, 99),
)
def test_kerple_is_the_equation(
    queries: int, keys: int, offset: int, seed: int
) -> None:
    log, power = (
        KerpleLog(3, generator=draw(seed)).double(),
        KerplePower(3, generator=draw(seed)).double(),
    )
    log.requires_grad_(False), power.requires_grad_(False)
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    logs, powers = log(m, n), power(m, n)
    for h, i, j in itertools.product(range(3), range(queries), range(keys)):
        distance = abs(i + offset - j)
        expected = -max(float(log.r1[h]), 0.01) * math.log(
            1 + max(float(log.r2[h]), 0.01) * distance
        )
        assert float(logs[0, h, i, j]) == pytest.approx(expected, abs=1e-13)
        expected = -max(float(power.r1[h]), 0.01) * distance ** max(
            float(power.r2[h]), 0.01
        )
        assert float(powers[0, h, i, j]) == pytest.approx(expected, abs=1e-13)


def test_kerple_power_of_one_is_alibi_and_so_is_the_logarithm_near_zero() -> None:
    slopes, m, n = alibi_slopes(8), arange(9, offset=5), arange(14)
    wanted = alibi(m, n, slopes, dtype=torch.float64)
    power = KerplePower(8).double()
    power.r1.data.copy_(slopes)
    power.r2.data.fill_(1.0)
    below = slopes < 0.01  # which the released code raises to 0.01
    assert bool(below.any())
    assert torch.equal(power(m, n)[:, ~below], wanted[:, ~below])
    assert torch.equal(
        power(m, n)[:, below], wanted[:, below] / slopes[below, None, None] * 0.01
    )
    # ln(1 + x) = x − x²/2 + …: with r₂ = 0.01, distances of at most 13 and r₁ r₂ = s
    # the error is below s · 13 · 0.065
    log = KerpleLog(8).double()
    log.r1.data.copy_(slopes / 0.01)
    log.r2.data.fill_(0.01)
    error = (log(m, n) - wanted).abs()
    assert bool((error <= slopes[:, None, None] * 13 * 13 * 0.005).all())
    assert bool((error[..., 0, 0] > 0).all())


def test_kerple_clamps_without_losing_the_gradient_or_the_parameter() -> None:
    for bias, above in ((KerpleLog(2), None), (KerplePower(2), 3.0)):
        bias.r1.data.fill_(-1.0)
        bias.r2.data.fill_(-1.0 if above is None else above)
        out = bias(arange(4), arange(4))
        limit = -0.01 * math.log(1.03) if above is None else -0.01 * 9.0
        assert float(out[0, 0, 3, 0].detach()) == pytest.approx(limit, rel=1e-5)
        out.sum().backward()
        assert all(
            p.grad is not None and bool((p.grad != 0).all()) for p in bias.parameters()
        )
        assert bool((bias.r1 == -1.0).all())  # a forward pass writes to no parameter


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0, 1.7])
def test_kerple_power_has_all_gradients_at_distance_zero(power: float) -> None:
    kerple = KerplePower(1).double()
    with torch.no_grad():
        kerple.r1.fill_(0.3)  # above the bound that a draw may fall below
        kerple.r2.fill_(power)
    m = torch.arange(3.0, dtype=torch.float64).requires_grad_()
    n = torch.arange(3.0, dtype=torch.float64)
    first = torch.autograd.grad(
        kerple(m, n).sum(), (m, kerple.r1, kerple.r2), create_graph=True
    )
    second = torch.autograd.grad(first[2].sum(), kerple.r2)[0]
    distance = (n - n[:, None]).abs()
    grown = torch.where(distance > 0, distance**power, 0)
    logarithm = torch.where(distance > 0, distance, 1).log()
    r1 = kerple.r1.detach()
    slope = torch.where(
        distance > 0, power * grown / distance * (n[:, None] - n).sign(), 0
    )
    assert same(first[0], -r1 * slope.sum(-1))
    assert same(first[1], -grown.sum()[None])
    assert same(first[2], (-r1 * grown * logarithm).sum()[None])
    assert same(second, (-r1 * grown * logarithm**2).sum()[None])


def test_kerple_begins_as_in_the_released_code() -> None:
    log, power = KerpleLog(4000, generator=draw()), KerplePower(4000, generator=draw())
    for parameter, end in (
        (log.r1, 2.0),
        (log.r2, 1.0),
        (power.r1, 1.0),
        (power.r2, 2.0),
    ):
        low, high, mean = (
            float(f(parameter.detach())) for f in (torch.min, torch.max, torch.mean)
        )
        assert 0 <= low < 0.01 * end
        assert 0.99 * end < high <= end
        assert mean == pytest.approx(end / 2, abs=5 * end / math.sqrt(12 * 4000))


def test_kerple_falls_with_distance() -> None:
    for name in ("KERPLE log", "KERPLE power"):
        row = bias_of(name)(arange(1, offset=50), arange(51))[0, :, 0]
        assert bool((row.diff(dim=-1) > 0).all())
        assert bool((row[:, -1] == 0).all())


# ---- FIRE


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    offset=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_fire_is_the_equation(queries: int, keys: int, offset: int, seed: int) -> None:
    bias = (
        FIRE(2, hidden=3, c=0.3, threshold=4.0, generator=draw(seed))
        .double()
        .requires_grad_(False)
    )
    bias.multiplier.data.fill_(1.1)
    w1, c1, w2, c2 = bias.network
    m, n = torch.arange(queries) + offset, torch.arange(keys)
    out, c = bias(m, n), float(bias.c)
    for i, j in itertools.product(range(queries), range(keys)):
        divisor = math.log(c * max(i + offset, 4.4) + 1)
        share = math.log(c * abs(i + offset - j) + 1) / (divisor + 1e-6)
        hidden = torch.tensor(
            [max(0.0, float(w1[a, 0]) * share + float(c1[a])) for a in range(3)],
            dtype=torch.float64,
        )
        for h in range(2):
            expected = sum(
                float(w2[h, a]) * float(hidden[a]) for a in range(3)
            ) + float(c2[h])
            assert float(out[0, h, i, j]) == pytest.approx(expected, abs=1e-12)


def test_fire_divides_by_the_position_of_the_query() -> None:
    """The share of the first token is 1 at every query from L on, however many keys are there: no length is new."""
    bias = FIRE(2, hidden=4, threshold=16.0, generator=draw()).double()
    queries = torch.tensor([16, 17, 100, 4096, 1_000_000])
    first = bias(queries, torch.tensor([0]))[0, :, :, 0]
    assert (
        max_error(first, first[:, :1].expand_as(first)) <= 1e-6
    )  # ε is worth this much
    short, long = bias(queries, arange(3)), bias(queries, arange(30))
    assert same(short, long[..., :3])
    assert same(
        bias(queries[1:2], arange(3)), short[:, :, 1:2]
    )  # neither the row below nor the one above


def test_fire_below_the_threshold_depends_on_the_distance_alone() -> None:
    bias = FIRE(2, hidden=4, threshold=32.0, generator=draw()).double()
    at = arange(32)
    assert toeplitz_error(bias(at, at)) <= 1e-15
    later = arange(32, offset=33)
    assert toeplitz_error(bias(later, later)) > 1e-4


def test_fire_reads_a_batch_row_by_row() -> None:
    """The divisor is a column of the row it belongs to: with as many queries as rows a wrong axis would still fit."""
    bias = FIRE(2, hidden=4, threshold=2.0, generator=draw()).double()
    rows = torch.tensor([[3, 9, 40], [5, 6, 7], [0, 100, 2]])
    together = bias(rows, rows)
    for row in range(3):
        assert same(together[row], bias(rows[row], rows[row])[0])


def test_fire_learns_c_and_the_threshold_and_ends_the_latter_at_its_absolute_value() -> (
    None
):
    bias = FIRE(2, hidden=4, threshold=8.0, generator=draw())
    assert float(bias.c.detach()) == pytest.approx(0.1)
    assert {n for n, _ in bias.named_parameters()} == {
        "c",
        "multiplier",
        *(f"network.{i}" for i in range(4)),
    }
    at, before = arange(6), bias(arange(6), arange(6))
    bias.multiplier.data.neg_()
    assert torch.equal(bias(at, at), before)


# ---- Sandwich


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 8), (4, 128)])
@pytest.mark.parametrize("offset", [0, 3, 100_000])
def test_sandwich_is_the_equation(heads: int, dim: int, offset: int) -> None:
    m, n = arange(5, offset=offset), arange(7, offset=offset)
    bias = sandwich(m, n, heads, dim=dim, dtype=torch.float64)
    for h, i, j in itertools.product(range(heads), range(5), range(7)):
        waves = [
            math.cos((i - j) * 10000 ** (-2 * k / dim)) - 1
            for k in range(1, dim // 2 + 1)
        ]
        expected = math.fsum(waves) / (8 * (h + 1) / heads)
        assert float(bias[0, h, i, j]) == pytest.approx(
            expected, abs=1e-13 * dim * max(1, offset / 100)
        )


def test_sandwich_is_the_product_of_two_sinusoidal_embeddings() -> None:
    """The sinusoid's frequencies θ^(−2i/d) begin at i = 0: with positions scaled by θ^(−2/d) at i = 1."""
    at = arange(20)
    table = sinusoidal(at * 10000.0 ** (-2 / 16), 16, dtype=torch.float64)
    assert (
        max_error(
            table @ table.mT - 8, sandwich(at, at, 8, dim=16, dtype=torch.float64)[0, 0]
        )
        <= 1e-6
    )
    exact = sinusoidal(at.double() * 10000.0 ** (-2 / 16), 16, dtype=torch.float64)
    assert (
        max_error(
            exact @ exact.mT - 8, sandwich(at, at, 8, dim=16, dtype=torch.float64)[0, 0]
        )
        <= 1e-13
    )


def test_sandwich_is_highest_at_distance_zero_and_keeps_small_differences() -> None:
    row = sandwich(arange(1, offset=64), arange(65), 4)[0, :, 0]
    assert bool((row <= 1e-12).all())
    assert float(row[0, -1]) == pytest.approx(0, abs=1e-12)
    ratio = row[0, :-1] / row[3, :-1]
    assert (
        max_error(ratio, torch.full_like(ratio, 4.0)) <= 1e-5
    )  # head 1 against head 4
    # d̄ = 4: the lowest frequencies, whose cosines differ from 1 by less than float32
    # can hold next to 1
    near = float(sandwich(arange(1, offset=1), arange(1), 1, dim=4)[0, 0, 0, 0])
    assert near == pytest.approx(
        -(math.sin(0.005) ** 2 + math.sin(0.00005) ** 2) / 4, rel=1e-6
    )


# ---- windows


def places(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, window)))


@pytest.mark.parametrize(
    "window",
    [
        (1,),
        (5,),
        (2, 2),
        (2, 3),
        (3, 2),
        (7, 7),
        (1, 4),
        (2, 2, 2),
        (2, 3, 4),
        (2, 1, 2, 2),
    ],
)
def test_F1_63_window_bias_index(window: tuple[int, ...]) -> None:
    """One row for each offset: as many as there are offsets, and equal exactly where offsets are equal."""
    at = grid(window)
    index = window_index(at, at, window)
    offsets: dict[tuple[int, ...], int] = {}
    for (i, m), (j, n) in itertools.product(enumerate(places(window)), repeat=2):
        offset = tuple(a - b for a, b in zip(m, n, strict=True))
        assert offsets.setdefault(offset, int(index[i, j])) == int(index[i, j])
    rows = math.prod(2 * size - 1 for size in window)
    assert sorted(offsets.values()) == list(range(rows))
    if window == (2, 2, 2):
        assert rows == 27
        assert offsets[(1, 0, 0)] - offsets[(0, 0, 0)] == 9
        assert offsets[(0, 1, 0)] - offsets[(0, 0, 0)] == 3
        assert offsets[(0, 0, 1)] - offsets[(0, 0, 0)] == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("shift", [0, 5])
def test_F1_63_in_other_dtypes_and_places(dtype: torch.dtype, shift: int) -> None:
    """Narrow and unsigned integers don't wrap around, and a window may stand anywhere."""
    at = grid((2, 3, 4))
    moved = (at + shift).to(dtype)
    assert torch.equal(
        window_index(moved, moved, (2, 3, 4)), window_index(at, at, (2, 3, 4))
    )


def test_window_index_against_the_wrong_multipliers_of_F1_63() -> None:
    at = grid((2, 2, 2))
    offset = at[:, None] - at[None] + 1
    wrong = offset[..., 0] * (3 * 2 - 1) + offset[..., 1] * (2 * 2 - 1) + offset[..., 2]
    assert len(wrong.unique()) == 19  # as reported: 19 numbers for 27 offsets
    assert len(window_index(at, at, (2, 2, 2)).unique()) == 27


def test_window_bias_is_the_equation_and_a_cross_attention_is_a_part_of_it() -> None:
    bias, at = WindowBias(3, (3, 4), std=1.0, generator=draw()), grid((3, 4))
    out = bias(at, at)
    for (i, m), (j, n) in itertools.product(enumerate(places((3, 4))), repeat=2):
        row = (m[0] - n[0] + 2) * 7 + m[1] - n[1] + 3
        assert torch.equal(out[0, :, i, j], bias.table[row])
    some = torch.tensor([11, 0, 6])
    assert torch.equal(bias(at[some], at), out[:, :, some])
    assert torch.equal(
        bias(at.expand(2, -1, -1), at[some]), out[..., some].expand(2, -1, -1, -1)
    )


def test_window_of_one_axis_is_a_table_of_distances_and_an_axis_of_size_one_is_none() -> (
    None
):
    line = WindowBias(2, (6,), std=1.0, generator=draw())
    assert toeplitz_error(line(arange(6)[:, None], arange(6)[:, None])) == 0.0
    at = grid((3, 2))
    assert torch.equal(
        window_index(
            torch.nn.functional.pad(at, (1, 0)),
            torch.nn.functional.pad(at, (1, 0)),
            (1, 3, 2),
        ),
        window_index(at, at, (3, 2)),
    )


@pytest.mark.parametrize("window", [(2, 2), (2, 3), (1, 1), (2, 2, 2)])
def test_class_rows_come_after_the_others(window: tuple[int, ...]) -> None:
    at = grid(window)
    index = cls_window_index(with_class(at), with_class(at), window)
    rows = math.prod(2 * size - 1 for size in window)
    assert torch.equal(index[1:, 1:], window_index(at, at, window))
    assert int(index[0, 0]) == rows + 2
    assert index[0, 1:].tolist() == [rows] * len(at)  # class → token
    assert index[1:, 0].tolist() == [rows + 1] * len(at)
    moved = torch.cat(
        (at, torch.full((1, len(window)), -1))
    )  # a class token at the end
    assert torch.equal(cls_window_index(moved, moved, window)[:-1, :-1], index[1:, 1:])
    bias = loud(ClsWindowBias(2, window))
    assert bias.table.shape == (rows + 3, 2)
    assert torch.equal(
        bias(with_class(at), with_class(at))[0], bias.table[index].movedim(-1, 0)
    )


# ---- iRPE


def released_index(x: Tensor, alpha: float, beta: float, gamma: float) -> Tensor:
    """Equation 18 with the released code's rounding, number by number."""
    far = alpha + (x.abs().double() / alpha).log() / math.log(gamma / alpha) * (
        beta - alpha
    )
    far = x.sign() * far.round().clip(max=beta).to(torch.int64)
    return torch.where(x.abs() <= alpha, x, far)


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(alpha=st.floats(0.5, 12), more=st.floats(0.6, 12), reach=st.floats(0.5, 60))
def test_irpe_index_is_the_equation(alpha: float, more: float, reach: float) -> None:
    beta, gamma = alpha + more, alpha + reach
    x = torch.arange(-150, 151)
    assert torch.equal(
        irpe_index(x, alpha=alpha, beta=beta, gamma=gamma),
        released_index(x, alpha, beta, gamma),
    )


def test_irpe_published_sizes() -> None:
    """The released code with the ratio 1.9 has 7 buckets on an axis, 7² in a product, and one for the class token."""
    assert irpe_edges(**PRODUCT) == [0, 1, 2, 4]
    assert irpe_index(torch.arange(-6, 7)).tolist() == [
        -3,
        -3,
        -3,
        -2,
        -2,
        -1,
        0,
        1,
        2,
        2,
        3,
        3,
        3,
    ]
    assert IRPEBias(1).table.shape[0] == 50
    assert IRPEBias(1, method="cross").table.shape[0] == 16
    assert IRPEBias(1, method="euclidean").table.shape[0] == 8
    assert IRPEContextual(5).table.shape == (50, 5)


@pytest.mark.parametrize("size", [(2, 3), (14, 14), (5, 1)])
def test_irpe_rows_are_the_equation(size: tuple[int, int]) -> None:
    at = with_class(grid(size))
    rows = {
        method: irpe_rows(at, at, method=method)
        for method in ("product", "cross", "euclidean")
    }
    offset = at[:, None] - at[None]
    inside = (at >= 0).all(-1)
    inside = inside[:, None] & inside[None]
    i, j = (released_index(offset[..., axis], **PRODUCT) + 3 for axis in (0, 1))
    distance = offset.square().sum(-1).double().sqrt().round().to(torch.int64)
    wanted = {
        "product": (torch.where(inside, 7 * i + j, 49),),
        "cross": (torch.where(inside, i, 7), torch.where(inside, j, 7) + 8),
        "euclidean": (torch.where(inside, released_index(distance, **PRODUCT) + 3, 7),),
    }
    for method, columns in wanted.items():
        assert torch.equal(rows[method], torch.stack(columns, -1)), method


def test_irpe_with_room_for_every_distance_is_swins_index() -> None:
    at, bias = grid((3, 3)), {"alpha": 2.0, "beta": 2.5, "gamma": 9.0}
    assert torch.equal(irpe_rows(at, at, **bias)[..., 0], window_index(at, at, (3, 3)))


def test_irpe_in_three_axes() -> None:
    at = grid((2, 3, 2))
    rows = irpe_rows(at, at, axes=3)[..., 0]
    assert len(rows.unique()) == 3 * 5 * 3  # −1 … 1, −2 … 2, −1 … 1
    assert IRPEBias(2, axes=3)(at, at).shape == (1, 2, 12, 12)


@pytest.mark.parametrize("method", ["product", "cross", "euclidean"])
def test_irpe_modes_are_the_equations(method: str) -> None:
    at = with_class(grid((3, 4)))
    bias = loud(IRPEBias(2, method=method)).double()
    score = loud(IRPEContextual(4, method=method)).double()
    rows, q, k = (
        irpe_rows(at, at, method=method),
        normal(2, 3, 13, 4),
        normal(2, 3, 13, 4, seed=1),
    )
    out, scores = bias(at, at), score.scores(q, k, at, at)
    for m, n in itertools.product(range(13), repeat=2):
        picked = rows[m, n].tolist()
        assert max_error(
            out[0, :, m, n], sum(bias.table[row] for row in picked)
        ) <= rounding(out)
        key = k[:, :, n] + sum(score.table[row] for row in picked)
        assert max_error(scores[:, :, m, n], (q[:, :, m] * key).sum(-1)) <= rounding(
            scores
        )
    both = at.expand(2, -1, -1)
    assert max_error(score.scores(q, k, both, at), scores) <= rounding(scores)
    assert max_error(
        score.scores(q[:, :, 9:], k, at[9:], at), scores[:, :, 9:]
    ) <= rounding(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_irpe_contextual_in_lower_precision_and_its_gradients(
    dtype: torch.dtype,
) -> None:
    at, score = grid((2, 2)), loud(IRPEContextual(3)).double()
    q = normal(1, 2, 4, 3, dtype=dtype)
    out = score.scores(q, q, at, at)
    exact = score.scores(q.double(), q.double(), at, at)
    assert out.dtype == dtype
    assert (
        max_error(out, exact)
        <= torch.finfo(dtype).eps * float(exact.detach().abs().max()) * 8
    )
    inputs = [normal(1, 2, 4, 3, seed=s).requires_grad_() for s in (1, 2)]
    assert torch.autograd.gradcheck(lambda q, k: score.scores(q, k, at, at), inputs)


# ---- networks


def numpy_free_layer_norm(x: list[float]) -> list[float]:
    mean = math.fsum(x) / len(x)
    variance = math.fsum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) for value in x]


def test_crossformer_is_the_equation() -> None:
    bias, at = (
        DynamicPositionBias(2, 3, generator=draw()).double().requires_grad_(False),
        grid((2, 3)),
    )
    for weight in bias.weights:
        nn.init.normal_(weight, generator=draw(1))
    for shift in bias.biases:
        nn.init.normal_(shift, generator=draw(2))
    out = bias(at, at)
    for (i, m), (j, n) in itertools.product(enumerate(places((2, 3))), repeat=2):
        x = [float(a - b) for a, b in zip(m, n, strict=True)]
        for layer, (w, c) in enumerate(zip(bias.weights, bias.biases, strict=True)):
            if layer:
                x = [max(0.0, value) for value in numpy_free_layer_norm(x)]
            x = [
                math.fsum(float(w[o, a]) * x[a] for a in range(len(x))) + float(c[o])
                for o in range(len(c))
            ]
        for h in range(2):
            assert float(out[0, h, i, j]) == pytest.approx(x[h], abs=1e-12)


@pytest.mark.parametrize("log_distance", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_distance_network_is_the_equation(depth: int, log_distance: bool) -> None:
    bias = DistanceMLPBias(
        2, 3, depth=depth, log_distance=log_distance, generator=draw()
    ).double()
    m, n = arange(4, offset=2), arange(5)
    out = bias(m, n)
    layers = [p.detach() for p in bias.network]
    for i, j in itertools.product(range(4), range(5)):
        distance = float(i + 2 - j)
        value = (
            math.copysign(math.log(1 + abs(distance)), distance)
            if log_distance
            else distance
        )
        x = torch.tensor([value], dtype=torch.float64)
        for layer in range(depth + 1):
            x = (
                layers[2 * layer] @ (x / (1 + (-x).exp()) if layer else x)
                + layers[2 * layer + 1]
            )
        assert max_error(out[0, :, i, j], x) <= 1e-12


def test_dense_layers_begin_as_pytorchs_linear_layers_do() -> None:
    bias = DistanceMLPBias(50, 400, generator=draw())
    for parameter, inputs in zip(bias.network, (1, 1, 400, 400, 400, 400), strict=True):
        end = inputs**-0.5
        assert float(parameter.detach().abs().max()) <= end
        if parameter.numel() > 1000:
            assert float(parameter.detach().std()) == pytest.approx(
                end / math.sqrt(3), rel=0.02
            )


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (8, 1), (4, 4, 2)])
def test_log_coordinates_are_the_equation(window: tuple[int, ...]) -> None:
    offsets = grid([2 * size - 1 for size in window]) - torch.tensor(window) + 1
    out = log_coordinates(offsets.double(), window)
    for row, offset in enumerate(offsets.tolist()):
        for axis, (x, size) in enumerate(zip(offset, window, strict=True)):
            scaled = 8 * x / (size - 1) if size > 1 else 0.0
            expected = (
                math.copysign(math.log2(1 + abs(scaled)) / math.log2(8), scaled)
                if scaled
                else 0.0
            )
            assert float(out[row, axis]) == pytest.approx(expected, abs=1e-14)
    assert float(out.max()) == pytest.approx(math.log2(9) / 3)  # the edge of any window


def test_swin_v2_is_the_equation_and_bounded() -> None:
    bias = loud(LogCoordinateBias(2, (3, 3), hidden=4)).double().requires_grad_(False)
    at = grid((3, 3))
    out = bias(at, at)
    assert float(out.min()) > 0
    assert float(out.max()) < 16
    for (i, m), (j, n) in itertools.product(enumerate(places((3, 3))), repeat=2):
        x = [
            math.copysign(math.log2(1 + 4 * abs(a - b)) / 3, a - b)
            for a, b in zip(m, n, strict=True)
        ]
        hidden = (
            bias.weight1 @ torch.tensor(x, dtype=torch.float64) + bias.bias1
        ).relu()
        assert (
            max_error(out[0, :, i, j], 16 / (1 + (-(bias.weight2 @ hidden)).exp()))
            <= 1e-12
        )


def test_swin_v2_carries_over_to_another_window() -> None:
    """A bias trained on one window serves any other: at the offsets they share it says the same."""
    bias = loud(LogCoordinateBias(2, (4, 4), hidden=4)).double()
    small, large = bias(grid((4, 4)), grid((4, 4))), bias(grid((8, 8)), grid((8, 8)))
    inside = (grid((8, 8)) < 4).all(-1)
    assert max_error(large[:, :, inside][..., inside], small) <= rounding(small)


@pytest.mark.parametrize(
    "bias",
    [
        FIRE(2, generator=draw(0)),
        DistanceMLPBias(2, 16, generator=draw(0)),
        DistanceMLPBias(2, 16, log_distance=True, generator=draw(0)),
        DynamicPositionBias(2, 16, axes=1, generator=draw(0)),
        LogCoordinateBias(2, (4097,), generator=draw(0)),
    ],
    ids=["FIRE", "distance", "logarithm", "CrossFormer", "Swin-V2"],
)
def test_autocast_tells_neighbours_apart(bias: nn.Module) -> None:
    m, n = torch.tensor([4096]), torch.arange(4097)
    if isinstance(bias, (DynamicPositionBias, LogCoordinateBias)):
        m, n = m[:, None], n[:, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bias(m, n)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, bias(m, n))


def test_networks_take_positions_between_the_places() -> None:
    at = grid((2, 2)).double() / 2
    for bias in (
        DynamicPositionBias(2, 4, generator=draw()),
        LogCoordinateBias(2, (2, 2), generator=draw()),
    ):
        assert bool(bias(at, at).isfinite().all())
    with pytest.raises(TypeError, match="q_positions must be integers"):
        WindowBias(2, (2, 2))(at, at)


# ---- what is wrong is named

AT, PLACES = arange(3), grid((2, 2))
contextual = IRPEContextual(3).scores
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: KerpleLog(0), ValueError, "heads"),
    (lambda: KerplePower(2.0), TypeError, "heads"),  # type: ignore[arg-type]
    (lambda: KerpleLog(2)(AT.float().half(), AT), TypeError, "q_positions"),
    (
        lambda: KerpleLog(2)(AT.repeat(3, 1), AT.repeat(2, 1)),
        ValueError,
        "q_positions and k_positions",
    ),
    (lambda: FIRE(2, hidden=0), ValueError, "hidden"),
    (lambda: FIRE(2, c=-1.0), ValueError, "c must"),
    (lambda: FIRE(2, threshold=math.inf), ValueError, "threshold"),
    (lambda: FIRE(2)(AT, AT.repeat(2, 2, 1)), ValueError, "k_positions"),
    (lambda: sandwich(AT, AT, 0), ValueError, "heads"),
    (lambda: sandwich(AT, AT, 2, dim=3), ValueError, "dim must be even"),
    (lambda: sandwich(AT, AT, 2, base=-1.0), ValueError, "base"),
    (lambda: sandwich(AT, AT, 2, dtype=torch.int64), TypeError, "dtype"),
    (
        lambda: sandwich(AT.repeat(3, 1), AT.repeat(2, 1), 2),
        ValueError,
        "q_positions and k_positions",
    ),
    (lambda: sandwich([0, 1], AT, 2), TypeError, "q_positions"),  # type: ignore[arg-type]
    (lambda: window_index(PLACES, PLACES, 2), TypeError, "window"),  # type: ignore[arg-type]
    (lambda: window_index(PLACES, PLACES, ()), TypeError, "window"),
    (
        lambda: window_index(PLACES, PLACES, (2, 0)),
        ValueError,
        r"window\[1\] must be an integer ≥ 1, got 0",
    ),
    (lambda: window_index(PLACES, PLACES, (2, 2.0)), TypeError, r"window\[1\]"),  # type: ignore[arg-type]
    (
        lambda: window_index(PLACES, PLACES, (2, 2, 2)),
        ValueError,
        r"q_positions must have shape \(T, 3\)",
    ),
    (
        lambda: window_index(PLACES, AT, (2, 2)),
        ValueError,
        "k_positions must have shape",
    ),
    (
        lambda: window_index(PLACES, 2 * PLACES, (2, 2)),
        ValueError,
        r"window\[0\] = 2 apart on axis 0, got 2",
    ),
    (
        lambda: window_index(PLACES.repeat(3, 1, 1), PLACES.repeat(2, 1, 1), (2, 2)),
        ValueError,
        "same batch",
    ),
    (lambda: WindowBias(2, (2, 2), std=0.0), ValueError, "std"),
    (lambda: WindowBias(2, "22"), TypeError, "window"),
    (lambda: ClsWindowBias(0, (2, 2)), ValueError, "heads"),
    (lambda: irpe_edges(2.0, 1.0, 8.0), ValueError, "alpha must be below beta"),
    (lambda: irpe_edges(2.0, 3.0, 2.0), ValueError, "gamma"),
    (lambda: irpe_edges(0.0, 3.0, 4.0), ValueError, "alpha"),
    (lambda: irpe_index(AT.float()), TypeError, "relative_positions must be integers"),
    (
        lambda: irpe_rows(PLACES, PLACES, method="quant"),
        ValueError,
        "method must be one of",
    ),
    (lambda: irpe_rows(PLACES, PLACES, axes=0), ValueError, "axes"),
    (lambda: IRPEBias(2, method="Product"), ValueError, "method"),
    (lambda: IRPEContextual(0), ValueError, "head_dim"),
    (
        lambda: IRPEContextual(3).scores(
            normal(1, 2, 4, 5), normal(1, 2, 4, 3), PLACES, PLACES
        ),
        ValueError,
        "q must",
    ),
    (
        lambda: IRPEContextual(3).scores(
            normal(1, 2, 4, 3), normal(2, 4, 3), PLACES, PLACES
        ),
        ValueError,
        "k must",
    ),
    (lambda: DynamicPositionBias(2, 0), ValueError, "width"),
    (lambda: DynamicPositionBias(2, 3, axes=0), ValueError, "axes"),
    (
        lambda: DynamicPositionBias(2, 3)(AT, AT),
        ValueError,
        "q_positions must have shape",
    ),
    (lambda: DistanceMLPBias(2, 3, depth=0), ValueError, "depth"),
    (lambda: DistanceMLPBias(2, 3, log_distance=1), TypeError, "log_distance"),  # type: ignore[arg-type]
    (
        lambda: log_coordinates(PLACES, (2, 2, 2)),
        ValueError,
        "offsets must have 3 axes",
    ),
    (lambda: LogCoordinateBias(2, (7,), hidden=0), ValueError, "hidden"),
    (lambda: LogCoordinateBias(2, (2, 2))(PLACES, AT), ValueError, "k_positions"),
    (
        lambda: cls_window_index(PLACES - 1, PLACES, (2, 2)),
        ValueError,
        r"q_positions must be at least 0, or -1 on every",
    ),
    (
        lambda: cls_window_index(PLACES, PLACES - 2, (2, 2)),
        ValueError,
        r"k_positions must .* got \(-2, -2\)",
    ),
    (
        lambda: irpe_rows(PLACES - 1, PLACES),
        ValueError,
        r"q_positions must .* got \(-1, 0\)",
    ),
    (
        lambda: contextual(normal(2, 2, 4, 3), normal(2, 1, 4, 3), PLACES, PLACES),
        ValueError,
        "q and k must agree",
    ),
    (
        lambda: contextual(normal(2, 2, 4, 3), normal(1, 2, 4, 3), PLACES, PLACES),
        ValueError,
        "q and k must agree",
    ),
    (
        lambda: contextual(*[normal(2, 2, 4, 3)] * 2, PLACES[:1], PLACES),
        ValueError,
        r"q_positions .* got \(1, 2\)",
    ),
    (
        lambda: contextual(*[normal(2, 2, 4, 3)] * 2, PLACES, PLACES[:3]),
        ValueError,
        r"k_positions .* got \(3, 2\)",
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_wrong_is_named(number: int) -> None:
    call, error, message = WRONG[number]
    with pytest.raises(error, match=message):
        call()


def test_biases_read_positions_from_a_mask() -> None:
    """F1-15: the bias among real tokens of a padded row is the one of the row alone."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    at = from_mask(mask)
    for name in BIASES:
        padded, alone = bias_of(name)(at, at), bias_of(name)(arange(3), arange(3))
        assert same(padded[:1, :, 2:, 2:], alone), name


def test_grid_wrapper_of_the_examples_is_what_it_says() -> None:
    wrapped = SCHEMES["BEiT"].bias
    assert isinstance(wrapped, OnGrid)
    assert wrapped.places(arange(6)).tolist() == [
        [-1, -1],
        [0, 0],
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 0],
    ]
    assert isinstance(SCHEMES["FIRE"], PositionScheme)
