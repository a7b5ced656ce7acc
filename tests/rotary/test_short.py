"""The form for few numbers, and query and key joined: the numbers of the long form."""

from __future__ import annotations

import copy
import pickle
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary import LAYOUTS, AxialRoPE, RoPE, Rotation, _short, multiaxis
from posenc_lib.rotary import rope as rope_module
from posenc_lib.rotary._apply import apply_rotary, complex_in_place
from tests.rotary.test_apply import MEMORY, Allocated, tables

layouts = pytest.mark.parametrize("layout", LAYOUTS)
Q, K = (normal(2, heads, 3, 8, seed=heads, dtype=torch.float32) for heads in (4, 2))


def rotation_of(*shape: int, layout: str) -> Rotation:
    made = Rotation(*tables(*shape, dtype=torch.float32), layout)
    assert made._factors
    return made


def long_form(rotation: Rotation, x: Tensor) -> Tensor:
    """What `test_apply` holds to the equation."""
    cos, sin = rotation.cos, rotation.sin
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    return apply_rotary(x, cos, sin, rotation.layout)


@settings(max_examples=200)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_it_is_the_long_form_bit_for_bit(data: st.DataObject, layout: str) -> None:
    def drawn(*choices: Any) -> Any:
        return data.draw(st.sampled_from(choices))

    b, t, pairs = drawn(0, 1, 2, 3), drawn(1, 2, 3), data.draw(st.integers(1, 9))
    rotation = rotation_of(*drawn((t,), (b, t)), pairs, layout=layout)
    width = 2 * pairs + drawn(0, 0, 3)
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    dtype = drawn(*dtypes)
    q, k = (
        MEMORY[drawn(*MEMORY)](
            b, heads, t, width, seed=heads, dtype=drawn(dtype, dtype, *dtypes)
        )
        for heads in (drawn(1, 2, 3), drawn(1, 2))
    )
    with torch.no_grad():
        alone, joined = (rotation(q), rotation(k)), rotation.both(q, k)
    for x, y, z in zip((q, k), alone, joined, strict=True):
        expected = long_form(rotation, x)
        if layout == "half" or complex_in_place(x.float()):
            assert torch.equal(y, expected)
        if layout == "half":  # a complex product is rounded by its place in memory
            assert torch.equal(z, expected)
        for rotated in (y, z):
            eps = torch.finfo(x.dtype).eps
            torch.testing.assert_close(rotated, expected, rtol=0, atol=8 * eps)


@layouts
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_taken_for_few_numbers(layout: str, dtype: torch.dtype) -> None:
    rotation, (q, k) = rotation_of(3, 4, layout=layout), (x.to(dtype) for x in (Q, K))

    def operations(*, most: int) -> int:
        with patch.object(_short, "SHORT", most), torch.no_grad(), Allocated() as made:
            rotation.both(q, k)
        return made.operations

    together, apart, long = (
        operations(most=most)
        for most in (q.numel() + k.numel(), q.numel() + k.numel() - 1, 0)
    )
    assert together < apart < long
    assert not Rotation(*tables(600, 4, dtype=torch.float32), layout)._factors


@layouts
def test_what_looks_into_operations_has_none_of_it(layout: str) -> None:
    rope, positions = RoPE(inverse_frequencies(8), layout), torch.arange(3)
    cos, sin = tables(3, 4, dtype=torch.float32)
    rotation, expected = Rotation(cos, sin, layout), Rotation(cos, sin, layout)(Q)
    same = torch.testing.assert_close
    made: list[Rotation] = []

    def rotated(x: Tensor, p: Tensor) -> Tensor:
        made.append(rope(p))
        return made[-1].both(x, x)[1]

    same(torch.vmap(rotated, (None, 0))(Q, positions[None])[0], rope(positions)(Q))
    torch.func.jvp(lambda x: rotated(x, positions), (Q,), (Q,))
    assert not any(each._factors for each in made)
    with torch.no_grad():
        for y in torch.vmap(rotation.both)(Q[:, None], Q[:, None]):
            same(y[:, 0], expected)
    same(torch.func.jvp(rotation, (Q,), (Q,))[1], expected)
    learned = Rotation(cos.clone().requires_grad_(), sin, layout)
    assert not learned._factors
    torch._dynamo.reset()
    for dynamic in (False, True):
        compiled = torch.compile(
            lambda q, k, p: (*rotation.both(q, k), *rope(p).both(q, k)),
            backend="aot_eager",
            fullgraph=True,
            dynamic=dynamic,
        )
        with torch.no_grad():
            actual = compiled(Q, K, positions)
        wanted = (*rotation.both(Q, K), *rope(positions).both(Q, K))
        for y, z in zip(actual, wanted, strict=True):
            same(y, z)


