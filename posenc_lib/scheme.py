"""The `PositionScheme`: an encoding is described by the fields that it fills."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc_lib import _checks, bias, embedding
from posenc_lib.rotary import (
    AxialRoPE,
    RoPE,
    mrope_frequencies,
    mrope_interleaved_frequencies,
)
from posenc_lib.rotary.pairs import Layout
from posenc_lib.rotary.scaling import Schedule, ScheduleFunction, unscaled


@dataclass(init=False, eq=False, repr=False)
class PositionScheme(nn.Module):
    """An encoding: one optional field for each step of attention it can enter.

    Equation: e_mn = scale · (T_m q_m)ᵀ (T_n k_n) + b(m, n),  α = softmax over the n
        allowed by the mask, o_m = Σ_n α_mn v_n;  T is `transform`, b is `bias`
    Shapes: embedding (..., T) → (..., T, D);
        transform (B, H, Tq, d), (B, Hk, Tk, d) → the same; bias → (1 or B, H, Tq, Tk);
        scores → (B, H, Tq, Tk); values → (B, H, Tq, d_v);
        mask → (Tq, Tk) or (B, 1, Tq, Tk), True = may attend

    The fields, numbered in the order in which attention uses them:

        1   embedding   added to the token embeddings
        2   transform   of query and key, before their dot product
        3   bias        added to the score, blind to the content
        3′  scores      in place of the dot product, with the content
        4   values      in place of the weighted sum
        5   mask        who may attend to whom

    An encoding that depends on hidden states takes two more arguments in `transform`,
    `bias` or `scores`: `q_x` (B, Tq, D) and `k_x` (B, Tk, D). `reads_hidden_states`
    names the fields that do, and `attention` passes them on to these alone.

    A scheme is a module. What learns in it is trained, saved, loaded, cast and moved
    with the model that has the scheme as an attribute: `scheme.bias.table`, or, where a
    field is a method, `scheme.scores_module.u`. Parameters are cast as the model is;
    constants (frequencies, slopes) are neither parameters nor buffers, so
    `.bfloat16()` leaves them in float64, and they follow the positions' device. A
    scheme is made once and never changed; `dataclasses.replace` makes another one with
    the same modules. Hold a scheme once in a model, not in every layer: a parameter
    that is reached in two ways has two names in `state_dict`.

    Args:
        name: its name in the literature.
        embedding: `embedding(positions)`, added to the token embeddings by
            `attention.prepare`.
        transform: `transform(q, k, q_positions, k_positions)` returns both,
            transformed.
        bias: `bias(q_positions, k_positions)`, added after the scale.
        scores: `scores(q, k, q_positions, k_positions)` in place of qᵀk.
        values: `values(weights, v, q_positions, k_positions)` in place of Σ α v.
        mask: `mask(q_positions, k_positions)`, True = may attend.
        scale: factor of the score before the bias; None is 1/√d. T5 sets 1.

    Raises:
        TypeError, ValueError: an empty name, a field that can't be called, a scale that
            is not above 0; a field that holds an `nn.Parameter` outside of a module,
            where no optimiser would find it. When copied: a module in a closure, which
            the copy would share.
        AttributeError: a field is assigned to after the scheme was made.

    Chapter: 03
    """

    # Annotations alone: a default in the class would hide the module of that name.
    name: str
    embedding: Callable[[Tensor], Tensor] | None
    transform: Callable[..., tuple[Tensor, Tensor]] | None
    bias: Callable[..., Tensor] | None
    scores: Callable[..., Tensor] | None
    values: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None
    mask: Callable[[Tensor, Tensor], Tensor] | None
    scale: float | None

    def __init__(
        self,
        name: str,
        embedding: Callable[[Tensor], Tensor] | None = None,
        transform: Callable[..., tuple[Tensor, Tensor]] | None = None,
        bias: Callable[..., Tensor] | None = None,
        scores: Callable[..., Tensor] | None = None,
        values: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None,
        mask: Callable[[Tensor, Tensor], Tensor] | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be a non-empty string, got {name!r}")
        self.name = name
        self.scale = scale if scale is None else _checks.positive("scale", scale)
        functions = (embedding, transform, bias, scores, values, mask)
        for field, function in zip(PLACES, functions, strict=True):
            if function is not None and not callable(function):
                raise TypeError(f"{field} must be a callable or None, got {function!r}")
            setattr(self, field, function)
        for field, function in zip(PLACES, functions, strict=True):
            self._register(field, function)
        self.reads_hidden_states = tuple(
            field
            for field, function in zip(PLACES, functions, strict=True)
            if _takes_hidden_states(function)
        )

    def _register(self, field: str, function: Any) -> None:
        """The modules inside a method or partial as children of this one.

        Under the field's own name PyTorch would find the method, not the module.
        """
        if torch.compiler.is_compiling():
            return
        held = list(_held(function))
        if any(isinstance(part, nn.Parameter) for part, _ in held):
            raise TypeError(
                f"{field} must hold its parameters in an nn.Module, where an optimiser "
                f"finds them; got an nn.Parameter in {function!r}"
            )
        # One module may fill two fields, as Shaw's does, or be a part of another.
        here = set(self.modules())
        modules = []
        for part, _ in held:
            if (
                isinstance(part, nn.Module)
                and part is not function
                and part not in here
            ):
                modules.append(part)
                here |= set(part.modules())
        if modules:
            only = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
            self.add_module(f"{field}_module", only)

    def __setattr__(self, name: str, value: Any) -> None:
        made = name in vars(self) or name in vars(self).get("_modules", ())
        if name in self.__dataclass_fields__ and made:
            # FSDP and LoRA put a wrapper in a module's place.
            both = (
                isinstance(value, nn.Module),
                isinstance(getattr(self, name), nn.Module),
            )
            if not all(both):
                raise AttributeError(
                    f"{name} can't be changed: dataclasses.replace(scheme, {name}=...) "
                    "makes another scheme"
                )
        elif name.endswith("_module") and made:
            raise AttributeError(
                f"{name} can't be replaced: the field {name.removesuffix('_module')} "
                "is a method of the module that it is now, and would go on calling it"
            )
        super().__setattr__(name, value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hidden = [field for field in PLACES if field in vars(cls)]
        if hidden:
            raise TypeError(
                f"{cls.__name__} must not define {hidden[0]}, which is a field: give "
                f"the function to PositionScheme(..., {hidden[0]}=...)"
            )

    def children(self) -> Iterator[nn.Module]:
        """As of any module; a scheme that holds its own model is refused here."""
        for name, child in self.named_children():
            if any(part is self for part in child.modules()):
                raise ValueError(
                    f"{name} of the scheme {self.name!r} is the model that holds the "
                    "scheme: give the field the module that learns, not a method of "
                    "the model"
                )
            yield child

    def __deepcopy__(self, memo: dict[int, Any]) -> PositionScheme:
        for field in self.places:
            if any(in_closure for _, in_closure in _held(getattr(self, field))):
                raise TypeError(
                    f"{field} can't be copied: a function that encloses a module goes "
                    "on with that one. Give the module, a method of it, or a "
                    "functools.partial"
                )
        memo[id(self)] = made = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def states(self, field: str, hidden: dict[str, Tensor]) -> dict[str, Tensor]:
        """The hidden states, if the field reads them; else none."""
        return hidden if field in self.reads_hidden_states else {}

    def extra_repr(self) -> str:
        """The name and the fields that are filled."""
        return ", ".join((repr(self.name), *self.places))

    @property
    def places(self) -> tuple[str, ...]:
        """The places that this scheme fills, in order: ("transform",) for RoPE."""
        return tuple(place for place in PLACES if getattr(self, place) is not None)


PLACES = tuple(
    f.name for f in fields(PositionScheme) if f.name not in ("name", "scale")
)


def _takes_hidden_states(function: Any) -> bool:
    """Whether a field is called with the hidden states `q_x` and `k_x`."""
    # Nobody keeps a scheme that is made while compiling, where there is no signature.
    if function is None or torch.compiler.is_compiling():
        return False
    callee = function.forward if isinstance(function, nn.Module) else function
    try:
        taken = inspect.signature(callee).parameters.values()
        return any(x.name == "q_x" or x.kind is x.VAR_KEYWORD for x in taken)
    except ValueError:  # a builtin, such as torch.add
        return False


def _held(
    value: Any, enclosed: bool = False, seen: set[int] | None = None
) -> Iterator[tuple[nn.Module | nn.Parameter, bool]]:
    """Modules and parameters that a function is, belongs to or was given, each once.

    And of each, whether a function encloses it, which no copy of the function changes.
    """
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module | nn.Parameter):
        yield value, enclosed
    elif inspect.isfunction(value):
        for part in _enclosed(value):
            yield from _held(part, True, seen)
    else:
        for part in _parts(value):
            yield from _held(part, enclosed, seen)


def _enclosed(function: Any) -> Iterator[Any]:
    """What a function has from where it was made: closure, defaults, what it wraps."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that is bound later
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)


