"""The rotation that is written into its result, compared with the equation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from posenc_lib.rotary import LAYOUTS, Rotation, _apply
from posenc_lib.rotary._apply import apply_rotary
from posenc_lib.rotary.pairs import rotate_pairs

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

layouts = pytest.mark.parametrize("layout", LAYOUTS)


def tables(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    angles = 5 * normal(*shape, seed=1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def assert_rotated(
    actual: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: str
) -> None:
    """Whether `actual` is the equation in float64, but for three roundings of a compute
    step and one to x's dtype.
    """
    assert (actual.shape, actual.dtype) == (x.shape, x.dtype)
    expected = rotate_pairs(
        x.detach().double(), cos.detach().double(), sin.detach().double(), layout
    )
    compute = torch.promote_types(
        torch.promote_types(x.dtype, cos.dtype), torch.float32
    )
    rounding = 3 * torch.finfo(compute).eps + torch.finfo(x.dtype).eps
    largest = 2 * float(x.detach().double().abs().amax()) if x.numel() else 0.0
    assert bool(
        ((actual.detach().double() - expected).abs() <= rounding * largest).all()
    )


# ---- memory: where x and the result lie

# (B, H, T, d) as models hold it: of its own, projected, a part of a fused projection,
# at odd places, repeated
MEMORY: dict[str, Callable[..., Tensor]] = {
    "plain": normal,
    "projected": lambda b, h, t, d, **kw: normal(b, t, h, d, **kw).transpose(1, 2),
    "fused": lambda b, h, t, d, **kw: normal(b, t, 3, h, d, **kw)[:, :, 1].transpose(
        1, 2
    ),
    "odd offset": lambda b, h, t, d, **kw: normal(b * h * t * d + 1, **kw)[1:].view(
        b, h, t, d
    ),
    "odd strides": lambda b, h, t, d, **kw: normal(b, h, t, d + 1, **kw)[..., :d],
    "every second": lambda b, h, t, d, **kw: normal(b, h, t, 2 * d, **kw)[..., ::2],
    "channels first": lambda b, h, t, d, **kw: normal(d, t, h, b, **kw).permute(
        3, 2, 1, 0
    ),
    "one batch for all": lambda b, h, t, d, **kw: normal(1, h, t, d, **kw).expand(
        b, h, t, d
    ),
    "one channel for all": lambda b, h, t, d, **kw: normal(b, h, t, 1, **kw).expand(
        b, h, t, d
    ),
}

WRITABLE = tuple(name for name in MEMORY if "for all" not in name)


@settings(max_examples=200)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    block=st.sampled_from((1, 6, 40, _apply.BLOCK)),
)
def test_what_is_written_is_the_equation(
    data: st.DataObject, layout: str, block: int
) -> None:
    b, h, t = (
        data.draw(st.integers(0, 3)),
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(0, 4)),
    )
    pairs, rest = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    shape = (b, h, t, 2 * pairs + rest)
    kw = {"dtype": data.draw(st.sampled_from(FLOATS))}
    lead = data.draw(st.sampled_from(((t,), (b, 1, t), (h, t), (b, h, t))))
    cos, sin = tables(
        *lead, pairs, dtype=data.draw(st.sampled_from((torch.float32, torch.float64)))
    )
    into = data.draw(st.sampled_from(("a new tensor", "x", *WRITABLE)))
    x = MEMORY[data.draw(st.sampled_from(WRITABLE if into == "x" else tuple(MEMORY)))](
        *shape, **kw
    )
    before = x.clone()
    out = (
        {"a new tensor": None, "x": x}.get(into)
        if into in ("a new tensor", "x")
        else MEMORY[into](*shape, **kw)
    )
    with patch.object(_apply, "BLOCK", block):
        y = apply_rotary(x, cos, sin, layout, out=out)
    assert out is None or y is out
    assert_rotated(y, before, cos, sin, layout)
    assert torch.equal(y[..., 2 * pairs :], before[..., 2 * pairs :])
    assert into == "x" or torch.equal(x, before)


@layouts
@pytest.mark.parametrize("dtype", FLOATS)
def test_out_may_overlap_x(layout: str, dtype: torch.dtype) -> None:
    cos, sin = tables(3, 2, dtype=torch.promote_types(dtype, torch.float32))
    for shape, axis in (
        ((2, 2, 3, 9), 3),
        ((2, 2, 6, 5), 2),
        ((2, 4, 3, 5), 1),
        ((4, 2, 3, 5), 0),
    ):
        for shift in range(1, shape[axis] // 2 + 1):
            memory = normal(*shape, dtype=dtype)
            x, out = (
                memory.narrow(axis, start, (2, 2, 3, 5)[axis]) for start in (0, shift)
            )
            before = x.clone()
            with patch.object(_apply, "BLOCK", 10):
                assert_rotated(
                    Rotation(cos, sin, layout)(x, out=out), before, cos, sin, layout
                )
    x = normal(1, 2, 3, 4, dtype=dtype)
    before = x.clone()
    assert_rotated(
        Rotation(cos, sin, layout)(x, out=x.as_strided(x.shape, (1, *x.stride()[1:]))),
        before,
        cos,
        sin,
        layout,
    )


@layouts
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0, 1, 2, 8])
def test_memory_that_numpy_gives(layout: str, dtype: type, shift: int) -> None:
    numbers = np.random.default_rng(0).normal(size=1000).astype(dtype)
    for start in (0, 1):  # from 1 on, pairs do not lie where complex numbers may
        x = torch.from_numpy(numbers[start:][:48]).view(2, 3, 8)
        out = torch.from_numpy(numbers[start + shift :][:48]).view(
            2, 3, 8
        )  # its own storage, the same memory
        before, (cos, sin) = x.clone(), tables(3, 4, dtype=x.dtype)
        assert_rotated(Rotation(cos, sin, layout)(x), before, cos, sin, layout)
        assert_rotated(Rotation(cos, sin, layout)(x, out=out), before, cos, sin, layout)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_complex_numbers_begin_where_their_kernel_can_read_them(dtype: type) -> None:
    numbers = np.ones(16, dtype)
    assert _apply.complex_in_place(torch.from_numpy(numbers[2:]))
    between = torch.from_numpy(numbers[1:3]).view(
        1, 2
    )  # in float64 a complex kernel ends the process here
    assert not _apply.complex_in_place(between)
    cos, sin = (torch.from_numpy(np.full((1, 1), number, dtype)) for number in (0, 1))
    assert Rotation(cos, sin)(between, out=between).tolist() == [[-1, 1]]


def test_a_negated_view() -> None:
    x, (cos, sin) = (
        normal(2, 3, 4, dtype=torch.float32),
        tables(3, 2, dtype=torch.float32),
    )
    assert_rotated(Rotation(cos, sin)(torch._neg_view(x)), -x, cos, sin, "interleaved")


@layouts
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_holds_for_another_batch(layout: str) -> None:
    cos, sin = tables(3, 2, dtype=torch.float32)
    with patch.object(_apply, "BLOCK", 10):
        traced = torch.jit.trace(
            Rotation(cos, sin, layout).__call__,
            (normal(2, 2, 3, 4, dtype=torch.float32),),
        )
    x = normal(5, 2, 3, 4, dtype=torch.float32)
    assert_rotated(traced(x), x, cos, sin, layout)


@layouts
def test_a_long_head_is_rotated_in_parts(layout: str) -> None:
    x, (cos, sin) = (
        normal(1, 1, 300, 8, dtype=torch.bfloat16),
        tables(300, 4, dtype=torch.float32),
    )
    with patch.object(_apply, "BLOCK", 200), Allocated() as seen:
        y = apply_rotary(x, cos, sin, layout)
    assert_rotated(y, x, cos, sin, layout)
    table = [300 * 4 * 8] if layout == "interleaved" else []
    assert sorted(seen.bytes)[-2 - len(table) :] == [4 * 200, x.nbytes, *table]


X = normal(2, 3, 4)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (X[..., :3], r"\(2, 3, 3\) in torch.float64"),
        (X.float(), "in torch.float32"),
        (X.to("meta"), "on meta"),
        ("x", "'x'"),
        (X[:1].expand(2, 3, 4), r"strides \(0, 4, 1\)"),
        (X.flatten().as_strided((2, 3, 4), (1, 4, 1)), r"strides \(1, 4, 1\)"),
        (X.clone().requires_grad_(), "gradient"),
    ],
)
def test_errors_of_out(out: Any, said: str) -> None:
    with pytest.raises(
        ValueError if isinstance(out, Tensor) else TypeError,
        match=f"^out must .*{said}",
    ):
        Rotation(*tables(3, 2))(X, out=out)


def test_out_has_no_gradient() -> None:
    cos, sin = tables(3, 2)
    parameter = torch.nn.Parameter(X.clone())
    for x, rotation in (
        (parameter, Rotation(cos, sin)),
        (X, Rotation(cos.clone().requires_grad_(), sin)),
    ):
        with pytest.raises(ValueError, match="out must be None"):
            rotation(x, out=torch.empty_like(X))
        with torch.no_grad():
            assert_rotated(
                rotation(x, out=torch.empty_like(X)), X, cos, sin, "interleaved"
            )
    with torch.no_grad():
        assert Rotation(cos, sin)(parameter, out=parameter) is parameter
    assert_rotated(parameter, X, cos, sin, "interleaved")


class Allocated(TorchDispatchMode):
    """Bytes of every new tensor that holds memory of its own, and the number of
    operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor)]
        memory = {x.untyped_storage().data_ptr() for x in given}
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in memory:
            self.bytes.append(out.untyped_storage().nbytes())
        return out


