"""What several test files need: seeded tensors, one layer, devices, compilations."""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import posenc_lib
from posenc_lib import scheme
from posenc_lib.attention import attention, sliding_window
from posenc_lib.embedding import sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import NOPE, PositionScheme

EPS = torch.finfo(torch.float64).eps
LENGTHS = (7, 8, 9, 16, 33)
HEADS, WIDTH, ROWS = 4, 8, 8192  # of the schemes below


def groups() -> dict[str, ModuleType]:
    """The examples and golden cases of each group of encodings, by its name."""
    files = sorted((Path(__file__).parent / "examples").glob("*.py"))
    modules = {path.stem: import_module(f"examples.{path.stem}") for path in files}
    return {name: part for name, part in modules.items() if hasattr(part, "ADAPTERS")}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, the same ones for every dtype up to rounding."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rounding(x: Tensor, terms: int = 256) -> float:
    """Bound on the rounding of sums of at most `terms` products of the size of x."""
    return terms * EPS * max(1.0, float(x.detach().abs().max()))


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def rounds_to(actual: Tensor, exact: Tensor, error: Tensor | float = 0.0) -> bool:
    """Whether `actual` is what some number within `error` of `exact` rounds to, in the
    dtype of `actual`.
    """
    low, high = (exact - error).to(actual.dtype), (exact + error).to(actual.dtype)
    return bool(((low <= actual) & (actual <= high)).all())


def same_but_for_rounding(actual: Tensor, expected: Tensor) -> bool:
    """Whether two orders of the same few operations explain the difference.

    Kernels for other strides may differ so.
    """
    if not expected.dtype.is_floating_point:
        return torch.equal(actual, expected)
    step = 4 * torch.finfo(expected.dtype).eps
    return torch.allclose(
        actual,
        expected,
        rtol=step,
        atol=step * float(expected.abs().nan_to_num(0, 0).max()),
    )


def tolerance(x: Tensor) -> float:
    """How far two ways to the same attention may be apart in float64, by rounding
    alone.

    Scores stay below 16, so with WIDTH channels a weight is off by 2 · 16 · (WIDTH + 3)
    roundings of EPS/2 at most; the sum over fewer than 32 keys adds as many.
    """
    return (16 * (WIDTH + 3) + 32) * EPS * float(x.detach().abs().max())


# Names of schemes that read hidden states: registry.py and `examples` add theirs.
READING_HIDDEN_STATES: set[str] = set()

PROJECTIONS = [
    normal(HEADS, WIDTH, WIDTH, seed=seed) * WIDTH**-0.5 for seed in (101, 102, 103)
]


def layer(
    position_scheme: PositionScheme,
    x: Tensor,
    positions: Tensor,
    *,
    mask: Tensor | None = None,
    queries: slice = slice(None),
) -> Tensor:
    """One layer of self-attention on tokens x (B, T, WIDTH) → (B, HEADS, T, WIDTH).

    Embedding, projections, attention.

    It uses every field of a scheme, so that sinusoids and rotations are
    tested by the same line. `queries` are the tokens that ask; all are keys. The
    projections are fixed, so equal tokens have equal queries. A scheme that reads
    hidden states gets the tokens.
    """
    if position_scheme.embedding is not None:
        x = x + position_scheme.embedding(positions)
        position_scheme = after_embedding(position_scheme)
    q, k, v = (
        x[:, None] @ weight.to(x.dtype) for weight in PROJECTIONS
    )  # (B, H, T, D)
    how = {
        "q_positions": positions[..., queries],
        "k_positions": positions,
        "scheme": position_scheme,
        "mask": mask,
    }
    return attention(
        q[:, :, queries], k, v, **how, **hidden(position_scheme, x, queries)
    )


def after_embedding(scheme: PositionScheme) -> PositionScheme:
    """What attention does under a scheme, for q and k that are not of tokens."""
    return replace(scheme, embedding=None)


