"""One look for all figures: white, legible on a phone, readable without colour.

`use()` sets it for the session (the notebooks' setup cell does), `context()` for a
`with` block. Both work as in `matplotlib.style`, and matter while a figure is being
drawn, not when it is shown.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from cycler import cycler

# Okabe and Ito's hues, darkened where needed so that each has a contrast of at least
# 4.5 : 1 on white.
BLUE = "#0072b2"
ORANGE = "#c04d00"
GREEN = "#007f5c"
PURPLE = "#9b4f86"
GREY = "#5a5a5a"
BLACK = "#000000"

SEQUENTIAL = "viridis"
DIVERGING = "PuOr"

DPI = 120

RC: dict[Any, Any] = {
    # A page shows a figure 5 inches wide at 600 pixels, a phone at about 350: 11 points
    # are 18 and 11 pixels there.
    "figure.figsize": (5.0, 3.1),
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "legend.fontsize": 10,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "figure.constrained_layout.use": True,
    # Opaque white, whatever the reader's own settings: ink is black, and a dark page
    # shows the figure as a card.
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": "black",
    "axes.labelcolor": "black",
    "axes.edgecolor": GREY,
    "xtick.color": "black",
    "ytick.color": "black",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    # Every line differs by its dashes too, so that colour is never the only sign.
    "axes.prop_cycle": cycler(
        color=[BLUE, ORANGE, GREEN, PURPLE, GREY, BLACK],
        linestyle=["-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (2, 1))],
    ),
    "image.cmap": SEQUENTIAL,
    "image.interpolation": "nearest",
}


def use() -> None:
    """Set the style for the rest of the session: `figures.style.use()`."""
    mpl.rcParams.update(RC)


def context() -> AbstractContextManager[None]:
    """Set the style inside a `with figures.style.context():` block."""
    return mpl.rc_context(RC)
