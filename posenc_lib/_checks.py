"""Checks of arguments: what is wrong is named, with its value and what would be valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


def readable(tensor: Tensor) -> bool:
    """Whether the values of `tensor` may be looked at.

    Only values of plain CPU tensors are: anywhere else a look would wait for the device or break a graph
    (compile, vmap, fake and meta tensors).
    """
    return (
        not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None  # fake tensors, tracing
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def transforming(x: Tensor) -> bool:
    """Whether vmap, another function transform, forward-mode differentiation or a trace is at work.

    They look into each operation, and have no rule for a result that is written into given memory; a trace would keep
    the number of blocks. Autograd's own vmap, for batches of gradients, is seen at x alone.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.is_legacy_batchedtensor(x)
    )


def whole_number(name: str, value: Any, *, least: int) -> int:
    """`value` if it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return cast(int, value)


def sizes(**named: Any) -> None:
    """Whether each argument is an int of at least 1."""
    for name, value in named.items():
        whole_number(name, value, least=1)


def even_dimension(name: str, value: Any) -> int:
    """`value` if it is an even int of at least 2: channels are rotated in pairs."""
    number = whole_number(name, value, least=1)
    if number % 2:
        raise ValueError(f"{name} must be even, because channels form pairs; got {value}")
    return number


def positive(name: str, value: Any) -> float:
    """`value` if it is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not torch.compiler.is_compiling() and not (math.isfinite(value) and value > 0):  # may be symbolic there
        raise ValueError(f"{name} must be finite and above 0, got {value}")
    return value


def finite(name: str, value: Any) -> float:
    """`value` if it is a finite number of any sign."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value


def one_of(name: str, value: Any, valid: tuple[str, ...]) -> str:
    """`value` if it is one of the `valid` strings."""
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, valid))}; got {value!r}")
    return cast(str, value)


def listed(name: str, value: Any) -> list[Any]:
    """The entries of `value` if it is a sequence of them, and no text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of numbers, got {value!r}")
    return list(value)


def called(name: str, value: Any) -> Any:
    """`value` if it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a callable, got {value!r}")
    return value


def source(name: str, value: Any) -> torch.Generator | None:
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
        raise TypeError(f"{name} must be a floating-point torch.dtype such as torch.float32, got {value!r}")
    return value


def floating_tensor(name: str, value: Any, *, least_dims: int) -> Tensor:
    """`value` if it is a floating-point tensor with at least `least_dims` dimensions."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        raise TypeError(f"{name} must be a floating-point tensor, got {getattr(value, 'dtype', type(value).__name__)}")
    if value.dim() < least_dims:
        raise ValueError(f"{name} must have at least {least_dims} dimensions, got shape {tuple(value.shape)}")
    return value


def vector(name: str, value: Any, size: str) -> Tensor:
    """`value` if it is a non-empty vector of finite numbers in float32 or float64; `size` names its length."""
    numbers = floating_tensor(name, value, least_dims=1)
    if numbers.dim() != 1 or numbers.numel() == 0:
        raise ValueError(f"{name} must have shape ({size},) with at least one number, got {tuple(numbers.shape)}")
    if numbers.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float64 or float32, got {numbers.dtype}")
    if readable(numbers) and not bool(numbers.isfinite().all()):
        raise ValueError(f"{name} must be finite, got {numbers[~numbers.isfinite()][0].item()}")
    return numbers


def heads_tensor(name: str, value: Any) -> Tensor:
    """`value` if it is a floating-point tensor of shape (B, H, T, d) with at least one head."""
    x = floating_tensor(name, value, least_dims=4)
    if x.dim() != 4 or x.shape[1] == 0:
        raise ValueError(f"{name} must have shape (B, H, T, d) with at least one head, got {tuple(x.shape)}")
    return x


def equal_heads(q: Any, k: Any) -> None:
    """Whether q and k are (B, H, Tq, d) and (B, H, Tk, d), with one head of k for each of q."""
    heads_tensor("q", q)
    heads_tensor("k", k)
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "q and k must agree in batch, heads and head dimension (`attention` repeats grouped keys); "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )


def grouped_heads(q: Any, k: Any) -> None:
    """Whether q and k are (B, H, Tq, d) and (B, Hk, Tk, d), Hk a divisor of H."""
    heads_tensor("q", q)
    heads_tensor("k", k)
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            "q and k must agree in batch and head dimension, and k's heads must divide q's; "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )


def values_of(k: Tensor, v: Any) -> None:
    """Whether v (B, Hk, Tk, d_v) has one value for each key."""
    if heads_tensor("v", v).shape[:3] != k.shape[:3]:
        raise ValueError(f"v must have k's batch, heads and length {tuple(k.shape[:3])}, got {tuple(v.shape[:3])}")


