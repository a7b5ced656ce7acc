"""Read a configuration: every value is checked, and an error begins with its key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc_lib.checkpoints.model import RotationSettings
from posenc_lib.rotary.pairs import Layout
from posenc_lib.rotary.scaling import yarn_attention_factor

# Other spellings of a key, in the files of older models.
SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "head_dim": ("d_kv", "d_head"),
}
LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention")

# Keys of a rotation by its type: those it needs, and those it may have.
ROTATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        (
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor", "original_max_position_embeddings"),
        ("factor", "attention_factor"),
    ),
    "llama3": (
        (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
        (),
    ),
    "proportional": ((), ("factor",)),
}


@dataclass(frozen=True, eq=False)
class Section:
    """A configuration, or a part of one, whose keys are named with their path."""

    values: Mapping[str, Any]
    path: str = ""

    def named(self, key: str) -> str:
        return f"{self.path}{key}"

    def get(self, key: str) -> Any:
        """The value under any of its spellings, which must agree; None if absent."""
        stated = [
            (name, self.values[name])
            for name in (key, *SPELLINGS.get(key, ()))
            if self.values.get(name) is not None
        ]
        if not stated:
            return None
        (first, expected), *others = stated
        for name, value in others:
            if value != expected:
                raise ValueError(
                    f"{self.named(name)} must agree with {self.named(first)} = "
                    f"{expected!r}, got {value!r}"
                )
        return expected

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            spellings = "".join(f" or {name}" for name in SPELLINGS.get(key, ()))
            raise ValueError(
                f"{self.named(key)}{spellings} is missing: "
                "nothing is assumed in its place"
            )
        return value

    def whole(self, key: str, *, least: int = 1) -> int:
        value = self.need(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(
                f"{self.named(key)} must be a whole number of at least {least}, "
                f"got {value!r}"
            )
        return value

    def number(self, key: str) -> float:
        return positive(self.named(key), self.need(key))

    def flag(self, key: str) -> bool:
        value = self.need(key)
        if not isinstance(value, bool):
            raise ValueError(f"{self.named(key)} must be true or false, got {value!r}")
        return value

    def row(self, key: str, length: int, valid: Sequence[Any]) -> list[Any]:
        """A list with one value for each layer, all of them `valid`."""
        value = self.need(key)
        if not isinstance(value, list) or len(value) != length:
            got = f"{len(value)} of them" if isinstance(value, list) else repr(value)
            raise ValueError(
                f"{self.named(key)} must be a list with one entry for each of {length} "
                f"layers, got {got}"
            )
        for i, item in enumerate(value):
            if item not in valid:
                raise ValueError(
                    f"{self.named(key)}[{i}] must be one "
                    f"of {', '.join(map(repr, valid))}; got {item!r}"
                )
        return value

    def section(self, key: str) -> Section:
        value = self.need(key)
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.named(key)} must be an object, got {value!r}")
        return Section(value, f"{self.named(key)}.")

    def only(self, key: str, valid: Sequence[Any], why: str) -> None:
        """Refuse a setting that is known but not modelled here."""
        value = self.get(key)
        if value is not None and value not in valid:
            expected = " or ".join(map(repr, valid)) or "absent"
            raise ValueError(
                f"{self.named(key)} must be {expected}, got {value!r}: {why}"
            )


def positive(name: str, value: Any) -> float:
    """`value` if it is a finite number above 0; all errors here are `ValueError`s."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and value > 0)
    ):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return value


def head_dim(config: Section) -> int:
    """Channels of a head: stated, or the width divided among the heads."""
    if config.get("head_dim") is not None:
        return config.whole("head_dim")
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if width % heads:
        raise ValueError(
            f"{config.named('num_attention_heads')} must divide "
            f"{config.named('hidden_size')} = {width} where {config.named('head_dim')} "
            f"is not arguments, got {heads}"
        )
    return width // heads


def layer_kinds(
    config: Section, usual: Sequence[str] | None, valid: Sequence[str] = LAYER_KINDS[:2]
) -> list[str]:
    """`layer_types`, or the rule of a model whose older files state none."""
    count = config.whole("num_hidden_layers")
    if config.get("layer_types") is not None:
        return config.row("layer_types", count, valid)
    if usual is None:
        raise ValueError(
            f"{config.named('layer_types')} is missing: nothing is assumed in its place"
        )
    return list(usual)


def every(count: int, period: int, usual: str, last: str) -> list[str]:
    """`last` in every `period`-th layer, `usual` in the others."""
    return [usual if (i + 1) % period else last for i in range(count)]


# ---- rotations


