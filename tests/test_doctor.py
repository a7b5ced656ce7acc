"""The doctor: nothing false about correct functions, and every kind of fault found at sizes drawn at random."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket
from posenc_lib.doctor import diagnose
from posenc_lib.embedding import sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.rotary import LAYOUTS, RoPE, scaling
from posenc_lib.rotary.scaling import Schedule

ROOT = Path(__file__).resolve().parents[1]
Function = Callable[[Tensor, Tensor], Tensor]
HALF, BOTH = torch.float16, (torch.bfloat16, torch.float16)


def ours(schedule: Schedule, layout: str = "interleaved", least: torch.dtype = torch.float32) -> Function:
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
    """Rotary in the form of Llama's code: x cos + rotate_half(x) sin, with tables as wide as what is turned."""
    r = width or dim
    speeds = base ** (-torch.arange(0, r, 2, dtype=torch.float64) / r) if frequencies is None else frequencies

    def apply(x: Tensor, positions: Tensor) -> Tensor:
        angles = read(positions, x)[..., None].to(dtype) * speeds.to(dtype)
        doubled = torch.cat((angles, angles), -1) if (table or layout) == "half" else angles.repeat_interleave(2, -1)
        doubled = doubled.float() if dtype in BOTH else doubled
        cos, sin = factor * doubled.cos().to(x.dtype), factor * sign * doubled.sin().to(x.dtype)
        if cos.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]
        turned, rest = x[..., :r], x[..., r:]
        if layout == "half":
            a, b = turned.chunk(2, -1)
            partner = torch.cat((-b, a), -1)
        else:
            partner = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
        return torch.cat((turned * cos + partner * sin, rest), -1)

    return apply


# ---- nothing false


def correct() -> dict[str, tuple[Function, int, dict[str, Any]]]:
    found: dict[str, tuple[Function, int, dict[str, Any]]] = {}
    for layout in LAYOUTS:
        for dim, base in ((8, 10_000.0), (64, 500_000.0), (96, 1_234.5), (128, 5_000_000.0)):
            found[f"{layout} {dim} {base}"] = ours(plain(dim, base), layout), dim, {"layout": layout, "base": base}
        found[f"{layout} float64"] = ours(plain(32), layout, torch.float64), 32, {"layout": layout}
        found[f"{layout} partial"] = ours(plain(16), layout), 64, {"layout": layout, "rotary_dim": 16, "base": 10_000.0}
        for name in ("float32", "float64"):
            function = peer(64, 777.0, layout=layout, dtype=getattr(torch, name))
            found[f"peer {layout} {name}"] = function, 64, {"layout": layout, "base": 777.0}
        clockwise = {"layout": layout, "direction": "clockwise", "base": 10_000.0}
        found[f"{layout} clockwise"] = peer(64, layout=layout, sign=-1.0), 64, clockwise
    schedules: dict[str, tuple[Schedule, dict[str, Any]]] = {
        "linear": (scaling.linear_interpolation(64, 1e6, factor=8.0), {"schedule": "linear_interpolation"}),
        "ntk": (scaling.ntk_aware(64, 1e4, factor=4.0), {"schedule": "ntk_aware", "base": 1e4}),
        "parts": (scaling.ntk_by_parts(64, 1e4, factor=4.0, original_length=4096), {"schedule": "ntk_by_parts"}),
        "yarn": (scaling.yarn(128, 1e4, factor=16.0, original_length=4096), {"schedule": "yarn"}),
        "yarn released": (
            scaling.yarn_released(128, 1e6, factor=4.0, original_length=32768),
            {"schedule": "yarn_released"},
        ),
        "llama3": (scaling.llama3(64, 5e5, factor=32.0, original_length=8192), {"schedule": "llama3"}),
        "llama3 128": (scaling.llama3(128, 5e5, factor=8.0, original_length=8192), {"schedule": "llama3"}),
        "p-RoPE": (scaling.proportional(128, 1e6, fraction=0.25), {"schedule": "proportional"}),
        "clipped": (scaling.clipped(plain(128, 5e5), count=20), {}),
    }
    for name, (schedule, wanted) in schedules.items():
        for layout in LAYOUTS:
            found[f"{name} {layout}"] = ours(schedule, layout), 2 * len(schedule.frequencies), wanted
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
            assert value == (pytest.approx(wanted[fact], rel=1e-5) if fact == "base" else wanted[fact])
    if "schedule" in wanted and wanted["schedule"] != "ntk_aware":
        assert wanted["schedule"] in report.facts["schedule"].split(" or ")
    assert max(map(len, str(report).splitlines())) <= 80


