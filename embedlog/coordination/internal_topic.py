"""Decisions of several processes over an internal topic of the log: lock, catch up, decide, append.

- Each process keeps a view, the sum of a partition's records, and updates it from its last
  position.
- A position whose log end is below `purged_to`, or in another epoch, is invalid: the view is
  rebuilt from the log start.
- A view that was not read before, and each view of a set, catches up without the lock. Under it
  only a bounded rest is read, otherwise the lock is released once more.
- A decision is made from a current view and appended before the lock is released; a refusal writes
  nothing.
- Followers of a partition are notified after the append, by a futex word of its page. A process may
  end before it notifies, so this shortens waits and guarantees nothing.
- An existing topic is used as it is, also a broker's; a missing one is created.
- With replicas a decision is made at the log end, and counts after its commit, after the release of
  the lock. A reader waits until what it has read is committed (REPLICA-22), in the leader epoch
  that it was read in. A later leader may have other records at these offsets: then it reads again.
- A decision whose leader changed before its commit does not count. It is made again, from the newer
  view. So is one of which nothing was written, since too few replicas were in sync. A written one
  is waited for, not repeated.
- A view whose update was interrupted is rebuilt, since some records are applied. The position says
  so during the update: an interrupt can come at any point.
- No thread waits without limit for another one's update: a signal handler in the midst of it may
  wait for that thread. It takes another view.

A `_ViewKeeper` has the view of one partition with its position (`_ReplayState`):

| position | the view contains | it changes |
| --- | --- | --- |
| INCOMPLETE | nothing, or a part of an update | to the log start, with an empty view (`_rebuild`) |
| an offset | the records below it, in one leader epoch | by records (`_move`) or by `_rebuild` |

`_move` is the only change, under the mutex of the keeper, and only if no other thread was faster.
Anyone reads the state as a whole without it. Its view is shared: while one thread reads it,
another one may apply records (`replay.View`). A keeper whose update does not end is replaced by
another one, which begins at the log start.

A `TopicDecision` lives while its caller has the lock of the partition:

| moment | what it shows |
| --- | --- |
| the lock is held, and the view is current | `was_committed`: all that it was made from counts |
| an append began and did not end | `is_appending`: an error leaves the end to the next holder |
| an append ended, in a set | `awaits_commit`: it counts after the release only |
| an append ended, and syncs are overdue | `is_sync_due`: the partition is synced after the release |

The end of `lock_for_decision` waits for that commit, so its callers need not: only what is written
under the same lock must not depend on the decision. An append of a transaction (`append_stamped`)
awaits the commit of that, so it sets no `awaits_commit`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog.coordination import replay
from embedlog.coordination.host import PartitionHost
from embedlog.coordination.replay import TransactionalView, View
from embedlog.errors import (
    ClosedError,
    DurabilityError,
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
    in_file,
)
from embedlog.format.encoder import encode_records
from embedlog.format.record_columns import Stamp
from embedlog.storage.call_deadline import bound_waits, wait_end
from embedlog.storage.locks import is_owned
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.partition.interfaces import InternalLog

logger = logging.getLogger("embedlog")


REST_BYTES: Final = 1 << 20  # read under the lock at most
REPLAY_BYTES: Final = 1 << 20  # of one fetch
REFRESHES: Final = 8  # of a view while leaders change
# at most, between two attempts: decisions of the set wake a waiting process earlier
RETRY_NS: Final = 200_000_000
# for an update of another thread, which takes milliseconds unless a signal handler interrupts it
UPDATE_S: Final = 1.0
# the position of a view that no records may be applied to: it is rebuilt, or being updated
INCOMPLETE: Final = -1

Record = replay.Record

T = TypeVar("T")
V = TypeVar("V", bound=View)


class _ReplayState(NamedTuple, Generic[V]):
    """The position of a view, and the leader epoch of the log's end then. Replaced as a whole."""

    position: int
    epoch: int
    view: V


