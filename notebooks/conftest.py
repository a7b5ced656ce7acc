"""How nbval compares a cell's outputs with the stored ones.

A line that ends in `±t` is compared as words and numbers: the words, and the tolerance,
must be the same, and each number may differ by at most t. Every other line must be the
same. What a picture looks like is not compared, but that it is there is; what it draws
stands in the text beside it.

nbval passes over cells that nobody checked. Here they fail: a cell that was never run,
and a cell that is skipped, or whose output is ignored, without a comment `# nbval: at
least five words that say why`.
"""

from __future__ import annotations

import copy
import math
import re
from collections import defaultdict
from typing import Any

NUMBER = re.compile(
    r"(?<![\w.])[-+]?"
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|inf|nan)"
    r"(?!\w|\.\w)"
)
TOLERANCE = re.compile(r"\s±(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*$")
PICTURE = re.compile(r"(data:image/[\w.+-]+;base64,)([A-Za-z0-9+/=]+)")
REASON = re.compile(r"^\s*#\s*nbval:(?:\s+\S+){5,}", re.MULTILINE)


def line_close(stored: str, new: str) -> bool:
    """Whether a line agrees with the stored one, within its stated tolerance."""
    if stored == new:
        return True
    tolerance, claimed = TOLERANCE.search(stored), TOLERANCE.search(new)
    if not tolerance or not claimed or tolerance[1] != claimed[1]:
        return False
    stored, new = stored[: tolerance.start()], new[: claimed.start()]
    if NUMBER.sub("#", stored).split() != NUMBER.sub("#", new).split():
        return False
    # two decimals that are t apart may be a little more apart in binary
    limit = float(tolerance[1]) * (1 + 1e-6)
    numbers = [
        [float(number.replace(",", "")) for number in NUMBER.findall(line)]
        for line in (stored, new)
    ]
    pairs = zip(*numbers, strict=True)
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= limit
        for a, b in pairs
    )


def agreed(stored: str, new: str) -> str:
    """The new text, with the stored line in place of each line that agrees with it."""
    old_lines, new_lines = stored.split("\n"), new.split("\n")
    if len(old_lines) != len(new_lines):
        return new
    return "\n".join(
        a if line_close(a, b) else b for a, b in zip(old_lines, new_lines, strict=True)
    )


def text_close(stored: str, new: str) -> bool:
    """Whether every line of a text agrees with the stored one."""
    return agreed(stored, new) == stored


def comparable(stored: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
    """Copies of two lists of outputs, equal exactly where the outputs agree."""
    stored, new = copy.deepcopy(stored), copy.deepcopy(new)
    texts: list[dict[str, list]] = [defaultdict(list), defaultdict(list)]
    for outputs, by_kind in zip((stored, new), texts, strict=True):
        for output in outputs:
            if output["output_type"] == "stream":
                by_kind[output["name"]].append((output, "text"))
            data = output.get("data", {})
            for mime in list(data):
                if mime in ("image/png", "image/jpeg"):
                    # nbval passes over image/png itself
                    data[f"{mime} (picture)"] = "present"
                elif mime == "text/html":
                    data[mime] = PICTURE.sub(r"\1...", data[mime])
                if mime.startswith("text/"):
                    by_kind[mime].append((data, mime))
    for key in texts[0]:
        for (old_holder, name), (new_holder, _) in zip(
            texts[0][key], texts[1][key], strict=False
        ):
            new_holder[name] = agreed(old_holder[name], new_holder[name])
    return stored, new


def pytest_runtest_call(item: Any) -> None:
    """Prepare one cell of a notebook for nbval, which then runs it."""
    if type(item).__name__ != "IPyNbCell":
        return
    if item.cell.execution_count is None and item.cell.source.strip():
        item.raise_cell_error("The cell was never run: python book/tools/refresh.py")
    unchecked = item.options["skip"] or (
        item.parent.compare_outputs and not item.options["check"]
    )
    if unchecked and not REASON.search(item.cell.source):
        item.raise_cell_error(
            "Nobody checks this cell: say why, in a comment '# nbval: "
            "at least five words'"
        )

    kernel, compare = item.parent.kernel, item.compare_outputs

    def execute(source: str, allow_stdin: bool | None = None) -> str:
        # nbval does not store history; IPython then shows what a line that ends in ";"
        # returns, and Out stays empty.
        return kernel.kc.execute(
            source, store_history=True, allow_stdin=allow_stdin, stop_on_error=False
        )

    def compare_outputs(new: list[Any], stored: list[Any]) -> bool:
        stored, new = comparable(stored, new)
        return compare(new, stored)

    kernel.execute_cell_input, item.compare_outputs = execute, compare_outputs