@layouts
def test_gradients_of_both(layout: str) -> None:
    rotation = rotation_of(3, 4, layout=layout)
    q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
    rotated = rotation.both(q, k)
    for y, x in zip(rotated, (q, k), strict=True):
        assert torch.equal(y, long_form(rotation, x))
        y.mul_(2)  # each has its own memory
    grads = torch.autograd.grad(rotated, (q, k), (Q, K))
    for grad, x in zip(grads, (Q, K), strict=True):
        torch.testing.assert_close(grad, 2 * rotation.inverse()(x))


@layouts
def test_both_without_memory(layout: str) -> None:
    rotation = rotation_of(3, 4, layout=layout)
    on_meta = Rotation(rotation.cos.to("meta"), rotation.sin.to("meta"), layout)
    with torch.no_grad():
        assert [y.shape for y in on_meta.both(Q.to("meta"), K.to("meta"))] == [
            Q.shape,
            K.shape,
        ]
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            q, k = mode.from_tensor(Q), mode.from_tensor(K)
            assert [y.shape for y in rotation.both(q, k)] == [Q.shape, K.shape]


@layouts
def test_copies_rotate_alike(layout: str) -> None:
    rotation = rotation_of(3, 4, layout=layout)
    for other in (copy.deepcopy(rotation), pickle.loads(pickle.dumps(rotation))):
        assert other._factors
        assert torch.equal(other(Q), rotation(Q))


@pytest.mark.parametrize("grad", [False, True])
def test_errors_of_both(grad: bool) -> None:
    rotation = rotation_of(3, 4, layout="half")
    batched = rotation_of(2, 3, 4, layout="half")
    with torch.set_grad_enabled(grad):
        for made, q, k, said in (
            (rotation, Q[:, :, :2], K[:, :, :2], r"^q must .*\(2, 4, 2, 8\)"),
            (rotation, Q, K[:, :, :2], r"^k must .*\(2, 2, 2, 8\)"),
            (rotation, Q[..., :6], K[..., :6], "^q must have at least 8 channels"),
            (batched, Q[:1], K[:1], r"^q must .*B = 2.*\(1, 4, 3, 8\)"),
        ):
            with pytest.raises(ValueError, match=said):
                made.both(q, k)
        with pytest.raises(TypeError, match=r"^k must be a floating-point"):
            rotation.both(Q, "k")


@layouts
@pytest.mark.parametrize("axes", [1, 2])
def test_transform_makes_one_table_for_equal_positions(layout: str, axes: int) -> None:
    rope: Any = RoPE(inverse_frequencies(8), layout)
    module, table, positions = rope_module, "cos_sin", arange(3)
    if axes == 2:
        rope = AxialRoPE(normal(2, 4), layout)
        module, table = multiaxis, "_axial_cos_sin"
        positions = torch.stack((arange(3), arange(3)), -1)
    with patch.object(module, table, wraps=getattr(module, table)) as made:
        actual = rope.transform(Q, K, positions, positions)
        assert made.call_count == 1
        expected = rope.transform(Q, K, positions, positions.clone())
        assert made.call_count == 3
    assert all(map(torch.equal, actual, expected))
