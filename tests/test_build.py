"""The built book is whole: every page, every output, every link."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from xml.etree import ElementTree

import pytest
import yaml

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build" / "html"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
CHAPTERS = [
    TOC["root"],
    *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]),
]
NOTEBOOKS = [chapter for chapter in CHAPTERS if (ROOT / f"{chapter}.ipynb").exists()]
BASE = CONFIG["html"]["baseurl"]


class Page(HTMLParser):
    """What the tests need to know of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        attributes = dict(pairs)
        self.tags.append((tag, attributes))
        if name := attributes.get("id"):
            self.ids.add(name)
        if tag == "a" and (target := attributes.get("href")):
            self.links.append(target)
        # A canonical link is an address to read, not one that a browser asks for.
        if (
            tag == "link"
            and attributes.get("rel") != "canonical"
            and (target := attributes.get("href"))
        ):
            self.fetched.append(target)
        if target := attributes.get("src"):
            self.fetched.append(target)

    def count(self, tag: str, marker: str) -> int:
        return sum(
            name == tag and marker in (attributes.get("class") or "").split()
            for name, attributes in self.tags
        )


@cache
def read(name: str) -> Page:
    return Page((HTML / name).read_text())


@pytest.fixture(autouse=True)
def _built(request: pytest.FixtureRequest) -> None:
    if not HTML.is_dir() and request.node.name != "test_book_is_built":
        pytest.skip("test_book_is_built says what is missing")


def test_book_is_built() -> None:
    assert HTML.is_dir(), f"there is no {HTML}: build the book first, with `make book`"


def test_pages_are_those_of_the_toc() -> None:
    built = {
        file.relative_to(HTML).as_posix()
        for file in HTML.rglob("*.html")
        if "_static" not in file.parts
    }
    assert built == {
        *(f"{chapter}.html" for chapter in CHAPTERS),
        "index.html",
        "search.html",
        "404.html",
    }, "a page too many is left from an earlier build: `rm -r _build`, then build again"


def test_sitemap_lists_every_chapter() -> None:
    listed = [
        element.text
        for element in ElementTree.parse(HTML / "sitemap.xml").iter()
        if element.tag.endswith("loc")
    ]
    assert sorted(map(str, listed)) == sorted(
        f"{BASE}{chapter}.html" for chapter in CHAPTERS
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_page_names_itself_to_others(chapter: str) -> None:
    properties = {
        attributes.get("property"): attributes.get("content")
        for _, attributes in read(f"{chapter}.html").tags
    }
    assert properties["og:url"] == f"{BASE}{chapter}.html"
    assert properties["og:site_name"] == CONFIG["title"]


@pytest.mark.parametrize("chapter", NOTEBOOKS)
def test_outputs_are_on_the_page(chapter: str) -> None:
    notebook = json.loads((ROOT / f"{chapter}.ipynb").read_text())
    outputs = [
        output for cell in notebook["cells"] for output in cell.get("outputs", [])
    ]
    bundles = [output["data"] for output in outputs if "data" in output]
    rich = ["".join(data["text/html"]) for data in bundles if "text/html" in data]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    page = read(f"{chapter}.html")
    assert outputs, f"{chapter} has no stored outputs: run `make refresh`"
    assert page.count("div", "text_html") == len(rich)
    assert page.count("div", "stream") == sum(
        output["output_type"] == "stream" for output in outputs
    )
    assert page.count("div", "posenc-verdict") == sum(
        "posenc-verdict" in html for html in rich
    )
    sliders = sum("posenc-frames" in html for html in rich)
    assert page.count("div", "posenc-frames") == sliders
    # The description of every figure and slider stands behind it, and each figure has
    # its own alt text.
    assert page.count("details", "figure-data") == sliders + len(figures)
    alts = [attributes.get("alt") for tag, attributes in page.tags if tag == "img"]
    for output in figures:
        assert output["metadata"]["image/png"]["alt"] in alts


@pytest.mark.parametrize("chapter", NOTEBOOKS)
def test_notebook_opens_in_colab_and_downloads(chapter: str) -> None:
    owner_and_name = urlsplit(CONFIG["repository"]["url"]).path
    links = read(f"{chapter}.html").links
    assert (
        f"https://colab.research.google.com/github{owner_and_name}/blob/main/{chapter}.ipynb"
        in links
    )
    [download] = [link for link in links if link.endswith(f"_sources/{chapter}.ipynb")]
    assert (HTML / chapter).parent.joinpath(download).read_bytes() == (
        ROOT / f"{chapter}.ipynb"
    ).read_bytes()


def test_no_page_fetches_from_elsewhere() -> None:
    for file in HTML.rglob("*.html"):
        text = file.read_text()
        assert "thebe" not in text, file
        for target in read(file.relative_to(HTML).as_posix()).fetched:
            assert not urlsplit(target).netloc, f"{file} fetches {target}"
    for file in (HTML / "_static").rglob("*.css"):
        assert not re.search(
            r"(url\(|@import)\s*['\"]?(https?:)?//", file.read_text()
        ), file


@pytest.mark.parametrize("name", [f"{chapter}.html" for chapter in CHAPTERS])
def test_links_within_the_book_lead_somewhere(name: str) -> None:
    for link in read(name).links:
        target, fragment = urldefrag(urljoin(name, link))
        if urlsplit(target).scheme:
            continue
        file = unquote(urlsplit(target).path)
        assert (HTML / file).exists(), f"{name} links to {link}"
        if fragment and file.endswith(".html"):
            assert unquote(fragment) in read(file).ids, (
                f"{name} links to {link}, but {file} has no such id"
            )


def test_ledger_and_chapters_agree() -> None:
    """Every verdict in a chapter is a link of the ledger, and every such link leads to
    a verdict.
    """
    ledger = {urldefrag(link).fragment for link in read("book/ledger.html").links}
    verdicts = {
        name
        for chapter in NOTEBOOKS
        for name in read(f"{chapter}.html").ids
        if name.startswith("claim-")
    }
    assert verdicts
    assert {name for name in ledger if name.startswith("claim-")} == verdicts
