"""Draws the lines of a history with matplotlib.

- matplotlib is imported for the first figure, not with the package. A figure belongs to the caller:
  it is not among those that matplotlib keeps and shows.
- Names of groups and topics are input: no text is taken for mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from embedlog import MissingExtraError
from embedlog.plot.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DAY_S: Final = 86_400
LEGEND_MAX: Final = 20  # lines with a name


def lag(history: History, axes: Axes | None = None) -> Axes:
    """Draw the lag of each group over time. Raises MissingExtraError without matplotlib."""
    return _draw(history.lags(), "lag of groups", "records", axes)


def throughput(
    history: History, axes: Axes | None = None, *, include_internal: bool = False
) -> Axes:
    """Draw the records per second that all processes appended to each topic; internal topics only
    if requested.

    Raises MissingExtraError without matplotlib.
    """
    return _draw(
        history.rates(include_internal=include_internal),
        "throughput of topics",
        "records per second",
        axes,
    )


def _draw(
    lines: Mapping[str, Sequence[tuple[float, float]]], title: str, unit: str, axes: Axes | None
) -> Axes:
    """The lines in a new figure, or in the given axes."""
    if axes is None:
        axes = _make_axes()
    axes.set_title(title)
    axes.set_ylabel(unit)
    for number, (name, points) in enumerate(lines.items()):
        times = [time_s / DAY_S for time_s, _ in points]  # matplotlib counts days since 1970
        # a label that begins with "_" is not in the legend
        label = _escape(name) if number < LEGEND_MAX else f"_{number}"
        axes.plot(times, [value for _, value in points], label=label)
    axes.xaxis_date()
    if lines:
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.figure.autofmt_xdate()
    return axes


def _make_axes() -> Axes:
    try:
        from embedlog.plot.shown_figure import ShownFigure
    except ImportError as missing:
        raise MissingExtraError("plots need matplotlib", extra="plot") from missing
    axes: Axes = ShownFigure(layout="constrained").add_subplot()
    return axes


def _escape(name: str) -> str:
    """A name as the text of a legend: printable, without the sign of mathematics, and never hidden
    by a "_" at its begin.
    """
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in name
    )
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text
