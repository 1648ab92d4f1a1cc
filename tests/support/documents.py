"""The documents of the project, and the programs in them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

FOLDERS = (ROOT / "docs", ROOT / "examples")
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(path for folder in FOLDERS for path in folder.rglob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = ROOT / "docs" / "recipes.md"  # each block is a program of its own


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def program(page: Path) -> str:
    """All blocks of a page as one program, each line at its place: an error names the page's
    line.
    """
    text = page.read_text()
    lines = [""] * len(text.splitlines())
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"
