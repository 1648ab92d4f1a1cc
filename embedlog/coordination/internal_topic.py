"""Lock, catch up, decide, append: the one way in which processes decide something together, over a topic of the log's own.

INTERNALTOPIC-1  what a partition's records add up to is kept per process, as a view, and brought up to date from the last look
INTERNALTOPIC-2  a look whose end lies below `purged_to`, or in another epoch, proves nothing: the view begins again at the log
    start
INTERNALTOPIC-3  catching up is done outside the lock first; inside only a bounded rest is read, else the lock is given back once
    more
INTERNALTOPIC-4  a decision is made from a view that is current, and appended, before the lock goes; who refuses has written
    nothing
INTERNALTOPIC-5  who follows a partition is told of what concerns him behind the append, by a word of its page; who tells may die
    before he has told, so this saves waiting and is no promise
INTERNALTOPIC-6  a topic that is there is used as it is, a broker's included; only if there is none it is made
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from embedlog import _logging
from embedlog._native import system
from embedlog.coordination import replay
from embedlog.coordination.host import PartitionHost
from embedlog.coordination.replay import DiscerningView, View
from embedlog.errors import (
    ClosedError,
    DurabilityError,
    EmbedlogError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
    in_file,
)
from embedlog.format.encoder import encode_records
from embedlog.format.record_columns import Stamp
from embedlog.partition import roll
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")

REST_BYTES: Final = 1 << 20  # what is read under the lock at most
LOOK_BYTES: Final = 1 << 20

Record = replay.Record

V = TypeVar("V", bound=View)


class _Look(NamedTuple, Generic[V]):
    """How far a view has come, and in which leader epoch the log's end lay then. Replaced as a whole."""

    position: int
    epoch: int
    view: V


class _Mirror(Generic[V]):
    """One partition with what this process knows of it."""

    def __init__(self, partition: Partition, make_view: Callable[[], V]) -> None:
        self.partition = partition
        self.make_view = make_view
        view = make_view()
        self.discerning = isinstance(view, DiscerningView)
        self.look = _Look(-1, -1, view)
        self.topics = 1  # the word of the topics when the partition was last looked up; odd: it tells nothing
        self.mutex = threading.Lock()  # to move the look on; never held while waiting or reading


class Decision(Generic[V]):
    """The lock is held and the view is current: read, decide, and append at most a few times."""

    def __init__(self, mirror: _Mirror[V], deadline_ns: int) -> None:
        self._mirror = mirror
        self.view = mirror.look.view
        self.deadline_ns = deadline_ns
        self.writing = False
        self.end = mirror.look.position  # offset behind the last record of the outcome
        self.late = False

    def append(self, records: list[Record], *, notice: bool = False) -> None:
        """Append the outcome as one batch; all of it counts, or nothing does. `notice`: wake who follows this partition."""
        mirror = self._mirror
        self.writing = True
        base, self.end, unsynced_ms = _append_locked(mirror.partition, encode_records(records, system.wall_ms()))
        self.late = unsynced_ms > mirror.partition.config.flush_ms
        self.writing = False
        with mirror.mutex:
            if mirror.look.position == base:  # else a thread that only looked was faster
                for key, value in records:
                    self.view.apply(key, value)
                mirror.look = mirror.look._replace(position=self.end)
        if notice:
            with contextlib.suppress(StorageError):  # appended it is, and who waits looks now and then anyhow
                mirror.partition.page.notify()

    def append_stamped(self, records: list[Record], stamp: Stamp) -> None:
        """Append as part of a producer's transaction, opened here if `stamp.opens`: it counts when that is committed.

        Raises FencedError, InvalidTransactionStateError with nothing written. Every call appends, so what is repeated must do no
        harm. The view learns of it with its next look.
        """
        partition = self._mirror.partition
        now = partition.page.read()
        if now is None:
            raise StorageError("the control page is damaged", path=partition.path / file_names.PAGE)
        sequence = partition.sequencing.following_locked(stamp, now)
        batch = encode_records(records, system.wall_ms(), stamp, sequence)
        self.writing = True
        _, self.end, unsynced_ms = _append_locked(partition, batch)
        out = partition.appender().out
        partition.sequencing.note(stamp, out.next_sequence, out.seen)
        self.late = unsynced_ms > partition.config.flush_ms
        self.writing = False


