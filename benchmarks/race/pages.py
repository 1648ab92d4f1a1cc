"""Keeps the results in the repository, and writes the page and its plots from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from . import plots, tables
from .processes import ROOT

PAGE = ROOT / "docs" / "race.md"
PLOTS = ROOT / "docs" / "race"
RESULTS = PLOTS / "results.json"
DIGITS = 6


def rounded(part: Any) -> Any:
    """The results with few digits: the file is small, and no figure is that exact."""
    if isinstance(part, float):
        return float(f"{part:.{DIGITS}g}")
    if isinstance(part, dict):
        return {name: rounded(each) for name, each in part.items()}
    return [rounded(each) for each in part] if isinstance(part, list) else part


def as_text(results: dict[str, Any]) -> str:
    """One line for each figure."""
    lines = []
    for name, part in results.items():
        if name in ("figures", "stores", "sizes"):
            inner = (
                f" {json.dumps(key)}: {{\n" + ",\n".join(f"  {json.dumps(a)}: {json.dumps(b)}" for a, b in each.items()) + "}"
                for key, each in part.items()
            )
            lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "}")
        elif name in ("workloads", "peers") and part:
            pairs = part.items() if isinstance(part, dict) else ((None, each) for each in part)
            inner = ((f" {json.dumps(key)}: " if key else " ") + json.dumps(each, ensure_ascii=False) for key, each in pairs)
            opening, closing = "{}" if isinstance(part, dict) else "[]"
            lines.append(f"{json.dumps(name)}: {opening}\n" + ",\n".join(inner) + closing)
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "}\n"


def load() -> dict[str, Any]:
    """The results that are kept."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def names(results: dict[str, Any]) -> dict[str, str]:
    """The name of each workload, for its panel."""
    return {each["key"]: tables.name_of(each) for each in results["workloads"]}


def write(results: dict[str, Any]) -> list[Path]:
    """The page and the plots."""
    PAGE.write_text(tables.page(results))
    return [PAGE, *plots.write(results, PLOTS, names(results))]


def main() -> int:
    for path in write(load()):
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
