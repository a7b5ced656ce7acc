"""A built book behind a local server, and Chromium to read it with."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = Path(__file__).parents[2]
HTML = ROOT / "_build" / "html"
# The server mounts the book where it will be published, for the 404 page has absolute
# addresses.
MOUNT = urlsplit(
    yaml.safe_load((ROOT / "_config.yml").read_text())["html"]["baseurl"]
).path
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


def file_of(url: str) -> Path:
    return HTML / unquote(urlsplit(url).path).removeprefix(MOUNT)


@cache
def compressed_size(file: Path) -> int:
    return len(gzip.compress(file.read_bytes(), 6))


class Handler(SimpleHTTPRequestHandler):
    """Serves as GitHub Pages does.

    Below MOUNT, with the book's own page for what is missing.
    """

    def translate_path(self, path: str) -> str:
        return str(file_of(path))

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        body = (HTML / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Visit:
    """One page as a reader's browser saw it."""

    page: Page
    status: int
    requests: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def sizes(self) -> dict[str, int]:
        """Compressed bytes of each file of the book that the page asked for."""
        files = {
            file_of(url)
            for url in self.requests
            if urlsplit(url).hostname == "127.0.0.1"
        }
        return {file.name: compressed_size(file) for file in files if file.is_file()}


class Reader:
    """Opens pages of the book.

    A context (theme, viewport, JavaScript) is made once and kept.
    """

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address
        self.contexts: dict[tuple[str, tuple[int, int], bool], BrowserContext] = {}

    def visit(
        self,
        name: str,
        *,
        theme: str = "light",
        viewport: tuple[int, int] = (1280, 900),
        javascript: bool = True,
    ) -> Visit:
        key = (theme, viewport, javascript)
        if key not in self.contexts:
            self.contexts[key] = self.browser.new_context(
                color_scheme=theme,
                viewport={"width": viewport[0], "height": viewport[1]},
                java_script_enabled=javascript,
                reduced_motion="reduce",
            )
        for other in self.contexts[key].pages:
            other.close()
        page = self.contexts[key].new_page()
        visit = Visit(page, 0)
        url = f"{self.address}{MOUNT}{name}"
        page.on("request", lambda request: visit.requests.add(request.url))
        page.on(
            "requestfailed",
            lambda request: visit.complaints.append(
                f"failed: {request.url} {request.failure}"
            ),
        )
        page.on(
            "response",
            lambda answer: check_status(visit, url, answer.url, answer.status),
        )
        page.on(
            "pageerror", lambda error: visit.complaints.append(f"page error: {error}")
        )
        page.on(
            "console",
            lambda line: note_console(
                visit, line.type, line.text, line.location["url"] == url
            ),
        )
        visit.status = page.goto(url).status
        if javascript:
            page.evaluate(
                "() => window.MathJax?.startup?.promise.then(() => "
                "document.fonts.ready)"
            )
        return visit


def check_status(visit: Visit, page_url: str, url: str, status: int) -> None:
    if status >= 400 and url != page_url:
        visit.complaints.append(f"status {status}: {url}")


def note_console(visit: Visit, kind: str, text: str, about_page: bool) -> None:
    # A browser reports the status of the 404 page as an error of the console;
    # check_status sees every other one.
    if kind == "error" and not (about_page and "status of 404" in text):
        visit.complaints.append(f"console: {text}")


@contextmanager
def reading() -> Iterator[Reader]:
    """A reader of the built book, which is served meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        # --no-sandbox: Chromium refuses to run as root otherwise, as it must in most
        # containers.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield Reader(browser, f"http://127.0.0.1:{server.server_port}")
        browser.close()
    server.shutdown()


@pytest.fixture(scope="session")
def reader() -> Iterator[Reader]:
    if not HTML.is_dir() or not CHROMIUM:
        pytest.skip("test_book_and_browser_are_there says what is missing")
    with reading() as found:
        yield found
