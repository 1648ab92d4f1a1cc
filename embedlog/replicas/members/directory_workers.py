"""This module makes calls into the directories of a set by threads of these directories: a disk
that hangs stops no caller.

A system call on a disk that hangs returns when the disk continues, and nothing ends it before. So a
caller hands the call to a thread of the directory, and waits for a limited time. After it the
caller goes on, and the thread is left behind.

A directory has four lanes, each with at most one thread: decisions take milliseconds and must not
queue behind copies, nor these behind the housekeeper's jobs, such as a compaction, nor a short
write behind the load of a partition. A thread starts
with the first call, works for all callers of the process in their order, and ends after `IDLE_S`
without a call. A lane whose thread is inside a call that hangs refuses further ones at once, so at
most one thread hangs in each lane.

A thread that waits for the processor is no disk that hangs. After the limit the caller looks at the
thread for a moment more, and goes on waiting if it has run meanwhile, or would run
(`Lane._read_trace`).

A lane may hold locks between two calls: they belong to its thread. Their end is put into its queue
by one call of C (`Lane.end_with`), so an interrupt does not keep them, and a thread that was left
behind releases them when its call returns.
"""

from __future__ import annotations

import _thread
import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from embedlog._native import probe, replication, system
from embedlog._native.scope import Guard, stack
from embedlog._native.threads import start
from embedlog.errors import EmbedlogError, LockTimeoutError, StorageError
from embedlog.storage import file_names, files
from embedlog.storage.call_deadline import NEVER_NS, Standing, stand_in_for, standing_of_thread

T = TypeVar("T")

END_S: Final = 1.0  # for the end of a thread
IDLE_S: Final = 5.0  # without a call, after which the thread of a lane ends
LEAST_NS: Final = 1_000_000_000  # a limit below that is one of a loaded machine
LOOK_NS: Final = 250_000_000  # after the limit, in which a thread that hangs does not run
LIMITS: Final = 4  # after so many limits a call hangs, although its thread runs now and then
# a byte of the directory's lock file, after the note of its holder: nobody reads it
PROBED_AT: Final = 96
# for an answer of a directory that hangs, as far as this process knows
KNOWN_NS: Final = 1_000_000_000
# after the deadline of a lock or a sync, until which its own error is waited for
LATER_NS: Final = 500_000_000

DIRECTORY: Final = "directory"
DECISIONS: Final = "decisions"
JOBS: Final = "jobs"
WRITES: Final = "writes"
LANES: Final = (DIRECTORY, DECISIONS, JOBS, WRITES)


class _Job:
    """One call for a lane."""

    __slots__ = ("call", "ended", "give_up", "problem", "put_ns", "result", "standing", "turn")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.standing: Standing = standing_of_thread()
        self.put_ns = system.boot_ns()
        # whoever takes it first decides: the thread begins the call, or the caller gives up
        self.turn = _thread.allocate_lock()
        # one call of C. A call that was not begun is not made after that
        self.give_up = partial(self.turn.acquire, False)
        self.ended = _thread.allocate_lock()  # free after the call
        self.ended.acquire()
        self.result: object = None
        self.problem: BaseException | None = None

    def make(self) -> None:
        """Make the call, unless the caller has given up."""
        if not self.turn.acquire(False):
            return
        try:
            with stand_in_for(self.standing):
                self.result = self.call()
        except BaseException as problem:  # noqa: BLE001  (raised in the thread of the caller)
            self.problem = problem
        self.ended.release()

    def ends_until(self, deadline_ns: int) -> bool:
        """Whether it has ended, now or before the deadline (boot clock)."""
        timeout_s = max(0.0, (deadline_ns - system.boot_ns()) / 1e9)
        return self.ended.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class _Trace(NamedTuple):
    """What shows whether the thread of a lane has run between two looks."""

    since_ns: int  # the begin of its call
    # processor time, time of waiting for a processor, count of turns: as the system shows them
    times: bytes


def _begin_of(path: str) -> bytes:
    """The first bytes of a file of the system, which shows no size."""
    with files.opened(path) as fd:
        return files.pread(fd, 256, 0, path)


