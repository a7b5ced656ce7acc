"""The repository's promises: one address, pinned versions, pages as generated."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"tools_{name}", ROOT / "book" / "tools" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [
        ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()
    ]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", tool("pages").PAGES)
def test_generated_page_is_what_the_library_says(name):
    assert (ROOT / name).read_bytes() == tool("pages").PAGES[name](), (
        "run `make refresh`"
    )


def test_zoo_leads_to_evidence_and_sections_themselves():
    page = text_of(ROOT / "book" / "zoo.md")
    table = [line for line in page.splitlines() if line.startswith("| {ref}")]
    api = [text_of(path) for path in (ROOT / "book" / "api").glob("*.md")]
    labels = re.findall(r"^\(([\w.-]+)\)=$", "\n".join(api), re.MULTILINE)
    assert len(labels) == len(set(labels))
    named = re.findall(r"<((?:test|golden|api|zoo)-[\w.-]+)>`", "\n".join([page, *api]))
    assert set(named) <= {*labels, *re.findall(r"^\((zoo-.+)\)=$", page, re.MULTILINE)}
    for line in table:
        evidence = line.split(" | ")[5]
        [label] = re.findall(r"<((?:test|golden)-[\w.-]+)>", evidence)
        assert label in labels
    headings = {
        "T5 bias": "t5-a-number",
        "ALiBi": "alibi-nothing",
        "Transformer-XL": "transformer-xl-the-four",
    }
    for name, anchor in headings.items():
        [row] = [line for line in table if line.startswith(f"| {{ref}}`{name} <")]
        assert f".ipynb#{anchor}" in row


def test_every_public_module_is_on_one_page():
    pages = tool("pages")
    on_pages = [module for name, _, _ in pages.API for module in pages.modules_of(name)]
    assert sorted(on_pages) == sorted(pages.modules())
    for module in ("attention.hankel", "attention.toeplitz", "rotary.pairs"):
        assert module in on_pages
    assert pages.modules_of("multiaxis") == ["rotary.multiaxis"]


def api_pages() -> str:
    """The pages of the API reference, as they would be written."""
    pages = tool("pages")
    return "\n".join(
        pages.api_page(name, title).decode() for name, title, _ in pages.API
    )


def shown_defaults(signature: str) -> dict[str, object]:
    """The defaults of a shown signature that are literals, by argument."""
    [definition] = ast.parse(f"def {signature}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    of = definition.args
    places = [*of.posonlyargs, *of.args]
    given = places[len(places) - len(of.defaults) :]
    literals = (ast.Constant, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict)
    return {
        argument.arg: ast.literal_eval(default)
        for argument, default in zip(
            [*given, *of.kwonlyargs], [*of.defaults, *of.kw_defaults], strict=True
        )
        if isinstance(default, literals)
    }


def test_every_signature_on_the_pages_is_python_with_its_own_defaults():
    pages = tool("pages")
    entry = r"^\((api-[\w.-]+)\)=\n### `(\w+)`\n\n```python\n(\2\(.*?)\n```"
    found = re.findall(entry, api_pages(), re.MULTILINE | re.DOTALL)
    shown = {label: signature for label, _, signature in found}
    for module in pages.modules():
        for name, value in pages.public(module):
            text = shown.pop(pages.api_label(module, name))
            assert "ForwardRef" not in text
            assert max(map(len, text.splitlines())) <= 88
            wanted = {
                parameter.name: parameter.default
                for parameter in inspect.signature(value).parameters.values()
                if isinstance(parameter.default, str | int | float | tuple)
            }
            assert wanted.items() <= shown_defaults(text).items(), text
    assert not shown


def test_names_that_prose_uses_have_an_entry():
    pages = tool("pages")
    text, front = api_pages(), pages.api()
    for module, names in pages.CONSTANTS.items():
        for name in names:
            label = pages.api_label(module, name)
            assert f"({label})=\n### `{name}`\n" in text
            assert f"{{ref}}`{name} <{label}>`" in front
            assert re.search(rf"^{name}(?:: .*)? = ", text, re.MULTILINE)
    named = {name for names in pages.CONSTANTS.values() for name in names}
    assert named == {"NOPE", "PLACES", "Layout", "LAYOUTS", "ScheduleFunction"}


def test_an_item_of_a_check_is_a_link():
    pages = tool("pages")
    text = "golden; owner/name@0123456789ab:a/\n    file.py:\n    Class.method; parity"
    items = pages.checked_items(text.replace("a/\n    ", "a/"))
    assert items == [
        "golden",
        "owner/name@0123456789ab:a/file.py:Class.method",
        "parity",
    ]
    assert pages.checked_item(items[1], None) == (
        "[owner/name](https://github.com/owner/name/blob/0123456789ab/a/file.py), "
        "`Class.method`"
    )
    assert pages.checked_item("derived, unchecked", None) == "derived, unchecked"


def test_repository_address_is_the_same_everywhere():
    tools = tool("address")
    address = tools.address()
    owner = address.removeprefix("https://github.com/").split("/")[0]
    for pattern in tools.FILES:
        for path in ROOT.glob(pattern):
            assert address in text_of(path), f"{path.name} does not name {address}"
    for path in tracked():
        if path.suffix in (
            ".md",
            ".yml",
            ".toml",
            ".cff",
            ".ipynb",
            ".py",
            ".txt",
            ".html",
            ".css",
        ):
            for found in re.findall(
                rf"https://(?:github\.com/{owner}/[\w.-]+|{owner}\.github\.io/[\w.-]+/)",
                text_of(path),
            ):
                assert found in (address, tools.pages(address)), (
                    f"{path.name} names {found}"
                )


def test_the_code_of_the_readme_runs():
    blocks = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    names = {}
    for block in blocks:
        exec(block, names)
    assert names["y"].shape == (2, 8, 128, 64)


def test_setting_the_address_reaches_every_place(tmp_path, monkeypatch):
    tools = tool("address")
    old, new = tools.address(), "https://github.com/another_account/a-book"
    for pattern in tools.FILES:
        for path in ROOT.glob(pattern):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text_of(path), encoding="utf-8")
    monkeypatch.setattr(tools, "ROOT", tmp_path)
    assert tools.main(new) == 0
    for copy in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert old not in text_of(copy)
        assert tools.pages(old) not in text_of(copy)
        assert new in text_of(copy)
    assert tools.main("http://example.org/x") == 2


def test_every_direct_requirement_is_pinned_exactly():
    for name in ("requirements.txt", "book/requirements.txt", "constraints.txt"):
        for line in text_of(ROOT / name).splitlines():
            if line and not line.startswith(("#", "-r")):
                assert re.fullmatch(r"[\w.-]+==[\w.]+", line), f"{name}: {line!r}"


def test_setup_cell_is_the_same_in_all_notebooks():
    cells = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = [
            cell
            for cell in json.loads(text_of(path))["cells"]
            if cell["cell_type"] == "code"
        ]
        cells[path.name] = "".join(code[0]["source"])
    assert len(set(cells.values())) == 1, {
        name: source[:80] for name, source in cells.items()
    }
    assert next(iter(cells.values())).startswith("# Setup.")


def test_every_chapter_is_in_the_table_of_contents():
    toc = text_of(ROOT / "_toc.yml")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{path.stem}" in toc


def test_notebook_prose_uses_standard_tex_and_no_pictures():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(text_of(path))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                assert not re.search(
                    r"\\(newcommand|def|DeclareMathOperator)\b", source
                ), path.name
                assert not re.search(r"\\\(|\\\[", source), (
                    f"{path.name}: only $…$ and $$…$$ work everywhere"
                )
                assert not re.search(r"!\[[^\]]*\]\((?!https?:|data:)", source), (
                    path.name
                )
            else:
                assert not any(
                    "text/latex" in output.get("data", {}) for output in cell["outputs"]
                ), path.name


def test_notebooks_import_only_what_colab_has():
    allowed = {
        "torch",
        "numpy",
        "matplotlib",
        "sympy",
        "posenc_lib",
        "ipywidgets",
    } | sys.stdlib_module_names
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(text_of(path))["cells"]:
            if cell["cell_type"] == "code":
                imported = re.findall(
                    r"^\s*(?:import|from)\s+(\w+)",
                    "".join(cell["source"]),
                    re.MULTILINE,
                )
                assert set(imported) <= allowed, (
                    f"{path.name} imports {set(imported) - allowed}"
                )


def outputs() -> list[tuple[str, dict]]:
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(text_of(path))["cells"]:
            found += [(path.name, output) for output in cell.get("outputs", ())]
    return found


def test_no_stated_tolerance_swallows_its_line():
    """Numbers that are small beside their tolerance compare nothing, unless the line
    says "nearly zero".
    """
    rules = runpy.run_path(str(ROOT / "notebooks" / "conftest.py"))
    for name, output in outputs():
        text = "".join(output.get("text", "")) or "".join(
            output.get("data", {}).get("text/plain", "")
        )
        for line in text.splitlines():
            tolerance = rules["TOLERANCE"].search(line)
            if tolerance:
                numbers = [
                    float(n.replace(",", ""))
                    for n in rules["NUMBER"].findall(line[: tolerance.start()])
                ]
                finite = [abs(number) for number in numbers if number == number]
                limit = float(tolerance[1])
                assert not finite or max(finite) > limit / 10 or limit <= 0.05, (
                    f"{name}: {line}"
                )


def test_alt_text_is_the_first_line_of_the_description():
    for name, output in outputs():
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt is not None:
            assert "".join(output["data"]["text/plain"]).startswith(alt), (
                f"{name}: {alt}"
            )


def test_evidence_is_computed():
    """No `verdict(..., claim=True)`.

    Evidence that is a constant would agree with any library.
    """
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(text_of(path))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] != "code" or "verdict(" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                if (
                    isinstance(node, ast.Call)
                    and getattr(node.func, "id", getattr(node.func, "attr", ""))
                    == "verdict"
                ):
                    evidence = {
                        k.arg: k.value
                        for k in node.keywords
                        if k.arg in ("claim_holds", "correction_holds")
                    }
                    assert isinstance(node.func, ast.Name), (
                        f"{path.name}: call verdict by its own name"
                    )
                    for name, value in evidence.items():
                        names = [n for n in ast.walk(value) if isinstance(n, ast.Name)]
                        assert names, (
                            f"{path.name}: {name} is a constant in {source[:60]!r}"
                        )


def test_citations_exist_in_the_bibliography():
    keys = set(
        re.findall(r"@\w+\{([\w.-]+),", text_of(ROOT / "book" / "references.bib"))
    )
    pages = [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "book").glob("*.md")]
    for path in pages:
        for group in re.findall(r"\{cite:[pt]\}`([^`]+)`", text_of(path)):
            for key in group.split(","):
                assert key.strip() in keys, f"{path.name} cites {key.strip()!r}"


def test_rendering_needs_neither_torch_nor_the_library():
    wanted = text_of(ROOT / "book" / "requirements.txt")
    assert "torch" not in [re.split("==", line)[0] for line in wanted.splitlines()]
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['posenc_lib'] = None; "
        "sys.path.insert(0, 'book/_ext'); "
        "import posenc_book"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_ipywidgets_is_optional_when_the_library_is_imported():
    code = (
        "import sys; sys.modules['ipywidgets'] = None; sys.modules['IPython'] = None; "
    )
    code += "import posenc_lib.figures, posenc_lib.ledger"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("changed", "title", "argument"),
    [
        ("posenc_lib/bias/alibi.py", "changed modules", "tests/bias/test_alibi.py"),
        ("posenc_lib/bias/alibi.py", "rows", "alibi_slopes or alibi"),
        ("posenc_lib/bias/_pairs.py", "changed modules", "tests/bias/test_alibi.py"),
        ("posenc_lib/__main__.py", "changed modules", "tests/test_main.py"),
        ("tests/bias/test_alibi.py", "changed modules", "tests/bias/test_alibi.py"),
        ("posenc_lib/_checks.py", "every unit test", "pytest"),
        ("posenc_lib/gone.py", "every unit test", "pytest"),
        ("tests/helpers.py", "every unit test", "pytest"),
        ("notebooks/10_rope_core_idea.ipynb", "notebooks", "loadfile"),
    ],
)
def test_the_quick_loop_runs_what_a_change_concerns(changed, title, argument):
    commands = dict(tool("quick").steps([Path(changed)]))
    [command] = [command for name, command in commands.items() if title in name]
    assert argument in command


def test_the_quick_loop_runs_nothing_for_prose():
    assert tool("quick").steps([Path("README.md")]) == []


# Words that have given way to the field's own. Numbers of places stand in one table,
# in PositionScheme's docstring.
GONE = re.compile(
    r"\bplace \d|\bPlace \d|\bis no int\b|\bno ints\b|\bat hand\b"
    r"|\b(?:settles\(|real_keys|same_document|window_mask|turn_heads)"
)


@pytest.mark.parametrize("folder", ["posenc_lib", "notebooks", "book", "tests"])
def test_words_that_have_gone_stay_away(folder):
    texts = [
        path
        for path in tracked()
        if path.relative_to(ROOT).parts[0] == folder
        and path.suffix in (".py", ".md", ".ipynb")
        and path != Path(__file__)
    ]
    for path in texts:
        found = GONE.search(text_of(path))
        assert not found, f"{path.relative_to(ROOT)}: {found[0]!r}"
