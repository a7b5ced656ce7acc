"""Training and testing, with every random number from a generator."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc_lib import _checks
from posenc_lib.lab.model import TinyTransformer
from posenc_lib.lab.tasks import IGNORE, Task
from posenc_lib.positions import arange
from posenc_lib.scheme import PositionScheme

Positions = Callable[[int, torch.Generator], Tensor]


def sequential(length: int, generator: torch.Generator) -> Tensor:
    """Positions 0 … T−1: what training and testing use unless told otherwise.

    Equation: p_t = t
    Shapes: → (T,), int64

    Args:
        length: T.
        generator: not drawn from; `partial(positions.randomised, maximum=...)` is one
            that does.

    Chapter: 06
    """
    return arange(length)


def train(
    model: TinyTransformer,
    task: Task,
    *,
    length: int,
    steps: int,
    batch: int,
    lr: float,
    generator: torch.Generator,
    positions: Positions = sequential,
    progress: bool = False,
) -> tuple[TinyTransformer, list[float]]:
    """Train a model in place with Adam, on a new batch at each step.

    Equation: η_s = η · min(10 s/S, 1) · (1 + cos(π s/S))/2 at step s of S:
        a short warm-up, then a cosine to 0
    Shapes: → the model, and the loss of each step

    Args:
        model: the model.
        task: what it is to learn.
        length: T of all training sequences.
        steps: S.
        batch: sequences a step.
        lr: η.
        generator: of the batches, on the CPU.
        positions: `positions(length, generator)` for each step.
        progress: write one line to stderr that says how far it is.

    Raises:
        TypeError, ValueError: `length`, `steps` or `batch` is not an integer ≥ 1, or
            `lr` is not a number above 0; FloatingPointError: the loss is not finite.

    Chapter: 06
    """
    for name, value in (("length", length), ("steps", steps), ("batch", batch)):
        _checks.whole_number(name, value, least=1)
    _checks.positive("lr", lr)
    # Fused, one kernel updates all weights: a step takes a tenth less.
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    losses: list[float] = []
    model.train()
    for step in range(1, steps + 1):
        warm_up = min(10 * step / steps, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = lr * warm_up * (1 + math.cos(math.pi * step / steps)) / 2
        tokens, targets = task.draw(batch, length, generator)
        logits = model(tokens, positions(length, generator))
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(
                f"the loss is {losses[-1]} at step {step} of {steps}; try lr below {lr}"
            )
        if progress and (step % 50 == 0 or step == steps):
            end = "\n" if step == steps else ""
            print(
                f"\r{task.name}, {model.scheme.name}: "
                f"step {step}/{steps}, loss {losses[-1]:.4f}",
                end=end,
                file=sys.stderr,
            )
    return model.eval(), losses


@torch.no_grad()
def correct_by_position(
    model: TinyTransformer,
    task: Task,
    length: int,
    *,
    sequences: int,
    generator: torch.Generator,
    positions: Positions = sequential,
    scheme: PositionScheme | None = None,
) -> tuple[Tensor, Tensor]:
    """How many answers are correct at each position, and how many were asked for.

    Equation: correct_m = Σ_b [argmax logits_bm = y_bm],
        total_m = Σ_b [something is asked at m]
    Shapes: → (T,), (T,), int64

    Args:
        model: the model.
        task: what it is asked.
        length: T.
        sequences: how many.
        generator: of the sequences, on the CPU.
        positions: as in `train`, once for each batch.
        scheme: run the same weights under this scheme; None is the one of training.

    Raises:
        TypeError, ValueError: `sequences` is not an integer ≥ 1; as `task.draw` and the
            model.

    Chapter: 06
    """
    _checks.whole_number("sequences", sequences, least=1)
    correct, total = (torch.zeros(length, dtype=torch.int64) for _ in range(2))
    # sequences at once, so that the scores stay below 16 MiB a head
    batch = max(1, 2**22 // length**2)
    for first in range(0, sequences, batch):
        tokens, targets = task.draw(min(batch, sequences - first), length, generator)
        answers = model(tokens, positions(length, generator), scheme=scheme).argmax(-1)
        correct += (answers == targets).sum(0)
        total += (targets != IGNORE).sum(0)
    return correct, total


def accuracy(
    model: TinyTransformer,
    task: Task,
    lengths: Iterable[int],
    generator: torch.Generator,
    *,
    sequences: int = 256,
    positions: Positions = sequential,
    scheme: PositionScheme | None = None,
) -> dict[int, float]:
    """The share of correct answers at each length, over all positions with a question.

    Equation: Σ_m correct_m / Σ_m total_m

    Args:
        model, task, generator, sequences, positions, scheme: as in
            `correct_by_position`.
        lengths: the lengths T to test.

    Raises:
        TypeError, ValueError: as `correct_by_position`.

    Chapter: 06
    """
    shares = {}
    for length in lengths:
        correct, total = correct_by_position(
            model,
            task,
            length,
            sequences=sequences,
            generator=generator,
            positions=positions,
            scheme=scheme,
        )
        shares[length] = float(correct.sum() / total.sum())
    return shares
