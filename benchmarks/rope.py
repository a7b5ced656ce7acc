"""RoPE on q and k: against `clone`, `copy_` and the peers, and how exact each is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import measure, peers
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary import LAYOUTS, RoPE
from posenc_lib.rotary.pairs import Layout

SHAPES = {"long": (1, 32, 4096, 128), "short": (4, 16, 1024, 64)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYERS = 32
TOGETHER = ", q and k together"
STEP = f", {LAYERS} layers with one table"
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
    for name, time in times.items():
        row = {"what": "forward", "shape": shape, "dtype": dtype, "case": name, **time}
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
    for x in (q, k):
        x.requires_grad_()

    def passes(rotate: peers.Rotate) -> tuple[Tensor, ...]:
        return torch.autograd.grad(rotate(q, k), (q, k), grads)

    rotations = dict(_rotations(q))
    cases = {"clone": partial(passes, lambda q, k: (q.clone(), k.clone()))}
    cases |= {name: partial(passes, rotate) for name, (_, rotate) in rotations.items()}
    times = measure.interleaved(
        cases, seconds=seconds if shape == "long" else seconds / 2, device=device
    )
    # a ratio, which the length does not change
    memory = _memory(cases, q) if shape == "short" else {}
    for name, time in times.items():
        row = {
            "what": "forward and backward",
            "shape": shape,
            "dtype": dtype,
            "case": name,
            **time,
        }
        row["memory"] = memory.get(name)
        yield row | ({"layout": rotations[name][0]} if name in rotations else {})


def _memory(cases: dict[str, measure.Case], q: Tensor) -> dict[str, float]:
    """Peak memory over that of q and k, by one thread: more would not change it."""
    if q.device.type == "cpu" and torch.get_num_threads() > 1:
        return {}
    return {
        name: round(measure.peak_memory(case, q.device) / (2 * q.nbytes), 2)
        for name, case in cases.items()
    }


def ours(q: Tensor, layout: Layout) -> Any:
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
    """(name, (layout, function of q and k)): ours, and those of installed peers."""
    torch.compiler.reset()
    for layout in LAYOUTS:
        rotate = partial(_both, ours(q, layout))
        yield f"ours {layout}", (layout, rotate)
        yield f"ours {layout}, compiled", (layout, torch.compile(rotate, dynamic=False))
    for name, layout, rotate in peers.rotations(tuple(q.shape), q.dtype, q.device):
        yield name, (layout, rotate)
        if name == peers.LLAMA:
            yield f"{name}, compiled", (layout, torch.compile(rotate, dynamic=False))


def _error(q: Tensor, layout: Layout, rotate: peers.Rotate) -> dict[str, float]:
    """Distance of the first head from the rotation in float64."""
    with torch.no_grad():
        rotated = rotate(q, q)[0][:1, :1].double()
    rope = RoPE(inverse_frequencies(q.shape[3]), layout)
    exact = rope(arange(q.shape[2], device=q.device), torch.float64)
    off = (rotated - exact(q.detach()[:1, :1].double())).abs()
    return {
        "most": float(f"{off.max():.3g}"),
        "rms": float(f"{off.square().mean().sqrt():.3g}"),
    }


def decode(device: torch.device, seconds: float, *, times: int = 96) -> Iterator[Row]:
    """One token at position 4095: q and k in one layer, and in all with their table."""
    position = torch.tensor([4095], device=device)
    for name_of_dtype, dtype in DTYPES.items():
        q, k = (
            normal(1, 32, 1, 128, dtype=dtype, device=device, seed=seed)
            for seed in (0, 1)
        )
        cases: dict[str, measure.Case] = {
            name: partial(rotate, q, k)
            for name, _, rotate in peers.rotations(tuple(q.shape), dtype, device)
        }
        llama = peers.llama_layers(q, count=LAYERS)
        if llama is not None:
            cases[f"{peers.LLAMA}{STEP}"] = partial(llama, q, k, position[None])
        for layout in LAYOUTS:
            rope = RoPE(inverse_frequencies(128).to(device), layout)
            cases[f"ours {layout}"] = partial(_both, rope(position), q, k)
            cases[f"ours {layout}{TOGETHER}"] = partial(rope(position).both, q, k)
            cases[f"ours {layout}{STEP}"] = partial(_step, rope, position, q, k)
        counts = {
            name: times // LAYERS if name.endswith(STEP) else times for name in cases
        }
        repeated = {
            name: partial(_repeat, case, counts[name]) for name, case in cases.items()
        }
        with torch.no_grad():
            rows = measure.interleaved(repeated, seconds=seconds, device=device)
        for name, row in rows.items():
            # those of one call, though a round of either kind has as many layers
            row["milliseconds"] = round(row["milliseconds"] / counts[name], 5)
            yield {
                "what": "one token",
                "shape": "1, 32, 1, 128",
                "dtype": name_of_dtype,
                "case": name,
                **row,
            }


def _step(rope: RoPE, positions: Tensor, q: Tensor, k: Tensor) -> None:
    rotation = rope(positions)
    for _ in range(LAYERS):
        rotation.both(q, k)


def _repeat(case: measure.Case, times: int) -> None:
    for _ in range(times):
        case()


def table(device: torch.device, seconds: float) -> Iterator[Row]:
    """The table of 131,072 positions against one layer's rotation of 32 heads."""
    length = 131_072
    # gigabytes: one tensor stands for q and for k
    x = torch.ones(1, 32, length, 128, device=device)
    rope = RoPE(inverse_frequencies(128).to(device))
    positions = arange(length, device=device)
    cases = {
        "rotation of q and k": partial(_both, rope(positions), x, x),
        "table": partial(rope, positions),
    }
    with torch.no_grad():
        rows = measure.interleaved(cases, seconds=seconds, device=device)
    for name, row in rows.items():
        yield {
            "what": "table",
            "shape": "1, 32, 131072, 128",
            "dtype": "float32",
            "case": name,
            **row,
        }


def accuracy(device: torch.device, seconds: float) -> Iterator[Row]:
    """The table's error at position 1,000,000, and how far scores move by then."""
    del seconds
    positions, far = arange(64, device=device), 1_000_000
    query, keys = positions[-1:], positions[::3]  # distances 0, 3 … 63
    q = normal(256, 1, 1, 128, device=device, seed=0)
    k = normal(256, 1, 1, 128, device=device, seed=1).expand(256, 1, 22, 128)
    rope = RoPE(inverse_frequencies(128).to(device), "half")
    rotations = {"ours": lambda x, p: rope(p)(x)}
    layer = peers.llama_layers(q)
    if layer is not None:
        rotations[peers.LLAMA] = lambda x, p: layer(x, x, p[None])[0]
    # (1, 0) becomes (cos, sin)
    ones = torch.cat((torch.ones(64, 64), torch.zeros(64, 64)), -1)[None, None]
    ones = ones.to(device)
    angles = (positions + far).double()[:, None] * inverse_frequencies(128).to(device)
    exact = torch.cat((angles.cos(), angles.sin()), -1)
    for name, rotate in rotations.items():
        scores = [
            (rotate(q, query + start) * rotate(k, keys + start)).sum(-1) / 128**0.5
            for start in (0, far)
        ]
        table_error = (rotate(ones, positions + far)[0, 0] - exact).abs().max()
        yield {
            "what": "accuracy",
            "case": name,
            "table": float(f"{table_error:.3g}"),
            "score": float(f"{(scores[0] - scores[1]).abs().max():.3g}"),
        }
