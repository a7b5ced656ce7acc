"""Training and testing of several models as one, with all that is random given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from posenc_lib import _checks
from posenc_lib.lab.model import TinyTransformer
from posenc_lib.lab.tasks import IGNORE, Draw, Task
from posenc_lib.positions import arange
from posenc_lib.scheme import PositionScheme

Positions = Callable[[int, torch.Generator], Tensor]

# All of them update each weight by itself, so that models trained as one don't mix.
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),  # one kernel for all weights
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True, fused=True),
}


@dataclass(frozen=True)
class Recipe:
    """How weights are changed: what decides an experiment as often as its subject.

    Equation: η_s = η · min(10 s/S, 1) · (1 + cos(π s/S))/2 at step s of S, a short
        warm-up, then a cosine to 0;  g ← g · min(1, c/|g|), |g| over all weights

    Args:
        optimiser: "adam" (β = 0.9, 0.999) or "sgd" (Nesterov's momentum, 0.9).
        lr: η, above 0.
        clip: c, above 0: the largest norm of a gradient; None leaves it as it is.

    Raises:
        TypeError, ValueError: another optimiser; `lr` or `clip` is not a number above
            0.

    Chapter: 21
    """

    optimiser: str
    lr: float
    clip: float | None = None

    def __post_init__(self) -> None:
        _checks.one_of("optimiser", self.optimiser, tuple(OPTIMISERS))
        _checks.positive("lr", self.lr)
        if self.clip is not None:
            _checks.positive("clip", self.clip)


ADAM, SGD = Recipe("adam", 0.01), Recipe("sgd", 0.3, clip=1.0)
RECIPES = {recipe.optimiser: recipe for recipe in (ADAM, SGD)}


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


class Stacked:
    """Several models with the same structure, computed as one.

    Equation: logits_s = f(θ_s, tokens_s, positions_s) for all models s at once
    Shapes: tokens (S, B, T), positions (T,), or (S, T), (S, B, T) where they differ
        → logits (S, B, T, V)

    Each weight of one model is a matrix, of S models a batch of matrices: S small
    products become one, and the cost of calling each operation is paid once.

    Args:
        models: S models that differ in parameters and buffers only; both are copied,
            and `write_back` copies the parameters back.

    Raises:
        ValueError: no model; as `torch.func.stack_module_state`.

    Chapter: 21
    """

    def __init__(self, models: Sequence[TinyTransformer]) -> None:
        if not models:
            raise ValueError("models must be at least one, got none")
        self.models = list(models)
        self.parameters, self.buffers = stack_module_state(self.models)

    def __call__(
        self, tokens: Tensor, positions: Tensor, scheme: PositionScheme | None = None
    ) -> Tensor:
        def one(
            parameters: dict[str, Tensor],
            buffers: dict[str, Tensor],
            tokens: Tensor,
            positions: Tensor,
        ) -> Tensor:
            logits: Tensor = functional_call(
                self.models[0],
                (parameters, buffers),
                (tokens, positions),
                {"scheme": scheme},
            )
            return logits

        shared = None if positions.dim() == 1 else 0
        logits: Tensor = vmap(one, in_dims=(0, 0, 0, shared))(
            self.parameters, self.buffers, tokens, positions
        )
        return logits

    @torch.no_grad()
    def write_back(self) -> None:
        """Give each model its own weights."""
        for s, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.parameters[name][s])


def _drawn(
    draw: Draw,
    positions: Positions,
    batch: int,
    length: int,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch for each model: tokens and targets (S, B, T), and their positions."""
    tokens, targets, at = [], [], []
    for generator in generators:
        x, y = draw(batch, length, generator)
        tokens.append(x)
        targets.append(y)
        at.append(positions(length, generator))
    same = all(torch.equal(at[0], other) for other in at[1:])
    return (
        torch.stack(tokens).to(device),
        torch.stack(targets).to(device),
        (at[0] if same and at[0].dim() == 1 else torch.stack(at)).to(device),
    )


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln p of each right answer, 0 where nothing is asked: (S, B, T)."""
    return F.cross_entropy(
        logits.flatten(0, 2),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction="none",
    ).view_as(targets)


def train(
    models: Sequence[TinyTransformer],
    task: Task,
    *,
    length: int,
    steps: int,
    batch: int,
    recipe: Recipe = ADAM,
    generators: Sequence[torch.Generator],
    positions: Positions = sequential,
) -> Tensor:
    """Train models in place, each on its own new batch at each step.

    Equation: as `Recipe`, of the mean of −ln p over all answers of a batch
    Shapes: → (S, steps), float64: the loss of each model and step, on the CPU

    One model or many: a model's weights depend on its own generator alone, and not on
    the others beside it. A model that diverges has losses of nan from there on.

    Args:
        models: S models that differ in their parameters only.
        task: what they are to learn.
        length: T of all training sequences.
        steps: how many.
        batch: sequences a step, for each model.
        recipe: optimiser and rate.
        generators: of the batches, one for each model, on the CPU.
        positions: `positions(length, generator)` for each step, after the batch.

    Raises:
        TypeError, ValueError: `length`, `steps` or `batch` is not an integer ≥ 1, no
            model, or not one generator for each.

    Chapter: 06
    """
    _checks.sizes(length=length, steps=steps, batch=batch)
    _check_generators(models, generators)
    stacked = Stacked(models)
    weights = list(stacked.parameters.values())
    optimiser = OPTIMISERS[recipe.optimiser](weights, lr=recipe.lr)
    losses: list[Tensor] = []
    for step in range(1, steps + 1):
        warm_up = min(10 * step / steps, 1.0)
        for group in optimiser.param_groups:
            cosine = (1 + math.cos(math.pi * step / steps)) / 2
            group["lr"] = recipe.lr * warm_up * cosine
        tokens, targets, at = _drawn(
            task.draw, positions, batch, length, generators, weights[0].device
        )
        asked = (targets != IGNORE).flatten(1).sum(1).clamp(min=1)
        loss = _losses(stacked(tokens, at), targets).flatten(1).sum(1) / asked  # (S,)
        optimiser.zero_grad()
        loss.sum().backward()
        if recipe.clip is not None:
            _clip(weights, recipe.clip)
        optimiser.step()
        losses.append(loss.detach())
    stacked.write_back()
    for model in models:
        model.eval()
    return torch.stack(losses, 1).to("cpu", torch.float64)


@torch.no_grad()
def _clip(weights: Sequence[Tensor], most: float) -> None:
    """Scale each model's gradient so that its norm is at most `most`."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = [gradient.reshape(len(gradient), -1) for gradient in gradients]  # (S, …)
    norms = torch.cat(flat, 1).norm(dim=1)
    scale = (most / norms).clamp(max=1)  # (S,)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))


def _check_generators(
    models: Sequence[TinyTransformer], generators: Sequence[torch.Generator]
) -> None:
    if len(models) != len(generators):
        raise ValueError(
            f"generators must be one for each of {len(models)} models, got "
            f"{len(generators)}"
        )


@torch.no_grad()
def measure(
    models: Sequence[TinyTransformer],
    task: Task,
    length: int,
    *,
    sequences: int,
    generators: Sequence[torch.Generator],
    positions: Positions = sequential,
    scheme: PositionScheme | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """How many answers are right at each position, of how many, and the mean loss.

    Equation: correct_m = Σ_b [argmax logits_bm = y_bm],
        total_m = Σ_b [something is asked at m],  loss = mean of −ln p(y)
    Shapes: → (S, T), (S, T), int64; (S,), float64

    Args:
        models: S models that differ in their parameters only.
        task: what they are asked.
        length: T.
        sequences: how many, for each model.
        generators: of the sequences, one for each model, on the CPU.
        positions: as in `train`, once for each batch.
        scheme: run the same weights under this scheme, made from the first model's;
            None is the one of training.

    Raises:
        TypeError, ValueError: `sequences` is not an integer ≥ 1; as `train`, the task
            and the model.

    Chapter: 21
    """
    _checks.whole_number("sequences", sequences, least=1)
    _check_generators(models, generators)
    stacked, count = Stacked(models), len(models)
    device = next(models[0].parameters()).device
    correct, total = torch.zeros(2, count, length, dtype=torch.int64, device=device)
    losses = torch.zeros(count, dtype=torch.float64, device=device)
    # Drawn so many at once, whatever the number of models, so that all of them draw the
    # same; computed so many at once that the scores of all models stay in the cache.
    batch = max(1, 2**22 // length**2)
    part = max(1, batch // (count * models[0].heads))
    for first in range(0, sequences, batch):
        tokens, targets, at = _drawn(
            task.test or task.draw,
            positions,
            min(batch, sequences - first),
            length,
            generators,
            device,
        )
        for x, y in zip(tokens.split(part, 1), targets.split(part, 1), strict=True):
            logits = stacked(x, at, scheme)
            correct += (logits.argmax(-1) == y).sum(1)
            total += (y != IGNORE).sum(1)
            losses += _losses(logits, y).flatten(1).sum(1, dtype=torch.float64)
    return correct.cpu(), total.cpu(), (losses / total.sum(1).clamp(min=1)).cpu()


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
    """How many answers of one model are right at each position, and of how many.

    Equation: as `measure`
    Shapes: → (T,), (T,), int64

    Args:
        model, task, length, sequences, generator, positions, scheme: as in `measure`,
            of one model.

    Raises:
        TypeError, ValueError: as `measure`.

    Chapter: 06
    """
    correct, total, _ = measure(
        [model],
        task,
        length,
        sequences=sequences,
        generators=[generator],
        positions=positions,
        scheme=scheme,
    )
    return correct[0], total[0]


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
