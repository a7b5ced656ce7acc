"""Figures that can be checked: a picture, a sentence, and numbers of what it draws."""

from __future__ import annotations

from posenc_lib.figures import style
from posenc_lib.figures.describe import describe
from posenc_lib.figures.display import show, source
from posenc_lib.figures.frames import Frames

__all__ = ["Frames", "describe", "show", "source", "style"]
