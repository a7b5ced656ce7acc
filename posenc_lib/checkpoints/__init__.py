"""From a published model's configuration to the positions of each of its layers.

`read` takes a file, the name of a shipped configuration, or a dictionary, in the forms
that Hugging Face's transformers has written: `rope_theta` with `rope_scaling`, or
`rope_parameters`, for all layers or by kind of layer. A setting that is missing,
unknown or contradictory raises a `ValueError` that begins with its key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from posenc_lib.checkpoints.families import stacks
from posenc_lib.checkpoints.model import (
    InputSettings,
    LayerSettings,
    RotationSettings,
    Stack,
)
from posenc_lib.checkpoints.parse import SPELLINGS, Section
from posenc_lib.checkpoints.report import (
    Checkpoint,
    as_dict,
    collisions,
    differences,
    figure,
    text,
)

__all__ = [
    "Checkpoint",
    "InputSettings",
    "LayerSettings",
    "RotationSettings",
    "Stack",
    "as_dict",
    "collisions",
    "differences",
    "figure",
    "read",
    "shipped",
    "text",
]

CLASS_DEFAULT = "class-default-"
CLASSES = "class-defaults.json"


def shipped() -> dict[str, dict[str, Any]]:
    """The configurations that come with the library, by name.

    Each has the `source` of its numbers. A name that begins with "class-default-" is
    not a checkpoint: its numbers are the defaults of transformers' class.

    Chapter: 14
    """
    files = {
        item.name: item
        for item in (resources.files("posenc_lib") / "configs").iterdir()
    }
    contents = {
        name: json.loads(files[name].read_text(encoding="utf-8"))
        for name in sorted(files)
    }
    classes = contents.pop(CLASSES)
    checkpoints = {
        name.removesuffix(".json"): values for name, values in contents.items()
    }
    return checkpoints | {
        f"{CLASS_DEFAULT}{kind}": {
            "source": classes["source"],
            "model_type": kind,
            **values,
        }
        for kind, values in classes["classes"].items()
    }


def read(
    source: str | Path | Mapping[str, Any], *, class_defaults: bool = False
) -> Checkpoint:
    """Read a configuration.

    Published files leave some numbers to the class that reads them. Here they are an
    error, unless `class_defaults` asks for the class's; the notes then name every key
    that was filled in.

    Args:
        source: a path, "-" for standard input, a shipped name, or a dictionary. Files
            come before shipped names.
        class_defaults: fill in keys that the file leaves to the class of transformers.

    Raises:
        ValueError, OSError: there is no such file or name; it is not a JSON object; a
            setting is missing, unknown or contradictory.

    Chapter: 14
    """
    name, values = _load(source)
    filled: list[str] = []
    if class_defaults:
        values, filled = _with_class_defaults(values)
    config = Section({key: value for key, value in values.items() if key != "source"})
    layers = stacks(config)
    notes = [
        f"{key}: not read"
        for key in ("audio_config", "token2wav_config")
        if config.get(key) is not None
    ]
    if filled:
        notes.append(f"from the class, not from the file: {', '.join(filled)}")
    return Checkpoint(
        name,
        config.need("model_type"),
        layers,
        str(values.get("source", "")),
        tuple(notes),
    )


def _load(source: str | Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name to call it by, and the JSON object."""
    if isinstance(source, Mapping):
        return str(
            source.get("_name_or_path") or source.get("model_type") or "configuration"
        ), source
    name = str(source)
    path = Path(source)
    if name != "-" and not path.exists():
        if name in (known := shipped()):
            return name, known[name]
        family = name.split("-")[0].lower()
        near = [known_name for known_name in known if known_name.startswith(family)]
        near = near or list(known)
        raise ValueError(
            f"source must be a file or a shipped name such as {', '.join(near[:4])}; "
            f"got {name!r}"
        )
    if path.is_dir():
        path = path / "config.json"
    if name == "-" and sys.stdin is None:
        raise ValueError("source - is standard input, which is closed")
    try:
        values = json.loads(
            sys.stdin.read() if name == "-" else path.read_text(encoding="utf-8")
        )
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must hold a JSON object, got {type(values).__name__}")
    return name, values


def _with_class_defaults(
    values: Mapping[str, Any], path: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The configuration with the keys that its class fills in, and which these are."""
    completed: dict[str, Any] = dict(values)
    filled: list[str] = []
    for part in ("text_config", "vision_config"):
        if isinstance(values.get(part), Mapping):
            completed[part], inside = _with_class_defaults(
                values[part], f"{path}{part}."
            )
            filled += inside
    defaults = shipped().get(f"{CLASS_DEFAULT}{values.get('model_type')}", {})
    rotary = (
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
        "local_rope_theta",
        "global_rope_theta",
    )
    for key, value in defaults.items():
        stated = [name for name in (key, *SPELLINGS.get(key, ())) if name in values]
        from_new = values.get("rope_parameters") and key in (
            *rotary,
            "rotary_emb_base",
            "rotary_pct",
        )
        derived = key == "sliding_window_pattern" and values.get("layer_types")
        if (
            not stated
            and not from_new
            and not derived
            and key != "source"
            and values.get("text_config") is None
        ):
            completed[key] = value
            filled.append(f"{path}{key}")
    return completed, filled