def test_nothing_but_the_result_and_a_table_is_allocated() -> None:
    x, (cos, sin) = (
        normal(4, 2, 8, 6, dtype=torch.float32),
        tables(8, 3, dtype=torch.float32),
    )
    with Allocated() as made:
        apply_rotary(x, cos, sin, "interleaved")
    assert sorted(made.bytes) == [8 * 6 * 4, x.nbytes]
    with Allocated() as made:
        apply_rotary(x, cos, sin, "interleaved", out=x)
    assert made.bytes == [8 * 6 * 4]


@layouts
@pytest.mark.parametrize("shape", [(2, 2, 64, 8), (512, 2, 1, 8), (1, 128, 8, 8)])
def test_sixteen_bits_are_converted_in_blocks(
    layout: str, shape: tuple[int, ...]
) -> None:
    x, (cos, sin) = (
        normal(*shape, dtype=torch.bfloat16),
        tables(shape[2], 4, dtype=torch.float32),
    )
    with patch.object(_apply, "BLOCK", 512), Allocated() as made:
        apply_rotary(x, cos, sin, layout)
    assert sorted(made.bytes)[-2:] == [
        512 * 4,
        x.nbytes,
    ]  # no more than a block, in float32
    blocks = x.numel() // 512
    assert made.operations <= 30 * blocks  # not one a row


