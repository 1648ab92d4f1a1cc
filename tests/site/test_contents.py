"""The site has pages and what they need, a search for pages that are opened as files, and a
navigation of a few links.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tests/site")]
NEEDED = {
    ".css",
    ".gz",
    ".html",
    ".ico",
    ".inv",
    ".js",
    ".json",
    ".map",
    ".png",
    ".svg",
    ".txt",
    ".xml",
}


def test_the_site_has_no_file_that_no_page_needs(site: Path) -> None:
    files = [path.relative_to(site) for path in site.rglob("*") if path.is_file()]
    assert len(files) > 60
    assert [
        path for path in files if path.suffix not in NEEDED or "__pycache__" in path.parts
    ] == []
    assert not (site / "tests").exists()


def test_the_search_has_an_index_for_pages_that_are_opened_as_files(site: Path) -> None:
    text = (site / "search" / "search_index.js").read_text()
    assert text.startswith("var __index = ")
    assert "dead letters" in text
    page = (site / "recipes.html").read_text()
    assert '<script src="assets/iframe-worker.js"></script>' in page
    assert (site / "assets" / "iframe-worker.js").exists()


def test_the_first_page_has_a_title_of_its_own(site: Path) -> None:
    title = re.search(r"<title>(.*?)</title>", (site / "index.html").read_text())
    assert title is not None
    assert title[1] == "embedlog - Apache Kafka&#x27;s log as an embedded Python library"


def test_each_group_of_pages_is_a_tab(site: Path) -> None:
    text = (site / "index.html").read_text()
    tabs = [each.strip() for each in re.findall(r'class="md-tabs__link">\s*([^<]*)<', text)]
    assert tabs == [
        "Start",
        "Concepts",
        "Guides",
        "Porting",
        "API reference",
        "Reference",
        "Project",
        "Examples",
    ]