class InternalTopic(Generic[V]):
    """One topic of the log's own. Threads: any."""

    def __init__(
        self, host: PartitionHost, name: str, *, partitions: int, config: Mapping[str, str], view: Callable[[], V]
    ) -> None:
        self.name = name
        self._host, self._partitions, self._config, self._make_view = host, partitions, config, view
        self._count = 0
        self._blank: set[int] = set()
        self._mirrors: dict[int, _Mirror[V]] = {}
        self._mutex = threading.Lock()

    # ---- which partition -------------------------------------------------------------------------

    def count(self) -> int:
        """How many partitions it has, which never changes; 0 while there is no such topic."""
        if not self._count:
            try:
                self._count = self._host.partition_count(self.name)
            except UnknownTopicOrPartitionError:
                return 0
        return self._count

    def partition_of(self, text: str) -> int:
        """The partition that decides for a name; makes the topic if there is none (INTERNALTOPIC-6)."""
        count = self.count()
        if count == 0:
            self._host.make_internal_topic(self.name, self._partitions, self._config)
            count = self.count()
        return java_partition(text, count)

    def partition(self, number: int) -> Partition:
        return self._mirror(number).partition

    def _mirror(self, number: int) -> _Mirror[V]:
        topics = self._host.mapped_topics_version()
        found = self._mirrors.get(number)
        if found is not None and found.topics == topics and not topics & 1 and not found.partition.closed:
            found.partition.home.check_open()
            return found  # no topic has changed since it was looked up
        partition = self._host.partition(self.name, number)
        with self._mutex:
            if found is None or found.partition is not partition:
                found = self._mirrors.get(number)
            if found is None or found.partition is not partition:  # another one of that name: what is known says nothing of it
                found = self._mirrors[number] = _Mirror(partition, self._make_view)
            found.topics = topics
        return found

    def here(self) -> list[int]:
        """Its partitions in this directory: all, but where a broker of a cluster has left it, which had some."""
        found = []
        for number in range(self.count()):
            with contextlib.suppress(UnknownTopicOrPartitionError):
                self._host.partition(self.name, number)
                found.append(number)
        return found

    def written(self) -> list[int]:
        """Those that hold anything."""
        return [number for number in self.here() if not self.is_blank(number)]

    def is_blank(self, number: int) -> bool:
        """Whether nobody has written to this partition, as far as its directory tells without opening it."""
        if number in self._mirrors:
            return False
        partition = self._host.partition(self.name, number)
        if partition.page_file is not None or files.exists(partition.path / file_names.PAGE):
            return False
        if number not in self._blank and _holds_data(partition):  # by whom it may be: whoever writes now makes a page first
            return False
        self._blank.add(number)
        return True

    # ---- looking ---------------------------------------------------------------------------------

    def notice(self, number: int) -> int:
        """A word that moves behind every append that gave notice. Read it, then look, then wait for it to move (`Log._wait`).

        -1 where there is nothing to wait for: nobody writes this directory.
        """
        partition = self.partition(number)
        if partition.page_file is None:
            partition.ensure_open()
        mapped = partition.page_file
        return -1 if mapped is None else mapped.page.notice()

    def look(self, number: int) -> V:
        """The view, as current as a reader can be; no lock is taken, nothing is written."""
        return self._look(self._mirror(number))

    @staticmethod
    def _look(mirror: _Mirror[V]) -> V:
        look = mirror.look  # before the end is read, which is then no lower
        _catch_up(mirror, look, mirror.partition.published())
        return mirror.look.view

    # ---- deciding --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def deciding(self, number: int, deadline_ns: int) -> Iterator[Decision[V]]:
        """The partition's lock with a current view, for as long as it takes to decide and append.

        An error of ours that is raised inside leaves everything as it was, unless it came in the middle of an append.
        Raises LockTimeoutError.
        """
        mirror = self._mirror(number)
        refused: EmbedlogError | None = None
        decision: Decision[V] | None = None
        while decision is None:
            self._look(mirror)
            with mirror.partition.exclusive(deadline_ns) as now:
                if not _catch_up(mirror, mirror.look, now, REST_BYTES):
                    if system.boot_ns() >= deadline_ns:
                        raise LockTimeoutError("others append faster than this process can follow", path=mirror.partition.path)
                    continue
                decision = Decision(mirror, deadline_ns)
                try:
                    yield decision
                except EmbedlogError as problem:
                    if decision.writing:
                        raise  # the next holder looks at what is there
                    refused = problem
        if decision.late:
            _flush_late(mirror.partition, decision.end, deadline_ns)
        if refused is not None:
            raise refused