def rotation_entries(
    config: Section,
    old: Mapping[str, Mapping[str, Any]],
    *,
    names: Mapping[str, str] | None = None,
) -> dict[str, tuple[Mapping[str, Any], str]]:
    """The settings of each layer kind's rotation and the path of their keys.

    Args:
        config: with `rope_parameters` (the new form), flat or by kind of layer.
        old: what the old form says of each kind; keys that are absent there have the
            value None.
        names: types with another name in this family, such as {"su": "longrope"}.
    """
    new = _new_form(config, by_kind=set(old) != {""})
    entries: dict[str, tuple[Mapping[str, Any], str]] = {}
    for kind, stated in old.items():
        before = _typed(
            {key: value for key, value in stated.items() if value is not None},
            config.named("rope_scaling"),
            names,
        )
        if not new:
            path = config.named("rope_scaling" if config.get("rope_scaling") else "")
            entries[kind] = (before, path)
            continue
        path = config.named("rope_parameters") + (f".{kind}" if kind else "")
        part = new.get(kind) if kind else new
        if not isinstance(part, Mapping):
            raise ValueError(f"{path} must be an object, got {part!r}")
        after = _typed(part, path, names)
        _check_agreement(before, after, path)
        entries[kind] = (after, path)
    return entries


def _new_form(config: Section, *, by_kind: bool) -> Mapping[str, Any]:
    """`rope_parameters`, empty if absent, checked to be flat or by kind of layer."""
    new = config.get("rope_parameters")
    if new is not None and not isinstance(new, Mapping):
        raise ValueError(
            f"{config.named('rope_parameters')} must be an object, got {new!r}"
        )
    if not new:
        return {}
    if (set(new) <= set(LAYER_KINDS)) != by_kind:
        expected = (
            f"one object for each of {', '.join(LAYER_KINDS[:2])}"
            if by_kind
            else "one object for all layers"
        )
        raise ValueError(
            f"{config.named('rope_parameters')} must be {expected} here, "
            f"got the keys {', '.join(map(str, new))}"
        )
    return new


def _check_agreement(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> None:
    """Both forms may be in a file: what the old one states must be in the new one."""
    for key, value in before.items():
        if key == "rope_type" and value == "default" and len(before) <= 2:
            continue  # the old form says nothing of scaling
        if key not in after or after[key] != value:
            raise ValueError(
                f"{path}.{key} must agree with the old form's {key} = {value!r}, "
                f"got {after.get(key)!r}"
            )


def uniform_entry(
    config: Section,
    *,
    names: Mapping[str, str] | None = None,
    theta: str = "rope_theta",
) -> tuple[Mapping[str, Any], str]:
    """The rotation that all layers share."""
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ValueError(
            f"{config.named('rope_scaling')} must be an object, got {scaling!r}"
        )
    entry, path = rotation_entries(
        config, {"": {**scaling, "rope_theta": config.get(theta)}}, names=names
    )[""]
    if "rope_theta" not in entry and theta != "rope_theta":
        raise ValueError(
            f"{config.named(theta)} is missing: nothing is assumed in its place"
        )
    return entry, path


def rotation(
    config: Section,
    entry: tuple[Mapping[str, Any], str],
    channels: int,
    *,
    layout: Layout = "half",
    ignored: Sequence[str] = (),
    part: float | None = None,
) -> RotationSettings:
    """The settings of a rotation, checked key by key and then by its schedule."""
    values, path = entry
    section = Section(values, f"{path}." if path and not path.endswith(".") else path)
    kind = values["rope_type"]
    needed, optional = ROTATIONS[kind]
    known = {
        *needed,
        *optional,
        *ignored,
        "rope_type",
        "rope_theta",
        "partial_rotary_factor",
    }
    for key in values:
        if key not in known:
            raise ValueError(f"{section.named(key)} is unknown for rope_type {kind!r}")
    if "rope_theta" not in values:
        name = (
            f"{path}.rope_theta"
            if path.endswith(("rope_parameters", *LAYER_KINDS))
            else config.named("rope_theta")
        )
        raise ValueError(
            f"{name} is missing: the base belongs to the checkpoint, "
            "and 10000 is not assumed"
        )
    base = positive(section.named("rope_theta"), values["rope_theta"])
    for key in needed:
        section.need(key)
    if kind == "proportional" and config.get("partial_rotary_factor") is None:
        section.need("partial_rotary_factor")
    part = _share(config, section, part)
    dim = channels
    if kind != "proportional":
        dim = _even(section, int(channels * part), channels)
    options = _options(kind, config, section, part)
    settings = RotationSettings(base, dim, kind, layout, options)
    try:
        settings.schedule()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path or config.named('rope_theta')}: {error}") from error
    return settings


