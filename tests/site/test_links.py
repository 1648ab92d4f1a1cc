"""Every link and anchor of the built pages leads somewhere, and no page loads anything from another
machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tests/site")]
LOADED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
NOT_LOADED = {"canonical", "next", "prev", "edit"}  # relations of `link` that name a page


class Page(HTMLParser):
    """Links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if "href" in found and tag in ("a", "link"):
            self.links.append(found["href"])
        for element, attribute in LOADED:
            if tag == element and attribute in found and found.get("rel") not in NOT_LOADED:
                self.loaded.append(found[attribute])


@cache
def page(path: Path) -> Page:
    return Page(path.read_text())


def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def wrong_links(path: Path, site: Path) -> Iterator[str]:
    """Links of a page to absent files, outside of the site, or to absent anchors."""
    for link in page(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        inside = target.is_relative_to(site.resolve()) and target.is_file()
        anchor = unquote(parts.fragment)
        if not inside or (
            anchor and target.suffix == ".html" and anchor not in page(target).anchors
        ):
            yield f"{path.relative_to(site)}: {link}"


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    assert [wrong for path in pages(site) for wrong in wrong_links(path, site)] == []


def test_the_check_finds_a_wrong_link_and_a_wrong_anchor(tmp_path: Path) -> None:
    text = (
        '<h1 id="a"></h1><a href="#a"></a><a href="#b"></a><a href="absent.html"></a><a '
        'href="../outside.html"></a>'
    )
    (tmp_path / "index.html").write_text(text)
    wrong = list(wrong_links(tmp_path / "index.html", tmp_path))
    assert wrong == ["index.html: #b", "index.html: absent.html", "index.html: ../outside.html"]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {(path.name, address) for path in pages(site) for address in page(path).loaded}
    assert len(loaded) > 100
    assert {each for each in loaded if urlsplit(each[1]).netloc} == set()


def test_no_two_files_differ_in_case_only(site: Path) -> None:
    names = Counter(str(path.relative_to(site)).lower() for path in site.rglob("*"))
    assert len(names) > 100
    assert {name for name, count in names.items() if count > 1} == set()


def test_every_diagram_is_a_part_of_its_page(site: Path) -> None:
    shown = {
        str(path.relative_to(site))
        for path in pages(site)
        if '<div class="diagram"' in path.read_text()
    }
    assert {"architecture.html", "testing.html", "concepts/topic.html"} <= shown
    assert [
        path
        for path in pages(site)
        if "language-mermaid" in path.read_text() or 'class="mermaid"' in path.read_text()
    ] == []


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert len(documents) > 10
    assert {path for path in documents if not (site / path).with_suffix(".html").exists()} == set()
    assert list(site.rglob("*.py")) == []
