"""The replica state of control pages, the copy of a leader's batches, and the commit, in the C
core.

Results are numbers, codes are those of the C core (``api/replica.h``, ``api/log.h``). This module
knows no topics.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from embedlog._native.calls import errno_of, ffi, lib
from embedlog._native.system import TUPLE_FIELDS, Ending, Page, Published, Writer, as_published
from embedlog.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROLE_NONE, ROLE_LEADER, ROLE_FOLLOWER = range(3)
# a directory that answered within this time is called in the caller's own thread
RECENT_NS = 5_000_000

# Codes beside those of `system`, as in api/replica.h: what was written, and what follows.
(
    FENCED,  # nothing: the page is in a later epoch than the source, so the copy ends
    NOT_NEXT,  # nothing: another epoch, no follower, or no continuation of its log: follow again
    NEW_EPOCH,  # nothing: the start of the next batch's epoch is to be stored first, then again
    UNCOMMITTED,  # the run, but not in all followers: it is appended, and the caller commits it
    OTHER_ISR,  # nothing: the followers are not the maximal ISR, so the leader takes the run alone
    APART,  # nothing, for appends in C only: a follower was slow, so the caller copies
    IN_DOUBT,  # not known: a thread is inside a leader that does not answer, another is to lead
) = range(20, 27)
NODES_MAX: Final = 64  # bits of an ISR

_BOTH: Final = struct.Struct(TUPLE_FIELDS + "5q2Q4i")  # el_tuple, then el_replica
assert _BOTH.size == ffi.sizeof("el_tuple") + ffi.sizeof("el_replica")
_PUBLISHED_COUNT: Final = len(Published._fields)


class Replica(NamedTuple):
    """The replica state of a control page: `el_replica` in api/replica.h explains each field. It
    belongs to the `Published` of the same publication, whose `epoch` is the leader epoch.
    """

    epoch_start: int = 0
    stable_at: int = -1
    stable_next: int = -1
    later_at: int = -1
    later_next: int = -1
    maximal_isr: int = 0
    decided_isr: int = 0
    role: int = ROLE_NONE
    leader: int = -1
    partition_epoch: int = 0
    min_in_sync: int = 1


_as_replica: Final[Callable[[tuple[int, ...]], Replica]] = partial(tuple.__new__, Replica)


class Leading(NamedTuple):
    """A leader as the source of batches: see `el_leading` in api/replica.h. `log_start` does not go
    to the C core.
    """

    high_watermark: int
    epoch: int
    gaps_allowed: bool = False
    log_start: int = 0  # `LockedReplica` raises that of the follower to it


def read(page: Page) -> tuple[Published, Replica] | None:
    """The published tuple and the replica state of one publication; None if the page is not
    readable.
    """
    buffers = getattr(page.local, "both", None)
    if buffers is None:
        buffers = page.local.both = _make_buffers()
    raw, tuple_at, replica_at = buffers
    if lib.el_page_read_replica(page.raw, tuple_at, replica_at) < 0:
        return None
    # in one step: a signal handler that reads this page uses the same buffer. If it runs before this
    # step, the result is its newer publication, whole
    fields = _BOTH.unpack(raw)
    return as_published(fields[:_PUBLISHED_COUNT]), _as_replica(fields[_PUBLISHED_COUNT:])


def _make_buffers() -> tuple[Any, Any, Any]:
    """A buffer for both, and where each of them is."""
    block = ffi.new("uint8_t[]", _BOTH.size)
    return (
        ffi.buffer(block),
        ffi.cast("el_tuple *", block),
        ffi.cast("el_replica *", block + ffi.sizeof("el_tuple")),
    )


def publish(page: Page, published: Published, replica: Replica, directory: Page | None) -> None:
    """Publish both by one store, and wake the waiters of the page and of `directory`. REQUIRES the
    append lock. Raises StorageError.
    """
    shared = directory.raw if directory else ffi.NULL
    new = ffi.new("el_tuple *", tuple(published)), ffi.new("el_replica *", tuple(replica))
    code = int(lib.el_page_publish_replica(page.raw, *new, shared))
    if code < 0:
        raise StorageError("cannot change a control page", errno=errno_of(code) or errno.EIO)


def require_leader(writer: Writer, node_slot: int, leader_epoch: int, *, all_in_sync: int) -> None:
    """Let the writer append only while its page leads in this epoch. REQUIRES the partition's
    mutex.

    `all_in_sync`: the least ISR that it accepts, if the page requires no larger one; 0 for one of
    any size.
    """
    raw = writer.raw
    raw.replicated = 1
    raw.node_slot = node_slot
    raw.leader_epoch = leader_epoch
    raw.all_in_sync = all_in_sync


def follow(
    writer: Writer,
    leading: Leading,
    data_epoch: int,
    run: Buffer,
    start: int,
    rows: Any,
    ending: Ending | None,
) -> int:
    """Append run[start:] of a leader unchanged to a follower; returns a code of `system` or of this
    module, and fills `writer.out`.

    `data_epoch`: of the follower's last batch, as `el_leading` has it. `rows` begins with the batch
    at `start`. An empty run publishes the high watermark only. REQUIRES `Writer.begin`, and batches that were checked.
    """
    fields = {
        "high_watermark": leading.high_watermark,
        "epoch": leading.epoch,
        "data_epoch": data_epoch,
    }
    source = ffi.new("el_leading *", fields | {"gaps_allowed": leading.gaps_allowed})
    with ffi.from_buffer("uint8_t[]", run) as view, ffi.from_buffer("el_batch[]", rows) as numbers:
        return int(
            lib.el_follow(
                writer.raw,
                source,
                view + start,
                len(view) - start,
                numbers,
                len(numbers),
                ending.raw if ending else ffi.NULL,
                writer.out,
            )
        )


class Member(NamedTuple):
    """The control page of a follower, with device and inode of its file."""

    slot: int
    page: Page
    path: Path
    device: int
    inode: int


class Members:
    """The control pages of the followers of one partition, for `commit`. Threads: REQUIRES the
    leader's mutex.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)  # referenced while the C core may read them
        self._paths = [ffi.new("char[]", os.fsencode(member.path)) for member in members]
        raw_members = [
            {
                "page": member.page.raw,
                "path": path,
                "device": member.device,
                "inode": member.inode,
                "node_slot": member.slot,
            }
            for member, path in zip(members, self._paths, strict=True)
        ]
        self._raw = ffi.new("el_member[]", raw_members)
        self._mark = ffi.new("int64_t *")

    def commit(self, writer: Writer, node_slot: int, epoch: int) -> tuple[int, int]:
        """(code, high watermark): raise the leader's high watermark. REQUIRES `Writer.begin` on the
        leader.
        """
        code = int(
            lib.el_commit(writer.raw, node_slot, epoch, self._raw, len(self._members), self._mark)
        )
        return code, int(self._mark[0])


