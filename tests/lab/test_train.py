"""Training and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.lab import TINY, model, trainable
from helpers import seeded
from torch import Tensor, nn

from posenc_lib import lab, scheme
from posenc_lib.bias import T5Bias
from posenc_lib.positions import arange
from posenc_lib.scheme import NOPE, PositionScheme


@pytest.mark.parametrize("kind", list(trainable()))
def test_parameters_of_the_scheme_are_trained(kind: str) -> None:
    net = model(trainable()[kind])
    (learned,) = net.scheme.parameters()
    before = learned.detach().clone()
    lab.train(net, lab.k_back(), length=9, steps=2, batch=2, lr=0.1, generator=seeded())
    assert not torch.equal(before, learned)


def test_a_short_training_learns() -> None:
    generator, task = seeded(3), lab.k_back(1, vocabulary=4)
    table = T5Bias(
        1,
        bidirectional=True,
        num_buckets=8,
        max_distance=4,
        std=0.02,
        generator=generator,
    )
    net = lab.TinyTransformer(
        4, PositionScheme("bias", bias=table), width=16, generator=generator
    )
    net, losses = lab.train(
        net, task, length=12, steps=150, batch=32, lr=0.02, generator=generator
    )
    found = lab.accuracy(net, task, [12, 24], seeded(4))
    assert found[12] > 0.98
    assert found[24] > 0.9
    assert len(losses) == 150
    assert losses[-1] < 0.1 < 1 < losses[0]


def test_all_that_is_random_comes_from_the_generator() -> None:
    results = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        results.append(lab.run(TINY, "learned", seed=5))
    assert results[0] == results[1] != lab.run(TINY, "learned", seed=6)


def test_positions_of_training_are_an_argument() -> None:
    seen = []

    def shifted(length: int, generator: torch.Generator) -> Tensor:
        seen.append(length)
        return arange(length, 100)

    net = model(scheme.sinusoidal(8))
    lab.train(
        net,
        lab.k_back(),
        length=6,
        steps=3,
        batch=2,
        lr=0.01,
        generator=seeded(),
        positions=shifted,
    )
    lab.accuracy(net, lab.k_back(), [7], seeded(), sequences=2, positions=shifted)
    assert seen == [6, 6, 6, 7]


def test_progress_is_one_line_and_off_unless_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    how = {"length": 6, "steps": 100, "batch": 2, "lr": 0.01}
    lab.train(model(), lab.k_back(), **how, generator=seeded())
    assert capfd.readouterr() == ("", "")
    lab.train(model(), lab.k_back(), **how, generator=seeded(), progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "step 100/100" in err


def test_right_answers_are_counted_at_their_positions() -> None:
    class Oracle(lab.TinyTransformer):
        """Right at even positions, and says a token that doesn't exist elsewhere."""

        def forward(
            self,
            tokens: Tensor,
            positions: Tensor,
            *,
            scheme: PositionScheme | None = None,
        ) -> Tensor:
            answers = nn.functional.one_hot(tokens.roll(3, 1), 17).float()
            answers[:, 1::2] = nn.functional.one_hot(torch.tensor(16), 17).float()
            return answers

    net = Oracle(16, NOPE, width=8, generator=seeded())
    right, asked = lab.correct_by_position(
        net, lab.k_back(3), 10, sequences=7, generator=seeded()
    )
    assert asked.tolist() == [0] * 3 + [7] * 7
    assert right.tolist() == [0, 0, 0, 0, 7, 0, 7, 0, 7, 0]
    assert lab.accuracy(net, lab.k_back(3), [10], seeded(), sequences=7) == {
        10: pytest.approx(3 / 7)
    }


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    net = model()
    with torch.no_grad():
        net.tokens[0] = torch.nan
    with pytest.raises(FloatingPointError, match="step 1 of 5; try lr below"):
        lab.train(
            net, lab.k_back(), length=32, steps=5, batch=4, lr=0.01, generator=seeded()
        )


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sequences": (
        lambda: lab.accuracy(model(), lab.k_back(), [5], seeded(), sequences=0),
        ValueError,
        "sequences must be an integer ≥ 1, got 0",
    ),
    "steps": (
        lambda: lab.train(
            model(),
            lab.k_back(),
            length=5,
            steps=0,
            batch=1,
            lr=0.1,
            generator=seeded(),
        ),
        ValueError,
        "steps must be an integer ≥ 1, got 0",
    ),
    "lr": (
        lambda: lab.train(
            model(),
            lab.k_back(),
            length=5,
            steps=1,
            batch=1,
            lr=-1.0,
            generator=seeded(),
        ),
        ValueError,
        "lr must be finite and above 0, got -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
