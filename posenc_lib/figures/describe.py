"""Say in words and numbers what a figure draws, so that a test notices a change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryLocator
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.container import BarContainer
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.quiver import Quiver
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator

SAMPLES = 7
FLOOR_DECIMALS = 10  # what is smaller than 1e-10 is rounding
FLOOR = 10.0**-FLOOR_DECIMALS

Rows = dict[str, Any]


def describe(fig: Figure, alt: str = "", *, digits: int = 4, data: bool = True) -> str:
    """Describe what a figure draws: panels, labels, legends, artists and their numbers.

    A line of numbers ends in `±q`, where q is one unit of the last of `digits` digits
    of the data's range. It holds the smallest and largest value, values at fixed
    indices, and two sums with fixed random weights. All of them are continuous in the
    data. So a change below q cannot show, whatever the machine, and a change of the
    whole (swapped halves, another scale, a shift) must. Every other line is exact. Data
    on a logarithmic axis are described by their logarithm, as they are drawn. What is
    below 1e-10 counts as rounding.

    Args:
        fig: the figure.
        alt: the sentence to begin with.
        digits: digits that must agree; 2 suits the result of a short training.
        data: False leaves the numbers out and keeps the structure. Then assert what
            the figure is to show.

    Returns:
        The description, many lines, without a line break at the end.

    Raises:
        ValueError: the figure draws something whose data cannot be described (3-D axes,
            contours, fancy arrows), and `data` is true.
    """
    coloured: list[Any] = fig.findobj(lambda artist: isinstance(artist, ScalarMappable))
    colorbars = {artist.colorbar.ax for artist in coloured if artist.colorbar}
    panels = [
        ax for ax in fig.findobj(Axes) if ax.get_visible() and ax not in colorbars
    ]
    lines = [text for text in (alt, fig.get_suptitle()) if text]
    for number, ax in enumerate(panels, 1):
        if ax.name == "3d" and data:
            raise ValueError(
                f"panel {number} has 3-D axes, which cannot be described: "
                "draw a projection or a section"
            )
        lines.append(_heading(ax, f"Panel {number} of {len(panels)}"))
        for name, rows in _artists(ax, data):
            sizes = ", ".join(f"{row} {_size(values)}" for row, values in rows.items())
            lines.append(f"  {name}: {sizes}")
            if data:
                lines += [
                    f"    {row} {_numbers(values, digits)}"
                    for row, values in rows.items()
                ]
    return "\n".join(lines)


def _heading(ax: Axes, panel: str) -> str:
    parts = [f"{panel}: {ax.get_title()}" if ax.get_title() else panel]
    for letter, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        scale = "" if axis.get_scale() == "linear" else f"({axis.get_scale()})"
        if words := f"{axis.get_label_text()} {scale}".strip():
            parts.append(f"{letter}: {words}")
        if isinstance(axis.get_major_locator(), (FixedLocator, StrCategoryLocator)):
            parts.append(
                f"{letter} ticks: "
                f"{', '.join(label.get_text() for label in axis.get_ticklabels())}"
            )
    if legend := ax.get_legend():
        parts.append(
            f"legend: {', '.join(text.get_text() for text in legend.get_texts())}"
        )
    return " | ".join(parts)


def _artists(ax: Any, data: bool) -> Iterator[tuple[str, Rows]]:
    """Yield the name and the arrays of each visible artist."""
    bars = [
        container
        for container in ax.containers
        if isinstance(container, BarContainer) and container.patches
    ]
    in_bars = {patch for container in bars for patch in container}
    for bar in bars:
        bottom_left, top_right = (
            np.array([getattr(p.get_bbox(), end) for p in bar]).T
            for end in ("min", "max")
        )
        across, along = (1, 0) if bar.orientation == "horizontal" else (0, 1)
        axes = (ax.xaxis, ax.yaxis)
        yield (
            _name("bars", bar),
            _on(axes[across], "at", (bottom_left + top_right)[across] / 2)
            | _on(axes[along], "from", bottom_left[along])
            | _on(axes[along], "to", top_right[along]),
        )
    for line in filter(Artist.get_visible, ax.lines):
        yield (
            _name("line", line),
            _xy(ax, line.get_xdata(orig=False), line.get_ydata(orig=False)),
        )
    for image in filter(Artist.get_visible, ax.images):
        yield _name("image", image), _coloured(image)
    for collection in filter(Artist.get_visible, ax.collections):
        kind = type(collection).__name__
        if isinstance(collection, QuadMesh):
            yield _name("mesh", collection), _coloured(collection)
        elif isinstance(collection, Quiver):
            arrows = {"right": collection.U, "up": collection.V}
            yield (
                _name("arrows", collection),
                _xy(ax, collection.X, collection.Y) | arrows | _coloured(collection),
            )
        elif isinstance(collection, PathCollection):
            yield (
                _name("points", collection),
                _xy(ax, *np.ma.asarray(collection.get_offsets()).T)
                | _coloured(collection),
            )
        elif isinstance(collection, ContourSet):
            # how many vertices a contour has depends on the last bit of the data
            yield from _unknown(kind, data)
        else:
            corners = np.concatenate(
                [np.empty((0, 2)), *(path.vertices for path in collection.get_paths())]
            )
            yield _name(kind, collection), _xy(ax, *corners.T) | _coloured(collection)
    for patch in filter(Artist.get_visible, ax.patches):
        if isinstance(patch, FancyArrowPatch):
            yield from _unknown("FancyArrowPatch", data)
        elif patch not in in_bars:
            corners = patch.get_patch_transform().transform(patch.get_path().vertices)
            yield _name(type(patch).__name__, patch), _xy(ax, *corners.T)
    for table in ax.tables:
        yield from _unknown(type(table).__name__, data)
    texts = [
        text for text in ax.texts if text.get_visible() and text.get_text().strip()
    ]
    if texts:
        points = [
            text.xy if isinstance(text, Annotation) else text.get_position()
            for text in texts
        ]
        x = [ax.convert_xunits(x) for x, _ in points]
        y = [ax.convert_yunits(y) for _, y in points]
        words = ", ".join(repr(text.get_text()) for text in texts)
        yield f"texts {words}", {"x": x, "y": y}


def _unknown(kind: str, data: bool) -> Iterator[tuple[str, Rows]]:
    if data:
        raise ValueError(
            f"the figure draws a {kind}, whose data describe() cannot read: "
            "draw it with lines, images, bars, points, quiver or annotate, "
            "or pass data=False and assert what the figure is to show"
        )
    yield kind, {}


def _name(kind: str, artist: Any) -> str:
    label = str(artist.get_label())
    return kind if label.startswith("_") or not label else f"{kind} {label!r}"


def _xy(ax: Axes, x: Any, y: Any) -> Rows:
    return _on(ax.xaxis, "x", x) | _on(ax.yaxis, "y", y)


def _on(axis: Axis, row: str, values: Any) -> Rows:
    return _logarithm(row, values) if axis.get_scale() == "log" else {row: values}


def _logarithm(row: str, values: Any) -> Rows:
    return {f"log10 {row}": np.log10(np.maximum(_floats(values), FLOOR))}


def _coloured(mappable: Any) -> Rows:
    """The numbers drawn as colours, and those at the ends of the colour map."""
    values = mappable.get_array()
    if values is None:
        return {}
    if values.ndim == 3:
        return {"red, green, blue": values}
    norm, colorbar = mappable.norm, mappable.colorbar
    norm.autoscale_None(values)
    meaning = (colorbar.ax.get_ylabel() or colorbar.ax.get_xlabel()) if colorbar else ""
    row = f"{mappable.get_cmap().name} {meaning}".strip()
    rows = {row: values, f"{row} from, to": [norm.vmin, norm.vmax]}
    if isinstance(norm, LogNorm):
        return {
            key: value
            for name, values in rows.items()
            for key, value in _logarithm(name, values).items()
        }
    return rows


def _floats(values: Any) -> np.ndarray:
    array: np.ndarray = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    return array


def _size(values: Any) -> str:
    values = _floats(values)
    missing = int((~np.isfinite(values)).sum())
    return "x".join(map(str, values.shape)) + (
        f" ({missing} not finite)" if missing else ""
    )


def _numbers(values: Any, digits: int) -> str:
    """Describe an array by continuous functions; an argmax would flip at a tie."""
    values = _floats(values)
    flat = values.ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return "has no finite value"
    low, high = finite.min(), finite.max()
    scale = max(high - low, 0.1 * max(abs(low), abs(high)), FLOOR)
    # 0.97 keeps round scales such as 1 and 10 off the step between two numbers of
    # decimals.
    decimals = min(digits - 1 - math.floor(math.log10(scale / 0.97)), FLOOR_DECIMALS)

    def text(numbers: Any) -> str:
        rounded = (round(float(number), decimals) + 0.0 for number in numbers)  # no -0
        return " ".join(f"{number:.10g}" for number in rounded)

    if flat.size <= SAMPLES:
        line = text(flat)
    else:
        known = np.where(np.isfinite(flat), flat, 0.0)
        sums = _weights(2, flat.size) @ known / math.sqrt(flat.size)
        line = (
            f"min {text([low])} max {text([high])} at "
            f"{text(flat[_indices(values.shape)])} sums {text(sums)}"
        )
    return f"{line} ±{10.0**-decimals:g}"


def _indices(shape: tuple[int, ...]) -> np.ndarray:
    """Fixed indices spread over the array; off a matrix's diagonal, often constant."""
    spread = [np.linspace(0, size - 1, SAMPLES).astype(int) for size in shape]
    return np.unique(
        np.ravel_multi_index(
            [np.roll(indices, 3 * axis) for axis, indices in enumerate(spread)], shape
        )
    )


def _weights(rows: int, columns: int) -> np.ndarray:
    """Numbers of mean 0 and variance 1, by splitmix64: the same in any NumPy."""
    z = np.arange(1, rows * columns + 1, dtype=np.uint64)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    weights: np.ndarray = np.sqrt(12.0) * (z.astype(np.float64) / 2.0**64 - 0.5)
    return weights.reshape(rows, columns)
