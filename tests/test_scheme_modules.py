"""Schemes as modules: what learns in one is trained, saved and cast with its model."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from helpers import HEADS, WIDTH, normal, seeded
from registry import OTHER_EXAMPLES, axes_of, fields, inputs_of, parameters
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from posenc_lib import checkpoints, layers
from posenc_lib import scheme as schemes
from posenc_lib.attention import attention, prepare
from posenc_lib.bias import T5Bias, alibi, alibi_slopes
from posenc_lib.content import Shaw, TransformerXL
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange, grid
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import NOPE, LayerSchemes, PositionScheme
from posenc_lib.zoo import Entry, encodings

# Rows whose example wants a picture of 4 × 4 patches.
OF_PATCHES = ("Swin's bias", "BEiT's bias", "Learned grid")
ROWS: dict[str, Entry] = {
    row.name: row
    for row in encodings()
    if fields(row) and (row.name in OF_PATCHES or row.name not in OTHER_EXAMPLES)
}


class Holder(nn.Module):
    """A user's module: the scheme is an attribute, and nothing else is done for it."""

    def __init__(self, scheme: PositionScheme, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.scheme = scheme
        self.inputs = inputs  # of each field

    def forward(self) -> Tensor:
        """All that the scheme computes, squared and added."""
        total = torch.zeros(())
        for field, inputs in self.inputs.items():
            out = getattr(self.scheme, field)(**inputs)
            for x in out if isinstance(out, tuple) else (out,):
                if x.is_floating_point():
                    total = total + (x.float() - 0.3).square().sum()
        return total


def holder(name: str, dtype: torch.dtype = torch.float32) -> Holder:
    """A row's example in a module, with inputs in `dtype` for each of its fields."""
    row = ROWS[name]
    assert isinstance(row.where, PositionScheme)
    inputs = {}
    for field, part in fields(row).items():
        if name in OF_PATCHES:
            names = parameters(part)
            given = {each: grid((4, 4)) for each in names}
        else:
            given = inputs_of(field, part, axes_of(field, part))(5, 0)
        inputs[field] = {
            key: x.to(dtype) if key in ("q", "k", "v", "weights", "q_x", "k_x") else x
            for key, x in given.items()
        }
    return Holder(copy.deepcopy(row.where), inputs)


def values(module: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in module.named_parameters()}


LEARNED = [name for name in ROWS if next(holder(name).parameters(), None) is not None]


def test_how_many_schemes_learn() -> None:
    """A sweep that loses its rows would pass in silence."""
    assert len(ROWS) >= 78
    assert len(LEARNED) >= 35


@pytest.mark.parametrize("name", LEARNED)
def test_five_steps_move_a_scheme_that_learns(name: str) -> None:
    model = holder(name)
    before = values(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(5):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    moved = {n for n, x in model.named_parameters() if not torch.equal(x, before[n])}
    used = {n for n, x in model.named_parameters() if x.grad is not None}
    assert used
    assert moved == {n for n in used if bool((model.get_parameter(n).grad != 0).any())}
    assert moved


@pytest.mark.parametrize("name", LEARNED)
def test_a_scheme_is_saved_with_its_model(name: str) -> None:
    model = holder(name)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=seeded(5))
    state = {name: x.clone() for name, x in model.state_dict().items()}
    assert set(state) == set(values(model))  # each once, and no constant
    stored = io.BytesIO()
    torch.save(state, stored)
    stored.seek(0)
    other = holder(name)
    other.load_state_dict(torch.load(stored), strict=True)
    assert torch.equal(other(), model())
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(), model())
        with torch.no_grad():
            for parameter in same.parameters():
                parameter.add_(1.0)
        assert all(map(torch.equal, values(model).values(), state.values()))


