"""Checks of arguments: errors name the argument, its value and what would be valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from posenc_lib._torch import values_known

INTEGERS = (int, np.integer, torch.SymInt)
NUMBERS = (int, float, np.integer)  # np.float64 is a float; less would lose digits


def whole_number(name: str, value: Any, *, least: int) -> int:
    """`value` as an int, if it is an integer ≥ `least`, Python's or NumPy's."""
    if isinstance(value, bool) or not isinstance(value, INTEGERS):
        raise TypeError(f"{name} must be an integer ≥ {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value}")
    return int(value) if isinstance(value, np.integer) else cast(int, value)


def sizes(**named: Any) -> None:
    """Whether each argument is an integer of at least 1."""
    for name, value in named.items():
        whole_number(name, value, least=1)


def axis_sizes(name: str, value: Any, *, axes: int | None = None) -> tuple[int, ...]:
    """`value` as integers ≥ 1, one for each axis; `axes` is their number, if known."""
    wanted = "for each axis" if axes is None else f"for each of {axes} axes"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(
            f"{name} must be one integer {wanted}, such as (7, 7); got {value!r}"
        )
    if len(value) == 0 or axes not in (None, len(value)):
        raise ValueError(
            f"{name} must be one integer {wanted}, such as (7, 7); got {value!r}"
        )
    return tuple(
        whole_number(f"{name}[{i}]", size, least=1) for i, size in enumerate(value)
    )


def even_dimension(name: str, value: Any) -> int:
    """`value` if it is an even integer of at least 2: channels are rotated in pairs."""
    number = whole_number(name, value, least=1)
    if number % 2:
        raise ValueError(
            f"{name} must be even, because channels form pairs; got {value}"
        )
    return number


def positive(name: str, value: Any) -> float:
    """`value` if it is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not torch.compiler.is_compiling() and not (
        math.isfinite(value) and value > 0
    ):  # may be symbolic there
        raise ValueError(f"{name} must be finite and above 0, got {value}")
    return _python(value)


def finite(name: str, value: Any) -> float:
    """`value` if it is a finite number of any sign."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return _python(value)


def _python(value: Any) -> float:
    """NumPy's scalars as Python's, whose products keep the dtype of a tensor."""
    return float(value) if isinstance(value, np.generic) else cast(float, value)


def one_of(name: str, value: Any, valid: tuple[str, ...]) -> str:
    """`value` if it is one of the `valid` strings."""
    if value not in valid:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, valid))}; got {value!r}"
        )
    return cast(str, value)


def sequence(name: str, value: Any) -> list[Any]:
    """The entries of `value` if it is a sequence of them, and no text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of numbers, got {value!r}")
    return list(value)


def callable_(name: str, value: Any) -> Any:
    """`value` if it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a callable, got {value!r}")
    return value


def generator(name: str, value: Any) -> torch.Generator | None:
    """`value` if it is a generator, or None for PyTorch's own."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator or None, got {value!r}")
    return value


def boolean(name: str, value: Any) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def floating_dtype(name: str, value: Any) -> torch.dtype:
    """`value` if it is a floating-point dtype."""
    if not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise TypeError(
            f"{name} must be a floating-point torch.dtype such as torch.float32, got "
            f"{value!r}"
        )
    return value


