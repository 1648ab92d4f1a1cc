"""Adapts the pages to the documentation site: files outside of docs/, anchors, diagrams as inline
SVG, fields of values.

    hooks: [docs/site_hooks.py]     in mkdocs.yml

The changes, the example programs and the README of the tests become pages. A link to any other file
of the repository leads to the repository. Named tuples and dataclasses of the reference get a table
of their fields.
"""

from __future__ import annotations

import dataclasses
import html as markup
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import embedlog

ROOT = Path(__file__).resolve().parent.parent
ADDED = (
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "examples/*.md",
    "examples/data/*.md",
    "examples/*.py",
    "tests/model/README.md",
    "tests/faults/README.md",
)
RENAMED = {
    "README.md": "index.md",
    "SECURITY.md": "security-policy.md",  # docs/security.md differs from it in case only
    "tests/model/README.md": "model.md",
    "tests/faults/README.md": "faults.md",
}
LINK = re.compile(r"(\]\()(\.\./[^)#\s]*|[^):#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^::: embedlog\.(\w+)$", re.MULTILINE)
DOCUMENT = re.compile(r"\bdocs/([a-z-]+)\.md\b(?![^<]*</code>)")  # in the text of a docstring
IMAGE = re.compile(r'<p>\s*<img alt="([^"]*)" src="([^"]*\.svg)"\s*/?>\s*</p>')


def slug(heading: str, separator: str) -> str:
    """The anchor that a repository's web pages make of a heading, so that one link serves both."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def page_of(path: str) -> str:
    """The address of the page that a file of the repository becomes: a program becomes a page with
    its text.
    """
    if path in RENAMED:
        return RENAMED[path]
    return (path.removeprefix("docs/")).removesuffix(".py") + (
        "" if path.endswith(".md") else ".md"
    )


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


def rows(cls: Any) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each field and property of a named tuple or a dataclass; nothing of
    any other class.
    """
    types = {
        name: text
        for base in reversed(cls.__mro__)
        for name, text in vars(base).get("__annotations__", {}).items()
    }
    if dataclasses.is_dataclass(cls):
        optional = {
            each.name: each.default
            for each in dataclasses.fields(cls)
            if each.default is not dataclasses.MISSING
        }
        names = [each.name for each in dataclasses.fields(cls)]
    else:
        names, optional = getattr(cls, "_fields", ()), getattr(cls, "_field_defaults", {})
    for name in names:
        yield (
            name,
            getattr(types[name], "__forward_arg__", types[name]),
            f"default {optional[name]!r}" if name in optional else "",
        )
    for name in dir(cls) if names else ():
        found = getattr(cls, name)
        if isinstance(found, property) and not name.startswith("_"):
            yield (
                name,
                found.fget.__annotations__["return"],
                (found.__doc__ or "computed").partition("\n")[0],
            )


def with_fields(found: re.Match[str]) -> str:
    """A directive of the reference, and the table of the fields of its class."""
    cls = getattr(embedlog, found[1], None)
    fields = list(rows(cls)) if isinstance(cls, type) else []
    if not fields:
        return found[0]
    cells = [
        "".join(f"<td>{cell}</td>" for cell in (code(name), code(kind), markup.escape(text)))
        for name, kind, text in fields
    ]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"{found[0]}\n\n<table><thead><tr><th>field</th><th>type</th><th></th></tr></thead><tbody>{body}</tbody></table>\n"


def code(text: str) -> str:
    return f"<code>{markup.escape(text)}</code>"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links between files of the repository become links between pages, or lead to the
    repository.
    """
    base = posixpath.dirname(repository_path(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(base, found[2]))
        address = (
            page_of(target) if target.endswith((".md", ".py")) else target.removeprefix("docs/")
        )
        if files.get_file_from_path(address) is None or not (ROOT / target).exists():
            if not (ROOT / target).exists():
                return found[0]  # reported by mkdocs
            return f"{found[1]}{config['extra']['repository']}/blob/main/{target}{found[3] or ''})"
        near = posixpath.relpath(address, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{near}{found[3] or ''})"

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):  # a block of code is no text with links
        pieces += [LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return DIRECTIVE.sub(with_fields, "".join([*pieces, LINK.sub(link, markdown[end:])]))


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """The first page has the name of the site as its heading, so its title has the description
    beside it.
    """
    name = config["site_name"]
    return output.replace(
        f"<title>{name} - {name}</title>",
        f"<title>{name} - {markup.escape(config['site_description'])}</title>",
    )


def on_page_content(html: str, *, page: Any, config: Any, files: Files) -> str:
    """Diagrams become a part of the page, so that their lines have its colour in the dark, too;
    names of pages become links.
    """

    def inline(found: re.Match[str]) -> str:
        address = posixpath.normpath(posixpath.join(posixpath.dirname(page.url), found[2]))
        text = (Path(config["docs_dir"]) / address).read_text()
        text = re.sub(r"<style>.*?</style>\s*", "", text, flags=re.DOTALL)
        return f'<div class="diagram" role="img" aria-label="{found[1]}">{text}</div>'

    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{found[1]}.md")
        return (
            found[0]
            if target is None
            else f'<a href="{target.url_relative_to(page.file)}">{found[1]}</a>'
        )

    return IMAGE.sub(
        inline, DOCUMENT.sub(link, html) if page.file.src_uri.startswith("reference/") else html
    )
