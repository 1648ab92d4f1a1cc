"""The scenarios of consumer groups, and the answers of a real Kafka.

    python -m tests.kafka.group_scripts OUT [NAME ...]      (runs them at a broker and records the
    answers; a minute)

tests/data/groups.jsonl has the recording, one scenario per line. embedlog is compared with it; a
real Kafka, too, if there is one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kafka.groups import (
    START_MS,
    STEP_MS,
    GroupScenario,
    Step,
    commit,
    cut,
    delete,
    delete_offsets,
    describe,
    drain,
    drop,
    grow,
    join,
    leave,
    make,
    refused,
    reset,
    settle,
    strange,
    transact,
)

STRATEGIES = ("range", "roundrobin", "cooperative-sticky")  # librdkafka has no eager sticky one
RECORDED = Path(__file__).resolve().parent.parent / "data" / "groups.jsonl"


def comings_and_goings(strategy: str) -> list[Step]:
    """One, two, three; the first goes, then it comes back; then down to none."""

    def more(who: str) -> list[Step]:
        return [join(who, "t", "u", strategy=strategy), settle()]

    return [
        *more("a"),
        commit("a", {"t-0": (3, "first"), "u-1": (2, "")}),
        *more("b"),
        drain(),
        *more("c"),
        describe(),
        leave("a"),
        settle(),
        drain(),
        *more("a"),
        leave("b"),
        settle(),
        leave("c"),
        settle(),
        describe(),
        leave("a"),
        describe(),
    ]


def each_strategy() -> Iterator[GroupScenario]:
    for strategy in STRATEGIES:
        defined = strategy != "cooperative-sticky"
        yield GroupScenario(strategy, comings_and_goings(strategy), defined=defined)
        joins = [step for who in "abc" for step in (join(who, "t", strategy=strategy), settle())]
        yield GroupScenario(
            f"{strategy}-too-many",
            [*joins, describe(), leave("b"), settle()],
            topics={"t": 2},
            defined=defined,
        )


def joining() -> Iterator[GroupScenario]:
    for strategy in ("range", "roundrobin"):
        steps = [
            join("a", "t", strategy=strategy),
            settle(),
            join("b", "t", "u", strategy=strategy),
            settle(),
            join("c", "u", strategy=strategy),
            settle(),
            describe(),
            leave("b"),
            settle(),
            drain(),
            describe(),
        ]
        yield GroupScenario(f"{strategy}-different-topics", steps)
    yield GroupScenario(
        "common-strategy",
        [
            join("a", "t", strategy="range,roundrobin"),
            settle(),
            describe(),
            join("b", "t", strategy="roundrobin"),
            settle(),
            describe(),
            leave("b"),
            settle(),
            describe(),
        ],
    )
    yield GroupScenario(
        "no-common-strategy",
        [
            join("a", "t", strategy="range"),
            settle(),
            refused("b", "t", strategy="roundrobin"),
            settle(),
            describe(),
        ],
    )
    yield GroupScenario(
        "static",
        [
            join("a", "t", strategy="range", instance="one"),
            settle(),
            join("b", "t", strategy="range", instance="two"),
            settle(),
            leave("a"),
            describe(),
            join("a", "t", strategy="range", instance="one"),
            settle(),
            describe(),
            commit("a", {"t-0": (1, "")}),
            describe(),
        ],
    )
    yield GroupScenario(
        "more-partitions",
        [
            join("a", "t", "u"),
            settle(),
            join("b", "t", "u"),
            settle(),
            grow("u", 7),
            settle(),
            describe(),
            leave("a"),
            settle(),
        ],
    )
    yield GroupScenario(
        "pattern",
        [
            join("a", pattern="[tuv]", strategy="range"),
            settle(),
            drain(),
            make("v", 2),
            settle(),
            drain(),
            describe(),
        ],
    )


def committing() -> Iterator[GroupScenario]:
    yield GroupScenario(
        "commits",
        [
            strange({"t-0": (4, "by hand"), "u-3": (0, "")}),
            describe(),
            join("a", "t", "u"),
            settle(),
            strange({"t-0": (5, "")}),
            drain(),
            describe(),
            commit("a", {"t-1": (2, "a note"), "u-0": (99, "ahead")}),
            commit("a", {"t-2": (1, "x" * 4000)}),
            commit("a", {"t-3": (1, "x" * 4097)}),
            commit("a", {"t-4": (1, "ä" * 2000)}),
            describe(),
            leave("a"),
            describe(),
            strange({"t-0": (7, "after")}),
            join("b", "t"),
            settle(),
            drain(),
            describe(),
        ],
    )
    yield GroupScenario(
        "transactional",
        [
            join("a", "t"),
            settle(),
            transact("a", {"t-0": (5, "inside")}),
            transact("a", {"t-0": (6, ""), "t-1": (6, "")}, "abort"),
            drain(),
            transact("a", {"t-2": (3, "")}),
            leave("a"),
            describe(),
        ],
    )
    yield GroupScenario(
        "topic-deleted",
        [
            join("a", "t", "u"),
            settle(),
            drain(),
            leave("a"),
            drop("u"),
            describe(),
            join("a", "t"),
            settle(),
            describe(),
        ],
    )


def administration() -> Iterator[GroupScenario]:
    yield GroupScenario(
        "deleted",
        [
            delete(),
            join("a", "t"),
            settle(),
            drain(),
            delete(),
            describe(),
            leave("a"),
            describe(),
            delete(),
            delete(),
            join("b", "t"),
            settle(),
            drain(),
            describe(),
        ],
    )
    yield GroupScenario(
        "deleted-by-hand",
        [strange({"t-0": (1, "")}), delete(), strange({"t-1": (2, "")}), describe()],
    )
    yield GroupScenario(
        "offsets-deleted",
        [
            delete_offsets("t-0"),
            strange({"t-0": (1, ""), "t-1": (2, ""), "u-0": (3, "")}),
            join("a", "t"),
            settle(),
            delete_offsets("t-0"),
            delete_offsets("u-0", "u-3"),
            describe(),
            leave("a"),
            delete_offsets("t-0", "t-5"),
            describe(),
        ],
    )
    middle_ms = START_MS + 7 * STEP_MS
    yield GroupScenario(
        "reset",
        [
            reset("earliest", "t"),
            reset("latest"),
            cut("t-1", 4),
            reset("earliest", "t", "u"),
            describe(),
            reset(12, "t"),
            reset({"shift": -3}),
            reset({"shift": 1000}, "u"),
            reset({"shift": -1000}),
            reset("current", "t"),
            reset({"time": middle_ms}, "t"),
            reset({"time": middle_ms - 1}, "t-0", "t-1"),
            reset({"time": START_MS * 2}, "u"),
            reset({"duration": "P20000D"}),
            reset({"duration": "PT0S"}, "t-2", "u-1"),
            reset(5, dry_run=True),
            describe(),
            join("a", "t"),
            settle(),
            reset("earliest"),
            leave("a"),
            reset("earliest"),
            describe(),
        ],
        topics={"t": 3, "u": 2},
    )
    yield GroupScenario(
        "current-outside",
        [
            strange({"t-0": (99, ""), "t-1": (1, "")}),
            cut("t-1", 5),
            describe(),
            reset("current"),
            reset({"shift": 0}),
            describe(),
        ],
        topics={"t": 2},
    )


# seconds for each step, at a broker
BY_TOOL = frozenset({"reset", "offsets-deleted", "current-outside"})
SCRIPTS = {
    each.name: each
    for make_some in (each_strategy, joining, committing, administration)
    for each in make_some()
}


def recorded() -> dict[str, list[Any]]:
    """The answers of a real Kafka for each scenario."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return {line["name"]: line["told"] for line in lines}


def main() -> None:
    from tests.kafka.groups_at_kafka import KafkaDriver
    from tests.kafka.oracle import Broker

    out, *names = sys.argv[1:]
    with (
        tempfile.TemporaryDirectory() as work,
        Broker(Path(work) / "log") as broker,
        Path(out).open("w") as file,
    ):
        for name in names or SCRIPTS:
            start = time.monotonic()
            file.write(
                json.dumps(
                    {"name": name, "told": KafkaDriver(SCRIPTS[name], broker).play()},
                    ensure_ascii=False,
                )
                + "\n"
            )
            file.flush()
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
