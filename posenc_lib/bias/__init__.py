"""Biases: a number from two positions alone, added to the score after its scale."""

from posenc_lib.bias.alibi import alibi, alibi_slopes
from posenc_lib.bias.kernels import FIRE, KerpleLog, KerplePower, sandwich
from posenc_lib.bias.mlp import (
    DistanceMLPBias,
    DynamicPositionBias,
    LogCoordinateBias,
    log_coordinates,
)
from posenc_lib.bias.t5 import T5Bias, t5_bucket, t5_bucket_edges
from posenc_lib.bias.window import (
    ClsWindowBias,
    IRPEBias,
    IRPEContextual,
    WindowBias,
    cls_window_index,
    irpe_edges,
    irpe_index,
    irpe_rows,
    window_index,
)

__all__ = [
    "FIRE",
    "ClsWindowBias",
    "DistanceMLPBias",
    "DynamicPositionBias",
    "IRPEBias",
    "IRPEContextual",
    "KerpleLog",
    "KerplePower",
    "LogCoordinateBias",
    "T5Bias",
    "WindowBias",
    "alibi",
    "alibi_slopes",
    "cls_window_index",
    "irpe_edges",
    "irpe_index",
    "irpe_rows",
    "log_coordinates",
    "sandwich",
    "t5_bucket",
    "t5_bucket_edges",
    "window_index",
]
