"""Plots of lag and throughput: the lines have the values of the history, and hostile names are
plain text.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import plot
from embedlog.plot.figures import LEGEND_MAX

QUIET = {"housekeeping": False}


class Reports:
    """A log with given reports; each is (ends by partition, lags by group)."""

    def __init__(self, *reports: tuple[dict[tuple[str, int], int | None], dict[str, int]]) -> None:
        self._reports = iter(reports)

    def topics(self, include_internal: bool = False) -> list[str]:
        return []

    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]:
        ends, lags = next(self._reports)
        return {
            "partitions": {place: {"LogEndOffset": end} for place, end in ends.items()},
            "groups": {group: {"records-lag": lag} for group, lag in lags.items()},
        }


def history_of(
    *reports: tuple[dict[tuple[str, int], int | None], dict[str, int]], count_max: int = 100
) -> plot.History:
    """One observation in two seconds."""
    seconds = iter(range(0, 2 * len(reports), 2))
    made = plot.History(
        Reports(*reports), count_max=count_max, clock_s=lambda: float(next(seconds))
    )
    for _ in reports:
        made.observe()
    return made


def text(line: list[tuple[float, float]]) -> str:
    """NaN is equal to nothing, but its text is."""
    return repr(line)


def test_a_history_has_rates_lags_and_gaps() -> None:
    found = history_of(
        ({("t", 0): 4, ("t", 1): 6}, {"g": 3}),
        ({("t", 0): 14, ("t", 1): 6, ("u", 0): 1}, {}),
        ({("t", 0): 20, ("t", 1): None, ("u", 0): 1}, {"g": 0}),
    )
    assert text(found.lags()["g"]) == "[(0.0, 3), (2.0, nan), (4.0, 0)]"
    assert text(found.ends()["t"]) == "[(0.0, 10), (2.0, 20), (4.0, nan)]"
    assert text(found.rates()["t"]) == "[(2.0, 5.0), (4.0, nan)]"
    assert text(found.rates()["u"]) == "[(2.0, nan), (4.0, 0.0)]"


def test_the_oldest_observation_is_dropped_first() -> None:
    found = history_of(*(({("t", 0): number}, {}) for number in range(5)), count_max=2)
    assert [each.ends for each in found.observations] == [{"t": 3}, {"t": 4}]


def test_plots_have_the_values_of_a_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times = iter((100.0, 102.0))
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("orders", 2)
        log.reset_group_offsets("_g$x$\n", ["orders"], to="earliest")
        history = plot.History(log, clock_s=lambda: next(times))
        history.observe()
        with log.producer() as producer:
            for number in range(10):
                producer.send("orders", b"x", partition=number % 2)
        history.observe()
    axes = plot.lag(history)
    assert [float(each) for each in axes.lines[0].get_ydata()] == [0.0, 10.0]
    assert [round(each * 86_400) for each in axes.lines[0].get_xdata()] == [100, 102]
    assert axes.get_legend_handles_labels()[1] == ["\u200b_g\\$x\\$\\n"]
    assert repr(history) == "<embedlog.plot.History: 2 observations in 2.0 s>"
    lines = {each.get_label(): each for each in plot.throughput(history).lines}
    assert {name: list(line.get_ydata()) for name, line in lines.items()} == {"orders": [5.0]}
    assert history.internal() == {"__consumer_offsets"}
    with_internal = plot.throughput(history, include_internal=True).lines
    assert [each.get_label() for each in with_internal] == ["\u200b__consumer_offsets", "orders"]


@pytest.mark.slow
@pytest.mark.may_leak("matplotlib keeps the files of its fonts open")
def test_a_plot_of_hostile_names_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    figure = plot.lag(
        history_of(({}, {"$\\frac{": 1, "_x": 2}), ({}, {"$\\frac{": 3, "\n": 4}))
    ).figure
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows


def test_a_plot_takes_given_axes_and_names_some_of_many_lines() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    axes = figure.Figure().add_subplot()
    found = history_of(({}, {f"g{number}": number for number in range(LEGEND_MAX + 5)}))
    assert plot.lag(found, axes) is axes
    assert len(axes.lines) == LEGEND_MAX + 5
    assert len(axes.get_legend_handles_labels()[1]) == LEGEND_MAX
    empty = plot.throughput(history_of())
    assert not empty.lines
    assert math.isfinite(empty.get_ylim()[1])


def test_a_plot_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "embedlog.plot.shown_figure", raising=False)
    with pytest.raises(embedlog.MissingExtraError, match=r"embedlog\[plot\]"):
        plot.lag(history_of())


def test_a_topic_that_was_created_again_has_no_negative_rate() -> None:
    found = history_of(({("t", 0): 1000}, {}), ({("t", 0): 0}, {}), ({("t", 0): 6}, {}))
    assert text(found.rates()["t"]) == "[(2.0, nan), (4.0, 3.0)]"
