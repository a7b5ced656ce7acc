"""Positional encodings for Transformers, each a short function beside its equation.

The folders are the places in attention where a position can enter, or ideas, where one
idea fills several places: `positions`, `embedding`, `rotary` (transforms of query and
key), `bias`, `content` (scores that depend on the content) and `attention`, which uses
them all through a `PositionScheme`. Conventions: tensors are (B, H, T, d), positions
are always an argument, relative = key − query, rotation is counter-clockwise, angles
are float64.
"""

__version__ = "0.1.0"