def test_lengths_that_change_the_schedule_are_told_and_are_no_fault() -> None:
    def dynamic(x: Tensor, positions: Tensor) -> Tensor:
        length = int(positions.max()) + 1
        return ours(scaling.dynamic_ntk(64, 1e4, factor=2.0, original_length=2048, length=length))(x, positions)

    report = diagnose(dynamic, 64, schedule="dynamic_ntk", base=1e4)
    assert report.ok, str(report)
    assert report.facts["schedule"] == "dynamic_ntk"
    assert any("dynamic NTK" in note for note in report.notes)

    def longrope(x: Tensor, positions: Tensor) -> Tensor:
        lists = {"short_factors": [1.0 + i / 64 for i in range(32)], "long_factors": [1.0 + i for i in range(32)]}
        settings = {"factor": 8.0, "original_length": 4096, "length": int(positions.max()) + 1}
        return ours(scaling.longrope(64, 1e4, **lists, **settings))(x, positions)

    report = diagnose(longrope, 64, schedule="longrope")
    assert report.ok, str(report)


def complex_numbers(x: Tensor, positions: Tensor) -> Tensor:
    """In the form of Meta's code, float32 throughout."""
    angles = positions[:, None].float() * inverse_frequencies(32, 500_000.0).float()
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def rows_only(x: Tensor, positions: Tensor) -> Tensor:
    """Positions (B, T), as in transformers."""
    assert positions.dim() == 2
    return peer(32, 500_000.0)(x, positions)


def tokens_only(x: Tensor, positions: Tensor) -> Tensor:
    assert x.dim() == 2
    return peer(32, 500_000.0)(x, positions)


