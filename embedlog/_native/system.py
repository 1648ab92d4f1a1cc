"""Control pages, the append and the tail of the C core, and the names of `calls`.

- This module knows no topics; results are numbers, codes are those of the C core (``api/log.h``).
- A negative code below -1000 is a system error: ``errno_of`` returns its errno.
- Pointers live as long as the object here that made them. A closed page reads as zeros: `read` returns
  None, and words are 0. Its file is no longer in use: immediately, or when the last `pin` ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from embedlog._native.calls import *  # noqa: F403  (`system` exports the names of `calls`)
from embedlog._native.calls import errno_of, facts, ffi, lib
from embedlog.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# ---- control pages -------------------------------------------------------------------------------

# results of `Page.check`: `el_page_state` in api/log.h
VALID, OTHER, LOST, NEWER, DAMAGED, OLDER = range(6)
# bits of WORD_FLAGS
FLAG_DELETED: Final[int] = lib.EL_FLAG_DELETED
FLAG_REPLACED: Final[int] = lib.EL_FLAG_REPLACED
FLAG_KEPT: Final[int] = lib.EL_FLAG_KEPT
# The words of a partition's page, in the order of `el_word` (docs/layout.md has their contents).
# Any process reads each of them without a lock. The comment names the lock under which it is written;
# a load and a cut write theirs under the append lock. Those of a directory's page have other names,
# where they are used: only WORD_UNSYNCED_COUNT is of that page.
(
    WORD_FLAGS,  # append lock
    WORD_OWNER,  # append lock: not 0 after the lock is free means that the next holder repairs
    WORD_OWNER_SINCE,  # append lock
    WORD_ROLL_INTENT,  # append lock: not 0 means as for WORD_OWNER
    WORD_SYNC_OWNER,  # sync lock: not 0 after the lock is free means that a sync may have failed
    WORD_SYNC_FROM,  # sync lock
    WORD_SYNC_TO,  # sync lock
    WORD_DURABLE,  # sync lock; a load and a cut lower it
    WORD_POISON,  # sync lock: one segment only; not 0 means that the marks on disk are listed
    WORD_UNSYNCED_SINCE,  # append lock by an append, sync lock by a sync: the last one counts
    WORD_CACHE,  # append lock
    WORD_UNSYNCED_COUNT,  # none, by `add`
    WORD_SNAPSHOT,  # append lock
    WORD_NO_PRODUCERS,  # append lock
    WORD_PRODUCED,  # append lock
    WORD_CUT_INTENT,  # append lock: after WORD_CUT_BASE and WORD_CUT_OFFSET
    WORD_CUT_BASE,  # append lock
    WORD_CUT_OFFSET,  # append lock
    WORD_CUTS,  # append lock, before the cut log is published
    WORD_AWAITED,  # sync lock: a hint
) = range(20)
# values of WORD_CUT_INTENT: see `el_cut` in api/log.h
CUT_LOST = 1
CUT_END = 2
CUT_ALL = 3


class Published(NamedTuple):
    """The published tuple of a partition's control page: see `el_tuple` in api/log.h."""

    segment_base: int = 0
    segment_size: int = 0
    log_start: int = 0
    log_end: int = 0
    high_watermark: int = 0
    first_unstable: int = -1
    purged_to: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = 0
    min_timestamp: int = -1
    lateness_ms: int = 0
    last_time_entry: int = -1
    first_timestamp: int = -1
    created_ms: int = 0
    roll_jitter_ms: int = 0
    bytes_since_entry: int = 0
    digest: int = 0
    epoch: int = 0
    generation: int = 0
    index_entries: int = 0
    time_entries: int = 0
    transaction_entries: int = 0
    flags: int = 0
    transaction_digest: int = 0


TUPLE_FIELDS: Final = "=16qQi5IQ"  # el_tuple: 16 numbers, digest, epoch, the rest unsigned
_TUPLE: Final = struct.Struct(TUPLE_FIELDS)
assert _TUPLE.size == ffi.sizeof("el_tuple")
# `_make`, at less cost
as_published: Final[Callable[[tuple[int, ...]], Published]] = partial(tuple.__new__, Published)


def tuple_of(published: Published) -> Any:
    """The `el_tuple` of a published tuple."""
    return ffi.new("el_tuple *", tuple(published))


