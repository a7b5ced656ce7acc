"""Frequencies against what was meant: base, exponent, schedule and factor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posenc_lib.doctor.measure import Array
from posenc_lib.doctor.report import Report, listed, number
from posenc_lib.doctor.schedules import Fit, fit, round_number, same

IGNORED = "rope_scaling is read and not used, or not read at all. Short inputs hide it."


def check_frequencies(
    report: Report,
    frequencies: Array,
    width: int,
    dim: int,
    intended: dict[str, Any],
    *,
    rotary: bool,
) -> Fit:
    """Fit the frequencies of an encoding `width` channels wide, and judge them."""
    reference = "planes" if rotary else "clocks"  # where the book explains frequencies
    fitted = fit(frequencies, width)
    falling = np.sort(frequencies)[::-1]
    unsorted = np.abs(frequencies - falling).max() > 1e-6 * falling[0]
    disordered = fitted.fault == "" and unsorted
    if disordered and (ordered := fit(falling, width)).name != "free":
        report.facts["base"] = ordered.base
        report.add_finding(
            "pair-order",
            f"The frequencies are those of base {number(ordered.base or 0)} "
            f"in another order: the first are {listed(frequencies[:3])}.",
            "Frequencies fall from pair to pair, θ^(−2i/d). "
            "They were flipped, rolled or sorted, or an index is off.",
            reference,
        )
        return Fit(("free",))
    if rising(report, frequencies, reference):
        report.facts["base"] = None
        return Fit(("free",))
    slip = _slips(report, frequencies, fitted, width, intended, reference)
    report.facts["base"] = fitted.base
    report.facts["schedule"] = " or ".join(
        fitted.names[:1] if fitted.name == "none" else fitted.names
    )
    if fitted.factor != 1:
        report.facts["factor"] = fitted.factor
    if fitted.original_length is not None:
        report.facts["trained length"] = fitted.original_length
    if slip:
        return fitted
    if fitted.name == "free":
        if _strays(report, frequencies, width, reference):
            return fitted
        report.notes.append(
            f"No schedule fits. The first frequencies are {listed(frequencies[:4])}."
        )
    scaled = _check_schedule(report, fitted, width, intended, reference)
    if not scaled:
        _check_base(report, fitted, width, dim, intended, reference)
    return fitted


def rising(report: Report, frequencies: Array, reference: str) -> bool:
    """Whether frequencies grow from pair to pair, as far as they stay below π."""
    first = frequencies[:3]
    if (
        len(first) < 3
        or first.min() <= 0
        or not first[0] * 1.01 < first[1]
        or not same(first[1] ** 2, first[0] * first[2])
    ):
        return False
    report.add_finding(
        "pair-order",
        f"The frequencies rise from pair to pair: {listed(first)}, …",
        "The position is divided by the frequency, "
        "or the exponent has the other sign: θ^(+2i/d) for θ^(−2i/d).",
        reference,
    )
    return True


def _slips(
    report: Report,
    frequencies: Array,
    fitted: Fit,
    width: int,
    intended: dict[str, Any],
    reference: str,
) -> bool:
    """Faults whatever was meant."""
    base, factor = fitted.base, fitted.factor
    if fitted.fault in ("bfloat16", "float16"):
        report.add_finding(
            "buffer-cast",
            f"All {len(frequencies)} frequencies are {fitted.fault} numbers, off "
            f"the formula by up to 1 in {256 if fitted.fault == 'bfloat16' else 2048}.",
            "inv_freq is a buffer and was cast with the weights, by .half() "
            "or .to(bfloat16). Casting back does not restore the bits: "
            "compute it again in float32.",
            "precision",
        )
        return True
    if fitted.fault == "inverted":
        report.add_finding(
            "ramp-inverted",
            f"The fast pairs are slowed by {number(factor)} and the slow ones "
            "are kept.",
            "beta_fast and beta_slow are exchanged.",
            "ntk_by_parts",
        )
        return True
    if fitted.fault == "ntk head":
        report.add_finding(
            "ntk-in-ramp",
            f"Slow pairs are slowed by {number(factor)}, base {number(base or 0)}, "
            "and the fast ones follow an NTK-aware base for the same factor.",
            "NTK-by-parts keeps the fast pairs as they were trained; "
            "the change of base was left in.",
            "ntk_by_parts",
        )
        return True
    if fitted.name != "linear_interpolation" or base is None:
        return False
    meant = intended.get("factor")
    if same(factor, 180 / math.pi) and meant is None:
        seen = (
            f"The fastest pair rotates by {number(1 / factor)} rad per position, "
            "which is one degree."
        )
        report.add_finding(
            "degrees",
            seen,
            "Angles are converted from degrees; the formula has radians.",
            reference,
        )
        return True
    if factor < 1 and not (meant is not None and same(factor, meant)):
        seen = (
            f"The fastest pair rotates by {number(1 / factor)} rad per position; "
            "θ^(−2i/d) is at most 1."
        )
        units = {
            math.pi: "counted in turns",
            2 * math.pi: "counted in turns",
            180 / math.pi: "converted to degrees",
        }
        unit = next(
            (words for angle, words in units.items() if same(1 / factor, angle)), None
        )
        cause = (
            "Positions are multiplied by the factor of linear interpolation; "
            "they are divided by it."
        )
        if same(factor, 0.5):
            cause += " Or vectors are rotated twice."
        if unit is None:
            report.add_finding(
                "positions-multiplied", seen, cause, "linear_interpolation"
            )
        else:
            report.add_finding(
                "positions-multiplied",
                seen,
                f"Angles are {unit}; the formula has radians.",
                reference,
            )
        return True
    slip = next((k for k in (1, 2) if same(factor, base ** (k / width), 1e-5)), 0)
    as_meant = meant is not None and same(factor, meant)
    if slip and not as_meant and not (meant is None and round_number(factor)):
        written = "(2i + 1)/d" if slip == 1 else "2(i + 1)/d"
        report.add_finding(
            "exponent-shifted",
            f"The first frequency is {number(1 / factor)} and not 1: "
            f"the exponent is {written}.",
            "A formula that counts pairs from 1 is coded with an index from 0.",
            "shifted",
        )
        return True
    return False


def _strays(report: Report, frequencies: Array, width: int, reference: str) -> bool:
    """One or two pairs that are off the line on which all others lie."""
    if len(frequencies) < 8 or frequencies.min() <= 0:
        return False
    index, logs = np.arange(len(frequencies)), np.log(frequencies)
    slope = float(np.median(np.diff(logs)))
    line = slope * index + float(np.median(logs - slope * index))
    off = np.flatnonzero(np.abs(logs - line) > 1e-4)
    if len(off) > 2:
        return False
    base = math.exp(-slope * width / 2)
    report.add_finding(
        "stray-pair",
        f"All pairs but {len(off)} have the frequencies of base {number(base)}: "
        f"pair {off[0]} rotates by {number(float(frequencies[off[0]]))} rad per "
        f"position, and {number(math.exp(line[off[0]]))} is on the line.",
        "A frequency appears twice, or is overwritten: the index jumps there.",
        reference,
    )
    return True


def _check_schedule(
    report: Report, fitted: Fit, width: int, intended: dict[str, Any], reference: str
) -> bool:
    """Schedule and factor against those meant; True if this judges the base as well."""
    meant, factor, base = (
        intended.get("schedule"),
        intended.get("factor"),
        intended.get("base"),
    )
    if meant == "dynamic_ntk":
        return False
    if meant == "ntk_aware":
        return _check_ntk(report, fitted, width, factor, base)
    if meant is not None and meant not in fitted.names:
        # LongRoPE's short list may be all 1
        if fitted.name == "none" and meant != "longrope":
            seen = (
                "No scaling is applied: "
                f"the frequencies are those of base {number(fitted.base or 0)}."
            )
            report.add_finding("schedule-ignored", seen, IGNORED, meant)
        elif meant != "longrope":
            follow = (
                "no schedule that the doctor knows"
                if fitted.name == "free"
                else " or ".join(fitted.names)
            )
            report.add_finding(
                "schedule",
                f"The frequencies follow {follow}, not {meant}.",
                "A rope_type is read as another one, "
                "or its ramp is laid out in other units.",
                reference if meant == "none" else meant,
            )
        return True
    if (
        factor is not None
        and fitted.name != "free"
        and not same(fitted.factor, factor, 1e-4)
        and fitted.name != "none"
    ):
        twice = same(fitted.factor, factor**2, 1e-4)
        report.add_finding(
            "factor-twice" if twice else "factor",
            f"Slow pairs are slowed by {number(fitted.factor)}; "
            f"{number(float(factor))} was expected"
            + (": the factor is applied twice." if twice else "."),
            "Positions are divided and frequencies as well."
            if twice
            else "Another factor is read from the file.",
            fitted.name,
        )
    elif factor is not None and factor != 1 and fitted.name == "none" and meant is None:
        seen = (
            f"No scaling by {number(float(factor))}: "
            f"the first frequency is 1, the base {number(fitted.base or 0)}."
        )
        report.add_finding("schedule-ignored", seen, IGNORED, "linear_interpolation")
    return False


def _check_ntk(
    report: Report, fitted: Fit, width: int, factor: float | None, base: float | None
) -> bool:
    """NTK-aware scaling changes the base: it shows only against the original one."""
    if fitted.name != "none":
        seen = (
            f"The frequencies follow {' or '.join(fitted.names)}, "
            "and NTK-aware scaling is a change of base alone."
        )
        report.add_finding(
            "schedule",
            seen,
            "Two schedules are applied, or a rope_type is read as another one.",
            "ntk_aware",
        )
        return True
    if fitted.base is None or base is None:
        return True  # against no base, any base may be scaled
    if factor is None:
        report.facts["factor"] = (fitted.base / base) ** ((width - 2) / width)
        return True
    expected = base * factor ** (width / (width - 2))
    if same(fitted.base, expected):
        return True
    causes = {
        base: ("schedule-ignored", "The scaling is read and not used."),
        base * factor: (
            "exponent-dropped",
            "The base is multiplied by s and not by s^(d/(d−2)).",
        ),
    }
    seen = (
        f"The base is {number(fitted.base)}; NTK-aware scaling of {number(base)} "
        f"by {number(factor)} gives {number(expected)}."
    )
    code, cause = next(
        (cause for value, cause in causes.items() if same(fitted.base, value)),
        ("base", "Another factor or base is read."),
    )
    report.add_finding(code, seen, cause, "ntk_aware")
    return True


def _check_base(
    report: Report,
    fitted: Fit,
    width: int,
    dim: int,
    intended: dict[str, Any],
    reference: str,
) -> None:
    """The base against the one meant, and the slips that explain a difference."""
    base, meant = fitted.base, intended.get("base")
    if base is None:
        if (
            meant is not None
            and intended.get("schedule") is None
            and fitted.name == "free"
            and width >= 8
        ):
            seen = (
                f"The frequencies are not those of base {number(float(meant))}, "
                "nor of any other."
            )
            cause = (
                "Another formula, or a list of frequencies. "
                "Give schedule= if one that depends on a list is meant."
            )
            report.add_finding("base", seen, cause, reference)
        return
    step = 2 * math.log(base) / width  # ln of the ratio of neighbours
    if (
        abs(step - round(step)) < 1e-6
        and round(step) > 0
        and (meant is None or not same(base, meant))
    ):
        report.add_finding(
            "exponent-floored",
            f"Each frequency is the one before times exp(−{round(step)}), "
            "whatever the base.",
            "−log(base) / d // 2 is (−log(base) / d) // 2, "
            "which is floored to a whole number.",
            "floored",
        )
        return
    if meant is None or same(base, meant):
        return
    n = width // 2
    causes = [
        *_over_head(meant, width, dim),
        (
            meant**0.5,
            "exponent-halved",
            "The exponent is i/d and not 2i/d: "
            "a pair's index is taken for a channel's.",
        ),
        (
            meant**2,
            "exponent-doubled",
            "The exponent is 4i/d and not 2i/d: the index is doubled twice.",
        ),
    ]
    if n > 1:
        causes.append(
            (
                meant ** (n / (n - 1)),
                "exponent-divisor",
                "The exponent is i/(d/2 − 1), as in tensor2tensor's table.",
            )
        )
    causes.append(
        (
            10000.0,
            "base",
            "The configuration's base is dropped, and the default 10,000 is used.",
        )
    )
    wider = round(width * math.log(meant) / math.log(base)) if base > 1 else 0
    if meant > 1 and wider > width and wider % 16 == 0:
        cause = (
            f"The exponent is 2i/{wider} and not 2i/{width}: "
            "it runs over another width, such as the model's."
        )
        causes.append((meant ** (width / wider), "exponent-width", cause))
    code, cause = next(
        ((code, cause) for value, code, cause in causes if same(base, value)),
        (
            "base",
            "Another model's base, or a schedule that changes it: "
            "NTK-aware scaling does.",
        ),
    )
    report.add_finding(
        code,
        f"The frequencies are those of base {number(base)}; "
        f"{number(float(meant))} was expected. The slowest pair turns "
        f"{number(float(np.exp((1 - 1 / n) * (math.log(meant) - math.log(base)))))} "
        "times as fast as it should.",
        cause,
        "letter" if code == "exponent-halved" else reference,
    )


def _over_head(meant: float, width: int, dim: int) -> list[tuple[float, str, str]]:
    """Partial rotary's slip: over half of the channels it resembles an exponent i/d."""
    cause = "The exponent runs over the head and not over the rotated channels."
    return [(meant ** (width / dim), "exponent-width", cause)] if width < dim else []
