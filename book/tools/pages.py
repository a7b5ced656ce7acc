"""Write the pages that are made from the library, the tests and the notebooks.

These are the ledger, the zoo, the API reference with the tests and golden cases behind
it, and the README's picture.

python book/tools/pages.py            write them
python book/tools/pages.py --check    write nothing; exit 1 and name what would change
"""

from __future__ import annotations

import argparse
import ast
import base64
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import posenc_lib
from posenc_lib.ledger import VERDICTS, claims
from posenc_lib.zoo import MISSING, Entry, encodings

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
TESTS = ROOT / "tests"
MADE = (
    "<!-- Made by `make refresh` from the library and the notebooks. Do not edit. -->\n"
)

# The pages of the API reference: file, title, and the modules or packages on the page.
# A module is on the page that names the longest beginning of it.
API = (
    ("positions", "Positions", ("positions", "multimodal_positions")),
    ("frequencies", "Frequencies and schedules", ("frequencies", "rotary.scaling")),
    ("embedding", "Embedding: what is added to tokens", ("embedding",)),
    ("rotary", "Transform: query and key", ("rotary",)),
    ("multiaxis", "Transform: several axes", ("rotary.multiaxis",)),
    ("bias", "Bias: scores by position", ("bias",)),
    ("content", "Scores: position and content", ("content",)),
    ("attention", "Attention and mask", ("attention",)),
    ("long_context", "Longer contexts", ("attention.long_context",)),
    (
        "linear",
        "Linear attention",
        ("attention.linear", "attention.toeplitz", "attention.stochastic"),
    ),
    ("schemes", "Schemes and layers", ("scheme", "layers")),
    ("lab", "Laboratory", ("lab",)),
    ("tools", "Tools", ("",)),  # whatever no other page has
)
# Names that are neither a function nor a class, by module, and what they are.
CONSTANTS = {
    "scheme": {
        "PLACES": "The fields of a scheme that a position can enter, in their order.",
        "NOPE": "The scheme without positions.",
    },
    "rotary.scaling": {
        "ScheduleFunction": "A function of dimension and base that returns frequencies "
        "and attention factor, such as `partial(llama3, factor=8, "
        "original_length=8192)`.",
    },
    "rotary.pairs": {
        "Layout": "The names of the ways in which channels form pairs.",
        "LAYOUTS": "The same names as a tuple.",
    },
}
# The pages of tests: file, title, and the beginnings of the files on the page.
EVIDENCE = (
    ("evidence", "Tests: positions, embedding", ("",)),  # and all others
    ("evidence_rotary", "Tests: transform", ("rotary/",)),
    (
        "evidence_scores",
        "Tests: bias, scores, mask, layers",
        ("attention/", "bias/", "content/", "test_layers.py"),
    ),
    ("evidence_parity", "Tests: installed packages", ("parity/",)),
)
PARITY = "parity/test_parity.py"
# The pages of golden cases: file, title, and the beginnings of the peers' names.
GOLDEN = (
    ("golden", "Golden cases: transformers", ("transformers",)),
    ("golden_peers", "Golden cases: other code", ("",)),
)
SHORT = 30  # lines of what a test calls and its page shows
ESCAPED_BAR = "\\|"  # a bar in a cell of a table
SECTION = re.compile(
    r"^(Equation|Shapes|Args|Raises|Source|Checked|Chapter|Returns): ?(.*)$"
)


# ---- docstrings


@cache
def rows() -> tuple[Entry, ...]:
    """The rows of the zoo, made once."""
    return encodings()


