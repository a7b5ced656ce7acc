"""Place 1: a vector for each position, added to the token embedding by the caller."""

from posenc_lib.embedding.learned import LearnedEmbedding
from posenc_lib.embedding.sinusoidal import sinusoidal, sinusoidal_tensor2tensor

__all__ = ["LearnedEmbedding", "sinusoidal", "sinusoidal_tensor2tensor"]