@pytest.mark.parametrize("name", ROWS)
def test_a_cast_reaches_parameters_and_no_constant(name: str) -> None:
    plain, cast = holder(name), holder(name, torch.bfloat16).bfloat16()
    assert all(x.dtype == torch.bfloat16 for x in cast.state_dict().values())
    loss = cast()
    assert bool(loss.isfinite())
    if name in LEARNED:
        loss.backward()
        return
    # Without parameters the cast changes nothing: tables stay what they were.
    assert torch.equal(holder(name, torch.bfloat16)(), loss)
    assert bool(plain().isfinite())


@pytest.mark.parametrize("name", ROWS)
def test_meta_then_loaded_is_the_same(name: str) -> None:
    model = holder(name)
    expected = model()
    state = {key: x.clone() for key, x in model.state_dict().items()}
    moved = model.to("meta").to_empty(device="cpu")
    moved.load_state_dict(state)
    assert torch.equal(moved(), expected)


def test_made_on_meta_and_filled() -> None:
    """The way of large models: built without memory, then loaded."""
    made: list[Callable[[], PositionScheme]] = [
        partial(schemes.t5, HEADS, bidirectional=False, std=1.0, generator=seeded()),
        partial(schemes.learned, 9, WIDTH),
        partial(schemes.kerple, HEADS, generator=seeded()),
        partial(schemes.fire, HEADS, generator=seeded()),
        partial(schemes.rope, WIDTH),
        partial(schemes.mrope, WIDTH, 1e4, (2, 1, 1), interleaved=True),
        partial(schemes.alibi, HEADS),
        partial(schemes.sinusoidal, WIDTH),
    ]
    for make in made:
        whole = make()
        with torch.device("meta"):
            empty = make()
        assert all(x.device.type == "meta" for x in empty.parameters())
        filled = empty.to_empty(device="cpu")
        filled.load_state_dict(whole.state_dict())
        axes = 3 if whole.name == "M-RoPE" else None
        for field in whole.places:
            part = getattr(whole, field)
            inputs = inputs_of(field, part, axes)(4, 1)
            pair = getattr(filled, field)(**inputs), part(**inputs)
            torch.testing.assert_close(*pair, rtol=0, atol=0)


# ---- names


def test_where_parameters_are_found() -> None:
    t5 = schemes.t5(HEADS, bidirectional=False, std=1.0)
    shaw = Shaw(WIDTH, clip=3)
    both = PositionScheme("Shaw", scores=shaw.scores, values=shaw.values)
    xl = TransformerXL(HEADS, WIDTH, WIDTH)
    partly = PositionScheme("XL", scores=partial(called, layer=xl))
    assert list(t5.state_dict()) == ["bias.table"]
    assert list(both.state_dict()) == [
        "scores_module.key_table",
        "scores_module.value_table",
    ]
    assert {name.split(".")[0] for name in partly.state_dict()} == {"scores_module"}
    assert t5.get_submodule("bias") is t5.bias
    assert both.get_parameter("scores_module.key_table") is shaw.key_table
    assert not list(schemes.rope(WIDTH).buffers())
    assert "'T5', bias" in repr(t5)


def called(*at: Tensor, layer: Any, other: Any = None) -> Tensor:
    return layer.scores(*at)


def test_a_scheme_is_made_once() -> None:
    t5 = schemes.t5(HEADS, bidirectional=False, std=1.0)
    for scheme, field, value in (
        (NOPE, "bias", t5.bias),
        (t5, "bias", None),
        (t5, "bias", partial(alibi, slopes=alibi_slopes(HEADS))),
        (t5, "scale", 2.0),
        (t5, "name", "x"),
    ):
        with pytest.raises(AttributeError, match=rf"{field} can't be changed.*replace"):
            setattr(scheme, field, value)
    other = replace(t5, scale=2.0)
    assert other.bias is t5.bias
    assert (other.scale, t5.scale) == (2.0, 1.0)


def test_a_wrapper_takes_the_place_of_a_module() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.module(*args, **kwargs)

    t5 = schemes.t5(HEADS, bidirectional=False, std=1.0)
    wrapper = Wrapper(t5.bias)
    t5.bias = wrapper
    t5.bias(arange(3), arange(3))
    assert wrapper.calls == 1
    shaw = Shaw(WIDTH, clip=3)
    both = PositionScheme("Shaw", scores=shaw.scores, values=shaw.values)
    with pytest.raises(AttributeError, match="scores_module can't be replaced"):
        both.scores_module = Wrapper(shaw)


