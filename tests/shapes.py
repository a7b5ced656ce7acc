"""The `Shapes:` line of a docstring, compared with the shapes of real tensors.

A line has clauses, `inputs → outputs`, of which one must fit: shapes, each with or
without the name of its argument. Letters are sizes, the same in inputs and outputs.
`...` is any number of leading axes, `1 or B` either size, `2d` or `T−1` a term.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

Shape = tuple[int, ...]
Option = list[str]  # one shape, a term for each axis
Sizes = dict[str, Any]

# What a line may say beside the shapes.
REMARKS = re.compile(
    r"(in |on the |of any|(real )?numbers |float|int64|boolean|values |zeros in |"
    r"already |unscaled|coordinate by|always |r = axes|Hk a divisor|with a batch$)"
)
DROPPED = re.compile(
    r" and the state after.*$| as \([\w, ]+\)| on the pos.*$|^`\w+`(: | (?=→))|"
    r"^with a batch on either side, |, Hk a divisor of H \(grouped queries\)|"
    r", unscaled.*$|: d cosines.*$"
)
REPLACED = {
    "integers of any shape": "(...)",
    " with hidden states ": ", ",
    ", with batched positions ": "; ",
}
FIELDS = ("embedding", "transform", "bias", "scores", "values", "mask")


class UnparsedError(Exception):
    """The line says something that is not a shape."""


def split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def shapes_in(text: str) -> tuple[str, list[Option]]:
    """The words before the first shape, and all the shapes of "(T,) or (B, T)"."""
    label, _, rest = text.partition("(")
    options: list[Option] = []
    for part in re.split(r"(?<=\)),? or (?=\()", "(" + rest) if rest else []:
        if not re.fullmatch(r"\((?:[^()]|\([^()]*\))*\)", part):
            raise UnparsedError(text)
        axes = [axis.split(" or ") for axis in split(part[1:-1], ",")]
        options += [list(option) for option in product(*axes)]
    return label.strip(), options


def terms(text: str, names: Mapping[str, Shape]) -> Iterator[tuple[str, list[Option]]]:
    """The shapes of one side of a clause, each with the words before it."""
    waiting: list[str] = []
    for part in split(re.sub(r"\), or \(", ") or (", text), ","):
        label, options = shapes_in(part)
        if not options and label in names:
            waiting.append(label)
        elif label in FIELDS and label not in names:
            if options:
                yield "", options
        elif not options and re.match(r"the same|\w+ unchanged$", label):
            yield label, []
        elif options:
            for name in (*waiting, *re.split(r" and ", label)):
                yield name, options
            waiting = []
        elif not REMARKS.match(label):
            raise UnparsedError(part)
    for label in waiting:
        yield label, []


def term_value(term: str, sizes: Sizes) -> Any:
    """A term like `2K + 1` or `min(T, S + w)` in numbers."""
    names = {f"s{i}": sizes[name] for i, name in enumerate(letters(term))}
    for i, name in enumerate(letters(term)):
        term = re.sub(rf"(?<![A-Za-z_]){re.escape(name)}(?!\w)", f"s{i}", term)
    term = term.replace("−", "-").replace("·", "*")
    term = re.sub(r"(\d) ?(?=s\d)|(s\d+) ?(?=\()", r"\1\2*", term)
    return eval(term, {"__builtins__": {}, "min": min}, names)


def letters(term: str) -> list[str]:
    """The sizes that a term names."""
    return [name for name in re.findall(r"[A-Za-zΣ][\w′]*", term) if name != "min"]


def unify(pairs: Sequence[tuple[Option, Shape]], sizes: Sizes) -> bool:
    """Whether the letters have sizes with which every option is its shape."""
    later: list[tuple[str, int]] = []
    for option, shape in pairs:
        if "..." in option:
            axes = len(shape) - len(option) + 1
            if axes < 0 or sizes.setdefault("...", shape[:axes]) != shape[:axes]:
                return False
            option, shape = option[1:], shape[axes:]
        if len(option) != len(shape):
            return False
        for term, size in zip(option, shape, strict=True):
            if letters(term) == [term]:
                if sizes.setdefault(term, size) != size:
                    return False
            else:
                later.append((term, size))
    for term, size in later:
        unknown = [name for name in letters(term) if name not in sizes]
        if len(unknown) == 1 and "Σ" not in term:
            solutions = [
                n
                for n in range(1, 200)
                if term_value(term, {**sizes, unknown[0]: n}) == size
            ]
            if not solutions:
                return False
            sizes[unknown[0]] = solutions[0]
        elif unknown:
            if sizes.setdefault(term, size) != size:
                return False
        elif term_value(term, sizes) != size:
            return False
    return True


def clause_fits(
    clause: str,
    inputs: Mapping[str, Shape],
    results: list[Shape],
    fixed: frozenset[str],
) -> bool:
    """Whether a clause is right for these inputs and results.

    Arguments in `fixed` may be missing from the inputs. Raises `UnparsedError` if the
    clause is about other arguments, or not in shapes.
    """
    left, arrow, right = clause.partition("→")
    if not arrow or "→" in right:
        raise UnparsedError(clause)
    outputs = [
        output
        for label, options in terms(right.strip(), inputs)
        for output in [(label, options)] * (2 if label.startswith("two ") else 1)
    ]
    stated = [
        (label, options)
        for label, options in terms(left.strip(), inputs)
        if label not in fixed or label in inputs
    ]
    unused = [name for name in inputs if name not in dict(stated)]
    input_shapes: list[Shape] = []
    choices: list[list[tuple[Option, Shape]]] = []
    for label, options in stated:
        name = label
        if label not in inputs:
            if label not in ("", "positions", "coordinates"):
                raise UnparsedError(f"{label} in {clause}")
            candidates = [x for x in unused if x.endswith(label)]
            candidates += [x for x in unused if x.endswith("positions")]
            if not candidates:
                raise UnparsedError(clause)
            name = candidates[0]
            unused.remove(name)
        shape = inputs[name]
        input_shapes.append(shape)
        # Positions that all rows of a batch share need no axis for it.
        if name.endswith(("positions", "ids")):
            options = [*options, *(o[1:] for o in options if o[0] == "B")]
        choices.append([(option, shape) for option in options])
    if outputs and outputs[0][0].startswith("the same") and len(outputs) == 1:
        name = outputs[0][0].rpartition(" as ")[2]
        expected = [inputs[name]] if name in inputs else input_shapes
        same = results[: len(expected)] == expected[: len(results)]
    else:
        if not outputs or len(outputs) != len(results):
            return False
        same = True
        for i, (label, options) in enumerate(outputs):
            if options:
                choices.append([(option, results[i]) for option in options])
            else:
                name = re.sub(r"^the same.* as | unchanged$", "", label)
                same &= results[i] == (
                    inputs[name] if name in inputs else input_shapes[i]
                )
    return same and any(unify(pairs, {}) for pairs in product(*choices))


def fits(
    line: str,
    inputs: Mapping[str, Shape],
    results: list[Shape],
    fixed: frozenset[str] = frozenset(),
) -> bool:
    """Whether one clause of the line fits; `UnparsedError` if none could be read."""
    for words, replacement in REPLACED.items():
        line = line.replace(words, replacement)
    answers, unread, left, right = [], [line], "", ""
    for part in re.split(r";(?![^()]*\))", line):
        clause = DROPPED.sub("", part.strip())
        if REMARKS.match(clause):
            continue
        if "→" not in clause and "(" in clause and right:
            clause = f"{clause} → {right}"
        if re.match("with a batch", clause):
            clause = f"{left.replace('(', '(B, ')} →{clause.partition('→')[2]}"
        left, _, right = (side.strip() for side in clause.partition("→"))
        try:
            answers.append(clause_fits(clause, inputs, results, fixed))
        except UnparsedError as error:
            unread.append(str(error))
    if not answers:
        raise UnparsedError(unread[-1])
    return any(answers)
