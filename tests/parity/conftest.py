"""Nothing is collected outside the environment of `make parity`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = (
    [] if find_spec("transformers") and find_spec("x_transformers") else ["test_*.py"]
)