def floating_tensor(name: str, value: Any, *, least_dims: int) -> Tensor:
    """`value` if it is a floating-point tensor with `least_dims` dimensions or more."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        raise TypeError(
            f"{name} must be a floating-point tensor, got "
            f"{getattr(value, 'dtype', type(value).__name__)}"
        )
    if value.dim() < least_dims:
        raise ValueError(
            f"{name} must have at least {least_dims} dimensions, got shape "
            f"{tuple(value.shape)}"
        )
    return value


def vector(name: str, value: Any, size: str) -> Tensor:
    """`value` if it is a vector of finite float32 or float64 numbers.

    `size` names its length in the message.
    """
    numbers = floating_tensor(name, value, least_dims=1)
    if numbers.dim() != 1 or numbers.numel() == 0:
        raise ValueError(
            f"{name} must have shape ({size},) with at least one number, got "
            f"{tuple(numbers.shape)}"
        )
    if numbers.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float64 or float32, got {numbers.dtype}")
    if values_known(numbers) and not bool(numbers.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {numbers[~numbers.isfinite()][0].item()}"
        )
    return numbers


def heads_tensor(name: str, value: Any) -> Tensor:
    """`value` if it is a floating-point tensor of shape (B, H, T, d), H at least 1."""
    x = floating_tensor(name, value, least_dims=4)
    if x.dim() != 4 or x.shape[1] == 0:
        raise ValueError(
            f"{name} must have shape (B, H, T, d) with at least one head, got "
            f"{tuple(x.shape)}"
        )
    return x


def equal_heads(q: Any, k: Any) -> None:
    """Whether q is (B, H, Tq, d) and k is (B, H, Tk, d): no grouped keys."""
    heads_tensor("q", q)
    heads_tensor("k", k)
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "q and k must agree in batch, heads and head dimension (`attention` "
            "repeats grouped keys); "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )


def grouped_heads(q: Any, k: Any) -> None:
    """Whether q and k are (B, H, Tq, d) and (B, Hk, Tk, d), Hk a divisor of H."""
    heads_tensor("q", q)
    heads_tensor("k", k)
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            "q and k must agree in batch and head dimension, and k's heads must divide "
            "q's; "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )


def values_of(k: Tensor, v: Any) -> None:
    """Whether v (B, Hk, Tk, d_v) has one value for each key."""
    if heads_tensor("v", v).shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v must have k's batch, heads and length {tuple(k.shape[:3])}, got "
            f"{tuple(v.shape[:3])}"
        )


def score_bias(name: str, value: Any, scores: Sequence[int]) -> Tensor:
    """`value` if it is a tensor of four axes that broadcasts to the scores' shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dim() != 4 or any(
        size not in (1, full) for size, full in zip(value.shape, scores, strict=True)
    ):
        raise ValueError(
            f"{name} must broadcast to {tuple(scores)} from four axes, got "
            f"{tuple(value.shape)}"
        )
    return value


