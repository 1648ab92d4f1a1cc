"""Values of options, and numbers that are printed."""

from __future__ import annotations

import click
import pytest

from embedlog.tools.cli.arguments import parse_time_ms
from embedlog.tools.cli.output import size_of
from embedlog.tools.console.model.text import size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1500, "1.46 KiB"),
        (999 * 1024, "999 KiB"),
        (999 * 1024 + 600, "1000 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1000 * 1024**2, "1000 MiB"),
        (1024**2, "1 MiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_a_size_has_no_exponent(count: int, text: str) -> None:
    assert size_of(count) == text
    assert size(count) == text


def test_eight_digits_that_are_a_date_are_not_taken_for_a_time_of_1970() -> None:
    with pytest.raises(click.UsageError, match="2026-01-31 or 020260131"):
        parse_time_ms("20260131", "--start-time")
    assert parse_time_ms("020260131", "--start-time") == 20260131
    assert parse_time_ms("2026-01-31", "--start-time") == 1769817600000
    assert parse_time_ms("20261331", "--start-time") == 20261331
