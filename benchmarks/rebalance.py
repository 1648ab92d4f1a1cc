"""Groups: rebalance time of 8 members in 8 processes over 64 partitions when one joins, leaves or
is killed; idle cost.

A rebalance ends when all remaining members have received their partitions of one generation, and
together own all partitions. The clock starts before the first `poll` of a joining member, before
`close` of a leaving one, before SIGKILL.
"""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedlog

from .context import QUIET, Context, remove
from .measure import Outcome, percentile

MEMBERS = 8
PARTITIONS = 64
GROUP = "bench"
DEADLINE_S = 60.0
TARGETS_MS = {"join": 200.0, "leave": 200.0, "kill": 300.0}


# ---- a member's process ----------------------------------------------------------------------------------------------


def member(directory: str) -> dict[str, Any]:
    """Join and leave by the lines of the input; report assignments with times of the system-wide
    clock.
    """
    with embedlog.open(directory, create=False, config={"housekeeping": False}) as log:
        consumer = made(log)
        say("ready")
        joined = False
        while True:
            if select.select([sys.stdin], [], [], 0 if joined else None)[0]:
                word = sys.stdin.readline().strip()
                say(word, time.monotonic_ns())
                if word == "join":
                    joined = True
                elif word == "leave":
                    consumer.close()
                    consumer = made(log)
                    joined = False
                else:
                    return {}
            if joined:
                consumer.poll(timeout=0.2)


def made(log: embedlog.Log) -> embedlog.Consumer:
    consumer = log.consumer(group_id=GROUP, enable_auto_commit=False, auto_offset_reset="latest")

    def told(tps: list[embedlog.TopicPartition]) -> None:
        say("assigned", time.monotonic_ns(), consumer.group_metadata().generation, len(tps))

    consumer.subscribe(["bench"], on_assigned=told)
    return consumer


def say(*words: object) -> None:
    print(*words, flush=True)


# ---- the measuring process -------------------------------------------------------------------------------------------


class Process:
    """One member process."""

    def __init__(self, directory: Path, lines: queue.Queue[tuple[int, list[str]]]) -> None:
        command = [sys.executable, "-m", "benchmarks.child", "member", str(directory)]
        root = Path(__file__).resolve().parent.parent
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=root
        )
        self.pid = self._child.pid
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: queue.Queue[tuple[int, list[str]]]) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            lines.put((self.pid, line.split()))

    def tell(self, word: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()


class Group:
    """The members and their reports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: queue.Queue[tuple[int, list[str]]] = queue.Queue()
        self.members: list[Process] = []
        self.spare: list[Process] = []
        self.ready: set[int] = set()

    def spawn(self) -> None:
        self.spare.append(Process(self.directory, self.lines))

    def next(self) -> tuple[int, list[str]]:
        """The next report of any member."""
        pid, words = self.lines.get(timeout=DEADLINE_S)
        if words[0] == "ready":
            self.ready.add(pid)
        return pid, words

    def one_ready(self) -> Process:
        """A process that has opened the log and waits for a command."""
        while not self.spare:
            self.spawn()
        while self.spare[0].pid not in self.ready:
            self.next()
        return self.spare.pop(0)

    def settled(self, began_ns: int, word: str = "") -> float:
        """Milliseconds until all members received their assignments of one generation. `word`: its
        echo has the start time.
        """
        counts: dict[int, dict[int, int]] = {}
        latest: dict[int, int] = {}
        pids = {each.pid for each in self.members}
        while True:
            pid, words = self.next()
            if words[0] == word:
                began_ns = int(words[1])
            if words[0] != "assigned" or pid not in pids:
                continue
            when, generation, count = (int(each) for each in words[1:])
            counts.setdefault(generation, {})[pid] = count
            latest[generation] = max(latest.get(generation, 0), when)
            parts = counts[generation]
            if parts.keys() == pids and sum(parts.values()) == PARTITIONS:
                return (latest[generation] - began_ns) / 1e6

    def join(self) -> float:
        process = self.one_ready()
        self.members.append(process)
        process.tell("join")
        return self.settled(time.monotonic_ns(), "join")

    def leave(self) -> float:
        process = self.members.pop(0)
        self.spare.append(process)
        self.ready.discard(process.pid)
        process.tell("leave")
        spent = self.settled(time.monotonic_ns(), "leave")
        self.ready.add(process.pid)
        return spent

    def kill(self) -> float:
        process = self.members.pop(0)
        self.spawn()
        self.one_ready_first()
        began = time.monotonic_ns()
        os.kill(process.pid, 9)
        spent = self.settled(began)
        process.kill()
        return spent

    def one_ready_first(self) -> None:
        """Start processes before the clock runs."""
        while any(each.pid not in self.ready for each in self.spare):
            self.next()

    def close(self) -> None:
        for process in [*self.members, *self.spare]:
            process.kill()


def rebalance(context: Context) -> Iterator[Outcome]:
    """Join, leave, join, kill in alternation, so that all run in the same minute."""
    directory = context.fresh("rebalance")
    rounds = max(50, 7 * context.rounds)
    with embedlog.open(directory) as log:
        log.create_topic("bench", PARTITIONS, config=QUIET)
    group = Group(directory)
    spent: dict[str, list[float]] = {"join": [], "leave": [], "kill": []}
    try:
        for _ in range(MEMBERS - 1):
            group.join()
        for _ in range(rounds):
            spent["join"].append(group.join())
            spent["leave"].append(group.leave())
            group.join()
            spent["kill"].append(group.kill())
        group.join()
        bare = context.bare.wake(context.samples)
        for name, found in spent.items():
            detail = {
                "p50": percentile(found, 0.5),
                "largest": max(found),
                "rounds": len(found),
                "bare futex us": bare["p99"],
            }
            title = f"group/members={MEMBERS}/partitions={PARTITIONS}/{name}/p99"
            yield Outcome(title, percentile(found, 0.99), "ms", TARGETS_MS[name], False, detail)
    finally:
        group.close()
        remove(directory)