def _parts(value: Any) -> tuple[Any, ...]:
    """What an object consists of, if it is one that can hold a module."""
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if inspect.ismethod(value):
        return (value.__self__,)
    if isinstance(value, tuple | list | set):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, Tensor | type | ModuleType):
        return ()
    slots = (getattr(value, name, None) for name in getattr(value, "__slots__", ()))
    return (*getattr(value, "__dict__", {}).values(), *slots)


NOPE = PositionScheme("NoPE")


class LayerSchemes(nn.Module):
    """One scheme for each layer of a model, and what is added before the first.

    Equation: x_m ← x_m + p(m) once; then layer ℓ attends under its own scheme
    Shapes: embedding (..., T) → (..., T, D)

    `layers.schemes` makes it of a plan, `checkpoints` of a configuration. It goes where
    a `PositionScheme` goes: to `attention.prepare`, whose `at.layer(i)` is then layer
    i's own. Layers that are given the same scheme share it, its parameters and its
    tables; each scheme is held once.

    Args:
        layers: the schemes, first layer first; none of them has an embedding.
        embedding: `embedding(positions)`, added to the token embeddings.

    Raises:
        TypeError, ValueError: no layer; a layer that is not a `PositionScheme` or has
            an embedding; an embedding that can't be called.

    Chapter: 14
    """

    def __init__(
        self,
        layers: Sequence[PositionScheme],
        *,
        embedding: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(layers, str) or not isinstance(layers, Sequence):
            raise TypeError(
                f"layers must be one PositionScheme for each layer, got {layers!r}"
            )
        if not layers:
            raise ValueError("layers must be one scheme for each layer, got none")
        for i, scheme in enumerate(layers):
            if checked_scheme(f"layers[{i}]", scheme).embedding is not None:
                raise ValueError(
                    f"layers[{i}] must have no embedding, which is added once, before "
                    f"the first layer: LayerSchemes(..., embedding=...); got "
                    f"{scheme.name!r}"
                )
        distinct = list(dict.fromkeys(layers))
        self.distinct = nn.ModuleList(distinct)
        self.layers = tuple(distinct.index(scheme) for scheme in layers)
        self.before = PositionScheme("embedding", embedding=embedding)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> PositionScheme:
        return checked_scheme("layers", self.distinct[self.layers[layer]])

    def __iter__(self) -> Iterator[PositionScheme]:
        return (self[layer] for layer in range(len(self)))

    def extra_repr(self) -> str:
        """How many layers there are; the schemes that they share follow."""
        return f"layers={len(self)}"


def checked_scheme(name: str, value: Any) -> PositionScheme:
    """`value` if it is a `PositionScheme`."""
    if not isinstance(value, PositionScheme):
        got = repr(value) if isinstance(value, str) else type(value).__name__
        hint = ": unpack x, at = prepare(...)" if isinstance(value, tuple) else ""
        raise TypeError(
            f"{name} must be a PositionScheme such as scheme.rope(64) or scheme.NOPE, "
            f"got {got}{hint}"
        )
    return value


def sinusoidal(
    dim: int,
    base: float = 10000.0,
    *,
    layout: Literal["interleaved", "concatenated"] = "interleaved",
) -> PositionScheme:
    """The sinusoidal embedding as a scheme (`embedding.sinusoidal`).

    Equation: x_m ← x_m + PE(m)
    Shapes: embedding (..., T) → (..., T, d)

    Args:
        dim: width d of the model.
        base: θ.
        layout: as in `embedding.sinusoidal`.

    Raises:
        TypeError, ValueError: as `embedding.sinusoidal`.

    Source: vaswani2017
    Chapter: 04
    """
    table = partial(embedding.sinusoidal, dim=dim, base=base, layout=layout)
    # Raises now rather than in the first forward.
    table(torch.zeros(1, dtype=torch.int64, device="cpu"))
    return PositionScheme("sinusoidal", embedding=table)


def learned(
    num_positions: int, dim: int, *, generator: torch.Generator | None = None
) -> PositionScheme:
    """A learned table as a scheme (`embedding.LearnedEmbedding`).

    Equation: x_m ← x_m + P[m]
    Shapes: embedding (..., T) → (..., T, d)

    Args:
        num_positions: rows L of the table.
        dim: width d of the model.
        generator: of the draw.

    Source: gehring2017
    Chapter: 03
    """
    table = embedding.LearnedEmbedding(num_positions, dim, generator=generator)
    return PositionScheme("learned", embedding=table)


def rope(
    head_dim: int,
    base: float = 10000.0,
    *,
    schedule: ScheduleFunction = unscaled,
    layout: Layout = "interleaved",
    rotary_dim: int | None = None,
) -> PositionScheme:
    """RoPE as a scheme (`rotary.RoPE`), with any schedule of its frequencies.

    Equation: e_mn = (R_m q_m)ᵀ (R_n k_n) / √d,  R with ω′, a = schedule(r, θ)
    Shapes: transform (B, H, Tq, d), (B, Hk, Tk, d) → the same

    A context extension is one argument: `schedule=partial(llama3, factor=8,
    original_length=8192)`, or `yarn`, `yarn_released`, `longrope`, `proportional` and
    the others of `rotary.scaling` with what each needs.

    Args:
        head_dim: d, channels of a head.
        base: θ.
        schedule: `schedule(rotary_dim, base)` gives frequencies and attention factor;
            the paper's frequencies by default.
        layout: "interleaved" or "half", which weights of Llama in transformers need.
        rotary_dim: r, leading channels that are rotated; all by default.

    Raises:
        TypeError, ValueError: `rotary_dim` is odd or above `head_dim`; what the
            schedule raises, or a schedule that returns something else.

    Source: su2021
    Chapter: 10
    """
    if rotary_dim is None:
        rotary_dim = _checks.even_dimension("head_dim", head_dim)
    _checks.whole_number("head_dim", head_dim, least=1)
    _checks.even_dimension("rotary_dim", rotary_dim)
    if rotary_dim > head_dim:
        raise ValueError(
            f"rotary_dim must be at most head_dim = {head_dim}, got {rotary_dim}"
        )
    frequencies, factor = _scheduled(schedule, rotary_dim, base)
    rotary = RoPE(frequencies, layout=layout, attention_factor=factor)
    return PositionScheme("RoPE", transform=rotary.transform)


def mrope(
    head_dim: int,
    base: float,
    sections: Sequence[int],
    *,
    interleaved: bool,
    schedule: ScheduleFunction = unscaled,
    layout: Layout = "half",
) -> PositionScheme:
    """M-RoPE as a scheme: positions have three axes, time, height and width.

    Equation: e_mn = (R_m q_m)ᵀ (R_n k_n) / √d,  R_m turns pair i by ω′_i times the
        coordinate of m that i belongs to
    Shapes: transform (B, H, Tq, d), (B, Hk, Tk, d) → the same; positions (B, T, 3)

    `multimodal_positions.mrope_positions` makes the positions. A causal mask goes by
    the order of the tokens, which these positions don't tell: `attention.prepare`
    takes it, too.

    Args:
        head_dim: d, channels of a head, all rotated.
        base: θ.
        sections: pairs of each axis, as in `mrope_section`, d/2 in all.
        interleaved: whether the axes alternate from pair to pair (Qwen3-VL) instead of
            forming blocks (Qwen2-VL).
        schedule: as in `rope`.
        layout: "half", as in the published models, or "interleaved".

    Raises:
        TypeError, ValueError: sections that don't sum to d/2; as `rope`.

    Source: qwen2-vl, qwen3-vl
    Chapter: 15
    """
    _checks.boolean("interleaved", interleaved)
    _checks.even_dimension("head_dim", head_dim)
    frequencies, factor = _scheduled(schedule, head_dim, base)
    split = mrope_interleaved_frequencies if interleaved else mrope_frequencies
    rotary = AxialRoPE(
        split(frequencies, sections), layout=layout, attention_factor=factor
    )
    return PositionScheme("M-RoPE", transform=rotary.transform)


def _scheduled(schedule: ScheduleFunction, dim: int, base: float) -> Schedule:
    """What a schedule returns, if it is frequencies and a factor."""
    _checks.callable_("schedule", schedule)
    result = schedule(dim, base)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            "schedule must return frequencies and an attention factor, as the "
            f"functions of rotary.scaling do; {schedule!r} returned {result!r}"
        )
    return Schedule(*result)


