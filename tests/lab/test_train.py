"""Training and accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples.lab import model, outcome, tiny, trainable
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
    for recipe in lab.RECIPES.values():
        before = learned.detach().clone()
        lab.train(
            [net],
            lab.k_back(),
            length=9,
            steps=2,
            batch=2,
            recipe=recipe,
            generators=[seeded()],
        )
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
    losses = lab.train(
        [net],
        task,
        length=12,
        steps=150,
        batch=32,
        recipe=lab.Recipe("adam", 0.02),
        generators=[generator],
    )
    found = lab.accuracy(net, task, [12, 24], seeded(4))
    assert found[12] > 0.98
    assert found[24] > 0.9
    assert losses.shape == (1, 150)
    assert losses[0, -1] < 0.1 < 1 < losses[0, 0]


def test_all_that_is_random_comes_from_the_generator() -> None:
    results = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        (row,) = lab.run(tiny(scheme="learned"), [5])
        results.append(outcome(row))
    (other,) = lab.run(tiny(scheme="learned"), [6])
    assert results[0] == results[1]
    assert results[0]["tests"] != other["tests"]


def test_positions_of_training_are_an_argument() -> None:
    seen = []

    def shifted(length: int, generator: torch.Generator) -> Tensor:
        seen.append(length)
        return arange(length, 100)

    net = model(scheme.sinusoidal(8))
    lab.train(
        [net],
        lab.k_back(),
        length=6,
        steps=3,
        batch=2,
        generators=[seeded()],
        positions=shifted,
    )
    lab.accuracy(net, lab.k_back(), [7], seeded(), sequences=2, positions=shifted)
    assert seen == [6, 6, 6, 7]


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


def test_a_step_is_that_of_the_optimiser_by_hand() -> None:
    """Both recipes, against PyTorch's optimisers on one model without stacking."""
    steps, task = 5, lab.k_back()
    for recipe in (lab.ADAM, lab.Recipe("sgd", 0.3, clip=0.05)):
        nets = [model(trainable()["a module"], dtype=torch.float64) for _ in range(2)]
        losses = lab.train(
            nets[:1],
            task,
            length=9,
            steps=steps,
            batch=3,
            recipe=recipe,
            generators=[seeded(4)],
        )
        made = (
            torch.optim.Adam(nets[1].parameters())
            if recipe == lab.ADAM
            else torch.optim.SGD(nets[1].parameters(), momentum=0.9, nesterov=True)
        )
        generator = seeded(4)
        for step in range(1, steps + 1):
            cosine = (1 + math.cos(math.pi * step / steps)) / 2
            made.param_groups[0]["lr"] = recipe.lr * min(10 * step / steps, 1) * cosine
            tokens, targets = task.draw(3, 9, generator)
            loss = nn.functional.cross_entropy(
                nets[1](tokens, arange(9)).flatten(0, 1),
                targets.flatten(),
                ignore_index=lab.IGNORE,
            )
            made.zero_grad()
            loss.backward()
            if recipe.clip is not None:
                gradients = [p.grad for p in nets[1].parameters()]
                norm = nn.utils.get_total_norm(gradients)
                assert norm > recipe.clip  # or the clip would be untested
                for gradient in gradients:
                    gradient *= recipe.clip / norm
            made.step()
            assert losses[0, step - 1] == pytest.approx(loss.item(), rel=1e-9)
        for stacked, alone in zip(*(net.parameters() for net in nets), strict=True):
            torch.testing.assert_close(stacked, alone, rtol=1e-8, atol=1e-10)


def test_a_model_that_diverges_has_nan_and_harms_no_other() -> None:
    nets = [model(dtype=torch.float64) for _ in range(2)]
    with torch.no_grad():
        nets[0].tokens[0] = torch.nan
    how: dict[str, Any] = {"length": 32, "steps": 3, "batch": 4}
    together = lab.train(nets, lab.k_back(), **how, generators=[seeded(1), seeded(2)])
    alone = lab.train(
        [model(dtype=torch.float64)], lab.k_back(), **how, generators=[seeded(2)]
    )
    assert together[0].isnan().all()
    torch.testing.assert_close(together[1], alone[0])


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sequences": (
        lambda: lab.accuracy(model(), lab.k_back(), [5], seeded(), sequences=0),
        ValueError,
        "sequences must be an integer ≥ 1, got 0",
    ),
    "steps": (
        lambda: lab.train(
            [model()],
            lab.k_back(),
            length=5,
            steps=0,
            batch=1,
            generators=[seeded()],
        ),
        ValueError,
        "steps must be an integer ≥ 1, got 0",
    ),
    "lr": (
        lambda: lab.Recipe("adam", -1.0),
        ValueError,
        "lr must be finite and above 0, got -1",
    ),
    "generators": (
        lambda: lab.train(
            [model(), model()],
            lab.k_back(),
            length=5,
            steps=1,
            batch=1,
            generators=[seeded()],
        ),
        ValueError,
        "generators must be one for each of 2 models, got 1",
    ),
    "models": (
        lambda: lab.train([], lab.k_back(), length=5, steps=1, batch=1, generators=[]),
        ValueError,
        "models must be at least one, got none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
