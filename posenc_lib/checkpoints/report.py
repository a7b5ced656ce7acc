"""A checkpoint's settings as text, as a dictionary, as a figure, and compared."""

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

    `print(checkpoint)` is the report of `posenc inspect`.

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
    """Where positions first collide in a dtype, and how many of 0 … L−1 are distinct.

    Equation: the least m with round(m) = round(m − 1), and |{round(m) : m < L}|

    With p significant bits all integers up to 2^p are exact, then every second one,
    every fourth, … Each of these below L is itself a position, so counting them counts
    the distinct positions.

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
    octave = last.bit_length() - exact.bit_length()
    begin = exact << octave  # 2^(p + octave) ≤ last < 2^(p + octave + 1)
    in_last_octave = (last - begin) >> (octave + 1)  # steps of 2^(octave + 1)
    beyond = octave * exact // 2 + in_last_octave
    return first, exact + beyond + 1 + infinite


def pairs_longer_than(wavelengths: Tensor, length: int) -> int:
    """How many pairs make no full turn within `length` positions: λ > L."""
    return int((wavelengths > length).sum())


def bands(rotation: RotationSettings, length: int) -> tuple[int, int, int]:
    """Pairs that a schedule leaves alone, blends, and divides by the whole factor."""
    ratio = rotation.wavelengths(length) / rotation.wavelengths()
    factor = dict(rotation.options)["factor"]
    kept = torch.isclose(ratio, torch.ones_like(ratio), rtol=1e-9)
    divided = torch.isclose(ratio, torch.full_like(ratio, factor), rtol=1e-9) & ~kept
    return int(kept.sum()), int((~kept & ~divided).sum()), int(divided.sum())


# ---- groups of equal layers


def groups(stack: Stack) -> list[tuple[list[int], LayerSettings]]:
    """The layers in groups of equal settings, in order of first appearance."""
    by_settings: dict[LayerSettings, list[int]] = {}
    for index, layer in enumerate(stack.layers):
        by_settings.setdefault(layer, []).append(index)
    return [(indices, layer) for layer, indices in by_settings.items()]


def rotations(stack: Stack) -> list[RotationSettings]:
    """The different rotations of a stack, in order of first appearance."""
    return list(
        dict.fromkeys(
            layer.rotation for layer in stack.layers if layer.rotation is not None
        )
    )


def reach(rotation: RotationSettings, stack: Stack) -> int | None:
    """The largest window of layers with this rotation; None if one has no window."""
    sizes = [
        layer.window or layer.chunk
        for layer in stack.layers
        if layer.rotation == rotation
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
    """The report as text: layer by layer, grouped where equal.

    No line is wider than 80 columns where words allow.

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
        inputs = stack.inputs
        begins = f", the first token in row {inputs.first}" if inputs.first else ""
        lines += _wrapped(
            f"input: {inputs.encoding}, {inputs.rows:,} × {inputs.dim:,}{begins}", "  "
        )
    for note in stack.notes:
        lines += _wrapped(f"note: {note}", "  ")
    for indices, layer in groups(stack):
        lines += _layer_lines(indices, layer)
    for rotation in rotations(stack):
        lines += ["", *_rotation_lines(rotation, stack)]
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
            f"queries × 1 + {layer.temperature[1]:g} "
            f"ln(1 + ⌊(m + 1)/{layer.temperature[0]:,}⌋)"
        )
    facts.append(f"{_count(layer.heads, 'head')} of {layer.head_dim}")
    return [head, *_wrapped("; ".join(facts), "    ")]


def _rotation_text(layer: LayerSettings) -> str:
    rotation = layer.rotation
    assert rotation is not None
    part = (
        f"all {rotation.dim}"
        if rotation.dim == layer.head_dim
        else f"{rotation.dim} of {layer.head_dim}"
    )
    words = [f"θ = {rotation.base:,.10g}", f"{part} channels, {rotation.layout}"]
    if rotation.kind != "default":
        words.append(f"{rotation.kind} scaling")
    if rotation.sections:
        sections = ", ".join(map(str, rotation.sections))
        words.append(f"sections {sections}" + ", interleaved" * rotation.interleaved)
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


def _rotation_lines(rotation: RotationSettings, stack: Stack) -> list[str]:
    """One rotation: its scaling, its incomplete pairs, and every wavelength."""
    length = stack.length or rotation.original_length or 1
    before, after = rotation.wavelengths(), rotation.wavelengths(length)
    options = dict(rotation.options)
    lines = [
        f"  θ = {rotation.base:,.10g}, {_count(len(before), 'pair')}"
        + (f", {rotation.kind}" * (rotation.kind != "default"))
    ]
    shown = [
        f"{name} {_value(value)}"
        for name, value in options.items()
        if not isinstance(value, tuple)
    ]
    if shown:
        lines += _wrapped(f"scaling: {', '.join(shown)}", "    ")
    if rotation.kind != "default":
        lines.append(
            f"    attention factor {rotation.schedule(length).attention_factor:.6g} on "
            "cos and sin"
        )
    if rotation.kind in ("llama3", "yarn"):
        kept, blended, divided = bands(rotation, length)
        lines.append(
            f"    {kept} pairs unchanged, {blended} blended, "
            f"{divided} divided by {options['factor']:g}"
        )
    lines += [
        f"    {line}"
        for line in _cycle_lines(
            rotation, before, after, length, reach(rotation, stack)
        )
    ]
    lines.append(
        "    wavelength of each pair in positions"
        + (f", at length {length:,}" * (rotation.kind != "default"))
    )
    return [*lines, *_wavelength_lines(after)]


