"""Write the pages that are made from the library and the notebooks: ledger, zoo, API reference, the README's picture.

python book/tools/pages.py            write them python book/tools/pages.py
--check    write nothing; exit 1 and name the pages that would change
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib
import inspect
import json
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import posenc_lib
from posenc_lib.ledger import VERDICTS, claims
from posenc_lib.zoo import ALSO, OPEN, Entry, encodings

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
MADE = (
    "<!-- Made by `make refresh` from the library and the notebooks. Do not edit. -->\n"
)

# The pages of the API reference: file, title, modules of posenc_lib.
API = (
    ("positions", "Place 0: positions", ("positions", "multimodal_positions")),
    ("frequencies", "Frequencies and schedules", ("frequencies", "rotary.scaling")),
    (
        "embedding",
        "Place 1: token embedding",
        tuple(
            f"embedding.{name}"
            for name in (
                "sinusoidal",
                "learned",
                "fourier",
                "grid",
                "convolutional",
                "graph",
            )
        ),
    ),
    (
        "rotary",
        "Place 2: query and key",
        ("rotary.rope", "rotary.latent", "rotary.variants"),
    ),
    ("multiaxis", "Place 2: several axes", ("rotary.multiaxis",)),
    (
        "bias",
        "Place 3: score",
        tuple(f"bias.{name}" for name in ("t5", "alibi", "kernels", "mlp", "window")),
    ),
    (
        "content",
        "Place 3′: score and content",
        tuple(
            f"content.{name}"
            for name in (
                "shaw",
                "transformer_xl",
                "deberta",
                "tupe",
                "cope",
                "dape",
                "forgetting",
                "path",
                "relative_logits",
            )
        ),
    ),
    (
        "attention",
        "Attention, and place 5: mask",
        ("attention.softmax", "attention.masks", "attention.fused"),
    ),
    ("long_context", "Longer contexts", ("attention.long_context",)),
    ("linear", "Linear attention", ("attention.linear",)),
    ("schemes", "Schemes and layers", ("scheme", "layers")),
    (
        "lab",
        "Laboratory",
        ("lab.tasks", "lab.model", "lab.train", "lab.runs", "lab.extending"),
    ),
    ("tools", "Tools", ()),  # whatever no other page has
)
# Where the encodings of a module (or one of them) are tested; the longest name that
# fits counts.
TESTS = {
    "positions": "tests/encodings/test_multiaxis.py",
    "multimodal_positions": "tests/encodings/test_multiaxis.py",
    "frequencies": "tests/test_oracles.py",
    "frequencies.pixel_frequencies": "tests/encodings/test_embedding.py",
    "embedding": "tests/encodings/test_embedding.py",
    "embedding.sinusoidal": "tests/test_oracles.py",
    "embedding.learned": "tests/test_oracles.py",
    "rotary.rope": "tests/test_oracles.py",
    "rotary.latent": "tests/encodings/test_scaling.py",
    "rotary.scaling": "tests/encodings/test_scaling.py",
    "rotary.variants": "tests/encodings/test_variants.py",
    "rotary.multiaxis": "tests/encodings/test_multiaxis.py",
    "bias": "tests/encodings/test_bias.py",
    "bias.t5": "tests/test_oracles.py",
    "bias.alibi": "tests/test_oracles.py",
    "content": "tests/encodings/test_content.py",
    "attention": "tests/encodings/test_attention.py",
    "attention.masks": "tests/test_properties.py",
    "scheme": "tests/test_properties.py",
    "layers": "tests/encodings/test_attention.py",
}
PLACES = {
    "nowhere": "No place",
    "position": "Place 0: position",
    "embedding": "Place 1: embedding",
    "transform": "Place 2: transform",
    "bias": "Place 3: bias",
    "scores": "Place 3′: scores",
    "mask": "Place 5: mask",
    "scale": "Scale",
    "linear attention": "Linear attention",
    "layer by layer": "Layer by layer",
}
ESCAPED_BAR = "\\|"  # a bar in a cell of a table
SECTION = re.compile(r"^(Equation|Shapes|Args|Raises|Source|Chapter|Returns): ?(.*)$")


# ------------------------------------------------------------------------------------------------ docstrings


def public(module_name: str) -> list[tuple[str, Any]]:
    """The public functions and classes that a module defines, in the order of its source."""
    package = importlib.import_module("posenc_lib." + module_name.split(".")[0])
    module = importlib.import_module(f"posenc_lib.{module_name}")
    listed = getattr(package, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    return [
        (name, value)
        for name, value in vars(module).items()
        if name in listed
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def unlisted() -> list[str]:
    """The modules with public names that no page of the API reference lists."""
    found = {
        info.name.removeprefix("posenc_lib.")
        for info in pkgutil.walk_packages(posenc_lib.__path__, "posenc_lib.")
    }
    listed = {module for _, _, modules in API for module in modules}
    return [
        name
        for name in sorted(found - listed)
        if not re.search(r"(^|\.)_", name) and public(name)
    ]


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
    """Docstring prose as Markdown: code in backticks stays, everything else means itself."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part)
        for part in parts
    )


