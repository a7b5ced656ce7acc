"""Attention with a relative bias that is a view of a vector."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import (
    BIASES,
    HEADS,
    LENGTHS,
    WIDTH,
    qkv,
)
from helpers import Largest, both_ways, normal, rounding, seeded
from torch import Tensor, nn

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    causal,
    hankel,
    key_padding_mask,
    sliding_window,
)
from posenc_lib.attention.hankel import hankel_attention
from posenc_lib.attention.toeplitz import relative_bias_vector
from posenc_lib.bias import (
    DistanceMLPBias,
    KerpleLog,
    KerplePower,
    alibi,
    alibi_slopes,
    sandwich,
)
from posenc_lib.positions import arange
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.scheme import PositionScheme

# Biases of the distance alone, with what they learn.
DISTANCES: dict[str, nn.Module | Callable[..., Tensor]] = {
    "ALiBi": BIASES["ALiBi"],
    "T5": schemes.t5(
        HEADS,
        bidirectional=True,
        std=1.0,
        num_buckets=8,
        max_distance=9,
        generator=seeded(5),
    ).bias,  # type: ignore[dict-item]
    "T5, one way": schemes.t5(
        HEADS,
        bidirectional=False,
        std=1.0,
        num_buckets=4,
        max_distance=9,
        generator=seeded(6),
    ).bias,  # type: ignore[dict-item]
    "KERPLE, logarithmic": KerpleLog(HEADS, generator=seeded(7)),
    "KERPLE, power": KerplePower(HEADS, generator=seeded(8)),
    "Sandwich": partial(sandwich, heads=HEADS, dtype=torch.float64),
    "network": DistanceMLPBias(HEADS, 6, generator=seeded(9)),
    "window": lambda m, n: (
        torch.where(sliding_window(m, n, 3), 0.0, -math.inf)
        .double()
        .expand(1, HEADS, -1, -1)
    ),
}
for _bias in DISTANCES.values():
    if isinstance(_bias, nn.Module):
        _bias.double()


@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("name", DISTANCES)
def test_hankel_attention_is_attention(name: str, causal_: bool) -> None:
    """Forward and all gradients.

    Whole sequences, a cache, padding on the left, on the right and in between.
    """
    bias = DISTANCES[name]
    learned = list(bias.parameters()) if isinstance(bias, nn.Module) else []
    scheme = PositionScheme(name, bias=bias, scale=1.0 if name == "T5" else None)
    padding = torch.ones(2, 13, dtype=torch.bool)
    padding[0, :5], padding[1, 7:9], padding[1, 12] = False, False, False
    for queries, mask, kv_heads, chunk in (
        (13, None, HEADS, 5),
        (13, padding, 2, 1),
        (13, padding, HEADS, 256),
        (4, padding, 1, 3),
        (1, None, 2, 256),
        (1, padding, 2, 256),
    ):
        q, k, v = (x.requires_grad_() for x in qkv(13, kv_heads=kv_heads))
        last, m, n = (
            q[:, :, 13 - queries :],
            arange(queries, offset=13 - queries),
            arange(13),
        )
        allowed = causal(m, n) if causal_ else torch.ones(queries, 13, dtype=torch.bool)
        allowed = allowed if mask is None else allowed & key_padding_mask(mask)
        want = attention(
            last, k, v, q_positions=m, k_positions=n, scheme=scheme, mask=allowed
        )
        out = hankel_attention(
            *(last, k, v),
            bias=relative_bias_vector(bias, 15),
            causal=causal_,
            mask=mask,
            scale=scheme.scale,
            chunk=chunk,
        )
        assert max_error(out, want) < rounding(want)
        given = [q, k, v, *learned]
        left, right = (
            torch.autograd.grad(x.square().sum(), given) for x in (out, want)
        )
        for a, b in zip(left, right, strict=True):
            assert max_error(a, b) < rounding(b, 2048)
        assert all(float(x.abs().max()) > 0 for x in right[2:]) or (
            name.startswith("KERPLE") and queries == 1
        )
        if mask is not None and causal_ and queries == 13:
            assert bool((out[0, :, :5] == 0).all()), "a query without a key gives zeros"


@pytest.mark.parametrize("length", LENGTHS)
def test_hankel_attention_of_any_length(length: int) -> None:
    q, k, v = qkv(length)
    v = normal(2, HEADS, length, WIDTH, seed=4)
    m, scheme = arange(length), PositionScheme("T5", bias=BIASES["T5"], scale=1.0)
    vector = relative_bias_vector(BIASES["T5"], length)
    for causal_, chunk in itertools.product((False, True), (1, 2, 7, 256)):
        want = attention(
            q,
            k,
            v,
            q_positions=m,
            k_positions=m,
            scheme=scheme,
            mask=causal(m, m) if causal_ else None,
        )
        out = hankel_attention(
            q, k, v, bias=vector, causal=causal_, scale=1.0, chunk=chunk
        )
        assert max_error(out, want) < rounding(want)


def test_long_padding_leaves_the_same_as_no_padding() -> None:
    """Padding that fills whole blocks of the kernel, in both of its widths."""
    for width in (WIDTH, 6):
        q, k, v = (
            normal(1, 2, 1500, width, seed=seed).requires_grad_() for seed in range(3)
        )
        bias = normal(2, 2999, seed=4).requires_grad_()
        mask = torch.arange(1500)[None] >= 1100
        padded = hankel_attention(q, k, v, bias=bias, causal=True, mask=mask)
        alone = hankel_attention(
            *(x[:, :, 1100:] for x in (q, k, v)), bias=bias, causal=True
        )
        assert max_error(padded[:, :, 1100:], alone) < rounding(alone, 4096)
        assert bool((padded[:, :, :1100] == 0).all())
        for a, b in zip(
            *(torch.autograd.grad(x.sum(), (q, k, v, bias)) for x in (padded, alone)),
            strict=True,
        ):
            assert max_error(a, b) < rounding(b, 2**14)


def test_hankel_gradients() -> None:
    """By finite differences, q, k, v and the vector; a second derivative is refused."""
    inputs = (
        normal(2, 2, 3, 3, seed=1),
        normal(2, 1, 5, 3, seed=2),
        normal(2, 1, 5, 2, seed=3),
        normal(2, 9, seed=4),
    )
    given = tuple(x.requires_grad_() for x in inputs)
    mask = torch.tensor(
        [[False, False, False, True, True], [True, False, True, True, True]]
    )
    for causal_, some in itertools.product((False, True), (None, mask)):

        def form(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            bias: Tensor,
            causal_: bool = causal_,
            some: Any = some,
        ) -> Tensor:
            return hankel_attention(
                q, k, v, bias=bias, causal=causal_, mask=some, chunk=2
            )

        assert torch.autograd.gradcheck(form, given)
    grads = torch.autograd.grad(form(*given).sum(), given, create_graph=True)
    for grad in grads:
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(grad.sum(), given)


def test_gradients_of_fewer_inputs() -> None:
    """Each input may be the only one that wants a gradient."""
    inputs = [*qkv(6), normal(HEADS, 11, seed=4)]
    every = [x.clone().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(
        hankel_attention(*every[:3], bias=every[3], causal=True, chunk=4).sum(), every
    )
    for i in range(4):
        some = [x.clone().requires_grad_(j == i) for j, x in enumerate(inputs)]
        (grad,) = torch.autograd.grad(
            hankel_attention(*some[:3], bias=some[3], causal=True, chunk=4).sum(),
            some[i : i + 1],
        )
        assert torch.equal(grad, wanted[i])
    with torch.no_grad():
        quick = hankel_attention(*every[:3], bias=every[3], causal=True)
    assert torch.equal(quick, hankel_attention(*every[:3], bias=every[3], causal=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_hankel_gradients_one_example_at_a_time() -> None:
    examples = [torch.stack((x, 2 * x)) for x in (*qkv(6), normal(HEADS, 11, seed=4))]

    def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return hankel_attention(q, k, v, bias=bias, causal=True, chunk=4).square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    for shared in (None, *range(4)):
        given = [x[0] if i == shared else x for i, x in enumerate(examples)]
        together = torch.func.vmap(
            gradients, tuple(None if i == shared else 0 for i in range(4))
        )(*given)
        for example in range(2):
            alone = [
                (x if i == shared else x[example]).clone().requires_grad_()
                for i, x in enumerate(given)
            ]
            for a, b in zip(
                together, torch.autograd.grad(loss(*alone), alone), strict=True
            ):
                assert max_error(a[example], b) < rounding(b)


@pytest.mark.parametrize("padded", [False, True])
def test_devices_without_such_a_kernel_get_the_same(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [*qkv(9, kv_heads=2), normal(HEADS, 17, seed=4)]
    mask = (torch.arange(9) >= torch.tensor([[4], [0]])) if padded else None
    results = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(hankel, "_READ_VIEWS", devices)
        given = [x.clone().requires_grad_() for x in inputs]
        out = hankel_attention(
            *given[:3], bias=given[3], causal=True, mask=mask, chunk=4
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < rounding(a)


def test_hankel_bias_is_a_view_of_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of the kernel gets strides (1, 1) on one storage of 2N − 1 numbers a
    head: no bias is ever built.
    """
    seen, kernel = [], hankel.flash_attention_on_cpu

    def spy(
        q: Tensor, k: Tensor, v: Tensor, view: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        seen.append(view)
        return kernel(q, k, v, view, scale)

    monkeypatch.setattr(hankel, "flash_attention_on_cpu", spy)
    q, k, v = qkv(13)
    vector = relative_bias_vector(BIASES["T5"], 13).detach()
    for causal_, mask in itertools.product((False, True), (None, torch.ones(2, 13))):
        hankel_attention(q, k, v, bias=vector, causal=causal_, mask=mask, chunk=4)
    assert len(seen) == 16
    assert all(view.stride()[2:] == (1, 1) for view in seen)
    assert all(view.untyped_storage().nbytes() == 8 * HEADS * 25 for view in seen)


@pytest.mark.parametrize("devices", [("cpu",), ()])
def test_hankel_attention_makes_no_square(
    devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hankel, "_READ_VIEWS", devices)
    monkeypatch.setattr(hankel, "_PIECE", 1)
    heads = (
        1 if devices else 2
    )  # whose scores exist together: plain products take all heads at once, forwards
    for length, padded, causal_ in itertools.product(
        (512, 1024), (False, True), (False, True)
    ):
        inputs = [normal(1, 2, length, 3, seed=seed).float() for seed in range(3)]
        bias, mask = (
            normal(2, 2 * length - 1, seed=3).float(),
            torch.arange(length)[None] >= 9 if padded else None,
        )

        def form(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            b: Tensor,
            causal_: bool = causal_,
            mask: Any = mask,
        ) -> Tensor:
            return hankel_attention(q, k, v, bias=b, causal=causal_, mask=mask, chunk=8)

        assert both_ways(form, *inputs, bias) <= heads * 8 * (length + 8)
    m, scheme = arange(512), schemes.alibi(1)
    dense = both_ways(
        lambda *x: attention(*x, q_positions=m, k_positions=m, scheme=scheme),
        *(normal(1, 1, 512, 4, seed=seed).float() for seed in range(3)),
    )
    assert dense >= 512**2, "otherwise the lines above could not fail"


def test_one_token_copies_no_cache() -> None:
    """Decoding: one call of the kernel, and nothing of the cache's size is made."""
    _, k, v = qkv(64)
    v = normal(2, HEADS, 64, WIDTH, seed=3)
    q, mask = (
        normal(2, HEADS, 1, WIDTH, seed=4),
        torch.arange(64) >= torch.tensor([[20], [0]]),
    )
    vector = relative_bias_vector(BIASES["ALiBi"], 64)
    with torch.no_grad(), Largest() as largest:
        hankel_attention(q, k, v, bias=vector, causal=True, mask=mask)
    assert largest.numbers <= max(vector.numel(), 2 * HEADS * 64) < k.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hankel_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    vector = relative_bias_vector(partial(alibi, slopes=alibi_slopes(HEADS)), 40)
    m, mask, results = arange(40), torch.arange(40)[None].expand(2, -1) >= 9, []
    for kind in (dtype, torch.float64):
        q, k, v = (x.to(dtype).to(kind).requires_grad_() for x in qkv(40))
        bias = vector.to(kind).requires_grad_()
        out = hankel_attention(q, k, v, bias=bias, causal=True, mask=mask, chunk=16)
        assert out.dtype == kind
        grads = torch.autograd.grad(out.square().sum(), (q, k, v, bias))
        assert [x.dtype for x in grads] == [kind] * 4
        results.append([out, *grads])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < 16 * torch.finfo(dtype).eps * float(
            b.detach().abs().max()
        )
    q, k, v = (x.to(dtype) for x in qkv(40))
    own = causal(m, m) & key_padding_mask(mask)
    want = attention(
        q, k, v, q_positions=m, k_positions=m, scheme=schemes.alibi(HEADS), mask=own
    )
    assert max_error(
        hankel_attention(q, k, v, bias=vector, causal=True, mask=mask), want
    ) < (16 * torch.finfo(dtype).eps * float(v.abs().max()))


def test_hankel_attention_compiles_with_its_gradients() -> None:
    mask = torch.arange(9) >= torch.tensor([[4], [0]])

    def form(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return hankel_attention(q, k, v, bias=bias, causal=True, mask=mask, chunk=4)

    results = []
    for run in (form, torch.compile(form, backend="aot_eager")):
        given = [x.requires_grad_() for x in (*qkv(9), normal(HEADS, 17, seed=4))]
        out = run(*given)
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*results, strict=True):
        assert max_error(a, b) < rounding(a)


def test_hankel_gradients_on_meta_have_shapes() -> None:
    given = [
        x.to("meta").requires_grad_() for x in (*qkv(9, kv_heads=2), normal(HEADS, 17))
    ]
    out = hankel_attention(
        *given[:3], bias=given[3], causal=True, mask=torch.ones(2, 9), chunk=4
    )
    assert [x.shape for x in torch.autograd.grad(out.sum(), given)] == [
        x.shape for x in given
    ]


Q, K, V = qkv(4)

VECTOR = torch.zeros(HEADS, 7, dtype=torch.float64)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "hankel_attention: bias": (
        lambda: hankel_attention(Q, K, V, bias=VECTOR[:2], causal=True),
        ValueError,
        r"bias must have shape \(H, 2N−1\) with H = 4 and N ≥ 4, got \(2, 7\)",
    ),
    "hankel_attention: mask": (
        lambda: hankel_attention(
            Q, K, V, bias=VECTOR, causal=True, mask=torch.ones(2, 3)
        ),
        ValueError,
        r"mask must have shape \(B, Tk\) = \(2, 4\), got \(2, 3\)",
    ),
    "hankel_attention: got (4": (
        lambda: hankel_attention(Q, K, V, bias=VECTOR[:, :6], causal=True),
        ValueError,
        r"got \(4, 6\)",
    ),
    "hankel_attention: chunk": (
        lambda: hankel_attention(Q, K, V, bias=VECTOR, causal=True, chunk=0),
        ValueError,
        "chunk must be an integer ≥ 1",
    ),
    "hankel_attention: more queries than keys": (
        lambda: hankel_attention(Q, K[:, :, :2], V[:, :, :2], bias=VECTOR, causal=True),
        ValueError,
        "q must be the last of k's 2 tokens, got 4 queries",
    ),
    "hankel_attention: no query": (
        lambda: hankel_attention(Q[:, :, :0], K, V, bias=VECTOR, causal=True),
        ValueError,
        "q must be the last of k's 4 tokens, got 0 queries",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
