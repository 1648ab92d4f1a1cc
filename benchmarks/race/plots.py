"""Draws the plots of the race from its results, as SVG files that do not differ from run to run."""

from __future__ import annotations

import hashlib
import io
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .sizes import DIMENSIONS, MEASURES, UNITS

FILES = {
    name: f"{name}.svg"
    for name in ("append", "read", "point", "tail", "durable", "processes", "json", "size")
}
SIZE_FILES = {name: f"cost-{name}.svg" for name in DIMENSIONS}
OURS_COLOR = "#c0392b"
THEIR_COLOR = "#7f8c8d"
LABELS = {"records_s": "records/s", "p50_us": "µs (p50; the line ends at p99)"}


def digest(part: object) -> str:
    """Names the results that a plot was drawn from."""
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]


def parts(results: dict[str, Any], group: str) -> dict[str, Any]:
    """The results that one plot shows."""
    keys = [each["key"] for each in results["workloads"] if each["group"] == group]
    return {key: results["figures"].get(key, {}) for key in keys}


def draw(results: dict[str, Any], group: str, names: dict[str, str]) -> bytes:
    """One plot: a panel for each workload, a line for each peer with a dot at its median, on a
    logarithmic axis.
    """
    workloads = [each for each in results["workloads"] if each["group"] == group]
    columns = 2 if len(workloads) > 1 else 1
    lines = (len(workloads) + columns - 1) // columns
    with rendered(5.2 * columns, 2.6 * lines, digest(parts(results, group))) as (figure, file):
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(workloads) :]:
            axes.set_visible(False)
        for axes, workload in zip(grid.flat, workloads, strict=False):
            panel(axes, results, workload, names[workload["key"]])
    return file.getvalue()


@contextmanager
def rendered(width: float, height: float, description: str) -> Iterator[tuple[Any, io.BytesIO]]:
    """A figure that is saved as SVG into the file when the block ends."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "race", "font.size": 8}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, file
        figure.savefig(file, format="svg", metadata={"Date": None, "Description": description})


def panel(axes: Any, results: dict[str, Any], workload: dict[str, Any], title: str) -> None:
    measure = workload["measures"][0]
    figures = results["figures"].get(workload["key"], {})
    shown = {peer: found for peer, found in figures.items() if measure in found}
    best = sorted(
        shown,
        key=lambda peer: statistics.median(shown[peer][measure]),
        reverse=measure == "records_s",
    )[::-1]
    for at, peer in enumerate(best):
        values = shown[peer][measure]
        middle = statistics.median(values)
        most = statistics.median(shown[peer]["p99_us"]) if "p99_us" in shown[peer] else max(values)
        color = OURS_COLOR if peer == "embedlog" else THEIR_COLOR
        axes.plot([min(values), most], [at, at], color=color, linewidth=2)
        axes.plot([middle], [at], color=color, marker="o", markersize=6)
    axes.set_yticks(range(len(best)), [results["peers"][peer]["title"] for peer in best])
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlabel(LABELS[measure])
    axes.set_title(title)


def draw_sizes(found: dict[str, Any], dimension: str) -> bytes:
    """The cost over one dimension: a panel for each measure, both axes logarithmic."""
    sizes = [int(size) for size in found]
    with rendered(15.6, 5.2, digest(found)) as (figure, file):
        for axes, (name, title) in zip(figure.subplots(2, 3).flat, MEASURES.items(), strict=True):
            values = [found[str(size)][name] for size in sizes]
            axes.plot(
                sizes,
                [statistics.median(each) for each in values],
                color=OURS_COLOR,
                marker="o",
                markersize=3,
            )
            axes.fill_between(
                sizes,
                [min(each) for each in values],
                [max(each) for each in values],
                color=OURS_COLOR,
                alpha=0.2,
            )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.minorticks_off()
            low = min(map(min, values))
            high = max(map(max, values))
            axes.set_ylim(low / 4, high * 4)
            axes.set_title(title)
            axes.set_xlabel(UNITS[dimension])
    return file.getvalue()


def write(results: dict[str, Any], directory: Path, names: dict[str, str]) -> list[Path]:
    """All plots of the results; other plots of the race are removed."""
    directory.mkdir(exist_ok=True)
    made = {directory / FILES[group]: draw(results, group, names) for group in results["groups"]}
    for dimension, found in results.get("sizes", {"dimensions": {}})["dimensions"].items():
        made[directory / SIZE_FILES[dimension]] = draw_sizes(found, dimension)
    for path in directory.glob("*.svg"):
        if path not in made:
            path.unlink()
    for path, image in made.items():
        path.write_bytes(image)
    return sorted(made)
