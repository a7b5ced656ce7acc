"""Plans of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from examples.attention import WIDTH, qkv

from posenc_lib.attention import (
    attention,
    causal,
)
from posenc_lib.attention.long_context import (
    llama4_temperature,
)
from posenc_lib.attention.masks import chunk_mask
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.layers import (
    Layer,
    cohere2,
    drope,
    gemma3,
    gpt_oss,
    llama4,
    modernbert,
    smollm3,
)
from posenc_lib.positions import arange
from posenc_lib.properties import (
    max_error,
)
from posenc_lib.rotary import llama3
from posenc_lib.scheme import NOPE


def test_plans_put_the_full_layers_where_the_models_have_them() -> None:
    full = {
        "Gemma 3": [i for i, layer in enumerate(gemma3(26)) if layer.window is None],
        "Llama 4": [i for i, layer in enumerate(llama4(48)) if layer.chunk is None],
        "SmolLM3": [i for i, layer in enumerate(smollm3(36)) if layer.base is None],
        "Command": [
            i
            for i, layer in enumerate(cohere2(32, base=50_000.0))
            if layer.window is None
        ],
        "gpt-oss": [i for i, layer in enumerate(gpt_oss(24)) if layer.window is None],
        "ModernBERT": [
            i for i, layer in enumerate(modernbert(22)) if layer.window is None
        ],
    }
    assert full == {
        "Gemma 3": [5, 11, 17, 23],
        "Llama 4": list(range(3, 48, 4)),
        "SmolLM3": list(range(3, 36, 4)),
        "Command": list(range(3, 32, 4)),
        "gpt-oss": list(range(1, 24, 2)),
        "ModernBERT": list(range(0, 22, 3)),
    }
    assert all(
        (layer.base is None) == (layer.window is None)
        for layer in cohere2(32, base=50_000.0)
    )
    assert all(
        (layer.temperature is None) == (layer.base is not None) for layer in llama4(48)
    )
    assert {layer.base for layer in modernbert(22) if layer.window is None} == {
        160_000.0
    }


def test_only_global_layers_of_gemma3_are_interpolated() -> None:
    for layer in gemma3(12, factor=8.0):
        rope = layer.rope(256, layout="half")
        assert rope is not None
        far = layer.window is None
        want = (
            inverse_frequencies(256, 1e6) / 8 if far else inverse_frequencies(256, 1e4)
        )
        assert torch.equal(rope.frequencies, want)
        assert rope.layout == "half"
    small = gemma3(6, window=512, factor=1.0)[5].rope(256)
    assert small is not None
    assert torch.equal(small.frequencies, inverse_frequencies(256, 1e6))


def test_gpt_oss_layers_rotate_as_its_configuration_says() -> None:
    rope = gpt_oss(2)[1].rope(64)
    assert rope is not None
    assert rope.attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    plain = inverse_frequencies(64, 150_000.0)
    ratio = plain / rope.frequencies
    kinds = [int((abs(ratio - 1) < 1e-12).sum()), int((abs(ratio - 32) < 1e-9).sum())]
    assert kinds == [9, 14], "9 pairs left alone, 14 interpolated, 9 in between"
    low, high = (
        64 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(150_000))
        for turns in (32, 1)
    )
    for i in range(9, 18):  # the ramp begins and ends between pairs
        t = (i - low) / (high - low)
        assert float(rope.frequencies[i] / plain[i]) == pytest.approx(
            1 - t + t / 32, rel=1e-12
        )


def test_masks_of_the_layers() -> None:
    m = arange(200)
    r = m[None, :] - m[:, None]
    local = modernbert(2)[1].scheme(8)
    assert local.mask is not None
    assert torch.equal(local.mask(m, m), r.abs() <= 64)
    sliding = gemma3(1, window=5)[0].scheme(8)
    assert sliding.mask is not None
    assert torch.equal(sliding.mask(m, m) & causal(m, m), (r <= 0) & (r > -5))
    chunks = chunk_mask(m, m, chunk=7)
    for i, j in itertools.product(range(30), range(30)):
        assert bool(chunks[i, j]) == (i // 7 == j // 7)
    nope = llama4(4)[3].scheme(8)
    assert (nope.name, nope.places) == ("NoPE", ("transform",))
    assert smollm3(4)[3].scheme(8).places == ()


def test_a_llama4_layer_without_rotation_scales_its_queries() -> None:
    q, k, _ = qkv(3)
    m = torch.tensor([0, 8191, 100_000])
    scheme = llama4(4)[3].scheme(WIDTH)
    assert scheme.transform is not None
    got, same = scheme.transform(q, k, m, m)
    assert same is k
    assert max_error(got, q * llama4_temperature(m, torch.float64)[:, None]) == 0


def test_drope_drops_rotations_and_nothing_else() -> None:
    plan = gemma3(6)
    dropped = drope(plan)
    assert all(layer.base is None for layer in dropped)
    assert [layer.window for layer in dropped] == [layer.window for layer in plan]
    q, k, v = qkv(5)
    m = arange(5)
    scheme = drope((Layer(10_000.0),))[0].scheme(WIDTH)
    kwargs: dict[str, Any] = {"q_positions": m, "k_positions": m, "mask": causal(m, m)}
    assert (
        max_error(
            attention(q, k, v, scheme=scheme, **kwargs),
            attention(q, k, v, scheme=NOPE, **kwargs),
        )
        == 0
    )
    with pytest.raises(ValueError, match="plan"):
        drope(dropped)


# ---- refused input

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "gemma3: layers": (
        lambda: gemma3(0),
        ValueError,
        "layers must be an integer ≥ 1, got 0",
    ),
    "gemma3: factor": (
        lambda: gemma3(6, factor=0.5),
        ValueError,
        "factor must be",
    ),
    "cohere2: window": (
        lambda: cohere2(4, base=1e4, window=0),
        ValueError,
        "window must be an integer ≥ 1",
    ),
    "smollm3: base": (
        lambda: smollm3(4, base=0.0),
        ValueError,
        "base must be finite and above 0",
    ),
    "Layer: window and chunk exclude one another": (
        lambda: Layer(window=3, chunk=3),
        ValueError,
        "window and chunk exclude one another",
    ),
    "Layer(schedule=partial(llama3, factor=8.0))": (
        lambda: Layer(schedule=partial(llama3, factor=8.0)),
        ValueError,
        "schedule is for layers with a rotation",
    ),
    "Layer: temperature": (
        lambda: Layer(1e4, temperature=llama4_temperature),
        ValueError,
        "temperature is for layers without a rotation",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
