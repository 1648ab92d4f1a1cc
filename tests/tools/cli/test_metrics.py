"""The verb `metrics`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def test_metrics_have_three_forms(events: Callable[..., Any]) -> None:
    assert events("produce", "-t", "events", stdin=b"a\nb\n").status == 0
    rows = json.loads(events("metrics", "--json").out)
    ends = [
        row["value"]
        for row in rows
        if row["name"] == "partition_log_end_offset" and row["labels"]["topic"] == "events"
    ]
    assert ends == [2]
    assert (
        'embedlog_partition_log_end_offset{topic="events",partition="0"} 2\n'
        in events("metrics", "--prometheus").out
    )
    table = events("metrics")
    assert (table.status, table.out.split()[:3]) == (0, ["NAME", "LABELS", "VALUE"])
    assert "topic=events partition=0" in table.out


def test_two_forms_at_once_are_refused(events: Callable[..., Any]) -> None:
    assert events("metrics", "--prometheus", "--json").status == 2
