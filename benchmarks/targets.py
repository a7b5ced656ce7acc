"""The targets, each a number and its limit, and what the measured rows reach."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from typing import Any

from benchmarks.peers import LLAMA
from benchmarks.rope import STEP

Row = dict[str, Any]
PASSES = ("forward", "forward and backward")
LAYOUTS = ("interleaved", "half")


def reached(rows: list[Row]) -> list[dict[str, Any]]:
    """Targets whose rows are present: {"target", "reached", "limit", "met"}.

    A limit is a lower one where the target says "at least", else an upper one.
    """
    targets = []
    for part in (
        _against_memory,
        _against_peers,
        _sixteen_bits,
        _one_token,
        _through_a_scheme,
        _exactness,
        _bias,
        _linear,
        _book,
    ):
        for target, value, limit in part([row for row in rows if "failed" not in row]):
            value = float(f"{value:.4g}")
            met = value >= limit if "at least" in target else value <= limit
            targets.append(
                {"target": target, "reached": value, "limit": limit, "met": met}
            )
    return targets


def _first(rows: list[Row], **values: Any) -> Row | None:
    """The first row with these values."""
    matching = (
        row
        for row in rows
        if all(row.get(key) == value for key, value in values.items())
    )
    return next(matching, None)


def _ratio(rows: list[Row], case: str, other: str, **values: Any) -> float | None:
    """Time of a case over that of another, each over the first case of its round."""
    row, reference = (_first(rows, case=name, **values) for name in (case, other))
    if row is None or reference is None:
        return None
    return row["ratio"] / reference["ratio"]


Targets = Iterator[tuple[str, float, float]]


def _against_memory(rows: list[Row]) -> Targets:
    for threads in (1, 2):
        where = {
            "what": "forward",
            "shape": "long",
            "dtype": "float32",
            "threads": threads,
        }
        for case, other, limit in (
            ("ours interleaved", "clone", 1.1),
            ("ours interleaved, out=", "copy_", 1.1),
            ("ours half", "clone", 1.6),
            ("ours half, compiled", "clone", 1.1),
        ):
            ratio = _ratio(rows, case, other, **where)
            if ratio is not None:
                yield f"{case} over {other}, float32, threads: {threads}", ratio, limit
    for layout in LAYOUTS:
        row = _first(
            rows, case=f"ours {layout}", what="forward", shape="long", dtype="float32"
        )
        if row is not None:
            yield f"peak memory of {layout} over that of q and k", row["memory"], 1.0


def _against_peers(rows: list[Row]) -> Targets:
    long = {"what": "forward", "shape": "long", "dtype": "float32", "threads": 1}
    for peer, layout, limit in (
        ("transformers, GPT-J", "interleaved", 4.5),
        (LLAMA, "half", 3.0),
        ("rotary-embedding-torch", "interleaved", 7.0),
        ("x-transformers", "interleaved", 5.0),
    ):
        ratio = _ratio(rows, peer, f"ours {layout}", **long)
        if ratio is not None:
            yield f"{peer} over ours {layout}, at least", ratio, limit
    for what, shape, dtype, threads in sorted(
        {
            (row["what"], row["shape"], row["dtype"], row["threads"])
            for row in rows
            if row["what"] in PASSES
        }
    ):
        here = [
            row
            for row in rows
            if [row.get(k) for k in ("what", "shape", "dtype")] == [what, shape, dtype]
        ]
        here = [row for row in here if row["threads"] == threads]
        where = f"{what}, {shape}, {dtype}, threads: {threads}"
        for layout in LAYOUTS:
            measured = _first(here, case=f"ours {layout}")
            others = [
                r["ratio"]
                for r in here
                if r.get("layout") == layout and _is_eager_peer(r["case"])
            ]
            if measured is not None and others:
                yield (
                    f"fastest peer over ours, at least: {layout}, {where}",
                    min(others) / measured["ratio"],
                    1.0,
                )
        ratio = _ratio(here, f"{LLAMA}, compiled", "ours half, compiled")
        if ratio is not None:
            yield f"compiled Llama over ours compiled, at least: {where}", ratio, 1.0


def _is_eager_peer(case: str) -> bool:
    return not case.startswith(("ours", "clone", "copy_")) and not case.endswith(
        "compiled"
    )


def _sixteen_bits(rows: list[Row]) -> Targets:
    where = {"what": "forward", "shape": "long", "dtype": "bfloat16", "threads": 1}
    for layout in LAYOUTS:
        row = _first(rows, case=f"ours {layout}", **where)
        if row is not None:
            yield f"bfloat16 error of {layout}, largest", row["error"]["most"], 0.0157
            yield (
                f"bfloat16 error of {layout}, root mean square",
                row["error"]["rms"],
                0.00166,
            )
        ratio = _ratio(rows, f"ours {layout}, compiled", "clone", **where)
        if ratio is not None:
            yield f"bfloat16 {layout}, compiled over clone", ratio, 1.5


def _one_token(rows: list[Row]) -> Targets:
    for dtype in ("float32", "bfloat16"):
        where = {"what": "one token", "dtype": dtype}
        for layout in LAYOUTS:
            ratio = _ratio(rows, f"ours {layout}{STEP}", f"{LLAMA}{STEP}", **where)
            if ratio is not None:
                yield f"one token, {layout}, {dtype}{STEP}, over Llama's", ratio, 0.8


def _through_a_scheme(rows: list[Row]) -> Targets:
    for row in (r for r in rows if r["what"] == "through a scheme"):
        case, length = row["case"], row["shape"]
        if case.endswith("by hand"):
            continue
        where = {key: row[key] for key in ("what", "shape", "dtype", "layout")}
        ratio = _ratio(rows, case, f"{case}, by hand", **where)
        limit = 1.1 if case == "rotation" else 1.5 if length == 1 else 1.2
        tokens = "one token" if length == 1 else f"{length} tokens"
        if ratio is not None:
            yield (
                f"{case} through a scheme over by hand, {tokens}, {row['layout']}, "
                f"{row['dtype']}",
                ratio,
                limit,
            )
    ratio = _ratio(rows, "ours, prepared", "is_causal=True", what="causal training")
    if ratio is not None:
        yield "causal training through a scheme over is_causal=True", ratio, 1.05


def _exactness(rows: list[Row]) -> Targets:
    row = _first(rows, what="accuracy", case="ours")
    if row is not None:
        yield "error of the table at position 1,000,000", row["table"], 1e-7
        yield "movement of a score by 1,000,000 positions", row["score"], 2e-6
    ratio = _ratio(rows, "table", "rotation of q and k", what="table")
    if ratio is not None:
        yield "table of 131,072 positions over one layer's rotation", ratio, 0.1


def _bias(rows: list[Row]) -> Targets:
    for what, case, limit, most in (
        ("bias forward", "ours, ALiBi", 1.4, 64),
        ("bias forward and backward", "ours, T5", 1.6, 96),
    ):
        for row in (row for row in rows if row["what"] == what and row["case"] == case):
            yield f"{what}, {row['shape']} tokens, over none", row["ratio"], limit
            if row["shape"] == 8192:
                yield f"{what}, 8192 tokens, megabytes", row["megabytes"], most


def _linear(rows: list[Row]) -> Targets:
    times = {
        (row["shape"], row["case"]): row["milliseconds"]
        for row in rows
        if row["what"] == "linear attention with a bias"
    }
    for length in sorted({length for length, _ in times}):
        forms = [
            times[length, case]
            for case in ("in chunks", "by FFT")
            if (length, case) in times
        ]
        if forms:
            yield (
                f"chosen form over the faster one, {length} tokens",
                times[length, "as chosen"] / min(forms),
                1.25,
            )
    if (65_536, "as chosen") in times and (16_384, "as chosen") in times:
        growth = times[65_536, "as chosen"] / times[16_384, "as chosen"]
        grows = 4 * log2(65_536) / log2(16_384)
        yield (
            "growth from 16,384 to 65,536 tokens over that of n log n",
            growth / grows,
            1.25,
        )


def _book(rows: list[Row]) -> Targets:
    notebooks = [row for row in rows if row["what"] == "validation"]
    if notebooks:
        total = sum(row["validated"] for row in notebooks) / sum(
            row["bare"] for row in notebooks
        )
        yield "validation of notebooks over their execution", total, 1.2
    built = _first(rows, what="build")
    if built is not None:
        yield "build with nothing changed, seconds", built["seconds"], 15
    pages = [row["bytes"] for row in rows if row["what"] == "weight" and "bytes" in row]
    if pages:
        yield "heaviest page, megabytes compressed", max(pages) / 1e6, 1.5
