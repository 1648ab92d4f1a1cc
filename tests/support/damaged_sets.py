"""Damage of the files of a set, and appends to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import embedlog
from tests.support.killed_processes import killed_during
from tests.support.verified_sets import opened


def send(log: embedlog.Log, topic: str, value: bytes) -> None:
    with log.producer() as producer:
        producer.send(topic, value, key=b"k").result(20)


def killed_append(root: Path, node: int) -> None:
    """A process is killed after its write to the replica of a node: the next append repairs that
    replica first.
    """
    place = f"/d{node}/t-0/00000000000000000000.log"
    killed_during(
        lambda log: send(log, "t", b"lost"), partial(opened, root), "pwrite", "kill_after", place
    )


def garbled(path: Path) -> None:
    path.write_bytes(b"\xff is no text\n")


def of_another_topic(path: Path) -> None:
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")


def newer(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"version: 0", b"version: 1"))
