"""Replication step by step: three directories, a high watermark, an election, a truncation.

    python examples/tutorial_replication.py [--keep DIRECTORY]

The steps are those of Kafka's replication, with one partition. A directory that is renamed stands
for a disk that fails. The housekeeper, which does its work in the background otherwise, runs only
where a step calls it, so each run prints the same.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Literal

import embedlog

TOPIC = "letters"
STEP_BY_STEP = {"housekeeping": False}


def show(log: embedlog.Log) -> None:
    """Print the leader, the ISR, the high watermark, and the log end of each replica."""
    (partition,) = log.replicas(TOPIC).partitions
    isr = ", ".join(f"d{node}" for node in sorted(partition.isr))
    print(
        f"  leader d{partition.leader} in epoch {partition.leader_epoch}, ISR {isr}, high "
        f"watermark {partition.high_watermark}"
    )
    for copy in partition.copies:
        print(f"  d{copy.node}: " + ("away" if copy.log_end is None else f"log end {copy.log_end}"))


def read(log: embedlog.Log) -> str:
    """What a consumer gets: the records below the high watermark."""
    return " ".join(record.value.decode() for record in log.scan(TOPIC).records())


def send(log: embedlog.Log, letter: str, acks: Literal["1", "all"]) -> None:
    with log.producer(acks=acks, enable_idempotence=False, linger_ms=0) as producer:
        offset = producer.send(TOPIC, letter.encode()).result(30).offset
    print(f"  {letter} is acknowledged at offset {offset} (acks={acks})")


def committed(paths: list[Path]) -> None:
    """A record is committed when every replica of the ISR has it."""
    print(
        "1. Three directories. A record with acks=all is acknowledged when every replica of the "
        "ISR has it."
    )
    with embedlog.open(paths, config=STEP_BY_STEP) as log:
        log.create_topic(TOPIC, assignment={0: [1, 2, 3]})
        for letter in "AB":
            send(log, letter, "all")
        show(log)


def above_the_high_watermark(paths: list[Path]) -> None:
    """A record that only the leader has is not committed, and no reader gets it."""
    print(
        "2. The disks of d2 and d3 are absent. d1 is no majority, so the ISR cannot shrink: the "
        "high watermark waits for both."
    )
    for path in paths[1:]:
        path.rename(path.with_name(f"{path.name}.lost"))
    with embedlog.open(paths, config=STEP_BY_STEP) as log:
        send(log, "C", "1")
        show(log)
        print(f"  a reader gets: {read(log)}")


def elected(paths: list[Path]) -> None:
    """The others are a majority without the old leader, and elect one of them."""
    print(
        "3. d1 fails, and d2 and d3 return. They are a majority, and elect a leader in a new epoch."
    )
    paths[0].rename(paths[0].with_name("d1.lost"))
    for path in paths[1:]:
        path.with_name(f"{path.name}.lost").rename(path)
    with embedlog.open(paths, config=STEP_BY_STEP) as log:
        send(log, "D", "all")
        show(log)
        print(f"  a reader gets: {read(log)}")


def truncated(paths: list[Path]) -> None:
    """The old leader truncates where the epochs diverge, copies, joins the ISR, and is elected as
    the preferred leader.
    """
    print(
        "4. d1 returns. Its C belongs to an old epoch: d1 truncates it, copies D, and, as the "
        "preferred leader, leads again."
    )
    paths[0].with_name("d1.lost").rename(paths[0])
    with embedlog.open(paths, config=STEP_BY_STEP) as log:
        log.housekeep()
        show(log)
        print(f"  a reader gets: {read(log)}")


def equal(paths: list[Path]) -> None:
    """Each directory is a complete log of its own."""
    print(
        "5. A last record. After the log was closed, each directory opens alone, for reading, "
        "with the same records."
    )
    with embedlog.open(paths, config=STEP_BY_STEP) as log:
        send(log, "E", "all")
    for path in paths:
        with embedlog.open(path, read_only=True) as alone:
            print(f"  {path.name}: {read(alone)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="replication step by step")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help="keep the three directories in this new directory",
    )
    options = parser.parse_args()
    # the failures are announced by the steps themselves
    logging.getLogger("embedlog").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="embedlog-tutorial-") as scratch:
        root = options.keep or Path(scratch)
        root.mkdir(exist_ok=True)
        paths = [root / f"d{number}" for number in (1, 2, 3)]
        committed(paths)
        above_the_high_watermark(paths)
        elected(paths)
        truncated(paths)
        equal(paths)


if __name__ == "__main__":
    main()
