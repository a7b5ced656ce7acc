"""The laboratory: tasks, the small model, training, and the stored runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_lib import lab, scheme
from posenc_lib.attention import sliding_window
from posenc_lib.attention.linear import causal_linear_attention, elu_features
from posenc_lib.bias import T5Bias, alibi, alibi_slopes
from posenc_lib.embedding import LearnedEmbedding
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.lab import costs, extending, runs
from posenc_lib.lab.__main__ import main
from posenc_lib.positions import arange
from posenc_lib.properties import max_error
from posenc_lib.scheme import NOPE, PositionScheme

LENGTHS = lab.EXPERIMENTS["three-back"].lengths
TINY = lab.Settings(
    "three-back", length=8, lengths=(8, 12), sequences=6, steps=2, batch=2, width=8
)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(
    position_scheme: PositionScheme = NOPE,
    vocabulary: int = 16,
    **how: int | bool | torch.dtype,
) -> lab.TinyTransformer:
    return lab.TinyTransformer(
        vocabulary, position_scheme, generator=draw(), **{"width": 8, "heads": 2} | how
    )


# ---- tasks


def test_k_back_asks_for_the_token_k_back() -> None:
    for k in (1, 3):
        tokens, targets = lab.k_back(k, vocabulary=5).draw(4, 9, draw())
        assert tokens.shape == targets.shape == (4, 9)
        assert set(tokens.unique().tolist()) == set(range(5))
        for row, m in product(range(4), range(9)):
            assert targets[row, m] == (tokens[row, m - k] if m >= k else lab.IGNORE)


def test_common_token_is_the_planted_one() -> None:
    tokens, targets = lab.common_token(0.5, vocabulary=8).draw(64, 200, draw())
    assert (targets == targets[:, :1]).all()
    assert (tokens.mode(-1).values == targets[:, 0]).all()
    share = (tokens == targets).float().mean().item()
    assert abs(share - (0.5 + 0.5 / 8)) < 0.02
    assert (
        lab.common_token(1.0).draw(3, 5, draw())[0]
        == lab.common_token(1.0).draw(3, 5, draw())[1]
    ).all()


def test_batches_come_from_the_generator() -> None:
    for task in (lab.k_back(), lab.common_token()):
        same, again, other = (task.draw(4, 16, draw(seed))[0] for seed in (1, 1, 2))
        assert (same == again).all()
        assert (same != other).any()


@pytest.mark.parametrize(
    ("length", "vocabulary"), [(2, 2), (3, 2), (5, 3), (7, 2), (4, 16)]
)
def test_best_without_order_is_the_mean_share_of_the_most_frequent(
    length: int, vocabulary: int
) -> None:
    bags = list(product(range(vocabulary), repeat=length - 1))
    most = sum(max(Counter(bag).values()) for bag in bags)
    assert lab.best_without_order(length, vocabulary=vocabulary) == pytest.approx(
        most / len(bags) / (length - 1)
    )


@pytest.mark.parametrize("length", [32, 256])
def test_naming_the_most_frequent_token_reaches_it(length: int) -> None:
    tokens = torch.randint(16, (10_000, length - 1), generator=draw())
    counts = torch.zeros(10_000, 16, dtype=torch.int64).scatter_add_(
        1, tokens, torch.ones_like(tokens)
    )
    most = counts.max(-1).values.double() / (length - 1)
    error = most.std() / 100
    assert abs(most.mean() - lab.best_without_order(length)) < 4 * error
    assert 4 * error < 0.01 * lab.best_without_order(length)


# ---- model


def test_without_positions_the_model_is_equivariant() -> None:
    tokens, order = (
        torch.randint(16, (3, 9), generator=draw()),
        torch.randperm(9, generator=draw(1)),
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
    tokens = torch.randint(16, (2, 9), generator=draw())
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 16
    for masked in (True, False):
        net = model(scheme.rope(4), masked=masked, layers=2)
        first, second = net(tokens, arange(9)), net(other, arange(9))
        assert torch.equal(first[:, :5], second[:, :5]) is masked


def test_a_block_is_its_equation() -> None:
    net = model(scheme.rope(4))
    block, x = net.blocks[0], torch.randn(2, 5, 8, generator=draw())
    out = block(x, arange(5), NOPE, None)
    y = nn.functional.layer_norm(x, (8,))
    q, k, v = (y @ block.qkv.weight.T).split(8, -1)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        weights = (q[..., h] @ k[..., h].mT / 4**0.5).softmax(-1)
        heads.append(weights @ v[..., h])
    x = x + torch.cat(heads, -1) @ block.out.weight.T
    hidden = nn.functional.gelu(nn.functional.layer_norm(x, (8,)) @ block.up.weight.T)
    torch.testing.assert_close(out, x + hidden @ block.down.weight.T)


def test_same_seed_same_model() -> None:
    first, again = (model(scheme.sinusoidal(8)).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = lab.TinyTransformer(16, NOPE, width=8, generator=draw(1)).state_dict()
    assert not torch.equal(first["tokens"], other["tokens"])


class Tabled(nn.Module):
    """A scheme of a module's method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return q * self.weight, k

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        return self.weight * (q @ k.mT)


