"""Every page of the built book: light and dark, on a phone and on a desk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator

from .conftest import CHROMIUM, HTML, ROOT, Reader, Visit

pytestmark = pytest.mark.site

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
CHAPTERS = [
    TOC["root"],
    *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]),
]
MISSING = "no/such/page.html"  # shows the 404 page
PAGES = [*(f"{chapter}.html" for chapter in CHAPTERS), "search.html", MISSING]
MOST_BYTES = 1_500_000
PHONE, DESK = (390, 844), (1280, 900)

# What axe finds in the theme itself: rule -> the theme's elements that it may name.
THEME_FAULTS = {
    "label-content-name-mismatch": (
        r'class="[^"]*(search-button|theme-switch-button|nav-link)|<summary aria-label'
    ),
    "region": r'class="[^"]*(navbar-brand|logo__title)',
}


def test_book_and_browser_are_there() -> None:
    assert HTML.is_dir(), f"there is no {HTML}: build the book first, with `make book`"
    assert CHROMIUM, (
        "found no Chromium: `apt-get install chromium`, or name one in the "
        "environment, CHROMIUM=/path/to/it"
    )


# Rendering the formulas takes most of a visit. So each theme opens a page at one width
# and is then resized to the other; between them a page is opened at both.
WIDTHS = {"light": (PHONE, DESK), "dark": (DESK, PHONE)}


@pytest.mark.parametrize("theme", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_page(reader: Reader, name: str, theme: str) -> None:
    first, second = WIDTHS[theme]
    visit = reader.visit(name, theme=theme, viewport=first)
    assert visit.status == (404 if name == MISSING else 200)
    assert visit.page.locator("html").get_attribute("data-theme") == theme
    faults = [
        fault
        for check in (formulas, pictures, overflow, accessibility, weight)
        for fault in check(reader, visit)
    ]
    visit.page.set_viewport_size({"width": second[0], "height": second[1]})
    visit.page.wait_for_timeout(400)  # the theme waits 300 ms to make boxes focusable
    faults += [
        f"resized to {second[0]}: {fault}"
        for check in (overflow, accessibility, foreign_requests)
        for fault in check(reader, visit)
    ]
    faults += visit.complaints
    assert not faults, "\n".join(faults)


def foreign_requests(reader: Reader, visit: Visit) -> Iterator[str]:
    for url in sorted(visit.requests):
        if not url.startswith((reader.address + "/", "data:")):
            yield f"asks another host: {url}"


def weight(reader: Reader, visit: Visit) -> Iterator[str]:
    sizes = visit.sizes()
    if sum(sizes.values()) > MOST_BYTES:
        yield f"transfers {sum(sizes.values())} bytes, more than {MOST_BYTES}: {sizes}"


def formulas(reader: Reader, visit: Visit) -> Iterator[str]:
    yield from visit.page.evaluate("""() => [
        ...[...document.querySelectorAll('.math')]
            .filter(e => e.querySelectorAll('mjx-container').length !== 1)
            .map(e => 'formula not rendered: ' + e.textContent),
        ...[...document.querySelectorAll('mjx-merror, [data-mjx-error]')]
            .map(e => 'error in a formula: ' + e.outerHTML),
        // MathJax writes a command that it does not know as text.
        ...[...document.querySelectorAll('mjx-assistive-mml mtext')]
            .filter(e => e.textContent.startsWith('\\\\'))
            .map(e => 'unknown command in a formula: ' + e.textContent),
    ]""")
    prose = visit.page.evaluate("""() => {
        const main = document.querySelector('main').cloneNode(true);
        main.querySelectorAll('pre, code, script, mjx-container')
            .forEach(e => e.remove());
        return main.textContent;
    }""")
    yield from (
        f"a dollar sign in the prose, perhaps a formula: …{it}…"
        for it in re.findall(r".{0,30}\$.{0,30}", prose)
    )


def pictures(reader: Reader, visit: Visit) -> Iterator[str]:
    for alt in visit.page.evaluate(
        "() => [...document.querySelectorAll('article img')].map(image => image.alt)"
    ):
        if len(alt.split()) < 3:
            yield f"a picture's alt text is no sentence: {alt!r}"


def overflow(reader: Reader, visit: Visit) -> Iterator[str]:
    """Nothing makes the page scroll sideways, and nothing is cut off outside a box that
    scrolls.
    """
    yield from visit.page.evaluate("""() => {
        const width = document.documentElement.clientWidth;
        const faults = document.documentElement.scrollWidth > width
            ? ['the page scrolls sideways'] : [];
        const scrolls = e => e && e.tagName !== 'ARTICLE'
            && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
                || scrolls(e.parentElement));
        for (const e of document.querySelectorAll('article *'))
            if (e.getBoundingClientRect().right > width + 1
                && !e.closest('mjx-assistive-mml') && !scrolls(e))
                faults.push('sticks out of the page: ' + e.outerHTML.slice(0, 120));
        return faults.slice(0, 5);
    }""")


def accessibility(reader: Reader, visit: Visit) -> Iterator[str]:
    # Measuring colours takes most of the time. They do not depend on the width, so once
    # for each theme is enough; and highlighted code has thousands of words in a dozen
    # colours, so a few words of each are.
    visit.page.evaluate("""() => {
        const seen = {};
        for (const word of document.querySelectorAll('pre span[class]')) {
            seen[word.className] = (seen[word.className] ?? 0) + 1;
            if (seen[word.className] > 5) word.replaceWith(...word.childNodes);
        }
        document.querySelectorAll('pre').forEach(block => block.normalize());
    }""")
    rules = {
        "color-contrast": {
            "enabled": visit.page.viewport_size == {"width": DESK[0], "height": DESK[1]}
        }
    }
    # axe would ask for the style sheets again, by addresses of its own making.
    options = {"resultTypes": ["violations"], "rules": rules, "preload": False}
    for violation in Axe().run(visit.page, options=options).response["violations"]:
        for node in violation["nodes"]:
            if not known(visit, violation["id"], node):
                yield f"axe: {violation['id']}: {node['html'][:200]}"


def known(visit: Visit, rule: str, node: dict[str, Any]) -> bool:
    if (
        rule == "empty-table-header"
    ):  # axe does not read the MathML that MathJax gives to screen readers
        return (
            visit.page.locator(node["target"][0]).locator("mjx-assistive-mml").count()
            > 0
        )
    return rule in THEME_FAULTS and bool(re.search(THEME_FAULTS[rule], node["html"]))


def pages_with(marker: str) -> list[str]:
    found = [
        name
        for name in PAGES
        if name != MISSING and marker in (HTML / name).read_text()
    ]
    assert found, (
        f"no page holds {marker!r}: is the book built from the present sources?"
    )
    return found


def shown(slider: Locator) -> tuple[int, str]:
    """The index of the one visible frame, and the slider's announced value."""
    visible = [
        index
        for index, frame in enumerate(slider.locator("img").all())
        if frame.is_visible()
    ]
    assert len(visible) == 1
    text = slider.locator("output").inner_text()
    assert text
    assert (slider.locator("input").get_attribute("aria-valuetext") or "").startswith(
        text
    )
    return visible[0], text


def test_sliders(reader: Reader) -> None:
    for name in pages_with("posenc-frames"):
        page = reader.visit(name).page
        for slider in page.locator(".posenc-frames").all():
            control, last = slider.locator("input"), slider.locator("img").count() - 1
            control.focus()
            page.keyboard.press("Home")
            first = shown(slider)
            page.keyboard.press("ArrowRight")
            second = shown(slider)
            page.keyboard.press("End")
            final = shown(slider)
            assert [first[0], second[0], final[0]] == [0, 1, last]
            assert first[1] != second[1]

            box = control.bounding_box()
            assert box
            page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
            page.mouse.down()
            page.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2, steps=5)
            page.mouse.up()
            assert shown(slider) == first


def test_sliders_without_javascript(reader: Reader) -> None:
    for name in pages_with("posenc-frames"):
        page = reader.visit(name, javascript=False).page
        for slider in page.locator(".posenc-frames").all():
            assert sum(frame.is_visible() for frame in slider.locator("img").all()) == 1


def test_search_finds_a_chapter(reader: Reader) -> None:
    page = reader.visit("search.html?q=attention").page
    page.locator("#search-results ul.search li a").first.wait_for()