def definitions(lines: list[str]) -> Iterator[str]:
    """The entries of an Args or Raises section as list items."""
    for item in re.split(
        r"\n(?=\S)", inspect.cleandoc("\n" + "\n".join(lines)).strip()
    ):
        name, _, text = item.partition(": ")
        yield f"- `{name}`: {escape(' '.join(text.split()))}"


def chapter_link(chapter: str, *, root: str = "../") -> str:
    """A link to a chapter where it exists, its number where it does not; `root` leads to the repository's root."""
    found = sorted(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
    if found:
        return f"[{chapter}]({root}notebooks/{found[0].name})"
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


# ------------------------------------------------------------------------------------------------ pages


def api() -> str:
    """The front page of the API reference: every public name, with the page that has it."""
    page = [
        MADE,
        "# API reference\n",
        "Every public function and class, place by place. Each entry ends with its "
        "source, as installed; "
        "[the zoo](zoo.md) lists the encodings alone.\n",
    ]
    for name, title, modules in API:
        page.append(f"## [{title}](api/{name}.md)\n")
        for module in modules or unlisted():
            links = ", ".join(
                f"{{ref}}`{key} <{api_label(module, key)}>`"
                for key, _ in public(module)
            )
            page.append(f"`posenc_lib.{module}`: {links}\n")
    return "\n".join(page)


def api_page(title: str, modules: tuple[str, ...]) -> bytes:
    """A page of the API reference: each callable with equation, arguments and its own source."""
    page = [MADE, f"# {title}\n"]
    for module_name in modules or unlisted():
        module = importlib.import_module(f"posenc_lib.{module_name}")
        page += [
            f"## `posenc_lib.{module_name}`\n",
            escape(inspect.getdoc(module) or "") + "\n",
        ]
        for name, value in public(module_name):
            page += api_entry(module_name, name, value)
    return "\n".join(page).encode()


def signature(name: str, value: Any) -> str:
    """How to call it, one argument a line where the line would be long."""
    text = f"{name}{str(inspect.signature(value)).replace('torch.', '')}".replace(
        "'", ""
    )
    text = re.sub(
        r"<(?:function|bound method) ([\w.]+)[^<>]* at 0x\w+>", r"\1", text
    )  # defaults that are functions
    if len(text) <= 88:
        return text
    head, _, tail = text.partition("(")
    inside, _, result = tail.rpartition(")")
    arguments = re.split(r", (?![^\[(]*[\])])", inside)
    return (
        head
        + "(\n"
        + "".join(f"    {argument},\n" for argument in arguments)
        + ")"
        + result
    )


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
    for paragraph in prose:
        lines += (
            ["```text", paragraph, "```\n"]
            if paragraph.startswith(" ")
            else [escape(paragraph) + "\n"]
        )
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
        closing.append(citations(sections["Source"][0]))
    if "Chapter" in sections:
        closing.append(
            "chapter " + chapter_link(sections["Chapter"][0].strip(), root="../../")
        )
    if closing:
        lines += [" · ".join(closing) + "\n"]
    code = inspect.getsource(value).rstrip()
    # A link to what is inside opens the box.
    label = f"({api_label(module_name, name)}-source)="
    return [
        *lines,
        ":::{dropdown} Source",
        label,
        f"`{source_file(value)}`",
        "```python",
        code,
        "```",
        ":::\n",
    ]


def api_label(module_name: str, name: str) -> str:
    """The label of an entry of the API reference, by module or package (labels know no capitals)."""
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
    """The zoo: a table of all encodings, from the schemes and docstrings, then each with all that is known of it."""
    entries = encodings()
    page = [
        "---\nhtml_theme.sidebar_secondary.remove: true  # the table needs the "
        "width\n---\n",
        MADE,
        "# The zoo of encodings\n",
        f"{len(entries)} encodings that `posenc_lib` has, and {len(OPEN)} whose "
        "equation we could not establish. "
        "*Where* is read off the objects: the places that the scheme fills, or in "
        "words what no scheme can hold. "
        "A name leads to the whole equation, parameters and golden cases; *source* is "
        "the library's own code, *test* "
        "the first test that calls it, *chapter* the section that does. *Cost* is the "
        "work in one layer beside plain "
        "attention's n² D, for n tokens, width D and H heads of d channels. *Used by* "
        "is empty where we know of no "
        "published model. Symbols are those of "
        "[Notation and conventions](../notebooks/00_notation_and_conventions.ipynb).\n",
        "A header sorts the table by its column; the field above it keeps the rows "
        "that hold every word typed, with or "
        "without hyphens: an encoding, another name of it, a model such as `Qwen3-VL`, "
        "or `open`.\n",
        '<div class="posenc-table">\n',
        "| Encoding | Where | Equation | Cost | Source | Test | Chapter | Used by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    details: dict[str, list[str]] = {}
    for entry in entries:
        _, sections = parse(inspect.getdoc(entry.source) or "")
        place = where(entry)
        chapter = section_link(entry, sections["Chapter"][0].strip())
        also = (
            f" <small>{escape(ALSO[entry.name])}</small>" if entry.name in ALSO else ""
        )
        cells = (
            f"{{ref}}`{entry.name} <{zoo_label(entry.name)}>`{also}",
            place,
            f"`{short(entry, sections)}`",
            escape(entry.cost),
            source_link(entry),
            test_link(entry),
            chapter,
            escape(entry.used_by),
        )
        page.append(
            f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |"
        )
        details.setdefault(place.split(",")[0], []).extend(
            zoo_entry(entry, sections, place, chapter)
        )
    for name, (paper, missing) in OPEN.items():
        badge = '<span class="posenc-badge" data-verdict="open">open</span>'
        page.append(
            f"| {name} | {badge} | Not established: {escape(missing)} | | paper: "
            f"{arxiv(paper)} | | | |"
        )
    page += ["\n</div>\n", '<script src="../_static/tables.js"></script>\n']
    page += ["In *parameters*: width D, H heads of d channels, L trained positions.\n"]
    for place, lines in details.items():
        page += [f"## {PLACES[place]}\n", *lines]
    page += [
        "## Open\n",
        "These are not in the library, because an equation that is guessed would be "
        "worse than none.\n",
    ]
    page += [
        f"- {name} ({arxiv(paper)}): {escape(missing)}"
        for name, (paper, missing) in OPEN.items()
    ]
    return "\n".join([*page, ""])


def zoo_entry(
    entry: Entry, sections: dict[str, list[str]], place: str, chapter: str
) -> list[str]:
    """One encoding."""
    lines = [
        f"({zoo_label(entry.name)})=",
        f"### {entry.name}\n",
        "```text",
        equation(entry, sections),
        "```\n",
        f"- where: {place}",
        f"- parameters: {escape(entry.parameters)}",
        f"- cost: {escape(entry.cost)}",
        f"- used by: {escape(entry.used_by) or 'no model that we know of'}",
        f"- source and arguments: {source_link(entry)}",
        f"- test: {test_link(entry)}",
        f"- chapter: {chapter}",
    ]
    if place != "nowhere" and "Source" in sections:
        lines.append("- paper: " + citations(sections["Source"][0]))
    if entry.golden:
        lines.append(
            f"- checked against (`tests/oracles`): {golden_cases(entry.golden)}"
        )
    return [*lines, ""]


def where(entry: Entry) -> str:
    """The places that an encoding fills, in words."""
    if isinstance(entry.where, str):
        return entry.where
    return ", ".join(entry.where.places) or "nowhere"


def equation(entry: Entry, sections: dict[str, list[str]]) -> str:
    """The equation of an encoding as its docstring states it."""
    return entry.equation or inspect.cleandoc("\n".join(sections["Equation"]))


def short(entry: Entry, sections: dict[str, list[str]]) -> str:
    """The first clauses of an equation, one at least, without the citation; wide gaps separate clauses."""
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


def test_link(entry: Entry) -> str:
    """The function that tests an encoding, in its file in the repository."""
    full_name = f"{home(entry.source)}.{entry.source.__name__}"
    file = TESTS[
        max((name for name in TESTS if f"{full_name}.".startswith(f"{name}.")), key=len)
    ]
    name, line = test_of(entry, (ROOT / file).read_text(encoding="utf-8"))
    return f"[{escape(name)}]({repository()}/blob/main/{file}#L{line})"


def test_of(entry: Entry, text: str) -> tuple[str, int]:
    """The name and line of the first test that calls an encoding; else of its golden case; else of what makes it."""
    called = re.compile(rf"\b{entry.source.__name__}\b")
    named = [
        node
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.Assign, ast.AnnAssign))
    ]
    functions = [node for node in named if isinstance(node, ast.FunctionDef)]
    golden = [
        node
        for node in functions
        if entry.golden and node.name.startswith(entry.golden)
    ]
    using = [
        node
        for node in named
        if called.search(ast.get_source_segment(text, node) or "")
    ]
    tests = [
        node
        for node in using
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    for node in (*tests, *golden, *using):
        if isinstance(node, ast.FunctionDef):
            return node.name, node.lineno
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target), node.lineno
    raise ValueError(
        f"no test names {entry.source.__name__}, the source of {entry.name!r}"
    )


