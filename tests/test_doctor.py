"""The doctor: silent about correct functions, right about every kind of fault.

Sizes are drawn at random. The package is tested as a whole, through `diagnose`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import seeded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket
from posenc_lib.doctor import WORDS, diagnose, load
from posenc_lib.doctor.report import REFERENCES
from posenc_lib.embedding import sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import LAYOUTS, RoPE, XPos, scaling
from posenc_lib.rotary.scaling import Schedule

ROOT = Path(__file__).resolve().parents[1]
Function = Callable[[Tensor, Tensor], Tensor]
HALF, BOTH = torch.float16, (torch.bfloat16, torch.float16)


def ours(
    schedule: Schedule, layout: str = "interleaved", least: torch.dtype = torch.float32
) -> Function:
    rope = RoPE(**schedule._asdict(), layout=layout)
    return lambda x, positions: rope(positions, torch.promote_types(x.dtype, least))(x)


def plain(dim: int, base: float = 10_000.0) -> Schedule:
    return Schedule(inverse_frequencies(dim, base))


# ---- an implementation of another make, with a switch for each fault


def peer(
    dim: int,
    base: float = 10_000.0,
    *,
    layout: str = "half",
    table: str | None = None,
    sign: float = 1.0,
    frequencies: Tensor | None = None,
    read: Callable[[Tensor, Tensor], Tensor] = lambda positions, x: positions,
    dtype: torch.dtype = torch.float32,
    factor: float = 1.0,
    width: int | None = None,
) -> Function:
    """Rotary in the form of Llama's code.

    X cos + rotate_half(x) sin, with tables as wide as what is rotated.
    """
    r = width or dim
    if frequencies is None:
        frequencies = base ** (-torch.arange(0, r, 2, dtype=torch.float64) / r)

    def apply(x: Tensor, positions: Tensor) -> Tensor:
        angles = read(positions, x)[..., None].to(dtype) * frequencies.to(dtype)
        doubled = (
            torch.cat((angles, angles), -1)
            if (table or layout) == "half"
            else angles.repeat_interleave(2, -1)
        )
        doubled = doubled.float() if dtype in BOTH else doubled
        cos, sin = (
            factor * doubled.cos().to(x.dtype),
            factor * sign * doubled.sin().to(x.dtype),
        )
        if cos.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]
        rotated, rest = x[..., :r], x[..., r:]
        if layout == "half":
            a, b = rotated.chunk(2, -1)
            partner = torch.cat((-b, a), -1)
        else:
            partner = torch.stack((-rotated[..., 1::2], rotated[..., ::2]), -1).flatten(
                -2
            )
        return torch.cat((rotated * cos + partner * sin, rest), -1)

    return apply


# ---- nothing false


def correct() -> dict[str, tuple[Function, int, dict[str, Any]]]:
    found: dict[str, tuple[Function, int, dict[str, Any]]] = {}
    for layout in LAYOUTS:
        for dim, base in (
            (8, 10_000.0),
            (64, 500_000.0),
            (96, 1_234.5),
            (128, 5_000_000.0),
        ):
            found[f"{layout} {dim} {base}"] = (
                ours(plain(dim, base), layout),
                dim,
                {"layout": layout, "base": base},
            )
        found[f"{layout} float64"] = (
            ours(plain(32), layout, torch.float64),
            32,
            {"layout": layout},
        )
        found[f"{layout} partial"] = (
            ours(plain(16), layout),
            64,
            {"layout": layout, "rotary_dim": 16, "base": 10_000.0},
        )
        for name in ("float32", "float64"):
            function = peer(64, 777.0, layout=layout, dtype=getattr(torch, name))
            found[f"peer {layout} {name}"] = (
                function,
                64,
                {"layout": layout, "base": 777.0},
            )
        clockwise = {"layout": layout, "direction": "clockwise", "base": 10_000.0}
        found[f"{layout} clockwise"] = peer(64, layout=layout, sign=-1.0), 64, clockwise
    schedules: dict[str, tuple[Schedule, dict[str, Any]]] = {
        "linear": (
            scaling.linear_interpolation(64, 1e6, factor=8.0),
            {"schedule": "linear_interpolation"},
        ),
        "ntk": (
            scaling.ntk_aware(64, 1e4, factor=4.0),
            {"schedule": "ntk_aware", "base": 1e4},
        ),
        "parts": (
            scaling.ntk_by_parts(64, 1e4, factor=4.0, original_length=4096),
            {"schedule": "ntk_by_parts"},
        ),
        "yarn": (
            scaling.yarn(128, 1e4, factor=16.0, original_length=4096),
            {"schedule": "yarn"},
        ),
        "yarn released": (
            scaling.yarn_released(128, 1e6, factor=4.0, original_length=32768),
            {"schedule": "yarn_released"},
        ),
        "llama3": (
            scaling.llama3(64, 5e5, factor=32.0, original_length=8192),
            {"schedule": "llama3"},
        ),
        "llama3 128": (
            scaling.llama3(128, 5e5, factor=8.0, original_length=8192),
            {"schedule": "llama3"},
        ),
        "p-RoPE": (
            scaling.proportional(128, 1e6, fraction=0.25),
            {"schedule": "proportional"},
        ),
        "clipped": (scaling.clipped(plain(128, 5e5), count=20), {}),
    }
    for name, (schedule, wanted) in schedules.items():
        for layout in LAYOUTS:
            found[f"{name} {layout}"] = (
                ours(schedule, layout),
                2 * len(schedule.frequencies),
                wanted,
            )
    return found


CORRECT = correct()


@pytest.mark.parametrize("name", CORRECT)
def test_nothing_is_wrong_with_what_is_right(name: str) -> None:
    function, dim, wanted = CORRECT[name]
    for meant in ({}, wanted):
        report = diagnose(function, dim, **meant)
        assert report.ok, str(report)
    for fact in ("layout", "base", "direction"):
        if fact in wanted and wanted.get("schedule") != "ntk_aware":
            value = report.facts[fact]
            assert value == (
                pytest.approx(wanted[fact], rel=1e-5)
                if fact == "base"
                else wanted[fact]
            )
    if "schedule" in wanted and wanted["schedule"] != "ntk_aware":
        assert wanted["schedule"] in report.facts["schedule"].split(" or ")
    assert max(map(len, str(report).splitlines())) <= 80


def test_lengths_that_change_the_schedule_are_no_fault() -> None:
    def dynamic(x: Tensor, positions: Tensor) -> Tensor:
        length = int(positions.max()) + 1
        return ours(
            scaling.dynamic_ntk(
                64, 1e4, factor=2.0, original_length=2048, length=length
            )
        )(x, positions)

    report = diagnose(dynamic, 64, schedule="dynamic_ntk", base=1e4)
    assert report.ok, str(report)
    assert report.facts["schedule"] == "dynamic_ntk"
    assert any("dynamic NTK" in note for note in report.notes)

    def longrope(x: Tensor, positions: Tensor) -> Tensor:
        lists = {
            "short_factors": [1.0 + i / 64 for i in range(32)],
            "long_factors": [1.0 + i for i in range(32)],
        }
        settings = {
            "factor": 8.0,
            "original_length": 4096,
            "length": int(positions.max()) + 1,
        }
        return ours(scaling.longrope(64, 1e4, **lists, **settings))(x, positions)

    report = diagnose(longrope, 64, schedule="longrope")
    assert report.ok, str(report)

    def short_ones(x: Tensor, positions: Tensor) -> Tensor:
        lists = {
            "short_factors": [1.0] * 32,
            "long_factors": [1.0 + i**2 for i in range(32)],
        }
        settings = {
            "factor": 8.0,
            "original_length": 4096,
            "length": int(positions.max()) + 1,
        }
        return ours(scaling.longrope(64, 1e4, **lists, **settings))(x, positions)

    report = diagnose(short_ones, 64, schedule="longrope", base=1e4)
    assert report.ok, str(report)
    expect("schedule-ignored", peer(64), 64, schedule="longrope", base=1e4)


def complex_numbers(x: Tensor, positions: Tensor) -> Tensor:
    """In the form of Meta's code, float32 throughout."""
    angles = positions[:, None].float() * inverse_frequencies(32, 500_000.0).float()
    rotation = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def rows_only(x: Tensor, positions: Tensor) -> Tensor:
    """Positions (B, T), as in transformers."""
    assert positions.dim() == 2
    return peer(32, 500_000.0)(x, positions)


