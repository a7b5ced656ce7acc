"""Show a figure, or the library's source, so that the notebook's test checks it."""

from __future__ import annotations

import ast
import base64
import inspect
import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

import posenc_lib
from posenc_lib.figures.describe import describe
from posenc_lib.figures.style import DPI

PACKAGE = Path(posenc_lib.__file__).parent


def show(fig: Figure, alt: str, *, digits: int = 4, data: bool = True) -> None:
    """Display a figure once, and close it.

    The notebook stores the picture and, as its text, `alt` and the description of what
    is drawn (`describe`). The notebook's test compares the text: a picture that draws
    other data fails it. The book uses `alt` as the picture's alternative text.

    Args:
        fig: the figure.
        alt: one sentence that says what the picture shows, for a reader who does not
            see it.
        digits: digits of the data that must agree on every machine; see `describe`.
        data: False leaves the data out of the description; then assert what the figure
            is to show.

    Raises:
        TypeError: `fig` is not a figure.
        ValueError: `alt` is not a sentence of at least four words that ends in a full
            stop, or the figure draws something that `describe` cannot read.
    """
    if not isinstance(fig, Figure):
        raise TypeError(
            f"fig must be a matplotlib Figure, got {type(fig).__name__}: "
            "fig, ax = plt.subplots()"
        )
    check_sentence("alt", alt)
    text = describe(fig, alt, digits=digits, data=data)
    picture = base64.b64encode(png(fig)).decode()
    plt.close(fig)
    _display({"image/png": picture, "text/plain": text}, {"image/png": {"alt": alt}})


def source(*objects: Any, docstring: bool = False) -> None:
    """Display the source of functions, classes and methods of this library.

    It is read from the installed package: the reader of a chapter sees the code that
    ran, not a copy of it.

    Args:
        objects: functions, classes, methods or properties of `posenc_lib`.
        docstring: True keeps the docstrings; False cuts each down to its first
            paragraph.

    Raises:
        TypeError: an object is of another kind.
        ValueError: an object is not defined in `posenc_lib`.
    """
    markdown, plain = [], []
    for thing in objects:
        name, file, code = _source(thing, docstring)
        fence = "````" if "```" in code else "```"
        markdown.append(f"`{name}` in `{file}`:\n\n{fence}python\n{code}\n{fence}")
        plain.append(f"# {name} in {file}\n{code}")
    # Markdown, for JupyterLab, Colab and the book then colour the code with their own
    # light or dark theme.
    _display(
        {"text/markdown": "\n\n".join(markdown), "text/plain": "\n\n\n".join(plain)}
    )


def check_sentence(argument: str, text: Any) -> None:
    """Raise ValueError unless `text` is a sentence of four words or more and a stop."""
    if (
        not isinstance(text, str)
        or len(text.split()) < 4
        or not text.rstrip().endswith(".")
    ):
        raise ValueError(
            f"{argument} must be a sentence of at least four words that ends in a full "
            f"stop and says what the picture shows, got {text!r}"
        )


def png(fig: Figure, dpi: int = DPI) -> bytes:
    """Draw a figure as a PNG of at most 256 colours, which is a third of the size."""
    raw, small = io.BytesIO(), io.BytesIO()
    fig.savefig(raw, format="png", dpi=dpi)
    palette = (
        Image.open(raw)
        .convert("RGB")
        .quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    palette.save(small, format="png", optimize=True)
    return small.getvalue()


def _display(data: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
    try:
        from IPython import get_ipython
        from IPython.display import publish_display_data

        shell = get_ipython()
    except ImportError:
        shell = None
    if shell is None:
        print(data["text/plain"])
    else:
        publish_display_data(data, metadata)


def _source(thing: Any, docstring: bool) -> tuple[str, str, str]:
    """Return the name, the file within the package, and the code of one object."""
    thing = thing.fget if isinstance(thing, property) else thing
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not (inspect.isroutine(thing) or inspect.isclass(thing)):
        raise TypeError(
            f"source() shows functions, classes, methods and properties, got {thing!r}"
        )
    package = PACKAGE.name
    if thing.__module__.partition(".")[0] != package:
        raise ValueError(
            f"source() shows code of {package}, "
            f"but {thing.__qualname__} is defined in {thing.__module__}"
        )
    file = Path(inspect.getfile(thing)).relative_to(PACKAGE.parent).as_posix()
    code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    return thing.__qualname__, file, code if docstring else _shorten_docstrings(code)


def _shorten_docstrings(code: str) -> str:
    """Cut each docstring down to its first paragraph."""
    lines = code.splitlines()
    documented = [
        node.body[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and ast.get_docstring(node)
    ]
    # from the end, so that line numbers stay true
    for node in sorted(documented, key=lambda node: -node.lineno):
        text = lines[node.lineno - 1 : node.end_lineno]
        empty = (i for i, line in enumerate(text) if not line.strip(' "'))
        end = next(empty, len(text))
        if end < len(text):
            text[end - 1] += '"""'
            lines[node.lineno - 1 : node.end_lineno] = text[:end]
    return "\n".join(lines)
