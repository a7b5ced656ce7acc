"""Scores and biases that depend on two positions and on the content."""

from posenc_lib.content.cope import CoPE, contextual_positions
from posenc_lib.content.dape import DAPE
from posenc_lib.content.deberta import (
    DeBERTa,
    deberta_index,
    deberta_log_bucket,
    deberta_released_scores,
    deberta_scores,
    deberta_v2_scores,
)
from posenc_lib.content.forgetting import ForgetGate, path_sums
from posenc_lib.content.path import PaTH, path_scores
from posenc_lib.content.relative_logits import RelativeLogits
from posenc_lib.content.shaw import (
    Shaw,
    clipped_index,
    relative_key_query_scores,
    relative_key_scores,
)
from posenc_lib.content.transformer_xl import TransformerXL, relative_shift
from posenc_lib.content.tupe import TUPE, untie_cls

__all__ = [
    "DAPE",
    "TUPE",
    "CoPE",
    "DeBERTa",
    "ForgetGate",
    "PaTH",
    "RelativeLogits",
    "Shaw",
    "TransformerXL",
    "clipped_index",
    "contextual_positions",
    "deberta_index",
    "deberta_log_bucket",
    "deberta_released_scores",
    "deberta_scores",
    "deberta_v2_scores",
    "path_scores",
    "path_sums",
    "relative_key_query_scores",
    "relative_key_scores",
    "relative_shift",
    "untie_cls",
]
