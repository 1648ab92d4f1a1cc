"""Copies of a decision log in several directories, processes that decide in them, and a check of
their bytes.

A process is an object with partitions of its own, or a fork that is killed at a chosen call. The
check shares no code with the library. It reads the log files, and finds the number of each decision
in the bytes of the batches.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from embedlog._native import system
from embedlog.config.topic import TopicConfig
from embedlog.errors import EmbedlogError
from embedlog.partition.log_context import Context
from embedlog.partition.partition import Partition
from embedlog.replicas.decisions.copies import Copy
from embedlog.replicas.decisions.decision_log import DecisionLog
from embedlog.replicas.rules.events import Add, Event, Identity, SetConfig, SetVoter
from embedlog.replicas.rules.records import NODE
from embedlog.replicas.rules.state import State
from embedlog.storage import identity

TOPIC = "__replica_state"
CLUSTER = "cluster"
SETTING = "flush.messages"
NODES = (1, 2, 3)
COMPACTED = TopicConfig(cleanup_policy=("compact",))
_HEAD = struct.Struct(">qii")  # base offset, size of the rest, term
_NUMBER = re.compile(rb"flush\.messages.([0-9]+)", re.DOTALL)
CALLS_MAX = 1000  # of a decision
LOCK_TIMEOUT_MS = 60_000


def copy_path(root: Path, node: int) -> Path:
    return root / f"d{node}" / f"{TOPIC}-0"


def made(root: Path, nodes: Iterable[int] = NODES) -> Path:
    """Directories with empty copies."""
    for node in nodes:
        path = copy_path(root, node)
        path.mkdir(parents=True)
        identity.write_topic_id(path, identity.id_of_name(TOPIC))
    return root


def incarnation(boot: int) -> bytes:
    return bytes([boot]) * 16


class Process:
    """A process with the copies of some directories. `boot`: pages of another boot do not count, as
    after a power loss.
    """

    def __init__(
        self,
        root: Path,
        nodes: Iterable[int] = NODES,
        *,
        boot: int = 1,
        voters: Iterable[int] = NODES,
        cluster: str = CLUSTER,
    ) -> None:
        self.partitions: dict[int, Partition] = {}
        self.log = DecisionLog(cluster, voters, lock_timeout_ms=LOCK_TIMEOUT_MS)
        for node in nodes:
            self.attach(root, node, boot)

    def attach(self, root: Path, node: int, boot: int = 1) -> None:
        path = copy_path(root, node)
        context = Context(
            path.parent,
            incarnation(boot),
            None,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            node_slot=node - 1,
        )
        topic_id = identity.id_bytes(identity.id_of_name(TOPIC))
        self.partitions[node] = Partition(context, TOPIC, 0, path, topic_id, COMPACTED)
        self.log.attach(Copy(node, self.partitions[node]))

    def detach(self, node: int) -> None:
        self.log.detach(node)
        self.partitions.pop(node).close()

    def begin(self, nodes: Sequence[int] = NODES) -> State:
        """The first decision: these directories are the members."""
        return self.log.decide_all([_added(node) for node in nodes]).state

    def decide(self, number: int, deadline_ns: int | None = None) -> None:
        """Decide this number; when it returns, the process has acted on it."""
        self.log.decide(lambda state: SetConfig("", {SETTING: str(number)}, kind=NODE), deadline_ns)

    def add(self, node: int, *, voter: bool = True) -> None:
        self.log.decide_all([_added(node, voter)])

    def set_voters(self, voters: Sequence[int], number: int) -> None:
        """Make these nodes the voters, and decide a number, in one decision."""
        events: list[Event] = [SetVoter(node, True) for node in voters]
        events += [
            SetVoter(node, False) for node in self.log.counted_state().voters if node not in voters
        ]
        events.append(SetConfig("", {SETTING: str(number)}, kind=NODE))
        self.log.decide_all([lambda state, offset, event=event: event for event in events])  # type: ignore[misc]

    def settled(self) -> list[int]:
        """The number in the newest state in which every record counts."""
        return [int(value) for value in self.log.settle().settings.values()]

    def close(self) -> None:
        for partition in self.partitions.values():
            partition.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _added(node: int, voter: bool = True) -> Callable[[State, int], Event]:
    directory = Identity(
        node, CLUSTER, uuid.UUID(int=10**6 + node), uuid.UUID(int=1000 * node), f"/disk{node}/log"
    )
    return lambda state, offset: Add(directory, offset, voter)


def begun(root: Path, nodes: Sequence[int] = NODES) -> Path:
    """A set after its first decision, and decision 1."""
    with Process(made(root, nodes), nodes, voters=nodes) as process:
        process.begin(nodes)
        process.decide(1)
    return root


# ---- processes that are killed -------------------------------------------------------------------

CALLS = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "point")


DONE = 0
REFUSED = 3
BROKEN = 4


def killed(
    work: Callable[[], object], nth: int, kinds: Sequence[str] = CALLS, name: str = ""
) -> bool:
    """Do the work in a fork that is killed before the nth of these calls; whether that happened."""
    return outcome(work, nth, kinds, name) is None


def outcome(
    work: Callable[[], object], nth: int, kinds: Sequence[str] = CALLS, name: str = ""
) -> int | None:
    """As `killed`: None, or whether the work is DONE, or was REFUSED by an error of the library."""
    pid = os.fork()
    if pid == 0:
        status = BROKEN
        try:
            system.fault_arm(tuple(kinds), nth, "kill_before", 5, name=name)
            work()
            status = DONE
        except EmbedlogError:
            status = REFUSED
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    found = os.waitstatus_to_exitcode(status)
    assert found != BROKEN
    return found


def each_kill(
    root: Path,
    workspace: Path,
    work: Callable[[Path], object],
    name: str = "",
    *,
    first: int = 1,
    step: int = 1,
) -> Iterator[Path]:
    """For each call of the work: a copy of the directories in which a process was killed before
    that call.
    """
    for nth in range(first, CALLS_MAX, step):
        here = Path(shutil.copytree(root, workspace / str(nth)))
        if not killed(lambda here=here: work(here), nth, name=name):  # type: ignore[misc]
            assert nth > first
            return
        yield here
    raise AssertionError("the work does not end")


def killed_with(
    root: Path,
    nodes: Sequence[int],
    work: Callable[[Process], object],
    written: int,
    *,
    boot: int = 1,
) -> None:
    """A process is killed when the first of its copies has the decision `written`, and no other one
    has it.
    """
    before = root.with_name(f"{root.name}-before")
    shutil.copytree(root, before)

    def is_written(nth: int) -> bool:
        """Whether a process that is killed before that call has written to its first copy."""
        shutil.rmtree(root)
        shutil.copytree(before, root)
        killed(partial(_work_in, root, nodes, work, boot), nth)
        return written in numbers_of(root, nodes[0])

    # the first such call, found by halves: each look is a fork
    nth = 1 + bisect_left(range(1, CALLS_MAX), True, key=is_written)
    assert is_written(nth), "the first copy is not written"
    others = [node for node in nodes[1:] if written in numbers_of(root, node)]
    assert others == [], "no call is between the copies"
    shutil.rmtree(before)


def _work_in(
    root: Path, nodes: Sequence[int], work: Callable[[Process], object], boot: int
) -> None:
    work(Process(root, nodes, boot=boot))


# ---- the check -----------------------------------------------------------------------------------


def batches_of(root: Path, node: int) -> list[tuple[int, int, bytes]]:
    """Base offset, term and bytes of each whole batch of a copy."""
    found = []
    for path in sorted(copy_path(root, node).glob("*.log")):
        data = path.read_bytes()
        at = 0
        while at + _HEAD.size <= len(data):
            base, size, term = _HEAD.unpack_from(data, at)
            if size <= 0 or at + 12 + size > len(data):
                break
            found.append((base, term, data[at + 12 : at + 12 + size]))
            at += 12 + size
    return found


def numbers_of(root: Path, node: int) -> list[int]:
    """The decisions that a copy has, in its order."""
    return [
        int(number) for _, _, data in batches_of(root, node) for number in _NUMBER.findall(data)
    ]


class Acted:
    """The decisions that processes have acted on. A settled log contains all of them, in their
    order (M1).
    """

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def decide(self, process: Process, number: int) -> bool:
        """Let a process decide; without an error it has acted on the number."""
        try:
            process.decide(number)
        except EmbedlogError as problem:
            print(f"no decision {number}: {problem}")
            return False
        self.numbers.append(number)
        return True

    def check(self, root: Path, nodes: Iterable[int]) -> None:
        """Raise AssertionError if one of these copies lacks a decision; they were level with each
        other just before.
        """
        logs = {node: numbers_of(root, node) for node in nodes}
        assert len({tuple(numbers) for numbers in logs.values()}) == 1, f"different logs {logs}"
        for node, numbers in logs.items():
            kept = [number for number in numbers if number in self.numbers]
            assert kept == self.numbers, f"M1: copy {node} has {numbers}, acted on {self.numbers}"
