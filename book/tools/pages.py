"""Write the pages that are made from the library and the notebooks: ledger, zoo, API reference, the README's picture.

python book/tools/pages.py            write them
python book/tools/pages.py --check    write nothing; exit 1 and name the pages that would change
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc_lib.ledger import HOLDS, claims
from posenc_lib.zoo import Entry, encodings

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
MADE = "<!-- Made by `make refresh` from the library and the notebooks. Do not edit. -->\n"

MODULES = (
    ("posenc_lib.positions", "Place 0: positions"),
    ("posenc_lib.frequencies", "Frequencies"),
    ("posenc_lib.embedding", "Place 1: token embedding"),
    ("posenc_lib.rotary", "Place 2: query and key"),
    ("posenc_lib.bias", "Place 3: score"),
    ("posenc_lib.attention", "Attention and place 5: mask"),
    ("posenc_lib.scheme", "Schemes"),
    ("posenc_lib.properties", "Probes"),
    ("posenc_lib.figures", "Figures"),
    ("posenc_lib.ledger", "Ledger"),
    ("posenc_lib.zoo", "Zoo"),
)
SECTION = re.compile(r"^(Equation|Shapes|Args|Raises|Source|Chapter|Returns): ?(.*)$")


# ------------------------------------------------------------------------------------------------ docstrings


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """The public functions and classes of a module, in the order of its source (or of __all__ in a package)."""
    if hasattr(module, "__all__"):
        return [(name, getattr(module, name)) for name in module.__all__ if callable(getattr(module, name))]
    return [
        (name, value)
        for name, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


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
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part) for part in parts)


def definitions(lines: list[str]) -> Iterator[str]:
    """The entries of an Args or Raises section as list items."""
    for item in re.split(r"\n(?=\S)", inspect.cleandoc("\n" + "\n".join(lines)).strip()):
        name, _, text = item.partition(": ")
        yield f"- `{name}`: {escape(' '.join(text.split()))}"


def chapter_link(chapter: str, *, here: str = "../notebooks/") -> str:
    """A link to a chapter where it exists, its number where it does not."""
    found = sorted(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
    if found:
        return f"[{chapter}]({here}{found[0].name})"
    pages = {"notation": "../notebooks/00_notation_and_conventions.ipynb", "ledger": "ledger.md", "zoo": "zoo.md"}
    return f"[{chapter}]({pages[chapter]})" if chapter in pages else f"{chapter} (to come)"


# ------------------------------------------------------------------------------------------------ pages


def api() -> str:
    """The API reference: every public callable with equation, arguments and its own source."""
    page = [
        MADE,
        "# API reference\n",
        "Every public function and class, place by place. Each entry ends with its source, as installed; "
        "[the zoo](zoo.md) lists the encodings alone.\n",
    ]
    for module_name, title in MODULES:
        module = importlib.import_module(module_name)
        page += [f"## {title}\n", f"Module `{module_name}`. {escape(inspect.getdoc(module) or '')}\n"]
        for name, value in public(module):
            page += api_entry(module_name, name, value)
    return "\n".join(page)


def signature(name: str, value: Any) -> str:
    """How to call it, one argument a line where the line would be long."""
    text = f"{name}{str(inspect.signature(value)).replace('torch.', '')}".replace("'", "")
    if len(text) <= 88:
        return text
    head, _, tail = text.partition("(")
    inside, _, result = tail.rpartition(")")
    arguments = re.split(r", (?![^\[(]*[\])])", inside)
    return head + "(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")" + result


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
        lines += ["```text", paragraph, "```\n"] if paragraph.startswith(" ") else [escape(paragraph) + "\n"]
    for title in ("Equation", "Shapes"):
        text = inspect.cleandoc("\n".join(sections.get(title, ["none"])))
        if text != "none":
            lines += [f"{title}:\n", "```text", text, "```\n"]
    for title in ("Args", "Raises"):
        if title in sections:
            lines += [f"{'Arguments' if title == 'Args' else title}:\n", *definitions(sections[title]), ""]
    closing = []
    if "Source" in sections:
        closing.append(citations(sections["Source"][0]))
    if "Chapter" in sections:
        closing.append("chapter " + chapter_link(sections["Chapter"][0].strip()))
    if closing:
        lines += [" · ".join(closing) + "\n"]
    code = inspect.getsource(value).rstrip()
    return [*lines, ":::{dropdown} Source", f"`{source_file(value)}`", "```python", code, "```", ":::\n"]


def api_label(module_name: str, name: str) -> str:
    """The label of an entry of the API reference (labels know no capitals)."""
    return f"api-{module_name.split('.')[-1]}-{name}".lower().replace("_", "-")


def source_file(value: Any) -> str:
    """The file of an object, from the repository's root."""
    return Path(inspect.getsourcefile(value) or "").resolve().relative_to(ROOT).as_posix()


def zoo() -> str:
    """The zoo: a row for each encoding, from the schemes and docstrings."""
    page = [
        MADE,
        "# The zoo of encodings\n",
        "Every encoding in `posenc_lib`: where it enters attention, its equation as the library's docstring states it, "
        "what it costs, who uses it, and what it is checked against. The column *where* is read off the objects: it "
        "names the places that the scheme fills. Symbols are those of "
        "[Notation and conventions](../notebooks/00_notation_and_conventions.ipynb).\n",
    ]
    page += ["| Encoding | Where | Used by | Chapter |", "|---|---|---|---|"]
    details = []
    for entry in encodings():
        _, sections = parse(inspect.getdoc(entry.source) or "")
        where = ", ".join(entry.scheme.places) or "nowhere"
        chapter = chapter_link(sections["Chapter"][0].strip())
        label = f"zoo-{entry.name}".lower().replace(",", "").replace(" ", "-")
        page.append(f"| {{ref}}`{entry.name} <{label}>` | {where} | {escape(entry.used_by)} | {chapter} |")
        details += zoo_entry(entry, sections, label, where, chapter)
    return "\n".join([*page, "", *details])


