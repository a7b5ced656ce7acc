"""Schemes in the fused kernels of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import (
    BIASES,
    HEADS,
    SCHEMES,
    WIDTH,
    qkv,
    rope,
)
from helpers import after_embedding, both_ways, normal, rounding, seeded
from registry import zoo_schemes
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    causal,
    fused,
    key_padding_mask,
    sliding_window,
)
from posenc_lib.attention.fused import fused_attention, relative_score_mod
from posenc_lib.attention.hankel import hankel_attention
from posenc_lib.attention.toeplitz import relative_bias_vector
from posenc_lib.bias import (
    FIRE,
    alibi,
    alibi_slopes,
)
from posenc_lib.content import ForgetGate
from posenc_lib.positions import arange, from_mask
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.scheme import NOPE, PositionScheme

FUSED: dict[str, PositionScheme] = {
    "NoPE": NOPE,
    "RoPE": schemes.rope(WIDTH),
    "ALiBi": PositionScheme("ALiBi", bias=BIASES["ALiBi"]),
    "T5": PositionScheme("T5", bias=BIASES["T5"], scale=1.0),
    "window": PositionScheme("window", mask=partial(sliding_window, size=3)),
    "RoPE, ALiBi and window": PositionScheme(
        "RoPE, ALiBi and window",
        transform=rope.transform,
        bias=BIASES["ALiBi"],
        mask=partial(sliding_window, size=3),
        scale=0.3,
    ),
    **{
        name: after_embedding(scheme)
        for name, scheme in SCHEMES.items()
        if not {"scores", "values"} & set(scheme.places)
    },
}

# sineSPE's and convSPE's codes belong to a head: there are no grouped keys
GROUPED = [
    (name, heads)
    for name in FUSED
    for heads in (HEADS, 2)
    if heads == HEADS or "SPE" not in name
]


@pytest.mark.parametrize(("name", "kv_heads"), GROUPED)
def test_fused_attention_is_attention(name: str, kv_heads: int) -> None:
    q, k, v = qkv(11, kv_heads=kv_heads)
    cases: list[tuple[slice, Tensor, Tensor, Tensor | None]] = [
        (slice(None), arange(11), arange(11), None),
        (slice(None), arange(11), arange(11), causal(arange(11), arange(11))),
        (
            slice(8, None),
            arange(3, offset=8),
            arange(11),
            causal(arange(3, offset=8), arange(11)),
        ),  # a cache
    ]
    padding = torch.stack((torch.arange(11) >= 4, torch.arange(11) >= 0))
    rows = from_mask(padding)
    cases.append(
        (slice(None), rows, rows, causal(rows, rows) & key_padding_mask(padding))
    )
    none = torch.ones(11, 11, dtype=torch.bool)
    none[3] = False
    cases.append((slice(None), arange(11), arange(11), none))
    for queries, m, n, mask in cases:
        kwargs: dict[str, Any] = {
            "q_positions": m,
            "k_positions": n,
            "scheme": FUSED[name],
            "mask": mask,
        }
        want = attention(q[:, :, queries], k, v, **kwargs)
        for chunk in (None, 1, 4, 99):
            out = fused_attention(q[:, :, queries], k, v, chunk=chunk, **kwargs)
            assert out.dtype == want.dtype
            assert max_error(out, want) < rounding(want)
    assert bool((out[:, :, 3] == 0).all()), "a row without any key gives zeros"


def plain_kernel(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, **_: Any
) -> Tensor:
    """A kernel by the book, which makes NaN of a row without any key."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    masked = (
        scores.masked_fill(~attn_mask, -math.inf)
        if attn_mask.dtype == torch.bool
        else scores + attn_mask
    )
    return masked.softmax(-1) @ v


@pytest.mark.parametrize(
    "kernel", [nn.functional.scaled_dot_product_attention, plain_kernel]
)
@pytest.mark.parametrize("name", ["NoPE", "ALiBi"])
def test_gradients_of_fused_attention_are_those_of_attention(
    name: str, kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "scaled_dot_product_attention", kernel)
    none = torch.ones(7, 7, dtype=torch.bool)
    none[2] = False
    grads = []
    for form in (attention, fused_attention):
        inputs = [x.requires_grad_() for x in qkv(7)]
        form(
            *inputs,
            q_positions=arange(7),
            k_positions=arange(7),
            scheme=FUSED[name],
            mask=none,
        ).square().sum().backward()
        grads.append([x.grad for x in inputs])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        assert b is not None
        assert bool(b.isfinite().all())
        assert max_error(a, b) < rounding(a, 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fused_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in qkv(9))
    scheme = PositionScheme(
        "RoPE + ALiBi",
        transform=rope.transform,
        bias=partial(alibi, slopes=alibi_slopes(HEADS)),
    )
    kwargs: dict[str, Any] = {
        "q_positions": arange(9),
        "k_positions": arange(9),
        "scheme": scheme,
    }
    out = fused_attention(q, k, v, **kwargs)
    assert out.dtype == dtype
    assert max_error(out, attention(q, k, v, **kwargs)) < 16 * torch.finfo(
        dtype
    ).eps * float(v.abs().max())


