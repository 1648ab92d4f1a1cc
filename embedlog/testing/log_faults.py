"""Faults on request: appends and commits that fail, wait or kill, lost rights of members and
producers, rebalances.

- The error handling is that of production: a fault enters where the system call would fail. A member
  or producer that loses its rights loses them in the log.
- A fault exists inside its `with` block only. A block that ends without its fault fails the test:
  the test proved nothing.
- Nothing is decided by time: a held append waits for `release`, and `reached` waits for the append.
- Faults of appends and commits are those of this process; other processes that have the log open
  continue.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import embedlog
from embedlog import ConfigError, GroupMetadata, StateError, WakeupError
from embedlog._native import system
from embedlog.config import keywords
from embedlog.storage.liveness import age_leases
from embedlog.testing.killed import run_killed

if TYPE_CHECKING:
    from embedlog import Consumer, Log

__all__ = ["Fault", "Faults", "Held", "faults"]

APPEND = "append"
MARKER = "marker"
COMMIT = "commit"
AFTER = "after "
KILLED_AT: Final = {
    "before append": APPEND,
    "after append": AFTER + APPEND,
    "before commit": COMMIT,
    "after commit": AFTER + COMMIT,
}
EVERY: Final = "*"  # instead of a topic: the log's own ones too, and the markers of transactions
POLL_NS: Final = 1 << 61  # longer than any max.poll.interval.ms
TIMEOUT_S: Final = 10.0

Effect = Callable[[int], bool]  # given the deadline on the boot clock: whether the step may begin


@keywords.checked
class Fault:
    """One fault, from the beginning of its block to its end. Threads: any."""

    def __init__(
        self,
        title: str,
        step: str,
        name: str | None,
        partition: int | None,
        times: int | None,
        effect: Effect,
    ) -> None:
        self._title = title
        self._step = step
        self._name = name
        self._partition = partition
        self._remaining_count = times
        self._effect = effect
        self._changed = threading.Condition()
        self._count = 0
        self._healed = False

    @property
    def count(self) -> int:
        """How often the fault had its effect."""
        return self._count

    def reached(self, timeout: float = TIMEOUT_S) -> None:
        """Wait until the fault has had its effect. `timeout` in seconds. Raises AssertionError
        after it.
        """
        __tracebackhide__ = True
        with self._changed:
            if not self._changed.wait_for(lambda: self._count > 0, timeout):
                raise AssertionError(
                    f"{self._title}: no {self._step} reached it within {timeout:g} s"
                )

    def heal(self) -> None:
        """End the fault before its block ends: a full disk has space again. Idempotent."""
        with self._changed:
            self._healed = True
            self._changed.notify_all()

    # ---- for `Faults` ----------------------------------------------------------------------------

    def _applies(self, step: str, name: str, number: int) -> bool:
        """Whether a step is one of this fault; then it is counted. The log's own topics have faults
        that name them.
        """
        is_of_every_append = self._name == EVERY and step in (APPEND, MARKER)
        if not is_of_every_append and not self._is_of(step, name, number):
            return False
        with self._changed:
            if self._healed:
                return False
            if self._remaining_count is not None:
                if self._remaining_count <= 0:
                    return False
                self._remaining_count -= 1
            self._count += 1
            self._changed.notify_all()
            return True

    def _is_of(self, step: str, name: str, number: int) -> bool:
        """Whether a step has the kind, the name and the partition of this fault."""
        if self._name is None:
            has_name = not name.startswith("__")
        else:
            has_name = name == self._name
        return step == self._step and has_name and self._partition in (None, number)

    def _check_reached(self, hint: str) -> None:
        __tracebackhide__ = True
        if not self._count:
            raise AssertionError(
                f"{self._title}: no {self._step} was made inside the block; {hint}"
            )


@keywords.checked
class Held(Fault):
    """Appends that wait until `release`, as for another process that is stopped inside of an
    append. Threads: any.
    """

    def release(self) -> None:
        """Let all waiting appends continue, and all later ones. Idempotent."""
        self.heal()

    def _wait(self, deadline_ns: int) -> bool:
        """Wait for `release`; False at the deadline."""
        remaining_s = (deadline_ns - system.boot_ns()) / 1e9
        with self._changed:
            return self._changed.wait_for(lambda: self._healed, max(0.0, remaining_s))


class _ActiveFaults:
    """The faults that have begun and not ended, as the `Interposer` of the log. Threads: any."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._mutex = threading.Lock()
        self._active: list[Fault] = []

    def before(self, step: str, name: str, number: int, deadline_ns: int) -> bool:
        """Called by the log before each append and commit."""
        with self._mutex:
            faults_here = [fault for fault in self._active if fault._applies(step, name, number)]
        return all(fault._effect(deadline_ns) for fault in faults_here)

    def after(self, step: str, name: str, number: int) -> None:
        """Called by the log after each append and commit, before its caller learns of it."""
        self.before(AFTER + step, name, number, system.boot_ns())

    def begin(self, fault: Fault) -> None:
        with self._mutex:
            is_first = not self._active
            self._active.append(fault)
        if is_first:
            self._log._engine.interpose(self)

    def end(self, fault: Fault) -> None:
        with self._mutex:
            self._active.remove(fault)
            is_last = not self._active
        if is_last and not self._log._engine.closed:
            self._log._engine.interpose(None)