def as_many_rows_as_x(x: Tensor, positions: Tensor) -> Tensor:
    assert positions.shape == (x.shape[0], x.shape[-2])
    return peer(32, 500_000.0)(x, positions)


def broadcast_along_heads(x: Tensor, positions: Tensor) -> Tensor:
    """What transformers' code makes of positions (T,); (B, T) is what it wants."""
    angles = positions[..., None] * inverse_frequencies(32, 500_000.0)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def tokens_only(x: Tensor, positions: Tensor) -> Tensor:
    assert x.dim() == 2
    return peer(32, 500_000.0)(x, positions)


def float32_only(x: Tensor, positions: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return peer(32, 500_000.0)(x, positions)


def very_short_table(x: Tensor, positions: Tensor) -> Tensor:
    return peer(32, 500_000.0, read=lambda p, x: torch.arange(40)[p])(x, positions)


def short_table(x: Tensor, positions: Tensor) -> Tensor:
    return peer(32, 500_000.0, read=lambda p, x: torch.arange(2048)[p])(x, positions)


@pytest.mark.parametrize(
    "function",
    [
        complex_numbers,
        rows_only,
        as_many_rows_as_x,
        broadcast_along_heads,
        tokens_only,
        float32_only,
        short_table,
        very_short_table,
    ],
)
def test_other_forms_of_what_is_right(function: Function) -> None:
    report = diagnose(function, 32, base=500_000.0)
    assert report.ok, str(report)
    swapped = diagnose(
        lambda x, p: complex_numbers(x.transpose(1, 2), p).transpose(1, 2),
        32,
        token_axis=1,
    )
    assert swapped.ok, str(swapped)


def test_halves_out_of_pairs_are_noted() -> None:
    half = peer(32)
    report = diagnose(lambda x, p: half(x.unflatten(-1, (-1, 2)).mT.flatten(-2), p), 32)
    assert report.ok, str(report)
    assert report.facts["layout"] == "interleaved in, half out"
    assert "DeepSeek-V3" in report.notes[0]


def test_the_page_shows_what_the_doctor_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "book" / "doctor.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|text)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "text"] * (
        len(blocks) // 2
    )
    assert len(blocks) >= 4
    scope: dict[str, Any] = {}
    for (_, code), (_, output) in zip(blocks[::2], blocks[1::2], strict=True):
        exec(code, scope)
        assert capsys.readouterr().out == output


# ---- faults of a rotation, anywhere

DIMS = st.sampled_from([16, 32, 48, 64, 96, 128])
BASES = st.floats(500, 5e6)
SIDES = st.sampled_from(LAYOUTS)


def other(layout: str) -> str:
    return LAYOUTS[1 - LAYOUTS.index(layout)]


def expect(code: str, function: Function, dim: int, **wanted: Any) -> None:
    report = diagnose(function, dim, **wanted)
    assert code in report.codes, str(report)
    assert report.findings[0].code == code, f"another finding comes first:\n{report}"
    assert max(map(len, str(report).splitlines())) <= 80


