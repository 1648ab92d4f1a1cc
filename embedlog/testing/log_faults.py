"""Faults on request: appends and commits that fail, wait or kill, lost rights of members and
producers, rebalances.

FAULTS-1  the error handling is that of production: a fault enters where the system call would fail
    (`interposer`). A member or producer that loses its rights loses them in the log
FAULTS-2  a fault exists inside its `with` block only. A block that ends without its fault fails the
    test: the test proved nothing
FAULTS-3  nothing is decided by time: a held append waits for `release`, and `reached` waits for the
    append
FAULTS-4  faults of appends and commits are those of this process; other processes that have the log
    open continue
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
        self._left = times
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
        every = self._name == EVERY and step in (APPEND, MARKER)
        named = name == self._name or (self._name is None and not name.startswith("__"))
        if not every and (step != self._step or not named or self._partition not in (None, number)):
            return False
        with self._changed:
            if self._healed or (self._left is not None and self._left <= 0):
                return False
            if self._left is not None:
                self._left -= 1
            self._count += 1
            self._changed.notify_all()
            return True

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
        left_s = (deadline_ns - system.boot_ns()) / 1e9
        with self._changed:
            return self._changed.wait_for(lambda: self._healed, max(0.0, left_s))


class _ActiveFaults:
    """The faults that have begun and not ended, as the `Interposer` of the log. Threads: any."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._mutex = threading.Lock()
        self._active: list[Fault] = []

    def before(self, step: str, name: str, number: int, deadline_ns: int) -> bool:
        """Called by the log before each append and commit."""
        with self._mutex:
            found = [each for each in self._active if each._applies(step, name, number)]
        return all(each._effect(deadline_ns) for each in found)

    def after(self, step: str, name: str, number: int) -> None:
        """Called by the log after each append and commit, before its caller learns of it."""
        self.before(AFTER + step, name, number, system.boot_ns())

    def begin(self, fault: Fault) -> None:
        with self._mutex:
            first = not self._active
            self._active.append(fault)
        if first:
            self._log._engine.interpose(self)

    def end(self, fault: Fault) -> None:
        with self._mutex:
            self._active.remove(fault)
            last = not self._active
        if last and not self._log._engine.closed:
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
        failure = _given(error)
        title = f"append_fails({'' if topic is None else repr(topic)})"
        return self._during(
            Fault(title, APPEND, topic, partition, times, _raising(failure)), required
        )

    def disk_full(self, *, required: bool = True) -> AbstractContextManager[Fault]:
        """Every append fails as on a full disk (ENOSPC), also commits, until the end of the block
        or `heal()`.
        """
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._during(
            Fault("disk_full()", APPEND, EVERY, None, None, _raising(full)), required
        )

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
        held = Held(
            title, APPEND, topic, partition, None, lambda deadline_ns: held._wait(deadline_ns)
        )
        with self._during(held, required):
            try:
                yield held
            finally:
                held.release()

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
        return self._during(
            Fault(f"append_slow({seconds:g})", APPEND, topic, partition, times, _delaying(seconds)),
            required,
        )

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
        failure = _given(error)
        return self._during(
            Fault(f"commit_fails({name!r})", COMMIT, name, None, times, _raising(failure)), required
        )

    # ---- members and producers -------------------------------------------------------------------

    def fence(self, transactional_id: str) -> None:
        """Another producer takes over the id: the previous one's next call raises FencedError, and
        its transaction is aborted.
        """
        with self._log.producer(transactional_id=transactional_id) as other:
            other.init_transactions()

    def rebalance(self, group_id: str) -> None:
        """Another member joins the group and leaves it: every member must join again, in its next
        poll.

        Raises StateError for a group without members that subscribe topics.
        """
        group = self._log.describe_group(group_id)
        topics = sorted({each.topic for each in group.partitions})
        if not group.members or not topics:
            raise StateError(f"group {group_id!r} has no members that read topics")
        with self._log.consumer(*topics, group_id=group_id, enable_auto_commit=False) as other:
            other.poll(0)

    @contextmanager
    def other_member(self, group_id: str, *topics: str) -> Iterator[None]:
        """Another member of the group polls in a thread of its own, and keeps its share of the
        partitions; it commits nothing.

        The members rebalance at the beginning of the block and at its end.
        """
        ending = threading.Event()
        with self._log.consumer(*topics, group_id=group_id, enable_auto_commit=False) as other:
            other.poll(0)  # joins before the block begins

            def polls() -> None:
                with suppress(WakeupError):
                    while not ending.is_set():
                        other.poll(TIMEOUT_S)

            thread = threading.Thread(target=polls, name=f"other member of {group_id}", daemon=True)
            thread.start()
            try:
                yield
            finally:
                ending.set()
                other.wakeup()
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
        found = groups.read_group(metadata.group_id)
        known = None if found is None else found.members.get(metadata.member_id)
        if known is None or known.process_slot is None:
            raise StateError(
                f"the consumer is no member of group {metadata.group_id!r} now: poll until it has "
                "partitions"
            )
        if not age_leases(POLL_NS, known.process_slot):
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
        paths = [each.path for each in self._log._engine.directories]
        settings = {each: getattr(config, each) for each in config.given}

        def run() -> None:
            fault = Fault(f"killed at {at}", step, name, None, None, _killing(nth))
            place = paths if len(paths) > 1 else paths[0]
            with (
                embedlog.open(place, **settings) as log,
                Faults(log)._during(fault, required=False),
            ):
                work(log)
                # inside the block: it writes what the producers of `work` have not written yet
                log.close()

        run_killed(run, timeout, f"killed({at!r}{'' if name is None else f', {name!r}'})")

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
            fault._check_reached(self._hint(fault))

    def _hint(self, fault: Fault) -> str:
        """What to change for a fault that nothing reached."""
        topics = [] if self._log._engine.closed else self._log.topics()
        if topics and fault._step == APPEND and fault._name not in (None, EVERY, *topics):
            return f"there is no topic {fault._name!r}, only {', '.join(map(repr, topics))}"
        return (
            "wait there for what the program does (future.result(), flush(), reached()), or give "
            "required=False"
        )


def _given(error: Exception | None) -> Exception:
    """The error of a fault. Raises TypeError for anything else."""
    if error is None:
        return OSError(errno.EIO, os.strerror(errno.EIO))
    if not isinstance(error, Exception):
        raise TypeError(
            f"error is an exception, such as OSError(errno.ENOSPC, 'full'), not {error!r}"
        )
    return error


def _delaying(seconds: float) -> Effect:
    def effect(_: int) -> bool:
        time.sleep(seconds)
        return True

    return effect


def _killing(nth: int) -> Effect:
    left = [nth]

    def effect(_: int) -> bool:
        left[0] -= 1
        if left[0] == 0:
            system.crash_now()
        return True

    return effect


def _raising(error: Exception) -> Effect:
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
