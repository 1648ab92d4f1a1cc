"""The page of the race and its plots are those of the kept results."""

from __future__ import annotations

import re

import pytest

from benchmarks.race import pages, plots, tables
from benchmarks.race.workloads import GROUPS


def test_the_page_is_that_of_the_results() -> None:
    assert pages.PAGE.read_text() == tables.page(pages.load()), "run `make race-pages`"


def test_the_plots_are_those_of_the_results() -> None:
    results = pages.load()
    expected = {
        plots.FILES[group]: plots.digest(plots.parts(results, group)) for group in results["groups"]
    }
    expected |= {
        plots.SIZE_FILES[name]: plots.digest(found)
        for name, found in results["sizes"]["dimensions"].items()
    }
    drawn = {path.name: path.read_text() for path in pages.PLOTS.glob("*.svg")}
    assert set(drawn) == set(expected)
    assert [name for name, text in drawn.items() if expected[name] not in text] == []


@pytest.mark.may_leak("matplotlib keeps the files of its fonts open")
def test_a_plot_does_not_differ_from_run_to_run() -> None:
    results = pages.load()
    group = next(iter(results["groups"]))
    names = pages.names(results)
    assert plots.draw(results, group, names) == plots.draw(results, group, names)


def test_the_kept_results_are_complete() -> None:
    """Every peer has a figure, a reason, or is named as missing."""
    results = pages.load()
    assert set(results["groups"]) <= set(GROUPS)
    for workload in results["workloads"]:
        figures = results["figures"][workload["key"]]
        for peer, found in results["peers"].items():
            assert found["missing"] or figures.get(peer), (workload["key"], peer)
    assert pages.as_text(results) == pages.RESULTS.read_text()


def test_lost_rows_are_first_and_the_worst_one_before_the_others() -> None:
    page = tables.page(pages.load())
    assert re.findall(r"^## (.*)", page, re.MULTILINE)[0] == "Lost"
    ratios = [
        float(found)
        for found in re.findall(
            r"\| (\d+\.\d+) \|$", page.partition("\n## ")[2].partition("\n## ")[0], re.MULTILINE
        )
    ]
    assert ratios == sorted(ratios)
