"""The book's Sphinx extension: descriptions of figures; pages without other hosts."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from pathlib import Path
from shutil import copytree
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from myst_nb.core import render
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

MATHJAX = "tex-chtml.js"
# 'unsafe-inline': MathJax writes its style sheet, the theme and sliders bring short
# scripts; data: holds the frames.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


class Outputs:
    """A myst-nb renderer plugin: alt texts for pictures, link targets for verdicts."""

    mime_priority_overrides = ()

    @staticmethod
    def handle_mime(
        renderer: render.NbElementRenderer, data: render.MimeData, inline: bool
    ) -> list[nodes.Element] | None:
        alt = data.output_metadata.get(data.mime_type, {}).get("alt")
        if alt and data.mime_type.startswith("image/"):
            images = renderer.render_image(data)
            for image in images:
                image["alt"] = alt
            return images
        claim = (
            re.search(r' id="(claim-\w+)"', data.string)
            if data.mime_type == "text/html"
            else None
        )
        if claim:
            # The id moves from the HTML, which Sphinx does not look into, to its node:
            # [](#claim-C27) then works on every page and the strict build knows a dead
            # link. {ref} wants the name in lower case.
            data.content = data.string.replace(claim[0], "", 1)
            [box] = renderer.render_text_html(data)
            box["ids"], box["names"] = [claim[1]], [claim[1], claim[1].lower()]
            renderer.renderer.document.note_explicit_target(box, box)
            return [box]
        return None


class figure_data(nodes.General, nodes.Element):
    """What a picture shows, in numbers.

    The text is an attribute, which keeps it out of the search index.
    """


def visit_figure_data(translator: HTML5Translator, node: figure_data) -> None:
    translator.body.append(
        '<details class="figure-data"><summary>What the figure shows, in '
        "numbers</summary>"
        f'<pre tabindex="0">{escape(node["text"])}</pre></details>\n'
    )
    raise nodes.SkipNode


class DescribeFigures(SphinxPostTransform):
    """Put the text/plain of a picture or slider behind it, before myst-nb drops it."""

    default_priority = 3  # myst-nb selects at 4

    def run(self, **kwargs: Any) -> None:
        for bundle in self.document.findall(nodes.container):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            kinds = {child["mime_type"]: child for child in bundle.children}
            text = kinds.pop("text/plain", None)
            for kind, child in kinds.items():
                if text and (
                    kind.startswith("image/") or "posenc-frames" in child.astext()
                ):
                    child += figure_data(text=text.astext())


def derive_addresses(app: Sphinx, config: Config) -> None:
    config.ogp_site_url = config.html_baseurl
    config.notfound_urls_prefix = urlsplit(config.html_baseurl).path
    config.mathjax_path = f"mathjax/{MATHJAX}"


def silence_thebe(app: Sphinx, config: Config) -> None:
    """Remove sphinx-thebe, which Jupyter Book always loads.

    Its scripts name a CDN and declare a constant twice on each page.
    """
    for listeners in app.events.listeners.values():
        listeners[:] = [
            listener
            for listener in listeners
            if listener.handler.__module__ != "sphinx_thebe"
        ]


def harden_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    context["css_files"] = [
        file
        for file in context["css_files"]
        if "sphinx-thebe" not in str(file.filename)
    ]
    # docutils marks references with a role that WAI-ARIA has dropped, inside a list
    # that lacks list items; and it makes a header of a table's empty corner.
    body = context.get("body", "").replace('role="doc-biblioentry"', 'role="listitem"')
    context["body"] = body.replace('<th class="head"><p></p></th>', "<td></td>")
    policy = (
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{CONTENT_SECURITY_POLICY}" />'
    )
    context["metatags"] = policy + context.get("metatags", "")


def finish_assets(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    # Of the 24 MB in the package a page can need this bundle, its fonts, the TeX
    # extensions that it loads on demand, and what its accessibility menu loads.
    package = Path(str(files("sphinx-mathjax-offline"))) / "static" / "mathjax"
    for part in ("output/chtml/fonts", "input/tex/extensions", "a11y"):
        copytree(package / part, static / "mathjax" / part, dirs_exist_ok=True)
    (static / "mathjax" / MATHJAX).write_bytes((package / MATHJAX).read_bytes())


def setup(app: Sphinx) -> dict[str, Any]:
    # myst-nb finds plugins among the entry points of installed packages; this book's is
    # not installed.
    installed = render.load_mime_renders
    render.load_mime_renders = lambda: [*installed(), Outputs]
    app.add_node(figure_data, html=(visit_figure_data, None))
    app.add_post_transform(DescribeFigures)
    # before the extensions that read these values
    app.connect("config-inited", derive_addresses, priority=400)
    app.connect("config-inited", silence_thebe)
    app.connect("html-page-context", harden_page, priority=900)
    app.connect("build-finished", finish_assets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
