"""The learned table: positions look up its rows."""

from __future__ import annotations

import itertools

import torch
from helpers import seeded

from posenc_lib.embedding.learned import LearnedEmbedding


def test_learned_embedding_looks_up_rows() -> None:
    embedding = LearnedEmbedding(7, 3, generator=seeded(0))
    positions = torch.tensor([[0, 6, 2], [5, 5, 1]])
    out = embedding(positions)
    for b, t in itertools.product(range(2), range(3)):
        assert torch.equal(out[b, t], embedding.table[int(positions[b, t])])