class _ViewKeeper(Generic[V]):
    """Keeps this process's view of one partition current. `state` is replaced as a whole."""

    def __init__(self, partition: InternalLog, make_view: Callable[[], V]) -> None:
        self.partition = partition
        self.make_view = make_view
        view = make_view()
        self.transactional = isinstance(view, TransactionalView)
        self.state = _ReplayState(INCOMPLETE, -1, view)
        # at the last lookup of the partition; odd: a change of topics was in progress
        self.topics_version = 1
        # For updates of the position; never held during a wait or a read. Reentrant only so that
        # its holder is known: a signal handler in the midst of an update gets another keeper
        # (`_keeper_of`), since the update is neither done nor to be repeated.
        self.mutex = threading.RLock()

    def update(self, after: _ReplayState[V], records: replay.Records) -> None:
        """Apply records to the view of `after`. REQUIRES the mutex."""
        self.state = self.state._replace(position=INCOMPLETE)  # an interrupt can come at any point
        records.apply_to(after.view)
        self.state = after


class _Stuck(Exception):
    """The update of another thread does not end."""


class TopicDecision(Generic[V]):
    """The lock is held and the view is current: read, decide, and append at most a few times."""

    def __init__(
        self, keeper: _ViewKeeper[V], state: _ReplayState[V], now: Published, deadline_ns: int
    ) -> None:
        self._keeper = keeper
        self.view = state.view
        self.partition = keeper.partition
        self.deadline_ns = deadline_ns
        self.end = state.position  # offset after the last appended record
        # whether all records were committed when the lock was taken
        self.was_committed = not keeper.partition.replicated or now.high_watermark >= now.log_end
        self.is_appending = False
        # whether something was appended that counts only after the lock was released
        self.awaits_commit = False
        # whether records are unsynced for longer than `flush.ms`
        self.is_sync_due = False

    def append(self, records: list[Record], *, wake: bool = False) -> None:
        """Append the decision as one batch, which counts as a whole or not at all. `wake`: wake
        followers of this partition.
        """
        keeper = self._keeper
        self.is_appending = True
        base, self.end, unsynced_ms = keeper.partition.append_held(
            encode_records(records, system.wall_ms())
        )
        self.is_sync_due = unsynced_ms > keeper.partition.config.flush_ms
        self.is_appending = False
        self.awaits_commit = keeper.partition.replicated
        state = keeper.state
        # Otherwise a reading thread has applied them, or has rebuilt the view, from a later leader
        # for example
        if state.position == base and state.view is self.view:
            with contextlib.suppress(_Stuck):
                _move(keeper, state, state._replace(position=self.end), replay.Records(records, []))
        if wake:
            # the append succeeded, and waiting processes also check at intervals
            with contextlib.suppress(StorageError):
                keeper.partition.notify()

    def append_stamped(self, records: list[Record], stamp: Stamp) -> None:
        """Append as part of a producer's transaction, opened here if `stamp.opens`: it counts once
        that is committed.

        Raises FencedError, InvalidTransactionStateError with nothing written. Every call appends,
        so a repetition must be harmless. The view gets it with its next update.
        """
        partition = self._keeper.partition
        batch = encode_records(
            records, system.wall_ms(), stamp, partition.following_sequence(stamp)
        )
        self.is_appending = True
        _, self.end, unsynced_ms = partition.append_held(batch, stamp)
        self.is_sync_due = unsynced_ms > partition.config.flush_ms
        self.is_appending = False