def public(module_name: str) -> list[tuple[str, Any]]:
    """The public functions and classes that a module defines, in its order."""
    package = importlib.import_module("posenc_lib." + module_name.split(".")[0])
    module = importlib.import_module(f"posenc_lib.{module_name}")
    exported = getattr(package, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    return [
        (name, value)
        for name, value in vars(module).items()
        if name in exported
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


@cache
def modules() -> tuple[str, ...]:
    """The modules with public names; those of a package as its `__init__` has them."""
    names = [
        info.name.removeprefix("posenc_lib.")
        for info in pkgutil.walk_packages(posenc_lib.__path__, "posenc_lib.")
    ]
    names = [name for name in names if not re.search(r"(^|\.)_", name) and public(name)]
    return tuple(sorted(names, key=_order))


def _order(name: str) -> tuple[str, int, str]:
    """The package of a module, and where its `__init__` imports from it."""
    package, _, rest = name.partition(".")
    text = inspect.getsource(importlib.import_module(f"posenc_lib.{package}"))
    first = text.find(f"from posenc_lib.{name} import") if rest else -1
    return package, first, name


def modules_of(page: str) -> list[str]:
    """The modules on a page of the API reference."""
    prefixes = {prefix: name for name, _, names in API for prefix in names}

    def longest(module: str) -> str:
        fitting = [p for p in prefixes if not p or f"{module}.".startswith(f"{p}.")]
        return max(fitting, key=len)

    [order] = [names for name, _, names in API if name == page]
    on_page = [module for module in modules() if prefixes[longest(module)] == page]
    return sorted(on_page, key=lambda module: order.index(longest(module)))


def home(value: Any) -> str:
    """The module of an object, without the library's name."""
    return str(value.__module__).removeprefix("posenc_lib.")


def parse(docstring: str) -> tuple[list[str], dict[str, list[str]]]:
    """The prose paragraphs and the sections of a docstring in the house order."""
    prose: list[str] = []
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(docstring).splitlines():
        head = SECTION.match(line)
        if head:
            current = sections.setdefault(head[1], [head[2]] if head[2] else [])
        elif current is not None and (line.startswith(" ") or not line):
            current.append(line)
        else:
            current = None
            prose.append(line)
    return [p for p in re.split(r"\n{2,}", "\n".join(prose).strip()) if p], sections


def escape(text: str) -> str:
    """Docstring prose as Markdown: code in backticks stays, the rest means itself."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part)
        for part in parts
    )


def paragraphs(prose: Iterable[str]) -> Iterator[str]:
    """Paragraphs of a docstring as Markdown; an indented one is set as it stands."""
    for paragraph in prose:
        if paragraph.startswith(" "):
            yield f"```text\n{paragraph}\n```\n"
        else:
            yield escape(paragraph) + "\n"


def definitions(lines: list[str]) -> Iterator[str]:
    """The entries of an Args or Raises section as list items."""
    for item in re.split(
        r"\n(?=\S)", inspect.cleandoc("\n" + "\n".join(lines)).strip()
    ):
        name, _, text = item.partition(": ")
        yield f"- `{name}`: {escape(' '.join(text.split()))}"


def chapter_link(chapter: str, *, root: str = "../") -> str:
    """A link to a chapter if it exists, or else its number.

    `root` leads to the root of the repository.
    """
    for path in sorted(NOTEBOOKS.glob(f"{chapter}_*.ipynb")):
        return f"[{chapter}]({root}notebooks/{path.name})"
    pages = {
        "notation": "notebooks/00_notation_and_conventions.ipynb",
        "ledger": "book/ledger.md",
        "zoo": "book/zoo.md",
    }
    return (
        f"[{chapter}]({root}{pages[chapter]})"
        if chapter in pages
        else f"{chapter} (to come)"
    )


# ---- pages


def api() -> str:
    """The front page of the API reference: every public name, and its page."""
    page = [
        MADE,
        "# API reference\n",
        "Every public function and class, in the order in which attention meets the "
        "fields of a scheme. Each entry ends with its source, as installed; "
        "[the zoo](zoo.md) lists the encodings alone, and their evidence is in the "
        "book as well: the [tests](api/evidence.md) and the "
        "[golden cases](api/golden.md).\n",
    ]
    for name, title, _ in API:
        page.append(f"## [{title}](api/{name}.md)\n")
        for module in modules_of(name):
            links = ", ".join(
                f"{{ref}}`{key} <{api_label(module, key)}>`"
                for key in (*CONSTANTS.get(module, ()), *dict(public(module)))
            )
            page.append(f"`posenc_lib.{module}`: {links}\n")
    return "\n".join(page)


def api_page(name: str, title: str) -> bytes:
    """A page of the API reference: each callable with its docstring and its source."""
    page = [MADE, f"# {title}\n"]
    for module_name in modules_of(name):
        module = importlib.import_module(f"posenc_lib.{module_name}")
        prose = re.split(r"\n{2,}", inspect.getdoc(module) or "")
        page += [f"## `posenc_lib.{module_name}`\n", *paragraphs(prose)]
        for key, words in CONSTANTS.get(module_name, {}).items():
            page += api_constant(module_name, key, words)
        for key, value in public(module_name):
            page += api_entry(module_name, key, value)
    return "\n".join(page).encode()


def signature(name: str, value: Any) -> str:
    """How to call it, one argument a line where the line would be long."""
    call = inspect.signature(value)
    made = _made_defaults(value)
    call = call.replace(
        parameters=[
            parameter.replace(
                annotation=_unquoted(parameter.annotation),
                default=made.get(parameter.name, parameter.default),
            )
            for parameter in call.parameters.values()
        ],
        return_annotation=_unquoted(call.return_annotation),
    )
    text = name + str(call).replace("torch.", "").replace("'", '"')
    # defaults that are functions or classes, and the scheme without positions
    text = re.sub(r"<(?:function|bound method) ([\w.]+)[^<>]* at 0x\w+>", r"\1", text)
    text = re.sub(r'<class "(\w+)">', r"\1", text)
    text = re.sub(r'PositionScheme\(name="NoPE"[^()]*\)', "NOPE", text)
    if len(text) <= 88:
        return text
    head, _, tail = text.partition("(")
    inside, _, result = tail.rpartition(")")
    lines, depth = [""], 0
    for part in inside.split(", "):
        lines[-1] += f", {part}" if depth else part
        depth += sum(map(part.count, "[(")) - sum(map(part.count, "])"))
        if not depth:
            lines.append("")
    return (
        head
        + "(\n"
        + "".join(f"    {line},\n" for line in lines if line)
        + ")"
        + result
    )


def _made_defaults(value: Any) -> dict[str, Any]:
    """The defaults of a dataclass that are made anew for each object: [] or {}."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {
        field.name: field.default_factory()
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }


def _unquoted(annotation: Any) -> Any:
    """An annotation that prints without quotes around it."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation


class _Verbatim(str):
    """A text that is its own representation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def api_entry(module_name: str, name: str, value: Any) -> list[str]:
    """One callable."""
    prose, sections = parse(inspect.getdoc(value) or "")
    lines = [
        f"({api_label(module_name, name)})=",
        f"### `{name}`\n",
        "```python",
        signature(name, value),
        "```\n",
    ]
    lines += paragraphs(prose)
    for title in ("Equation", "Shapes"):
        text = inspect.cleandoc("\n".join(sections.get(title, ["none"])))
        if text != "none":
            lines += [f"{title}:\n", "```text", text, "```\n"]
    for title in ("Args", "Raises"):
        if title in sections:
            lines += [
                f"{'Arguments' if title == 'Args' else title}:\n",
                *definitions(sections[title]),
                "",
            ]
    closing = []
    if "Source" in sections:
        closing.append(citations(" ".join(sections["Source"])))
    if "Checked" in sections:
        items = checked_items("\n".join(sections["Checked"]))
        links = "; ".join(checked_item(item, value) for item in items)
        closing.append("checked against: " + links)
    if "Chapter" in sections:
        chapter = sections["Chapter"][0].strip()
        closing.append("chapter " + chapter_link(chapter, root="../../"))
    if closing:
        lines += [" · ".join(closing) + "\n"]
    label = f"{api_label(module_name, name)}-source"
    code = inspect.getsource(value).rstrip()
    return [*lines, *dropdown("Source", label, [f"`{source_file(value)}`"], code)]


def api_constant(module_name: str, name: str, words: str) -> list[str]:
    """One name that is neither a function nor a class: what it is, and its line."""
    module = importlib.import_module(f"posenc_lib.{module_name}")
    file = Path(module.__file__ or "")
    return [
        f"({api_label(module_name, name)})=",
        f"### `{name}`\n",
        f"{escape(words)}\n",
        "```python",
        code_of(file, [statements(file)[name]]),
        "```\n",
    ]


def dropdown(title: str, label: str, lines: Iterable[str], code: str) -> list[str]:
    """A box with code; a link to the label, which is inside, opens it."""
    python = ["```python", code, "```"] if code else []
    return [f":::{{dropdown}} {title}", f"({label})=", *lines, *python, ":::\n"]


def checked_items(text: str) -> list[str]:
    """The items of a `Checked:` part; a line may end within an item."""
    items = [" ".join(item.split()) for item in text.split(";") if item.strip()]
    return [re.sub(r": ", ":", item) if "@" in item else item for item in items]


def checked_item(item: str, value: Any) -> str:
    """One item: golden cases, an installed package, a file of a repository, words."""
    if item == "golden":
        return f"golden cases {golden_links(cases_of(value))}"
    if item == "parity":
        links = ", ".join(map(test_link, parity_tests(value)))
        return f"the installed package ({links})"
    released = re.fullmatch(r"([\w.-]+/[\w.-]+)@(\w+):([^:]+):(.+)", item)
    if released:
        name, commit, path, function = released.groups()
        address = f"https://github.com/{name}/blob/{commit}/{path}"
        return f"[{name}]({address}), `{function}`"
    return escape(item)


def api_label(module_name: str, name: str) -> str:
    """The label of an entry of the API reference, by package, without capitals."""
    return f"api-{module_name.split('.')[0]}-{name}".lower().replace("_", "-")


def source_file(value: Any) -> str:
    """The file of an object, from the repository's root."""
    return (
        Path(inspect.getsourcefile(inspect.unwrap(value)) or "")
        .resolve()
        .relative_to(ROOT)
        .as_posix()
    )


def zoo() -> str:
    """The zoo: all encodings as one table, then each with all that is known of it."""
    entries = rows()
    page = [
        "---\nhtml_theme.sidebar_secondary.remove: true  # the table needs the "
        "width\n---\n",
        MADE,
        "# The zoo of encodings\n",
        f"`posenc_lib` has {len(entries)} encodings; the equations of {len(MISSING)} "
        "others are not available to us. "
        "*Where* names the fields of a [scheme](api/schemes.md) that an encoding "
        "fills, or says in words what no scheme can hold. "
        "A name leads to the whole equation, the parameters and all evidence; *source* "
        "is the library's own code, *evidence* the strongest that we have: numbers "
        "computed by published code ([golden cases](api/golden.md)), or else a "
        "[test](api/evidence.md), usually the equation as plain loops; *chapter* is "
        "the section that treats it. *Cost* is the "
        "work in one layer beside plain "
        "attention's n² D, for n tokens, width D and H heads of d channels. *Used by* "
        "is empty where we know of no "
        "published model. Symbols are those of "
        "[Notation and conventions](../notebooks/00_notation_and_conventions.ipynb).\n",
        "A header sorts the table by its column; the filter keeps the rows that "
        "contain every word typed, with or "
        "without hyphens: an encoding, another name of it, a model such as `Qwen3-VL`, "
        "or `open`. In a shell, `posenc zoo alibi` prints a row and all "
        "that belongs to it.\n",
        '<div class="posenc-table">\n',
        "| Encoding | Where | Equation | Cost | Source | Evidence | Chapter "
        "| Used by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    details: dict[str, list[str]] = {}
    for entry in entries:
        _, sections = parse(inspect.getdoc(entry.source) or "")
        fields = where(entry)
        chapter = section_link(entry, sections["Chapter"][0].strip())
        aliases = ", ".join(map(escape, entry.aliases))
        cells = (
            zoo_link(entry) + (f" <small>{aliases}</small>" if aliases else ""),
            fields,
            f"`{short(entry, sections)}`",
            escape(entry.cost),
            source_link(entry),
            evidence_link(entry),
            chapter,
            escape(entry.used_by),
        )
        page.append(
            f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |"
        )
        details.setdefault(fields.split(",")[0], []).extend(
            zoo_entry(entry, sections, fields, chapter)
        )
    for name, (paper, missing) in MISSING.items():
        badge = '<span class="posenc-badge" data-verdict="open">open</span>'
        page.append(
            f"| {name} | {badge} | Not established: {escape(missing)} | | paper: "
            f"{arxiv(paper)} | | | |"
        )
    page += ["\n</div>\n", '<script src="../_static/tables.js"></script>\n']
    page += ["In *parameters*: width D, H heads of d channels, L trained positions.\n"]
    for field, lines in details.items():
        page += [f"## {field.capitalize()}\n", *lines]
    page += [
        "## Open\n",
        "These are not in the library, because an equation that is guessed would be "
        "worse than none.\n",
    ]
    page += [
        f"- {name} ({arxiv(paper)}): {escape(missing)}"
        for name, (paper, missing) in MISSING.items()
    ]
    return "\n".join([*page, ""])


def zoo_entry(
    entry: Entry, sections: dict[str, list[str]], fields: str, chapter: str
) -> list[str]:
    """One encoding."""
    lines = [
        f"({zoo_label(entry.name)})=",
        f"### {entry.name}\n",
        "```text",
        equation(entry, sections),
        "```\n",
        f"- where: {fields}",
        f"- parameters: {escape(entry.parameters)}",
        f"- cost: {escape(entry.cost)}",
        f"- used by: {escape(entry.used_by) or 'no model that we know of'}",
        f"- source and arguments: {source_link(entry)}",
        f"- test: {test_link(entry.test)}",
        f"- chapter: {chapter}",
    ]
    if fields != "nowhere" and "Source" in sections:
        lines.append("- paper: " + citations(" ".join(sections["Source"])))
    if entry.golden:
        lines.append(f"- golden cases: {golden_links(entry.golden)}")
    items = checked_items("\n".join(sections.get("Checked", [])))
    others = [checked_item(item, entry.source) for item in items if item != "golden"]
    if others:
        lines.append("- checked against: " + "; ".join(others))
    if entry.lacks:
        lines.append(f"- properties that it lacks: {escape(entry.lacks_in_words())}")
    return [*lines, ""]


def zoo_link(entry: Entry) -> str:
    """A link to an encoding in the zoo."""
    return f"{{ref}}`{entry.name} <{zoo_label(entry.name)}>`"


def where(entry: Entry) -> str:
    """The fields that an encoding fills, in words."""
    if isinstance(entry.where, str):
        return entry.where
    return ", ".join(entry.where.places) or "nowhere"


def equation(entry: Entry, sections: dict[str, list[str]]) -> str:
    """The equation of an encoding as its docstring states it."""
    return entry.equation or inspect.cleandoc("\n".join(sections["Equation"]))


def short(entry: Entry, sections: dict[str, list[str]]) -> str:
    """The first clauses of an equation, one at least, without the citation.

    Wide gaps separate clauses.
    """
    text = re.sub(r"\n\s*", " ", equation(entry, sections).replace("`", ""))
    keys = (
        "|".join(
            map(
                re.escape,
                re.split(r",\s*", " ".join(sections.get("Source", [])).strip()),
            )
        )
        or "checked"
    )
    clauses = re.split(r"  +", re.split(rf"\s*\((?:{keys}|checked|read)\b", text)[0])
    line = clauses[0]
    for clause in clauses[1:]:
        if len(line) + len(clause) > 170:
            break
        line += f" {clause}"
    return line.rstrip(",;:. ")


def zoo_label(name: str) -> str:
    """The label of an encoding of the zoo."""
    return "zoo-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def source_link(entry: Entry) -> str:
    """The encoding's own code in the API reference."""
    name = entry.source.__name__
    return f"{{ref}}`{name} <{api_label(home(entry.source), name)}-source>`"


def evidence_link(entry: Entry) -> str:
    """The strongest evidence for an encoding: golden cases if it has any, or a test."""
    if not entry.golden:
        return test_link(entry.test)
    count = len(entry.golden)
    text = "golden case" if count == 1 else f"{count} golden cases"
    return f"{{ref}}`{text} <{golden_label(entry.golden[0])}>`"


def test_link(test: str) -> str:
    """A link to a test, on the page of tests."""
    return f"{{ref}}`{test.split('::')[1]} <{test_label(test)}>`"


def golden_links(cases: Iterable[str]) -> str:
    """Golden cases, each with the name of the code that computed it."""
    links = []
    for case in cases:
        peer = escape(golden_case(case)["peer"]["name"])
        links.append(f"{{ref}}`{case} <{golden_label(case)}>` ({peer})")
    return "; ".join(links)


def section_link(entry: Entry, chapter: str) -> str:
    """The section of the encoding's chapter that treats it.

    It is headed by the encoding's name, or else the first whose cells call it. A
    chapter without such a section does not treat the encoding yet.
    """
    for path in NOTEBOOKS.glob(f"{chapter}_*.ipynb"):
        name = re.split(r"'s\b|[ ,]", entry.name)[0]
        headings, calling = [""], []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                headings += re.findall(r"^##+ (.*)$", text, re.MULTILINE)
            elif re.search(rf"\b{entry.source.__name__}\b", text):
                calling.append(headings[-1])
        headed = [heading for heading in headings if heading.startswith(f"{name}:")]
        for heading in filter(None, headed + calling):
            return f"[{chapter}](../notebooks/{path.name}#{slug(heading)})"
        return f"{chapter} (to come)"
    return chapter_link(chapter)


def slug(heading: str) -> str:
    """The anchor of a heading, as myst-parser makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def arxiv(number: str) -> str:
    """A link to a paper."""
    return f"[{number}](https://arxiv.org/abs/{number})"


def citations(keys: str) -> str:
    """Citation roles for a docstring's list of keys."""
    return ", ".join(f"{{cite:t}}`{key.strip()}`" for key in keys.split(","))


# ---- tests and golden cases


def test_label(test: str) -> str:
    """The label of a test, "bias/test_kernels.py::test_name", on the page of tests."""
    return "test-" + re.sub(r"[^a-z0-9]+", "-", test.replace(".py", "").lower())


def golden_label(case: str) -> str:
    """The label of a golden case on their page."""
    return f"golden-{case}".lower().replace("_", "-")


def cases_of(value: Any) -> list[str]:
    """The golden cases of an encoding, or of a part of one that they call."""
    cases = [case for row in rows() if row.source is value for case in row.golden]
    if cases:
        return cases
    return [
        case
        for case, (file, name) in sorted(adapters().items())
        if any(value.__name__ in names_in(node) for node in used(file, name))
    ]


@cache
def golden_case(case: str) -> dict[str, Any]:
    """A golden case as stored."""
    path = TESTS / "oracles" / f"{case}.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@cache
def statements(file: Path) -> dict[str, ast.stmt]:
    """The functions, classes and constants of a file, by name."""
    by_name: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            by_name[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for target in targets for n in ast.walk(target)]
            by_name |= {n.id: node for n in names if isinstance(n, ast.Name)}
    return by_name


def used(file: Path, name: str) -> list[ast.stmt]:
    """A function of a file, then what it uses of the same file, in the file's order."""
    by_name = statements(file)
    names = [name]
    for known in names:  # grows
        for used_name in sorted(names_in(by_name[known])):
            if used_name in by_name and used_name not in names:
                names.append(used_name)
    others = {by_name[known].lineno: by_name[known] for known in names[1:]}
    return [by_name[name], *(others[line] for line in sorted(others))]


def names_in(statement: ast.stmt) -> set[str]:
    """The names that a statement reads; neither annotations nor arguments."""
    skipped: set[ast.AST] = set()
    arguments: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.arg):
            arguments.add(node.arg)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            skipped |= set(ast.walk(part)) if isinstance(part, ast.AST) else set()
    names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {node.id for node in names if node not in skipped} - arguments


def code_of(file: Path, nodes: Iterable[ast.stmt]) -> str:
    """The source of statements of a file, the first one and others that are short."""
    lines = file.read_text(encoding="utf-8").splitlines()
    parts: list[str] = []
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        part = lines[first - 1 : node.end_lineno]
        if not parts or len(part) <= SHORT:
            parts.append("\n".join(part))
    return "\n\n\n".join(parts)


def parity_tests(value: Any) -> list[str]:
    """The tests that compare an object with an installed package."""
    file = TESTS / PARITY
    return [
        f"{PARITY}::{name}"
        for name in statements(file)
        if name.startswith("test_")
        and any(value.__name__ in names_in(node) for node in used(file, name))
    ]


def evidence(name: str, title: str) -> bytes:
    """A page of the tests that zoo and docstrings name, each with its source."""
    tested: dict[str, list[str]] = {}  # links to what a test is about
    for entry in rows():
        tested.setdefault(entry.test, []).append(zoo_link(entry))
    for module in modules():
        for key, value in public(module):
            _, sections = parse(inspect.getdoc(value) or "")
            if "parity" in checked_items("\n".join(sections.get("Checked", []))):
                link = f"{{ref}}`{key} <{api_label(module, key)}>`"
                for test in parity_tests(value):
                    tested.setdefault(test, []).append(link)
    page = [
        MADE,
        f"# {title}\n",
        "For each encoding of [the zoo](../zoo.md) these pages show the strongest test "
        "apart from its [golden cases](golden.md): the equation as plain loops, or "
        "else a property that holds exactly. They also show the tests that run the "
        "same inputs through an installed package. Short helpers from the same file "
        f"follow a test. Pages: {page_links(EVIDENCE)}.\n",
    ]
    prefixes = {prefix: page for page, _, names in EVIDENCE for prefix in names}
    for file in sorted({test.split("::")[0] for test in tested}):
        if prefixes[max(filter(file.startswith, prefixes), key=len)] == name:
            page.append(f"## `tests/{file}`\n")
            for test in (test for test in tested if test.startswith(f"{file}::")):
                function = test.split("::")[1]
                lines = ["Tests " + ", ".join(tested[test]) + ".\n"]
                code = code_of(TESTS / file, used(TESTS / file, function))
                page += dropdown(function, test_label(test), lines, code)
    return "\n".join(page).encode()


@cache
def adapters() -> dict[str, tuple[Path, str]]:
    """For each golden case the file and name of the function that computes it."""
    by_case = {}
    for file in sorted(TESTS.rglob("*.py")):
        table = getattr(statements(file).get("ADAPTERS"), "value", None)
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                    by_case[str(key.value)] = (file, value.id)
    return by_case


def golden(name: str, title: str) -> bytes:
    """A page of golden cases: what was computed, by whose code, and how we compare."""
    prefixes = {prefix: page for page, _, names in GOLDEN for prefix in names}
    cases = sorted(path.stem for path in (TESTS / "oracles").glob("*.json"))
    by_peer: dict[str, list[str]] = {}
    for case in cases:
        peer = golden_case(case)["peer"]["name"]
        if prefixes[max(filter(peer.startswith, prefixes), key=len)] == name:
            by_peer.setdefault(peer, []).append(case)
    page = [
        MADE,
        f"# {title}\n",
        f"{len(cases)} small cases whose numbers were computed once, by published code "
        "that is not ours (the *peer*), and are stored in `tests/oracles`. "
        "`tests/test_oracles.py` compares each output with the library's, at the "
        "tolerance stated here; the function below a case calls the library with the "
        "same inputs and brings the result into the peer's shape. "
        f"Pages: {page_links(GOLDEN)}. The equations also have "
        "[tests](evidence.md).\n",
    ]
    shown: dict[tuple[Path, str], str] = {}
    for peer in sorted(by_peer, key=lambda name: (-len(by_peer[name]), name.lower())):
        page.append(f"## `{peer}`\n")
        for case in by_peer[peer]:
            file, function = adapters()[case]
            first = shown.setdefault((file, function), case)
            adapter = f"- compared by `{function}` in `{file.relative_to(ROOT)}`"
            code = code_of(file, used(file, function)) if first == case else ""
            if first != case:
                adapter += f", shown at {{ref}}`{first} <{golden_label(first)}>`"
            lines = [*golden_lines(case), adapter, ""]
            page += dropdown(case, golden_label(case), lines, code)
    return "\n".join(page).encode()


def page_links(pages: Iterable[tuple[str, str, tuple[str, ...]]]) -> str:
    """Links to pages in one folder."""
    return ", ".join(f"[{title}]({name}.md)" for name, title, _ in pages)


def golden_lines(case: str) -> list[str]:
    """What is stored of a golden case, as list items."""
    stored = golden_case(case)
    peer = stored["peer"]
    outputs = ", ".join(
        f"`{name}` {described(value)}" for name, value in stored["outputs"].items()
    )
    settings = ", ".join(f"`{key} = {v}`" for key, v in stored["params"].items())
    inputs = ", ".join(f"`{k}` {described(v)}" for k, v in stored["inputs"].items())
    tolerance = f"absolute {stored['suggested_atol']:g}"
    if stored["suggested_rtol"]:
        tolerance += f", relative {stored['suggested_rtol']:g}"
    entries = [entry for entry in rows() if case in entry.golden]
    return [
        f"- holds: {', '.join(map(zoo_link, entries))}",
        f"- case: {escape(stored['encoding'])}",
        f"- peer: {escape(peer['name'])}, {escape(peer['version'])}",
        f"- called: `{peer['callable']}`",
        f"- parameters: {settings or 'none'}",
        f"- inputs: {inputs or 'none'}",
        f"- outputs: {outputs}",
        f"- tolerance: {tolerance}; integers must be equal",
        f"- conventions: {escape(stored['notes'])}",
    ]


def described(value: Any) -> str:
    """A field of a golden case: its shape, its range, or the value itself."""
    if isinstance(value, dict) and set(value) == {"arange"}:
        first, end = value["arange"]
        return f"{first} … {end - 1}"
    part = value["real"] if isinstance(value, dict) and "real" in value else value
    sizes = []
    while isinstance(part, list):
        sizes.append(str(len(part)))
        part = part[0] if part else None
    return f"({', '.join(sizes)})" if sizes else escape(json.dumps(part))


# ---- the ledger


def settled() -> dict[str, dict[str, str]]:
    """Each settled claim: verdict, note and notebook, from cells and stored outputs."""
    rows: dict[str, dict[str, str]] = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for number, cell in enumerate(
            json.loads(path.read_text(encoding="utf-8"))["cells"]
        ):
            if cell["cell_type"] != "code" or "verdict(" not in "".join(cell["source"]):
                continue
            for claim_id, verdict, note in verdict_calls("".join(cell["source"])):
                where = f"{path.name}, cell {number}"
                if claim_id in rows:
                    raise ValueError(
                        f"{claim_id} is settled twice: {rows[claim_id]['where']} and "
                        f"{where}"
                    )
                if not any(
                    f"{claim_id} {verdict}: " in text for text in plain_outputs(cell)
                ):
                    raise ValueError(
                        f"{claim_id} ({where}): the stored output does not show the "
                        f"verdict {verdict!r}"
                    )
                rows[claim_id] = {
                    "verdict": verdict,
                    "note": note,
                    "notebook": path.stem,
                    "where": where,
                }
    return rows


def verdict_calls(source: str) -> Iterator[tuple[str, str, str]]:
    """Claim, verdict and note of each `verdict(...)` in a cell."""
    python = "\n".join(
        line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))
    )
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "verdict":
            keywords = {k.arg: k.value for k in node.keywords}
            yield (
                ast.literal_eval(node.args[0]),
                ast.literal_eval(node.args[1]),
                ast.literal_eval(keywords["note"]),
            )