def float32_only(x: Tensor, positions: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return peer(32, 500_000.0)(x, positions)


def short_table(x: Tensor, positions: Tensor) -> Tensor:
    return peer(32, 500_000.0, read=lambda p, x: torch.arange(2048)[p])(x, positions)


@pytest.mark.parametrize("function", [complex_numbers, rows_only, tokens_only, float32_only, short_table])
def test_other_forms_of_what_is_right(function: Function) -> None:
    report = diagnose(function, 32, base=500_000.0)
    assert report.ok, str(report)
    swapped = diagnose(lambda x, p: complex_numbers(x.transpose(1, 2), p).transpose(1, 2), 32, token_axis=1)
    assert swapped.ok, str(swapped)


def test_halves_out_of_pairs_are_noted() -> None:
    half = peer(32)
    report = diagnose(lambda x, p: half(x.unflatten(-1, (-1, 2)).mT.flatten(-2), p), 32)
    assert report.ok, str(report)
    assert report.facts["layout"] == "interleaved in, half out"
    assert "DeepSeek-V3" in report.notes[0]


def test_the_page_shows_what_the_doctor_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "book" / "doctor.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|text)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
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
def test_tables_and_pairs_of_different_layouts(dim: int, base: float, layout: str) -> None:
    expect("tables-mixed", peer(dim, base, layout=layout, table=other(layout)), dim)


@given(DIMS, BASES, SIDES)
def test_split_one_way_and_joined_the_other(dim: int, base: float, layout: str) -> None:
    order = (
        torch.arange(dim).reshape(2, -1).T.flatten()
        if layout == "half"
        else torch.arange(dim).reshape(-1, 2).T.flatten()
    )
    function = peer(dim, base, layout=layout)
    expect("order", lambda x, positions: function(x, positions)[..., order], dim, layout=layout)


@given(DIMS, BASES)
def test_sine_with_one_sign(dim: int, base: float) -> None:
    def function(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * inverse_frequencies(dim, base)
        (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat((a * cos + b * sin, b * cos + a * sin), -1).to(x.dtype)

    expect("sine-sign", function, dim)


@given(DIMS, BASES, SIDES, st.floats(1.01, 2))
def test_lengths_that_are_not_kept(dim: int, base: float, layout: str, factor: float) -> None:
    expect("norm", peer(dim, base, layout=layout, factor=factor), dim)
    rope = peer(dim, base, layout=layout)
    expect("norm", lambda x, positions: rope(x, positions) * 0.99 ** positions[:, None].to(x.dtype), dim)


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
def test_positions_that_start_elsewhere(dim: int, base: float, layout: str, offset: int) -> None:
    function = peer(dim, base, layout=layout, read=lambda positions, x: positions + offset)
    expect("first-position", function, dim)
    report = diagnose(function, dim, offset=offset)
    assert report.ok, str(report)


@given(DIMS, BASES, SIDES)
def test_cache_offsets(dim: int, base: float, layout: str) -> None:
    make = partial(peer, dim, base, layout=layout)
    expect("offset-ignored", make(read=lambda p, x: torch.arange(x.shape[-2])), dim)
    expect("cache-offset", make(read=lambda p, x: p + (p[0] > 0)), dim)  # counts the token about to be processed
    expect("cache-offset", make(read=lambda p, x: p + p[0]), dim)  # advanced twice
    expect("cache-offset", make(read=lambda p, x: p + (len(p) == 1)), dim)  # wrong in decoding only
    expect("order-ignored", make(read=lambda p, x: p[..., :1] + torch.arange(p.shape[-1])), dim)


@given(DIMS, BASES, SIDES, st.sampled_from([0, 1]))
def test_one_vector_of_positions_for_a_padded_batch(dim: int, base: float, layout: str, row: int) -> None:
    expect("padding", peer(dim, base, layout=layout, read=lambda p, x: p if p.dim() == 1 else p[row]), dim)


@given(DIMS, BASES, SIDES, st.sampled_from(BOTH))
def test_low_precision(dim: int, base: float, layout: str, dtype: torch.dtype) -> None:
    make = partial(peer, dim, base, layout=layout)
    expect("low-precision", make(read=lambda p, x: p.to(x.dtype)), dim)  # in the query's dtype
    expect("low-precision", make(read=lambda p, x: p.to(dtype)), dim)  # in the model's, whatever the query's
    expect("low-precision", lambda x, p: make(dtype=x.dtype)(x, p), dim)  # the angles in the query's dtype


@given(DIMS, BASES, SIDES, st.sampled_from(BOTH))
def test_a_buffer_that_was_cast(dim: int, base: float, layout: str, dtype: torch.dtype) -> None:
    cast = inverse_frequencies(dim, base).to(dtype).double()
    expect("buffer-cast", peer(dim, base, layout=layout, frequencies=cast), dim)


@given(DIMS, BASES, SIDES, st.integers(2, 16))
def test_linear_interpolation(dim: int, base: float, layout: str, factor: int) -> None:
    make, wanted = (
        partial(peer, dim, base, layout=layout),
        {"schedule": "linear_interpolation", "factor": float(factor)},
    )
    assert diagnose(make(read=lambda p, x: p.double() / factor), dim, base=base, **wanted).ok
    expect("schedule-ignored", make(), dim, **wanted)
    expect("schedule-ignored", make(), dim, factor=float(factor))
    expect("positions-multiplied", make(read=lambda p, x: p * factor), dim)
    expect("factor-twice", make(read=lambda p, x: p.double() / factor**2), dim, **wanted)


@given(DIMS, st.floats(5000, 5e6), SIDES, st.floats(1.5, 32))
def test_ntk(dim: int, base: float, layout: str, factor: float) -> None:
    wanted = {"schedule": "ntk_aware", "factor": factor, "base": base}
    assert diagnose(ours(scaling.ntk_aware(dim, base, factor=factor), layout), dim, **wanted).ok
    expect("exponent-dropped", peer(dim, base * factor, layout=layout), dim, **wanted)
    expect("schedule-ignored", peer(dim, base, layout=layout), dim, **wanted)


@given(DIMS, BASES, SIDES, st.floats(2, 8))
def test_a_table_that_remembers(dim: int, base: float, layout: str, factor: float) -> None:
    longest = 0

    def function(x: Tensor, positions: Tensor) -> Tensor:
        nonlocal longest
        longest = max(longest, int(positions.max()) + 1)
        return ours(scaling.dynamic_ntk(dim, base, factor=factor, original_length=512, length=longest), layout)(
            x, positions
        )

    assert "remembers" in diagnose(function, dim).codes


@given(DIMS, BASES, SIDES)
def test_a_cache_with_the_length_for_key(dim: int, base: float, layout: str) -> None:
    cache: dict[int, Tensor] = {}
    expect("cache-key", peer(dim, base, layout=layout, read=lambda p, x: cache.setdefault(p.shape[-1], p)), dim)


@given(DIMS, BASES, SIDES, st.floats(1.2, 50), st.integers(100, 6000))
def test_a_base_that_changes(dim: int, base: float, layout: str, times: float, length: int) -> None:
    near, far = peer(dim, base, layout=layout), peer(dim, base * times, layout=layout)
    function = lambda x, positions: (far if int(positions.max()) >= length else near)(x, positions)  # noqa: E731
    report = diagnose(function, dim)
    assert report.findings[0].code == "base-changes", str(report)
    assert report.facts["angles"] == f"others from position {length:,} on"


@given(st.sampled_from([32, 64, 96, 128]), st.floats(2000, 5e6), SIDES)
def test_exponents(dim: int, base: float, layout: str) -> None:
    i, make = torch.arange(dim // 2, dtype=torch.float64), partial(peer, dim, layout=layout)
    slips = {
        "exponent-shifted": (2 * i + 1) / dim,
        "exponent-halved": i / dim,
        "exponent-doubled": 4 * i / dim,
        "exponent-divisor": i / (dim // 2 - 1),
    }
    for code, exponent in slips.items():
        expect(code, make(frequencies=base**-exponent), dim, base=base)
    expect("exponent-shifted", make(frequencies=base ** (-2 * (i + 1) / dim)), dim, base=base)
    expect("exponent-floored", make(frequencies=torch.exp(-i)), dim, base=base)
    expect("exponent-width", make(width=dim // 2, frequencies=base ** (-2 * i[: dim // 4] / dim)), dim, base=base)
    report = diagnose(make(base=10_000.0), dim, base=base * 10)
    assert "10,000 is used" in report.findings[0].cause


@given(SIDES, st.sampled_from([4.0, 8.0, 16.0, 32.0, 40.0]), st.sampled_from([(64, 1e4), (128, 1e4), (128, 5e5)]))
def test_yarn(layout: str, factor: float, size: tuple[int, float]) -> None:
    dim, base = size
    right = scaling.yarn_released(dim, base, factor=factor, original_length=4096)
    a = 0.1 * math.log(factor) + 1
    assert right.attention_factor == pytest.approx(a)
    report = diagnose(ours(right, layout), dim, schedule="yarn_released", factor=factor, base=base)
    assert report.ok, str(report)
    expect("factor-twice", ours(Schedule(right.frequencies, a * a), layout), dim)
    expect("attention-factor", ours(right, layout), dim, attention_factor=1.0)  # DeepSeek's quotient
    expect("schedule-ignored", ours(Schedule(inverse_frequencies(dim, base), a), layout), dim, schedule="yarn_released")
    plain_ = inverse_frequencies(dim, base)
    inverted = plain_ / factor + plain_ - right.frequencies  # β_fast and β_slow exchanged
    expect("ramp-inverted", ours(Schedule(inverted, a), layout), dim)
    ramp = (right.frequencies / plain_ - 1 / factor) / (1 - 1 / factor)
    mixed = ramp * scaling.ntk_aware(dim, base, factor=factor).frequencies + (1 - ramp) * plain_ / factor
    expect("ntk-in-ramp", ours(Schedule(mixed, a), layout), dim)


@given(st.sampled_from([64, 128]), st.floats(1e5, 5e6), SIDES, st.floats(2, 40))
def test_llama3(dim: int, base: float, layout: str, factor: float) -> None:
    right = scaling.llama3(dim, base, factor=factor, original_length=8192)
    report = diagnose(ours(right, layout), dim, schedule="llama3", factor=factor, base=base)
    assert report.ok, str(report)
    expect("schedule-ignored", peer(dim, base, layout=layout), dim, schedule="llama3", factor=factor)
    expect("factor", ours(right, layout), dim, schedule="llama3", factor=2 * factor)


# ---- tables


@given(st.sampled_from([16, 32, 100, 256]), st.floats(500, 1e6))
def test_tables_that_are_right(dim: int, base: float) -> None:
    for layout in ("interleaved", "concatenated"):
        report = diagnose(partial(sinusoidal, dim=dim, base=base, layout=layout), dim, layout=layout, base=base)
        assert report.ok, str(report)
        assert report.facts["first in a pair"] == "sine"
    odd = diagnose(partial(sinusoidal, dim=dim + 1, base=base), dim + 1, base=base)
    assert odd.ok, str(odd)
    swapped = diagnose(lambda p: sinusoidal(p, dim, base, layout="concatenated").roll(dim // 2, -1), dim, base=base)
    assert swapped.ok, str(swapped)
    assert swapped.facts["first in a pair"] == "cosine"


def test_tensor2tensor_is_named() -> None:
    report = diagnose(partial(sinusoidal_tensor2tensor, dim=64), 64, base=10_000.0)
    assert report.ok, str(report)
    assert "tensor2tensor" in report.facts["form"]


def table(positions: Tensor, frequencies: Tensor, *, late: Tensor | None = None) -> Tensor:
    angles = positions[:, None].double() * frequencies
    cosines = angles if late is None else positions[:, None].double() * late
    return torch.stack((angles.sin(), cosines.cos()), -1).flatten(-2)


@given(st.sampled_from([16, 32, 64, 256]), st.floats(500, 1e6), st.integers(1, 9), st.sampled_from(BOTH))
def test_tables_that_are_wrong(dim: int, base: float, offset: int, dtype: torch.dtype) -> None:
    right = inverse_frequencies(dim, base)
    index = torch.arange(dim // 2, dtype=torch.float64)
    wrong = {
        "first-position": lambda p: table(p + offset, right),
        "offset-ignored": lambda p: table(torch.arange(len(p)), right),
        "low-precision": lambda p: table(p.to(dtype), right),
        "exponent-halved": lambda p: table(p, right.sqrt()),
        "exponent-floored": lambda p: table(p, torch.exp(-2 * index)),
        "exponent-shifted": lambda p: table(p, base ** (-(2 * index + 1) / dim)),
        "tables-mixed": lambda p: table(p, right, late=base ** (-(2 * index + 1) / dim)),
    }
    for code, function in wrong.items():
        expect(code, function, dim, base=base)
    expect("layout", lambda p: table(p, right), dim, layout="concatenated")


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
    key_only = diagnose(lambda q, k: (alibi_slopes(heads)[:, None, None] * k).expand(-1, len(q), -1))
    assert key_only.ok, str(key_only)
    plain_ = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    wrong = {
        "sign": lambda q, k: -right(q, k),
        "bias-under-cache": lambda q, k: right(torch.arange(len(q)), k),
    }
    if heads & (heads - 1):
        wrong |= {"slopes": partial(alibi, slopes=plain_)}
        for dtype in BOTH:
            cast = diagnose(partial(alibi, slopes=alibi_slopes(heads).to(dtype).double()))
            assert cast.codes == {"slopes-cast"}, str(cast)
        ordered = diagnose(partial(alibi, slopes=alibi_slopes(heads).sort(descending=True).values))
        assert ordered.codes == {"slopes"}, str(ordered)
    for code, function in wrong.items():
        assert code in diagnose(function).codes, f"{code}: {diagnose(function)}"


def test_alibi_that_counts_slots() -> None:
    slots = lambda q, k: alibi(torch.arange(len(q)) + q[0], torch.arange(len(k)) + k[0], alibi_slopes(4))  # noqa: E731
    assert diagnose(slots).codes == {"padding"}


@given(st.booleans(), st.sampled_from([8, 16, 32, 64]), st.sampled_from([40, 64, 128, 200, 256]))
def test_t5_right(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    sizes = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
    bias = T5Bias(4, std=1.0, generator=torch.Generator().manual_seed(0), **sizes)
    for function in (bias, lambda r: t5_bucket(r, **sizes)):
        for wanted in ({}, sizes):
            report = diagnose(function, **wanted)
            assert report.ok, str(report)


def buckets(
    r: Tensor, *, bidirectional: bool, size: int, longest: int, clamp: bool = True, halve: int = 2, sign: int = 1
) -> Tensor:
    """T5's buckets in the form of its code, with switches for what is easily dropped."""
    r, offset = sign * r, torch.zeros_like(r)
    if bidirectional:
        size //= 2
        offset, distance = size * (r > 0), r.abs()
    else:
        distance = (-r).clamp(min=0)
    exact = size // halve
    far = exact + (torch.log(distance.clamp(min=1) / exact) / math.log(longest / exact) * (size - exact) + 1e-9).long()
    return offset + torch.where(distance < exact, distance, far.clamp(max=size - 1) if clamp else far)


@given(st.booleans(), st.sampled_from([16, 32, 64]), st.sampled_from([64, 128, 256]))
def test_t5_wrong(bidirectional: bool, size: int, longest: int) -> None:
    sizes = {"bidirectional": bidirectional, "size": size, "longest": longest}
    wanted = {"bidirectional": bidirectional, "num_buckets": size, "max_distance": longest}
    assert diagnose(partial(buckets, **sizes), **wanted).ok
    dropped = diagnose(partial(buckets, clamp=False, **sizes), **wanted)
    assert dropped.codes & {"bucket-clamp", "bucket-range"}, str(dropped)
    assert not diagnose(partial(buckets, clamp=False, **sizes)).ok
    distances, halved = torch.arange(-1024, 1025), partial(buckets, halve=4, **sizes)
    if not torch.equal(halved(distances), buckets(distances, **sizes)):  # where 2^(1/8) a bucket, it is the same
        assert not diagnose(halved, **wanted).ok
    assert "sign" in diagnose(partial(buckets, sign=-1, **sizes), **wanted).codes
    assert "direction" in diagnose(partial(buckets, **sizes), bidirectional=not bidirectional).codes
    whole = sizes | {"size": 2 * size}
    assert not diagnose(partial(buckets, **whole), **wanted).ok
    bias = T5Bias(2, std=1.0, bidirectional=bidirectional, num_buckets=size, max_distance=longest)
    under_cache = diagnose(lambda q, k: bias(torch.arange(len(q)), k))
    assert "bias-under-cache" in under_cache.codes, str(under_cache)


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
    ):
        with pytest.raises(error, match=name):
            diagnose(*arguments, **wanted)


def test_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from posenc_lib.frequencies import inverse_frequencies\nfrom posenc_lib.rotary import RoPE\n"
        "def apply(x, positions):\n    return RoPE(inverse_frequencies(64))(positions)(x)\n",
        encoding="utf-8",
    )
    line = (
        "import argparse, sys; from posenc_lib import doctor; p = argparse.ArgumentParser(); "
        "doctor.add_parser(p.add_subparsers()); given = p.parse_args(); sys.exit(given.run(given))"
    )
    for extra, status in (([], 0), (["--layout", "half"], 1)):
        result = subprocess.run(
            [sys.executable, "-c", line, "doctor", "mine:apply", "--head-dim", "64", *extra],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert result.returncode == status, result.stderr
        assert "layout" in result.stdout
