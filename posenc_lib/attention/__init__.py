"""Reference attention with every place for a position, and the masks."""

from posenc_lib.attention.masks import causal, real_keys, same_document, window
from posenc_lib.attention.softmax import attention, attention_weights

__all__ = ["attention", "attention_weights", "causal", "real_keys", "same_document", "window"]