def _typed(
    entry: Mapping[str, Any], path: str, names: Mapping[str, str] | None
) -> dict[str, Any]:
    """The entry with its type under one key and one name."""
    types = {key: entry[key] for key in ("rope_type", "type") if key in entry}
    for key, value in types.items():
        if not isinstance(value, str):
            raise ValueError(
                f"{path}.{key} must be one of {', '.join(map(repr, ROTATIONS))}; "
                f"got {value!r}"
            )
    types = {key: (names or {}).get(value, value) for key, value in types.items()}
    if len(set(types.values())) > 1:
        raise ValueError(
            f"{path}.type must agree with rope_type = {types['rope_type']!r}, "
            f"got {types['type']!r}"
        )
    kind = next(iter(types.values()), "default")
    if kind not in ROTATIONS:
        key = next(iter(types))
        raise ValueError(
            f"{path}.{key} must be one of {', '.join(map(repr, ROTATIONS))}; "
            f"got {kind!r}"
        )
    return {
        **{key: value for key, value in entry.items() if key != "type"},
        "rope_type": kind,
    }


def _share(config: Section, section: Section, part: float | None) -> float:
    """The share of a head's channels that rotate; stated twice, it must agree."""
    inside = section.get("partial_rotary_factor")
    outside = config.get("partial_rotary_factor")
    if inside is not None and outside is not None and inside != outside:
        raise ValueError(
            f"{section.named('partial_rotary_factor')} must agree with "
            f"{config.named('partial_rotary_factor')} = {outside!r}, got {inside!r}"
        )
    value = inside if inside is not None else outside if outside is not None else part
    if value is None:
        return 1.0
    if positive(section.named("partial_rotary_factor"), value) > 1:
        raise ValueError(
            f"{section.named('partial_rotary_factor')} must be at most 1, got {value!r}"
        )
    return value


def _even(section: Section, dim: int, channels: int) -> int:
    if dim < 2 or dim % 2:
        name = section.named("partial_rotary_factor") if dim != channels else "head_dim"
        raise ValueError(
            f"{name} must leave an even number of at least 2 channels to rotate, "
            f"got {dim} of {channels}"
        )
    return dim


def _options(
    kind: str, config: Section, section: Section, part: float
) -> tuple[tuple[str, Any], ...]:
    """The arguments of a schedule, by its names for them."""
    arguments: dict[str, Any] = {}
    if "factor" in section.values and kind != "longrope":
        arguments["factor"] = section.number("factor")
    if kind in ("yarn", "llama3"):
        arguments["original_length"] = section.whole("original_max_position_embeddings")
    if kind == "dynamic":
        arguments["original_length"] = config.whole("max_position_embeddings")
    if kind == "llama3":
        arguments |= {
            key: section.number(key) for key in ("low_freq_factor", "high_freq_factor")
        }
    if kind == "proportional":
        arguments["fraction"] = part
    if kind == "yarn":
        arguments |= {
            key: section.number(key)
            for key in ("beta_fast", "beta_slow")
            if section.get(key) is not None
        }
        if section.get("truncate") is not None:
            arguments["truncate"] = section.flag("truncate")
        arguments |= _magnitude(section)
    if kind == "longrope":
        arguments |= _longrope(config, section)
    return tuple(arguments.items())


def _magnitude(section: Section) -> dict[str, float]:
    """YaRN's attention factor: as stated, or DeepSeek's quotient of two numbers."""
    if section.get("attention_factor") is not None:
        return {"attention_factor": section.number("attention_factor")}
    if not (section.get("mscale") and section.get("mscale_all_dim")):
        return {}
    quotient = yarn_attention_factor(
        section.number("factor"),
        mscale=section.number("mscale"),
        mscale_all_dim=section.number("mscale_all_dim"),
    )
    return {"attention_factor": quotient}


def _longrope(config: Section, section: Section) -> dict[str, Any]:
    original = section.whole("original_max_position_embeddings")
    longest = config.whole("max_position_embeddings")
    arguments: dict[str, Any] = {
        "original_length": original,
        "factor": longest / original,
    }
    for key in ("short_factor", "long_factor"):
        value = section.need(key)
        if not isinstance(value, list):
            raise ValueError(
                f"{section.named(key)} must be a list of numbers, got {value!r}"
            )
        arguments[f"{key}s"] = tuple(value)
    for key in ("factor", "attention_factor"):
        if section.get(key) is not None:
            arguments[key] = section.number(key)
    return arguments
