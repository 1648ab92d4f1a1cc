"""The state of one partition in this process: its mapped control page, its loaded files, its
settings.

PARTITIONSTATE-1  positions come from the control page, never from a file's size or from the memory
    of this process
PARTITIONSTATE-2  a control page counts only in the incarnation in which it was made; loading writes
    only under the append lock
PARTITIONSTATE-3  a partition is marked dirty on disk before its first write
PARTITIONSTATE-4  a read-only reader follows a live control page if there is one, else the files as
    it loaded them
PARTITIONSTATE-5  a process whose directory was replaced loads nothing of the one in its place:
    others use the page there
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from embedlog._native import replication, system
from embedlog._native.system import Published
from embedlog.config.topic import TopicConfig
from embedlog.errors import (
    CorruptRecordError,
    LockTimeoutError,
    StateError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition.epoch_file import EpochFile
from embedlog.partition.log_context import Bounds, Context, Traffic
from embedlog.partition.recovery import loader, producer_history
from embedlog.partition.recovery.evidence import Loading
from embedlog.partition.segment_info import active_info, start_of
from embedlog.storage import (
    checkpoints,
    dirty_mark,
    file_names,
    files,
    identity,
    lock_holders,
    locks,
)
from embedlog.storage.call_deadline import NEVER_NS, bounded
from embedlog.storage.control_page import (
    DurableRecord,
    PageFile,
    cache_number,
    check,
    floor_of,
    in_place,
    known_cache,
    make_page,
    map_page,
)
from embedlog.storage.manifest import Manifest, Start, changed_by_others

logger = logging.getLogger("embedlog")

# a search for a writer opens a file, so it is rarer than a read of the page
CHECK_INTERVAL_NS: Final = 5_000_000
RETRY_S: Final = 0.001  # between two tries to load files that another process changes
# whether it is still live: an unheld page does not show a broker
LIVE_CHECK_INTERVAL_NS: Final = 100_000_000


class PartitionState:
    """The control page, the loaded files, the settings, and whether the partition is closed or
    marked dirty.

    The other parts of a partition are composed around it. `connect` sets what they do when files
    are replaced.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        number: int,
        path: Path,
        topic_id: bytes,
        config: TopicConfig,
    ) -> None:
        self.context = context
        self.topic = topic
        self.number = number
        self.path = path
        self.topic_id = topic_id
        self.config = config
        self.directory = str(path)
        self.traffic = context.traffic.setdefault(topic, Traffic())
        self.mutex = threading.RLock()
        self.page_file: PageFile | None = None
        self.manifest = Manifest(path, topic_id, context.mode)
        self.static: loader.Loaded | None = None
        # for appends of this process; set by `AppendWriter`
        self.writer: system.Writer | None = None
        self.closed = False
        self.marked_dirty = False
        self.epoch_file = EpochFile(
            path / file_names.EPOCHS, context.mode, mapped=not context.locked
        )
        self._checked_ns = 0
        self._seen: object = None
        self._reported_cuts: set[str] = set()
        self._forget_caches: Callable[[], None] = lambda: None
        self._release_writer: Callable[[], None] = lambda: None

    def connect(
        self, *, forget_caches: Callable[[], None], release_writer: Callable[[], None]
    ) -> None:
        """Set what is called after files were replaced, and before the control page is unmapped."""
        self._forget_caches = forget_caches
        self._release_writer = release_writer

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def followers(self) -> None:
        """None: a direct append changes this directory only."""

    @property
    def addresses(self) -> tuple[int, int]:
        """For direct appends (`DirectTarget`). REQUIRES a writer."""
        if self.writer is None:
            raise AssertionError("no writer")
        return self.writer.addresses

    # ---- opening and closing ---------------------------------------------------------------------

    def ensure_open(self, deadline_ns: int = NEVER_NS) -> None:
        """Map the page, made from the files first if this incarnation has none. The deadline is for
        a load by another thread.
        """
        if self.closed:
            self.raise_closed()
        if self.page_file is not None:
            return
        until = min(deadline_ns, self.deadline()) if self.context.in_set else deadline_ns
        with locks.entering(self.mutex, bounded(until), self.path, locks.LoadPendingError):
            if self.page_file is None and self.static is None and not self.closed:
                self._open_read_only() if self.context.read_only else self._open_for_writing()

    def raise_closed(self) -> NoReturn:
        """Raise the error of a closed log, of a directory that was opened again, or of a deleted
        topic.
        """
        self.context.check_open()  # a log closes all its partitions, and those of deleted topics
        raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)

    def _expected(self, page_file: PageFile) -> object:
        return system.identity(
            self.context.incarnation,
            self.topic_id,
            self.number,
            page_file.identity_device,
            page_file.inode,
        )

    def follow_writer(self) -> None:
        """For a reader, at intervals: follow a new live page; load the files after the last writer
        has left.
        """
        interval_ns = CHECK_INTERVAL_NS if self.page_file is None else LIVE_CHECK_INTERVAL_NS
        if self.context.refresh is None or time.monotonic_ns() - self._checked_ns < interval_ns:
            return
        with self.mutex:
            if self.closed or (self.page_file is None and self.static is None):
                return
            self._checked_ns = time.monotonic_ns()
            if self.context.refresh():
                if self.page_file is None:
                    self._switch_to_live()
            elif self._seen != self.context.seen:
                self._load_static()

    def _load_static(self) -> None:
        """Load the files as the last process left them."""
        until = self.deadline()
        pause = threading.Event()
        while True:
            seen = self.context.seen
            try:
                if self.context.in_set:
                    self._check_topic()
                foreign = self._changed_by_others()
                floor = None if foreign else self._floor()
                loaded = loader.load(self.loading(write=False, foreign=foreign, floor=floor))
                break
            except (CorruptRecordError, StateError, StorageError):
                if self.context.refresh is None or (
                    not self.context.refresh() and self.context.seen == seen
                ):
                    raise
                if self._switch_to_live():
                    return  # a process opened the log meanwhile and changed files during the load
                if system.boot_ns() >= until:
                    raise
                pause.wait(RETRY_S)
        if self.context.in_set:
            loaded.published = self._committed(loaded.published, floor)
        self._report_cuts(loaded)
        self.static = loaded
        self.page_file = None
        self._seen = seen
        self.forget_files()

    def _report_cuts(self, loaded: loader.Loaded) -> None:
        """Report once what an opening for writing would cut: a reader gets the log as it would be
        afterwards.
        """
        for each in loaded.cut:
            if each not in self._reported_cuts:
                logger.warning("opened for reading only; an opening for writing would cut %s", each)
        self._reported_cuts.update(loaded.cut)

    def _committed(self, now: Published, floor: Published | None) -> Published:
        """Of a replica that no process serves: the high watermark of the last close, or of the last
        page (REPLICA-19).
        """
        noted = checkpoints.read_offsets(self.context.root / file_names.HIGH_WATERMARKS).get(
            (self.topic, self.number), 0
        )
        known = max(noted, floor.high_watermark if floor is not None else 0)
        return now._replace(high_watermark=max(now.log_start, min(known, now.log_end)))

    def _floor(self) -> Published | None:
        """The tuple that a page of an earlier incarnation published, for a reader."""
        mapped = map_page(self.path / file_names.PAGE, writable=False, locked=self.context.locked)
        if mapped is None:
            return None
        try:
            return floor_of(mapped, self.topic_id, self.number)
        finally:
            mapped.close()

    def _switch_to_live(self) -> bool:
        """Follow a live page if a writer has made one; False if there is none. For a read-only
        reader.
        """
        mapped = map_page(self.path / file_names.PAGE, writable=False, locked=self.context.locked)
        if mapped is None:
            return False
        if not check(mapped, self._expected(mapped)):
            mapped.close()
            return False
        self.page_file = mapped
        self.static = None
        self._seen = self.context.seen
        self.forget_files()
        return True

    def _open_read_only(self) -> None:
        live = self.context.refresh is not None and self.context.refresh()
        self._checked_ns = time.monotonic_ns()
        if not (live and self._switch_to_live()):
            self._load_static()

    def _open_for_writing(self) -> None:
        """Map the page of this incarnation; if there is none yet, make it from the files, under the
        append lock.
        """
        mapped = map_page(self.path / file_names.PAGE, writable=True, locked=self.context.locked)
        if mapped is not None and self._is_valid(mapped):
            self.page_file = mapped
            return
        if mapped is not None:
            mapped.close()
        deadline_ns = self.deadline()
        while self.page_file is None:
            with contextlib.closing(self.open_lock()) as lock:  # which releases it
                self.lock_os(lock, deadline_ns)
                # else the directory was set aside meanwhile
                if not self.context.in_set or lock.in_place():
                    self.page_file = self._page_locked()

    def open_lock(self) -> locks.LockFile:
        """The lock file, made by the first process. Raises UnknownTopicOrPartitionError if the
        partition was deleted.
        """
        try:
            return locks.LockFile(f"{self.directory}/{file_names.LOCK}", self.context.mode)
        except StorageError as problem:
            if files.is_directory(self.path):
                raise
            raise UnknownTopicOrPartitionError(
                f"partition {self.name} has no directory", path=self.path
            ) from problem

    def _page_locked(self) -> PageFile:
        """The valid page of this incarnation, loaded from the files if no process has done so
        yet.
        """
        self.context.reacquire()  # PARTITIONSTATE-5
        self._check_topic()
        mapped = make_page(self.path / file_names.PAGE, self.context.mode, self.context.locked)
        try:
            if not self._is_valid(mapped):
                self._load_locked(mapped)
                if self.context.directory_page is not None:
                    # readers find no page without a search: this says that there is one
                    self.context.directory_page.notify()
            # a signal handler may have closed it meanwhile
            return mapped if not self.closed else self.raise_closed()
        except BaseException:
            mapped.close()
            raise

    def _is_valid(self, mapped: PageFile) -> bool:
        """Whether a page is of this incarnation, and its tuple has no damage (CONTROLPAGE-2)."""
        return check(mapped, self._expected(mapped)) and mapped.page.read() is not None

    def _check_topic(self) -> None:
        """Refuse a directory that belongs to another topic of this name now. Raises
        UnknownTopicOrPartitionError.
        """
        found = identity.read_topic_id(self.path)
        if found is None or identity.id_bytes(found) == self.topic_id:
            return
        problem = f"topic {self.topic} was deleted and created again"
        expected = f"topic id {identity.id_text(self.topic_id)}"
        raise UnknownTopicOrPartitionError(problem, path=self.path, expected=expected, found=found)

    def _load_locked(self, mapped: PageFile) -> None:
        floor = (
            None
            if (foreign := self._changed_by_others())
            else floor_of(mapped, self.topic_id, self.number)
        )
        loading = self.loading(write=True, foreign=foreign, floor=floor)
        if (
            foreign
            and not files.exists(self.manifest.path)
            and (bases := file_names.bases(files.listing(self.path)))
        ):
            # The mark that follows would show a log of ours, also after a kill.
            self.manifest.rewrite([], Start(bases[0], bases[-1], identity.BEFORE_VISITS))
        waits = not loading.clean and dirty_mark.may_wait(self.path, self.config.preallocate)
        if waits:
            dirty_mark.make(self.path, self.context.mode)
        elif not loading.clean:
            self.mark_dirty()
        loaded = loader.load(loading)
        self.context.note_load(loaded.spent_s, loaded.recovered)
        self.epoch_file.loaded(loaded.epochs, differ=loaded.epochs_differ)
        if (
            not loaded.epochs_differ
            and not loading.clean
            and loaded.published.log_end == loaded.published.log_start
        ):
            # the process that made the mark may have been killed before its sync
            files.sync_directory(self.path)
        self.marked_dirty = self.marked_dirty or waits
        bases = [info.base for info in loaded.segments]
        start = loaded.published.log_start
        producer_history.write(
            self.path, loaded.history, bases, log_start=start, mode=self.context.mode
        )
        self._note_loaded(loading, loaded)
        durable = self._durable_at_load(
            loading, loaded, moved=not in_place(mapped, self.topic_id, self.number)
        )
        kept = loading.clean or self._has_kept_everything(mapped, foreign, loaded)
        mapped.page.write(
            self._expected(mapped),
            loaded.published,
            durable,
            cache=cache_number(mapped.path),
            flags=system.FLAG_KEPT if kept and self.context.in_set else 0,
        )
        if durable < loaded.published.log_end and self.context.directory_page is not None:
            # found records must be flushed in time, too
            self.context.directory_page.add(system.WORD_UNSYNCED_COUNT, 1)
        known = system.WORD_SNAPSHOT if loaded.history.state.producers else system.WORD_NO_PRODUCERS
        mapped.page.set(known, loaded.published.log_end + 1)
        for base in poisoned_bases(self.path):
            mapped.page.set(system.WORD_POISON, base + 1)

    def _has_kept_everything(self, mapped: PageFile, foreign: bool, loaded: loader.Loaded) -> bool:
        """Whether this load of a replica found all that it had published before its processes were
        killed (REPLICA-13).

        Only a page of this boot and mount shows that: after a power loss, or after a disk was
        detached, it proves nothing. REQUIRES the earlier page, which the load replaces.
        """
        page = mapped.page
        cache = known_cache(self.path)
        if foreign or not cache or page.word(system.WORD_CACHE) != cache:
            return False
        before = replication.read(page)
        if before is None or not in_place(mapped, self.topic_id, self.number):
            return False
        published, replica = before
        if replica.role == replication.ROLE_NONE and not self._is_kept(page):
            return False
        # what a follower was cutting is not the leader's
        is_cutting = page.word(system.WORD_CUT_INTENT) == system.CUT_END
        return is_cutting or (
            not page.word(system.WORD_CUT_INTENT) and loaded.published.log_end >= published.log_end
        )

    @staticmethod
    def _is_kept(page: system.Page) -> bool:
        return bool(page.word(system.WORD_FLAGS) & system.FLAG_KEPT)

    def is_kept(self) -> bool:
        """Whether the log of a replica has all that it had at its last orderly close, or that an
        earlier page of this boot had published, and no cut gave any of it up since.
        """
        if self.page_file is None:
            return not files.exists(self.path / file_names.DIRTY)
        return self._is_kept(self.page_file.page)

    def give_up(self) -> None:
        """The log is not `is_kept` any more. REQUIRES the append lock."""
        page = self.page
        page.set(system.WORD_FLAGS, page.word(system.WORD_FLAGS) & ~system.FLAG_KEPT)

    def _note_loaded(self, loading: Loading, loaded: loader.Loaded) -> None:
        """Write a manifest that describes these files, without the parts that were cut."""
        manifest = self.manifest
        now = loaded.published
        sealed = loaded.segments[:-1]
        manifest.refresh()
        start = start_of(now, self.context.visit)
        if not sealed and not files.exists(manifest.path):
            manifest.begin(start)
        stale = (
            any(base >= now.segment_base for base in manifest.segments)
            or manifest.start is None
            or not manifest.whole
        )
        if (
            loading.foreign
            or stale
            or [manifest.segments.get(info.base) for info in sealed] != sealed
        ):
            closed = manifest.closed if not loading.foreign and not loading.clean else None
            true = (
                closed is not None
                and closed.base == now.segment_base
                and closed.size <= now.segment_size
            )
            manifest.rewrite([*sealed, *([closed] if closed is not None and true else [])], start)
        manifest.note(
            start, active_info(now) if loading.clean and manifest.closed is None else None
        )

    def _durable_at_load(self, loading: Loading, loaded: loader.Loaded, *, moved: bool) -> int:
        """The durable offset by an orderly close, or else by a checkpoint. Damage below it is never
        cut.

        In a copy, or after a broker, these files may not be synced yet. They are synced here first.
        """
        end = loaded.published.log_end
        durable = (
            end if loading.clean else min(max(loading.known_durable, loading.recovery_point), end)
        )
        if loading.foreign or moved:
            for info in loaded.segments:
                path = file_names.segment_path(self.path, info.base)
                if info.base < durable:
                    with files.opened(path, files.WRITE) as fd:
                        files.datasync(fd, path)
        return durable

    def _changed_by_others(self) -> bool:
        """Whether a broker may have changed the files since the last load, in this incarnation or
        an earlier one.
        """
        self.manifest.refresh()
        return self.context.foreign or changed_by_others(self.manifest, self.context.visit)

    def loading(self, *, write: bool, foreign: bool, floor: Published | None) -> Loading:
        """The arguments of the loader."""
        dirty = files.exists(self.path / file_names.DIRTY) and not self.context.foreign
        closed = self.context.clean or (
            self.context.in_set and write and not foreign and not files.is_link(self.path)
        )  # DIRTYMARK-3
        clean = closed and not dirty
        reserves = self.config.preallocate and not clean  # else the mark does (`mark_dirty`)
        points = self.context.recovery_points
        starts = self.context.log_starts
        cleaned = self.context.cleaned
        durable = None if foreign else DurableRecord(self.path, self.topic_id).read()
        if self.context.in_set and durable is not None:
            # a cut lowers the durable record, which belongs to the partition (LOGCUT-3)
            points = None
        return Loading(
            self.path,
            self.topic_id,
            clean=clean,
            write=write,
            in_set=self.context.in_set,
            recovery_point=points.of(self.topic, self.number) if points else 0,
            log_start=starts.of(self.topic, self.number) if starts else 0,
            floor=floor,
            known_durable=durable.offset if durable else 0,
            interval_bytes=self.config.index_interval_bytes,
            mode=self.context.mode,
            allocate_bytes=self.config.segment_bytes if reserves else 0,
            gaps_allowed=self.config.compacted
            or bool(cleaned and cleaned.of(self.topic, self.number)),
            foreign=foreign,
            begun=dirty,
            visited=self.context.visit != 0,
            producer_expiration_ms=self.context.producer_expiration_ms,
            work=self.context.loads,
        )

    def mark_dirty(self) -> None:
        """Write the DIRTY mark to disk before the first write, so that the last process closes it.
        REQUIRES the append lock.
        """
        if self.marked_dirty:
            return
        is_first = dirty_mark.put(self.path, self.context.mode)
        self.marked_dirty = True
        if is_first and self.config.preallocate and self.page_file is not None:
            self._reserve(self.page_file.page)

    def _reserve(self, page: system.Page) -> None:
        """Reserve the blocks of an empty segment. Without the mark, no close would give them back."""
        now = page.read()
        if now is not None and now.segment_size == 0:
            path = file_names.segment_path(self.path, now.segment_base)
            with files.opened(path, files.WRITE) as fd:
                files.allocate(fd, self.config.segment_bytes, path)

    def close(self) -> None:
        """Release descriptors and the mapping; appended records stay in the files. Idempotent."""
        with self.mutex:
            self.closed = True
            self.epoch_file.keep(None)
            self._release_writer()
            self.forget_files()
            if self.page_file is not None:
                self.page_file.close()
                self.page_file = None

    # ---- what is published -----------------------------------------------------------------------

    def check_deleted(self) -> None:
        """For each fetch: the flag is set before the directory is renamed. Raises
        UnknownTopicOrPartitionError.
        """
        mapped = self.page_file
        if mapped is not None and mapped.page.word(system.WORD_FLAGS) & system.FLAG_DELETED:
            raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)

    def read_page(self) -> Published:
        """The published tuple under the append lock. Raises StorageError if the control page is
        damaged.
        """
        now = self.page.read()
        if now is None:
            raise StorageError("the control page is damaged", path=self.path / file_names.PAGE)
        return now

    @property
    def page(self) -> system.Page:
        mapped = self.page_file  # another thread may close the partition
        if mapped is None:
            self.raise_closed()
        return mapped.page

    def published(self) -> Published:
        """The published tuple. Raises StorageError if the page was destroyed and cannot be
        rebuilt.
        """
        if self.closed or self.page_file is None:
            self.ensure_open()
        if self.context.read_only:
            self.follow_writer()
        mapped = self.page_file
        if mapped is None:
            with self.mutex:  # one of the two is there, unless it was closed
                mapped = self.page_file
                static = self.static
            if mapped is None:
                if static is None or self.closed:
                    self.raise_closed()
                return static.published
        found = mapped.page.read()
        return found if found is not None and mapped.page.alive() else self._published_again()

    def _published_again(self) -> Published:
        self.remap()
        found = self.page.read()
        if found is None:
            raise StorageError(
                "the control page is damaged and could not be rebuilt",
                path=self.path / file_names.PAGE,
            )
        return found

    def check_page(self) -> None:
        """At the end of a wait: map the page again if its path leads to another file."""
        mapped = self.page_file
        if mapped is None or self.closed:
            return
        named = files.facts_of(mapped.path)
        if named is None or (named.device, named.inode) != (mapped.device, mapped.inode):
            self.remap()

    def bounds(self) -> Bounds:
        """The present offsets, from one read of the page.

        The first records of an open transaction may be deleted: the last stable offset is not
        before the log start, as in Kafka.
        """
        now = self.published()
        stable = now.high_watermark
        if now.first_unstable >= 0:
            stable = min(stable, max(now.first_unstable, now.log_start))
        return Bounds(now.log_start, now.log_end, now.high_watermark, stable, now.epoch)

    @property
    def durable_offset(self) -> int:
        """Records below it are on stable storage, as far as the kernel reported."""
        self.ensure_open()
        return (
            self.page.word(system.WORD_DURABLE)
            if self.page_file is not None
            else self.published().log_end
        )

    # ---- the lock, as far as opening needs it ------------------------------------------------------

    def deadline(self) -> int:
        return system.boot_ns() + self.context.lock_timeout_ms * 1_000_000

    def lock_os(self, lock: locks.LockFile, deadline_ns: int) -> None:
        code = system.lock_until(lock.fd, True, deadline_ns)
        if code == system.TIMED_OUT:
            raise self.lock_timeout()
        if code < 0:
            raise StorageError("cannot lock", errno=system.errno_of(code), path=lock.path)

    def lock_timeout(self) -> LockTimeoutError:
        path = self.path / file_names.LOCK
        since = ""
        if self.page_file is not None and (pid := self.page_file.page.word(system.WORD_OWNER)):
            age_s = (system.boot_ns() - self.page_file.page.word(system.WORD_OWNER_SINCE)) / 1e9
            owner = f"pid {pid} on {os.uname().nodename}"
            since = f" for {age_s:.1f} s"
        else:  # between the lock and the owner word
            owner = lock_holders.held_by(path) or "an unknown process"
        return LockTimeoutError(
            f"append lock not free before the deadline: held by {owner}{since}", path=path
        )

    # ---- replaced files --------------------------------------------------------------------------

    def forget_files(self) -> None:
        """Drop all cached content of the files: they may have been replaced."""
        self._forget_caches()

    def remap(self) -> None:
        """Find or make the right page after the mapped one was replaced, cut or deleted."""
        with self.mutex:
            if not self.closed:
                self.remap_mutexed()

    def remap_mutexed(self) -> None:
        self._release_writer()
        if self.page_file is not None:
            self.page_file.close()
            self.page_file = None
        if not files.is_directory(self.path):
            reason = (
                "was deleted"
                if files.is_directory(self.path.parent)
                else "is in a directory that was removed or renamed"
            )
            raise UnknownTopicOrPartitionError(f"topic {self.topic} {reason}", path=self.path)
        self.forget_files()
        self._open_read_only() if self.context.read_only else self._open_for_writing()


def poisoned_bases(directory: Path) -> list[int]:
    """Segments of which a sync failed: their marker files survive a reboot."""
    found = (file_names.base_after(file_names.POISON, name) for name in files.listing(directory))
    return sorted(base for base in found if base is not None)
