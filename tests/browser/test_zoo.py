"""The zoo's table: filter and sorting, by mouse and by keyboard, and complete without scripts."""

from __future__ import annotations

from playwright.sync_api import Page

from .conftest import Reader

TABLE = ".posenc-table table"


def column(page: Page, number: int) -> list[str]:
    """The visible cells of a column, from the top."""
    return [cell.inner_text() for cell in page.locator(f"{TABLE} tbody tr:visible td:nth-child({number})").all()]


def test_filter_keeps_rows_that_hold_every_word(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    everything = column(page, 1)
    field = page.get_by_role("searchbox", name="Filter")
    field.fill("gemma LAYERS")
    kept = column(page, 1)
    assert "p-RoPE" in kept
    assert "NoPE" not in kept
    assert page.locator(".posenc-table output").inner_text() == f"{len(kept)} of {len(everything)}"
    field.fill("")
    assert column(page, 1) == everything


def test_headers_sort_up_and_down_by_keyboard(reader: Reader) -> None:
    page = reader.visit("book/zoo.html").page
    header = page.locator(f"{TABLE} th", has_text="Used by")
    button = page.get_by_role("button", name="Used by")
    before = column(page, 7)
    models = sorted(filter(None, before), key=str.lower)
    button.focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    up = column(page, 7)
    assert sorted(up) == sorted(before)
    assert [cell.lower()[0] for cell in up if cell] == [cell.lower()[0] for cell in models]
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    down = column(page, 7)
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
        assert target.evaluate("e => e.closest('section').querySelector('h3 ~ div pre') !== null"), link.inner_text()


def test_table_is_complete_without_scripts(reader: Reader) -> None:
    with_scripts = column(reader.visit("book/zoo.html").page, 1)
    page = reader.visit("book/zoo.html", javascript=False).page
    assert column(page, 1) == with_scripts
    assert page.locator(".posenc-table button, .posenc-table input").count() == 0
