"""posenc_lib: every notable positional encoding as one short function beside its equation.

The folders are the places in attention where a position can enter: `positions` (0),
`embedding` (1), `rotary` (2), `bias` (3), and `attention`, which uses them all through
a `PositionScheme`. Conventions: tensors are (B, H, T, d), positions are always an
argument, relative = key − query, rotation is counter-clockwise, angles are float64.
"""

__version__ = "0.1.0"