class _End:
    """The end of a thread."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = _thread.allocate_lock()
        self.done.acquire()


class Lane:
    """The thread of a directory that works in it. **Threads:** any."""

    def __init__(self, worker: DirectoryWorker) -> None:
        self._worker = worker
        self._jobs: SimpleQueue[_Job | _End | Callable[[], object]] = SimpleQueue()
        self._alive = _thread.allocate_lock()  # held by the current thread
        self._inside = 0  # the number of that thread
        self._native_id = 0  # its number in the system
        self._since_ns = 0  # the begin of its current call; 0 between two calls
        self._late_ns = 0  # that of the call that hangs, as a caller has found
        # the locks that the thread holds between two calls: it does not end meanwhile. Changed by
        # its calls only
        self.lock_count = 0

    @property
    def worker(self) -> DirectoryWorker:
        return self._worker

    @property
    def path(self) -> Path:
        return self._worker.path

    @property
    def is_busy(self) -> bool:
        """Whether its thread is inside a call."""
        return self._since_ns != 0

    def is_inside(self) -> bool:
        """Whether this thread is that of the lane."""
        return self._inside == threading.get_ident()

    @property
    def is_hanging(self) -> bool:
        """Whether its thread is inside a call that did not return in time."""
        return self._late_ns != 0 and self._late_ns == self._since_ns

    def run(
        self, call: Callable[[], T], deadline_ns: int = NEVER_NS, *, limit_ns: int | None = None
    ) -> T:
        """The result of a call in the thread of this lane. Raises what the call raises.

        After `limit_ns`, by default that of the directory, it raises StorageError with ETIMEDOUT:
        the directory hangs. A deadline before that shows nothing about the directory:
        LockTimeoutError. The call may still go on after both.
        """
        if self.is_inside():
            return call()
        if self.is_hanging:
            raise self._worker.hang_error()
        if limit_ns is None:
            limit_ns = self._worker.limit_ns
        job = _Job(call)
        with Guard(job.give_up):
            self._put(job)
            problem = self._await_end(job, deadline_ns, limit_ns)
        if problem is not None:
            raise problem
        result: Any = job.result
        return result  # type: ignore[no-any-return]

    def _await_end(self, job: _Job, deadline_ns: int, limit_ns: int) -> BaseException | None:
        """The error of a call that was put into the queue, or of a directory that does not make it
        in time; None without one.
        """
        patience_ns = limit_ns
        if self._worker.is_hanging:
            patience_ns = min(limit_ns, KNOWN_NS)
        ended = job.ends_until(min(deadline_ns, job.put_ns + patience_ns))
        while not ended:
            if system.boot_ns() >= deadline_ns:
                return LockTimeoutError(
                    "the directory did not answer before the deadline", path=self.path
                )
            trace = self._read_trace()
            ended = job.ends_until(min(deadline_ns, system.boot_ns() + LOOK_NS))
            is_late = system.boot_ns() >= job.put_ns + LIMITS * patience_ns
            if not ended and trace is not None and (is_late or self._read_trace() == trace):
                return self._give_up(trace.since_ns)
        # its traceback has the frame of the call
        problem = job.problem
        job.problem = None
        return problem

    def _read_trace(self) -> _Trace | None:
        """What changes while the thread of this lane runs; None if it is inside no call, or waits
        for the processor.
        """
        since_ns = self._since_ns
        if not since_ns:
            return None
        thread = f"/proc/self/task/{self._native_id}"
        try:
            state = _begin_of(f"{thread}/stat").rpartition(b")")[2].split()[:1]
            times = _begin_of(f"{thread}/schedstat")
        except StorageError:  # without /proc, time alone decides
            return _Trace(since_ns, b"")
        if state == [b"R"]:
            return None
        return _Trace(since_ns, times)

    def finish(self, call: Callable[[], object], limit_ns: int) -> bool:
        """Make a call in the thread of this lane in any case, also when a directory that hangs
        continues; whether it has ended.

        It is waited for until the limit. Raises what the call raises until then.
        """
        job = _Job(call)
        was_hanging = self.is_hanging
        self._put(job)
        if was_hanging or not job.ended.acquire(timeout=limit_ns / 1e9):
            return False
        problem = job.problem
        job.problem = None
        if problem is not None:
            raise problem
        return True

    def end_with(self, call: Callable[[], object]) -> Guard[None]:
        """A context. At its end, also after an interrupt, the call is left to the thread of this
        lane, after all earlier ones.

        The call raises nothing.
        """
        return Guard(partial(self._jobs.put, call))

    def _give_up(self, since_ns: int) -> EmbedlogError:
        """Note that the call which began then hangs; its error."""
        is_new = self._late_ns != since_ns
        self._late_ns = since_ns
        problem = self._worker.hang_error()
        if is_new:
            self._worker.on_hang(problem)
        return problem

    def start(self) -> None:
        """Let the thread make the calls that were put into the queue."""
        if not self._alive.locked():
            start(threading.Thread(target=self._work, name="embedlog-directory", daemon=True))

    def end(self) -> None:
        """End the thread after all calls in the queue, and wait for it, unless it hangs. A later
        call starts another one.
        """
        if self._alive.locked():
            end = _End()
            self._jobs.put(end)
            if not self.is_hanging:
                end.done.acquire(timeout=END_S)

    def _put(self, job: _Job) -> None:
        self._jobs.put(job)
        self.start()

    def _work(self) -> None:
        while not self._jobs.empty():
            if not self._alive.acquire(False):
                return  # another thread works
            end: _End | None = None
            try:
                self._native_id = threading.get_native_id()
                self._inside = threading.get_ident()
                end = self._serve()
            finally:
                self._inside = 0
                self._alive.release()
            if end is not None:
                end.done.release()

    def _serve(self) -> _End | None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except Empty:
                if self.lock_count:
                    continue
                return None
            if isinstance(job, _End):
                return job
            self._since_ns = system.boot_ns()
            if isinstance(job, _Job):
                job.make()
            else:
                job()
            was_hanging = self.is_hanging
            self._since_ns = 0
            del job  # it may keep the last reference to files
            if was_hanging:
                self._late_ns = 0
                self._worker.on_return()


class Work(NamedTuple):
    """A call for the thread of a directory; without a lane it is made by the thread of the
    caller.
    """

    lane: Lane | None
    call: Callable[[], object]


def run_together(
    works: Sequence[Work], deadline_ns: int = NEVER_NS, *, limit_ns: int | None = None
) -> list[EmbedlogError | None]:
    """Make these calls at the same time, each in its lane; their errors, as `Lane.run` raises them,
    in the same order.

    An error that is no EmbedlogError is raised after all calls have ended, or are given up.
    """
    problems: list[BaseException | None] = [None] * len(works)
    with stack() as guards:
        jobs: list[tuple[int, Lane, _Job]] = []
        for index, (lane, call) in enumerate(works):
            if lane is None or lane.is_inside():
                continue
            if lane.is_hanging:
                problems[index] = lane.worker.hang_error()
                continue
            job = _Job(call)
            guards.enter(Guard(job.give_up))
            lane._put(job)
            jobs.append((index, lane, job))
        for index, (lane, call) in enumerate(works):
            if lane is None or lane.is_inside():
                try:
                    call()
                except Exception as problem:  # noqa: BLE001  (raised below, or returned)
                    problems[index] = problem
        for index, lane, job in jobs:
            lane_limit_ns = lane.worker.limit_ns if limit_ns is None else limit_ns
            problems[index] = lane._await_end(job, deadline_ns, lane_limit_ns)
    errors: list[EmbedlogError | None] = []
    for failure in problems:
        if failure is not None and not isinstance(failure, EmbedlogError):
            raise failure
        errors.append(failure)
    return errors


def ask(workers: Sequence[DirectoryWorker]) -> list[DirectoryWorker]:
    """Probe these directories at the same time; those that did not answer at once. Whether they
    hang, only a call in their lanes shows.

    An error is an answer. The call itself finds it, or needs no descriptor and no thread, as the
    probe does.
    """
    asked = [worker for worker in workers if not worker.is_hanging][: probe.COUNT_MAX]
    if asked:
        codes = probe.ask([worker.disk for worker in asked], probe.ANSWER_NS)
        for worker, code in zip(asked, codes, strict=True):
            if code != probe.SILENT:
                worker.note_answer()
    return [worker for worker in workers if not worker.is_recent()]


class DirectoryWorker:
    """The threads of one directory, and whether it answers. **Threads:** any."""

    def __init__(self, path: Path, limit_ns: int, lock_ns: int) -> None:
        self.path = path
        self.limit_ns = limit_ns
        self.lock_ns = lock_ns
        # the time of the last write that it took, as far as the callers note it (boot clock)
        self.answered_ns = 0
        # called when a hang is found
        self.on_hang: Callable[[EmbedlogError], None] = lambda problem: None
        # called when a call that hung has returned
        self.on_return: Callable[[], None] = lambda: None
        self.disk = probe.Probe(str(path / file_names.DIRECTORY_LOCK), PROBED_AT)
        self._lanes = {name: Lane(self) for name in LANES}

    def lane(self, name: str = DIRECTORY) -> Lane:
        return self._lanes[name]

    @property
    def jobs(self) -> Lane:
        """The lane of the housekeeper."""
        return self._lanes[JOBS]

    def run(
        self, call: Callable[[], T], deadline_ns: int = NEVER_NS, *, limit_ns: int | None = None
    ) -> T:
        """As `Lane.run`, in the lane of the directory."""
        return self._lanes[DIRECTORY].run(call, deadline_ns, limit_ns=limit_ns)

    def make(self, call: Callable[[], T], /) -> T:
        """The result of a short call that writes, in the lane of these."""
        result = self._lanes[WRITES].run(call, limit_ns=self.lock_ns)
        self.note_answer()
        return result

    def note_answer(self) -> None:
        """The directory has taken a write now."""
        self.answered_ns = system.boot_ns()

    def probe(self) -> None:
        """Return when the disk takes a write, of which nothing is read. Raises StorageError."""
        path = self.path / file_names.DIRECTORY_LOCK
        with files.opened(path, files.WRITE) as fd:
            files.write_all(fd, b"\n", PROBED_AT, path)
        self.note_answer()

    @property
    def is_hanging(self) -> bool:
        """Whether a call is inside the directory that did not return in time."""
        return any(lane.is_hanging for lane in self._lanes.values())

    def is_recent(self) -> bool:
        """Whether the directory has answered so recently that a short call needs no lane."""
        return system.boot_ns() - self.answered_ns < replication.RECENT_NS and not self.is_hanging

    def is_answering(self) -> bool:
        """Whether the directory answers at once, so that a short call needs no lane."""
        return self.is_recent() or not ask([self])

    def hang_error(self) -> StorageError:
        """The error of a directory that hangs."""
        return StorageError(
            "the directory does not answer: its disk hangs", errno=errno.ETIMEDOUT, path=self.path
        )


class Call(Protocol):
    """Makes a call about a directory: `call_here`, or `DirectoryWorkers.run_at`."""

    def __call__(self, path: Path, call: Callable[[], T], /) -> T: ...


def call_here(path: Path, call: Callable[[], T], /) -> T:
    """The result of a call in the thread of the caller."""
    return call()


class CallRunner(Protocol):
    """Runs a call that changes a replica, in the thread that its directory needs now."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def run_here(call: Callable[[], T], /) -> T:
    """The result of a call in the thread of the caller."""
    return call()


