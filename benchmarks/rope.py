"""Applying RoPE to q and k: beside `clone` and `copy_` of the same tensors, beside the peers, and how exact each is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import measure, peers
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary import RoPE

SHAPES = {"long": (1, 32, 4096, 128), "short": (4, 16, 1024, 64)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYOUTS = ("interleaved", "half")

Row = dict[str, Any]


def normal(
    *shape: int, dtype: torch.dtype = torch.float32, device: torch.device, seed: int
) -> Tensor:
    """Standard normal numbers, drawn on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(
        device, dtype
    )


def forward(device: torch.device, seconds: float) -> Iterator[Row]:
    """The forward pass, for each shape and dtype."""
    for shape in SHAPES:
        for dtype in DTYPES:
            yield from _forward(shape, dtype, device, seconds)


def _forward(
    shape: str, dtype: str, device: torch.device, seconds: float
) -> Iterator[Row]:
    q, k = (
        normal(*SHAPES[shape], dtype=DTYPES[dtype], device=device, seed=seed)
        for seed in (0, 1)
    )
    into = torch.empty_like(q), torch.empty_like(k)
    rotations = dict(_rotations(q))
    cases: dict[str, measure.Case] = {"clone": lambda: (q.clone(), k.clone())}
    cases |= {name: partial(rotate, q, k) for name, (_, rotate) in rotations.items()}
    cases["copy_"] = lambda: [y.copy_(x) for x, y in zip((q, k), into, strict=True)]
    for layout in LAYOUTS:
        cases[f"ours {layout}, out="] = partial(_write, ours(q, layout), (q, k), into)
    with torch.no_grad():
        times = measure.interleaved(
            cases, seconds=seconds if shape == "long" else seconds / 2, device=device
        )
        memory = _memory(cases, q)
    for name, found in times.items():
        row = {"what": "forward", "shape": shape, "dtype": dtype, "case": name, **found}
        row["memory"] = memory.get(name)
        if name in rotations:
            row |= {"layout": rotations[name][0], "error": _error(q, *rotations[name])}
        yield row


def backward(device: torch.device, seconds: float) -> Iterator[Row]:
    """Forward and backward pass, for each shape and dtype."""
    for shape in SHAPES:
        for dtype in DTYPES:
            yield from _backward(shape, dtype, device, seconds)


def _backward(
    shape: str, dtype: str, device: torch.device, seconds: float
) -> Iterator[Row]:
    q, k, *grads = (
        normal(*SHAPES[shape], dtype=DTYPES[dtype], device=device, seed=seed)
        for seed in range(4)
    )
    q.requires_grad_(), k.requires_grad_()

    def passes(rotate: peers.Rotate) -> tuple[Tensor, ...]:
        return torch.autograd.grad(rotate(q, k), (q, k), grads)

    rotations = dict(_rotations(q))
    cases = {"clone": partial(passes, lambda q, k: (q.clone(), k.clone()))}
    cases |= {name: partial(passes, rotate) for name, (_, rotate) in rotations.items()}
    times = measure.interleaved(
        cases, seconds=seconds if shape == "long" else seconds / 2, device=device
    )
    memory = (
        _memory(cases, q) if shape == "short" else {}
    )  # a ratio, which the length does not change
    for name, found in times.items():
        row = {
            "what": "forward and backward",
            "shape": shape,
            "dtype": dtype,
            "case": name,
            **found,
        }
        row["memory"] = memory.get(name)
        yield row | ({"layout": rotations[name][0]} if name in rotations else {})


def _memory(cases: dict[str, measure.Case], q: Tensor) -> dict[str, float]:
    """Peak memory over that of q and k; the number of threads does not change it, so one thread measures it."""
    if q.device.type == "cpu" and torch.get_num_threads() > 1:
        return {}
    return {
        name: round(measure.peak_memory(case, q.device) / (2 * q.nbytes), 2)
        for name, case in cases.items()
    }


def ours(q: Tensor, layout: str) -> Any:
    """The library's rotation at positions 0 … T − 1."""
    return RoPE(inverse_frequencies(q.shape[3]), layout)(
        arange(q.shape[2], device=q.device)
    )


