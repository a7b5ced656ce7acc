"""Latent attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import same_but_for_rounding, seeded
from torch import Tensor

from posenc_lib.attention import attention, causal
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, from_mask
from posenc_lib.rotary.latent import LatentKeys, LatentQueries
from posenc_lib.rotary.rope import RoPE
from posenc_lib.scheme import NOPE

WIDTH, HEADS, CONTENT, VALUE, LATENT = 12, 3, 6, 5, 7

ROPE = RoPE(inverse_frequencies(4))


def projections(
    rope: RoPE = ROPE, dtype: torch.dtype = torch.float64
) -> tuple[LatentQueries, LatentKeys]:
    draw = seeded(3)
    sizes = dict(latent=LATENT, content_dim=CONTENT, rope=rope, std=0.5, generator=draw)
    return (
        LatentQueries(WIDTH, HEADS, **sizes).to(dtype),
        LatentKeys(WIDTH, HEADS, value_dim=VALUE, **sizes).to(dtype),
    )


def tokens(length: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        2,
        length,
        WIDTH,
        generator=seeded(4),
        dtype=torch.float64,
    ).to(dtype)


def latent_qkv(
    x: Tensor, positions: Tensor, rope: RoPE = ROPE
) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = projections(rope)
    return queries(x, positions), *keys.expand(*keys(x, positions))


@torch.no_grad()
def test_latent_attention_is_its_equation() -> None:
    queries, keys = projections()
    x, positions = tokens(), torch.tensor([0, 1, 5, 6, 9])
    q, k, v = queries(x, positions), *keys.expand(*keys(x, positions))
    assert q.shape == k.shape == (2, HEADS, 5, CONTENT + 4)
    assert v.shape == (2, HEADS, 5, VALUE)
    for b in range(2):
        for t, position in enumerate(positions.tolist()):

            def rotated(vector: Tensor, position: int = position) -> Tensor:
                c, s = (f(position * ROPE.frequencies) for f in (torch.cos, torch.sin))
                first, second = vector[::2], vector[1::2]
                return torch.stack(
                    (first * c - second * s, first * s + second * c), -1
                ).flatten()

            down = queries.down.weight @ x[b, t]
            latent, shared = (
                keys.down.weight @ x[b, t],
                rotated(keys.rotary.weight @ x[b, t]),
            )
            for h in range(HEADS):
                content, rotary = (
                    slice(h * CONTENT, (h + 1) * CONTENT),
                    slice(h * 4, (h + 1) * 4),
                )
                q_h = torch.cat(
                    (
                        queries.up.weight[content] @ down,
                        rotated(queries.rotary.weight[rotary] @ down),
                    )
                )
                k_h = torch.cat((keys.key_up.weight[content] @ latent, shared))
                v_h = keys.value_up.weight[h * VALUE : (h + 1) * VALUE] @ latent
                for mine, loop in ((q, q_h), (k, k_h), (v, v_h)):
                    assert torch.allclose(mine[b, h, t], loop, rtol=1e-12, atol=1e-13)


@torch.no_grad()
def test_content_needs_no_keys_but_the_latent() -> None:
    """W^UK can be multiplied into W^UQ, since nothing rotates between them.

    Scores come from the cache as it is.
    """
    queries, keys = projections()
    x, positions = tokens(), arange(5)
    q, (latent, shared) = queries(x, positions), keys(x, positions)
    up = keys.key_up.weight.reshape(HEADS, CONTENT, LATENT)
    absorbed = torch.einsum("bhtc,hcl->bhtl", q[..., :CONTENT], up) @ latent[:, None].mT
    scores = absorbed + q[..., CONTENT:] @ shared.mT
    k, _ = keys.expand(latent, shared)
    assert torch.allclose(scores, q @ k.mT, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_latent_scores_are_relative_and_decode_step_by_step() -> None:
    x, positions = tokens(), arange(5)
    q, k, v = latent_qkv(x, positions)
    moved_q, moved_k, _ = latent_qkv(x, positions + 1000)
    assert torch.allclose(q @ k.mT, moved_q @ moved_k.mT, rtol=0, atol=1e-10)
    assert float((q - moved_q).abs().max()) > 0.1
    whole = attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=positions,
        mask=causal(positions, positions),
        scheme=NOPE,
    )
    queries, keys = projections()
    cache: list[tuple[Tensor, Tensor]] = []
    for t in range(5):
        one = x[:, t : t + 1]
        cache.append(keys(one, positions[t : t + 1]))
        k, v = keys.expand(
            torch.cat([c[0] for c in cache], 1), torch.cat([c[1] for c in cache], 2)
        )
        step = attention(
            queries(one, positions[t : t + 1]),
            k,
            v,
            q_positions=positions[t : t + 1],
            k_positions=positions[: t + 1],
            scheme=NOPE,
        )
        assert torch.allclose(step, whole[:, :, t : t + 1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_latent_positions_of_a_padded_batch() -> None:
    positions = from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    q, k, _ = latent_qkv(tokens(), positions)
    for row in range(2):
        one_q, one_k, _ = latent_qkv(tokens(), positions[row])
        assert same_but_for_rounding(q[row], one_q[row])
        assert same_but_for_rounding(k[row], one_k[row])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_latent_dtypes_and_devices(dtype: torch.dtype) -> None:
    queries, keys = projections(dtype=dtype)
    x, positions = tokens(dtype=dtype), arange(5)
    reference = latent_qkv(tokens(), positions)
    for mine, exact in zip(
        (queries(x, positions), *keys.expand(*keys(x, positions))),
        reference,
        strict=True,
    ):
        assert mine.dtype == dtype
        size = float(exact.abs().max())
        assert (
            float((mine.double() - exact).abs().max())
            < 100 * torch.finfo(dtype).eps * size
        )
    meta_q, meta_k = (module.to("meta") for module in (queries, keys))
    assert meta_q(x.to("meta"), positions.to("meta")).shape == reference[0].shape
    assert [
        y.shape for y in meta_k.expand(*meta_k(x.to("meta"), positions.to("meta")))
    ] == [y.shape for y in reference[1:]]


def test_latent_compiles_and_has_gradients() -> None:
    queries, keys = projections()
    x, positions = tokens(3)[:1].requires_grad_(), arange(3)

    def both(x: Tensor) -> tuple[Tensor, ...]:
        return queries(x, positions), *keys.expand(*keys(x, positions))

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    assert all(torch.allclose(a, b) for a, b in zip(compiled(x), both(x), strict=True))
    assert torch.autograd.gradcheck(both, x, fast_mode=True)


def test_latent_weights_are_drawn_from_the_papers_normal() -> None:
    sizes = {"latent": 32, "content_dim": 16, "value_dim": 16}
    keys = LatentKeys(64, 4, **sizes, rope=ROPE, generator=seeded())
    assert float(keys.key_up.weight.detach().std()) == pytest.approx(0.006, rel=0.1)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "LatentQueries: width": (
        lambda: LatentQueries(0, 1, latent=1, content_dim=1, rope=ROPE),
        ValueError,
        "width must be",
    ),
    "LatentQueries: heads": (
        lambda: LatentQueries(4, 1.5, latent=1, content_dim=1, rope=ROPE),
        TypeError,
        "heads must be",
    ),
    "LatentQueries: std": (
        lambda: LatentQueries(4, 1, latent=1, content_dim=1, rope=ROPE, std=0),
        ValueError,
        "std must be",
    ),
    "LatentKeys: latent": (
        lambda: LatentKeys(4, 1, latent=0, content_dim=1, value_dim=1, rope=ROPE),
        ValueError,
        "latent must be",
    ),
    "LatentKeys: value_dim": (
        lambda: LatentKeys(4, 1, latent=1, content_dim=1, value_dim=0, rope=ROPE),
        ValueError,
        "value_dim must be",
    ),
    "LatentQueries: width of x": (
        lambda: projections()[0](torch.zeros(2, 5, 3, dtype=torch.float64), arange(5)),
        ValueError,
        "x must have shape",
    ),
    "LatentKeys: axes of x": (
        lambda: projections()[1](torch.zeros(5, WIDTH, dtype=torch.float64), arange(5)),
        ValueError,
        "x must have at least 3",
    ),
    "LatentKeys: dtype of x": (
        lambda: projections()[1](
            torch.zeros(2, 5, WIDTH, dtype=torch.int64), arange(5)
        ),
        TypeError,
        "x must be",
    ),
    "LatentKeys: positions": (
        lambda: projections()[0](tokens(), arange(4)),
        ValueError,
        "positions",
    ),
    "LatentKeys: rotary": (
        lambda: projections()[1].expand(
            torch.zeros(2, 5, LATENT).double(), torch.zeros(2, 5, 4, 1).double()
        ),
        ValueError,
        "rotary must have shape",
    ),
    "LatentKeys: axes of latent": (
        lambda: projections()[1].expand(
            torch.zeros(2, 5, 1).double(), torch.zeros(2, 1, 5, 4).double()
        ),
        ValueError,
        "latent must have shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