def identity(
    incarnation: bytes, topic_id_bytes: bytes, partition: int, device: int, inode: int
) -> Any:
    """The expected identity of a partition's control page in this incarnation of the directory."""
    return ffi.new(
        "el_identity *",
        {
            "incarnation": list(incarnation),
            "topic_id": list(topic_id_bytes),
            "partition": partition,
            "device": device,
            "inode": inode,
        },
    )


def _check_written(code: int) -> None:
    """Raises StorageError: locking or writing a private copy can fail."""
    if code < 0:
        raise StorageError("cannot change a control page", errno=errno_of(code) or errno.EIO)


# its address, for the other extension
TOPICS_FUNCTION: Final = int(ffi.cast("uintptr_t", ffi.addressof(lib, "el_topics")))


class Page:
    """A control page: mapped, or a private copy that is read and written under a lock on its file
    (`locked`).

    Threads: every method may be called from any. REQUIRES, for `publish` and `write`: the append
    lock; for `set`: the lock that is named at the word.
    """

    def __init__(self, fd: int, writable: bool, locked: bool = False) -> None:
        error = ffi.new("int32_t *")
        if locked:
            raw = lib.el_copy_page(fd, writable, error)
        else:
            raw = lib.el_map(fd, writable, error)
        if error[0]:
            name = None
            with contextlib.suppress(OSError):  # for the message only
                name = os.readlink(f"/proc/self/fd/{fd}")
            raise StorageError(
                "cannot map a control page", errno=errno_of(int(error[0])) or errno.EIO, path=name
            )
        self.raw = ffi.gc(raw, lib.el_unmap)
        self.writable = writable
        self.locked = locked
        self.closed = False
        self.local = threading.local()  # the buffers of the reads of a thread
        self._closing = threading.Lock()
        self._pins = 0

    def close(self) -> None:
        """Stop using the page. Its file is unmapped now, or when the last `pin` ends."""
        with self._closing:
            self.closed = True
            if not self._pins:
                lib.el_page_release(self.raw)

    def pin(self) -> bool:
        """Keep the file mapped until `unpin`, for writers that run concurrently with `close`; False
        if it is closed.
        """
        with self._closing:
            if self.closed:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        with self._closing:
            self._pins -= 1
            if self.closed and not self._pins:
                lib.el_page_release(self.raw)

    def check(self, expected: Any) -> int:
        """VALID, OTHER, LOST, NEWER, DAMAGED or OLDER."""
        return int(lib.el_page_check(self.raw, expected))

    def is_alive(self) -> bool:
        """Whether the memory shows a control page: other content means that the file was truncated
        or overwritten.
        """
        return bool(lib.el_page_alive(self.raw))

    def incarnation(self) -> bytes:
        buffer = ffi.new("el_identity *")
        lib.el_page_identity(self.raw, buffer)
        return bytes(ffi.buffer(buffer.incarnation))

    def version(self) -> int:
        """The version of embedlog's page format; -1 if the page is not readable."""
        buffer = ffi.new("el_identity *")
        if lib.el_page_identity(self.raw, buffer) != 0:
            return -1
        return int(buffer.version)

    def write(
        self, expected: Any, published: Published, durable: int, *, cache: int, flags: int = 0
    ) -> None:
        """Write a whole new page; words that are not given become 0. REQUIRES the append lock."""
        lib.el_page_init(self.raw, expected, tuple_of(published), durable, cache, flags)

    def write_directory(self, expected: Any) -> None:
        lib.el_directory_init(self.raw, expected)

    def read(self) -> Published | None:
        """The published tuple; None if the page is not readable any more."""
        content = getattr(self.local, "bytes", None)
        if content is None:
            self.local.tuple = ffi.new("el_tuple *")
            content = ffi.buffer(self.local.tuple)
            self.local.bytes = content  # last: after an interrupt the next read does it again
        if lib.el_page_read(self.raw, self.local.tuple) < 0:
            return None
        return as_published(_TUPLE.unpack(content))

    def topics(self) -> int:
        """Of a directory's page: the topics word, which changes with the topics and is odd during a
        change.
        """
        return int(lib.el_topics(self.raw))

    @property
    def address(self) -> tuple[object, int]:
        """What keeps the page in memory, also after `close`, and its address, for the other
        extension.
        """
        return self.raw, int(ffi.cast("uintptr_t", self.raw))

    def move_topics(self, done: bool) -> None:
        """Change the topics word before and after a change of the topics, and wake its waiters.
        REQUIRES the directory lock.
        """
        lib.el_topics_move(self.raw, done)

    def touch_topics(self) -> None:
        """Change the topics word and wake its waiters, after a decision of a set. Needs no lock."""
        lib.el_topics_touch(self.raw)

    def notice(self) -> int:
        """The notice word, which `notify` changes. Order: read it, then read the data, then wait
        for a change.
        """
        return int(lib.el_page_notice(self.raw))

    def notify(self) -> None:
        """Change the notice word and wake its waiters, after a publication that they must read."""
        _check_written(lib.el_page_notify(self.raw))

    def publish(self, published: Published, directory: Page | None) -> None:
        """Publish a tuple by one store, and wake the waiters of the page and of `directory`.
        REQUIRES the append lock.
        """
        shared = directory.raw if directory else ffi.NULL
        _check_written(lib.el_page_publish(self.raw, tuple_of(published), shared))

    def word(self, word: int) -> int:
        return int(lib.el_page_word(self.raw, word))

    def set(self, word: int, value: int) -> None:
        _check_written(lib.el_page_set(self.raw, word, value))

    def add(self, word: int, value: int) -> None:
        _check_written(lib.el_page_add(self.raw, word, value))

    def sleep(self, word: int, value: int, deadline_ns: int) -> None:
        """Sleep while a field has this value, at most a millisecond: its owner may be killed before
        `wake`.
        """
        lib.el_page_sleep(self.raw, word, value, deadline_ns)

    def wake(self, word: int) -> None:
        """Wake the processes that sleep on a field."""
        lib.el_page_wake(self.raw, word)

    def invalidate_producers(self) -> None:
        """Invalidate all cached producer state of the partition. REQUIRES the append lock."""
        lib.el_page_invalidate_producers(self.raw)


