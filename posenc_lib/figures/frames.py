"""A slider over pictures drawn beforehand, which needs neither kernel nor network."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from posenc_lib.figures.describe import describe
from posenc_lib.figures.display import check_sentence, png

# Sets up every slider that is not yet set up, without ids, so that any number of
# sliders share a page. The input is disabled in the HTML and enabled here, so that
# without JavaScript it does not pretend to work. Keys stop here, or JupyterLab would
# take the arrows.
SCRIPT = """
document.querySelectorAll('.posenc-frames:not([data-ready])').forEach(function (root) {
  var slider = root.querySelector('input'), output = root.querySelector('output');
  var pictures = root.querySelectorAll('img'), \
labels = JSON.parse(slider.dataset.labels);
  function show() {
    var now = Number(slider.value);
    pictures.forEach(function (picture, i) { \
picture.style.display = i === now ? 'block' : 'none'; });
    output.textContent = labels[now];
    slider.setAttribute('aria-valuetext', labels[now] + '. ' + pictures[now].alt);
  }
  root.dataset.ready = 'true';
  slider.disabled = false;
  slider.addEventListener('input', show);
  slider.addEventListener('keydown', function (event) { event.stopPropagation(); });
  show();
});
"""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Frames:
    """A figure with a slider.

    One frame is drawn for each value when the object is made. As the last expression of
    a cell it shows the first frame and a slider, in JupyterLab, in Colab and in the
    book alike: pictures and a few lines of script, which need neither a kernel nor a
    network. Its text, which the notebook's test compares, describes what every frame
    draws.

    With `live`, a running kernel that has ipywidgets shows a control instead that
    redraws the figure for each of those values. The refreshed
    notebook, and so the book, keep the frames. A notebook that a reader saves with such
    a control shows it again only when its cell is run again.

    Args:
        draw: called with a value, returns a new matplotlib figure; all figures have one
            size.
        values: the values of the frames, in the order of the slider.
        label: what the slider sets, a name such as "base".
        alt: called with a value, returns a sentence that says what the frame shows.
        start: the index of the frame that is shown first.
        live: the values that a live kernel offers, as many as you like; None offers
            the frames alone.
        format_value: called with a value, returns how it is written beside the slider.
        dpi: pixels per inch.
        digits: digits of the data that must agree on every machine; see `describe`.

    Raises:
        TypeError: `alt` is not a function, or `draw` does not return a figure.
        ValueError: there are fewer than two values, `start` is not the index of one, an
            `alt` is not a sentence, two figures differ in size, or a figure draws
            something that `describe` cannot read.
    """

    def __init__(
        self,
        draw: Callable[[Any], Figure],
        values: Sequence[Any],
        *,
        label: str,
        alt: Callable[[Any], str],
        start: int = 0,
        live: Sequence[Any] | None = None,
        format_value: Callable[[Any], str] = str,
        dpi: int = 100,
        digits: int = 3,
    ) -> None:
        if not callable(alt):
            raise TypeError(
                "alt must be a function of the value, "
                f"since each frame shows something else; got {alt!r}"
            )
        self.draw, self.label, self.alt, self.start = draw, label, alt, start
        self.format_value, self.dpi, self.digits = format_value, dpi, digits
        values = list(values)
        self.live = None if live is None else list(live)
        if len(values) < 2:
            raise ValueError(
                f"values must hold at least two values to slide between, got {values}"
            )
        if start not in range(len(values)):
            raise ValueError(
                f"start must be an index of values, 0 to {len(values) - 1}, got {start}"
            )
        self.value = values[start]
        if self.live is not None and self.value not in self.live:
            raise ValueError(
                f"live must hold the value of the first frame, {self.value!r}, "
                f"got {self.live}"
            )
        self.labels = [f"{label} = {format_value(value)}" for value in values]
        self.size: tuple[int, int] | None = None
        frames = [self._frame(value) for value in values]
        self.images = [image for image, _ in frames]
        self.text = "\n".join(
            f"Frame {name}\n{text}"
            for name, (_, text) in zip(self.labels, frames, strict=True)
        )

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, Any]:
        return {"text/html": self._html(), "text/plain": self.text} | self._live_view()

    def _frame(self, value: Any) -> tuple[str, str]:
        """Draw the frame of a value: the attributes of its <img>, and a description."""
        alt = self.alt(value)
        check_sentence(f"alt({value!r})", alt)
        fig = self.draw(value)
        if not isinstance(fig, Figure):
            raise TypeError(
                f"draw({value!r}) must return a matplotlib Figure, "
                f"got {type(fig).__name__}"
            )
        text = describe(fig, alt, digits=self.digits)
        picture = png(fig, self.dpi)
        plt.close(fig)
        width, height = Image.open(io.BytesIO(picture)).size
        self.size = self.size or (width, height)
        if (width, height) != self.size:
            raise ValueError(
                f"all frames must have one size: draw({value!r}) is {width} x {height} "
                f"pixels, the first frame {self.size[0]} x {self.size[1]}"
            )
        data = base64.b64encode(picture).decode()
        image = f'src="data:image/png;base64,{data}" width="{width}" height="{height}"'
        return f'{image} alt="{html.escape(alt)}"', text

    def _html(self) -> str:
        name, first = html.escape(self.label), html.escape(self.labels[self.start])
        labels = html.escape(json.dumps(self.labels))
        last = len(self.images) - 1
        return "\n".join(
            [
                '<div class="posenc-frames" data-lm-suppress-shortcuts="true">',
                '<div style="display: flex; flex-wrap: wrap; align-items: center; gap: '
                '0 0.75em">',
                '<label style="display: flex; flex: 1 1 14em; align-items: center; '
                'gap: 0.75em">'
                f'{name} <input type="range" min="0" max="{last}" step="1" '
                f'value="{self.start}" '
                f'disabled autocomplete="off" data-labels="{labels}" '
                f'aria-valuetext="{first}" '
                'style="flex: 1; min-width: 8em; height: 44px; margin: 0"></label>',
                f'<output aria-live="off">{first}</output>',
                "</div>",
                "<noscript>The slider needs JavaScript; "
                f"this is frame {self.start + 1} of {last + 1}.</noscript>",
                *(
                    _picture(image, shown=i == self.start)
                    for i, image in enumerate(self.images)
                ),
                "</div>",
                f"<script>{SCRIPT}</script>",
            ]
        )

    def _live_view(self) -> dict[str, Any]:
        """A control that redraws in the kernel, given a kernel and ipywidgets."""
        if self.live is None:
            return {}
        try:
            import ipywidgets  # type: ignore[import-untyped]
            from IPython import get_ipython
        except ImportError:
            return {}
        if not hasattr(get_ipython(), "kernel"):
            return {}
        values = self.live
        picture = ipywidgets.HTML(_picture(self.images[self.start]))
        slider = ipywidgets.SelectionSlider(
            options=[(self.format_value(value), i) for i, value in enumerate(values)],
            value=values.index(self.value),
            description=self.label,
            continuous_update=False,
            layout={"width": "100%"},
            style={"description_width": "initial"},
        )

        def redraw(change: dict[str, Any]) -> None:
            picture.value = _picture(self._frame(values[change["new"]])[0])

        slider.observe(redraw, "value")
        box = ipywidgets.VBox([slider, picture])
        return {
            WIDGET_VIEW: {
                "version_major": 2,
                "version_minor": 0,
                "model_id": box.model_id,
            }
        }


def _picture(attributes: str, shown: bool = True) -> str:
    style = f"display: {'block' if shown else 'none'}; max-width: 100%; height: auto"
    return f'<img {attributes} style="{style}">'