def _cycle_lines(
    rotation: RotationSettings,
    before: Tensor,
    after: Tensor,
    length: int,
    window: int | None,
) -> list[str]:
    pairs, lines = len(before), []
    original = rotation.original_length
    if original is not None and original != length:
        lines.append(
            f"{pairs_longer_than(before, original)} of {pairs} pairs never turn once "
            f"in {original:,} (before scaling)"
        )
    still = int(after.isinf().sum())
    lines.append(
        f"{pairs_longer_than(after, length)} of {pairs} pairs never turn once "
        f"in {length:,}"
    )
    if still:
        lines[-1] += f", {still} of them stand still"
    if window is not None and window < length:
        lines.append(
            f"{pairs_longer_than(after, window)} of {pairs} pairs never turn once "
            f"in a window of {window:,}"
        )
    return lines


def _wavelength_lines(wavelengths: Tensor) -> list[str]:
    cells = [
        f"{i:>4}  {_wavelength_text(float(wavelength)):<10}"
        for i, wavelength in enumerate(wavelengths)
    ]
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


def _wavelength_text(value: float) -> str:
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
    """The report for programs: JSON values alone.

    Every layer is listed, the wavelengths once for each rotation. A pair that is not
    rotated has the wavelength None.

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
    distinct_rotations = rotations(stack)
    layers = []
    for layer in stack.layers:
        plain = dataclasses.asdict(layer) | {"options": dict(layer.options)}
        layers.append(
            plain
            | {
                "rotation": None
                if layer.rotation is None
                else distinct_rotations.index(layer.rotation)
            }
        )
    sixteen = {}
    if stack.length is not None and distinct_rotations:
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
        "rotations": [
            _rotation_dict(rotation, stack) for rotation in distinct_rotations
        ],
        "positions_in_16_bits": sixteen,
    }


def _rotation_dict(rotation: RotationSettings, stack: Stack) -> dict[str, Any]:
    length = stack.length or rotation.original_length or 1
    schedule = rotation.schedule(length)
    wavelengths = rotation.wavelengths(length)
    plain = dataclasses.asdict(rotation) | {"options": dict(rotation.options)}
    facts = {
        "attention_factor": schedule.attention_factor,
        "frequencies": schedule.frequencies.tolist(),
        "wavelengths": [
            None if math.isinf(wavelength) else wavelength
            for wavelength in wavelengths.tolist()
        ],
        "never_turn": pairs_longer_than(wavelengths, length),
        "never_turn_before_scaling": pairs_longer_than(
            rotation.wavelengths(), rotation.original_length or length
        ),
    }
    if rotation.kind in ("llama3", "yarn"):
        facts["unchanged_blended_divided"] = list(bands(rotation, length))
    return plain | facts


# ---- a picture


def figure(checkpoint: Checkpoint) -> Figure:
    """Two panels: what each layer sees, and how long each pair takes for a full turn.

    Args:
        checkpoint: from `read`; its first stack is drawn.

    Chapter: 14
    """
    from matplotlib.figure import Figure

    from posenc_lib.figures import style

    stack = checkpoint.stacks[0]
    with style.context():
        result = Figure(figsize=(8.0, 3.6), layout="constrained")
        left, right = result.subplots(1, 2)
        _draw_layers(left, stack)
        _draw_wavelengths(right, stack)
        result.suptitle(f"{checkpoint.name}: {stack.name}")
    return result


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


def _draw_wavelengths(axes: Any, stack: Stack) -> None:
    distinct_rotations = rotations(stack)
    if not distinct_rotations:
        axes.text(0.5, 0.5, "no rotation", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    length = stack.length or 1
    for rotation in distinct_rotations:
        wavelengths = rotation.wavelengths(length)
        rotating = wavelengths.isfinite()
        label = f"θ = {rotation.base:,.10g}" + (
            f", {rotation.kind}" * (rotation.kind != "default")
        )
        axes.plot(
            torch.arange(len(wavelengths))[rotating], wavelengths[rotating], label=label
        )
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
    """What changes from one checkpoint to another, a line for each setting.

    A line holds a row of layers that change alike.

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
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        if dataclasses.is_dataclass(setting):
            flat |= _flat(setting, f"{field.name} ")
        elif field.name == "options":
            flat |= {f"{path}{key}": option for key, option in setting}
        else:
            flat[f"{path}{field.name}"] = setting
    return flat


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} numbers"
    return "none" if value in (None, ()) else _value(value)
