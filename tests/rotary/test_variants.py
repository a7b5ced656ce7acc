"""Variants of the rotation."""

from __future__ import annotations

import cmath
import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples import variants as group
from helpers import normal, same_but_for_rounding, seeded
from hypothesis import given
from hypothesis import strategies as st
from registry import zoo_schemes
from torch import Tensor

from posenc_lib import properties
from posenc_lib.attention import attention, attention_weights
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, from_mask
from posenc_lib.rotary.multiaxis import MixedRoPE
from posenc_lib.rotary.pairs import LAYOUTS, convert_layout
from posenc_lib.rotary.rope import RoPE
from posenc_lib.rotary.variants import (
    CayleySTRING,
    ComRoPE,
    FoPE,
    LieRE,
    PoPE,
    RePo,
    XPos,
    grape,
    rotated_values,
    tapa,
)

D, H, T = 8, 4, 5

Transform = Callable[..., tuple[Tensor, Tensor]]

Q, K = normal(2, H, T, D, seed=1), normal(2, H, T, D, seed=2)

AT = torch.tensor([0, 1, 4, 6, 9])

PAIRS = inverse_frequencies(D)

PLANE = normal(2, D, seed=3).unbind()


def scores(
    transform: Transform, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    q, k = transform(q, k, q_positions, k_positions)
    return q @ k.mT


def lie(axes: int, block: int = 4) -> LieRE:
    return LieRE(D, axes=axes, block=block, generator=seeded(7)).double()


def com(axes: int, block: int = 4, heads: int = H) -> ComRoPE:
    return ComRoPE(D, axes=axes, block=block, heads=heads, generator=seeded(7)).double()


def string() -> CayleySTRING:
    return group.started(CayleySTRING(D, RoPE(PAIRS).transform)).double()


def fope(layout: str = "interleaved", heads: int = H, length: int = 512) -> FoPE:
    return FoPE(
        D, length=length, heads=heads, layout=layout, generator=seeded(7)
    ).double()


def pope(heads: int = H) -> PoPE:
    module = PoPE(D, heads=heads).double()
    torch.nn.init.uniform_(module.phase, -6, -0.1, generator=seeded(7))
    return module


def in_plane(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor]:
    return grape(q, q_positions, *PLANE, frequency=0.3), grape(
        k, k_positions, *PLANE, frequency=0.3
    )


MAKE: dict[str, Callable[[], Any]] = {
    "xPos": lambda: XPos(PAIRS),
    "xPos, half": lambda: XPos(PAIRS, layout="half", centre=3),
    "PoPE": pope,
    "LieRE": lambda: lie(1),
    "ComRoPE": lambda: com(1),
    "STRING": string,
    "FoPE": fope,
    "FoPE, half": lambda: fope("half"),
}

TRANSFORMS: dict[str, Transform] = {
    name: make().transform for name, make in MAKE.items()
} | {"GRAPE": in_plane}

RELATIVE = {
    name: transform
    for name, transform in TRANSFORMS.items()
    if not name.startswith("FoPE")
}

ROTATIONS = {name: RELATIVE[name] for name in ("LieRE", "ComRoPE", "STRING", "GRAPE")}

# ---- what all transforms share


@torch.no_grad()
@pytest.mark.parametrize("name", RELATIVE)
def test_scores_are_relative(name: str) -> None:
    before, after = (
        scores(RELATIVE[name], Q, K, positions, positions)
        for positions in (AT, AT + 100)
    )
    assert torch.allclose(before, after, rtol=1e-10, atol=1e-10)
    # ... and do depend on the distance
    assert float((before - scores(RELATIVE[name], Q, K, AT, AT + 1)).abs().max()) > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_keep_norms_and_form_a_group(name: str) -> None:
    rotated, _ = ROTATIONS[name](Q, K, AT, AT)
    assert torch.allclose(rotated.norm(dim=-1), Q.norm(dim=-1), rtol=1e-12, atol=0)
    if name != "STRING":  # whose transform is a change of basis as well
        there, _ = ROTATIONS[name](rotated, K, -AT, AT)
        assert torch.allclose(there, Q, rtol=0, atol=1e-12)
        still, _ = ROTATIONS[name](Q, K, torch.zeros(T), AT)
        assert torch.allclose(still, Q, rtol=0, atol=1e-14)


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSFORMS)
def test_positions_of_a_batch_are_positions_of_its_rows(name: str) -> None:
    positions = from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    both = TRANSFORMS[name](Q, K, positions, positions)
    for row in range(2):
        alone = TRANSFORMS[name](
            Q[row : row + 1], K[row : row + 1], positions[row], positions[row]
        )
        for whole, one in zip(both, alone, strict=True):
            assert torch.allclose(whole[row : row + 1], one, rtol=0, atol=1e-14)


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSFORMS)
def test_nothing_is_changed_in_place_and_lengths_may_differ(name: str) -> None:
    q, k = Q.clone(), K.clone()
    whole_q, whole_k = TRANSFORMS[name](q, k, AT, AT)
    assert torch.equal(q, Q)
    assert torch.equal(k, K)
    last_q, all_k = TRANSFORMS[name](Q[:, :, -1:], K, AT[-1:], AT)
    assert torch.allclose(last_q, whole_q[:, :, -1:], rtol=0, atol=1e-14)
    assert torch.allclose(all_k, whole_k, rtol=0, atol=1e-14)