@given(DIMS, BASES, SIDES)
def test_conventions_that_were_not_meant(dim: int, base: float, layout: str) -> None:
    function = peer(dim, base, layout=layout)
    expect("layout", function, dim, layout=other(layout))
    expect("direction", function, dim, direction="clockwise")
    expect("base", function, dim, base=base * 1.01)
    expect("attention-factor", function, dim, attention_factor=1.2)
    expect("rotary-width", function, dim, rotary_dim=dim // 2)


@given(DIMS, BASES, SIDES)
def test_tables_and_pairs_of_different_layouts(
    dim: int, base: float, layout: str
) -> None:
    expect("tables-mixed", peer(dim, base, layout=layout, table=other(layout)), dim)


@given(DIMS, BASES, SIDES)
def test_split_one_way_and_joined_the_other(dim: int, base: float, layout: str) -> None:
    order = (
        torch.arange(dim).reshape(2, -1).T.flatten()
        if layout == "half"
        else torch.arange(dim).reshape(-1, 2).T.flatten()
    )
    function = peer(dim, base, layout=layout)
    expect(
        "order",
        lambda x, positions: function(x, positions)[..., order],
        dim,
        layout=layout,
    )


@given(DIMS, BASES)
@example(48, 1_116_262.0)  # a shortest length of 1e-4
def test_sine_with_one_sign(dim: int, base: float) -> None:
    def function(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * inverse_frequencies(dim, base)
        (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat((a * cos + b * sin, b * cos + a * sin), -1).to(x.dtype)

    expect("sine-sign", function, dim)
    assert (
        "lengths are multiplied by 0" in diagnose(function, dim).findings[0].seen
    )  # the determinant is cos 2α


def pairs_by(
    dim: int,
    base: float,
    rows: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Function:
    """The two halves of the result, from cosines, sines and the halves of x."""

    def function(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * inverse_frequencies(dim, base)
        return torch.cat(rows(angles.cos(), angles.sin(), *x.chunk(2, -1)), -1).to(
            x.dtype
        )

    return function


@given(DIMS, BASES)
def test_what_else_two_rows_can_be(dim: int, base: float) -> None:
    make = partial(pairs_by, dim, base)
    for function in (
        make(lambda c, s, a, b: (a * c + b * s, a * s - b * c)),
        make(
            lambda c, s, a, b: (b * c + a * s, a * c - b * s)
        ),  # the halves joined in the wrong order
    ):
        expect("reflection", function, dim)
        kept = diagnose(both(function, function), dim)
        assert kept.codes == {"reflection"}, str(kept)
    expect("norm", make(lambda c, s, a, b: (-a * c - b * s, b * c + a * s)), dim)
    assert (
        "sine is missing"
        in diagnose(make(lambda c, s, a, b: (a * c, b * c)), dim).findings[0].cause
    )
    assert (
        "is missing"
        in diagnose(make(lambda c, s, a, b: (-b * s, a * s)), dim).findings[0].cause
    )
    late = make(
        lambda c, s, a, b: (a * c - b * s.roll(-1, 0), b * c + a * s.roll(-1, 0))
    )
    assert "differs between pairs and positions" in diagnose(late, dim).findings[0].seen


@given(DIMS, BASES, SIDES)
def test_more_than_a_map_of_one_vector(dim: int, base: float, layout: str) -> None:
    rope, calls = peer(dim, base, layout=layout), count()
    mixed = {
        "added": lambda x, p: x + sinusoidal(p, dim, base, dtype=x.dtype),
        "remembers": lambda x, p: rope(x, p + next(calls)),
        "not-linear": lambda x, p: rope(
            x[..., -1:, :].expand_as(x), p
        ),  # the last token in place of each
    }
    for code, function in mixed.items():
        expect(code, function, dim)
    expect(
        "not-alike", lambda x, p: torch.cat((rope(x[:, :1], p), x[:, 1:]), 1), dim
    )  # the first head alone
    expect(
        "not-alike", lambda x, p: torch.cat((rope(x[:1], p), x[1:]), 0), dim
    )  # the first row alone


@given(st.sampled_from([16, 64, 96]), BASES, st.integers(0, 9))
def test_pairs_of_no_published_layout(dim: int, base: float, seed: int) -> None:
    order = torch.randperm(dim, generator=seeded(seed))
    rope, back = peer(dim, base), order.argsort()
    report = diagnose(lambda x, p: rope(x[..., order], p)[..., back], dim, base=base)
    assert report.ok, str(report)
    assert (report.facts["layout"], report.facts["direction"]) == ("other", None)
    assert (
        "layout"
        in diagnose(
            lambda x, p: rope(x[..., order], p)[..., back], dim, layout="half"
        ).codes
    )


@given(DIMS, BASES, SIDES, st.floats(1.01, 2))
def test_lengths_that_are_not_kept(
    dim: int, base: float, layout: str, factor: float
) -> None:
    expect("norm", peer(dim, base, layout=layout, factor=factor), dim)
    rope = peer(dim, base, layout=layout)
    expect(
        "norm",
        lambda x, positions: (
            rope(x, positions) * 0.99 ** positions[:, None].to(x.dtype)
        ),
        dim,
    )


@given(DIMS, BASES)
def test_the_factor_on_cosines_only(dim: int, base: float) -> None:
    def function(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * inverse_frequencies(dim, base)
        (a, b), cos, sin = x.chunk(2, -1), 1.3 * angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    expect("norm", function, dim)


@given(DIMS, BASES, SIDES)
def test_writing_into_x(dim: int, base: float, layout: str) -> None:
    rope = peer(dim, base, layout=layout)
    expect("in-place", lambda x, positions: x.copy_(rope(x, positions)), dim)


@given(DIMS, BASES)
def test_the_wrong_axis(dim: int, base: float) -> None:
    rope = peer(dim, base)
    swapped = lambda x, positions: rope(x.transpose(1, 2), positions).transpose(1, 2)  # noqa: E731
    expect("axis", swapped, dim)
    assert diagnose(swapped, dim, token_axis=1).ok


@given(DIMS, BASES, SIDES, st.integers(1, 50))
def test_positions_that_start_elsewhere(
    dim: int, base: float, layout: str, offset: int
) -> None:
    function = peer(
        dim, base, layout=layout, read=lambda positions, x: positions + offset
    )
    expect("first-position", function, dim)
    far = peer(
        dim,
        base,
        layout=layout,
        read=lambda positions, x: positions + 40_000 * offset,
        dtype=torch.float64,
    )
    for right, first in ((function, offset), (far, 40_000 * offset)):
        report = diagnose(right, dim, offset=first)
        assert report.ok, str(report)


@given(DIMS, BASES, SIDES)
def test_cache_offsets(dim: int, base: float, layout: str) -> None:
    make = partial(peer, dim, base, layout=layout)
    expect("offset-ignored", make(read=lambda p, x: torch.arange(x.shape[-2])), dim)
    expect(
        "cache-offset", make(read=lambda p, x: p + (p[0] > 0)), dim
    )  # counts the token about to be processed
    expect("cache-offset", make(read=lambda p, x: p + p[0]), dim)  # advanced twice
    expect(
        "cache-offset", make(read=lambda p, x: p + (len(p) == 1)), dim
    )  # wrong in decoding only
    expect(
        "order-ignored",
        make(read=lambda p, x: p[..., :1] + torch.arange(p.shape[-1])),
        dim,
    )


@given(DIMS, BASES, SIDES, st.integers(100, 4000))
@example(
    96, 39_695.0, "interleaved", 100
)  # the slowest pair rotates by more than half a turn where int16 wraps
def test_positions_that_are_misread(
    dim: int, base: float, layout: str, length: int
) -> None:
    make = partial(peer, dim, base, layout=layout)
    expect("far-positions", make(read=lambda p, x: p.clamp(max=length)), dim)
    expect("far-positions", make(read=lambda p, x: p % length), dim)
    expect("far-positions", make(read=lambda p, x: p.to(torch.uint8)), dim)
    expect(
        "length-dependent",
        make(read=lambda p, x: 31 * p.double() / p.max().clamp(min=1)),
        dim,
    )
    expect("uneven", make(read=lambda p, x: (1 + p.double()).log()), dim)
    expect("uneven", make(read=lambda p, x: p * p), dim)
    for read in (
        lambda p, x: p.to(torch.int16),
        lambda p, x: p.clamp(max=32_767),
    ):  # off by whole turns of every pair
        expect("far-positions", make(read=read), dim)
    scaled = diagnose(
        make(read=lambda p, x: torch.where(p < length, p, p / 8), dtype=torch.float64),
        dim,
    )
    assert "scaled beyond" in scaled.findings[0].cause, str(scaled)
    constant = diagnose(make(read=lambda p, x: p.clamp(max=length)), dim)
    assert constant.findings[0].cause == "Positions are clamped to a table's length."
    zero = diagnose(make(read=lambda p, x: p * (p < length)), dim)
    assert "taken for 0" in zero.findings[0].cause, str(zero)
    rope = make()
    expect("far-norm", lambda x, p: rope(x, p) * (p < length)[:, None], dim)
    expect("not-finite", lambda x, p: rope(x, p) / (p < length)[:, None], dim)
    late = diagnose(lambda x, p: rope(x, p) / (p < length)[:, None], dim).findings[0]
    assert "float16" not in late.cause
    expect(
        "length-dependent", make(read=lambda p, x: p.amax(-1, keepdim=True) - p), dim
    )
    expect("length-dependent", make(read=lambda p, x: p.flip(-1)), dim)
    for read, words in (
        (lambda p, x: p.sort(-1).values, "sorted"),
        (
            lambda p, x: p.amin(-1, keepdim=True) + torch.arange(p.shape[-1]),
            "Only the smallest",
        ),
    ):
        found = diagnose(make(read=read), dim).findings[0]
        assert found.code == "order-ignored"
        assert words in found.cause
    report = diagnose(make(read=lambda p, x: p - p[..., :1]), dim)
    assert report.codes == {"offset-ignored"}, str(
        report
    )  # and not what follows from it


@given(DIMS, BASES, SIDES)
def test_frequencies_out_of_order_or_in_other_units(
    dim: int, base: float, layout: str
) -> None:
    make, right = (
        partial(peer, dim, base, layout=layout),
        inverse_frequencies(dim, base),
    )
    expect("pair-order", make(frequencies=right.flip(0)), dim)
    expect("pair-order", make(frequencies=right.roll(1)), dim)
    if 1 / right[2] < math.pi:  # three pairs must be told from their aliases
        expect("pair-order", make(frequencies=1 / right, dtype=torch.float64), dim)
    for factor in (math.pi, 2 * math.pi):
        expect(
            "positions-multiplied",
            make(frequencies=right * factor, dtype=torch.float64),
            dim,
        )
        expect("positions-multiplied", partial(table, frequencies=right * factor), dim)
    expect("degrees", make(frequencies=right * math.pi / 180), dim)
    report = diagnose(make(frequencies=right * 180 / math.pi, dtype=torch.float64), dim)
    assert "converted to degrees" in report.findings[0].cause
    assert (
        "rotated twice"
        in diagnose(lambda x, p: make()(make()(x, p), p), dim).findings[0].cause
    )


@given(st.sampled_from([24, 64, 128]), BASES)
def test_pairs_over_the_head_where_some_channels_turn(dim: int, base: float) -> None:
    frequencies = torch.cat(
        (inverse_frequencies(dim // 2, base), torch.zeros(dim // 4))
    )
    report = diagnose(
        peer(dim, base, frequencies=frequencies), dim, rotary_dim=dim // 2, base=base
    )
    assert report.codes == {"rotary-width"}, str(report)
    assert f"(i, i + {dim // 4}) was expected" in report.findings[0].seen


# 1e6^(20/24) is 100,000: with its first frequency twice, a table's last one is round.
@example(dim=24, base=1e6, layout="half", pair=1)
@given(st.sampled_from([24, 64, 128]), BASES, SIDES, st.integers(1, 11))
def test_one_frequency_that_is_off(
    dim: int, base: float, layout: str, pair: int
) -> None:
    right = inverse_frequencies(dim, base)
    twice = right.clone()
    twice[pair] = right[pair - 1]
    front = torch.cat((right[:1], right[:-1]))
    for frequencies, place in ((twice, pair), (front, 0)):
        report = diagnose(peer(dim, base, layout=layout, frequencies=frequencies), dim)
        assert report.codes == {"stray-pair"}, str(report)
        assert f"pair {place} rotates" in report.findings[0].seen
        assert diagnose(partial(table, frequencies=frequencies), dim).codes == {
            "stray-pair"
        }
    expect(
        "base",
        peer(dim, base, layout=layout, frequencies=right + 0.001),
        dim,
        base=base,
    )
    still = torch.cat((torch.zeros(1), right[1:]))
    expect("pair-order", peer(dim, base, layout="half", frequencies=still), dim)
    assert "p-RoPE" not in str(
        diagnose(peer(dim, base, layout="half", frequencies=still), dim)
    )


@given(DIMS, BASES, SIDES, st.sampled_from(BOTH))
def test_cosines_for_sines_signs_and_results(
    dim: int, base: float, layout: str, dtype: torch.dtype
) -> None:
    rope = peer(dim, base, layout=layout, dtype=torch.float64)
    report = diagnose(lambda x, p: -rope(x, p), dim)
    assert report.codes == {"first-position"}, str(report)
    assert "signs" in report.findings[0].cause

    def exchanged(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * inverse_frequencies(dim, base)
        (a, b), cos, sin = x.chunk(2, -1), angles.sin(), angles.cos()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    report = diagnose(exchanged, dim)
    assert report.codes == {"first-position"}, str(report)
    assert "exchanged" in report.findings[0].cause
    expect("low-precision", lambda x, p: rope(x.to(dtype), p).to(x.dtype), dim)


def test_the_last_channels_alone() -> None:
    rope = peer(16)
    report = diagnose(
        lambda x, p: torch.cat((x[..., :16], rope(x[..., 16:], p)), -1), 32
    )
    assert report.ok
    assert "latent attention" in report.notes[0]


@given(DIMS, BASES, SIDES, st.sampled_from([0, 1]))
def test_one_vector_of_positions_for_a_padded_batch(
    dim: int, base: float, layout: str, row: int
) -> None:
    expect(
        "padding",
        peer(dim, base, layout=layout, read=lambda p, x: p if p.dim() == 1 else p[row]),
        dim,
    )


@given(DIMS, BASES, SIDES, st.sampled_from(BOTH))
def test_low_precision(dim: int, base: float, layout: str, dtype: torch.dtype) -> None:
    make = partial(peer, dim, base, layout=layout)
    expect(
        "low-precision", make(read=lambda p, x: p.to(x.dtype)), dim
    )  # in the query's dtype
    expect(
        "low-precision", make(read=lambda p, x: p.to(dtype)), dim
    )  # in the model's, whatever the query's
    expect(
        "low-precision", lambda x, p: make(dtype=x.dtype)(x, p), dim
    )  # the angles in the query's dtype

    def rounded(x: Tensor, p: Tensor) -> Tensor:
        angles = (p[:, None] * inverse_frequencies(dim, base)).to(dtype).double()
        (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    report = diagnose(rounded, dim)
    assert report.codes == {"low-precision"}, str(report)
    assert not report.notes
    report = diagnose(make(read=lambda p, x: (p + 1).to(dtype)), dim)
    assert report.codes == {"first-position", "low-precision"}, str(report)


@given(DIMS, BASES, SIDES, st.sampled_from(BOTH))
def test_a_buffer_that_was_cast(
    dim: int, base: float, layout: str, dtype: torch.dtype
) -> None:
    cast = inverse_frequencies(dim, base).to(dtype).double()
    expect("buffer-cast", peer(dim, base, layout=layout, frequencies=cast), dim)


@given(DIMS, BASES, SIDES, st.integers(2, 16))
def test_linear_interpolation(dim: int, base: float, layout: str, factor: int) -> None:
    make, wanted = (
        partial(peer, dim, base, layout=layout),
        {"schedule": "linear_interpolation", "factor": float(factor)},
    )
    assert diagnose(
        make(read=lambda p, x: p.double() / factor), dim, base=base, **wanted
    ).ok
    expect("schedule-ignored", make(), dim, **wanted)
    expect("schedule-ignored", make(), dim, factor=float(factor))
    expect("positions-multiplied", make(read=lambda p, x: p * factor), dim)
    expect(
        "factor-twice", make(read=lambda p, x: p.double() / factor**2), dim, **wanted
    )


@given(DIMS, st.floats(5000, 5e6), SIDES, st.floats(1.5, 32))
def test_ntk(dim: int, base: float, layout: str, factor: float) -> None:
    wanted = {"schedule": "ntk_aware", "factor": factor, "base": base}
    assert diagnose(
        ours(scaling.ntk_aware(dim, base, factor=factor), layout), dim, **wanted
    ).ok
    expect("exponent-dropped", peer(dim, base * factor, layout=layout), dim, **wanted)
    expect("schedule-ignored", peer(dim, base, layout=layout), dim, **wanted)
    both_ways = scaling.ntk_aware(dim, base, factor=factor).frequencies / factor
    expect("schedule", peer(dim, frequencies=both_ways, layout=layout), dim, **wanted)


@given(DIMS, BASES, SIDES, st.floats(2, 8))
def test_a_table_that_remembers(
    dim: int, base: float, layout: str, factor: float
) -> None:
    longest = 0

    def function(x: Tensor, positions: Tensor) -> Tensor:
        nonlocal longest
        longest = max(longest, int(positions.max()) + 1)
        return ours(
            scaling.dynamic_ntk(
                dim, base, factor=factor, original_length=512, length=longest
            ),
            layout,
        )(x, positions)

    assert "remembers" in diagnose(function, dim).codes


@given(DIMS, BASES, SIDES)
def test_a_cache_with_the_length_for_key(dim: int, base: float, layout: str) -> None:
    cache: dict[int, Tensor] = {}
    expect(
        "cache-key",
        peer(
            dim, base, layout=layout, read=lambda p, x: cache.setdefault(p.shape[-1], p)
        ),
        dim,
    )


@given(DIMS, BASES, SIDES, st.floats(1.2, 50), st.integers(100, 6000))
@example(16, 500.0, "interleaved", 2.0, 501)  # within the positions of one look
def test_a_base_that_changes(
    dim: int, base: float, layout: str, times: float, length: int
) -> None:
    near, far = peer(dim, base, layout=layout), peer(dim, base * times, layout=layout)

    def function(x: Tensor, positions: Tensor) -> Tensor:
        return (far if int(positions.max()) >= length else near)(x, positions)

    report = diagnose(function, dim)
    assert report.findings[0].code == "base-changes", str(report)
    assert report.facts["angles"] == f"different from position {length:,} on"


@given(st.sampled_from([32, 64, 96, 128]), st.floats(2000, 5e6), SIDES)
def test_exponents(dim: int, base: float, layout: str) -> None:
    i, make = (
        torch.arange(dim // 2, dtype=torch.float64),
        partial(peer, dim, layout=layout),
    )
    slips = {
        "exponent-shifted": (2 * i + 1) / dim,
        "exponent-halved": i / dim,
        "exponent-doubled": 4 * i / dim,
        "exponent-divisor": i / (dim // 2 - 1),
    }
    for code, exponent in slips.items():
        expect(code, make(frequencies=base**-exponent), dim, base=base)
    expect(
        "exponent-shifted",
        make(frequencies=base ** (-2 * (i + 1) / dim)),
        dim,
        base=base,
    )
    expect("exponent-floored", make(frequencies=torch.exp(-i)), dim, base=base)
    expect(
        "exponent-width",
        make(width=dim // 2, frequencies=base ** (-2 * i[: dim // 4] / dim)),
        dim,
        base=base,
    )
    expect(
        "exponent-width", make(frequencies=base ** (-2 * i / (8 * dim))), dim, base=base
    )  # the model's width
    report = diagnose(make(base=10_000.0), dim, base=base * 10)
    assert "10,000 is used" in report.findings[0].cause


@given(
    SIDES,
    st.sampled_from([4.0, 8.0, 16.0, 32.0, 40.0]),
    st.sampled_from([(64, 1e4), (128, 1e4), (128, 5e5)]),
)
def test_yarn(layout: str, factor: float, size: tuple[int, float]) -> None:
    dim, base = size
    right = scaling.yarn_released(dim, base, factor=factor, original_length=4096)
    a = 0.1 * math.log(factor) + 1
    assert right.attention_factor == pytest.approx(a)
    report = diagnose(
        ours(right, layout), dim, schedule="yarn_released", factor=factor, base=base
    )
    assert report.ok, str(report)
    expect("factor-twice", ours(Schedule(right.frequencies, a * a), layout), dim)
    expect(
        "attention-factor", ours(right, layout), dim, attention_factor=1.0
    )  # DeepSeek's quotient
    expect(
        "schedule-ignored",
        ours(Schedule(inverse_frequencies(dim, base), a), layout),
        dim,
        schedule="yarn_released",
    )
    plain_ = inverse_frequencies(dim, base)
    inverted = (
        plain_ / factor + plain_ - right.frequencies
    )  # β_fast and β_slow exchanged
    expect("ramp-inverted", ours(Schedule(inverted, a), layout), dim)
    ramp = (right.frequencies / plain_ - 1 / factor) / (1 - 1 / factor)
    mixed = (
        ramp * scaling.ntk_aware(dim, base, factor=factor).frequencies
        + (1 - ramp) * plain_ / factor
    )
    expect("ntk-in-ramp", ours(Schedule(mixed, a), layout), dim)


@given(st.sampled_from([64, 128]), st.floats(1e5, 5e6), SIDES, st.floats(2, 40))
def test_llama3(dim: int, base: float, layout: str, factor: float) -> None:
    right = scaling.llama3(dim, base, factor=factor, original_length=8192)
    report = diagnose(
        ours(right, layout), dim, schedule="llama3", factor=factor, base=base
    )
    assert report.ok, str(report)
    expect(
        "schedule-ignored",
        peer(dim, base, layout=layout),
        dim,
        schedule="llama3",
        factor=factor,
    )
    expect("factor", ours(right, layout), dim, schedule="llama3", factor=2 * factor)
    plain_ = inverse_frequencies(dim, base)
    cut = torch.where(
        plain_ * 8192 < 2 * math.pi, plain_ / factor, plain_
    )  # the two factors exchanged: no ramp
    expect(
        "schedule", peer(dim, layout=layout, frequencies=cut), dim, schedule="llama3"
    )
    rotated = diagnose(
        ours(Schedule(right.frequencies, 1.25), layout), dim, schedule="llama3"
    )
    assert "no attention factor belongs" in rotated.findings[0].seen, str(rotated)


def test_lists_of_frequencies_have_no_base() -> None:
    w = inverse_frequencies(64) / (
        1 + torch.linspace(0, 5, 32, dtype=torch.float64) ** 1.5
    )
    report = diagnose(peer(64, frequencies=w, factor=1.19), 64)
    assert report.ok, str(report)
    assert (
        report.facts["schedule"],
        report.facts["base"],
        report.facts.get("factor"),
    ) == ("free", None, None)


# ---- tables


@given(st.sampled_from([16, 32, 100, 256]), st.floats(500, 1e6))
def test_tables_that_are_right(dim: int, base: float) -> None:
    for layout in ("interleaved", "concatenated"):
        report = diagnose(
            partial(sinusoidal, dim=dim, base=base, layout=layout),
            dim,
            layout=layout,
            base=base,
        )
        assert report.ok, str(report)
        assert report.facts["first in a pair"] == "sine"
    odd = diagnose(partial(sinusoidal, dim=dim + 1, base=base), dim + 1, base=base)
    assert odd.ok, str(odd)
    swapped = diagnose(
        lambda p: sinusoidal(p, dim, base, layout="concatenated").roll(dim // 2, -1),
        dim,
        base=base,
    )
    assert swapped.ok, str(swapped)
    assert swapped.facts["first in a pair"] == "cosine"


def test_tensor2tensor_is_named() -> None:
    report = diagnose(partial(sinusoidal_tensor2tensor, dim=64), 64, base=10_000.0)
    assert report.ok, str(report)
    assert "tensor2tensor" in report.facts["form"]


def table(
    positions: Tensor, frequencies: Tensor, *, late: Tensor | None = None
) -> Tensor:
    angles = positions[:, None].double() * frequencies
    cosines = angles if late is None else positions[:, None].double() * late
    return torch.stack((angles.sin(), cosines.cos()), -1).flatten(-2)


def test_one_pair_has_both_layouts() -> None:
    for layout in ("interleaved", "concatenated"):
        report = diagnose(partial(sinusoidal, dim=2), 2, layout=layout)
        assert report.ok, str(report)


@given(st.sampled_from([16, 64]), st.floats(500, 1e6), st.sampled_from(BOTH))
@example(16, 140_006.0, torch.bfloat16)
def test_signs_and_roundings_of_tables(
    dim: int, base: float, dtype: torch.dtype
) -> None:
    right = partial(
        sinusoidal, dim=dim, base=base, layout="concatenated", dtype=torch.float64
    )
    signs = torch.cat((-torch.ones(dim // 2), torch.ones(dim // 2)))
    assert diagnose(lambda p: signs * right(p), dim).codes == {"sine-sign"}
    report = diagnose(lambda p: -signs * right(p), dim)
    assert "minus" in report.findings[0].cause, str(report)
    assert diagnose(lambda p: right(p).to(dtype), dim).codes == {"low-precision"}
    for read in (lambda p: p.to(torch.int16), lambda p: p.clamp(max=5000)):
        assert diagnose(lambda p: right(read(p)), dim).codes == {"far-positions"}  # noqa: B023


@given(
    st.sampled_from([16, 32, 64, 256]),
    st.floats(500, 1e6),
    st.integers(1, 9),
    st.sampled_from(BOTH),
)
def test_tables_that_are_wrong(
    dim: int, base: float, offset: int, dtype: torch.dtype
) -> None:
    right = inverse_frequencies(dim, base)
    index = torch.arange(dim // 2, dtype=torch.float64)
    wrong = {
        "first-position": lambda p: table(p + offset, right),
        "offset-ignored": lambda p: table(torch.arange(len(p)), right),
        "low-precision": lambda p: table(p.to(dtype), right),
        "exponent-halved": lambda p: table(p, right.sqrt()),
        "exponent-floored": lambda p: table(p, torch.exp(-2 * index)),
        "exponent-shifted": lambda p: table(p, base ** (-(2 * index + 1) / dim)),
        "tables-mixed": lambda p: table(
            p, right, late=base ** (-(2 * index + 1) / dim)
        ),
    }
    for code, function in wrong.items():
        expect(code, function, dim, base=base)
    expect("layout", lambda p: table(p, right), dim, layout="concatenated")


def test_tables_of_other_positions_and_lengths() -> None:
    right = inverse_frequencies(32)
    for code, function in {
        "far-positions": lambda p: table(p.clamp(max=511), right),
        "length-dependent": lambda p: table(p / p.max().clamp(min=1), right),
        "order-ignored": lambda p: table(p[0] + torch.arange(len(p)), right),
        "pair-order": lambda p: table(p, right.flip(0)),
        "zero-row": lambda p: table(p, right) * (p != 1)[:, None],
        "tables-mixed": lambda p: table(p, right, late=right + math.pi / 2),
    }.items():
        report = diagnose(function, 32)
        assert report.codes == {code}, str(report)
    scaled = diagnose(lambda p: 8 * table(p, right), 32, base=10_000.0)
    assert scaled.ok, str(scaled)
    assert scaled.facts["length of a pair"] == pytest.approx(8)


def test_an_odd_table_that_does_not_fit() -> None:
    def function(positions: Tensor) -> Tensor:
        result = torch.zeros(len(positions), 5)
        angles = positions[:, None] * 10_000.0 ** (-torch.arange(0, 5, 2) / 5)
        result[:, ::2], result[:, 1::2] = angles.sin(), angles.cos()
        return result

    report = diagnose(function, 5, kind="table")
    assert report.codes == {"refused"}
    assert "odd width" in report.findings[0].cause


# ---- biases


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 20, 32])
def test_alibi_right_and_wrong(heads: int) -> None:
    right = partial(alibi, slopes=alibi_slopes(heads))
    report = diagnose(right)
    assert report.ok, str(report)
    assert report.facts["form"] == "ALiBi"
    key_only = diagnose(
        lambda q, k: (alibi_slopes(heads)[:, None, None] * k).expand(-1, len(q), -1)
    )
    assert key_only.ok, str(key_only)
    plain_ = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    wrong = {
        "sign": lambda q, k: -right(q, k),
        "bias-under-cache": lambda q, k: right(torch.arange(len(q)), k),
    }
    if heads & (heads - 1):
        wrong |= {"slopes": partial(alibi, slopes=plain_)}
        for dtype in BOTH:
            cast = diagnose(
                partial(alibi, slopes=alibi_slopes(heads).to(dtype).double())
            )
            assert cast.codes == {"slopes-cast"}, str(cast)
        ordered = diagnose(
            partial(alibi, slopes=alibi_slopes(heads).sort(descending=True).values)
        )
        assert ordered.codes == {"slopes"}, str(ordered)
    wrong["clamped"] = lambda q, k: right(
        (q[:, None] - k).clamp(max=700).flatten(), torch.tensor([0])
    ).unflatten(2, (len(q), len(k)))[..., 0]
    wrong["far-positions"] = lambda q, k: right(
        ((q[:, None] - k) % 1024).flatten(), torch.tensor([0])
    ).unflatten(2, (len(q), len(k)))[..., 0]
    for code, function in wrong.items():
        assert diagnose(function).codes == {code}, f"{code}: {diagnose(function)}"
    for times, words in (
        (2 ** (8 / heads), "starts at 0"),
        (0.125, "before the 1/√d"),
        (3.3, "something else"),
    ):
        assert (
            words
            in diagnose(partial(alibi, slopes=times * alibi_slopes(heads)))
            .findings[0]
            .cause
        )
    moved = diagnose(lambda q, k: right(q, k) + 3)
    assert moved.ok, str(moved)
    assert not any("rewarded" in note for note in moved.notes)


def test_alibi_that_counts_slots() -> None:
    def slots(q: Tensor, k: Tensor) -> Tensor:
        m, n = torch.arange(len(q)) + q[0], torch.arange(len(k)) + k[0]
        return alibi(m, n, alibi_slopes(4))

    assert diagnose(slots).codes == {"padding"}


@given(
    st.booleans(),
    st.sampled_from([8, 16, 32, 64]),
    st.sampled_from([40, 64, 128, 200, 256]),
)
@example(False, 64, 40)  # a bucket for each distance, and none beyond
@example(False, 64, 64)  # some buckets are empty
def test_t5_right(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    sizes = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": max_distance,
    }
    bias = T5Bias(4, std=1.0, generator=seeded(0), **sizes)
    for function in (bias, lambda r: t5_bucket(r, **sizes)):
        for wanted in ({}, sizes):
            report = diagnose(function, **wanted)
            assert report.ok, str(report)


def buckets(
    r: Tensor,
    *,
    bidirectional: bool,
    size: int,
    longest: int,
    clamp: bool = True,
    halve: int = 2,
    sign: int = 1,
) -> Tensor:
    """T5's buckets as in its code, with switches for what is easily dropped."""
    r, offset = sign * r, torch.zeros_like(r)
    if bidirectional:
        size //= 2
        offset, distance = size * (r > 0), r.abs()
    else:
        distance = (-r).clamp(min=0)
    exact = size // halve
    far = (
        exact
        + (
            torch.log(distance.clamp(min=1) / exact)
            / math.log(longest / exact)
            * (size - exact)
            + 1e-9
        ).long()
    )
    return offset + torch.where(
        distance < exact, distance, far.clamp(max=size - 1) if clamp else far
    )


@given(st.booleans(), st.sampled_from([16, 32, 64]), st.sampled_from([64, 128, 256]))
def test_t5_wrong(bidirectional: bool, size: int, longest: int) -> None:
    sizes = {"bidirectional": bidirectional, "size": size, "longest": longest}
    wanted = {
        "bidirectional": bidirectional,
        "num_buckets": size,
        "max_distance": longest,
    }
    assert diagnose(partial(buckets, **sizes), **wanted).ok
    dropped = diagnose(partial(buckets, clamp=False, **sizes), **wanted)
    assert dropped.codes & {"bucket-clamp", "bucket-range"}, str(dropped)
    assert not diagnose(partial(buckets, clamp=False, **sizes)).ok
    distances, halved = torch.arange(-1024, 1025), partial(buckets, halve=4, **sizes)
    if not torch.equal(
        halved(distances), buckets(distances, **sizes)
    ):  # where 2^(1/8) a bucket, it is the same
        assert not diagnose(halved, **wanted).ok
    assert "sign" in diagnose(partial(buckets, sign=-1, **sizes), **wanted).codes
    assert (
        "direction"
        in diagnose(partial(buckets, **sizes), bidirectional=not bidirectional).codes
    )
    whole = sizes | {"size": 2 * size}
    assert not diagnose(partial(buckets, **whole), **wanted).ok
    bias = T5Bias(
        2, std=1.0, bidirectional=bidirectional, num_buckets=size, max_distance=longest
    )
    off = diagnose(lambda r: buckets(r + 1, **sizes), **wanted)
    assert off.codes & {"bucket-shifted", "direction"}, str(off)
    under_cache = diagnose(lambda q, k: bias(torch.arange(len(q)), k))
    assert "bias-under-cache" in under_cache.codes, str(under_cache)


def test_masks_and_clipped_distances_are_no_buckets() -> None:
    def seen(last: int) -> Callable[[Tensor, Tensor], Tensor]:
        hidden = lambda q, k: (k > q[:, None]) | (k <= q[:, None] - last)  # noqa: E731
        return lambda q, k: torch.zeros(2, len(q), len(k)).masked_fill(
            hidden(q, k), float("-inf")
        )

    for last in (9, 10_000):
        report = diagnose(seen(last))
        assert report.ok, str(report)
        assert report.facts["form"].startswith("a mask")
    assert diagnose(lambda q, k: seen(10_000)(k, q).mT).codes == {"not-finite"}
    weights = torch.randn(2, 33, generator=seeded(0))
    clipped = lambda q, k: weights[:, (k - q[:, None]).clamp(-16, 16) + 16]  # noqa: E731
    report = diagnose(clipped)
    assert report.ok, str(report)
    assert diagnose(clipped, num_buckets=32).codes == {"no-buckets"}
    t5 = T5Bias(2, std=1.0, bidirectional=False, generator=seeded(0))
    for hidden in (-1e9, float("-inf")):

        def causal_t5(q: Tensor, k: Tensor, hidden: float = hidden) -> Tensor:
            return t5(q, k).masked_fill(k > q[:, None], hidden)

        masked = diagnose(causal_t5, bidirectional=False)
        assert masked.ok, str(masked)


@given(st.booleans(), st.sampled_from([16, 32, 64]))
def test_the_words_on_edges_are_true(bidirectional: bool, size: int) -> None:
    sizes, wanted = (
        {"bidirectional": bidirectional, "longest": 128},
        {"max_distance": 128, "num_buckets": size},
    )
    narrow = diagnose(
        partial(buckets, size=size // 2, **sizes), bidirectional=bidirectional, **wanted
    )
    exact = size // (8 if bidirectional else 4)
    assert f"{exact} of them for one distance each" in narrow.findings[0].seen, str(
        narrow
    )
    assert (
        "halved twice" if bidirectional else "though there is one"
    ) in narrow.findings[0].cause


def test_far_distances_that_are_rounded() -> None:
    for heads in (8, 12):
        slopes = alibi_slopes(heads)[:, None, None]
        distances = lambda q, k, s=slopes: -s * (q[:, None] - k).abs().bfloat16()  # noqa: E731
        assert diagnose(distances).codes == {"low-precision"}
        products = lambda q, k, s=slopes: s.bfloat16() * k.bfloat16()  # noqa: E731  # Falcon's
        assert diagnose(products).codes == {"low-precision"}


def test_biases_whose_positions_are_not_read() -> None:
    bias = T5Bias(2, std=1.0, bidirectional=True, generator=seeded(0))
    report = diagnose(lambda q, k: bias(q, torch.arange(len(k))))
    assert report.codes == {"not-relative"}, str(report)
    assert "those of key positions alone change nothing" in report.findings[0].seen
    row = diagnose(lambda q, k: (alibi_slopes(4)[:, None] * k)[:, None])  # (H, 1, Tk)
    assert row.ok, str(row)
    each = diagnose(
        lambda q, k: -(1.0 + (q[:, None] - k).abs()).log()[None], num_buckets=32
    )
    assert each.codes == {"no-buckets"}, str(each)


def test_buckets_without_the_sign_of_the_distance() -> None:
    def unsigned(r: Tensor) -> Tensor:
        sizes = {"num_buckets": 16, "max_distance": 128}
        return t5_bucket(-r.abs(), bidirectional=False, **sizes)

    report = diagnose(unsigned, bidirectional=True, num_buckets=32, max_distance=128)
    assert "share buckets" in report.findings[0].seen, str(report)


# ---- query and key


def both(for_q: Function, for_k: Function) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda q, k, positions: (for_q(q, positions), for_k(k, positions))


def test_query_and_key_that_belong_together() -> None:
    half = ours(plain(32), "half")
    for function in (
        both(half, half),
        RoPE(inverse_frequencies(32), layout="half").transform,
    ):
        report = diagnose(function, 32, layout="half", base=10_000.0)
        assert report.ok, str(report)
        assert (report.kind, report.facts["key"]) == ("pair", "rotated as the query")
    xpos = diagnose(XPos(inverse_frequencies(32)).transform, 32)
    assert xpos.ok, str(xpos)


@settings(max_examples=4)
@given(DIMS, BASES, SIDES)
def test_query_and_key_that_do_not(dim: int, base: float, layout: str) -> None:
    right = peer(dim, base, layout=layout)
    wrong: dict[str, Function] = {
        "is not": lambda x, positions: x,
        "first position": peer(dim, base, layout=layout, read=lambda p, x: p + 1),
        "direction": peer(dim, base, layout=layout, sign=-1.0),
        "layout": peer(dim, base, layout=other(layout)),
        "base": peer(dim, base * 1.5, layout=layout),
    }
    for words, function in wrong.items():
        for pair in (both(right, function), both(function, right)):
            report = diagnose(pair, dim)
            assert report.findings[0].code == "query-and-key", str(report)
            assert words in report.findings[0].seen
            assert max(map(len, str(report).splitlines())) <= 80
    exchanged: list[Callable[..., Any]] = [
        lambda q, k, p: (right(k, p), right(q, p)),
        lambda q, k, at_q, at_k: (right(q, at_k), right(k, at_q)),
        lambda q, k, at_q, at_k: (right(q, at_q), right(k, at_q)),
    ]
    for pair in exchanged:
        assert diagnose(pair, dim).codes == {"exchanged"}
    assert diagnose(lambda q, k, p: (right(q, p), k.copy_(right(k, p))), dim).codes == {
        "in-place"
    }
    rounded = peer(dim, base, layout=layout, read=lambda p, x: p.bfloat16())
    assert diagnose(both(right, rounded), dim).findings[0].seen.startswith("The key: ")


# ---- where the book explains it


def headings(page: str) -> list[str]:
    path = ROOT / f"{page}.ipynb"
    if not path.exists():
        return re.findall(
            r"^#+ (.*)$",
            (ROOT / f"{page}.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
    ]
    return [
        found
        for text in texts
        for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("key", REFERENCES)
def test_places_exist(key: str) -> None:
    place = REFERENCES[key]
    assert f"- file: {place.page}\n" in (ROOT / "_toc.yml").read_text(encoding="utf-8")
    title, *others = headings(place.page)
    assert title.split(" · ")[-1] == place.title
    assert others.count(place.heading) == 1


def test_every_place_is_used_and_every_schedule_has_one() -> None:
    folder = ROOT / "posenc_lib" / "doctor"
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in folder.glob("*.py")
        if path.name != "report.py"
    )
    schedules = set(WORDS["schedule"]) - {"none"}
    assert [
        key for key in REFERENCES if f'"{key}"' not in code and key not in schedules
    ] == []
    assert schedules <= set(REFERENCES)


# ---- the functions of the book's chapters


def chapter(name: str) -> dict[str, Any]:
    """A notebook's imports and functions, without running anything else.

    `d`, `f64` and `w` as it sets them.
    """
    cells = json.loads(
        (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    )["cells"]
    scope: dict[str, Any] = {
        "d": 64,
        "f64": torch.float64,
        "w": inverse_frequencies(64),
    }
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("# Setup"):
            continue
        kept = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef | ast.ImportFrom | ast.Import)
        ]
        exec(compile(ast.Module(kept, []), name, "exec"), scope)
    return scope


def verdict(
    function: Callable[..., Any], head_dim: int | None = 64, **wanted: Any
) -> set[str]:
    return diagnose(function, head_dim, **wanted).codes


def test_rotations_of_chapter_10() -> None:
    here = chapter("10_rope_core_idea")
    here |= {
        "rope": RoPE(inverse_frequencies(64)),
        "half": RoPE(inverse_frequencies(64), layout="half"),
    }
    meant = {"direction": "counter-clockwise", "base": 10_000.0}
    half, neighbours = meant | {"layout": "half"}, meant | {"layout": "interleaved"}
    double = {
        name: lambda x, positions, f=here[name]: f(x.double(), positions).to(x.dtype)
        for name in ("interleaved_pairs", "half_pairs")
    }
    assert verdict(here["rotate"], **half) == set()
    assert verdict(double["half_pairs"], **half) == set()
    assert verdict(double["interleaved_pairs"], **neighbours) == set()
    assert verdict(double["half_pairs"], **neighbours) == {"layout"}
    assert verdict(here["mixed_table"], **neighbours) == {"tables-mixed"}
    assert verdict(here["rope_a"], **neighbours) == {"direction"}
    assert verdict(here["rope_b"], **neighbours) == {"tables-mixed"}
    assert verdict(here["rope_c"], **neighbours) == {"exponent-halved"}

    def late(x: Tensor, positions: Tensor) -> Tensor:
        rotation = here["base_changes"](positions, torch.float64)
        return rotation(x.double()).to(x.dtype)

    assert verdict(late, **neighbours) == {"base-changes"}
    assert verdict(
        both(double["interleaved_pairs"], double["half_pairs"]), **neighbours
    ) == {
        "query-and-key",
        "layout",
    }
    here["check_half"](here["rotate"])
    for wrong in (
        double["interleaved_pairs"],
        here["rope_b"],
        lambda x, positions: here["rotate"](x, positions + 1),
    ):
        with pytest.raises(AssertionError, match="Read: "):
            here["check_half"](wrong)
    here["broken"] = {name: here[f"rope_{name.lower()}"] for name in "ABC"}
    here["check_diagnosis"]({"A": "direction", "B": "tables", "C": "frequencies"})
    with pytest.raises(AssertionError, match="speaks against"):
        here["check_diagnosis"]({"A": "tables", "B": "direction", "C": "frequencies"})


def test_tables_and_rotations_of_the_errata() -> None:
    here = chapter("90_errata_of_tutorials")
    assert verdict(lambda positions: here["looped"](positions, 64)) == {"tables-mixed"}

    def each(rotation: Callable[[Tensor, Tensor], Tensor]) -> Function:
        """Of one vector at a time."""
        return lambda x, positions: torch.cat(
            [
                rotation(row.double(), p[None])
                for row, p in zip(x, positions, strict=True)
            ]
        ).to(x.dtype)

    mixed = each(
        lambda row, positions: here["mixed_layouts"](row[None], positions, here["w"])
    )
    assert verdict(mixed) == {"tables-mixed"}
    rotated = each(lambda row, positions: here["rotate_to"](positions, row, here["w"]))
    assert verdict(rotated, layout="interleaved", base=10_000.0) == set()


def test_the_table_of_chapter_4_that_divides() -> None:
    assert verdict(partial(sinusoidal, dim=64)) == set()
    assert verdict(partial(sinusoidal, dim=64, base=1 / 10_000)) == {"pair-order"}


def test_the_stairs_of_chapter_7() -> None:
    here = chapter("07_relative_encodings")
    here["frozen"] = here.get("frozen") or (lambda module: module.requires_grad_(False))
    stairs = diagnose(here["alibi_table"](2.0**-8))  # the slope of ALiBi with one head
    assert stairs.codes == {"clamped"}, str(stairs)  # 64 tokens were asked for
    assert stairs.facts["form"] == "ALiBi"


def test_a_check_of_an_exercise() -> None:
    diagnose(peer(16), 16).raise_if_wrong()
    with pytest.raises(
        AssertionError, match=r"layout is half, not interleaved.*Read: RoPE's core idea"
    ):
        diagnose(peer(16), 16, layout="interleaved").raise_if_wrong()


# ---- what is given


def test_malformed() -> None:
    rope = ours(plain(8))
    for error, name, arguments, wanted in (
        (TypeError, "fn", (3, 8), {}),
        (TypeError, "head_dim", (rope, "8"), {}),
        (ValueError, "head_dim", (rope, 0), {}),
        (ValueError, "head_dim", (rope,), {"kind": "rotary"}),
        (ValueError, "kind", (rope, 8), {"kind": "rope"}),
        (ValueError, "token_axis", (rope, 8), {"token_axis": 2}),
        (TypeError, "theta", (rope, 8), {"theta": 1e4}),
        (ValueError, "base", (rope, 8), {"base": -1.0}),
        (ValueError, "layout", (rope, 8), {"layout": "neox"}),
        (TypeError, "bidirectional", (rope, 8), {"bidirectional": 1}),
        (ValueError, "fn", (lambda: 0, 8), {}),
        (ValueError, "head_dim", (rope,), {}),
        (ValueError, r"gave shape \(4, 5\)", (lambda q, k: (q[:, None] - k).mT,), {}),
        (
            ValueError,
            "a tuple was returned",
            (lambda positions: (positions, positions), 8),
            {},
        ),
    ):
        with pytest.raises(error, match=name):
            diagnose(*arguments, **wanted)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, p: (x, x), "a tuple was returned"),
        (lambda x, p: x.to(torch.complex64), "complex"),
        (lambda x, p: x.long(), "came back in torch.int64"),
        (lambda x, p: x.to("meta"), "meta"),
        (lambda x, p: x[..., :3], "came back as"),
    ],
)
def test_results_that_are_no_rotated_x(function: Function, words: str) -> None:
    report = diagnose(function, 8)
    assert report.codes == {"refused"}, str(report)
    assert words in report.findings[0].seen
    assert repr(report) == str(report)


def test_a_module_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        "raise OSError('at import')\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="'broken' can't be imported: OSError: at import"
    ):
        load("broken:apply")
