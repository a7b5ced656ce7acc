"""Figures: drawn, described, stored; sliders work without a kernel.

The package is tested as a whole.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import IPython.display
import ipywidgets
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch
from PIL import Image

from posenc_lib import figures, positions, rotary
from posenc_lib.figures import style
from posenc_lib.figures.describe import _weights
from posenc_lib.figures.display import png

ROOT = Path(__file__).resolve().parents[1]
ALT = "A sentence about the picture."

spec = importlib.util.spec_from_file_location(
    "notebook_comparison", ROOT / "notebooks" / "conftest.py"
)
comparison = importlib.util.module_from_spec(spec)
spec.loader.exec_module(comparison)


@pytest.fixture(autouse=True)
def _only_closed_figures() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}), style.context():
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, dict | None]]:
    """What a notebook would be sent."""
    sent: list[tuple[dict, dict | None]] = []
    monkeypatch.setattr(
        IPython, "get_ipython", lambda: SimpleNamespace(kernel="a kernel")
    )
    monkeypatch.setattr(
        IPython.display,
        "publish_display_data",
        lambda data, metadata=None: sent.append((data, metadata)),
    )
    return sent


def described(plot: Callable[..., Any], *data: Any, **options: Any) -> str:
    fig, ax = plt.subplots()
    plot(ax, *data, **options)
    text = figures.describe(fig)
    plt.close(fig)
    return text


def noise(data: np.ndarray, seed: int) -> np.ndarray:
    return data * (1 + 1e-6 * np.random.default_rng(seed).uniform(-1, 1, data.shape))


RANDOM = np.random.default_rng(0).normal(size=500)
SIZES = np.random.default_rng(1).permutation(
    np.exp(-np.arange(500) / 50)
)  # from 1 down to 5e-5
DRAW: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "line": (lambda ax, y: ax.plot(y), RANDOM),
    "line, other axis": (lambda ax, x: ax.plot(x, np.arange(x.size)), RANDOM),
    "step": (lambda ax, y: ax.step(np.arange(y.size), y), RANDOM),
    "logarithmic line": (lambda ax, y: ax.semilogy(y), SIZES),
    "bars": (lambda ax, y: ax.bar(np.arange(y.size), y), RANDOM[:40]),
    "horizontal bars": (lambda ax, y: ax.barh(np.arange(y.size), y), RANDOM[:40]),
    "stacked bars": (
        lambda ax, y: ax.bar(np.arange(y.size), 1.0, bottom=y),
        RANDOM[:40],
    ),
    "error bars": (
        lambda ax, y: ax.errorbar(np.arange(y.size), np.zeros(y.size), yerr=abs(y)),
        RANDOM,
    ),
    "points": (lambda ax, y: ax.scatter(np.arange(y.size), y), RANDOM),
    "colours of points": (
        lambda ax, c: ax.scatter(np.arange(c.size), np.arange(c.size), c=c),
        RANDOM,
    ),
    "image": (lambda ax, z: ax.imshow(z.reshape(20, 25)), RANDOM),
    "mesh": (lambda ax, z: ax.pcolormesh(z.reshape(20, 25)), RANDOM),
    "logarithmic image": (
        lambda ax, z: ax.imshow(z.reshape(20, 25), norm="log"),
        SIZES,
    ),
    "arrows": (
        lambda ax, u: ax.quiver(
            np.arange(u.size), np.arange(u.size), u, np.ones(u.size)
        ),
        RANDOM,
    ),
    "area": (lambda ax, y: ax.fill_between(np.arange(y.size), y), RANDOM),
    "stems": (lambda ax, y: ax.stem(y), RANDOM),
    "places of texts": (
        lambda ax, y: [ax.text(i, v, "t") for i, v in enumerate(y)],
        RANDOM[:40],
    ),
    "places of notes": (
        lambda ax, y: [ax.annotate("t", (i, v)) for i, v in enumerate(y)],
        RANDOM[:40],
    ),
}
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "scaled by 1 %": lambda a: a * 1.01,
    "shifted by one place": lambda a: np.roll(a, 1),
    "shifted by 1 % of the range": lambda a: a + 0.01 * np.ptp(a),
    "halves swapped": lambda a: np.roll(a, a.size // 2),
    "reversed": lambda a: a[::-1].copy(),
    "even and odd swapped": lambda a: a.reshape(-1, 2)[:, ::-1].ravel(),
    "two neighbours swapped": lambda a: np.concatenate([a[:10], a[[11, 10]], a[12:]]),
}


@cache
def original(kind: str) -> str:
    return described(*DRAW[kind])


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("change", CHANGES)
def test_a_figure_of_other_data_is_described_differently(
    kind: str, change: str
) -> None:
    plot, data = DRAW[kind]
    assert not comparison.text_close(
        original(kind), described(plot, CHANGES[change](data))
    )


@pytest.mark.parametrize("kind", DRAW)
def test_descriptions_survive_rounding_elsewhere(kind: str) -> None:
    plot, data = DRAW[kind]
    assert all(
        comparison.text_close(original(kind), described(plot, noise(data, seed)))
        for seed in range(5)
    )


@pytest.mark.parametrize(
    "data",
    [
        np.full(50, 0.5),
        np.ones(50),
        np.full(50, 10.0),
        np.arange(50) / 49,
        np.tile([0.0, 1.0], 25),
        np.arange(50) % 7 / 16,
    ],
    ids=["constant", "one", "ten", "0 to 1", "ties", "on the edge of rounding"],
)
def test_round_numbers_survive_rounding_too(data: np.ndarray) -> None:
    stored = described(DRAW["line"][0], data)
    assert all(
        comparison.text_close(stored, described(DRAW["line"][0], noise(data, seed)))
        for seed in range(20)
    )


def test_the_weights_of_the_sums_are_splitmix64_on_every_machine() -> None:
    weights = _weights(2, 50_000)
    assert weights[0, 0] == pytest.approx(
        12**0.5 * (16294208416658607535 / 2**64 - 0.5), rel=1e-15
    )
    assert abs(weights.mean()) < 0.01
    assert abs((weights**2).mean() - 1) < 0.01


def test_what_is_only_rounding_is_nothing() -> None:
    first, second = (
        described(DRAW["line"][0], 1e-13 * np.random.default_rng(seed).normal(size=99))
        for seed in (1, 2)
    )
    assert first == second
    assert "-0" not in first.replace("1e-10", "")


def test_a_value_that_is_not_finite_is_counted_and_shown() -> None:
    data = RANDOM.copy()
    data[0], data[-1] = np.nan, -np.inf
    text = described(DRAW["line"][0], data)
    assert "y 500 (2 not finite)" in text
    assert " at nan " in text
    assert " -inf sums " in text
    assert "y has no finite value" in described(DRAW["line"][0], np.full(9, np.nan))


def test_words_are_described_exactly() -> None:
    fig, (left, right) = plt.subplots(1, 2)
    fig.suptitle("The whole")
    left.set(title="Left", xlabel="position", ylabel="value", xscale="log")
    left.plot([1, 2], label="sine")
    left.legend()
    left.annotate("here", (1, 2))
    left.plot([5, 6], label="hidden").pop().set_visible(False)
    image = right.imshow(np.eye(2), cmap="PuOr", vmin=-2, vmax=3)
    right.set_xticks(range(2), ["a", "b"])
    fig.colorbar(image, label="weight")
    fig.add_axes([0.1, 0.1, 0.2, 0.2], visible=False)
    assert figures.describe(fig, ALT).splitlines() == [
        ALT,
        "The whole",
        "Panel 1 of 2: Left | x: position (log) | y: value | legend: sine",
        "  line 'sine': log10 x 2, y 2",
        "    log10 x -10 0 ±0.01",
        "    y 1 2 ±0.001",
        "  texts 'here': x 1, y 1",
        "    x 1 ±0.0001",
        "    y 2 ±0.0001",
        "Panel 2 of 2 | x ticks: a, b",
        "  image: PuOr weight 2x2, PuOr weight from, to 2",
        "    PuOr weight 1 0 0 1 ±0.001",
        "    PuOr weight from, to -2 3 ±0.001",
    ]


def test_categories_of_bars_and_a_second_axis_are_described() -> None:
    fig, ax = plt.subplots()
    ax.bar(["RoPE", "ALiBi"], [1, 2])
    ax.twinx().plot([3, 4])
    text = figures.describe(fig)
    assert "x ticks: RoPE, ALiBi" in text
    assert "Panel 2 of 2" in text


def test_colours_of_an_rgb_image_are_described() -> None:
    one, other = np.zeros((4, 4, 3)), np.zeros((4, 4, 3))
    other[..., 0] = 0.5
    assert described(lambda ax, rgb: ax.imshow(rgb), one) != described(
        lambda ax, rgb: ax.imshow(rgb), other
    )


@pytest.mark.parametrize(
    ("word", "plot"),
    [
        ("QuadContourSet", lambda ax: ax.contour(np.outer(RANDOM[:9], RANDOM[:9]))),
        ("FancyArrowPatch", lambda ax: ax.add_patch(FancyArrowPatch((0, 0), (1, 1)))),
        ("Table", lambda ax: ax.table([["a"]])),
    ],
)
def test_what_cannot_be_described_is_refused_or_named(
    word: str, plot: Callable[[Any], Any]
) -> None:
    fig, ax = plt.subplots()
    plot(ax)
    with pytest.raises(ValueError, match=word):
        figures.describe(fig)
    assert word in figures.describe(fig, data=False)


def test_three_dimensions_are_refused() -> None:
    fig = plt.figure()
    fig.add_subplot(projection="3d")
    with pytest.raises(ValueError, match="3-D"):
        figures.describe(fig)


def test_digits_and_data_set_how_much_must_agree() -> None:
    fig, ax = plt.subplots()
    ax.plot(RANDOM)
    assert "±0.1" in figures.describe(fig, digits=2)
    assert figures.describe(fig, ALT, data=False).splitlines() == [
        ALT,
        "Panel 1 of 1",
        "  line: x 500, y 500",
    ]


def test_show_stores_picture_alt_and_description(
    shown: list,
) -> None:
    fig, ax = plt.subplots()
    ax.plot(RANDOM)
    text = figures.describe(fig, ALT)
    assert figures.show(fig, ALT) is None
    [(data, metadata)] = shown
    assert metadata == {"image/png": {"alt": ALT}}
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == text
    picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert (
        picture.format,
        picture.mode,
        picture.size,
        picture.info.keys() & {"Software"},
    ) == (
        "PNG",
        "P",
        (600, 372),
        set(),
    )
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "alt", ["", "Three words only.", "No full stop at the end", None, 4]
)
def test_show_wants_a_sentence(shown: list, alt: Any) -> None:
    with pytest.raises(
        ValueError, match="alt must be a sentence of at least four words"
    ):
        figures.show(plt.figure(), alt)
    assert not shown


def test_show_wants_a_figure(shown: list) -> None:
    with pytest.raises(TypeError, match="fig must be a matplotlib Figure, got tuple"):
        figures.show(plt.subplots(), ALT)


def test_without_a_notebook_show_prints(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures.show(plt.figure(), ALT)
    monkeypatch.setitem(sys.modules, "IPython", None)
    figures.show(plt.figure(), ALT)
    assert capsys.readouterr().out == f"{ALT}\n" * 2


def test_the_palette_loses_nothing_visible() -> None:
    fig, (left, right) = plt.subplots(1, 2)
    left.plot(np.sin(np.arange(30)[:, None] / [1, 2, 3]))
    fig.colorbar(right.imshow(np.add.outer(RANDOM[:50], RANDOM[50:100]), cmap="PuOr"))
    fig.draw_without_rendering()  # the first time, the layout is not yet settled
    raw = io.BytesIO()
    fig.savefig(raw, dpi=style.DPI)
    small = png(fig)
    full, palette = (
        np.asarray(Image.open(file).convert("RGB"), dtype=int)
        for file in (raw, io.BytesIO(small))
    )
    assert abs(full - palette).max() <= 16
    assert (palette[(full == 255).all(-1)] == 255).all()
    assert len(small) < 0.6 * len(raw.getvalue())
    assert small == png(fig)


def test_colours_stand_out_from_white() -> None:
    def luminance(colour: str) -> float:
        rgb = np.array(mpl.colors.to_rgb(colour))
        return float(
            np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
            @ [0.2126, 0.7152, 0.0722]
        )

    colours = style.RC["axes.prop_cycle"].by_key()["color"]
    assert all(1.05 / (luminance(colour) + 0.05) >= 4.5 for colour in colours)


def test_use_sets_the_style_and_context_takes_it_back() -> None:
    with mpl.rc_context():
        mpl.rcdefaults()
        before = mpl.rcParams["font.size"]
        with style.context():
            assert mpl.rcParams["font.size"] == 11 != before
        assert mpl.rcParams["font.size"] == before
        style.use()
        assert mpl.rcParams["font.size"] == 11


def without_docstrings(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


@pytest.mark.parametrize(
    "thing",
    [
        positions.from_mask,
        rotary.RoPE,
        rotary.RoPE.transform,
        figures.Frames,
        figures.describe,
    ],
)
def test_source_is_the_installed_code_with_short_docstrings(
    shown: list, thing: Any
) -> None:
    figures.source(thing)
    figures.source(thing, docstring=True)
    (short, _), (full, _) = shown
    caption, code = short["text/plain"].split("\n", 1)
    module = thing.__module__.replace(".", "/")
    assert caption == f"# {thing.__qualname__} in {module}.py"
    assert (
        short["text/markdown"]
        == f"`{thing.__qualname__}` in `{module}.py`:\n\n```python\n{code}\n```"
    )
    assert set(short) == {"text/plain", "text/markdown"}
    complete = full["text/plain"].split("\n", 1)[1]
    assert without_docstrings(code) == without_docstrings(complete)
    first, kept = (
        ast.get_docstring(ast.parse(text).body[0]) for text in (complete, code)
    )
    assert kept == first.split("\n\n")[0]


def test_source_shows_what_a_property_or_decorator_hides(
    shown: list,
) -> None:
    figures.source(positions.arange, rotary.RoPE.transform)
    [(data, _)] = shown
    assert data["text/markdown"].count("```python") == 2
    assert "def arange(" in data["text/plain"]
    assert "def transform(" in data["text/plain"]


def test_source_refuses_what_is_not_the_librarys_code(shown: list) -> None:
    with pytest.raises(
        TypeError, match=r"functions, classes, methods and properties, got 3"
    ):
        figures.source(3)
    with pytest.raises(ValueError, match="json"):
        figures.source(json.dumps)
    assert not shown


def wave(value: float) -> Any:
    fig, ax = plt.subplots()
    ax.plot(np.sin(np.arange(30) / value))
    return fig


def frames(**changes: Any) -> figures.Frames:
    options = {
        "label": "<b>base</b>",
        "alt": lambda v: f'A wave with "base" {v} & <more>.',
        "start": 1,
    } | changes
    return figures.Frames(
        options.pop("draw", wave), options.pop("values", [1, 2, 3]), **options
    )


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_frames_are_a_slider_that_asks_for_nothing() -> None:
    html = frames()._repr_mimebundle_()["text/html"]
    page = Tags(html)
    [slider] = page.all("input")
    assert {k: slider[k] for k in ("type", "min", "max", "value")} == {
        "type": "range",
        "min": "0",
        "max": "2",
        "value": "1",
    }
    assert "disabled" in slider  # until the script runs
    assert json.loads(slider["data-labels"]) == [
        f"<b>base</b> = {value}" for value in (1, 2, 3)
    ]
    assert slider["aria-valuetext"] == "<b>base</b> = 2"
    assert "height: 44px" in slider["style"]
    images = page.all("img")
    assert [image["alt"] for image in images] == [
        f'A wave with "base" {v} & <more>.' for v in (1, 2, 3)
    ]
    assert ["display: block" in image["style"] for image in images] == [
        False,
        True,
        False,
    ]
    for image in images:
        picture = Image.open(
            io.BytesIO(
                base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
            )
        )
        assert picture.size == (500, 310) == (int(image["width"]), int(image["height"]))
    assert [tag for tag, _ in page.tags].count("output") == 1
    assert "The slider needs JavaScript; this is frame 2 of 3." in page.words
    assert not page.all("b")
    assert "://" not in html
    assert not any(
        "id" in attributes for _, attributes in page.tags
    )  # so that any number share a page


def test_frames_are_the_same_each_time_and_leave_no_figure_open() -> None:
    assert frames()._repr_mimebundle_() == frames()._repr_mimebundle_()
    assert plt.get_fignums() == []


def test_every_frame_is_described() -> None:
    text = frames()._repr_mimebundle_()["text/plain"]
    assert [line for line in text.splitlines() if line.startswith("Frame")] == [
        f"Frame <b>base</b> = {v}" for v in (1, 2, 3)
    ]
    other = frames(
        draw=lambda value: wave(value if value < 3 else 3.1)
    )._repr_mimebundle_()["text/plain"]
    assert not comparison.text_close(text, other)
    assert text.split("Frame")[:3] == other.split("Frame")[:3]


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, "values must hold at least two", {"values": [1]}),
        (ValueError, "start must be an index of values, 0 to 2, got 3", {"start": 3}),
        (ValueError, r"alt\(1\) must be a sentence", {"alt": lambda value: "short"}),
        (TypeError, "alt must be a function of the value", {"alt": ALT}),
        (
            TypeError,
            r"draw\(1\) must return a matplotlib Figure, got NoneType",
            {"draw": lambda value: None},
        ),
        (
            ValueError,
            "one size: draw.2. is 300 x 100 pixels",
            {"draw": lambda v: plt.figure(figsize=(3, 1) if v > 1 else None)},
        ),
        (
            ValueError,
            "live must hold the value of the first frame, 2",
            {"live": [1, 3]},
        ),
    ],
)
def test_frames_say_what_is_wrong(
    error: type[Exception], message: str, changes: dict
) -> None:
    with pytest.raises(error, match=message):
        frames(**changes)


def test_a_live_kernel_redraws_for_any_of_its_values(
    shown: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes: list[ipywidgets.VBox] = []
    make = ipywidgets.VBox
    monkeypatch.setattr(
        ipywidgets, "VBox", lambda children: boxes.append(make(children)) or boxes[-1]
    )
    bundle = frames(live=range(1, 10))._repr_mimebundle_()
    assert set(bundle) == {
        "text/html",
        "text/plain",
        "application/vnd.jupyter.widget-view+json",
    }
    slider, picture = boxes[0].children
    assert slider.label == "2"
    assert Tags(picture.value).all("img")[0]["alt"] == 'A wave with "base" 2 & <more>.'
    slider.label = "7"  # none of the frames
    assert Tags(picture.value).all("img")[0]["alt"] == 'A wave with "base" 7 & <more>.'
    assert plt.get_fignums() == []


def test_no_live_control_without_ipywidgets_kernel_or_wish(
    shown: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"text/html", "text/plain"}
    assert set(frames()._repr_mimebundle_()) == plain
    live = frames(live=[2])
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert set(live._repr_mimebundle_()) == plain
    monkeypatch.undo()
    assert set(live._repr_mimebundle_()) == plain  # ipywidgets, but no kernel


def test_figures_need_only_numpy_and_matplotlib() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(['IPython', 'ipywidgets', 'torch', "
        "'pygments']);"
        "from posenc_lib import figures; import matplotlib.pyplot as plt;"
        "figures.show(plt.figure(), 'It draws nothing at all.')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"MPLBACKEND": "agg"},
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "It draws nothing at all.\n"), (
        done.stderr
    )