class DirectoryWorkers:
    """The workers of the directories of one open set, by path. **Threads:** any."""

    def __init__(self, limit_ns: int, lock_ns: int) -> None:
        """`limit_ns`: after that a directory that does not answer hangs; `lock_ns`: if the call may
        wait for a lock.
        """
        self._limit_ns = max(limit_ns, LEAST_NS)
        self._lock_ns = lock_ns + LATER_NS
        self._workers: dict[Path, DirectoryWorker] = {}
        # called when a directory hangs
        self.on_hang: Callable[[Path, EmbedlogError], None] = lambda path, problem: None
        # called when the call that hung has returned
        self.on_return: Callable[[Path], None] = lambda path: None

    def worker_of(self, path: Path) -> DirectoryWorker:
        """The worker of a directory."""
        worker = self._workers.get(path)
        if worker is None:
            worker = DirectoryWorker(path, self._limit_ns, self._lock_ns)
            worker.on_hang = lambda problem: self.on_hang(path, problem)
            worker.on_return = lambda: self.on_return(path)
            worker = self._workers.setdefault(path, worker)  # of two threads, one result counts
        return worker

    def run_at(self, path: Path, call: Callable[[], T], /) -> T:
        """The result of a call in the thread of a directory, which may wait for a lock of the
        directory.

        Raises also StorageError with ETIMEDOUT if it hangs.
        """
        return self.worker_of(path).run(call, limit_ns=self._lock_ns)

    def finish(self, path: Path, call: Callable[[], object]) -> bool:
        """As `Lane.finish`, in the directory's lane."""
        return self.worker_of(path).lane().finish(call, self._lock_ns)

    def close(self) -> None:
        """End the threads that do not hang. The directories may be used further."""
        for worker in list(self._workers.values()):
            for name in LANES:
                worker.lane(name).end()
            worker.disk.rest()
        replication.rest()

    def hanging_paths(self) -> list[Path]:
        """The directories that hang now."""
        return [path for path, worker in list(self._workers.items()) if worker.is_hanging]
