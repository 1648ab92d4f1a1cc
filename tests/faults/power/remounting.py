"""A file system that loses its cache while the machine runs: E5 on a real disk image, for
transactions.

Two writers and a copier run transactions with `flush.messages=1` on an ext4 or xfs image. Then the
file system is shut down without a sync (the ioctl GOINGDOWN), unmounted and mounted again.
Invariants: a transaction is visible whole or not at all, an aborted one never. No record is copied
twice; records below the group's committed offsets are copied.

Runs as a program in its own mount namespace:
`unshare -m python -m tests.faults.power.remounting KIND SEED CUTS DIRECTORY`. Its last line is
JSON: `cuts`, `transactions`, `violations`; or `missing`, the missing tool. One more argument,
`boot-only`, selects the mutant: the library assumes that the page cache is valid for the whole
boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import embedlog
from embedlog.coordination import directory
from embedlog.partition import state
from embedlog.storage import control_page

GOINGDOWN = 0x8004587D
NO_LOG_FLUSH = 2
IMAGE_MB = {"ext4": 128, "xfs": 300}
SMALL = {"segment.bytes": 20_000}
CONFIG: dict[str, Any] = {
    "lock.timeout.ms": 8000,
    "log.flush.offset.checkpoint.interval.ms": 300,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.segment.bytes": 20_000,
    "offsets.topic.segment.bytes": 20_000,
}
UNMOUNT_S = 10


def missing(kind: str) -> str:
    """The missing tools of this machine, in a few words; empty if it can run the experiment."""
    if os.geteuid() != 0:
        return "only root can mount an image"
    for program in (f"mkfs.{kind}", "unshare", "mount"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            return f"no {program} on the path"
    return ""


def command(kind: str, seed: int, cuts: int, area: Path, *more: str) -> list[str]:
    return [
        "unshare",
        "-m",
        sys.executable,
        "-m",
        "tests.faults.power.remounting",
        kind,
        str(seed),
        str(cuts),
        str(area),
        *more,
    ]


# ---- the image -----------------------------------------------------------------------------------


class Disk:
    """An image, mounted by a loop device below `area`."""

    def __init__(self, kind: str, area: Path) -> None:
        self._image = area / "image"
        self._place = area / "mount"
        self.log = self._place / "log"
        self._place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(IMAGE_MB[kind] << 20)
        subprocess.run([f"mkfs.{kind}", "-q", self._image], check=True, capture_output=True)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)

    def mount(self) -> None:
        subprocess.run(
            ["mount", "-o", "loop", self._image, self._place], check=True, capture_output=True
        )

    def shut_down(self) -> None:
        """From now on nothing reaches the image."""
        fd = os.open(self._place, os.O_DIRECTORY)
        fcntl.ioctl(fd, GOINGDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(fd)

    def unmount(self) -> None:
        """The kernel may hold the mount for a moment after its last user died."""
        deadline = time.monotonic() + UNMOUNT_S
        while (
            ended := subprocess.run(["umount", self._place], capture_output=True, check=False)
        ).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(ended.stderr.decode())
            os.sched_yield()


# ---- the processes -------------------------------------------------------------------------------


def write(path: Path, cut: int, who: int, seed: int) -> None:
    """Transactions without end. A record has its transaction, its number, their count, and whether
    the transaction is aborted.
    """
    rng = random.Random(f"{seed} {cut} {who}")
    log = embedlog.open(path, config=CONFIG)
    producer = log.producer(transactional_id=f"x{who}")
    producer.init_transactions()
    turn = 0
    while True:
        count = rng.randrange(1, 8)
        aborted = rng.random() < 0.3
        producer.begin_transaction()
        for number in range(count):
            value = b"%d.%d.%d %d %d %d " % (
                cut,
                who,
                turn,
                number,
                count,
                aborted,
            ) + b"." * rng.randrange(300)
            producer.send("t", value, partition=rng.randrange(3))
        if aborted:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        turn += 1


def copy(path: Path) -> None:
    """Records of `t` into `o`, each once, with the group's offsets in the same transaction."""
    log = embedlog.open(path, config=CONFIG)
    producer = log.producer(transactional_id="copy")
    producer.init_transactions()
    consumer = log.consumer(
        "t",
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=6000,
        max_poll_records=50,
    )
    while True:
        records = consumer.poll(timeout=0.2)
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            producer.send(
                "o", b"%d %d" % (record.partition, record.offset), partition=record.partition % 2
            )
        offsets = {tp: consumer.position(tp) for tp in consumer.assignment()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()


@contextlib.contextmanager
def running(*works: Callable[[], None]) -> Iterator[None]:
    """Each in a process of its own, killed at the end."""
    pids = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# ---- the judge -----------------------------------------------------------------------------------


def judged(path: Path) -> tuple[int, list[str]]:
    """How many transactions readers of committed records see, and what is wrong."""
    wrong: list[str] = []
    with embedlog.open(path, config={**CONFIG, "housekeeping": False}) as log:
        for name in ("x0", "x1", "copy"):
            with log.producer(transactional_id=name) as producer:
                producer.init_transactions()
        found = defaultdict(list)
        visible = set()
        for record in log.scan("t", isolation_level="read_committed").records():
            name, *numbers = record.value.split(b" ")[:4]
            found[name.decode()].append(tuple(map(int, numbers)))
            visible.add((record.partition, record.offset))
        for name, records in found.items():
            _, count, aborted = records[0]
            if aborted:
                wrong.append(f"transaction {name} was aborted and is visible")
            elif sorted(number for number, _, _ in records) != list(range(count)):
                wrong.append(f"transaction {name}: {len(records)} of {count} records are visible")
        copied = Counter(
            tuple(map(int, r.value.split()))
            for r in log.scan("o", isolation_level="read_committed").records()
        )
        wrong += [
            f"record {place} is copied {count} times"
            for place, count in copied.items()
            if count > 1
        ]
        offsets = log.group_offsets("g") if "g" in log.groups() else {}
        for partition, committed in offsets.items():
            below = {
                place
                for place in visible
                if place[0] == partition.partition and place[1] < committed.offset
            }
            wrong += [
                f"offset {committed.offset} is committed, {place} is not copied"
                for place in sorted(below - set(copied))
            ]
    return len(found), wrong


def in_child(work: Callable[[], Any]) -> Any:
    """The result of `work`, computed in a process of its own, so that nothing of it stays open on
    the disk.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            os.write(writing, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("a process of the experiment failed")
    return json.loads(text)


def set_up(path: Path) -> None:
    with embedlog.open(path, config=CONFIG) as log:
        for topic, partitions in (("t", 3), ("o", 2)):
            log.create_topic(topic, partitions=partitions, config={"flush.messages": 1, **SMALL})


def experiment(kind: str, seed: int, cuts: int, area: Path) -> dict[str, Any]:
    """Up to `cuts` cuts of one disk; ends at the first violation."""
    rng = random.Random(seed)
    transactions = 0
    violations = []
    cut = 0
    disk = Disk(kind, area)
    disk.mount()
    try:
        in_child(lambda: set_up(disk.log))
        while cut < cuts and not violations:
            writers = [partial(write, disk.log, cut, who, seed) for who in range(2)]
            with running(*writers, partial(copy, disk.log)):
                time.sleep(rng.uniform(0.5, 1.5))  # the experiment draws the moment of the cut
                disk.shut_down()
            cut += 1
            disk.unmount()
            disk.mount()
            transactions, violations = in_child(lambda: judged(disk.log))
    finally:
        disk.unmount()
    return {"cuts": cut, "transactions": transactions, "violations": violations}


def main(kind: str, seed: str, cuts: str, area: str, *more: str) -> None:
    logging.disable(logging.CRITICAL)
    if "boot-only" in more:
        for module in (control_page, directory, state):
            module.boot_and_mount_number = (  # type: ignore[attr-defined]
                lambda path: control_page.boot_number()
            )
    try:
        print(json.dumps(experiment(kind, int(seed), int(cuts), Path(area))))
    except subprocess.CalledProcessError as problem:
        # containers without loop devices, or without the right to mount
        print(json.dumps({"missing": f"{problem.cmd[0]}: {problem.stderr.decode().strip()}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
