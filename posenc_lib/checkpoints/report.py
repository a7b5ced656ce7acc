"""What a checkpoint's settings mean: as text of 80 columns, as a dictionary, as a picture, and beside another one's."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc_lib.checkpoints.model import LayerSettings, RotationSettings, Stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 80


@dataclass(frozen=True)
class Checkpoint:
    """A configuration, read.

    `print(checkpoint)` is the report of `python -m posenc_lib inspect`.

    Args:
        name: what it was read as.
        model_type: the configuration's.
        stacks: the decoder, or encoder and decoder, or text and vision.
        source: where the numbers come from, for shipped configurations.
        notes: sentences about the reading: keys that were filled in, parts that were
            not read.

    Chapter: 14
    """

    name: str
    model_type: str
    stacks: tuple[Stack, ...]
    source: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return text(self)


# ---- numbers


def collisions(length: int, dtype: torch.dtype) -> tuple[int | None, int]:
    """Where positions first collide in a dtype, and how many of 0 … L−1 it can tell apart.

    Equation: the least m with round(m) = round(m − 1), and |{round(m) : m < L}|

    With p significant bits all integers up to 2^p are exact, then every second one,
    every fourth, … Each of them below L is a position itself, so that counting them
    counts what is told apart.

    Args:
        length: L, at least 1.
        dtype: torch.bfloat16 or torch.float16, in which some code makes position
            tensors.

    Chapter: 14
    """
    limits = torch.finfo(dtype)
    exact = round(2 / limits.eps)  # 2^p
    last = float(torch.tensor(length - 1, dtype=torch.float64).to(dtype))
    infinite = math.isinf(last)
    last = int(limits.max) if infinite else int(last)
    first = exact + 1 if length > exact + 1 else None
    if last < exact:
        return first, last + 1
    octave = (
        last.bit_length() - exact.bit_length()
    )  # last is in 2^(p + octave) … 2^(p + octave + 1)
    beyond = octave * exact // 2 + (last - (exact << octave) >> octave + 1)
    return first, exact + beyond + 1 + infinite


def never_turn(waves: Tensor, length: int) -> int:
    """How many pairs make no full turn within so many positions: λ > L."""
    return int((waves > length).sum())


def bands(rotation: RotationSettings, length: int) -> tuple[int, int, int]:
    """Pairs that a schedule leaves alone, blends, and divides by the whole factor."""
    ratio = rotation.wavelengths(length) / rotation.wavelengths()
    factor = dict(rotation.options)["factor"]
    kept = torch.isclose(ratio, torch.ones_like(ratio), rtol=1e-9)
    divided = torch.isclose(ratio, torch.full_like(ratio, factor), rtol=1e-9) & ~kept
    return int(kept.sum()), int((~kept & ~divided).sum()), int(divided.sum())


# ---- groups of equal layers


def groups(stack: Stack) -> list[tuple[list[int], LayerSettings]]:
    """The layers in groups of equal settings, in the order in which these first appear."""
    found: dict[LayerSettings, list[int]] = {}
    for index, layer in enumerate(stack.layers):
        found.setdefault(layer, []).append(index)
    return [(indices, layer) for layer, indices in found.items()]


def rotations(stack: Stack) -> list[RotationSettings]:
    """The different rotations of a stack, in the order in which they first appear."""
    return list(
        dict.fromkeys(
            layer.rotation for layer in stack.layers if layer.rotation is not None
        )
    )


def reach(turn: RotationSettings, stack: Stack) -> int | None:
    """The largest window of the layers that have this rotation; None where one of them sees everything."""
    sizes = [
        layer.window or layer.chunk for layer in stack.layers if layer.rotation == turn
    ]
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def indices_text(indices: Sequence[int]) -> str:
    """0–4, 6–10, … 54–58: runs, with a dotted middle where there are many."""
    runs = []
    for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        runs.append(
            f"{members[0]}" if len(members) == 1 else f"{members[0]}–{members[-1]}"
        )
    return ", ".join(runs) if len(runs) <= 4 else ", ".join((*runs[:2], "…", runs[-1]))


# ---- text


def text(checkpoint: Checkpoint) -> str:
    """The report as text: layer by layer, grouped where equal, no line wider than 80 columns where words allow.

    Args:
        checkpoint: from `read`.

    Chapter: 14
    """
    lines = [f"{checkpoint.name} ({checkpoint.model_type})"]
    for note in checkpoint.notes:
        lines += _wrapped(note, "  ")
    for stack in checkpoint.stacks:
        lines += ["", *_stack_lines(stack)]
    if checkpoint.source:
        lines += ["", *_wrapped(f"source: {checkpoint.source}", "")]
    return "\n".join(lines)


def _stack_lines(stack: Stack) -> list[str]:
    limit = "no stated limit" if stack.length is None else f"{stack.length:,} positions"
    if stack.trained is not None and stack.trained != stack.length:
        limit += f" ({stack.trained:,} before scaling)"
    lines = [f"{stack.name}: {_count(len(stack.layers), 'layer')}, {limit}"]
    if stack.inputs is not None:
        given = stack.inputs
        begins = f", the first token in row {given.first}" if given.first else ""
        lines += _wrapped(
            f"input: {given.encoding}, {given.rows:,} × {given.dim:,}{begins}", "  "
        )
    for note in stack.notes:
        lines += _wrapped(f"note: {note}", "  ")
    for indices, layer in groups(stack):
        lines += _layer_lines(indices, layer)
    for turn in rotations(stack):
        lines += ["", *_rotation_lines(turn, stack)]
    if stack.length is not None and any(
        layer.rotation is not None for layer in stack.layers
    ):
        lines += ["", *_collision_lines(stack.length)]
    return lines


def _layer_lines(indices: Sequence[int], layer: LayerSettings) -> list[str]:
    which = "layer" if len(indices) == 1 else "layers"
    head = f"  {which} {indices_text(indices)}" + (
        f" ({len(indices)})" if len(indices) > 1 else ""
    )
    facts = [
        layer.encoding
        if layer.rotation is None
        else f"{layer.encoding}: {_rotation_text(layer)}"
    ]
    facts += [f"{name} {_value(value)}" for name, value in _options(layer)]
    facts.append(_sight(layer))
    if layer.scale is not None:
        natural = layer.head_dim**-0.5
        ratio = layer.scale / natural
        facts.append(
            f"score scale {layer.scale:.6g}, {ratio:.4f} × 1/√{layer.head_dim}"
        )
    if layer.temperature is not None:
        facts.append(
            f"queries × 1 + {layer.temperature[1]:g} ln(1 + ⌊(m + "
            f"1)/{layer.temperature[0]:,}⌋)"
        )
    facts.append(f"{_count(layer.heads, 'head')} of {layer.head_dim}")
    return [head, *_wrapped("; ".join(facts), "    ")]


def _rotation_text(layer: LayerSettings) -> str:
    turn = layer.rotation
    assert turn is not None
    part = (
        f"all {turn.dim}"
        if turn.dim == layer.head_dim
        else f"{turn.dim} of {layer.head_dim}"
    )
    words = [f"θ = {turn.base:,.10g}", f"{part} channels, {turn.layout}"]
    if turn.kind != "default":
        words.append(f"{turn.kind} scaling")
    if turn.sections:
        words.append(
            f"sections {', '.join(map(str, turn.sections))}{', taking turns' if turn.turns else ''}"
        )
    return ", ".join(words)


def _sight(layer: LayerSettings) -> str:
    """What the layer may see, in words."""
    side = "past only" if layer.causal else "both sides"
    if layer.window is not None:
        return f"window {layer.window:,}, {side}"
    if layer.chunk is not None:
        return f"chunks of {layer.chunk:,}"
    if layer.patches is not None:
        size, shift = layer.patches
        return f"windows of {size} × {size} patches" + (
            f", shifted by {shift}" if shift else ""
        )
    return f"no window, {side}"


def _options(layer: LayerSettings) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in layer.options
        if name not in ("dim", "std", "window")
    ]


def _rotation_lines(turn: RotationSettings, stack: Stack) -> list[str]:
    """One rotation: its scaling, what never turns, and every wavelength."""
    length = stack.length or turn.original_length or 1
    before, after = turn.wavelengths(), turn.wavelengths(length)
    given = dict(turn.options)
    lines = [
        f"  θ = {turn.base:,.10g}, {_count(len(before), 'pair')}"
        + (f", {turn.kind}" * (turn.kind != "default"))
    ]
    shown = [
        (name, value) for name, value in given.items() if not isinstance(value, tuple)
    ]
    if shown:
        lines += _wrapped(
            "scaling: " + ", ".join(f"{name} {_value(value)}" for name, value in shown),
            "    ",
        )
    if turn.kind != "default":
        lines.append(
            f"    attention factor {turn.schedule(length).attention_factor:.6g} on cos "
            "and sin"
        )
    if turn.kind in ("llama3", "yarn"):
        kept, blended, divided = bands(turn, length)
        lines.append(
            f"    {kept} pairs unchanged, {blended} blended, {divided} divided by "
            f"{given['factor']:g}"
        )
    lines += [
        f"    {line}"
        for line in _turn_lines(turn, before, after, length, reach(turn, stack))
    ]
    lines.append(
        "    wavelength of each pair in positions"
        + (f", at length {length:,}" * (turn.kind != "default"))
    )
    return [*lines, *_wave_lines(after)]


def _turn_lines(
    turn: RotationSettings,
    before: Tensor,
    after: Tensor,
    length: int,
    window: int | None,
) -> list[str]:
    pairs, lines = len(before), []
    original = turn.original_length
    if original is not None and original != length:
        lines.append(
            f"{never_turn(before, original)} of {pairs} pairs never turn once in "
            f"{original:,} (before scaling)"
        )
    still = int(after.isinf().sum())
    lines.append(
        f"{never_turn(after, length)} of {pairs} pairs never turn once in {length:,}"
    )
    if still:
        lines[-1] += f", {still} of them stand still"
    if window is not None and window < length:
        lines.append(
            f"{never_turn(after, window)} of {pairs} pairs never turn once in a window "
            f"of {window:,}"
        )
    return lines


def _wave_lines(waves: Tensor) -> list[str]:
    cells = [f"{i:>4}  {_wave(float(wave)):<10}" for i, wave in enumerate(waves)]
    rows = math.ceil(len(cells) / 4)
    columns = [cells[i : i + rows] for i in range(0, len(cells), rows)]
    return [
        "  " + "".join(column[row] for column in columns if row < len(column)).rstrip()
        for row in range(rows)
    ]


def _collision_lines(length: int) -> list[str]:
    lines = ["  positions kept in 16 bits"]
    for dtype in (torch.bfloat16, torch.float16):
        first, distinct = collisions(length, dtype)
        name = str(dtype).removeprefix("torch.")
        where = (
            "no collision"
            if first is None
            else f"{first:,} = {first - 1:,} is the first collision"
        )
        if torch.tensor(length - 1.0).to(dtype).isinf():
            where += ", the last ones are infinite"
        lines += _wrapped(
            f"{name}: {where}; {distinct:,} of {length:,} told apart", "    "
        )
    return lines


def _wave(value: float) -> str:
    if math.isinf(value):
        return "still"
    return (
        f"{value:,.2f}"
        if value < 1000
        else f"{value:,.0f}"
        if value < 1e7
        else f"{value:.3e}"
    )


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, tuple):
        return " × ".join(map(str, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        line,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )


# ---- for programs


def as_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    """The report for programs: JSON values alone, every layer listed, wavelengths once for each rotation.

    A pair that stands still has the wavelength None.

    Args:
        checkpoint: from `read`.

    Chapter: 14
    """
    return {
        "name": checkpoint.name,
        "model_type": checkpoint.model_type,
        "source": checkpoint.source,
        "notes": list(checkpoint.notes),
        "stacks": [_stack_dict(stack) for stack in checkpoint.stacks],
    }


def _stack_dict(stack: Stack) -> dict[str, Any]:
    turns = rotations(stack)
    layers = []
    for layer in stack.layers:
        plain = dataclasses.asdict(layer) | {"options": dict(layer.options)}
        layers.append(
            plain
            | {
                "rotation": None
                if layer.rotation is None
                else turns.index(layer.rotation)
            }
        )
    sixteen = {}
    if stack.length is not None and turns:
        for dtype in (torch.bfloat16, torch.float16):
            first, distinct = collisions(stack.length, dtype)
            sixteen[str(dtype).removeprefix("torch.")] = {
                "first_collision": first,
                "distinct": distinct,
            }
    return {
        "name": stack.name,
        "length": stack.length,
        "trained": stack.trained,
        "inputs": None if stack.inputs is None else dataclasses.asdict(stack.inputs),
        "notes": list(stack.notes),
        "layers": layers,
        "rotations": [_rotation_dict(turn, stack) for turn in turns],
        "positions_in_16_bits": sixteen,
    }


def _rotation_dict(turn: RotationSettings, stack: Stack) -> dict[str, Any]:
    length = stack.length or turn.original_length or 1
    schedule = turn.schedule(length)
    waves = turn.wavelengths(length)
    plain = dataclasses.asdict(turn) | {"options": dict(turn.options)}
    facts = {
        "attention_factor": schedule.attention_factor,
        "frequencies": schedule.frequencies.tolist(),
        "wavelengths": [None if math.isinf(wave) else wave for wave in waves.tolist()],
        "never_turn": never_turn(waves, length),
        "never_turn_before_scaling": never_turn(
            turn.wavelengths(), turn.original_length or length
        ),
    }
    if turn.kind in ("llama3", "yarn"):
        facts["unchanged_blended_divided"] = list(bands(turn, length))
    return plain | facts


# ---- a picture


def figure(checkpoint: Checkpoint) -> Figure:
    """Two panels: what each layer sees, and how long each pair takes for a turn.

    Args:
        checkpoint: from `read`; its first stack is drawn.

    Chapter: 14
    """
    from matplotlib.figure import Figure

    from posenc_lib.figures import style

    stack = checkpoint.stacks[0]
    with style.context():
        drawn = Figure(figsize=(8.0, 3.6), layout="constrained")
        left, right = drawn.subplots(1, 2)
        _draw_layers(left, stack)
        _draw_waves(right, stack)
        drawn.suptitle(f"{checkpoint.name}: {stack.name}")
    return drawn


def _draw_layers(axes: Any, stack: Stack) -> None:
    widest = stack.length or 1
    for number, (indices, layer) in enumerate(groups(stack)):
        seen = layer.window or layer.chunk or widest
        name = (
            layer.encoding
            if layer.rotation is None
            else f"{layer.encoding}, θ = {layer.rotation.base:,.10g}"
        )
        hatch = ("", "//", "..", "xx")[number % 4]
        label = f"{name}; {_sight(layer)}"
        axes.barh(indices, [seen] * len(indices), height=0.8, label=label, hatch=hatch)
    axes.set(
        xlabel="positions a layer sees",
        ylabel="layer",
        xscale="log",
        xlim=(1, 2 * widest),
    )
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8)


def _draw_waves(axes: Any, stack: Stack) -> None:
    turns = rotations(stack)
    if not turns:
        axes.text(0.5, 0.5, "no rotation", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    length = stack.length or 1
    for turn in turns:
        waves = turn.wavelengths(length)
        turning = waves.isfinite()
        label = f"θ = {turn.base:,.10g}" + (f", {turn.kind}" * (turn.kind != "default"))
        axes.plot(torch.arange(len(waves))[turning], waves[turning], label=label)
    axes.axhline(
        length,
        color="#5a5a5a",
        linewidth=1,
        linestyle=":",
        label=f"{length:,} positions",
    )
    axes.set(xlabel="pair of channels", ylabel="positions in a full turn", yscale="log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8)


# ---- beside another checkpoint


def differences(one: Checkpoint, other: Checkpoint) -> list[str]:
    """What changes from one checkpoint to another, a line for each setting of a row of layers; none where nothing does.

    Args:
        one: from `read`.
        other: from `read`. Layers are compared by their number from the first on.

    Chapter: 14
    """
    lines = []
    before = {stack.name: stack for stack in one.stacks}
    after = {stack.name: stack for stack in other.stacks}
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after:
            lines.append(
                f"{name}: {'none' if name not in before else 'there'} → "
                f"{'none' if name in before else 'there'}"
            )
            continue
        lines += [
            f"{name}: {line}" for line in _stack_differences(before[name], after[name])
        ]
    return lines


def _stack_differences(one: Stack, other: Stack) -> list[str]:
    lines = []
    if len(one.layers) != len(other.layers):
        lines.append(f"layers {len(one.layers)} → {len(other.layers)}")
    for name, words in (("length", "length"), ("trained", "length before scaling")):
        if getattr(one, name) != getattr(other, name):
            lines.append(
                f"{words} {_value(getattr(one, name))} → {_value(getattr(other, name))}"
            )
    lines += _changes("input", _flat(one.inputs), _flat(other.inputs))
    pairs: dict[tuple[LayerSettings, LayerSettings], list[int]] = {}
    for index, pair in enumerate(zip(one.layers, other.layers, strict=False)):
        pairs.setdefault(pair, []).append(index)
    for (was, now), indices in pairs.items():
        which = f"{'layer' if len(indices) == 1 else 'layers'} {indices_text(indices)}"
        lines += _changes(which, _flat(was), _flat(now))
    return lines


def _changes(which: str, was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
    return [
        f"{which}: {key} {_short(was.get(key))} → {_short(now.get(key))}"
        for key in keys
    ]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """A settings object as one level of names."""
    if value is None:
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        inside = getattr(value, field.name)
        if dataclasses.is_dataclass(inside):
            found |= _flat(inside, f"{field.name} ")
        elif field.name == "options":
            found |= {f"{path}{key}": part for key, part in inside}
        else:
            found[f"{path}{field.name}"] = inside
    return found


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} numbers"
    return "none" if value in (None, ()) else _value(value)