@layouts
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tables_of_sixteen_bits_are_multiplied_in_float32(
    layout: str, dtype: torch.dtype
) -> None:
    cos, sin = tables(3, 2, dtype=dtype)
    assert_rotated(
        Rotation(cos, sin, layout)(X.to(dtype)), X.to(dtype), cos, sin, layout
    )


# ---- derivatives and transforms
TABLES = ((3, 2), (2, 1, 3, 2), (2, 3, 2), (2, 2, 3, 2))


@layouts
@pytest.mark.parametrize("width", [4, 7])
@pytest.mark.parametrize("shape", TABLES)
def test_derivatives(layout: str, width: int, shape: tuple[int, ...]) -> None:
    inputs = [t.requires_grad_() for t in (normal(2, 2, 3, width), *tables(*shape))]

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return apply_rotary(x, cos, sin, layout)

    every = {"check_batched_grad": True, "fast_mode": True}
    assert torch.autograd.gradcheck(rotated, inputs, check_forward_ad=True, **every)
    assert torch.autograd.gradgradcheck(
        rotated, inputs, check_fwd_over_rev=True, **every
    )


@layouts
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_are_those_of_the_equation(layout: str, dtype: torch.dtype) -> None:
    learned = [t.requires_grad_() for t in tables(3, 2, dtype=torch.float32)]
    x, grad = (
        normal(2, 2, 3, 5, dtype=dtype).requires_grad_(),
        normal(2, 2, 3, 5, dtype=dtype, seed=3),
    )
    actual = torch.autograd.grad(apply_rotary(x, *learned, layout), (x, *learned), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, *learned)]
    expected = torch.autograd.grad(rotate_pairs(*wide, layout), wide, grad.double())
    for got, wanted, of in zip(actual, expected, (x, *learned), strict=True):
        assert got.dtype == of.dtype
        torch.testing.assert_close(
            got.double(), wanted, rtol=0, atol=100 * torch.finfo(of.dtype).eps
        )
    frozen = [t.detach() for t in learned]
    assert torch.equal(
        torch.autograd.grad(apply_rotary(x, *frozen, layout), x, grad)[0], actual[0]
    )
    assert all(
        map(
            torch.equal,
            torch.autograd.grad(
                apply_rotary(x.detach(), *learned, layout), learned, grad
            ),
            actual[1:],
        )
    )


@layouts
def test_transforms(layout: str) -> None:
    cos, sin = tables(3, 2)
    rotation, x = Rotation(cos, sin, layout), normal(2, 2, 3, 5)
    expected = rotate_pairs(x, cos, sin, layout)
    same = partial(torch.testing.assert_close, rtol=0, atol=1e-14)
    same(torch.vmap(rotation)(x), expected)
    same(torch.vmap(lambda x: rotation(x, out=torch.empty_like(x)))(x), expected)
    jacobian = torch.func.jacfwd(rotation)(x)
    same(torch.einsum("...bhtd,bhtd->...", jacobian, x), expected)
    for vectorize in (False, True):
        same(
            torch.autograd.functional.jacobian(rotation, x, vectorize=vectorize),
            jacobian,
        )
    gradient = torch.func.grad(lambda x: rotation(x).pow(2).sum() / 2)(x)
    same(gradient, x)  # a rotation keeps lengths


@layouts
def test_compiled_into_given_memory(layout: str) -> None:
    cos, sin = tables(3, 2)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, out: Rotation(cos, sin, layout)(x, out=out),
        backend="aot_eager",
        fullgraph=True,
    )
    x = normal(2, 2, 3, 5)
    before, out = x.clone(), torch.empty_like(x)
    compiled(x, out)
    assert_rotated(out, before, cos, sin, layout)
    compiled(x, x)
    assert_rotated(x, before, cos, sin, layout)


@layouts
def test_tensors_without_memory(layout: str) -> None:
    x, (cos, sin) = normal(2, 2, 3, 5), tables(3, 2)
    meta = x.to("meta")
    rotation = Rotation(cos.to("meta"), sin.to("meta"), layout)
    assert rotation(meta).shape == x.shape
    assert rotation(meta, out=meta) is meta
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(x.shape, dtype=x.dtype, requires_grad=True)
        assert (
            torch.autograd.grad(Rotation(cos, sin, layout)(fake).sum(), fake)[0].shape
            == x.shape
        )
