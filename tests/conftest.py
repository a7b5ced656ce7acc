"""Hypothesis draws the same examples in every run, and keeps none of them on disk."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile(
    "book", derandomize=True, database=None, deadline=None, max_examples=20
)
settings.load_profile("book")