def score_bias(name: str, value: Any, scores: Sequence[int]) -> Tensor:
    """`value` if it is a tensor of four axes that broadcasts to the shape of the scores."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dim() != 4 or any(size not in (1, full) for size, full in zip(value.shape, scores, strict=True)):
        raise ValueError(f"{name} must broadcast to {tuple(scores)} from four axes, got {tuple(value.shape)}")
    return value


def position_tensor(name: str, value: Any) -> Tensor:
    """Positions as int64, or as the float32 or float64 that they are.

    Sixteen-bit floats are refused: bfloat16 has 897 distinct integers below 8192, so the positions would be
    lost before anything is computed from them.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of positions, got {type(value).__name__}")
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(f"{name} must be integers, float32 or float64, got {value.dtype}")
    if value.is_floating_point() and value.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be integers, float32 or float64: {value.dtype} can't tell large positions apart")
    if value.dim() < 1 or value.numel() == 0:
        raise ValueError(f"{name} must have shape (T,) or (B, T) with at least one position, got {tuple(value.shape)}")
    if not value.is_floating_point():
        return value.to(torch.int64)
    if readable(value) and not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite, got {value[~value.isfinite()][0].item()}")
    return value


def attention_positions(name: str, value: Any) -> Tensor:
    """Positions of shape (T,), shared by the batch, or (B, T), one row for each sequence."""
    positions = position_tensor(name, value)
    if positions.dim() > 2:
        raise ValueError(f"{name} must have shape (T,) or (B, T), got {tuple(positions.shape)}")
    return positions


def token_positions(name: str, value: Any, *, batch: int, length: int) -> None:
    """Whether there is one position for each token: (T,) or (B, T)."""
    shape = tuple(attention_positions(name, value).shape)
    if shape not in ((length,), (batch, length)):
        raise ValueError(f"{name} must have shape ({length},) or ({batch}, {length}), got {shape}")


def crossed(q_name: str, q_positions: Any, k_name: str, k_positions: Any) -> tuple[Tensor, Tensor]:
    """Two rows of positions as a column and a row: (Tq, 1), (1, Tk), or with a batch (B, 1, Tq, 1), (B, 1, 1, Tk)."""
    m, n = attention_positions(q_name, q_positions), attention_positions(k_name, k_positions)
    if m.is_floating_point() != n.is_floating_point() and m.device.type != "mps":  # float32 would round large integers
        m, n = m.to(torch.float64), n.to(torch.float64)
    if m.dim() == n.dim() == 1:
        return m[:, None], n[None, :]
    if m.dim() == n.dim() and m.shape[0] != n.shape[0]:
        raise ValueError(f"{q_name} and {k_name} must have the same batch, got {m.shape[0]} and {n.shape[0]}")
    m, n = (x if x.dim() == 2 else x[None] for x in (m, n))
    return m[:, None, :, None], n[:, None, None, :]


def rows(name: str, value: Any, count: int) -> Tensor:
    """Positions that are rows of a table: integers in 0 … count − 1."""
    positions = position_tensor(name, value)
    if positions.is_floating_point():
        raise TypeError(f"{name} must be integers, which are rows of the table; got {positions.dtype}")
    if readable(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < count:
        got = f"{int(positions.min())} … {int(positions.max())}"
        raise ValueError(f"{name} must lie in 0 … {count - 1} (the table has {count} rows), got {got}")
    return positions


def token_mask(name: str, value: Any) -> Tensor:
    """A (B, T) mask as booleans, True for a token and False for padding."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of shape (B, T), got {type(value).__name__}")
    if value.is_complex():
        raise TypeError(f"{name} must be boolean, or 0 and 1, got {value.dtype}")
    if value.dim() != 2 or value.numel() == 0:
        raise ValueError(f"{name} must have shape (B, T), got {tuple(value.shape)}")
    if readable(value) and not bool(((value == 0) | (value == 1)).all()):
        raise ValueError(f"{name} must hold True for a token and False for padding (or 1 and 0), got other values")
    return value.to(torch.bool)


def at_least_float32(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to compute in: the widest of `dtypes`, and never less than float32."""
    widest = torch.float32
    for dtype in dtypes:
        widest = torch.promote_types(widest, dtype)
    return widest


def float64_on(device: torch.device) -> torch.dtype:
    """The dtype of angles: float64, and float32 on Apple's mps, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context whose products keep their dtype: in autocast's 16 bits neighbouring positions are one number."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