class InternalTopic(Generic[V]):
    """One internal topic of the log. Threads: any."""

    def __init__(
        self,
        host: PartitionHost,
        name: str,
        *,
        partitions: int,
        config: Mapping[str, str],
        view: Callable[[], V],
    ) -> None:
        self.name = name
        self._host = host
        self._partitions = partitions
        self._config = config
        self._make_view = view
        self._count = 0
        self._unwritten: set[int] = set()
        # Without a mutex, which a signal handler could find taken: of two keepers of a partition,
        # the later one remains
        self._keepers: dict[int, _ViewKeeper[V]] = {}

    # ---- partitions ------------------------------------------------------------------------------

    def partition_count(self) -> int:
        """The number of partitions, which never changes; 0 while the topic does not exist."""
        if not self._count:
            try:
                self._count = self._host.partition_count(self.name)
            except UnknownTopicOrPartitionError:
                return 0
        return self._count

    def partition_of(self, text: str) -> int:
        """The partition that decides for a name; creates the topic if it is missing."""
        count = self.partition_count()
        if count == 0:
            self._host.make_internal_topic(self.name, self._partitions, self._config)
            count = self.partition_count()
        return java_partition(text, count)

    def partition(self, number: int) -> InternalLog:
        return self._keeper_of(number).partition

    def _keeper_of(self, number: int) -> _ViewKeeper[V]:
        topics = self._host.mapped_topics_version()
        keeper = self._keepers.get(number)
        if keeper is not None and is_owned(keeper.mutex):
            # begins at the log start
            keeper = self._keepers[number] = _ViewKeeper(keeper.partition, self._make_view)
        if (
            keeper is not None
            and keeper.topics_version == topics
            and not topics & 1
            and not keeper.partition.closed
        ):
            keeper.partition.check_open()
            return keeper  # no topic has changed since the lookup
        partition = self._host.partition(self.name, number)
        if keeper is None or keeper.partition is not partition:
            keeper = self._keepers.get(number)  # of another thread
        if keeper is None or keeper.partition is not partition:
            # another topic of that name: the view is not valid for it
            keeper = self._keepers[number] = _ViewKeeper(partition, self._make_view)
        keeper.topics_version = topics
        return keeper

    def _replace_keeper(self, number: int, stuck: _ViewKeeper[V]) -> _ViewKeeper[V]:
        """Another keeper of the partition, which begins at the log start."""
        keeper = self._keeper_of(number)
        if keeper is stuck:
            keeper = self._keepers[number] = _ViewKeeper(stuck.partition, self._make_view)
        return keeper

    def local_partitions(self) -> list[int]:
        """Its local partitions: all, except in a directory of one broker of a cluster."""
        numbers = []
        for number in range(self.partition_count()):
            with contextlib.suppress(UnknownTopicOrPartitionError):
                self._host.partition(self.name, number)
                numbers.append(number)
        return numbers

    def written_partitions(self) -> list[int]:
        """Its partitions that may have records: those without a use here are looked up in their
        files.
        """
        return [number for number in self.local_partitions() if not self.is_unwritten(number)]

    def is_unwritten(self, number: int) -> bool:
        """Whether the partition was never written, as far as its directory shows without an
        open.
        """
        if number in self._keepers:
            return False
        partition = self._host.partition(self.name, number)
        if partition.is_prepared():
            return False
        # written by a broker: embedlog creates a page first
        if number not in self._unwritten and partition.holds_data():
            return False
        self._unwritten.add(number)
        return True

    # ---- views -----------------------------------------------------------------------------------

    def notice_word(self, number: int) -> int:
        """A futex word that changes after every append with `wake`. Read it, then the view, then
        wait for its change (`Engine.wait`).

        -1 if there is nothing to wait for: no process writes this directory, or the partition has
        no leader now.
        """
        partition = self.partition(number)
        page = partition.mapped_page
        if page is None and not partition.replicated:
            partition.open()
            page = partition.mapped_page
        return -1 if page is None else page.notice()

    def view(self, number: int) -> V:
        """The view, as current as a reader can be; takes no lock and writes nothing.

        Of a set, a decision of another thread can be in it before its commit. What is acted on
        comes from `read`.
        """
        return self.read(number, lambda view: view)

    def read(self, number: int, select: Callable[[V], T]) -> T:
        """What `select` finds in the view, after the commit of that. It may be called again.

        Another thread may apply records meanwhile: `select` takes what it needs in one atomic look,
        such as one value of a mapping or `list(mapping)`.
        """
        deadline_ns: int | None = None
        while True:
            keeper, state = self._refresh(number)
            result = select(state.view)
            later_state = keeper.state
            partition = keeper.partition
            if not partition.replicated:
                return result
            # otherwise another thread changes or replaces it
            is_same_view = later_state.view is state.view and later_state.position != INCOMPLETE
            if is_same_view and partition.confirm(later_state.position, later_state.epoch):
                return result
            if deadline_ns is None:
                deadline_ns = partition.deadline()
            if system.boot_ns() >= deadline_ns:
                raise LeaderNotAvailableError(
                    f"the leader of {partition.topic}-{partition.number} changed until the deadline"
                )

    def _refresh(self, number: int) -> tuple[_ViewKeeper[V], _ReplayState[V]]:
        keeper = self._keeper_of(number)
        for remaining_tries in reversed(range(REFRESHES)):
            state = keeper.state  # read before the end, which is then not lower
            try:
                current = _catch_up(keeper, state, keeper.partition.published())
            except OffsetOutOfRangeError:
                # A later leader lacks records that were never committed. Its epoch is higher: the
                # view is rebuilt.
                if not keeper.partition.replicated or not remaining_tries:
                    raise
            except _Stuck:
                keeper = self._replace_keeper(number, keeper)
            else:
                assert current is not None  # no limit was given
                return keeper, current
        raise LockTimeoutError(
            "other threads do not end their updates of a view", path=keeper.partition.path
        )

    # ---- decisions -------------------------------------------------------------------------------

    def retry_until_counted(
        self, attempt: Callable[[], T], deadline_ns: int, *, idempotent: bool = False
    ) -> T:
        """The result of a decision, which is made again as long as it did not count. Raises its
        other errors.

        Between two attempts it waits for a decision of the set. `idempotent`: an attempt finds what
        an earlier one has written.
        """
        while True:
            version = self._host.mapped_topics_version()
            try:
                return attempt()
            except (LeaderNotAvailableError, NotEnoughReplicasError) as problem:
                if isinstance(problem, NotEnoughReplicasAfterAppendError) and not idempotent:
                    raise  # it may count later
                if not problem.retriable or system.boot_ns() >= wait_end(deadline_ns):
                    raise
            self._host.await_topics(
                version, min(wait_end(deadline_ns), system.boot_ns() + RETRY_NS)
            )

    @scope
    def lock_for_decision(self, number: int, deadline_ns: int) -> Iterator[TopicDecision[V]]:
        """The partition's lock with a current view, for a decision and its append.

        An error of embedlog that is raised inside before an append leaves everything unchanged.
        Raises LockTimeoutError.
        """
        refusal: EmbedlogError | None = None
        decision: TopicDecision[V] | None = None
        keeper = self._keeper_of(number)
        # What a view lacks that was read before is usually little: it is read under the lock only.
        # A later leader of a set may lack records of the view.
        reads_before_lock = keeper.partition.replicated or keeper.state.position == INCOMPLETE
        while decision is None:
            if reads_before_lock:
                with bound_waits(deadline_ns):
                    keeper, _ = self._refresh(number)
            reads_before_lock = True
            with keeper.partition.exclusive(deadline_ns) as locked:
                try:
                    state = _catch_up(keeper, keeper.state, locked.published, REST_BYTES)
                except _Stuck:
                    state = None
                # another thread reads from a later leader
                if state is None or state.epoch != locked.published.epoch:
                    if system.boot_ns() >= deadline_ns:
                        raise LockTimeoutError(
                            "other processes append faster than this one reads",
                            path=keeper.partition.path,
                        )
                    continue
                decision = TopicDecision(keeper, state, locked.published, deadline_ns)
                try:
                    yield decision
                except EmbedlogError as problem:
                    if decision.is_appending:
                        raise  # the next holder repairs the end
                    refusal = problem
        if decision.is_sync_due:
            _sync_overdue(keeper.partition, decision.end, deadline_ns)
        if refusal is not None:
            raise refusal