def called(positions: Tensor, table: nn.Module) -> Tensor:
    return table(positions)


def trainable() -> dict[str, PositionScheme]:
    table, bias, tabled = (
        LearnedEmbedding(9, 8, generator=draw()),
        T5Bias(2, bidirectional=True, std=1.0),
        Tabled(),
    )
    return {
        "a module": PositionScheme("learned", embedding=table),
        "a partial with a module": PositionScheme(
            "learned", embedding=partial(called, table=table)
        ),
        "a bias": PositionScheme("T5", bias=bias),
        "a method": PositionScheme("method", transform=tabled.transform),
        "two methods of one module": PositionScheme(
            "methods", transform=tabled.transform, scores=tabled.scores
        ),
    }


@pytest.mark.parametrize("kind", list(trainable()))
def test_parameters_of_the_scheme_are_trained(kind: str) -> None:
    net = model(trainable()[kind])
    (learned,) = net.learned.parameters()
    before = learned.detach().clone()
    lab.train(net, lab.k_back(), length=9, steps=2, batch=2, lr=0.1, generator=draw())
    assert not torch.equal(before, learned)


def test_hidden_states_go_to_schemes_that_take_them() -> None:
    seen = []

    def bias(
        q_positions: Tensor, k_positions: Tensor, *, q_x: Tensor, k_x: Tensor
    ) -> Tensor:
        seen.append((tuple(q_x.shape), tuple(k_x.shape)))
        return torch.zeros(1, 1, len(q_positions), len(k_positions))

    tokens = torch.randint(16, (2, 9), generator=draw())
    with_hidden = model(PositionScheme("gate", bias=bias))
    torch.testing.assert_close(
        with_hidden(tokens, arange(9)), model()(tokens, arange(9))
    )
    assert seen == [((2, 9, 8), (2, 9, 8))]


def test_another_scheme_at_test_time() -> None:
    tokens = torch.randint(16, (2, 9), generator=draw())
    net, at = model(scheme.rope(4), layers=2), arange(9)
    sharp = PositionScheme("ALiBi", bias=partial(alibi, slopes=alibi_slopes(2)))
    torch.testing.assert_close(
        net(tokens, at, scheme=sharp), model(sharp, layers=2)(tokens, at)
    )
    assert not torch.allclose(net(tokens, at, scheme=NOPE), net(tokens, at))
    assert net.scheme.name == "RoPE"
    near = replace(net.scheme, mask=partial(sliding_window, size=2))
    for weights in net.weights(tokens, at, scheme=near):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 9))
        assert (weights[:, :, ~sliding_window(at, at, 2)] == 0).all()
    assert all((weights > 0).all() for weights in net.weights(tokens, at))
    # positions are an argument: RoPE doesn't feel a shift, and feels a stretch
    torch.testing.assert_close(net(tokens, at + 5), net(tokens, at), atol=1e-4, rtol=0)
    assert not torch.allclose(net(tokens, at * 3), net(tokens, at), atol=1e-2)


# ---- training


def test_a_short_training_learns() -> None:
    generator, task = draw(3), lab.k_back(1, vocabulary=4)
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
    found = lab.accuracy(net, task, [12, 24], draw(4))
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
        generator=draw(),
        positions=shifted,
    )
    lab.accuracy(net, lab.k_back(), [7], draw(), sequences=2, positions=shifted)
    assert seen == [6, 6, 6, 7]


