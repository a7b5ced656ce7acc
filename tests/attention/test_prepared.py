"""Schemes prepared once a forward pass, and what they ask the caller for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers import (
    HEADS,
    WIDTH,
    after_embedding,
    hidden,
    layer,
    normal,
    seeded,
    tolerance,
)
from registry import every_scheme
from torch import Tensor

from posenc_lib import layers, rotary
from posenc_lib import scheme as schemes
from posenc_lib.attention import (
    attention,
    attention_weights,
    causal,
    fused_attention,
    key_padding_mask,
    prepare,
    same_segment,
    sliding_window,
)
from posenc_lib.attention.prepared import PreparedScheme
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.checkpoints.model import rotate_after
from posenc_lib.content import ForgetGate
from posenc_lib.embedding import sinusoidal
from posenc_lib.multimodal_positions import Vision, mrope_positions
from posenc_lib.positions import arange, from_mask, segment_ids
from posenc_lib.properties import max_error
from posenc_lib.scheme import NOPE, PositionScheme

X = normal(2, 5, WIDTH)
Q, K, V = (normal(2, HEADS, 5, WIDTH, seed=seed) for seed in range(3))
FIVE = arange(5)
REAL = torch.tensor([[False, False, True, True, True], [True] * 5])


def at_five(scheme: PositionScheme, **others: Any) -> PreparedScheme:
    _, at = prepare(X, scheme, **{"q_positions": FIVE, "causal": False} | others)
    return at


# ---- the same attention


@pytest.mark.parametrize("name", every_scheme())
@pytest.mark.parametrize("form", [attention, fused_attention])
def test_prepared_is_unprepared(name: str, form: Callable[..., Tensor]) -> None:
    scheme = after_embedding(every_scheme()[name])
    if form is fused_attention and {"scores", "values"} & set(scheme.places):
        return
    states = hidden(every_scheme()[name], X)
    positions = from_mask(REAL)
    for mask in (None, causal(positions, positions) & key_padding_mask(REAL)):
        at = at_five(scheme, q_positions=positions, mask=mask)
        both = {"q_positions": positions, "k_positions": positions}
        expected = form(Q, K, V, scheme=scheme, mask=mask, **both, **states)
        assert torch.equal(form(Q, K, V, scheme=at, **states), expected)


@pytest.mark.parametrize("name", every_scheme())
def test_one_row_of_positions_is_shared_by_the_batch(name: str) -> None:
    """As `position_ids` of transformers, (1, T)."""
    scheme, mask = every_scheme()[name], causal(FIVE, FIVE)
    shared = layer(scheme, X, FIVE[None], mask=mask)
    assert max_error(shared, layer(scheme, X, FIVE, mask=mask)) <= tolerance(shared)


def test_causal_is_the_order_of_the_tokens() -> None:
    packed = segment_ids([2, 3])
    positions = torch.tensor([0, 1, 0, 1, 2])
    for name, where, mask in (
        ("plain", FIVE, None),
        ("left padded", from_mask(REAL), key_padding_mask(REAL)),
        ("packed", positions, same_segment(packed, packed)),
        ("another order", torch.tensor([4, 2, 9, 1, 0]), None),
    ):
        order = torch.ones(5, 5).tril().bool()
        whole = order if mask is None else order & mask
        for scheme in (schemes.rope(WIDTH), schemes.alibi(HEADS), NOPE):
            at = at_five(scheme, q_positions=where, causal=True, mask=mask)
            both = {"q_positions": where, "k_positions": where}
            expected = attention(Q, K, V, scheme=scheme, mask=whole, **both)
            for form in (attention, fused_attention):
                out = form(Q, K, V, scheme=at)
                assert max_error(out, expected) <= 8 * tolerance(V), name


def test_a_plain_causal_mask_is_the_kernels_own() -> None:
    def made(scheme: PositionScheme, **others: Any) -> tuple[bool, bool]:
        kernel = at_five(scheme, causal=True, **others).kernel
        assert kernel is not None
        return kernel.in_order, kernel.mask is not None

    assert made(schemes.rope(WIDTH)) == made(NOPE) == (True, False)
    assert made(schemes.alibi(HEADS)) == (False, True)
    assert made(NOPE, mask=key_padding_mask(REAL)) == (False, True)
    # The last token sees all the cache: no mask is left.
    assert at_five(NOPE, k_positions=arange(5) - 9, causal=True).kernel.mask is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_with_a_cache_positions_are_compared(dtype: torch.dtype) -> None:
    q, k, v, x = (t.to(dtype) for t in (Q, K, V, X))
    for scheme in (schemes.rope(WIDTH, layout="half"), schemes.alibi(HEADS), NOPE):
        _, at = prepare(x, scheme, q_positions=FIVE, causal=True)
        whole = attention(q, k, v, scheme=at)
        new = slice(3, 5)
        _, at = prepare(
            x[:, new], scheme, q_positions=FIVE[new], k_positions=FIVE, causal=True
        )
        for form in (attention, fused_attention):
            out = form(q[:, :, new], k, v, scheme=at)
            error = 16 * torch.finfo(dtype).eps * float(v.abs().max())
            assert max_error(out, whole[:, :, new]) <= error


@pytest.mark.parametrize("name", every_scheme())
def test_a_cache_of_transformed_keys(name: str) -> None:
    """Each key is transformed once, when its token comes: two tokens, then three."""
    scheme = after_embedding(every_scheme()[name])
    states = hidden(every_scheme()[name], X)
    mask = causal(FIVE, FIVE)
    both = {"q_positions": FIVE, "k_positions": FIVE, "mask": mask}
    whole = attention(Q, K, V, scheme=scheme, **both, **states)
    cache, outputs = Q[:, :, :0], []
    for new in (slice(0, 2), slice(2, 5)):
        keys = slice(0, new.stop)
        _, at = prepare(
            X[:, new],
            scheme,
            q_positions=FIVE[new],
            k_positions=FIVE[keys],
            causal=True,
            transformed=True,
        )
        of_new = hidden(every_scheme()[name], X[:, new])
        in_transform = of_new if "transform" in scheme.reads_hidden_states else {}
        q, k = at.transform(Q[:, :, new], K[:, :, new], **in_transform)
        cache = k if not cache.shape[2] else torch.cat((cache, k), 2)
        seen = {"q_x": X[:, new], "k_x": X[:, keys]} if states else {}
        outputs.append(attention(q, cache, V[:, :, keys], scheme=at, **seen))
    assert max_error(torch.cat(outputs, 2), whole) <= 8 * tolerance(V)


def test_other_keys_of_the_same_length_have_their_own_rotation() -> None:
    """A window of a cache, of as many keys as there are queries."""
    for scheme in (schemes.rope(WIDTH), schemes.alibi(HEADS)):
        keys = arange(5) - 2
        at = at_five(scheme, k_positions=keys, causal=True)
        mask = causal(FIVE, keys)
        both = {"q_positions": FIVE, "k_positions": keys, "mask": mask}
        for form in (attention, fused_attention):
            expected = form(Q, K, V, scheme=scheme, **both)
            assert torch.equal(form(Q, K, V, scheme=at), expected)


def test_a_row_without_keys_is_zero_and_has_a_gradient() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[1] = False
    for scheme in (NOPE, schemes.rope(WIDTH), schemes.alibi(HEADS)):
        at = at_five(scheme, mask=mask, causal=True)
        inputs = [x.clone().requires_grad_() for x in (Q, K, V)]
        out = fused_attention(*inputs, scheme=at)
        assert bool((out[:, :, 1] == 0).all())
        grads = torch.autograd.grad(out.square().sum(), inputs)
        assert all(bool(grad.isfinite().all()) for grad in grads)


def test_what_only_looks_like_a_rotation_is_left_alone() -> None:
    """A method of another name, another class, and a part of the channels."""

    class KeysAlone(rotary.RoPE):
        def only_keys(self, q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> Any:
            return q, self.transform(q, k, m, n)[1]

        def transform(self, q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> Any:
            return q, super().transform(q, k, m, n)[1]

    frequencies = rotary.unscaled(WIDTH, 1e4).frequencies
    mine = KeysAlone(frequencies)
    some = rotary.RoPE(frequencies[:2]).transform
    both = {"q_positions": FIVE, "k_positions": FIVE}
    for transform in (
        mine.only_keys,
        mine.transform,
        partial(rotate_after, rotate=some, skipped=4),
    ):
        scheme = PositionScheme("mine", transform=transform)
        expected = attention(Q, K, V, scheme=scheme, **both)
        assert torch.equal(attention(Q, K, V, scheme=at_five(scheme)), expected)
    assert at_five(scheme).rotations is not None  # latent attention's: made once, too


def test_hidden_states_go_to_the_fields_that_read_them() -> None:
    """A rotation beside a forget gate, which alone reads the tokens."""
    gate = ForgetGate(WIDTH, HEADS, generator=seeded()).double()
    rope = schemes.rope(WIDTH)
    both = replace(rope, bias=gate)
    assert both.reads_hidden_states == ("bias",)
    at = {"q_positions": FIVE, "k_positions": FIVE}
    states = {"q_x": X, "k_x": X}
    q, k = rope.transform(Q, K, FIVE, FIVE)
    alone = PositionScheme("gate", bias=gate)
    expected = attention(q, k, V, scheme=alone, **at, **states)
    for form in (attention, fused_attention, partial(fused_attention, chunk=2)):
        out = form(Q, K, V, scheme=both, **at, **states)
        assert max_error(out, expected) <= 8 * tolerance(V)
    for form in (attention, fused_attention):
        out = form(Q, K, V, scheme=at_five(both), **states)
        assert max_error(out, expected) <= 8 * tolerance(V)
    # A scheme that reads none is blind to them: one block serves every scheme.
    blind = attention(Q, K, V, scheme=rope, **at, **states)
    assert torch.equal(blind, attention(Q, K, V, scheme=rope, **at))


def test_tables_are_made_once() -> None:
    calls = []

    def bias(m: Tensor, n: Tensor) -> Tensor:
        calls.append("bias")
        return alibi(m, n, alibi_slopes(HEADS))

    def mask(m: Tensor, n: Tensor) -> Tensor:
        calls.append("mask")
        return sliding_window(m, n, 3)

    at = at_five(PositionScheme("both", bias=bias, mask=mask), causal=True)
    for _ in range(3):
        attention(Q, K, V, scheme=at)
        fused_attention(Q, K, V, scheme=at)
    assert calls == ["mask", "bias"]
    rope = at_five(schemes.rope(WIDTH))
    assert rope.rotations is not None
    assert rope.rotations[0] is rope.rotations[1]
    assert rope.layer(7) is rope
    plan = layers.schemes(layers.gemma3(12, window=2), WIDTH, layout="interleaved")
    _, of_layers = prepare(X, plan, q_positions=FIVE, causal=True)
    assert len({id(of_layers.layer(i)) for i in range(12)}) == 2
    assert of_layers.layer(5) is of_layers.layer(11)


def test_layers_of_a_plan_have_their_own_scheme() -> None:
    plan = layers.gemma3(6, window=2)
    _, at = prepare(
        X,
        layers.schemes(plan, WIDTH, layout="interleaved"),
        q_positions=FIVE,
        causal=True,
    )
    for i, one in enumerate(plan):
        scheme = one.scheme(WIDTH)
        both = {"q_positions": FIVE, "k_positions": FIVE, "mask": causal(FIVE, FIVE)}
        expected = attention(Q, K, V, scheme=scheme, **both)
        out = attention(Q, K, V, scheme=at.layer(i))
        assert max_error(out, expected) <= tolerance(V)


def test_checkpointed_gradients_reach_a_table_that_layers_share() -> None:
    t5 = schemes.t5(HEADS, bidirectional=False, std=1.0).double()
    _, at = prepare(X, t5, q_positions=FIVE, causal=True)

    def twice(q: Tensor) -> Tensor:
        first = fused_attention(q, K, V, scheme=at)
        return fused_attention(first, K, V, scheme=at)

    def once(q: Tensor) -> Tensor:
        both = {"q_positions": FIVE, "k_positions": FIVE, "mask": causal(FIVE, FIVE)}
        first = attention(q, K, V, scheme=t5, **both)
        return attention(first, K, V, scheme=t5, **both)

    made = torch.utils.checkpoint.checkpoint(twice, Q, use_reentrant=False)
    (got,) = torch.autograd.grad(made.square().sum(), [t5.bias.table])
    (want,) = torch.autograd.grad(once(Q).square().sum(), [t5.bias.table])
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_compiled_block_is_compiled_once_for_all_forward_passes() -> None:
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()

    @partial(torch.compile, backend=count, fullgraph=True)
    def block(q: Tensor, k: Tensor, v: Tensor, at: PreparedScheme) -> Tensor:
        return fused_attention(q, k, v, scheme=at)

    for scheme in (schemes.rope(WIDTH), schemes.alibi(HEADS)):
        before = count.frame_count
        for start in range(4):
            at = at_five(scheme, q_positions=arange(5, offset=start), causal=True)
            expected = fused_attention(Q, K, V, scheme=at)
            torch.testing.assert_close(block(Q, K, V, at), expected)
        assert count.frame_count == before + 1


# ---- embeddings


def test_an_embedding_is_added_once() -> None:
    x, at = prepare(X, schemes.sinusoidal(WIDTH), q_positions=FIVE, causal=False)
    assert max_error(x, X + sinusoidal(FIVE, WIDTH)) == 0
    both = {"q_positions": FIVE, "k_positions": FIVE}
    expected = attention(Q, K, V, scheme=NOPE, **both)
    assert torch.equal(attention(Q, K, V, scheme=at), expected)
    half, _ = prepare(
        X.bfloat16(), schemes.sinusoidal(WIDTH), q_positions=FIVE, causal=False
    )
    assert half.dtype == torch.bfloat16
    same, _ = prepare(X, schemes.rope(WIDTH), q_positions=FIVE, causal=False)
    assert same is X


def test_an_embedding_that_was_not_added_is_asked_for() -> None:
    both = {"q_positions": FIVE, "k_positions": FIVE}
    for scheme in (schemes.sinusoidal(WIDTH), schemes.learned(9, WIDTH)):
        for call in (
            partial(attention, Q, K, V),
            partial(fused_attention, Q, K, V),
            partial(fused_attention, Q, K, V, chunk=2),
            partial(attention_weights, Q, K),
        ):
            with pytest.raises(ValueError, match=r"adds an embedding.*prepare"):
                call(scheme=scheme, **both)


# ---- positions of several axes


def test_images_have_an_order_of_their_own() -> None:
    positions = mrope_positions([2, Vision(1, 2, 3), 3])[None]  # (1, T, 3)
    count = positions.shape[1]
    scheme = schemes.mrope(WIDTH, 1e4, (2, 1, 1), interleaved=False)
    x = normal(1, count, WIDTH)
    q, k, v = (normal(1, HEADS, count, WIDTH, seed=seed) for seed in range(3))
    _, at = prepare(x, scheme, q_positions=positions, causal=True)
    whole = attention(q, k, v, scheme=at)
    order = arange(count)
    expected = attention(
        *scheme.transform(q, k, positions, positions),
        v,
        scheme=NOPE,
        q_positions=order,
        k_positions=order,
        mask=causal(order, order),
    )
    assert max_error(whole, expected) <= tolerance(v)
    new = slice(count - 2, count)
    cached = partial(
        prepare,
        x[:, new],
        scheme,
        q_positions=positions[:, new],
        k_positions=positions,
        causal=True,
    )
    _, at = cached(q_order=order[new], k_order=order)
    assert max_error(attention(q[:, :, new], k, v, scheme=at), whole[:, :, new]) <= (
        8 * tolerance(v)
    )
    with pytest.raises(ValueError, match=r"q_order and k_order must be given.*arange"):
        cached()
    # Text alone is plain RoPE.
    text = equal = arange(count)[None, :, None].expand(1, count, 3)
    _, at = prepare(x, scheme, q_positions=equal, causal=True)
    plain = at_rope(text[..., 0], x)
    torch.testing.assert_close(
        attention(q, k, v, scheme=at), attention(q, k, v, scheme=plain)
    )


def at_rope(positions: Tensor, x: Tensor) -> PreparedScheme:
    scheme = schemes.rope(WIDTH, layout="half")
    return prepare(x, scheme, q_positions=positions, causal=True)[1]


# ---- the swap, one line each

SCALED = {"factor": 4.0, "original_length": 64}
LISTS = {"short_factors": [1.0] * 4, "long_factors": [2.0] * 4, "length": 65}
SWAPS: dict[str, PositionScheme | schemes.LayerSchemes] = {
    "RoPE": schemes.rope(WIDTH),
    "RoPE, half": schemes.rope(WIDTH, layout="half"),
    "partial": schemes.rope(WIDTH, rotary_dim=4),
    "YaRN": schemes.rope(WIDTH, schedule=partial(rotary.yarn, **SCALED)),
    "YaRN, as released": schemes.rope(
        WIDTH, schedule=partial(rotary.yarn_released, **SCALED)
    ),
    "LongRoPE": schemes.rope(
        WIDTH, schedule=partial(rotary.longrope, **SCALED, **LISTS)
    ),
    "Llama 3": schemes.rope(WIDTH, 5e5, schedule=partial(rotary.llama3, **SCALED)),
    "p-RoPE": schemes.rope(WIDTH, schedule=partial(rotary.proportional, fraction=0.5)),
    "ALiBi": schemes.alibi(HEADS),
    "T5": schemes.t5(HEADS, bidirectional=False, std=1.0),
    "KERPLE": schemes.kerple(HEADS),
    "FIRE": schemes.fire(HEADS),
    "sinusoid": schemes.sinusoidal(WIDTH),
    "learned": schemes.learned(9, WIDTH),
    "NoPE": NOPE,
    "a plan": layers.schemes(layers.gemma3(6, window=2), WIDTH, layout="interleaved"),
}


@pytest.mark.parametrize("name", SWAPS)
def test_every_swap_runs_through_the_same_lines(name: str) -> None:
    x, at = prepare(X, SWAPS[name], q_positions=FIVE, causal=True)
    out = fused_attention(Q, K, V, scheme=at.layer(1))
    assert max_error(out, attention(Q, K, V, scheme=at.layer(1))) <= 8 * tolerance(V)
    assert x.shape == X.shape


def test_a_schedule_is_that_of_its_function() -> None:
    for name in ("YaRN", "YaRN, as released", "LongRoPE", "Llama 3", "p-RoPE"):
        scheme = SWAPS[name]
        assert isinstance(scheme, PositionScheme)
        rope = scheme.transform.__self__
        schedule = {
            "YaRN": partial(rotary.yarn, WIDTH, 1e4, **SCALED),
            "YaRN, as released": partial(rotary.yarn_released, WIDTH, 1e4, **SCALED),
            "LongRoPE": partial(rotary.longrope, WIDTH, 1e4, **SCALED, **LISTS),
            "Llama 3": partial(rotary.llama3, WIDTH, 5e5, **SCALED),
            "p-RoPE": partial(rotary.proportional, WIDTH, 1e4, fraction=0.5),
        }[name]()
        assert torch.equal(rope.frequencies, schedule.frequencies)
        assert rope.attention_factor == schedule.attention_factor
    with pytest.raises(TypeError, match=r"schedule must return frequencies and"):
        schemes.rope(WIDTH, schedule=lambda dim, base: 3.0)


# ---- refused input

AT = at_five(NOPE, causal=True)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "positions beside a prepared scheme": (
        lambda: attention(Q, K, V, scheme=AT, q_positions=FIVE),
        ValueError,
        "q_positions must be None beside a prepared scheme",
    ),
    "a mask beside a prepared scheme": (
        lambda: fused_attention(Q, K, V, scheme=AT, mask=causal(FIVE, FIVE)),
        ValueError,
        "mask must be None beside a prepared scheme",
    ),
    "a chunk beside a prepared scheme": (
        lambda: fused_attention(Q, K, V, scheme=AT, chunk=2),
        ValueError,
        "chunk must be None beside a prepared scheme, got 2",
    ),
    "other tokens than prepared": (
        lambda: attention(Q[:, :, :3], K, V, scheme=AT),
        ValueError,
        "q must be .B, H, T, d. with T = 5, for which the scheme was prepared",
    ),
    "a cache that was not prepared": (
        lambda: attention(Q, *(torch.cat((x, x), 2) for x in (K, V)), scheme=AT),
        ValueError,
        "k must be .B, H, T, d. with T = 5",
    ),
    "no positions": (
        lambda: attention(Q, K, V, scheme=NOPE, q_positions=FIVE),
        TypeError,
        "k_positions must be given with a PositionScheme",
    ),
    "all layers at once": (
        lambda: attention(
            Q,
            K,
            V,
            scheme=prepare(X, SWAPS["a plan"], q_positions=FIVE, causal=True)[1],
        ),
        TypeError,
        r"scheme must be one layer's: at\.layer\(i\)",
    ),
    "all layers at once, transformed": (
        lambda: prepare(X, SWAPS["a plan"], q_positions=FIVE, causal=True)[1].transform,
        AttributeError,
        r"transform is one layer's: at\.layer\(i\)\.transform",
    ),
    "both results of prepare": (
        lambda: attention(
            Q, K, V, scheme=prepare(X, NOPE, q_positions=FIVE, causal=True)
        ),
        TypeError,
        r"got tuple: unpack x, at = prepare",
    ),
    "another batch than prepared": (
        lambda: attention(
            *(x[:1] for x in (Q, K, V)),
            scheme=at_five(NOPE, mask=key_padding_mask(REAL)),
        ),
        ValueError,
        "q must have the batch and heads of the mask that was prepared",
    ),
    "other heads than prepared": (
        lambda: fused_attention(Q, K, V, scheme=at_five(schemes.alibi(8))),
        ValueError,
        "q must have the batch and heads of the bias that was prepared",
    ),
    "an embedding of another width": (
        lambda: at_five(schemes.sinusoidal(16)),
        ValueError,
        "scheme 'sinusoidal' adds an embedding of 16 channels, and x has 8",
    ),
    "an order that is not needed": (
        lambda: at_five(NOPE, q_order=FIVE),
        ValueError,
        "q_order must be None without a causal mask over a cache",
    ),
    "half an order": (
        lambda: at_five(NOPE, causal=True, k_positions=FIVE, q_order=FIVE),
        ValueError,
        "q_order and k_order must be given together, got q_order",
    ),
    "positions of other tokens": (
        lambda: at_five(NOPE, q_positions=arange(6)),
        ValueError,
        r"q_positions must have shape \(5,\), \(1, 5\) or \(2, 5\).*got \(6,\)",
    ),
    "a padding mask as it is": (
        lambda: at_five(NOPE, mask=REAL),
        ValueError,
        r"from two axes .*key_padding_mask\(mask\)",
    ),
    "a padding mask as it is, in attention": (
        lambda: attention(
            Q, K, V, scheme=NOPE, q_positions=FIVE, k_positions=FIVE, mask=REAL
        ),
        ValueError,
        r"from two axes .*key_padding_mask\(mask\)",
    ),
    "heads and tokens exchanged": (
        lambda: attention(
            *(x.transpose(1, 2) for x in (Q, K, V)),
            scheme=NOPE,
            q_positions=FIVE,
            k_positions=FIVE,
        ),
        ValueError,
        r"exchange heads and tokens, q\.transpose\(1, 2\)",
    ),
    "heads and tokens exchanged, in a rotation": (
        lambda: rotary.RoPE(rotary.unscaled(WIDTH, 1e4)[0])(FIVE)(Q.transpose(1, 2)),
        ValueError,
        r"heads and tokens, x\.transpose\(1, 2\)\?",
    ),
    "a layer that is not there": (
        lambda: prepare(X, SWAPS["a plan"], q_positions=FIVE, causal=True)[1].layer(6),
        IndexError,
        "index must be a layer in 0 … 5, got 6",
    ),
    "an embedding in a layer": (
        lambda: schemes.LayerSchemes([NOPE, schemes.sinusoidal(WIDTH)]),
        ValueError,
        r"layers\[1\] must have no embedding.*got 'sinusoidal'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