def test_a_copy_never_shares_what_it_should_own() -> None:
    table = T5Bias(HEADS, bidirectional=False, std=1.0)
    closed = PositionScheme("closed", bias=lambda m, n: table(m, n))
    assert list(closed.state_dict()) == ["bias_module.table"]  # it learns all the same
    with pytest.raises(TypeError, match=r"bias can't be copied.*functools\.partial"):
        copy.deepcopy(closed)


class Plain:
    """A callable that is no module, with one inside."""

    def __init__(self, table: nn.Module) -> None:
        self.table = {"its": (table,)}

    def __call__(self, m: Tensor, n: Tensor) -> Tensor:
        return self.table["its"][0](m, n)


def test_wherever_a_module_hides_it_is_found() -> None:
    def table() -> T5Bias:
        return T5Bias(HEADS, bidirectional=False, std=1.0)

    def wrapped(m: Tensor, n: Tensor) -> Tensor:
        return later(m, n)

    hidden_in = {
        "an object": Plain(table()),
        "a method of an object": Plain(table()).__call__,
        "a default": lambda m, n, t=two_tables[0]: t(m, n),
        "a keyword's default": lambda m, n, *, t=two_tables[0]: t(m, n),
        "a dictionary": partial(lambda m, n, d: d["t"](m, n), d={"t": table()}),
        "a cache": lru_cache(lambda m, n, t=two_tables[0]: t(m, n)),
        "a list": partial(lambda m, n, parts: parts[0](m, n), parts=[table()]),
    }
    for where, function in hidden_in.items():
        scheme = PositionScheme(where, bias=function)
        assert list(scheme.state_dict()) == ["bias_module.table"], where
    # A name that is bound later, a function that holds itself, a builtin: no error.
    assert not list(PositionScheme("later", bias=wrapped).state_dict())
    assert not list(PositionScheme("builtin", scores=torch.add).state_dict())
    later = table()
    assert wrapped(arange(2), arange(2)).shape == (1, HEADS, 2, 2)


two_tables = [T5Bias(HEADS, bidirectional=False, std=1.0) for _ in range(2)]


def test_several_modules_of_one_field_are_all_found() -> None:
    first, second = two_tables
    both = PositionScheme("both", bias=partial(added, first=first, second=second))
    assert list(both.state_dict()) == ["bias_module.0.table", "bias_module.1.table"]
    shaw = Shaw(WIDTH, clip=3)
    shared = PositionScheme(
        "shared", scores=partial(called, layer=shaw, other=first), values=shaw.values
    )
    assert len(shared.state_dict()) == 3  # each once


def added(m: Tensor, n: Tensor, *, first: T5Bias, second: T5Bias) -> Tensor:
    return first(m, n) + second(m, n)


def test_a_scheme_can_not_hold_its_own_model() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = T5Bias(HEADS, bidirectional=False, std=1.0)
            self.scheme = PositionScheme("mine", bias=self.bias)

        def bias(self, m: Tensor, n: Tensor) -> Tensor:
            return self.table(m, n)

    for use in (Owner().train, Owner().double):
        with pytest.raises(ValueError, match="'mine' is the model that holds the sch"):
            use()


def test_a_subclass_gives_its_functions_as_fields() -> None:
    with pytest.raises(TypeError, match="Mine must not define bias, which is a field"):

        class Mine(PositionScheme):
            def bias(self, m: Tensor, n: Tensor) -> Tensor:
                return m


def test_a_parameter_needs_a_module() -> None:
    rope = RoPE(nn.Parameter(inverse_frequencies(WIDTH).float()))
    with pytest.raises(TypeError, match=r"transform must hold its parameters in an nn"):
        PositionScheme("learned frequencies", transform=rope.transform)


# ---- models