class _Call:
    """What the thread of an append uses."""

    __slots__ = ("is_left", "rows", "run", "together")

    def __init__(self, together: Together, run: Buffer, rows: Any) -> None:
        self.together = together
        self.run = run
        self.rows = rows
        self.is_left = False  # the thread was left behind in a disk that hangs


_calls: set[_Call] = set()


def _forget_ended() -> None:
    """Forget the calls whose threads have left."""
    for call in list(_calls):
        if call.is_left and not call.together.is_left:
            _calls.discard(call)


class Together:
    """A leader's writer with those of its followers, for appends to all of them in one call.

    A thread of the C core makes the append. If a disk hangs, the caller goes on without it, and
    what the thread uses stays until its call has returned.

    Threads: REQUIRES the mutexes of all these partitions.
    """

    def __init__(
        self,
        leader: tuple[int, Writer],
        followers: Sequence[tuple[int, Writer]],
        epoch: int,
        needed: int,
        patience_ns: int,
    ) -> None:
        """Each writer is given with the slot of its directory. `needed`: the least ISR, if the page
        requires no larger one. `patience_ns`: for a leader that does not answer. The writers are
        bound to the set and the epoch from now on (`require_leader`).
        """
        leader_slot, leader_writer = leader
        # referenced while the C core may use them
        self.writers = (leader_writer, *(writer for _, writer in followers))
        for slot, writer in followers:
            writer.raw.replicated = 1
            writer.raw.node_slot = slot
        require_leader(leader_writer, leader_slot, epoch, all_in_sync=needed)
        self._followers = ffi.new("el_writer *[]", [writer.raw for _, writer in followers])
        self._raw = ffi.new(
            "el_together *",
            {
                "leader": leader_writer.raw,
                "followers": self._followers,
                "count": len(followers),
                "epoch": epoch,
                "all_in_sync": needed,
                "left": -1,
                "patience_ns": patience_ns,
            },
        )

    def append(
        self, run: Buffer, start: int, rows: Any, deadline_ns: int, known: Any = ffi.NULL
    ) -> int:
        """As `Writer.append` of the leader, whose `out` it fills; also UNCOMMITTED, OTHER_ISR,
        APART and IN_DOUBT: see there what was written.
        """
        out = self.writers[0].out
        call = _Call(self, run, rows)
        _calls.add(call)  # before the call: an interrupt may come after it
        with (
            ffi.from_buffer("uint8_t[]", run) as view,
            ffi.from_buffer("el_batch[]", rows) as numbers,
        ):
            size = len(view) - start
            count = len(numbers)
            code = int(
                lib.el_append_together(
                    self._raw, view + start, size, numbers, count, known, deadline_ns, out
                )
            )
        if self._raw.left < 0:
            _calls.discard(call)
        else:
            call.is_left = True
            _forget_ended()
        return code

    @property
    def is_left(self) -> bool:
        """Whether a thread that was left behind uses one of the writers."""
        return any(writer.is_left for writer in self.writers)

    @property
    def answered_ns(self) -> int:
        """The last time at which the followers had all records, also by appends of the other
        extension (boot clock).
        """
        return int(self._raw.answered_ns)

    def note_answer(self, at_ns: int) -> None:
        """The followers had all records at this time (boot clock), which is later than an earlier one:
        the next appends are made to all of them.
        """
        self._raw.answered_ns = at_ns

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of el_append_inline and of its first argument, for the other extension; valid
        as long as this object.
        """
        function = ffi.cast("uintptr_t", ffi.addressof(lib, "el_append_inline"))
        return int(function), int(ffi.cast("uintptr_t", self._raw))


def rest() -> None:
    """End the threads that wait for appends of this process. The next append starts another one."""
    lib.el_append_rest()