# ---- catching up ---------------------------------------------------------------------------------


def _catch_up(mirror: _Mirror[V], look: _Look[V], now: Published, limit_bytes: int | None = None) -> bool:
    """Bring the view to the published end; False if that takes more than the limit. `look` is no younger than `now`."""
    if look.position == now.log_end and look.epoch == now.epoch:
        return True
    if look.position < max(now.log_start, now.purged_to) or look.position > now.log_end or look.epoch != now.epoch:
        look = _move(mirror, look, _Look(now.log_start, now.epoch, mirror.make_view()), replay.NONE)
    taken = 0
    while look.position < now.log_end:
        if limit_bytes is not None and taken > limit_bytes:
            return False
        found = mirror.partition.fetch(look.position, max_bytes=LOOK_BYTES, upto=now.log_end)
        if found.next_offset <= look.position:
            break
        with in_file(found.path, found.position):
            records = replay.read(found.data, found.batches, look.position, mirror.discerning)
            look = _move(mirror, look, look._replace(position=found.next_offset), records)
        taken += len(found.data)
    return True


def _move(mirror: _Mirror[V], before: _Look[V], after: _Look[V], records: replay.Records) -> _Look[V]:
    """Take records in and move the look on, unless another thread was faster; returns where it is now."""
    with mirror.mutex:
        if mirror.look is before:
            records.into(after.view)
            mirror.look = after
        return mirror.look


def _holds_data(partition: Partition) -> bool:
    names = (file_names.segment_path(partition.path, base) for base in file_names.bases(files.listing(partition.path)))
    return any(found.size for path in names if (found := files.facts_of(path)) is not None)


# ---- appending -----------------------------------------------------------------------------------


def _append_locked(partition: Partition, batch: bytes) -> tuple[int, int, int]:
    """One batch at the end: base offset, next offset, age in ms of what is not durable. REQUIRES `exclusive`."""
    partition.mark_dirty()
    while True:
        writer = partition.appender()
        code = writer.held(batch, 0)
        if code == system.APPENDED:
            out = writer.out
            return out.base_offset, out.next_offset, out.unsynced_ms
        now = partition.page.read()
        if now is not None and code in (system.MUST_ROLL, system.IS_POISONED):
            roll.roll_locked(partition, now)
        elif now is not None and code == system.MUST_REOPEN:
            partition.open_active()
        else:
            raise StorageError("cannot append", errno=system.errno_of(code) or None, path=partition.path)


def _flush_late(partition: Partition, end: int, deadline_ns: int) -> None:
    """Sync in the housekeeper's stead; what goes wrong is logged, as nobody waits for it."""
    try:
        partition.syncer.sync(end, deadline_ns)
    except LockTimeoutError as problem:  # somebody syncs, and takes his time; who decides does not always have as much
        logger.info("background flush of %s-%d: %s", partition.topic, partition.number, problem)
    except (ClosedError, DurabilityError) as problem:
        what = f"background flush of {partition.topic}-{partition.number}"
        _logging.report(logger, logging.ERROR, (partition.path, "flush"), what, problem)


# ---- Kafka's way to find a partition ---------------------------------------------------------------


def java_hash(text: str) -> int:
    """The hash code of a Java string, over its UTF-16 units."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        number = (31 * number + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@functools.lru_cache(maxsize=1024)
def java_partition(text: str, count: int) -> int:
    """`abs(hash) mod count`, where Java's abs of the smallest number is taken as 0."""
    number = java_hash(text)
    return 0 if number == -(1 << 31) else abs(number) % count
