"""Place 2: queries and keys are transformed by their own positions before the dot product."""

from posenc_lib.rotary.rope import LAYOUTS, RoPE, Rotation, convert_layout, convert_projection

__all__ = ["LAYOUTS", "RoPE", "Rotation", "convert_layout", "convert_projection"]