def hidden(
    scheme: PositionScheme, x: Tensor, queries: slice = slice(None)
) -> dict[str, Tensor]:
    """The hidden states of the tokens x, as arguments, if the scheme reads them."""
    return (
        {"q_x": x[:, queries], "k_x": x} if scheme.name in READING_HIDDEN_STATES else {}
    )


def modules_of(part: Any) -> list[nn.Module]:
    """The modules that learn behind a scheme or a field of one, each once.

    Bound methods, partials and closures.
    """
    if isinstance(part, PositionScheme):
        inside = [getattr(part, field) for field in part.places]
    elif isinstance(part, nn.Module):
        return [part]
    elif isinstance(part, partial):
        inside = [part.func, *part.args, *part.keywords.values()]
    elif inspect.ismethod(part):
        inside = [part.__self__]
    else:
        inside = [
            cell.cell_contents for cell in getattr(part, "__closure__", None) or ()
        ]
    return list(dict.fromkeys(module for each in inside for module in modules_of(each)))


SCHEMES: dict[str, PositionScheme] = {
    "NoPE": NOPE,
    "window": PositionScheme("window", mask=partial(sliding_window, size=3)),
    "sinusoidal": scheme.sinusoidal(WIDTH),
    "sinusoidal, concatenated": scheme.sinusoidal(WIDTH, layout="concatenated"),
    "sinusoidal, tensor2tensor": PositionScheme(
        "t2t", embedding=partial(sinusoidal_tensor2tensor, dim=WIDTH)
    ),
    "learned": scheme.learned(ROWS, WIDTH, generator=seeded(7)),
    "RoPE": scheme.rope(WIDTH),
    "RoPE, half": scheme.rope(WIDTH, layout="half"),
    "RoPE, partial": scheme.rope(WIDTH, rotary_dim=WIDTH // 2),
    "RoPE, attention factor": PositionScheme(
        "RoPE, attention factor",
        transform=RoPE(inverse_frequencies(WIDTH), attention_factor=1.25).transform,
    ),
    "ALiBi": scheme.alibi(HEADS),
    "T5, causal": scheme.t5(HEADS, bidirectional=False, std=1.0, generator=seeded(7)),
    "T5, bidirectional": scheme.t5(
        HEADS, bidirectional=True, std=1.0, generator=seeded(7)
    ),
}


def bucket_by_fractions(
    r: int, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> int:
    """The equation, with ⌊(B−E) ln(r/E) / ln(M/E)⌋ ≥ j decided as (r/E)^(B−E) ≥
    (M/E)^j.
    """
    count = num_buckets // 2 if bidirectional else num_buckets
    distance = abs(r) if bidirectional else max(-r, 0)
    exact = count // 2
    bucket = distance
    if distance >= exact:
        power = Fraction(distance, exact) ** (count - exact)
        bucket = exact
        while bucket < count - 1 and power >= Fraction(max_distance, exact) ** (
            bucket + 1 - exact
        ):
            bucket += 1
    return bucket + (count if bidirectional and r > 0 else 0)


def public() -> dict[str, Any]:
    """The public functions and classes by name.

    What a package lists in __all__, or what a module defines.
    """
    found = {}
    for info in pkgutil.iter_modules(posenc_lib.__path__):
        if (
            info.name.startswith("_") or info.name == "figures"
        ):  # figures draw: test_figures.py has them
            continue
        module = import_module(f"posenc_lib.{info.name}")
        names = getattr(module, "__all__", None) or [
            name for name in vars(module) if not name.startswith("_")
        ]
        for name in names:
            value = getattr(module, name)
            if (
                inspect.isfunction(value) or inspect.isclass(value)
            ) and value.__module__.startswith(module.__name__):
                found[f"{info.name}.{name}"] = value
    return found


# ---- other devices, on a machine that has none


def item(x: Tensor, index: Any) -> Tensor:
    """x[index] in PyTorch's own operators.

    Python's brackets (and its ~) ask the device for a guard before anything is
    dispatched, and a build for the CPU has no guard for cuda and mps. Every other
    operation on a fake tensor gets along without one.
    """
    index = index if isinstance(index, tuple) else (index,)
    given = sum(
        part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
        for part in index
    )
    given -= sum(part is None or part is Ellipsis for part in index)
    axis = 0
    if (
        sum(isinstance(part, Tensor) for part in index) > 1
    ):  # several index tensors select together
        indices = [
            None if part == slice(None) else part
            for part in index
            if part is not Ellipsis
        ]
        return torch.ops.aten.index(
            x, [None] * (x.dim() - len(indices)) * (index[0] is Ellipsis) + indices
        )
    for part in index:
        if part is Ellipsis:
            axis += x.dim() - axis - given
        elif part is None:
            x = torch.ops.aten.unsqueeze(x, axis)
            axis += 1
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(
                x, axis, part.start, part.stop, 1 if part.step is None else part.step
            )
            axis, given = axis + 1, given - 1
        elif isinstance(part, Tensor):
            x = torch.ops.aten.index(x, [None] * axis + [part])
            axis, given = axis + part.dim(), given - 1
        else:
            x = torch.ops.aten.select(x, axis, part)
            given -= 1
    return x


# What Python's binding refuses for a device that PyTorch was built without, as the
# operation under it.
OPERATIONS = {
    Tensor.__getitem__: item,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.copy_: torch.ops.aten.copy_,
}


class _WithoutGuards(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        func = OPERATIONS.get(func, func)
        return func(*args, **(kwargs or {}))


class _NoFloat64(TorchDispatchMode):
    """Refuses float64 on a device, as Apple's mps does."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tensors(out):
            if x.device.type == self.device and x.dtype in (
                torch.float64,
                torch.complex128,
            ):
                raise TypeError(
                    f"{func} made a {x.dtype} tensor on {self.device}, which has no "
                    "such dtype"
                )
        return out


@contextmanager
def fake_device(device: str) -> Iterator[Callable[[Any], Any]]:
    """Tensors on a device that is not there.

    Shapes, dtypes and devices are real, and mixed devices raise.

    Yields a function that puts a tree of tensors on it. On "mps" float64 raises too.
    """
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        _WithoutGuards(),
        _NoFloat64("mps"),
    ):

        def move(tree: Any) -> Any:
            return torch.utils._pytree.tree_map(
                lambda x: (
                    torch.empty(x.shape, dtype=x.dtype, device=device)
                    if isinstance(x, Tensor)
                    else x
                ),
                tree,
            )

        yield move


# ---- compilation


def compilations(
    function: Callable[..., Any],
    inputs: Iterable[tuple[Any, ...]],
    *,
    rotates: bool = False,
) -> int:
    """How often `function` is compiled for these inputs.

    A graph break or another result than in eager mode raises.

    With `rotates` the last bits may differ: compiled, a rotation is the equation; in
    eager mode, another kernel.
    """
    same = same_but_for_rounding if rotates else torch.equal
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for args in inputs:
        for actual, expected in zip(
            tensors(compiled(*args)), tensors(function(*args)), strict=True
        ):
            assert actual.dtype == expected.dtype
            assert same(actual, expected), "compiled and eager mode differ"
    return counter.frame_count


def rotated_by_loop(
    x: Tensor, angles: Sequence[float], layout: str = "interleaved"
) -> Tensor:
    """One vector (d,) rotated pair by pair, as in the definition."""
    out, pairs = x.clone(), len(angles)
    for i, angle in enumerate(angles):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


class Largest(TorchDispatchMode):
    """The most numbers in one storage that an operation inside made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage()._cdata
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor)
        }
        for x in tree_leaves(out):
            if (
                isinstance(x, Tensor) and x.untyped_storage()._cdata not in given
            ):  # no view
                self.numbers = max(
                    self.numbers, x.untyped_storage().nbytes() // x.element_size()
                )
        return out


def both_ways(form: Callable[..., Tensor], *inputs: Tensor) -> int:
    """The largest storage of a forward and a backward pass."""
    given = [x.requires_grad_() for x in inputs]
    with Largest() as largest:
        torch.autograd.grad(form(*given).sum(), given)
    return largest.numbers
