"""Makes the long description of the distribution: README.md with absolute links, since a package
index has no other files.

- a relative link becomes one below the address of the sources, at the tag of the version
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELATIVE_LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)\s]+)\)")


def absolute_links(text: str, base: str) -> str:
    return RELATIVE_LINK.sub(rf"]({base}/\1)", text)


def long_description() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = f"{project['urls']['Source']}/blob/v{project['version']}"
    return absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), base)