def section_link(entry: Entry, chapter: str) -> str:
    """The section of the encoding's chapter that is headed by its name, or else the first whose cells call it.

    A chapter without such a section is one that does not treat the encoding yet.
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
        found = [
            heading for heading in headings if heading.startswith(f"{name}:")
        ] + list(filter(None, calling))
        return (
            f"[{chapter}](../notebooks/{path.name}#{slug(found[0])})"
            if found
            else f"{chapter} (to come)"
        )
    return chapter_link(chapter)


def slug(heading: str) -> str:
    """The anchor of a heading, as myst-parser makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def repository() -> str:
    """The repository's address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return str(project["urls"]["repository"])


def arxiv(number: str) -> str:
    """A link to a paper."""
    return f"[{number}](https://arxiv.org/abs/{number})"


def citations(keys: str) -> str:
    """Citation roles for a docstring's list of keys."""
    return ", ".join(f"{{cite:t}}`{key.strip()}`" for key in keys.split(","))


def golden_cases(prefixes: tuple[str, ...]) -> str:
    """The golden cases whose names begin so, each with the peer whose code made it."""
    names = [
        path
        for path in sorted((ROOT / "tests" / "oracles").glob("*.json"))
        if path.stem.startswith(prefixes)
    ]
    peers = (
        [json.loads(path.read_text(encoding="utf-8"))["peer"]["name"] for path in names]
        if prefixes
        else []
    )
    return (
        "; ".join(
            f"`{path.stem}` ({escape(peer)})"
            for path, peer in zip(names, peers, strict=True)
        )
        if prefixes
        else ""
    )


def settled() -> dict[str, dict[str, str]]:
    """Each settled claim: verdict, note and notebook, from the cells that settle it and their stored outputs."""
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
    """The ledger: every claim of the article, its verdict, and a link to the cell that settles it."""
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
            verdict = f'<span class="posenc-badge" data-verdict="{row["verdict"]}">{row["verdict"]}</span>'
            found = escape(row["note"]) + (
                f" {{cite:t}}`{','.join(claim.sources)}`" if claim.sources else ""
            )
        else:
            link, verdict, found = (
                claim.id,
                '<span class="posenc-badge" data-verdict="open">open</span>',
                "",
            )
        page.append(
            f"| {link} {verdict} | §{claim.section} {escape(claim.statement)} | "
            f"{found} |"
        )
    return "\n".join([*page, "\n</div>\n"])


def overview() -> bytes:
    """The README's picture: the figure whose alt text the README repeats, as stored in its notebook."""
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
    **{
        f"book/api/{name}.md": partial(api_page, title, modules)
        for name, title, modules in API
    },
    "book/_static/overview.png": overview,
}


def main() -> int:
    """Write or check the pages; the exit status says whether a check found a difference."""
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