def position_tensor(name: str, value: Any) -> Tensor:
    """Positions as int64, or as the float32 or float64 that they are.

    Sixteen-bit floats are refused: bfloat16 has 897 distinct integers below 8192, so
    the positions would be lost before anything is computed from them.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor of positions, got {type(value).__name__}"
        )
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(
            f"{name} must be integers, float32 or float64, got {value.dtype}"
        )
    if value.is_floating_point() and value.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"{name} must be integers, float32 or float64: {value.dtype} can't tell "
            "large positions apart"
        )
    if value.dim() < 1 or value.numel() == 0:
        raise ValueError(
            f"{name} must have shape (T,) or (B, T) with at least one position, got "
            f"{tuple(value.shape)}"
        )
    if not value.is_floating_point():
        return value.to(torch.int64)
    if values_known(value) and not bool(value.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {value[~value.isfinite()][0].item()}"
        )
    return value


def coordinates(
    name: str, value: Any, *, axes: int | None = None, batched: bool = False
) -> Tensor:
    """Positions of shape (..., T, axes); `batched`: (T, axes) or (B, T, axes)."""
    positions = position_tensor(name, value)
    valid = positions.dim() in (2, 3) if batched else positions.dim() >= 2
    if not valid or axes not in (None, positions.shape[-1]):
        last = "axes" if axes is None else axes
        shapes = f"(T, {last}) or (B, T, {last})" if batched else f"(..., T, {last})"
        raise ValueError(
            f"{name} must have shape {shapes}, the axes last; got "
            f"{tuple(positions.shape)}"
        )
    return positions


def attention_positions(name: str, value: Any) -> Tensor:
    """Positions of shape (T,) or (1, T), shared by the batch, or (B, T)."""
    positions = position_tensor(name, value)
    if positions.dim() > 2:
        raise ValueError(
            f"{name} must have shape (T,) or (B, T), got {tuple(positions.shape)}"
        )
    return positions


def token_positions(name: str, value: Any, *, batch: int, length: int) -> None:
    """Whether there is one position for each token: (T,), (1, T) or (B, T)."""
    shape = tuple(attention_positions(name, value).shape)
    if shape not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"{name} must have shape ({length},) or ({batch}, {length}), got {shape}"
        )


def pair_positions(
    q_name: str, q_positions: Any, k_name: str, k_positions: Any
) -> tuple[Tensor, Tensor]:
    """Positions of queries as a column, those of keys as a row.

    (Tq, 1) and (1, Tk), or with a batch (B, 1, Tq, 1) and (B, 1, 1, Tk).
    """
    m = attention_positions(q_name, q_positions)
    n = attention_positions(k_name, k_positions)
    # Beside float positions, float32 would round large integers.
    if m.is_floating_point() != n.is_floating_point() and m.device.type != "mps":
        m, n = m.to(torch.float64), n.to(torch.float64)
    if m.dim() == n.dim() == 1:
        return m[:, None], n[None, :]
    if m.dim() == n.dim() and not same_batch(m, n):
        raise ValueError(
            f"{q_name} and {k_name} must have the same batch, got {m.shape[0]} and "
            f"{n.shape[0]}"
        )
    m, n = (x if x.dim() == 2 else x[None] for x in (m, n))
    return m[:, None, :, None], n[:, None, None, :]


def same_batch(m: Tensor, n: Tensor) -> bool:
    """Whether two tensors are of one batch: (1, T) is shared by all its rows."""
    return 1 in (m.shape[0], n.shape[0]) or m.shape[0] == n.shape[0]


def table_rows(name: str, value: Any, count: int) -> Tensor:
    """Positions that are rows of a table: integers in 0 … count − 1."""
    positions = position_tensor(name, value)
    if positions.is_floating_point():
        raise TypeError(
            f"{name} must be integers, which are rows of the table; got "
            f"{positions.dtype}"
        )
    if (
        values_known(positions)
        and not 0 <= int(positions.min()) <= int(positions.max()) < count
    ):
        got = f"{int(positions.min())} … {int(positions.max())}"
        raise ValueError(
            f"{name} must lie in 0 … {count - 1} (the table has {count} rows), got "
            f"{got}"
        )
    return positions


def token_mask(name: str, value: Any) -> Tensor:
    """A (B, T) mask as booleans, True for a token and False for padding."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape (B, T), got {type(value).__name__}"
        )
    if value.is_complex():
        raise TypeError(f"{name} must be boolean, or 0 and 1, got {value.dtype}")
    if value.dim() != 2 or value.numel() == 0:
        raise ValueError(f"{name} must have shape (B, T), got {tuple(value.shape)}")
    if values_known(value) and not bool(((value == 0) | (value == 1)).all()):
        raise ValueError(
            f"{name} must hold True for a token and False for padding (or 1 and 0), "
            "got other values"
        )
    return value.to(torch.bool)


def hidden_states(
    name: str, x: Tensor | None, dim: int, positions_name: str, positions: Tensor
) -> Tensor:
    """Hidden states (B, T, D) in float32 at least, one for each position."""
    if x is None:
        raise TypeError(
            f"{name} must be given, because this encoding depends on hidden states: "
            f"attention(..., {name}=…)"
        )
    if floating_tensor(name, x, least_dims=3).dim() != 3 or x.shape[-1] != dim:
        raise ValueError(
            f"{name} must have shape (B, T, D) with D = {dim}, got {tuple(x.shape)}"
        )
    token_positions(positions_name, positions, batch=x.shape[0], length=x.shape[1])
    return x.to(at_least_float32(x.dtype))


def at_least_float32(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to compute in: the widest of `dtypes`, and never less than float32."""
    widest = torch.float32
    for dtype in dtypes:
        widest = torch.promote_types(widest, dtype)
    return widest


def float64_on(device: torch.device) -> torch.dtype:
    """The dtype of angles: float64, but float32 on Apple's mps, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def in_float64(x: Tensor) -> Tensor:
    """x in float64, on the CPU where its device, Apple's mps, has no such dtype."""
    return (x.cpu() if x.device.type == "mps" else x).to(torch.float64)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast, in whose 16 bits neighbouring positions coincide."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
