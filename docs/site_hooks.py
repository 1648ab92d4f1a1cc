"""Adapts the pages to the documentation site: files outside of docs/, anchors as in the repository, diagrams as inline SVG.

    hooks: [docs/site_hooks.py]     in mkdocs.yml

The changes, the example programs and the README of the tests become pages. A link to any other file of the repository leads
to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ADDED = (
    "README.md",
    "CHANGELOG.md",
    "examples/*.md",
    "examples/data/*.md",
    "examples/*.py",
    "tests/model/README.md",
    "tests/faults/README.md",
)
LINK = re.compile(r"(\]\()(\.\./[^)#\s]*|[^):#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r'<p>\s*<img alt="([^"]*)" src="([^"]*\.svg)"\s*/?>\s*</p>')


def slug(heading: str, separator: str) -> str:
    """The anchor that a repository's web pages make of a heading, so that one link serves both."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def page_of(path: str) -> str:
    """The address of the page that a file of the repository becomes: a program becomes a page with its text."""
    if path == "README.md":
        return "index.md"
    return (path.removeprefix("docs/")).removesuffix(".py") + ("" if path.endswith(".md") else ".md")


def text_of(path: Path) -> str:
    """The Markdown of an added page."""
    text = path.read_text()
    return text if path.suffix == ".md" else f"# {path.name}\n\n```python\n{text}```\n"


def added() -> dict[str, Path]:
    """Files outside of docs/ that become pages, by address."""
    found = (path for pattern in ADDED for path in sorted(ROOT.glob(pattern)))
    return {page_of(str(path.relative_to(ROOT))): path for path in found}


def on_config(config: Any) -> Any:
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    for address, path in added().items():
        files.append(File.generated(config, address, content=text_of(path)))
    return files


def repository_path(address: str) -> str:
    """The file of the repository that is a page of the site."""
    path = added().get(address)
    return f"docs/{address}" if path is None else str(path.relative_to(ROOT))


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links between files of the repository become links between pages, or lead to the repository."""
    base = posixpath.dirname(repository_path(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(base, found[2]))
        address = page_of(target) if target.endswith((".md", ".py")) else target.removeprefix("docs/")
        if files.get_file_from_path(address) is None or not (ROOT / target).exists():
            if not (ROOT / target).exists():
                return found[0]  # reported by mkdocs
            return f"{found[1]}{config['repo_url']}/blob/main/{target}{found[3] or ''})"
        near = posixpath.relpath(address, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{near}{found[3] or ''})"

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):  # a block of code is no text with links
        pieces += [LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(link, markdown[end:])])


def on_page_content(html: str, *, page: Any, config: Any, files: Files) -> str:
    """Diagrams become a part of the page, so that their lines have its colour in the dark, too."""

    def inline(found: re.Match[str]) -> str:
        address = posixpath.normpath(posixpath.join(posixpath.dirname(page.url), found[2]))
        text = (Path(config["docs_dir"]) / address).read_text()
        text = re.sub(r"<style>.*?</style>\s*", "", text, flags=re.DOTALL)
        return f'<div class="diagram" role="img" aria-label="{found[1]}">{text}</div>'

    return IMAGE.sub(inline, html)