def _both(rotation: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return rotation(q), rotation(k)


def _write(
    rotation: Any, tensors: tuple[Tensor, ...], into: tuple[Tensor, ...]
) -> None:
    for x, y in zip(tensors, into, strict=True):
        rotation(x, out=y)


def _rotations(q: Tensor) -> Iterator[tuple[str, tuple[str, peers.Rotate]]]:
    """(name, (layout, function of q and k)): ours, and what the installed peers have."""
    torch.compiler.reset()
    for layout in LAYOUTS:
        rotate = partial(_both, ours(q, layout))
        yield f"ours {layout}", (layout, rotate)
        yield f"ours {layout}, compiled", (layout, torch.compile(rotate, dynamic=False))
    for name, layout, rotate in peers.rotations(tuple(q.shape), q.dtype, q.device):
        yield name, (layout, rotate)
        if name == peers.LLAMA:
            yield f"{name}, compiled", (layout, torch.compile(rotate, dynamic=False))


def _error(q: Tensor, layout: str, rotate: peers.Rotate) -> dict[str, float]:
    """Distance of the first head from the rotation in float64."""
    with torch.no_grad():
        found = rotate(q, q)[0][:1, :1].double()
    rope = RoPE(inverse_frequencies(q.shape[3]), layout)
    right = rope(arange(q.shape[2], device=q.device), torch.float64)(
        q.detach()[:1, :1].double()
    )
    off = (found - right).abs()
    return {
        "most": float(f"{off.max():.3g}"),
        "rms": float(f"{off.square().mean().sqrt():.3g}"),
    }


def decode(device: torch.device, seconds: float, *, times: int = 100) -> Iterator[Row]:
    """One token at position 4095, in float32 and bfloat16: the table and its rotation of q and k, and that alone.

    q and k lie in one tensor, as a fused projection leaves them, so that ours can also
    turn both by one call.
    """
    at = torch.tensor([4095], device=device)
    for dtype, number in DTYPES.items():
        qk = normal(1, 64, 1, 128, dtype=number, device=device, seed=0)
        q, k = qk.chunk(2, 1)
        layer = peers.llama_layer(q)
        cases = (
            {}
            if layer is None
            else {f"{peers.LLAMA}, table and rotation": partial(layer, q, k, at[None])}
        )
        for name, _, rotate in peers.rotations(tuple(q.shape), number, device):
            cases[name] = partial(rotate, q, k)
        for layout in LAYOUTS:
            rope = RoPE(inverse_frequencies(128).to(device), layout)
            cases[f"ours {layout}, table and rotation"] = partial(
                _table_and_rotation, rope, at, q, k
            )
            cases[f"ours {layout}"] = partial(_both, rope(at), q, k)
            cases[f"ours {layout}, q and k as one"] = partial(_as_one, rope(at), qk)
        repeated = {name: partial(_repeat, case, times) for name, case in cases.items()}
        with torch.no_grad():
            found = measure.interleaved(repeated, seconds=seconds, device=device)
        for name, row in found.items():
            row["milliseconds"] = round(row["milliseconds"] / times, 5)
            yield {
                "what": "one token",
                "shape": "1, 32, 1, 128",
                "dtype": dtype,
                "case": name,
                **row,
            }


def _table_and_rotation(
    rope: RoPE, at: Tensor, q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    return _both(rope(at), q, k)


def _as_one(rotation: Any, qk: Tensor) -> tuple[Tensor, Tensor]:
    q, k = rotation(qk).chunk(2, 1)
    return q, k


def _repeat(case: measure.Case, times: int) -> None:
    for _ in range(times):
        case()


def table(device: torch.device, seconds: float) -> Iterator[Row]:
    """The table of 131,072 positions beside one layer's rotation of q and k of that length, 32 heads of 128."""
    length = 131_072
    x = torch.ones(
        1, 32, length, 128, device=device
    )  # gigabytes: one tensor stands for q and for k
    rope, at = RoPE(inverse_frequencies(128).to(device)), arange(length, device=device)
    cases = {
        "rotation of q and k": partial(_both, rope(at), x, x),
        "table": partial(rope, at),
    }
    with torch.no_grad():
        found = measure.interleaved(cases, seconds=seconds, device=device)
    for name, row in found.items():
        yield {
            "what": "table",
            "shape": "1, 32, 131072, 128",
            "dtype": "float32",
            "case": name,
            **row,
        }


def accuracy(device: torch.device, seconds: float) -> Iterator[Row]:
    """At position 1,000,000: the table's error, and how far a score moves from where it was at position 0."""
    del seconds
    at, far = arange(64, device=device), 1_000_000
    query, keys = at[-1:], at[::3]  # distances 0, 3 … 63
    q, k = (
        normal(256, 1, 1, 128, device=device, seed=0),
        normal(256, 1, 1, 128, device=device, seed=1).expand(256, 1, 22, 128),
    )
    rope = RoPE(inverse_frequencies(128).to(device), "half")
    rotations = {"ours": lambda x, at: rope(at)(x)}
    layer = peers.llama_layer(q)
    if layer is not None:
        rotations[peers.LLAMA] = lambda x, at: layer(x, x, at[None])[0]
    ones = torch.cat((torch.ones(64, 64), torch.zeros(64, 64)), -1)[None, None].to(
        device
    )  # (1, 0) becomes (cos, sin)
    angles = (at + far).double()[:, None] * inverse_frequencies(128).to(device)
    right = torch.cat((angles.cos(), angles.sin()), -1)
    for name, rotate in rotations.items():
        scores = [
            (rotate(q, query + start) * rotate(k, keys + start)).sum(-1) / 128**0.5
            for start in (0, far)
        ]
        yield {
            "what": "accuracy",
            "case": name,
            "table": float(f"{(rotate(ones, at + far)[0, 0] - right).abs().max():.3g}"),
            "score": float(f"{(scores[0] - scores[1]).abs().max():.3g}"),
        }