LEARNED: dict[str, Callable[[], Any]] = {
    "PoPE": pope,
    "LieRE": lambda: lie(2),
    "ComRoPE": lambda: com(2),
    "STRING": string,
    "FoPE": fope,
}


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_what_is_learned(name: str) -> None:
    module = LEARNED[name]()
    positions = (
        torch.stack((AT, AT.flip(0)), -1) if name in ("LieRE", "ComRoPE") else AT
    )
    positions = positions / 4
    named = dict(module.named_parameters())
    assert set(named) == set(module.state_dict())

    def out(q: Tensor, *values: Tensor) -> Tensor:
        given_ = dict(zip(named, values, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(module, given_):
            return scores(module.transform, q, K[:1], positions, positions)

    inputs = [Q[:1].clone(), *(value.detach() for value in named.values())]
    assert torch.autograd.gradcheck(
        out, [x.requires_grad_() for x in inputs], fast_mode=True
    )


# ---- xPos


def test_xpos_is_its_equation() -> None:
    xpos = XPos(PAIRS, gamma=0.5, scale_base=20.0)
    mine = scores(xpos.transform, Q, K, AT, AT)
    for m, n in ((0, 3), (3, 0), (4, 4), (4, 1)):
        expected = 0.0
        for i in range(D // 2):
            zeta = (2 * i / D + 0.5) / 1.5
            distance = float(AT[m] - AT[n])
            q, k = (
                complex(*x[0, 0, positions, 2 * i : 2 * i + 2].tolist())
                for x, positions in ((Q, m), (K, n))
            )
            rotated = q * k.conjugate() * cmath.exp(1j * distance * float(PAIRS[i]))
            expected += zeta ** (distance / 20) * rotated.real
        assert float(mine[0, 0, m, n]) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bug_75_xpos(layout: str) -> None:
    """Both channels of a pair fade alike, in either layout.

    The norm of a rotated unit vector is the pair's scale.
    """
    xpos = XPos(inverse_frequencies(4), layout=layout)
    positions = torch.tensor([512])
    assert torch.allclose(
        xpos.scales(positions),
        torch.tensor([[0.285714, 0.642857]]).double(),
        rtol=0,
        atol=5e-7,
    )
    units = convert_layout(
        torch.eye(4, dtype=torch.float64), source="interleaved", target=layout
    )
    for power, rotated in zip(
        (1, -1),
        xpos.transform(*(2 * [units[:, None, None]]), positions, positions),
        strict=True,
    ):
        norms = rotated[:, 0, 0].norm(
            dim=-1
        )  # of the channels pair 0, pair 0, pair 1, pair 1
        assert torch.allclose(
            norms,
            xpos.scales(positions)[0].repeat_interleave(2) ** power,
            rtol=1e-12,
            atol=0,
        )


@given(
    pairs=st.integers(1, 16),
    length=st.integers(1, 6),
    start=st.integers(0, 2000),
    rest=st.integers(0, 3),
)
def test_bug_75_the_scale_follows_the_layout(
    pairs: int, length: int, start: int, rest: int
) -> None:
    positions, width = arange(length, offset=start), 2 * pairs
    q, k = (
        normal(1, 2, length, width + rest, seed=1),
        normal(1, 2, length, width + rest, seed=2),
    )
    moved = partial(
        convert_layout, source="interleaved", target="half", rotary_dim=width
    )
    paper, half = (
        XPos(inverse_frequencies(width), layout=layout)
        for layout in ("interleaved", "half")
    )
    for a, b in zip(
        paper.transform(q, k, positions, positions),
        half.transform(moved(q), moved(k), positions, positions),
        strict=True,
    ):
        assert same_but_for_rounding(moved(a), b)


@given(centre=st.floats(-500, 500), start=st.integers(0, 1000))
def test_the_centre_of_xpos_falls_out_jointly(centre: float, start: int) -> None:
    plain, moved = XPos(PAIRS), XPos(PAIRS, centre=centre)
    positions = AT + start
    a, b = (scores(x.transform, Q, K, positions, positions) for x in (plain, moved))
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)
    q, _ = plain.transform(Q, K, positions, positions)
    _, k = moved.transform(Q, K, positions, positions)
    if abs(centre) > 10:  # one side's alone does not
        assert float((q @ k.mT - a).abs().max()) > 1e-4


def test_the_range_of_xpos_in_float32() -> None:
    """A centre keeps far positions finite, where powers counted from 0 overflow."""
    positions = AT + 60_000
    q, k = Q.float(), K.float()
    assert not bool(
        scores(XPos(PAIRS).transform, q, k, positions, positions).isfinite().all()
    )
    near = scores(XPos(PAIRS, centre=60_000).transform, q, k, positions, positions)
    assert torch.allclose(
        near.double(), scores(XPos(PAIRS).transform, Q, K, AT, AT), rtol=0, atol=2e-5
    )


# ---- RoPER


def test_roper_sees_the_distance_of_values() -> None:
    rope, v = RoPE(inverse_frequencies(6)), normal(2, H, T, D, seed=3)
    weights = normal(2, H, 3, T, seed=4).softmax(-1)
    q_positions = torch.tensor([2, 5, 9])
    out = rotated_values(weights, v, q_positions, AT, rope=rope)
    for m in range(3):
        back = rope(AT - q_positions[m], torch.float64)(v)  # R_{n−m} v_n for every n
        assert torch.allclose(
            out[:, :, m], (weights[:, :, m, :, None] * back).sum(2), rtol=0, atol=1e-13
        )
    moved = rotated_values(weights, v, q_positions + 1000, AT + 1000, rope=rope)
    assert torch.allclose(moved, out, rtol=0, atol=1e-11)
    assert torch.allclose(out[..., 6:], (weights @ v)[..., 6:], rtol=0, atol=1e-15)
    scaled = rotated_values(
        weights,
        v,
        q_positions,
        AT,
        rope=RoPE(inverse_frequencies(6), attention_factor=1.5),
    )
    assert torch.allclose(scaled, out, rtol=0, atol=1e-13)


def test_roper_in_attention() -> None:
    v = normal(2, H, T, D, seed=3)
    scheme = zoo_schemes()["RoPER"]
    out = attention(Q, K, v, q_positions=AT, k_positions=AT, scheme=scheme)
    weights = attention_weights(Q, K, q_positions=AT, k_positions=AT, scheme=scheme)
    assert torch.allclose(
        out, rotated_values(weights, v, AT, AT, rope=group.ROPE), rtol=0, atol=1e-13
    )
    assert float((out - weights @ v).abs().max()) > 0.1


# ---- PoPE


@torch.no_grad()
def test_pope_is_its_equation() -> None:
    module = pope(heads=2)
    k = K[:, :2]
    q, rotated = module.transform(Q, k, AT, AT + 1)
    assert q.shape[-1] == rotated.shape[-1] == 2 * D
    mine = q @ rotated.repeat_interleave(2, 1).mT
    for h, m, n in ((0, 1, 2), (3, 4, 0), (2, 2, 2)):
        expected = 0.0
        for c in range(D):
            sizes = [
                math.log1p(math.exp(float(x)))
                for x in (Q[1, h, m, c], k[1, h // 2, n, c])
            ]
            angle = float(AT[n] + 1 - AT[m]) * 10000 ** (-c / D) + float(
                module.phase[h // 2, c]
            )
            expected += sizes[0] * sizes[1] * math.cos(angle)
        assert float(mine[1, h, m, n]) == pytest.approx(expected, rel=1e-11)


@torch.no_grad()
def test_pope_clamps_its_phases_and_takes_odd_widths() -> None:
    module = PoPE(3, heads=1).double()
    x, positions = normal(1, 1, 2, 3), arange(2)
    assert not module.phase.any()
    torch.nn.init.constant_(module.phase, 1.0)
    assert torch.equal(*module.transform(x, x, positions, positions))
    torch.nn.init.constant_(module.phase, -7.0)
    _, low = module.transform(x, x, positions, positions)
    torch.nn.init.constant_(module.phase, -2 * math.pi)
    assert torch.equal(low, module.transform(x, x, positions, positions)[1])


# ---- learned rotations


@torch.no_grad()
def test_lie_rotation_is_the_exponential() -> None:
    module, positions = (
        lie(2, block=4),
        torch.rand(T, 2, generator=seeded(7), dtype=torch.float64) / 4,
    )
    q, k = module.transform(Q, K, positions, positions)
    for t in range(T):
        exponent = torch.zeros(D, D, dtype=torch.float64)
        for axis in range(2):
            for block in range(2):
                for i in range(4):
                    for j in range(i + 1, 4):
                        value = positions[t, axis] * module.upper[axis, block, i, j]
                        exponent[4 * block + i, 4 * block + j] += value
                        exponent[4 * block + j, 4 * block + i] -= value
        matrix, power = (
            torch.eye(D, dtype=torch.float64),
            torch.eye(D, dtype=torch.float64),
        )
        for order in range(1, 60):  # the series, term by term
            power = power @ exponent / order
            matrix = matrix + power
        assert torch.allclose(q[:, :, t], Q[:, :, t] @ matrix.T, rtol=0, atol=1e-10)
        assert torch.allclose(k[:, :, t], K[:, :, t] @ matrix.T, rtol=0, atol=1e-10)


FAR = torch.tensor([0, 17, 1_000, 100_000, 1_000_000])


@torch.no_grad()
@pytest.mark.parametrize("block", [2, 4, 8])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_angles_of_a_learned_matrix_are_float64(block: int, autocast: bool) -> None:
    """At position p the exponential is that of p times the same float32 matrix, to the
    rounding of the result.
    """
    one = LieRE(D, axes=1, block=block, generator=seeded(7))
    many = ComRoPE(D, axes=1, block=block, heads=H, generator=seeded(7))
    upper = torch.block_diag(*one.upper[0].double().triu(1))
    same = (upper - upper.T).expand(H, D, D)
    scaled = [
        many.multiplier[0].double()[:, None, None] * matrix.double()
        for matrix in many.matrix
    ]
    each = torch.stack([torch.block_diag(*(matrix - matrix.mT)) for matrix in scaled])
    q = Q.float()
    for module, skew in ((one, same), (many, each)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            rotated, _ = module.transform(q, K.float(), FAR, FAR)
        values, vectors = torch.linalg.eigh(
            1j * skew
        )  # iA is Hermitian, so exp(pA) has the phases −p·eigenvalue
        for t, p in enumerate(FAR.tolist()):
            matrix = ((vectors * (-1j * p * values).exp()[:, None]) @ vectors.mH).real
            exact = (matrix @ q[:, :, t, :, None].double())[..., 0]
            assert torch.allclose(
                rotated[:, :, t].double(), exact, rtol=1e-6, atol=1e-6
            )


@torch.no_grad()
def test_blocks_of_two_are_rope() -> None:
    module = lie(1, block=2)
    rope = RoPE(
        -module.upper[0, :, 0, 1]
    )  # U is the upper triangle, so it rotates clockwise
    for a, b in zip(
        module.transform(Q, K, AT, AT), rope.transform(Q, K, AT, AT), strict=True
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


@torch.no_grad()
def test_only_commuting_axes_are_relative() -> None:
    positions = torch.rand(T, 2, generator=seeded(7), dtype=torch.float64)
    shift = torch.tensor([0.7, -0.4], dtype=torch.float64)

    def moved(transform: Transform) -> float:
        return properties.max_error(
            scores(transform, Q, K, positions + shift, positions + shift),
            scores(transform, Q, K, positions, positions),
        )

    assert moved(com(2).transform) < 1e-12
    assert moved(lie(2, block=2).transform) < 1e-12  # two by two, all rotations commute
    assert moved(lie(2).transform) > 0.1
    one_matrix = com(2)
    assert (
        float(one_matrix.transform(Q, K, positions, positions)[0].sub(Q).abs().max())
        > 0.1
    )


@torch.no_grad()
def test_commuting_axes_are_multiples_of_one_matrix() -> None:
    module, positions = (
        com(2, block=4, heads=2),
        torch.rand(T, 2, generator=seeded(7), dtype=torch.float64),
    )
    q, k = module.transform(Q, K[:, :2], positions, positions)
    for h, t in ((0, 1), (1, 2), (3, 4)):
        for block in range(2):
            one = module.matrix[h // 2, block]
            matrix = torch.matrix_exp(
                (positions[t] @ module.multiplier[:, block]) * (one - one.T)
            )
            part = slice(4 * block, 4 * block + 4)
            assert torch.allclose(
                q[:, h, t, part], Q[:, h, t, part] @ matrix.T, rtol=0, atol=1e-12
            )
            assert torch.allclose(
                k[:, h // 2, t, part],
                K[:, h // 2, t, part] @ matrix.T,
                rtol=0,
                atol=1e-12,
            )


def test_string_learns_what_its_rotation_learns() -> None:
    """A method of a module brings the module along.

    Its parameters are trained, saved, cast and copied.
    """
    module = group.started(
        CayleySTRING(D, MixedRoPE(H, D, generator=seeded(7)).transform)
    )
    positions = torch.rand(T, 2, generator=seeded(7), dtype=torch.float64)
    assert set(module.state_dict()) == {"upper", "learned.frequencies"}
    before = module.transform(Q.float(), K.float(), positions, positions)[0]
    before.square()[..., ::2].sum().backward()
    before = before.detach()
    assert all(
        bool(parameter.grad.abs().sum() > 0) for parameter in module.parameters()
    )
    other = copy.deepcopy(module)
    torch.nn.init.zeros_(other.learned.frequencies)
    assert (
        properties.max_error(
            other.transform(Q.float(), K.float(), positions, positions)[0], before
        )
        > 0.1
    )
    assert torch.equal(
        module.transform(Q.float(), K.float(), positions, positions)[0], before
    )
    assert set(CayleySTRING(D, RoPE(PAIRS).transform).state_dict()) == {"upper"}


@torch.no_grad()
def test_string_keeps_the_wider_of_two_dtypes() -> None:
    module, wide = string().float(), string().float().double()
    _, k = module.transform(Q.float(), K, AT, AT)
    assert torch.allclose(k, wide.transform(Q, K, AT, AT)[1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_string_is_rope_in_another_basis() -> None:
    module = string()
    skew = module.upper.triu(1) - module.upper.triu(1).T
    identity = torch.eye(D, dtype=torch.float64)
    basis = (identity - skew) @ torch.linalg.inv(identity + skew)
    assert torch.allclose(basis @ basis.T, identity, rtol=0, atol=1e-12)
    rope = RoPE(PAIRS)
    for a, b in zip(
        module.transform(Q, K, AT, AT),
        rope.transform(Q @ basis.T, K @ basis.T, AT, AT),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    start = CayleySTRING(D, rope.transform).double()
    for a, b in zip(
        start.transform(Q, K, AT, AT), rope.transform(Q, K, AT, AT), strict=True
    ):
        assert torch.equal(a, b)


def test_draws_are_the_papers() -> None:
    values = LieRE(64, axes=2, generator=seeded(7)).upper.detach()
    assert float(values.min()) >= 0
    assert 6.2 < float(values.max()) <= 2 * math.pi
    matrix = ComRoPE(64, axes=2, block=64, heads=2, generator=seeded(7)).matrix.detach()
    assert float(matrix.std()) == pytest.approx(1, abs=0.05)
    mixture = FoPE(256, length=10**9, heads=2, generator=seeded(7)).cos_mixture.detach()
    noise = mixture - torch.eye(mixture.shape[-1])
    assert float(noise.std()) == pytest.approx(
        0.3 * mixture.shape[-1] ** -0.5, rel=0.03
    )


# ---- FoPE


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fope_is_its_equation(layout: str) -> None:
    module = fope(layout, heads=2)
    kept = module.frequencies.shape[0]
    assert kept == 2  # ω = 1, 0.1 turn within 512; 0.01 and 0.001 don't
    q, k = module.transform(Q, K[:, :2], AT, AT)
    for x, rotated, shared in ((Q, q, 2), (K[:, :2], k, 1)):
        x, rotated = (
            convert_layout(y, source=layout, target="interleaved") for y in (x, rotated)
        )
        for h, t in ((0, 2), (1, 4), (x.shape[1] - 1, 3)):
            for i in range(D // 2):
                c, s = (
                    1.0,
                    0.0,
                )  # not 1 and 1: padding the sine with ones mixes channels
                if i < kept:
                    angles = (AT[t] * module.frequencies).tolist()
                    head = h // shared
                    c = sum(
                        float(module.cos_mixture[head, j, i]) * math.cos(a)
                        for j, a in enumerate(angles)
                    )
                    s = sum(
                        float(module.sin_mixture[head, j, i]) * math.sin(a)
                        for j, a in enumerate(angles)
                    )
                a, b = x[0, h, t, 2 * i : 2 * i + 2].tolist()
                expected = torch.tensor(
                    [a * c - b * s, a * s + b * c], dtype=torch.float64
                )
                assert torch.allclose(
                    rotated[0, h, t, 2 * i : 2 * i + 2], expected, rtol=0, atol=1e-12
                )


@torch.no_grad()
def test_fope_with_identity_mixtures_is_rope() -> None:
    module = fope()
    for mixture in (module.cos_mixture, module.sin_mixture):
        mixture.copy_(torch.eye(2).expand(H, 2, 2))
    rope = RoPE(torch.where(torch.arange(4) < 2, PAIRS, 0.0))
    for a, b in zip(
        module.transform(Q, K, AT, AT), rope.transform(Q, K, AT, AT), strict=True
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-14)


@torch.no_grad()
def test_the_tables_of_fope_are_rounded_once() -> None:
    """They are tables, not products of content.

    Autocast must leave them, and float32 must not sum them.
    """
    module, positions = fope().float(), AT + 1_000_000
    exact, _ = (
        fope().float().double().transform(Q.float().double(), K, positions, positions)
    )
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            q, _ = module.transform(Q.float(), K.float(), positions, positions)
        assert torch.allclose(q.double(), exact, rtol=0, atol=1e-6)


@torch.no_grad()
def test_fope_is_not_relative() -> None:
    transform = fope().transform
    error = properties.max_error(
        scores(transform, Q, K, AT + 50, AT + 50), scores(transform, Q, K, AT, AT)
    )
    assert error > 0.01


# ---- GRAPE


def test_grape_is_the_exponential() -> None:
    a, b = normal(2, D, seed=3)
    generator = a[:, None] * b - b[:, None] * a
    mine = grape(Q, AT, a, b, frequency=0.3)
    for t in range(T):
        matrix = torch.matrix_exp(float(AT[t]) * 0.3 * generator)
        assert torch.allclose(mine[:, :, t], Q[:, :, t] @ matrix.T, rtol=0, atol=1e-11)


@pytest.mark.parametrize("apart", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_angle_of_grape_is_float64(apart: float, dtype: torch.dtype) -> None:
    """At position 1,000,000, also where a and b are nearly parallel and |a|²|b|² −
    (aᵀb)² would cancel.
    """
    a = normal(D, seed=3)
    b = a + apart * normal(D, seed=4)
    a, b, x, positions = (
        a.float(),
        b.float(),
        normal(1, 2, 3, D, seed=5).to(dtype),
        torch.tensor([1, 1_000, 1_000_000]),
    )
    generator = a.double()[:, None] * b.double() - b.double()[:, None] * a.double()
    values, vectors = torch.linalg.eigh(1j * generator)
    for t, p in enumerate(positions.tolist()):
        matrix = ((vectors * (-1j * p * values).exp()) @ vectors.mH).real
        exact = x[:, :, t].double() @ matrix.T
        rounding = torch.finfo(dtype).eps
        assert torch.allclose(
            grape(x, positions, a, b)[:, :, t].double(), exact, rtol=rounding, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 8, 64])
def test_multiples_span_no_plane(dtype: torch.dtype, width: int) -> None:
    x, positions = torch.zeros(1, 1, 1, width, dtype=dtype), torch.tensor([3])
    for seed, times in ((0, 3.0), (1, 0.1), (2, -7.0), (3, 1e-3)):
        a = normal(width, seed=seed, dtype=dtype)
        with pytest.raises(ValueError, match="must span a plane"):
            grape(x, positions, a, times * a)
    for one, other in ((0 * a, a), (a, 0 * a)):
        with pytest.raises(ValueError, match="must span a plane"):
            grape(x, positions, one, other)


def test_grape_in_coordinate_planes_is_rope() -> None:
    rotated, axes = Q, torch.eye(D, dtype=torch.float64)
    for i in range(D // 2):
        rotated = grape(
            rotated, AT, axes[2 * i + 1], axes[2 * i], frequency=float(PAIRS[i])
        )
    assert torch.allclose(
        rotated, RoPE(PAIRS)(AT, torch.float64)(Q), rtol=0, atol=1e-12
    )


def test_gradients_of_a_grape_plane_and_of_learned_frequencies() -> None:
    a, b = (x.requires_grad_() for x in normal(2, D, seed=3).unbind())
    assert torch.autograd.gradcheck(
        lambda a, b: grape(Q[:1, :1], AT, a, b, frequency=0.1), (a, b), fast_mode=True
    )
    logs = PAIRS.log().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logs: RoPE(logs.exp())(AT, torch.float64)(Q[:1, :1]),
        logs,
        fast_mode=True,
    )


# ---- RePo and TAPA


@torch.no_grad()
def test_repo_turns_by_positions_it_reads() -> None:
    module = RePo(
        6, H, RoPE(PAIRS, layout="half"), latent=3, generator=seeded(7)
    ).double()
    x = normal(2, T, 6, seed=5)
    q, k = module.transform(Q, K, AT, AT, q_x=x, k_x=x)
    for b, h in ((0, 0), (1, 3)):
        for t in range(T):
            gate, content = (
                layer.weight @ x[b, t] for layer in (module.gate, module.content)
            )
            z = module.heads.weight[h] @ (gate / (1 + (-gate).exp()) * content)
            rotation = RoPE(PAIRS, layout="half")(z[None], torch.float64)
            assert torch.allclose(
                q[b, h, t], rotation(Q[b, h, t][None])[0], rtol=0, atol=1e-12
            )
            assert torch.allclose(
                k[b, h, t], rotation(K[b, h, t][None])[0], rtol=0, atol=1e-12
            )
    module.rope = RoPE(PAIRS, layout="half", attention_factor=1.5)
    louder, _ = module.transform(Q, K, AT, AT, q_x=x, k_x=x)
    assert torch.allclose(louder, 1.5 * q, rtol=1e-12, atol=0)
    module.rope = RoPE(PAIRS, layout="half")
    elsewhere, _ = module.transform(Q, K, AT + 7, AT, q_x=x, k_x=x)
    assert torch.equal(elsewhere, q)
    part, _ = module.transform(Q[:, :, 2:3], K, AT[2:3], AT, q_x=x[:, 2:3], k_x=x)
    assert torch.allclose(part, q[:, :, 2:3], rtol=0, atol=1e-14)


@torch.no_grad()
def test_the_positions_of_repo_are_float32_under_autocast() -> None:
    """16 bits round positions in the thousands by more than a turn of a fast pair."""
    module, x = (
        RePo(64, H, RoPE(PAIRS), latent=8, generator=seeded(7)),
        normal(1, T, 64, seed=5).float(),
    )
    module.heads.weight *= 30_000
    exact = copy.deepcopy(module).double().positions(x.double())
    assert 1_000 < float(exact.abs().max()) < 100_000
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            assert torch.allclose(
                module.positions(x).double(), exact, rtol=1e-5, atol=0.02
            )


def test_repo_compiles_and_has_gradients() -> None:
    module = RePo(6, H, RoPE(PAIRS), latent=3, generator=seeded(7)).double()
    x = normal(2, T, 6, seed=5).requires_grad_()

    def out(x: Tensor) -> Tensor:
        q, k = module.transform(Q, K, AT, AT, q_x=x, k_x=x)
        return q @ k.mT

    assert torch.autograd.gradcheck(out, x, fast_mode=True)
    assert torch.allclose(
        torch.compile(out, backend="aot_eager", fullgraph=True)(x),
        out(x),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("fraction", [0.5, 0.25])
def test_tapa_is_its_equation(fraction: float) -> None:
    cut = int(fraction * D)
    mine = tapa(Q, K, AT, AT, fraction=fraction, power=0.3)
    for b, h, m, n in ((0, 0, 1, 3), (1, 2, 4, 0), (1, 3, 2, 2)):
        q, k = Q[b, h, m], K[b, h, n]
        phase = float(q[cut:] @ k[cut:]) / math.sqrt(D - cut)
        distance = abs(int(AT[m] - AT[n])) ** 0.3
        expected = (
            float(q[:cut] @ k[:cut])
            / math.sqrt(cut)
            * math.cos(2 * math.pi * distance * phase)
        )
        assert float(mine[b, h, m, n]) == pytest.approx(expected, rel=1e-11)
    moved = tapa(Q, K, AT + 100, AT + 100, fraction=fraction, power=0.3)
    assert torch.equal(moved, mine)
    assert float((tapa(Q, K, AT, AT + 1) - tapa(Q, K, AT, AT)).abs().max()) > 0.1


def test_tapa_in_attention_has_the_scale_of_the_equation() -> None:
    weights = attention_weights(
        Q, K, q_positions=AT, k_positions=AT, scheme=zoo_schemes()["TAPA"]
    )
    assert torch.allclose(weights, tapa(Q, K, AT, AT).softmax(-1), rtol=0, atol=1e-15)
    batched = tapa(Q, K, AT.expand(2, -1), AT.expand(2, -1))
    assert torch.equal(batched, tapa(Q, K, AT, AT))


X = torch.zeros(2, 4, 5, 8)

A5 = torch.arange(5)

REPO = RePo(6, 4, RoPE(PAIRS), latent=3)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "XPos: layout": (
        lambda: XPos(PAIRS, layout="pairs"),
        ValueError,
        "layout must be one of",
    ),
    "XPos: gamma": (
        lambda: XPos(PAIRS, gamma=0),
        ValueError,
        "gamma must be",
    ),
    "XPos: scale_base": (
        lambda: XPos(PAIRS, scale_base=-1),
        ValueError,
        "scale_base must be",
    ),
    "XPos(PAIRS, centre='0')": (
        lambda: XPos(PAIRS, centre="0"),
        TypeError,
        "centre must be a number",
    ),
    "XPos: frequencies": (
        lambda: XPos(PAIRS[None]),
        ValueError,
        "frequencies must have shape",
    ),
    "XPos(PAIRS).transform(X[..., :6], X, A5, A5)": (
        lambda: XPos(PAIRS).transform(X[..., :6], X, A5, A5),
        ValueError,
        "q must have at least 8 channels",
    ),
    "XPos(PAIRS).transform(X, X, A5[:4], A5)": (
        lambda: XPos(PAIRS).transform(X, X, A5[:4], A5),
        ValueError,
        "q must have one token for each of the 4 q_positions",
    ),
    "XPos: positions": (
        lambda: XPos(PAIRS).scales(A5.to(torch.bfloat16)),
        TypeError,
        "positions must be",
    ),
    "rotated_values: k_positions": (
        lambda: rotated_values(X @ X.mT, X, A5, A5[:4], rope=RoPE(PAIRS)),
        ValueError,
        "k_positions must have shape",
    ),
    "rotated_values: q_positions": (
        lambda: rotated_values(X @ X.mT, X, A5[:4], A5, rope=RoPE(PAIRS)),
        ValueError,
        "q_positions must have shape",
    ),
    "rotated_values: v": (
        lambda: rotated_values(X @ X.mT, X[..., :6], A5, A5, rope=RoPE(PAIRS)),
        ValueError,
        "v must have at least 8",
    ),
    "rotated_values: heads of v": (
        lambda: rotated_values(X @ X.mT, X[:, :1], A5, A5, rope=RoPE(PAIRS)),
        ValueError,
        "weights and v must agree",
    ),
    "rotated_values: batch of v": (
        lambda: rotated_values(X @ X.mT, X[:1], A5, A5, rope=RoPE(PAIRS)),
        ValueError,
        "weights and v must agree",
    ),
    "rotated_values: v too short": (
        lambda: rotated_values(X @ X.mT, X[:, :, :4], A5, A5, rope=RoPE(PAIRS)),
        ValueError,
        "weights and v must agree",
    ),
    "PoPE: head_dim": (
        lambda: PoPE(0, heads=1),
        ValueError,
        "head_dim must be",
    ),
    "PoPE: heads": (
        lambda: PoPE(8, heads=0),
        ValueError,
        "heads must be",
    ),
    "PoPE: base": (
        lambda: PoPE(8, -1.0, heads=1),
        ValueError,
        "base must be",
    ),
    "PoPE(8, heads=4).transform(X, X[:, :2], A5, A5)": (
        lambda: PoPE(8, heads=4).transform(X, X[:, :2], A5, A5),
        ValueError,
        "k must have 4 heads",
    ),
    "PoPE: q": (
        lambda: PoPE(6, heads=4).transform(X, X, A5, A5),
        ValueError,
        r"q must have shape \(B, H, T, 6\)",
    ),
    "PoPE(8, heads=4).transform(X, X, A5, A5[:3])": (
        lambda: PoPE(8, heads=4).transform(X, X, A5, A5[:3]),
        ValueError,
        "k has shape .* so its positions must be",
    ),
    "LieRE: axes": (
        lambda: LieRE(8, axes=0),
        ValueError,
        "axes must be",
    ),
    "LieRE: block": (
        lambda: LieRE(8, axes=1, block=3),
        ValueError,
        "block must divide head_dim = 8, got 3",
    ),
    "LieRE(8, axes=2).transform(X, X, A5, A5)": (
        lambda: LieRE(8, axes=2).transform(X, X, A5, A5),
        ValueError,
        r"q_positions must have shape \(T, 2\)",
    ),
    "LieRE(8, axes=1).transform(X, X, A5[:, None, None], A5)": (
        lambda: LieRE(8, axes=1).transform(X, X, A5[:, None, None], A5),
        ValueError,
        "q_positions must have shape",
    ),
    "LieRE: k_positions": (
        lambda: LieRE(8, axes=1).transform(X, X, A5, A5[:2]),
        ValueError,
        "k_positions must name 5 tokens, got 2",
    ),
    "LieRE: q": (
        lambda: LieRE(6, axes=1).transform(X, X, A5, A5),
        ValueError,
        r"q must have shape \(B, H, T, 6\)",
    ),
    "ComRoPE: q": (
        lambda: ComRoPE(8, axes=1, block=4, heads=3).transform(X, X, A5, A5),
        ValueError,
        "q must have a multiple of 3",
    ),
    "ComRoPE: block": (
        lambda: ComRoPE(8, axes=1, block=5, heads=1),
        ValueError,
        "block must divide",
    ),
    "CayleySTRING: transform": (
        lambda: CayleySTRING(8, "rope"),
        TypeError,
        "transform must be a callable",
    ),
    "CayleySTRING: head_dim": (
        lambda: CayleySTRING(0, RoPE(PAIRS).transform),
        ValueError,
        "head_dim must be",
    ),
    "CayleySTRING: q": (
        lambda: CayleySTRING(6, RoPE(PAIRS).transform).transform(X, X, A5, A5),
        ValueError,
        "q must have 6 channels",
    ),
    "FoPE: length": (
        lambda: FoPE(8, length=6, heads=1),
        ValueError,
        "length must let at least one pair",
    ),
    "FoPE: dim": (
        lambda: FoPE(7, length=64, heads=1),
        ValueError,
        "dim must be even",
    ),
    "FoPE: layout": (
        lambda: FoPE(8, length=64, heads=1, layout="pairs"),
        ValueError,
        "layout must be one of",
    ),
    "FoPE: gain": (
        lambda: FoPE(8, length=64, heads=1, gain=0),
        ValueError,
        "gain must be",
    ),
    "FoPE(8, length=64, heads=3).transform(X, X, A5, A5)": (
        lambda: FoPE(8, length=64, heads=3).transform(X, X, A5, A5),
        ValueError,
        "q must have a multiple of 3 heads",
    ),
    "FoPE(10, length=64, heads=1).transform(X, X, A5, A5)": (
        lambda: FoPE(10, length=64, heads=1).transform(X, X, A5, A5),
        ValueError,
        "q must have at least 10 channels",
    ),
    "FoPE(8, length=64, heads=1).transform(X[0], X, A5, A5)": (
        lambda: FoPE(8, length=64, heads=1).transform(X[0], X, A5, A5),
        ValueError,
        "q must have at least 4 dim",
    ),
    "RePo: width": (
        lambda: RePo(0, 1, RoPE(PAIRS), latent=1),
        ValueError,
        "width must be",
    ),
    "RePo: latent": (
        lambda: RePo(1, 1, RoPE(PAIRS), latent=0),
        ValueError,
        "latent must be",
    ),
    "RePo: heads": (
        lambda: RePo(1, 0, RoPE(PAIRS), latent=1),
        ValueError,
        "heads must be",
    ),
    "REPO.transform(X, X, A5, A5)": (
        lambda: REPO.transform(X, X, A5, A5),
        TypeError,
        "q_x",
    ),
    "REPO.transform(X, X, A5, A5, q_x=X[:, 0], k_x=X[:, 0])": (
        lambda: REPO.transform(X, X, A5, A5, q_x=X[:, 0], k_x=X[:, 0]),
        ValueError,
        r"q_x must have shape \(B, T, D\)",
    ),
    "REPO: q": (
        lambda: REPO.transform(
            X[:, :2], X, A5, A5, q_x=torch.zeros(2, 5, 6), k_x=torch.zeros(2, 5, 6)
        ),
        ValueError,
        "q must have 4 heads",
    ),
    "grape: a and b": (
        lambda: grape(X, A5, torch.ones(8), torch.ones(8)),
        ValueError,
        "a and b must span a plane",
    ),
    "grape: a": (
        lambda: grape(X, A5, torch.ones(7), torch.ones(8)),
        ValueError,
        r"a must have shape \(8,\)",
    ),
    "grape: x": (
        lambda: grape(X, A5[:2], *torch.eye(8)[:2]),
        ValueError,
        "x has shape",
    ),
    "tapa(X, X, A5, A5, fraction=0.3)": (
        lambda: tapa(X, X, A5, A5, fraction=0.3),
        ValueError,
        "fraction must split the 8 channels",
    ),
    "tapa(X, X, A5, A5, fraction=1.0)": (
        lambda: tapa(X, X, A5, A5, fraction=1.0),
        ValueError,
        "fraction must split",
    ),
    "tapa: power": (
        lambda: tapa(X, X, A5, A5, power=0),
        ValueError,
        "power must be",
    ),
    "tapa: k": (
        lambda: tapa(X, X[..., :4], A5, A5),
        ValueError,
        "k must have shape",
    ),
    "tapa(X, X[:, :1], A5, A5)": (
        lambda: tapa(X, X[:, :1], A5, A5),
        ValueError,
        "q and k must agree in batch, heads",
    ),
    "tapa(X, X[:1], A5, A5)": (
        lambda: tapa(X, X[:1], A5, A5),
        ValueError,
        "q and k must agree in batch, heads",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