def test_own_masks_are_aligned_by_position_and_not_by_index() -> None:
    """PyTorch's `is_causal` lets a single query see the first key only.

    Ours sees the whole cache.
    """
    q, k, v = qkv(6)
    one = q[:, :, 5:]
    wrong = nn.functional.scaled_dot_product_attention(one, k, v, is_causal=True)
    assert max_error(wrong, v[:, :, :1]) < rounding(v)
    positions, keys = arange(1, offset=5), arange(6)
    right = fused_attention(
        one,
        k,
        v,
        q_positions=positions,
        k_positions=keys,
        mask=causal(positions, keys),
        scheme=NOPE,
    )
    assert max_error(
        right, nn.functional.scaled_dot_product_attention(one, k, v)
    ) < rounding(v)


@pytest.mark.parametrize("name", ["ReRoPE", "LM-Infinite"])
def test_schemes_with_their_own_scores_are_refused(name: str) -> None:
    q, k, v = qkv(3)
    with pytest.raises(ValueError, match=r"scheme must leave scores empty.*" + name):
        fused_attention(
            q,
            k,
            v,
            q_positions=arange(3),
            k_positions=arange(3),
            scheme=zoo_schemes()[name],
        )


class Content(nn.Module):
    """A bias of both hidden states."""

    def forward(
        self, q_positions: Tensor, k_positions: Tensor, *, q_x: Tensor, k_x: Tensor
    ) -> Tensor:
        return (q_x @ k_x.mT)[:, None]


@pytest.mark.parametrize("name", ["FIRE", "forget gate", "content"])
def test_gradients_of_chunks_are_those_of_attention(name: str) -> None:
    """Biases that look at the query's position, or at the hidden states.

    The parameters' gradients too.
    """
    biases: dict[str, nn.Module] = {
        "FIRE": FIRE(HEADS, hidden=5, threshold=4.0, generator=seeded(1)),
        "forget gate": ForgetGate(WIDTH, HEADS, std=1.0, generator=seeded(1)),
        "content": Content(),
    }
    bias = biases[name].double()
    turn = rope.transform if name == "FIRE" else None  # it takes no hidden states
    scheme = PositionScheme(name, transform=turn, bias=bias, mask=causal)
    x = normal(2, 11, WIDTH, seed=7)
    q, k, v = qkv(11, kv_heads=2)
    kwargs: dict[str, Any] = {
        "q_positions": arange(7, offset=4),
        "k_positions": arange(11),
        "scheme": scheme,
    }
    if name != "FIRE":
        kwargs |= {
            "q_x": x[:, 4:].clone().requires_grad_(),
            "k_x": x.clone().requires_grad_(),
        }
    given = [
        q[:, :, 4:].requires_grad_(),
        k.requires_grad_(),
        v.requires_grad_(),
        *bias.parameters(),
    ]
    given += [x for x in kwargs.values() if isinstance(x, Tensor) and x.requires_grad]
    results = []
    for form in (attention, partial(fused_attention, chunk=3)):
        out = form(*given[:3], **kwargs)  # type: ignore[operator]
        results.append(
            torch.autograd.grad(out.square().sum(), given, allow_unused=True)
        )
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (
            float(a.abs().max()) > 0 and max_error(a, b) < rounding(a, 4096)
        )


def test_chunks_of_fused_attention_make_no_square() -> None:
    scheme = PositionScheme(
        "FIRE", bias=FIRE(1, hidden=2, generator=seeded(1)), mask=causal
    )
    sizes = {}
    for length, chunk in ((256, 4), (256, None)):
        inputs = [normal(1, 1, length, 4, seed=seed).float() for seed in range(3)]
        positions: dict[str, Any] = {
            "q_positions": arange(length),
            "k_positions": arange(length),
            "chunk": chunk,
        }
        sizes[chunk] = both_ways(
            lambda *x, positions=positions: fused_attention(
                *x, scheme=scheme, **positions
            ),
            *inputs,
        )
    assert sizes[4] <= 2 * 4 * 256, (
        "the two channels of FIRE's network for four queries"
    )
    assert sizes[None] >= 256**2, "otherwise the line above could not fail"
    kept = {}
    for chunk in (4, None):
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=numbers: to.append(x.numel()) or x, lambda x: x
        ):
            fused_attention(*inputs, scheme=scheme, **positions | {"chunk": chunk})
        kept[chunk] = sum(numbers)
    assert kept[4] < 256**2 < kept[None], "the backward pass makes them again"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "causal_"), [("ALiBi", True), ("T5", False)])