# ---- catching up ---------------------------------------------------------------------------------


def _catch_up(
    keeper: _ViewKeeper[V], state: _ReplayState[V], now: Published, limit_bytes: int | None = None
) -> _ReplayState[V] | None:
    """The view at the published end or later; None if that needs more than the limit. `state` was
    read before `now`.
    """
    if state.position == now.log_end and state.epoch == now.epoch:
        return state
    lowest = max(now.log_start, min(now.purged_to, now.log_end))
    if state.position < lowest or state.position > now.log_end or state.epoch != now.epoch:
        state = _rebuild(keeper, state, now)
    read_bytes = 0
    while state.position < now.log_end:
        if limit_bytes is not None and read_bytes > limit_bytes:
            return None
        fetched = keeper.partition.fetch(state.position, max_bytes=REPLAY_BYTES, upto=now.log_end)
        if fetched.next_offset <= state.position:
            break
        with in_file(fetched.path, fetched.position):
            records = replay.read(
                fetched.data, fetched.batches, state.position, keeper.transactional
            )
            state = _move(keeper, state, state._replace(position=fetched.next_offset), records)
        if state.position == INCOMPLETE:
            state = _rebuild(keeper, state, now)
        read_bytes += len(fetched.data)
    return state


def _rebuild(keeper: _ViewKeeper[V], previous: _ReplayState[V], now: Published) -> _ReplayState[V]:
    """An empty view at the log start, or the current one if another thread was faster."""
    while True:
        empty = _ReplayState(now.log_start, now.epoch, keeper.make_view())
        rebuilt = _move(keeper, previous, empty, replay.NONE)
        if rebuilt.position != INCOMPLETE:
            return rebuilt
        previous = rebuilt  # the faster one was interrupted