NULL: Final[Any] = ffi.NULL

# ---- the append ----------------------------------------------------------------------------------

# Codes of an append. With each but the first nothing was published. After MUST_..., IS_POISONED and
# LOST_DIRECTORY the caller does what is said (`AppendLock.resolve_code`), and appends again.
(
    APPENDED,  # perhaps only the first batches: `out.consumed` bytes
    MUST_REPAIR,  # an append or a roll was not finished, or not taken back: repair the log
    MUST_ROLL,  # the segment is full: begin the next one
    MUST_REOPEN,  # the descriptors are not those of the active segment: open its files
    MUST_REMAP,  # the page was replaced or is not readable: map the current one
    IS_DELETED,  # the topic was deleted
    TOO_LARGE,  # no function returns it now
    IS_POISONED,  # a sync of the segment failed: begin the next one
    LOST_DIRECTORY,  # the lock file of the directory was replaced: take its lock again
    MUST_CATCH_UP,  # the run does not continue the cached producer state: read the log
    NOT_DATA,  # a control batch in a run of data
    NOT_LEADER,  # the page does not lead in the required epoch, or belongs to a set
    TOO_FEW,  # the ISR is smaller than min.insync.replicas
    OTHER_SETTINGS,  # the topic may have other settings than `topics`: judge the run again
) = range(14)

UNKNOWN_TOPICS: Final = -1  # odd, and no value of a topics word


def make_known(producer_id: int) -> Any:
    """An `el_known` without state."""
    return ffi.new("el_known *", {"producer_id": producer_id, "seen": -1, "epoch": -1})


class Ending:
    """An `el_ending`, with the bytes to which it refers."""

    def __init__(self, first_unstable: int, entry: bytes | None, index_fd: int) -> None:
        self._entry = ffi.from_buffer("uint8_t[]", entry) if entry else ffi.NULL
        self.raw = ffi.new(
            "el_ending *", {"first_unstable": first_unstable, "entry": self._entry, "fd": index_fd}
        )