def alibi(heads: int) -> PositionScheme:
    """ALiBi as a scheme (`bias.alibi` with the published slopes).

    Equation: e_mn = q_mᵀ k_n / √d − s_h |n − m|
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.

    Source: press2022
    Chapter: 07
    """
    return PositionScheme(
        "ALiBi", bias=partial(bias.alibi, slopes=bias.alibi_slopes(heads))
    )


def t5(
    heads: int,
    *,
    bidirectional: bool,
    std: float,
    num_buckets: int = 32,
    max_distance: int = 128,
    generator: torch.Generator | None = None,
) -> PositionScheme:
    """T5's bias as a scheme (`bias.T5Bias`), with T5's scale of 1.

    Equation: e_mn = q_mᵀ k_n + b[bucket(n − m), h]
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.
        bidirectional, std, num_buckets, max_distance, generator: as in `bias.T5Bias`.

    Source: raffel2020
    Chapter: 07
    """
    table = bias.T5Bias(
        heads,
        bidirectional=bidirectional,
        std=std,
        num_buckets=num_buckets,
        max_distance=max_distance,
        generator=generator,
    )
    return PositionScheme("T5", bias=table, scale=1.0)


def kerple(heads: int, *, generator: torch.Generator | None = None) -> PositionScheme:
    """KERPLE as a scheme, in its logarithmic form (`bias.KerpleLog`).

    Equation: e_mn = q_mᵀ k_n / √d − r₁ ln(1 + r₂ |n − m|)
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.
        generator: of the draw.

    Source: chi2022
    Chapter: 07
    """
    return PositionScheme("KERPLE", bias=bias.KerpleLog(heads, generator=generator))


def fire(
    heads: int,
    *,
    hidden: int = 32,
    c: float = 0.1,
    threshold: float = 512.0,
    generator: torch.Generator | None = None,
) -> PositionScheme:
    """FIRE as a scheme (`bias.FIRE`).

    Equation: e_mn = q_mᵀ k_n / √d + f_θ(ψ(m − n) / ψ(max(L, m)))
    Shapes: bias → (1 or B, H, Tq, Tk)

    Args:
        heads: H.
        hidden, c, threshold, generator: as in `bias.FIRE`.

    Source: li2024
    Chapter: 07
    """
    made = bias.FIRE(
        heads, hidden=hidden, c=c, threshold=threshold, generator=generator
    )
    return PositionScheme("FIRE", bias=made)


__all__ = [
    "NOPE",
    "PLACES",
    "LayerSchemes",
    "PositionScheme",
    "alibi",
    "fire",
    "kerple",
    "learned",
    "mrope",
    "rope",
    "sinusoidal",
    "t5",
]