def plain_outputs(cell: dict[str, Any]) -> list[str]:
    """The text/plain of every output of a cell."""
    return [
        "".join(output.get("data", {}).get("text/plain", []))
        for output in cell["outputs"]
    ]


def ledger() -> str:
    """The ledger: every claim of the article, its verdict, and a link to its cell."""
    rows = settled()
    known = claims()
    counts = {
        verdict: sum(row["verdict"] == verdict for row in rows.values())
        for verdict in VERDICTS
    }
    page = [
        MADE,
        "# The ledger of claims\n",
        f"The article series that this book follows makes {len(known)} statements that "
        "can be checked (in our words "
        "below). A verdict is the output of a cell: the cell holds the test, an "
        "experiment or a proof, and fails when "
        "its verdict is reversed. A claim that no cell settles yet is open. The works "
        "named in a row are those that "
        "our answer rests on besides the cell; where none is named, the cell is all.\n",
        f"Settled: {len(rows)} of {len(known)} ("
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        + f"). Open: {len(known) - len(rows)}.\n",
        '<div class="posenc-ledger">\n',
        "| Claim | What the article says | What we found |",
        "|---|---|---|",
    ]
    for claim in known.values():
        row = rows.get(claim.id)
        if row:
            # the verdict's box, which the book's extension makes a target
            link = f"[{claim.id}](#claim-{claim.id})"
            verdict, answer = row["verdict"], escape(row["note"])
            if claim.sources:
                answer += f" {{cite:t}}`{','.join(claim.sources)}`"
        else:
            link, verdict, answer = claim.id, "open", ""
        badge = f'<span class="posenc-badge" data-verdict="{verdict}">{verdict}</span>'
        page.append(
            f"| {link} {badge} | §{claim.section} {escape(claim.statement)} | "
            f"{answer} |"
        )
    return "\n".join([*page, "\n</div>\n"])


