"""The small model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from examples.lab import model, trainable
from helpers import seeded
from torch import Tensor, nn

from posenc_lib import scheme
from posenc_lib.attention import prepare, sliding_window
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.positions import arange
from posenc_lib.scheme import NOPE, PositionScheme


def test_without_positions_the_model_is_equivariant() -> None:
    tokens, order = (
        torch.randint(16, (3, 9), generator=seeded()),
        torch.randperm(9, generator=seeded(1)),
    )
    for position_scheme, equal in ((NOPE, True), (scheme.sinusoidal(8), False)):
        net = model(position_scheme, layers=2).double()
        moved, still = (net(t, arange(9)) for t in (tokens[:, order], tokens))
        assert torch.allclose(moved, still[:, order], atol=1e-10) is equal


def test_weights_are_drawn_in_float64_and_cast() -> None:
    wide, narrow = (
        model(trainable()["a bias"], dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert {p.dtype for p in narrow.parameters()} == {torch.float32}
    assert torch.equal(wide.tokens.float(), narrow.tokens)
    assert not torch.equal(wide.tokens.float().double(), wide.tokens)


def test_masked_means_that_the_future_is_not_seen() -> None:
    tokens = torch.randint(16, (2, 9), generator=seeded())
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 16
    for masked in (True, False):
        net = model(scheme.rope(4), masked=masked, layers=2)
        first, second = net(tokens, arange(9)), net(other, arange(9))
        assert torch.equal(first[:, :5], second[:, :5]) is masked


def test_a_block_is_its_equation() -> None:
    net = model(scheme.rope(4))
    block, x = net.blocks[0], torch.randn(2, 5, 8, generator=seeded())
    x, at = prepare(x, NOPE, q_positions=arange(5), causal=False)
    out = block(x, at)
    y = nn.functional.layer_norm(x, (8,))
    q, k, v = (y @ block.qkv.weight.T).split(8, -1)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        weights = (q[..., h] @ k[..., h].mT / 4**0.5).softmax(-1)
        heads.append(weights @ v[..., h])
    x = x + torch.cat(heads, -1) @ block.out.weight.T
    hidden = nn.functional.gelu(nn.functional.layer_norm(x, (8,)) @ block.up.weight.T)
    torch.testing.assert_close(out, x + hidden @ block.down.weight.T)


def test_hidden_states_go_to_schemes_that_take_them() -> None:
    seen = []

    def bias(
        q_positions: Tensor, k_positions: Tensor, *, q_x: Tensor, k_x: Tensor
    ) -> Tensor:
        seen.append((tuple(q_x.shape), tuple(k_x.shape)))
        return torch.zeros(1, 1, len(q_positions), len(k_positions))

    tokens = torch.randint(16, (2, 9), generator=seeded())
    with_hidden = model(PositionScheme("gate", bias=bias))
    torch.testing.assert_close(
        with_hidden(tokens, arange(9)), model()(tokens, arange(9))
    )
    assert seen == [((2, 9, 8), (2, 9, 8))]


def test_another_scheme_at_test_time() -> None:
    tokens = torch.randint(16, (2, 9), generator=seeded())
    net, positions = model(scheme.rope(4), layers=2), arange(9)
    sharp = PositionScheme("ALiBi", bias=partial(alibi, slopes=alibi_slopes(2)))
    torch.testing.assert_close(
        net(tokens, positions, scheme=sharp), model(sharp, layers=2)(tokens, positions)
    )
    assert not torch.allclose(
        net(tokens, positions, scheme=NOPE), net(tokens, positions)
    )
    assert net.scheme.name == "RoPE"
    near = replace(net.scheme, mask=partial(sliding_window, size=2))
    for weights in net.weights(tokens, positions, scheme=near):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 9))
        assert (weights[:, :, ~sliding_window(positions, positions, 2)] == 0).all()
    assert all((weights > 0).all() for weights in net.weights(tokens, positions))
    # positions are an argument: RoPE doesn't feel a shift, and feels a stretch
    torch.testing.assert_close(
        net(tokens, positions + 5), net(tokens, positions), atol=1e-4, rtol=0
    )
    assert not torch.allclose(
        net(tokens, positions * 3), net(tokens, positions), atol=1e-2
    )


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "heads": (
        lambda: model(heads=3),
        ValueError,
        "heads must divide the width 8, got 3",
    ),
    "layers": (
        lambda: model(layers=0),
        ValueError,
        "layers must be an integer ≥ 1, got 0",
    ),
    "scheme": (
        lambda: model("rope"),
        TypeError,
        "scheme must be a PositionScheme such as .*, got 'rope'",
    ),
    "swap": (
        lambda: model()(torch.zeros(1, 3, dtype=torch.int64), arange(3), scheme="rope"),
        TypeError,
        "scheme must be a PositionScheme",
    ),
    "tokens": (
        lambda: model()(torch.zeros(3), arange(3)),
        ValueError,
        r"tokens must be integers of shape \(B, T\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