def test_flex_attention_with_a_relative_bias_is_attention(
    name: str, causal_: bool
) -> None:
    q, k, v = (x.float() for x in qkv(12))
    v = normal(2, HEADS, 12, WIDTH, seed=4).float()
    scheme = PositionScheme(name, bias=BIASES[name])
    vector = relative_bias_vector(BIASES[name], 16).float()
    for m, n in (
        (arange(12), arange(12)),
        (arange(4, offset=8), arange(12)),
        (torch.stack((arange(12), arange(12, offset=3))),) * 2,
    ):
        queries = q[:, :, -m.shape[-1] :]
        mod = relative_score_mod(vector, q_positions=m, k_positions=n, causal=causal_)
        with torch.no_grad():
            out = flex_attention(queries, k, v, score_mod=mod)
            want = attention(
                queries,
                k,
                v,
                q_positions=m,
                k_positions=n,
                scheme=scheme,
                mask=causal(m, n) if causal_ else None,
            )
        assert isinstance(out, Tensor)
        assert max_error(out, want) < 64 * torch.finfo(torch.float32).eps * float(
            v.abs().max()
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_padding_as_a_block_mask() -> None:
    q, k, v = (normal(2, HEADS, 12, WIDTH, seed=seed).float() for seed in range(3))
    mask = torch.arange(12) >= torch.tensor([[5], [0]])
    rows = from_mask(mask)
    vector = relative_bias_vector(BIASES["T5"], 12).float().detach()

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[batch, key] & (key <= query)

    blocks = create_block_mask(visible, 2, None, 12, 12, device="cpu")
    mod = relative_score_mod(vector, q_positions=rows, k_positions=rows, causal=True)
    out = flex_attention(q, k, v, score_mod=mod, block_mask=blocks)
    want = hankel_attention(q, k, v, bias=vector, causal=True, mask=mask)
    assert isinstance(out, Tensor)
    assert max_error(out, want) < 64 * torch.finfo(torch.float32).eps * float(
        v.abs().max()
    )


Q, K, V = qkv(4)

M = arange(4)

VECTOR = torch.zeros(HEADS, 7, dtype=torch.float64)

BOTH: dict[str, Any] = {"q_positions": M, "k_positions": M}
PLAIN: dict[str, Any] = {"scheme": NOPE, **BOTH}


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "fused_attention(Q, K, V, mask=torch.ones(4, 4), **PLAIN)": (
        lambda: fused_attention(Q, K, V, mask=torch.ones(4, 4), **PLAIN),
        TypeError,
        "mask must be boolean",
    ),
    "fused_attention: k_positions": (
        lambda: fused_attention(Q, K, V, q_positions=M, k_positions=M[:2], scheme=NOPE),
        ValueError,
        r"k_positions must have shape \(4,\)",
    ),
    "fused_attention: v": (
        lambda: fused_attention(Q, K, V[:1], **PLAIN),
        ValueError,
        "v must have k's batch",
    ),
    "fused_attention: chunk": (
        lambda: fused_attention(Q, K, V, chunk=0, **PLAIN),
        ValueError,
        "chunk must be an integer ≥ 1",
    ),
    "fused_attention: mask of three rows": (
        lambda: fused_attention(
            Q, K, V, mask=torch.ones(3, 4, dtype=torch.bool), chunk=3, **PLAIN
        ),
        ValueError,
        r"mask must broadcast to \(2, 4, 4, 4\)",
    ),
    "relative_score_mod(VECTOR[:, :6], causal=True, **BOTH)": (
        lambda: relative_score_mod(VECTOR[:, :6], causal=True, **BOTH),
        ValueError,
        r"bias must have shape \(H, 2N−1\)",
    ),
    "relative_score_mod(VECTOR[:, :5], causal=True, **BOTH)": (
        lambda: relative_score_mod(VECTOR[:, :5], causal=True, **BOTH),
        ValueError,
        "bias must hold distances up to 3",
    ),
    "relative_score_mod: k_positions": (
        lambda: relative_score_mod(
            VECTOR, q_positions=M, k_positions=M / 2, causal=True
        ),
        TypeError,
        "k_positions must be integers",
    ),
    "fused_attention: bias": (
        lambda: fused_attention(
            Q,
            K,
            V,
            scheme=PositionScheme("three axes", bias=lambda m, n: torch.zeros(4, 4, 4)),
            **BOTH,
        ),
        ValueError,
        r"bias must broadcast to \(2, 4, 4, 4\) from four axes, got \(4, 4, 4\)",
    ),
    "fused_attention: q_x and k_x": (
        lambda: fused_attention(Q, K, V, q_x=torch.ones(2, 4, 3), **PLAIN),
        ValueError,
        "q_x and k_x must be given together, got q_x alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
