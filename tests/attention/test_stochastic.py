"""Stochastic positional encoding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import HEADS, WIDTH, qkv
from helpers import normal, rounding, seeded
from torch import Tensor, nn

from posenc_lib.attention.stochastic import ConvSPE, SineSPE, _sines
from posenc_lib.positions import arange
from posenc_lib.properties import (
    max_error,
)

sine = SineSPE(HEADS, WIDTH, sines=2, generator=seeded(1)).double()
conv = ConvSPE(HEADS, WIDTH, kernel_size=4, generator=seeded(2)).double()
SPES: dict[str, tuple[Any, Callable[[int], Tensor]]] = {
    "sineSPE": (sine, lambda s: sine.draw(16, generator=seeded(s))),
    "convSPE": (conv, lambda s: conv.draw(24, 16, generator=seeded(s))),
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
    spe = SineSPE(2, 3, sines=4, generator=seeded(0))
    f, theta, power = (x.double() for x in _sines(spe))
    for r in (1000, 10**6, 10**8):
        want = (power * torch.cos(2 * math.pi * f * r + theta)).sum(-1)
        assert max_error(spe.kernel(torch.tensor([-r]))[..., 0], want) < 1e-6


def test_stochastic_initialisation_follows_the_released_code() -> None:
    spe = SineSPE(64, 64, sines=3, generator=seeded(1)).requires_grad_(False)
    assert float(spe.frequencies.mean()) == pytest.approx(-4, abs=0.05)
    assert float(spe.offsets.std()) == pytest.approx(1, abs=0.05)
    norms = spe.gains.norm(dim=-1)  # 2 ‖g‖^(1/2) for g ~ N(0, 1)³
    assert float(norms.square().mean()) == pytest.approx(
        4 * math.sqrt(8 / math.pi), rel=0.02
    )
    filters = ConvSPE(64, 64, kernel_size=8, generator=seeded(1)).q_filter.detach()
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
    "kind", [partial(SineSPE, sines=2), partial(ConvSPE, kernel_size=3)]
)
def test_stochastic_gradients(kind: Callable[..., Any]) -> None:
    spe = kind(2, 3, generator=seeded(1)).double()
    noise = (
        spe.draw(4, generator=seeded(2))
        if isinstance(spe, SineSPE)
        else spe.draw(5, 4, generator=seeded(2))
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


# ---- dtypes, meta tensors, compilation


Q, K, V = qkv(4)

M = arange(4)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "SineSPE: sines": (
        lambda: SineSPE(2, 4, sines=0),
        ValueError,
        "sines must be an integer ≥ 1",
    ),
    "ConvSPE: kernel_size": (
        lambda: ConvSPE(2, 4, kernel_size="3"),  # type: ignore[arg-type]
        TypeError,
        "kernel_size must be an integer",
    ),
    "sine: realizations": (
        lambda: sine.draw(0),
        ValueError,
        "realizations must be an integer ≥ 1",
    ),
    "conv: length": (
        lambda: conv.draw(0, 4),
        ValueError,
        "length must be an integer ≥ 1",
    ),
    "sine: noise": (
        lambda: sine.transform(Q, K, M, M, noise=conv.draw(8, 2)),
        ValueError,
        "noise must be what draw",
    ),
    "sine: q": (
        lambda: sine.transform(Q[:, :2], K, M, M, noise=sine.draw(2)),
        ValueError,
        r"q must have shape \(B, 4, T, 8\)",
    ),
    "conv: k_positions": (
        lambda: conv.transform(Q, K, M % 2, M, noise=conv.draw(2, 2)),
        ValueError,
        "k_positions must lie in 0 … 1",
    ),
    "conv: q_positions": (
        lambda: conv.transform(Q, K, M / 2, M, noise=conv.draw(8, 2)),
        TypeError,
        "q_positions must be integers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