class Model(nn.Module):
    """Two layers of attention under one scheme, as the guide writes them."""

    def __init__(self, scheme: PositionScheme | LayerSchemes) -> None:
        super().__init__()
        self.scheme = scheme
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * WIDTH)
        nn.init.normal_(self.qkv.weight, std=0.3, generator=seeded(3))
        nn.init.zeros_(self.qkv.bias)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x, at = prepare(x, self.scheme, q_positions=positions, causal=True)
        for layer in range(2):
            q, k, v = (
                self.qkv(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
            )
            x = x + attention(q, k, v, scheme=at.layer(layer)).mean(1)
        return x


MADE: dict[str, Callable[[], PositionScheme | LayerSchemes]] = {
    "NoPE": lambda: PositionScheme("NoPE"),
    "sinusoidal": lambda: schemes.sinusoidal(WIDTH),
    "learned": lambda: schemes.learned(9, WIDTH, generator=seeded()),
    "RoPE": lambda: schemes.rope(WIDTH),
    "ALiBi": lambda: schemes.alibi(HEADS),
    "T5": lambda: schemes.t5(HEADS, bidirectional=False, std=1.0, generator=seeded()),
    "KERPLE": lambda: schemes.kerple(HEADS, generator=seeded()),
    "FIRE": lambda: schemes.fire(HEADS, generator=seeded()),
    "Shaw": lambda: of_shaw(Shaw(WIDTH, clip=3, generator=seeded())),
    "a plan": lambda: layers.schemes(layers.gemma3(2, window=2), WIDTH, layout="half"),
}


def of_shaw(shaw: Shaw) -> PositionScheme:
    return PositionScheme("Shaw", scores=shaw.scores, values=shaw.values)


@pytest.mark.parametrize("name", MADE)
def test_compiled_exported_and_functional(name: str) -> None:
    model, x = Model(MADE[name]()), normal(2, 5, WIDTH, dtype=torch.float32)
    expected = model(x, arange(5))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x, arange(5))
    torch.testing.assert_close(compiled, expected, rtol=1e-5, atol=1e-5)
    exported = torch.export.export(model, (x, arange(5)), strict=False)
    torch.testing.assert_close(
        exported.module()(x, arange(5)), expected, rtol=1e-5, atol=1e-5
    )
    assert set(exported.state_dict) == set(model.state_dict())
    state = {key: value + 0.1 for key, value in model.named_parameters()}
    functional = torch.func.functional_call(model, state, (x, arange(5)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(model(x, arange(5)), functional)


@pytest.mark.parametrize("name", MADE)
def test_a_step_of_a_model_moves_its_scheme(name: str) -> None:
    model = Model(MADE[name]())
    before = values(model.scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = normal(2, 5, WIDTH, dtype=torch.float32)
    model(x, arange(5)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(x, before[n]) for n, x in values(model.scheme).items())


def test_a_scheme_is_sharded_with_its_model() -> None:
    """By FSDP 2, on one rank: the table is sharded, and a step moves it."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = Model(MADE["T5"]())
        x = normal(2, 5, WIDTH, dtype=torch.float32)
        expected = model(x, arange(5))
        before = model.scheme.bias.table.detach().clone()
        fully_shard(model, mesh=mesh)
        assert isinstance(model.scheme.bias.table, DTensor)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        out = model(x, arange(5))
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        optimizer.step()
        assert not torch.equal(model.scheme.bias.table.full_tensor(), before)
        assert list(model.scheme.state_dict()) == ["bias.table"]
    finally:
        torch.distributed.destroy_process_group()


def test_a_scheme_that_layers_share_is_held_once() -> None:
    t5 = checkpoints.read("class-default-t5").stacks[0].schemes(generator=seeded())
    assert len(t5) > 1
    assert len(t5.state_dict()) == 1
    gpt2 = checkpoints.read("gpt2").stacks[0].schemes(generator=seeded())
    assert list(gpt2.state_dict()) == ["before.embedding.table"]
    assert len(gpt2) == 12
