"""Place 3: a number added to the score, from the two positions alone, after the score is scaled."""

from posenc_lib.bias.alibi import alibi, alibi_slopes
from posenc_lib.bias.t5 import T5Bias, t5_bucket, t5_bucket_edges

__all__ = ["T5Bias", "alibi", "alibi_slopes", "t5_bucket", "t5_bucket_edges"]