def overview() -> bytes:
    """The README's picture: the stored figure whose alt text the README repeats."""
    [alt] = re.findall(
        r"!\[([^\]]+)\]\(book/_static/overview\.png\)",
        (ROOT / "README.md").read_text(encoding="utf-8"),
    )
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if output.get("metadata", {}).get("image/png", {}).get("alt") == alt:
                    return base64.b64decode(output["data"]["image/png"])
    raise ValueError(f"README.md shows a figure that no notebook has: {alt!r}")


PAGES: dict[str, Callable[[], bytes]] = {
    "book/ledger.md": lambda: ledger().encode(),
    "book/zoo.md": lambda: zoo().encode(),
    "book/api.md": lambda: api().encode(),
    **{f"book/api/{name}.md": partial(api_page, name, title) for name, title, _ in API},
    **{
        f"book/api/{name}.md": partial(evidence, name, title)
        for name, title, _ in EVIDENCE
    },
    **{
        f"book/api/{name}.md": partial(golden, name, title) for name, title, _ in GOLDEN
    },
    "book/_static/overview.png": overview,
}


def main() -> int:
    """Write or check the pages; 1 if a check found a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, exit 1 if a page would change",
    )
    check = parser.parse_args().check
    changed = False
    for name, make in PAGES.items():
        path, content = ROOT / name, make()
        same = path.exists() and path.read_bytes() == content
        changed |= not same
        if not same and not check:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        print(
            f"{name}: {'unchanged' if same else 'would change' if check else 'written'}"
        )
    return int(check and changed)


if __name__ == "__main__":
    sys.exit(main())