@keywords.checked
class Faults:
    """The faults of one open log, made by `faults`. Threads: any."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._active = _ActiveFaults(log)

    # ---- appends ---------------------------------------------------------------------------------

    def append_fails(
        self,
        topic: str | None = None,
        error: Exception | None = None,
        *,
        partition: int | None = None,
        times: int | None = 1,
        required: bool = True,
    ) -> AbstractContextManager[Fault]:
        """The next appends fail: to this topic and partition, or to every topic of the program.

        `error`: an OSError is the failure of the write, which the producer reports as StorageError;
        None is an I/O error (EIO). Any other exception is raised as it is. `times`: so many
        attempts fail; None: all inside the block. A producer repeats an attempt after a passing
        error until `delivery.timeout.ms`, so one failure is visible only in its metrics. In a set
        another directory takes over.
        """
        title = f"append_fails({'' if topic is None else repr(topic)})"
        fault = Fault(
            title,
            step=APPEND,
            name=topic,
            partition=partition,
            times=times,
            effect=_make_failure(_check_error(error)),
        )
        return self._during(fault, required)

    def disk_full(self, *, required: bool = True) -> AbstractContextManager[Fault]:
        """Every append fails as on a full disk (ENOSPC), also commits, until the end of the block
        or `heal()`.
        """
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fault = Fault(
            "disk_full()",
            step=APPEND,
            name=EVERY,
            partition=None,
            times=None,
            effect=_make_failure(full),
        )
        return self._during(fault, required)

    @contextmanager
    def append_held(
        self, topic: str | None = None, *, partition: int | None = None, required: bool = True
    ) -> Iterator[Held]:
        """Appends wait until `release()`, or until the end of the block: the disk, or a stopped
        process, takes long.

        An append that waits for longer than its timeout fails as for a lock that another process
        holds, and is repeated.
        """
        title = f"append_held({'' if topic is None else repr(topic)})"
        fault = Held(
            title,
            step=APPEND,
            name=topic,
            partition=partition,
            times=None,
            effect=lambda deadline_ns: fault._wait(deadline_ns),
        )
        with self._during(fault, required):
            try:
                yield fault
            finally:
                fault.release()

    def append_slow(
        self,
        seconds: float,
        topic: str | None = None,
        *,
        partition: int | None = None,
        times: int | None = None,
        required: bool = True,
    ) -> AbstractContextManager[Fault]:
        """Each append takes so many seconds longer, in real time. `append_held` decides the same
        without time.
        """
        fault = Fault(
            f"append_slow({seconds:g})",
            step=APPEND,
            name=topic,
            partition=partition,
            times=times,
            effect=_make_delay(seconds),
        )
        return self._during(fault, required)

    # ---- commits ---------------------------------------------------------------------------------

    def commit_fails(
        self,
        name: str,
        error: Exception | None = None,
        *,
        times: int | None = 1,
        required: bool = True,
    ) -> AbstractContextManager[Fault]:
        """The next commits fail: of offsets of the group `name`, or of transactions of the
        transactional id `name`.

        `error` and `times` are as for `append_fails`. Nothing of the commit is written.
        """
        fault = Fault(
            f"commit_fails({name!r})",
            step=COMMIT,
            name=name,
            partition=None,
            times=times,
            effect=_make_failure(_check_error(error)),
        )
        return self._during(fault, required)

    # ---- members and producers -------------------------------------------------------------------

    def fence(self, transactional_id: str) -> None:
        """Another producer takes over the id: the previous one's next call raises FencedError, and
        its transaction is aborted.
        """
        with self._log.producer(transactional_id=transactional_id) as producer:
            producer.init_transactions()

    def rebalance(self, group_id: str) -> None:
        """Another member joins the group and leaves it: every member must join again, in its next
        poll.

        Raises StateError for a group without members that subscribe topics.
        """
        group = self._log.describe_group(group_id)
        topics = sorted({partition.topic for partition in group.partitions})
        if not group.members or not topics:
            raise StateError(f"group {group_id!r} has no members that read topics")
        with self._log.consumer(*topics, group_id=group_id, enable_auto_commit=False) as consumer:
            consumer.poll(0)

    @contextmanager
    def other_member(self, group_id: str, *topics: str) -> Iterator[None]:
        """Another member of the group polls in a thread of its own, and keeps its share of the
        partitions; it commits nothing.

        The members rebalance at the beginning of the block and at its end.
        """
        ending = threading.Event()
        with self._log.consumer(*topics, group_id=group_id, enable_auto_commit=False) as consumer:
            consumer.poll(0)  # joins before the block begins

            def poll_until_end() -> None:
                with suppress(WakeupError):
                    while not ending.is_set():
                        consumer.poll(TIMEOUT_S)

            name = f"other member of {group_id}"
            thread = threading.Thread(target=poll_until_end, name=name, daemon=True)
            thread.start()
            try:
                yield
            finally:
                ending.set()
                consumer.wakeup()
                thread.join()

    def expire(self, member: Consumer[Any, Any] | GroupMetadata) -> None:
        """A consumer has not polled for `max.poll.interval.ms`: it loses its membership and its
        partitions, as in production.

        Its next commit raises CommitFailedError; its next poll calls `on_lost` and joins again.
        `member`: a consumer of this process between two polls, or its `group_metadata()`. Raises
        StateError for one that is no member, or in a poll.
        """
        metadata = member if isinstance(member, GroupMetadata) else member.group_metadata()
        groups = self._log._engine.groups
        group = groups.read_group(metadata.group_id)
        group_member = None if group is None else group.members.get(metadata.member_id)
        if group_member is None or group_member.process_slot is None:
            raise StateError(
                f"the consumer is no member of group {metadata.group_id!r} now: poll until it has "
                "partitions"
            )
        if not age_leases(POLL_NS, group_member.process_slot):
            raise StateError(
                "the consumer is in a poll, or in another process: it cannot expire here"
            )
        groups.evict_ended()  # as another member would

    # ---- the end of the process ------------------------------------------------------------------

    def killed(
        self,
        work: Callable[[Log], object],
        at: Literal["before append", "after append", "before commit", "after commit"],
        name: str | None = None,
        *,
        nth: int = 1,
        timeout: float = 60.0,
    ) -> None:
        """Run `work` in a forked child, which opens this log for itself, and end the child with
        SIGKILL at a point.

        `at`: "after" is when the data is in the log, and the caller does not know it yet. `name`:
        the topic of the append; the group, or the transactional id, of the commit; None: any of the
        program. Offsets of a transaction are a commit of their group, which counts after the commit
        of the transactional id. `nth`: of the times that the point is reached. `work` gets the
        child's log, and must use no client of this process. `timeout` is in seconds. Raises
        AssertionError if `work` ends in another way, or not in time, and ConfigError for another
        point.
        """
        __tracebackhide__ = True
        step = KILLED_AT.get(at)
        if step is None:
            raise ConfigError("at", expected=" or ".join(map(repr, KILLED_AT)), found=repr(at))
        config = self._log.config
        paths = [directory.path for directory in self._log._engine.directories]
        settings = {option: getattr(config, option) for option in config.given}

        def run() -> None:
            fault = Fault(
                f"killed at {at}",
                step=step,
                name=name,
                partition=None,
                times=None,
                effect=_make_kill(nth),
            )
            with (
                embedlog.open(paths if len(paths) > 1 else paths[0], **settings) as log,
                Faults(log)._during(fault, required=False),
            ):
                work(log)
                # inside the block: it writes what the producers of `work` have not written yet
                log.close()

        title = f"killed({at!r})" if name is None else f"killed({at!r}, {name!r})"
        run_killed(run, timeout, title)

    @contextmanager
    def _during(self, fault: Fault, required: bool) -> Iterator[Fault]:
        __tracebackhide__ = True
        self._active.begin(fault)
        try:
            yield fault
        finally:
            fault.heal()
            self._active.end(fault)
        if required:
            fault._check_reached(self._hint_for(fault))

    def _hint_for(self, fault: Fault) -> str:
        """What to change for a fault that nothing reached."""
        topics = [] if self._log._engine.closed else self._log.topics()
        if topics and fault._step == APPEND and fault._name not in (None, EVERY, *topics):
            return f"there is no topic {fault._name!r}, only {', '.join(map(repr, topics))}"
        return (
            "wait there for what the program does (future.result(), flush(), reached()), or give "
            "required=False"
        )


def _check_error(error: Exception | None) -> Exception:
    """The error of a fault. Raises TypeError for anything else."""
    if error is None:
        return OSError(errno.EIO, os.strerror(errno.EIO))
    if not isinstance(error, Exception):
        raise TypeError(
            f"error is an exception, such as OSError(errno.ENOSPC, 'full'), not {error!r}"
        )
    return error


def _make_delay(seconds: float) -> Effect:
    def effect(_: int) -> bool:
        time.sleep(seconds)
        return True

    return effect


def _make_kill(nth: int) -> Effect:
    remaining_count = nth

    def effect(_: int) -> bool:
        nonlocal remaining_count
        remaining_count -= 1
        if remaining_count == 0:
            system.crash_now()
        return True

    return effect


def _make_failure(error: Exception) -> Effect:
    def effect(_: int) -> bool:
        raise error.with_traceback(None)

    return effect


@keywords.checked_call
def faults(log: Log) -> Faults:
    """The faults of an open log, for its appends and commits in this process. Several such objects
    of one log exclude each other.

        with embedlog.testing.open_log({"orders": 1}) as log, log.producer() as producer:
            with embedlog.testing.faults(log).disk_full() as disk:
                future = producer.send("orders", b"v")
                disk.reached()
            assert future.result(10).offset == 0  # there is space again

    **Threads:** any.
    """
    return Faults(log)