def test_progress_is_one_line_and_off_unless_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    how = {"length": 6, "steps": 100, "batch": 2, "lr": 0.01}
    lab.train(model(), lab.k_back(), **how, generator=draw())
    assert capfd.readouterr() == ("", "")
    lab.train(model(), lab.k_back(), **how, generator=draw(), progress=True)
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

    net = Oracle(16, NOPE, width=8, generator=draw())
    right, asked = lab.correct_by_position(
        net, lab.k_back(3), 10, sequences=7, generator=draw()
    )
    assert asked.tolist() == [0] * 3 + [7] * 7
    assert right.tolist() == [0, 0, 0, 0, 7, 0, 7, 0, 7, 0]
    assert lab.accuracy(net, lab.k_back(3), [10], draw(), sequences=7) == {
        10: pytest.approx(3 / 7)
    }


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    net = model()
    with torch.no_grad():
        net.tokens[0] = torch.nan
    with pytest.raises(FloatingPointError, match="step 1 of 5; try lr below"):
        lab.train(
            net, lab.k_back(), length=32, steps=5, batch=4, lr=0.01, generator=draw()
        )


# ---- stored runs


def test_scrambled_is_a_formula_without_structure() -> None:
    rows = lab.scrambled(arange(256), 32)
    assert torch.equal(rows[7], lab.scrambled(torch.tensor([7]), 32)[0])
    assert abs(rows.square().mean().item() - 0.5) < 0.02
    cosines = nn.functional.cosine_similarity(
        rows[:, None], rows[None], dim=-1
    ).fill_diagonal_(0)
    assert cosines.abs().max() < 0.85
    assert abs(cosines.mean().item()) < 0.02
    sinusoid = scheme.sinusoidal(32).embedding(arange(256))
    assert (
        nn.functional.cosine_similarity(sinusoid[:-1], sinusoid[1:], dim=-1).min() > 0.9
    )  # which has structure


@pytest.mark.parametrize("name", list(lab.SCHEMES))
def test_every_scheme_runs(name: str) -> None:
    found = lab.run(TINY, name, seed=0)
    assert found["total"] == {"8": [0] * 3 + [6] * 5, "12": [0] * 3 + [6] * 9}
    assert all(
        r <= a
        for T in ("8", "12")
        for r, a in zip(found["correct"][T], found["total"][T], strict=True)
    )
    assert found["loss"] > 0