def _move(
    keeper: _ViewKeeper[V], before: _ReplayState[V], after: _ReplayState[V], records: replay.Records
) -> _ReplayState[V]:
    """Apply records and advance the position, unless another thread was faster; returns the current
    one. Raises _Stuck.
    """
    try:
        if not keeper.mutex.acquire(timeout=UPDATE_S):
            raise _Stuck
        if keeper.state is before:
            keeper.update(after, records)
        return keeper.state
    finally:
        try:
            # in one step: an interrupt could come between a check and the release
            keeper.mutex.release()
        except RuntimeError:
            pass  # not acquired


# ---- appending -----------------------------------------------------------------------------------


def _sync_overdue(partition: InternalLog, end: int, deadline_ns: int) -> None:
    """Sync instead of the housekeeper; errors are logged, since no caller waits for it."""
    try:
        partition.sync_to(end, deadline_ns)
    except LockTimeoutError as problem:
        # another process syncs slowly; a decision cannot always wait
        logger.info("background flush of %s-%d: %s", partition.topic, partition.number, problem)
    except (ClosedError, DurabilityError, UnknownTopicOrPartitionError) as problem:
        # the decision itself was appended
        message = f"background flush of {partition.topic}-{partition.number}"
        log_messages.report(logger, logging.ERROR, (partition.path, "flush"), message, problem)


# ---- Kafka's partition of a name -----------------------------------------------------------------


def java_hash(text: str) -> int:
    """The hash code of a Java string, over its UTF-16 units."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        number = (31 * number + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@functools.lru_cache(maxsize=1024)
def java_partition(text: str, count: int) -> int:
    """`abs(hash) mod count`, where Java's abs of the smallest number counts as 0."""
    number = java_hash(text)
    return 0 if number == -(1 << 31) else abs(number) % count
