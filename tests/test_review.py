"""What a review found: shapes that were broadcast in silence, scores far below zero, probes that saw nothing."""

from __future__ import annotations

import pytest
import torch

from posenc_lib import properties, scheme
from posenc_lib.attention import attention, attention_weights, causal
from posenc_lib.positions import arange, relative
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import PositionScheme


def heads(count: int, length: int = 3, batch: int = 1) -> torch.Tensor:
    return torch.randn(
        batch, count, length, 4, generator=torch.Generator().manual_seed(count)
    )


@pytest.mark.parametrize(("has", "wants"), [(1, 8), (8, 1), (4, 3)])
def test_a_bias_for_other_heads_is_refused(has: int, wants: int) -> None:
    at, x = arange(3), heads(has)
    if wants == 1:
        attention(
            x, x, x, q_positions=at, k_positions=at, scheme=scheme.alibi(wants)
        )  # one bias for all heads
        return
    with pytest.raises(ValueError, match="bias"):
        attention(x, x, x, q_positions=at, k_positions=at, scheme=scheme.alibi(wants))


def test_a_bias_for_another_batch_is_refused() -> None:
    at, x = arange(3), heads(2)
    wrong = PositionScheme("of five rows", bias=lambda m, n: torch.zeros(5, 1, 3, 3))
    with pytest.raises(ValueError, match="bias"):
        attention(x, x, x, q_positions=at, k_positions=at, scheme=wrong)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 3)])
def test_masks_that_could_be_read_in_two_ways_are_refused(
    shape: tuple[int, ...],
) -> None:
    at, x = arange(3), heads(2, batch=2)
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask"):
        attention(x, x, x, q_positions=at, k_positions=at, mask=mask)


def test_hidden_states_come_in_pairs() -> None:
    at, x = arange(3), heads(2)
    with pytest.raises(ValueError, match="q_x and k_x"):
        attention(x, x, x, q_positions=at, k_positions=at, q_x=torch.ones(1, 3, 4))


def test_masked_keys_weigh_nothing_beside_scores_far_below_zero() -> None:
    far = torch.tensor([[[[-1e6, -2e6, 0.0]]]])
    at, x = arange(3), torch.zeros(1, 1, 3, 4)
    low = PositionScheme("far below zero", bias=lambda m, n: far.expand(1, 1, 3, 3))
    weights = attention_weights(
        x, x, q_positions=at, k_positions=at, scheme=low, mask=causal(at, at)
    )
    assert weights[0, 0, 1].tolist() == [1.0, 0.0, 0.0]


def test_padding_probe_sees_an_absolute_scheme_that_counts_slots() -> None:
    x = heads(1, 5).double()
    honest = PositionScheme(
        "of the key",
        bias=lambda m, n: n.double().expand(1, 1, m.shape[-1], -1) ** 2 / 4,
    )
    assert properties.left_padding_error(honest, x, x, x, padding=3) < 1e-9
    slots = PositionScheme(
        "of the slot",
        bias=lambda m, n: (
            torch.arange(n.shape[-1]).double().expand(1, 1, m.shape[-1], -1) ** 2 / 4
        ),
    )
    assert properties.left_padding_error(slots, x, x, x, padding=3) > 1e-3


def test_equivariance_probe_refuses_what_is_no_permutation() -> None:
    with pytest.raises(ValueError, match="permutation"):
        properties.equivariance_error(
            lambda x: x, torch.ones(3, 2), torch.tensor([0, 0, 0])
        )


def test_integers_and_fractions_keep_large_distances() -> None:
    m, n = torch.tensor([10**9 + 1]), torch.tensor([1e9], dtype=torch.float64)
    assert relative(m, n).item() == -1
    assert relative(torch.tensor([10**9 + 1]), torch.tensor([1e9])).item() == -1


def test_rotation_compiles_with_dynamic_shapes_and_factors() -> None:
    def rotated(x: torch.Tensor, factor: float) -> torch.Tensor:
        frequencies = torch.tensor([1.0, 0.1], dtype=torch.float64)
        return RoPE(frequencies, attention_factor=factor)(torch.arange(x.shape[-2]))(x)

    compiled = torch.compile(rotated, fullgraph=True, dynamic=True, backend="aot_eager")
    for length, factor in ((5, 1.0), (9, 1.25)):
        x = heads(2, length)
        torch.testing.assert_close(compiled(x, factor), rotated(x, factor))