def test_a_sweep_that_is_stopped_goes_on(tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []

    def stopped_at_the_third(
        settings: lab.Settings, name: str, seed: int, *, progress: bool
    ) -> dict:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append((name, seed))
        return lab.run(settings, name, seed)

    path, names, seeds = tmp_path / "runs.json", ["nope", "sinusoid"], [0, 1]
    with pytest.raises(KeyboardInterrupt):
        lab.sweep(path, TINY, names, seeds, make=stopped_at_the_third)
    half = json.loads(path.read_text())["runs"]
    assert [(r["scheme"], r["seed"]) for r in half] == [("nope", 0), ("sinusoid", 0)]
    whole = lab.sweep(
        path,
        TINY,
        names,
        seeds,
        make=lambda s, n, i, progress: made.append((n, i)) or lab.run(s, n, i),
    )
    assert made == [("nope", 0), ("sinusoid", 0), ("nope", 1), ("sinusoid", 1)]
    assert json.loads(path.read_text()) == whole
    assert [r for r in whole["runs"] if r["seed"] == 0] == half
    assert whole == lab.sweep(tmp_path / "at once.json", TINY, names, seeds)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at once.json", "runs.json"]


def test_a_file_holds_runs_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.json"
    lab.sweep(path, TINY, ["nope"], [0])
    before = path.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"holds runs with settings .*'steps': 2.* asked for .*'steps': 3",
    ):
        lab.sweep(path, replace(TINY, steps=3), ["nope"], [1])
    monkeypatch.setattr(runs, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(
        ValueError, match=r"holds runs with versions .* asked for \{'torch': '0\.1'\}"
    ):
        lab.sweep(path, TINY, ["nope"], [1])
    assert path.read_bytes() == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, threads = tmp_path / "runs.json", torch.get_num_threads()
    sizes = [
        "--steps",
        "2",
        "--batch",
        "2",
        "--length",
        "8",
        "--width",
        "8",
        "--sequences",
        "4",
    ]
    try:
        main(
            [
                "three-back",
                "--scheme",
                "nope",
                "--seeds",
                "3",
                "--out",
                str(path),
                *sizes,
            ]
        )
    finally:
        torch.set_num_threads(threads)
    stored = json.loads(path.read_text())
    assert [(r["scheme"], r["seed"]) for r in stored["runs"]] == [("nope", 3)]
    assert stored["settings"] == json.loads(
        json.dumps(vars(replace(TINY, lengths=LENGTHS, sequences=4)))
    )
    assert stored["versions"]["torch"] == torch.__version__
    with pytest.raises(SystemExit):
        main(["three-back", "--scheme", "typo", "--out", str(path)])
    assert "typo" in capsys.readouterr().err


def test_the_command_takes_flags_and_knows_who_makes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, threads = tmp_path / "runs.json", torch.get_num_threads()
    monkeypatch.setitem(extending.TUNING, "steps", 20)
    sizes = ["--steps", "2", "--batch", "2", "--width", "8", "--sequences", "4"]
    try:
        main(["rope-longer", "--no-masked", "--seeds", "3", "--out", str(path), *sizes])
    finally:
        torch.set_num_threads(threads)
    stored = json.loads(path.read_text())
    assert stored["settings"]["masked"] is False
    (made,) = stored["runs"]
    assert made["scheme"] == "rope"
    assert set(made["tuned"]) == set(extending.TUNED) < set(made["correct"])


# ---- costs


def command_of_costs(path: Path, *tokens: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "posenc_lib.lab.costs",
        "--out",
        str(path),
        "--tokens",
        *map(str, tokens),
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_command_of_costs_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    first = command_of_costs(path, 64)
    both = command_of_costs(path, 64, 128)
    assert both["runs"][: len(costs.WAYS)] == first["runs"]
    assert [(r["way"], r["tokens"]) for r in both["runs"]] == [
        (way, n) for n in (64, 128) for way in costs.WAYS
    ]
    assert all(r["bytes"] > 0 and r["seconds"] > 0 for r in both["runs"])
    assert both["settings"] == lab.load("costs")["settings"]


def test_costs_are_of_ways_that_agree() -> None:
    q, k, v = torch.randn(3, 1, 1, 150, costs.HEAD_DIM, generator=draw()).double()
    softmax, view, pieces, toeplitz, fft = (way(q, k, v) for way in costs.WAYS.values())
    assert max_error(softmax, view) < 1e-12
    assert max_error(toeplitz, fft) < 1e-12
    running, _ = causal_linear_attention(
        elu_features(q), elu_features(k), v, positions=arange(150)
    )
    assert max_error(pieces, running) < 1e-12


def test_peak_bytes_counts_what_is_held_at_once() -> None:
    def two_then_one() -> Tensor:
        kept = torch.ones(1000)
        for _ in range(3):
            kept = kept + 1
        return kept

    assert 2 * 4000 <= costs.peak_bytes(two_then_one) < 2 * 4000 + 100, (
        "beside them, the number 1"
    )


def test_what_is_refused_is_stored_and_what_fails_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(message: str) -> Callable[..., Tensor]:
        def way(*_: Tensor) -> Tensor:
            raise RuntimeError(message)

        return way

    monkeypatch.setitem(
        costs.WAYS,
        "large",
        raising("can't allocate memory: you tried to allocate 7 bytes"),
    )
    found = costs.measure("large", 4)
    assert found == {
        "way": "large",
        "tokens": 4,
        "refused": "can't allocate memory: you tried to allocate 7 bytes",
    }
    monkeypatch.setitem(costs.WAYS, "wrong", raising("shapes"))
    with pytest.raises(RuntimeError, match="shapes"):
        costs.measure("wrong", 4)
    with pytest.raises(ValueError, match="name must be one of"):
        costs.measure("typo", 4)


def test_stored_costs_are_whole() -> None:
    stored = lab.load("costs")
    asked = [(r["way"], r["tokens"]) for r in stored["runs"]]
    assert sorted(asked) == sorted(product(costs.WAYS, costs.TOKENS))
    refused = [r for r in stored["runs"] if "refused" in r]
    assert [(r["way"], r["tokens"]) for r in refused] == [("full_scores", 65536)]
    assert str(8 * 65536**2) in refused[0]["refused"]
    assert stored["settings"]["limit"] == costs.LIMIT


def test_remedies_are_what_they_are_called() -> None:
    """Each against the scores that its equation gives, for one query and one key."""
    settings = replace(
        lab.EXPERIMENTS["rope-longer"], width=16, heads=2
    )  # d = 8, L = 32
    found, omega = lab.extension_methods(settings), inverse_frequencies(8)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=draw(5))
    at, past = torch.tensor([100]), torch.tensor([60])

    def score(each: PositionScheme) -> float:
        turned_q, turned_k = each.transform(q, k, at, past)
        return float((turned_q * turned_k).sum())

    def by_hand(frequencies: torch.Tensor) -> float:
        a, b = (torch.view_as_complex(x.reshape(4, 2)) for x in (q, k))
        return float((a * b.conj() * torch.exp(1j * 40 * frequencies)).sum().real)

    step = torch.where(32 * omega / (2 * math.pi) > 1, omega, omega / 4)
    factor = 0.1 * math.log(4) + 1
    ramp = ((32 * omega / (2 * math.pi) - 1) / 3).clamp(0, 1)
    expected = {
        "as trained": by_hand(omega),
        "PI 4": by_hand(omega / 4),
        "NTK 4": by_hand(omega * 4.0 ** (-torch.arange(4, dtype=torch.float64) / 3)),
        "step 4": by_hand(step),
        "ramp 4": factor**2 * by_hand(ramp * omega + (1 - ramp) * omega / 4),
        "log n": by_hand(omega) * math.log(101) / math.log(32),
    }
    for name, value in expected.items():
        assert score(found[name]) == pytest.approx(value, abs=1e-9), name
    for name in ("window 16", "window 32", "window 64"):
        assert score(found[name]) == pytest.approx(expected["as trained"], abs=1e-9)
        size = int(name.split()[1])
        assert found[name].mask(
            at, torch.tensor([101 - size, 100 - size])
        ).tolist() == [[True, False]]
    assert list(found) == [each.name for each in found.values()]
    with pytest.raises(ValueError, match="name must be one of 'rope'; got 'nope'"):
        lab.extension_run(settings, "nope", 0)


def test_a_longer_run_asks_all_remedies_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(extending.TUNING, "steps", 20)
    settings = replace(TINY, masked=True, lengths=(8, 16), steps=30, batch=16, lr=0.02)
    made = lab.extension_run(settings, "rope", 3)
    plain = lab.run(settings, "rope", 3)
    for length in ("8", "16"):
        assert made["total"][length] == sum(plain["total"][length])
        assert made["correct"]["as trained"][length] == sum(plain["correct"][length])
        assert (
            made["correct"]["window 16"][length]
            == made["correct"]["as trained"][length]
        )  # hides nothing below 16
    assert made["loss"] == plain["loss"]
    assert made == lab.extension_run(settings, "rope", 3)


@pytest.mark.parametrize(
    ("name", "width"), [("rope_longer", 32), ("rope_longer_wide", 64)]
)
def test_stored_longer_runs_are_whole(name: str, width: int) -> None:
    stored = lab.load(name)
    settings = stored["settings"]
    assert settings == replace(lab.EXPERIMENTS["rope-longer"], width=width)
    assert [r["seed"] for r in stored["runs"]] == list(range(5))
    for r in stored["runs"]:
        assert r["tuning"] == extending.TUNING
        assert r["total"] == {
            str(T): settings.sequences * (T - 3) for T in settings.lengths
        }
        assert list(r["correct"]) == list(lab.extension_methods(settings))
        assert list(r["tuned"]) == list(extending.TUNED)
        for right in (
            *r["correct"].values(),
            *(each["correct"] for each in r["tuned"].values()),
        ):
            assert all(0 <= right[T] <= r["total"][T] for T in r["total"])


@pytest.mark.parametrize(
    ("name", "experiment", "changed", "schemes"),
    [
        (
            "three_back",
            "three-back",
            {},
            {"nope", "sinusoid", "learned", "scrambled", "bias"},
        ),
        (
            "common_token",
            "common-token",
            {},
            {"nope", "sinusoid", "learned", "scrambled"},
        ),
        ("three_back_rope", "three-back", {}, {"rope"}),
        (
            "three_back_causal",
            "three-back",
            {"lengths": (32, 48, 64, 96, 128, 192, 256), "masked": True},
            {"rope", "bias", "sinusoid"},
        ),
        (
            "three_back_wide",
            "three-back",
            {"lengths": (32, 64, 128, 256), "width": 64},
            {"rope"},
        ),
        (
            "three_back_wide_causal",
            "three-back",
            {"lengths": (32, 64, 128, 256), "width": 64, "masked": True},
            {"rope", "bias", "sinusoid"},
        ),
        (
            "three_back_causal_100",
            "three-back",
            {"masked": True, "sequences": 64},
            {"rope-100"},
        ),
        (
            "three_back_wide_causal_half",
            "three-back",
            {"masked": True, "sequences": 64, "width": 64},
            {"rope-half", "rope-half-100"},
        ),
        (
            "three_back_buckets",
            "three-back",
            {"steps": 300, "batch": 32, "sequences": 64, "lengths": (32, 64, 128, 256)},
            {"sinusoid", "bias", "bias-128"},
        ),
        (
            "three_back_two_heads",
            "three-back",
            {"masked": True, "sequences": 64, "width": 64, "heads": 2},
            {"rope"},
        ),
    ],
)
def test_stored_runs_are_whole(
    name: str, experiment: str, changed: dict[str, Any], schemes: set[str]
) -> None:
    stored = lab.load(name)
    settings = stored["settings"]
    assert settings == replace(lab.EXPERIMENTS[experiment], **changed)
    assert set(stored["versions"]) == set(runs.versions())
    assert {(r["scheme"], r["seed"]) for r in stored["runs"]} == set(
        product(schemes, range(5))
    )
    skipped = 3 if experiment == "three-back" else 0
    for r in stored["runs"]:
        for length in settings.lengths:
            right, asked = r["correct"][str(length)], r["total"][str(length)]
            assert asked == [0] * skipped + [settings.sequences] * (length - skipped)
            assert len(right) == length
            assert all(0 <= a <= b for a, b in zip(right, asked, strict=True))


# ---- malformed input

BAD = {
    "k": (lambda: lab.k_back(0), ValueError, "k must be an integer ≥ 1, got 0"),
    "k float": (lambda: lab.k_back(1.5), TypeError, "k must be an integer ≥ 1, got 1.5"),
    "vocabulary": (
        lambda: lab.k_back(vocabulary=1),
        ValueError,
        "vocabulary must be an integer ≥ 2, got 1",
    ),
    "length": (
        lambda: lab.k_back(3).draw(2, 3, draw()),
        ValueError,
        "length must be an integer ≥ 4, got 3",
    ),
    "batch": (
        lambda: lab.common_token().draw(0, 3, draw()),
        ValueError,
        "batch must be an integer ≥ 1, got 0",
    ),
    "share": (
        lambda: lab.common_token(1.5),
        ValueError,
        "share must be at most 1, got 1.5",
    ),
    "share 0": (
        lambda: lab.common_token(0.0),
        ValueError,
        "share must be finite and above 0, got 0",
    ),
    "one token": (
        lambda: lab.best_without_order(1),
        ValueError,
        "length must be an integer ≥ 2, got 1",
    ),
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
        "scheme must be a PositionScheme such as scheme.NOPE, got 'rope'",
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
    "sequences": (
        lambda: lab.accuracy(model(), lab.k_back(), [5], draw(), sequences=0),
        ValueError,
        "sequences must be an integer ≥ 1, got 0",
    ),
    "steps": (
        lambda: lab.train(
            model(), lab.k_back(), length=5, steps=0, batch=1, lr=0.1, generator=draw()
        ),
        ValueError,
        "steps must be an integer ≥ 1, got 0",
    ),
    "lr": (
        lambda: lab.train(
            model(), lab.k_back(), length=5, steps=1, batch=1, lr=-1.0, generator=draw()
        ),
        ValueError,
        "lr must be finite and above 0, got -1",
    ),
    "task": (
        lambda: lab.Settings("two-back"),
        ValueError,
        "task must be one of 'three-back', 'common-token'",
    ),
    "run": (
        lambda: lab.run(TINY, "typo", 0),
        ValueError,
        "name must be one of 'nope', 'sinusoid'",
    ),
    "sweep": (
        lambda: lab.sweep(Path("never"), TINY, ["typo"], [0]),
        ValueError,
        "names must be one of 'nope'",
    ),
    "load": (
        lambda: lab.load("typo"),
        ValueError,
        "name must be one of 'common_token', 'costs', 'performance', 'rope_longer'.*; "
        "got 'typo'",
    ),
    "dim": (
        lambda: lab.scrambled(arange(3), 0),
        ValueError,
        "dim must be an integer ≥ 1, got 0",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_malformed_input_is_named(case: str) -> None:
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()
