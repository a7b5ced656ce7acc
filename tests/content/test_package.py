"""What all encodings that read the content have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.content import HEADS, HIDDEN, SCHEMES, WIDTH
from helpers import hidden, layer, normal, rounding, seeded
from torch import Tensor, nn

from posenc_lib.attention import attention, attention_weights, causal, key_padding_mask
from posenc_lib.bias import alibi, alibi_slopes
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
)
from posenc_lib.positions import arange, from_mask
from posenc_lib.properties import max_error
from posenc_lib.scheme import NOPE

every_scheme = pytest.mark.parametrize("name", SCHEMES)


def full(name: str, tokens: Tensor, offset: int = 0) -> Tensor:
    positions = arange(tokens.shape[1], offset)
    return layer(SCHEMES[name], tokens, positions, mask=causal(positions, positions))


@every_scheme
def test_positions_do_something(name: str) -> None:
    tokens, positions = normal(2, 9, WIDTH), arange(9)
    nope = layer(NOPE, tokens, positions, mask=causal(positions, positions))
    assert max_error(full(name, tokens), nope) > 1e-2


@every_scheme
def test_rows_padded_by_different_amounts_then_one_step(name: str) -> None:
    tokens = normal(2, 8, WIDTH)
    real = torch.arange(8) >= torch.tensor([[0], [3]])
    positions = from_mask(real)
    mask = causal(positions, positions) & key_padding_mask(real)
    last = mask[..., 7:, :]
    out = layer(SCHEMES[name], tokens, positions, mask=last, queries=slice(7, 8))
    alone = torch.cat(
        (full(name, tokens[:1])[:, :, -1:], full(name, tokens[1:, 3:])[:, :, -1:])
    )
    assert max_error(out, alone) <= rounding(out)


@every_scheme
def test_one_row_of_positions_is_the_batch_with_that_row(name: str) -> None:
    tokens, positions = normal(3, 6, WIDTH), arange(6)
    rows = positions.expand(3, -1)
    batched = layer(SCHEMES[name], tokens, rows, mask=causal(rows, rows))
    assert max_error(batched, full(name, tokens)) <= rounding(batched)
    q = normal(3, HEADS, 6, WIDTH)
    mixed = attention_weights(
        q,
        q,
        q_positions=positions,
        k_positions=rows,
        scheme=SCHEMES[name],
        **hidden(SCHEMES[name], tokens),
    )
    assert max_error(
        mixed,
        attention_weights(
            q,
            q,
            q_positions=rows,
            k_positions=rows,
            scheme=SCHEMES[name],
            **hidden(SCHEMES[name], tokens),
        ),
    ) <= rounding(mixed)


@every_scheme
def test_grouped_keys_are_repeated_keys(name: str) -> None:
    tokens, positions, q, kv = (
        normal(2, 6, WIDTH),
        arange(6),
        normal(2, HEADS, 6, WIDTH),
        normal(2, 2, 6, WIDTH, seed=1),
    )
    how: dict[str, Any] = {
        "q_positions": positions,
        "k_positions": positions,
        "scheme": SCHEMES[name],
        **hidden(SCHEMES[name], tokens),
    }
    grouped = attention(q, kv, kv, **how)
    repeated = kv.repeat_interleave(2, 1)
    assert max_error(grouped, attention(q, repeated, repeated, **how)) <= rounding(
        grouped
    )


def small_modules() -> dict[str, tuple[nn.Module, Callable[..., Tensor]]]:
    """Modules of 2 heads of 3 channels, with a function of (q, tokens) that reaches all
    of their parameters.
    """
    positions = arange(4)
    shaw = Shaw(3, 2, generator=seeded(0))
    xl = TransformerXL(2, 3, 4, std=1.0, generator=seeded(0))
    deberta = DeBERTa(2, 3, 4, 2, std=1.0, generator=seeded(0))
    tupe = TUPE(4, 3, 2, 3, std=1.0, generator=seeded(0))
    cope = CoPE(3, 3)
    nn.init.normal_(cope.table, generator=seeded(0))
    dape = DAPE(
        2,
        partial(alibi, slopes=alibi_slopes(2), dtype=torch.float64),
        hidden=3,
        generator=seeded(0),
    )
    gate, path = (
        ForgetGate(3, 2, std=1.0, generator=seeded(0)),
        PaTH(3, 2, 3, rank=2, std=1.0, generator=seeded(0)),
    )
    curves = RelativeLogits(3, 2, 3, rank=2, std=1.0, generator=seeded(0))

    def shaw_both(q: Tensor, x: Tensor) -> Tensor:
        return shaw.values(
            shaw.scores(q, q, positions, positions).softmax(-1), q, positions, positions
        )

    return {
        "Shaw's relative vectors": (shaw, shaw_both),
        "TransformerXL": (xl, lambda q, x: xl.scores(q, q, positions, positions)),
        "DeBERTa, as in the paper": (
            deberta,
            lambda q, x: deberta.scores(q, q, positions, positions),
        ),
        "TUPE": (tupe, lambda q, x: tupe(positions, positions) + q.sum()),
        "CoPE": (cope, lambda q, x: cope.scores(q, q, positions, positions)),
        "DAPE": (dape, lambda q, x: dape.scores(q, q, positions, positions)),
        "ForgetGate": (gate, lambda q, x: gate(positions, positions, k_x=x)),
        "PaTH": (path, lambda q, x: path.scores(q, q, positions, positions, k_x=x)),
        "RelativeLogits": (curves, lambda q, x: curves(positions, positions, q_x=x)),
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


def test_attention_without_hidden_states_says_what_is_missing() -> None:
    q, positions = normal(1, HEADS, 3, WIDTH), arange(3)
    for name in HIDDEN:
        with pytest.raises(TypeError, match="must be given"):
            attention(
                q,
                q,
                q,
                q_positions=positions,
                k_positions=positions,
                scheme=SCHEMES[name],
            )