def zoo_entry(entry: Entry, sections: dict[str, list[str]], label: str, where: str, chapter: str) -> list[str]:
    """One encoding."""
    equation = inspect.cleandoc("\n".join(sections["Equation"]))
    if not entry.scheme.places:
        equation = "e_mn = q_mᵀ k_n / √d: no term for position; only a causal mask tells order"
    module = next(m for m, _ in MODULES if entry.source.__module__.startswith(m))
    name = entry.source.__name__
    lines = [
        f"({label})=",
        f"## {entry.name}\n",
        "```text",
        equation,
        "```\n",
        f"- where: {where}",
        f"- cost: {escape(entry.cost)}",
        f"- used by: {escape(entry.used_by)}",
        f"- source and arguments: {{ref}}`{name} <{api_label(module, name)}>`",
        f"- chapter: {chapter}",
    ]
    if entry.scheme.places and "Source" in sections:
        lines.append("- paper: " + citations(sections["Source"][0]))
    if entry.golden:
        lines.append(f"- checked against (`tests/oracles`): {golden_cases(entry.golden)}")
    return [*lines, ""]


def citations(keys: str) -> str:
    """Citation roles for a docstring's list of keys."""
    return ", ".join(f"{{cite:t}}`{key.strip()}`" for key in keys.split(","))


def golden_cases(prefixes: tuple[str, ...]) -> str:
    """The golden cases whose names begin so, each with the peer whose code made it."""
    names = [path for path in sorted((ROOT / "tests" / "oracles").glob("*.json")) if path.stem.startswith(prefixes)]
    peers = [json.loads(path.read_text(encoding="utf-8"))["peer"]["name"] for path in names] if prefixes else []
    return (
        "; ".join(f"`{path.stem}` ({escape(peer)})" for path, peer in zip(names, peers, strict=True))
        if prefixes
        else ""
    )


def settled() -> dict[str, dict[str, str]]:
    """Each settled claim: verdict, note and notebook, from the cells that settle it and their stored outputs."""
    rows: dict[str, dict[str, str]] = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] != "code" or "settles(" not in "".join(cell["source"]):
                continue
            for claim_id, verdict, note in settling_calls("".join(cell["source"])):
                where = f"{path.name}, cell {number}"
                if claim_id in rows:
                    raise ValueError(f"{claim_id} is settled twice: {rows[claim_id]['where']} and {where}")
                if not any(f"{claim_id} {verdict}: " in text for text in plain_outputs(cell)):
                    raise ValueError(f"{claim_id} ({where}): the stored output does not show the verdict {verdict!r}")
                rows[claim_id] = {"verdict": verdict, "note": note, "notebook": path.stem, "where": where}
    return rows


def settling_calls(source: str) -> Iterator[tuple[str, str, str]]:
    """Claim, verdict and note of each `settles(...)` in a cell."""
    python = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "settles":
            keywords = {k.arg: k.value for k in node.keywords}
            yield (
                ast.literal_eval(node.args[0]),
                ast.literal_eval(keywords["verdict"]),
                ast.literal_eval(keywords["note"]),
            )


def plain_outputs(cell: dict[str, Any]) -> list[str]:
    """The text/plain of every output of a cell."""
    return ["".join(output.get("data", {}).get("text/plain", [])) for output in cell["outputs"]]


def ledger() -> str:
    """The ledger: every claim of the article, its verdict, and a link to the cell that settles it."""
    rows = settled()
    known = claims()
    counts = {verdict: sum(row["verdict"] == verdict for row in rows.values()) for verdict in HOLDS}
    page = [
        MADE,
        "# The ledger of claims\n",
        f"The article series that this book follows makes {len(known)} statements that can be checked (in our words "
        "below). Each gets a verdict from an experiment or a proof. A verdict is the output of a cell: the cell holds "
        "the test, and fails when its verdict is reversed. A claim that no cell settles yet is open.\n",
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
            link = f"[{claim.id}](#claim-{claim.id})"  # the verdict's box, which the book's extension makes a target
            verdict = f'<span class="posenc-badge" data-verdict="{row["verdict"]}">{row["verdict"]}</span>'
            found = escape(row["note"])
        else:
            link, verdict, found = claim.id, '<span class="posenc-badge" data-verdict="open">open</span>', ""
        page.append(f"| {link} {verdict} | §{claim.section} {escape(claim.statement)} | {found} |")
    return "\n".join([*page, "\n</div>\n"])


def overview() -> bytes:
    """The README's picture: the figure whose alt text the README repeats, as stored in its notebook."""
    [alt] = re.findall(r"!\[([^\]]+)\]\(book/_static/overview\.png\)", (ROOT / "README.md").read_text(encoding="utf-8"))
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
    "book/_static/overview.png": overview,
}


def main() -> int:
    """Write or check the pages; the exit status says whether a check found a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a page would change")
    check = parser.parse_args().check
    changed = False
    for name, make in PAGES.items():
        path, content = ROOT / name, make()
        same = path.exists() and path.read_bytes() == content
        changed |= not same
        if not same and not check:
            path.write_bytes(content)
        print(f"{name}: {'unchanged' if same else 'would change' if check else 'written'}")
    return int(check and changed)


if __name__ == "__main__":
    sys.exit(main())
