"""The zoo's table: filter and sorting, evidence, and complete without scripts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from posenc_lib.zoo import MISSING

from .conftest import Reader

pytestmark = pytest.mark.site

TABLE = ".posenc-table table"


def column(page: Page, number: int) -> list[str]:
    """The visible cells of a column, from the top."""
    cells = page.locator(f"{TABLE} tbody tr:visible td:nth-child({number})").all()
    # other names of an encoding follow on lines of their own
    return [cell.inner_text().split("\n")[0] for cell in cells]


def test_filter_keeps_rows_that_hold_every_word(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    everything = column(page, 1)
    field = page.get_by_role("searchbox", name="Filter")
    field.fill("gemma LAYERS")
    kept = column(page, 1)
    assert "p-RoPE" in kept
    assert "NoPE" not in kept
    assert (
        page.locator(".posenc-table output").inner_text()
        == f"{len(kept)} of {len(everything)}"
    )
    field.fill("")
    assert column(page, 1) == everything


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("alibi", {"ALiBi"}),
        ("yarn", {"YaRN, as in the paper", "YaRN, as released"}),
        ("m-rope", {"M-RoPE, in sections", "M-RoPE, interleaved"}),
        ("mrope", {"M-RoPE, in sections", "M-RoPE, interleaved"}),
        ("t5", {"T5 bias"}),
        ("beit's", {"BEiT’s bias"}),
        ("llama 3.1's", {"Llama 3.1’s schedule"}),
        ("qwen3-vl", {"M-RoPE, interleaved", "Timestamps as text"}),
        ("llama 4", {"Llama 4’s layers (iRoPE)", "Llama 4’s temperature"}),
        ("llama4", {"Llama 4’s layers (iRoPE)", "Llama 4’s temperature"}),
        ("cope", {"CoPE", "Clipped RoPE"}),
        ("rotary 2d", {"Axial RoPE", "Mixed RoPE"}),
    ],
)
def test_names_that_people_type_find_few_rows(
    reader: Reader, typed: str, wanted: set[str]
) -> None:
    page = reader.visit("book/zoo.html").page
    page.get_by_role("searchbox", name="Filter").fill(typed)
    kept = column(page, 1)
    assert wanted <= set(kept)
    assert len(kept) <= 10


def test_source_opens_the_listing(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    links = page.locator(f"{TABLE} tbody td:nth-child(5) a").all()
    addresses = [link.get_attribute("href") or "" for link in links]
    assert all(
        "-source" in address
        for address in addresses
        if not address.startswith("https://arxiv.org")
    )
    page.get_by_role("link", name="KerpleLog", exact=True).first.click()
    page.wait_for_url("**#api-bias-kerplelog-source")
    listing = page.locator(
        "details:has(#api-bias-kerplelog-source) pre", has_text="class KerpleLog"
    )
    expect(listing).to_be_visible()


@pytest.mark.parametrize(
    ("link", "label", "code"),
    [
        ("test_shaw_is_the_equation", "test-content-test-shaw-", "def test_shaw_is"),
        ("golden case", "golden-", "def "),
    ],
)
def test_evidence_opens_in_the_book(
    reader: Reader, link: str, label: str, code: str
) -> None:
    page = reader.visit("book/zoo.html").page
    page.locator(TABLE).get_by_role("link", name=link, exact=True).first.click()
    page.wait_for_url(f"**#{label}*")
    anchor = page.url.split("#")[1]
    listing = page.locator(f"details:has(#{anchor}) pre", has_text=code)
    expect(listing).to_be_visible()


def test_phone_shows_an_encoding_as_a_block(reader: Reader) -> None:
    page = reader.visit("book/zoo.html", viewport=(390, 844)).page
    page.get_by_role("searchbox", name="Filter").fill("kerple")
    cells = page.locator(f"{TABLE} tbody tr:visible td").all()
    for box in filter(None, (cell.bounding_box() for cell in cells)):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_rows_without_an_equation_say_why(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    rows = page.locator(f"{TABLE} tbody tr:has(.posenc-badge)").all()
    assert len(rows) == len(MISSING)
    for row in rows:
        assert row.locator("td").nth(2).inner_text().startswith("Not established: ")
        assert row.locator("a").count() == 1


def test_headers_sort_up_and_down_by_keyboard(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    header = page.locator(f"{TABLE} th", has_text="Used by")
    button = page.get_by_role("button", name="Used by")
    before = column(page, 8)
    models = sorted(filter(None, before), key=str.lower)
    button.focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    up = column(page, 8)
    assert sorted(up) == sorted(before)
    assert [cell.lower()[0] for cell in up if cell] == [
        cell.lower()[0] for cell in models
    ]
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    down = column(page, 8)
    assert [cell for cell in down if cell] != [cell for cell in up if cell]
    assert not any(down[len(models) :]), "empty cells stay at the end"
    page.get_by_role("button", name="Encoding").click()
    assert page.locator(f"{TABLE} th[aria-sort]").count() == 1


def test_every_row_leads_to_its_equation(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    links = page.locator(f"{TABLE} tbody td:first-child a").all()
    assert len(links) > 100
    for link in links:
        target = page.locator(link.get_attribute("href") or "")
        assert target.evaluate(
            "e => e.closest('section').querySelector('h3 ~ div pre') !== null"
        ), link.inner_text()


def test_table_is_complete_without_scripts(reader: Reader) -> None:
    with_scripts = column(reader.visit("book/zoo.html").page, 1)
    page = reader.visit("book/zoo.html", javascript=False).page
    assert column(page, 1) == with_scripts
    assert page.locator(".posenc-table button, .posenc-table input").count() == 0
