"""Keeps the results in the repository, and writes the page and its plots from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from . import plots, tables
from .processes import ROOT
from .workloads import GROUPS

PAGE = ROOT / "docs" / "race.md"
PLOTS = ROOT / "docs" / "race"
RESULTS = PLOTS / "results.json"
DIGITS = 4
DEPTH = 3  # of the JSON that has lines of its own


def rounded(part: Any) -> Any:
    """The results with few digits: the file is small, and no figure is that exact."""
    if isinstance(part, float):
        return float(f"{part:.{DIGITS}g}")
    if isinstance(part, dict):
        return {name: rounded(each) for name, each in part.items()}
    return [rounded(each) for each in part] if isinstance(part, list) else part


def as_text(part: Any, depth: int = 0) -> str:
    """JSON with one line for each peer in a workload: a new run changes few lines by much."""
    if depth == DEPTH or not isinstance(part, dict | list) or not part:
        return json.dumps(part, ensure_ascii=False)
    space = " " * (depth + 1)
    if isinstance(part, list):
        lines = [space + as_text(each, DEPTH) for each in part]
    else:
        lines = [
            f"{space}{json.dumps(name)}: {as_text(each, depth + 1)}" for name, each in part.items()
        ]
    opening, closing = "[]" if isinstance(part, list) else "{}"
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * depth + closing + "\n" * (depth == 0)


def load() -> dict[str, Any]:
    """The results that are kept."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def names(results: dict[str, Any]) -> dict[str, str]:
    """The name of each workload, for its panel."""
    return {each["key"]: tables.name_of(each) for each in results["workloads"]}


def keep(results: dict[str, Any]) -> None:
    """Replace the groups and parts that were measured, and write the page."""
    kept = load() if RESULTS.exists() else {}
    PLOTS.mkdir(exist_ok=True)
    RESULTS.write_text(as_text(merged(kept, results)))
    write(load())


def merged(kept: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """The kept results with all groups and parts of new ones in place of their own."""
    found = kept | results
    if kept.get("groups") and results.get("groups"):
        others = [each for each in kept["workloads"] if each["group"] not in results["groups"]]
        keys = {each["key"] for each in others}
        found["figures"] = {
            key: each for key, each in kept["figures"].items() if key in keys
        } | results["figures"]
        found["workloads"] = sorted(
            others + results["workloads"], key=lambda each: list(GROUPS).index(each["group"])
        )
        found["groups"] = {name: (kept["groups"] | results["groups"]).get(name) for name in GROUPS}
        found["groups"] = {name: each for name, each in found["groups"].items() if each}
        found["stores"] = kept["stores"] | results["stores"]
        found["peers"] = kept["peers"] | results["peers"]
        for figures in results["figures"].values():
            for peer in kept["peers"].keys() - results["peers"].keys():
                figures.setdefault(peer, {"lacks": "not part of that run"})
    return found


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