class Writer:
    """The descriptors and limits with which one process appends to one partition.

    Threads: every method but `use_count` and the properties needs the partition's mutex; the OFD lock
    of the append excludes other processes.
    """

    def __init__(
        self,
        page: Page,
        directory: Page | None,
        lock_path: str,
        page_path: str,
        lock_fd: int,
        device: int,
        inode: int,
    ) -> None:
        lock = facts(lock_fd)
        if isinstance(lock, int):
            raise StorageError(
                "cannot read the state of the append lock file",
                errno=errno_of(lock),
                path=lock_path,
            )
        self._names = (
            ffi.new("char[]", os.fsencode(lock_path)),
            ffi.new("char[]", os.fsencode(page_path)),
        )
        self.raw = ffi.new(
            "el_writer *",
            {
                "page": page.raw,
                "directory": directory.raw if directory else ffi.NULL,
                "lock_path": self._names[0],
                "page_path": self._names[1],
                "lock_device": lock.device,
                "lock_inode": lock.inode,
                "page_device": device,
                "page_inode": inode,
                "lock_fd": lock_fd,
                "log_fd": -1,
                "index_fd": -1,
                "time_fd": -1,
                "digest_fd": -1,
                "segment_base": -1,
                "data_epoch": -1,
                "directory_lock_fd": -1,
                "topics": UNKNOWN_TOPICS,
                "process": os.getpid(),
            },
        )
        self.out = ffi.new("el_appended *")
        self._pages = (page, directory)  # referenced while this object may write to them

    @property
    def is_left(self) -> bool:
        """Whether a thread that was left behind in a disk that hangs uses the descriptors."""
        return bool(self.raw.is_left)

    def set_directory_lock(self, path: str, device: int, inode: int, fd: int) -> None:
        """Check before every append that the directory's `.lock` is still this file."""
        self._directory_lock = ffi.new("char[]", os.fsencode(path))
        self.raw.directory_lock_path = self._directory_lock
        self.raw.directory_lock_device = device
        self.raw.directory_lock_inode = inode
        self.raw.directory_lock_fd = fd
        self.raw.directory_lock_changed_ns = 0

    def set_limits(
        self,
        *,
        segment_bytes: int,
        segment_ms: int,
        index_bytes: int,
        index_interval: int,
        append_time: bool,
    ) -> None:
        raw = self.raw
        raw.segment_bytes = segment_bytes
        raw.segment_ms = segment_ms
        raw.index_bytes = index_bytes
        raw.index_interval = index_interval
        raw.append_time = append_time

    def set_segment(
        self, base: int, log_fd: int, index_fd: int, time_fd: int, digest_fd: int, cuts: int = 0
    ) -> None:
        """Set the descriptors of a segment. `cuts`: WORD_CUTS, read before they were opened."""
        raw = self.raw
        raw.cuts = cuts
        raw.data_epoch = -1
        raw.segment_base = base
        raw.log_fd = log_fd
        raw.index_fd = index_fd
        raw.time_fd = time_fd
        raw.digest_fd = digest_fd

    def append(
        self, run: Buffer, start: int, rows: Any, deadline_ns: int, known: Any = ffi.NULL
    ) -> int:
        """Append run[start:], whose batches `rows` describes; returns a code above, and fills
        `out`.

        MUST_CATCH_UP if the run does not continue the cached state `known`.
        """
        with (
            ffi.from_buffer("uint8_t[]", run) as view,
            ffi.from_buffer("el_batch[]", rows) as numbers,
        ):
            count = len(numbers)
            return int(
                lib.el_append(
                    self.raw,
                    view + start,
                    len(view) - start,
                    numbers,
                    count,
                    known,
                    deadline_ns,
                    self.out,
                )
            )

    @property
    def topics(self) -> int:
        """The topics word of the directory before the settings of the partition were read, or
        UNKNOWN_TOPICS.

        While it is odd, the settings must be read for each append.
        """
        return int(self.raw.topics)

    @topics.setter
    def topics(self, word: int) -> None:
        self.raw.topics = word

    def are_settings_current(self) -> bool:
        """Whether no topic of the directory has changed since `topics`. REQUIRES `begin`."""
        return bool(lib.el_settings_are_present(self.raw))

    def use_count(self) -> int:
        """A number that changes with each append through this object."""
        raw = self.raw
        count: int = raw.appended_records + raw.copied_bytes
        return count

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of el_append and of its first argument, for the other extension; valid as long
        as this object.
        """
        function = ffi.cast("uintptr_t", ffi.addressof(lib, "el_append"))
        return int(function), int(ffi.cast("uintptr_t", self.raw))

    @property
    def segment_base(self) -> int:
        """The segment of the descriptors, -1 if there is none."""
        return int(self.raw.segment_base)

    def begin(self, deadline_ns: int) -> int:
        """Take the append lock and check page and paths: APPENDED with the lock held, another code
        without it.
        """
        return int(lib.el_append_begin(self.raw, deadline_ns))

    def append_locked(self, run: Buffer, start: int, rows: Any = None) -> int:
        """As `append`, without the checks of `known`. REQUIRES `begin`."""
        with (
            ffi.from_buffer("uint8_t[]", run) as view,
            ffi.from_buffer("el_batch[]", b"" if rows is None else rows) as numbers,
        ):
            return int(
                lib.el_append_held(
                    self.raw, view + start, len(view) - start, numbers, len(numbers), self.out
                )
            )

    def append_marker(
        self, batch: Buffer, first_unstable: int, entry: bytes | None, index_fd: int
    ) -> int:
        """As `append_locked`, for one marker; `entry` goes into the transaction index before the
        publication. REQUIRES `begin`.
        """
        end = Ending(first_unstable, entry, index_fd)
        with ffi.from_buffer("uint8_t[]", batch) as view:
            return int(lib.el_append_marker(self.raw, view, len(view), end.raw, self.out))

    def end(self, broken: bool) -> None:
        """Give the append lock back. `broken`: its next holder must repair the log first."""
        lib.el_append_end(self.raw, broken)


# ---- tailing -------------------------------------------------------------------------------------

# results of a read at the end: batches; none yet; a case for the general reader
TAIL_DATA, TAIL_NOTHING, TAIL_OTHERWISE = range(3)


class TopicsWords:
    """The topics words of the pages of several directories at one moment. Threads: any."""

    __slots__ = ("_count", "_expected", "_raw", "pages", "words")

    def __init__(self, pages: Sequence[Page], words: Sequence[int] | None = None) -> None:
        """`words`: those of an earlier moment, in the order of the pages; the current ones if not
        given.
        """
        self.pages = pages
        self.words = [page.topics() for page in pages] if words is None else words
        self._raw = ffi.new("uint8_t *[]", [page.raw for page in pages])
        self._expected = ffi.new("int64_t[]", self.words)
        self._count = len(pages)

    def are_current(self) -> bool:
        """Whether no page is closed, and each still has its word."""
        for page in self.pages:
            if page.closed:
                return False
        return bool(lib.el_topics_same(self._raw, self._expected, self._count))


class Tailing:
    """A reader at the end of a log: its position, and a buffer. Threads: one at a time."""

    def __init__(
        self,
        page: Page,
        published: Published,
        position: int,
        offset: int,
        digest: int,
        buffer: bytearray,
        committed: bool,
    ) -> None:
        self._page = page
        self.buffer = buffer
        self._view = ffi.from_buffer("uint8_t[]", buffer)
        self._raw = ffi.new(
            "el_tailing *",
            {
                "page": page.raw,
                "fd": -1,
                "committed": committed,
                "segment_base": published.segment_base,
                "position": position,
                "offset": offset,
                "digest": digest,
                "epoch": published.epoch,
                "generation": published.generation,
            },
        )
        self._capacity = len(buffer)
        self._taken = ffi.new("int64_t *")
        self._end = ffi.new("int64_t *")

    def use(self, fd: int) -> None:
        """Set the descriptor of the active segment for later reads."""
        self._raw.fd = fd

    def read(self) -> tuple[int, int, int]:
        """(TAIL_DATA, TAIL_NOTHING or TAIL_OTHERWISE, bytes in `buffer`, end for this reader)."""
        if self._page.closed:
            return TAIL_OTHERWISE, 0, 0
        code = lib.el_tail_read(self._raw, self._view, self._capacity, self._taken, self._end)
        return code, self._taken[0], self._end[0]

    @property
    def offset(self) -> int:
        return int(self._raw.offset)

    @property
    def position(self) -> int:
        return int(self._raw.position)
