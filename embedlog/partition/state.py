"""The state of one partition in this process: its mapped control page, its loaded files, its
settings.

- Positions come from the control page, never from a file's size or from the memory of this process.
- A control page counts only in the incarnation in which it was made; loading writes only under the
  append lock.
- A partition is marked dirty on disk before its first write.
- A read-only reader follows a live control page if there is one, else the files as it loaded them.
- A process whose directory was replaced loads nothing of the one in its place: others use the page
  there.

What is used, from the opening to the close. Only a read-only reader has the second and third row. A
directory was used if a process has opened or closed it since:

| `page_file` | `loaded_files` | the positions come from | until |
| --- | --- | --- | --- |
| None | None | nowhere: the partition was not used yet | `ensure_open` |
| None | set | the files as the last process left them | a process opens the directory |
| mapped, to be read | None | the page of the processes that write | no writer is left, and the directory was used (row 2) |
| mapped, to be written | None | the page of this incarnation | its file is replaced (`remap`), or `close` |
| None | any | nowhere: the partition is closed | – |

Who changes what:

| state | changed by | holding |
| --- | --- | --- |
| `page_file`, `loaded_files`, `closed` | an opening, `follow_writer`, `remap`, `close` | `mutex` |
| `_followed_change`, `_followed_ns`, `_reported_cuts` | the same, of a reader | `mutex` |
| the content of a page that is made, the manifest | a load for writing, a roll, a cut, a close in order | the append lock |
| `marked_dirty`, with the mark on disk | whoever writes first | the append lock |
| `writer` | `AppendWriter` | `mutex` |
| `config` | `AppendWriter.apply_config` | none: it is replaced as a whole |

Any thread reads these fields without a lock, and `page_file` once for what it does with it: another
thread may unmap the page.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from embedlog._native import replication, system
from embedlog._native.scope import Guard
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
from embedlog.partition.log_context import Bounds, CheckpointedOffsets, Context, Traffic
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
from embedlog.storage.call_deadline import NEVER_NS, bound_deadline
from embedlog.storage.control_page import (
    DurableRecord,
    PageFile,
    boot_and_mount_number,
    check,
    exact_boot_and_mount_number,
    is_in_place,
    make_page,
    map_page,
    read_earlier_publication,
)
from embedlog.storage.manifest import Manifest, Start, changed_by_others

logger = logging.getLogger("embedlog")

# between two looks for a writer of a reader that has loaded files: a look opens a file, so it is rarer
# than a read of a page
CHECK_INTERVAL_NS: Final = 5_000_000
RETRY_S: Final = 0.001  # between two tries to load files that another process changes
# between two looks for a writer of a reader that follows a page: one that nobody holds stays as it is,
# also if a broker writes the files
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
        topic_id_bytes: bytes,
        config: TopicConfig,
    ) -> None:
        self.context = context
        self.topic = topic
        self.number = number
        self.path = path
        self.topic_id_bytes = topic_id_bytes
        self.config = config
        self.directory = str(path)
        self.traffic = context.traffic.setdefault(topic, Traffic())
        # what is used: the module has the table
        self.mutex = threading.RLock()
        self.page_file: PageFile | None = None
        self.loaded_files: loader.Loaded | None = None  # of a reader, while no process writes
        self.closed = False
        # of a reader: the opening or close of the directory (`Context.directory_change`) after
        # which it mapped the page or loaded the files, and the time of its last look for another
        self._followed_change: object = None
        self._followed_ns = 0
        self._reported_cuts: set[str] = set()  # once each, over several loads
        # of appends
        self.writer: system.Writer | None = None  # set by `AppendWriter`
        self.marked_dirty = False  # this process knows that the DIRTY mark is on disk
        self.manifest = Manifest(path, topic_id_bytes, context.mode)
        self.epoch_file = EpochFile(
            path / file_names.EPOCHS, context.mode, mapped=not context.locked
        )
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
        until = deadline_ns
        if self.context.in_set:
            until = min(until, self.deadline())
        with locks.entering(self.mutex, bound_deadline(until), self.path, locks.LoadPendingError):
            if self.page_file is None and self.loaded_files is None and not self.closed:
                self._open()

    def raise_closed(self) -> NoReturn:
        """Raise the error of a closed log, of a directory that was opened again, or of a deleted
        topic.
        """
        self.context.check_open()  # a log closes all its partitions, and those of deleted topics
        raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)

    def _identity_of(self, page_file: PageFile) -> object:
        return system.identity(
            self.context.incarnation,
            self.topic_id_bytes,
            self.number,
            page_file.identity_device,
            page_file.inode,
        )

    def follow_writer(self) -> None:
        """For a reader, at intervals: follow a new live page; load the files after the last writer
        has left.
        """
        interval_ns = CHECK_INTERVAL_NS if self.page_file is None else LIVE_CHECK_INTERVAL_NS
        if self.context.refresh is None or time.monotonic_ns() - self._followed_ns < interval_ns:
            return
        with self.mutex:
            if self.closed or (self.page_file is None and self.loaded_files is None):
                return
            self._followed_ns = time.monotonic_ns()
            if self.context.refresh():
                if self.page_file is None:
                    self._switch_to_live()
            elif self._followed_change != self.context.directory_change:
                self._load_files()

    def _load_files(self) -> None:
        """Load the files as the last process left them."""
        until = self.deadline()
        pause = threading.Event()
        while True:
            change = self.context.directory_change
            try:
                if self.context.in_set:
                    self._check_topic()
                broker_wrote = self._changed_by_others()
                earlier_publication = None if broker_wrote else self._read_earlier_publication()
                loaded = loader.load(
                    self.make_loading(
                        write=False,
                        broker_wrote=broker_wrote,
                        earlier_publication=earlier_publication,
                    )
                )
                break
            except (CorruptRecordError, StateError, StorageError):
                if self.context.refresh is None or (
                    not self.context.refresh() and self.context.directory_change == change
                ):
                    raise
                if self._switch_to_live():
                    return  # a process opened the log meanwhile and changed files during the load
                if system.boot_ns() >= until:
                    raise
                pause.wait(RETRY_S)
        if self.context.in_set:
            loaded.published = self._with_high_watermark(loaded.published, earlier_publication)
        self._report_cuts(loaded)
        self.loaded_files = loaded
        self.page_file = None
        self._followed_change = change
        self.forget_files()

    def _report_cuts(self, loaded: loader.Loaded) -> None:
        """Report once what an opening for writing would cut: a reader gets the log as it would be
        afterwards.
        """
        for cut in loaded.cut:
            if cut not in self._reported_cuts:
                logger.warning("opened for reading only; an opening for writing would cut %s", cut)
        self._reported_cuts.update(loaded.cut)

    def _with_high_watermark(
        self, published: Published, earlier_publication: Published | None
    ) -> Published:
        """Of a replica that no process serves: the high watermark of the last close, or of the last
        page (REPLICA-19).
        """
        checkpointed = checkpoints.read_offsets(self.context.root / file_names.HIGH_WATERMARKS)
        high_watermark = checkpointed.get((self.topic, self.number), 0)
        if earlier_publication is not None:
            high_watermark = max(high_watermark, earlier_publication.high_watermark)
        return published._replace(
            high_watermark=max(published.log_start, min(high_watermark, published.log_end))
        )

    def _read_earlier_publication(self) -> Published | None:
        """The tuple that a page of an earlier incarnation published, for a reader."""
        mapped = map_page(self.path / file_names.PAGE, writable=False, locked=self.context.locked)
        if mapped is None:
            return None
        try:
            return read_earlier_publication(mapped, self.topic_id_bytes, self.number)
        finally:
            mapped.close()

    def _switch_to_live(self) -> bool:
        """Follow a live page if a writer has made one; False if there is none. For a read-only
        reader.
        """
        mapped = map_page(self.path / file_names.PAGE, writable=False, locked=self.context.locked)
        if mapped is None:
            return False
        if not check(mapped, self._identity_of(mapped)):
            mapped.close()
            return False
        self.page_file = mapped
        self.loaded_files = None
        self._followed_change = self.context.directory_change
        self.forget_files()
        return True

    def _open(self) -> None:
        if self.context.read_only:
            self._open_read_only()
        else:
            self._open_for_writing()

    def _open_read_only(self) -> None:
        live = self.context.refresh is not None and self.context.refresh()
        self._followed_ns = time.monotonic_ns()
        if not (live and self._switch_to_live()):
            self._load_files()

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
            lock = self.open_lock()
            with Guard(lock.close):  # which gives the lock back
                self.lock_os(lock, deadline_ns)
                # else the directory was set aside meanwhile
                if not self.context.in_set or lock.is_in_place():
                    self.page_file = self._open_page_locked()

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

    def _open_page_locked(self) -> PageFile:
        """The valid page of this incarnation, loaded from the files if no process has done so
        yet.
        """
        self.context.reacquire()  # raises if another directory is in the place of this one
        self._check_topic()
        mapped = make_page(self.path / file_names.PAGE, self.context.mode, self.context.locked)
        try:
            if not self._is_valid(mapped):
                self._load_locked(mapped)
                if self.context.directory_page is not None:
                    # readers find no page without a search: this says that there is one
                    self.context.directory_page.notify()
            if self.closed:  # by a signal handler
                self.raise_closed()
            return mapped
        except BaseException:
            mapped.close()
            raise

    def _is_valid(self, mapped: PageFile) -> bool:
        """Whether a page is of this incarnation, and its tuple has no damage."""
        return check(mapped, self._identity_of(mapped)) and mapped.page.read() is not None

    def _check_topic(self) -> None:
        """Refuse a directory that belongs to another topic of this name now. Raises
        UnknownTopicOrPartitionError.
        """
        topic_id = identity.read_topic_id(self.path)
        if topic_id is None or identity.id_bytes(topic_id) == self.topic_id_bytes:
            return
        raise UnknownTopicOrPartitionError(
            f"topic {self.topic} was deleted and created again",
            path=self.path,
            expected=f"topic id {identity.id_text(self.topic_id_bytes)}",
            found=topic_id,
        )

    def _load_locked(self, mapped: PageFile) -> None:
        broker_wrote = self._changed_by_others()
        earlier_publication = None
        if not broker_wrote:
            earlier_publication = read_earlier_publication(mapped, self.topic_id_bytes, self.number)
        loading = self.make_loading(
            write=True, broker_wrote=broker_wrote, earlier_publication=earlier_publication
        )
        if broker_wrote and not files.exists(self.manifest.path):
            bases = file_names.bases(files.listing(self.path))
            if bases:
                # The mark that follows would show a log of ours, also after a kill.
                self.manifest.rewrite([], Start(bases[0], bases[-1], identity.BEFORE_VISITS))
        is_mark_unsynced = not loading.clean and dirty_mark.can_sync_later(
            self.path, self.config.preallocate
        )
        if is_mark_unsynced:
            dirty_mark.make(self.path, self.context.mode)
        elif not loading.clean:
            self.mark_dirty()
        loaded = loader.load(loading)
        self.context.note_load(loaded.spent_s, loaded.recovered)
        self.epoch_file.take_loaded(loaded.epochs, differ=loaded.epochs_differ)
        if (
            not loaded.epochs_differ
            and not loading.clean
            and loaded.published.log_end == loaded.published.log_start
        ):
            # The log was empty, so whoever made the mark may have left its sync to the epochs
            # (`dirty_mark`), and was killed before. If they differ, `take_loaded` has synced it.
            files.sync_directory(self.path)
        self.marked_dirty = self.marked_dirty or is_mark_unsynced
        producer_history.write(
            self.path,
            loaded.history,
            [info.base for info in loaded.segments],
            log_start=loaded.published.log_start,
            mode=self.context.mode,
        )
        self._write_manifest(loading, loaded)
        moved = not is_in_place(mapped, self.topic_id_bytes, self.number)
        durable = self._durable_at_load(loading, loaded, moved=moved)
        is_kept = loading.clean or self._has_kept_everything(mapped, broker_wrote, loaded)
        flags = 0
        if is_kept and self.context.in_set:
            flags = system.FLAG_KEPT
        mapped.page.write(
            self._identity_of(mapped),
            loaded.published,
            durable,
            cache=boot_and_mount_number(mapped.path),
            flags=flags,
        )
        if durable < loaded.published.log_end and self.context.directory_page is not None:
            # found records must be flushed in time, too
            self.context.directory_page.add(system.WORD_UNSYNCED_COUNT, 1)
        producers_word = system.WORD_NO_PRODUCERS
        if loaded.history.state.producers:
            producers_word = system.WORD_SNAPSHOT
        mapped.page.set(producers_word, loaded.published.log_end + 1)
        for base in poisoned_bases(self.path):
            mapped.page.set(system.WORD_POISON, base + 1)

    def _has_kept_everything(
        self, mapped: PageFile, broker_wrote: bool, loaded: loader.Loaded
    ) -> bool:
        """Whether this load of a replica found all that it had published before its processes were
        killed (REPLICA-13).

        Only a page of this boot and mount shows that: after a power loss, or after a disk was
        detached, it proves nothing. REQUIRES the earlier page, which the load replaces.
        """
        page = mapped.page
        cache = exact_boot_and_mount_number(self.path)
        if broker_wrote or not cache or page.word(system.WORD_CACHE) != cache:
            return False
        publication = replication.read(page)
        if publication is None or not is_in_place(mapped, self.topic_id_bytes, self.number):
            return False
        published, replica = publication
        if replica.role == replication.ROLE_NONE and not self._is_kept(page):
            return False
        cut_intent = page.word(system.WORD_CUT_INTENT)
        if cut_intent == system.CUT_END:
            return True  # what a follower was cutting is not the leader's
        return not cut_intent and loaded.published.log_end >= published.log_end

    @staticmethod
    def _is_kept(page: system.Page) -> bool:
        return bool(page.word(system.WORD_FLAGS) & system.FLAG_KEPT)

    def is_kept(self) -> bool:
        """Whether the log of a replica has all that it had at its last orderly close, or that an
        earlier page of this boot had published, and no cut gave any of it up since.
        """
        mapped = self.page_file
        if mapped is None:
            return not files.exists(self.path / file_names.DIRTY)
        return self._is_kept(mapped.page)

    def give_up(self) -> None:
        """The log is not `is_kept` any more. REQUIRES the append lock."""
        page = self.page
        page.set(system.WORD_FLAGS, page.word(system.WORD_FLAGS) & ~system.FLAG_KEPT)

    def _write_manifest(self, loading: Loading, loaded: loader.Loaded) -> None:
        """Write a manifest that describes these files, without the parts that were cut."""
        manifest = self.manifest
        published = loaded.published
        sealed = loaded.segments[:-1]
        manifest.refresh()
        start = start_of(published, self.context.last_broker_visit)
        if not sealed and not files.exists(manifest.path):
            manifest.begin(start)
        is_stale = (
            any(base >= published.segment_base for base in manifest.segments)
            or manifest.start is None
            or not manifest.is_whole
        )
        described = [manifest.segments.get(info.base) for info in sealed]
        if loading.broker_wrote or is_stale or described != sealed:
            infos = list(sealed)
            closed = manifest.closed
            if (
                closed is not None
                and not loading.broker_wrote
                and not loading.clean
                and closed.base == published.segment_base
                and closed.size <= published.segment_size
            ):
                infos.append(closed)
            manifest.rewrite(infos, start)
        closed_info = None
        if loading.clean and manifest.closed is None:
            closed_info = active_info(published)
        manifest.append(start, closed_info)

    def _durable_at_load(self, loading: Loading, loaded: loader.Loaded, *, moved: bool) -> int:
        """The durable offset by an orderly close, or else by a checkpoint. Damage below it is never
        cut.

        In a copy, or after a broker, these files may not be synced yet. They are synced here first.
        """
        end = loaded.published.log_end
        durable = end
        if not loading.clean:
            durable = min(max(loading.known_durable, loading.recovery_point), end)
        if loading.broker_wrote or moved:
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
        return self.context.broker_wrote or changed_by_others(
            self.manifest, self.context.last_broker_visit
        )

    def make_loading(
        self, *, write: bool, broker_wrote: bool, earlier_publication: Published | None
    ) -> Loading:
        """The arguments of the loader."""
        context = self.context
        is_dirty = files.exists(self.path / file_names.DIRTY) and not context.broker_wrote
        # a partition of a set without the mark is as its last orderly close left it (`dirty_mark`)
        is_closed = context.clean or (
            context.in_set and write and not broker_wrote and not files.is_link(self.path)
        )
        is_clean = is_closed and not is_dirty
        reserves = self.config.preallocate and not is_clean  # else the mark does (`mark_dirty`)
        durable = None
        if not broker_wrote:
            durable = DurableRecord(self.path, self.topic_id_bytes).read()
        recovery_point = 0
        if not context.in_set or durable is None:
            recovery_point = self._checkpointed_offset(context.recovery_points)
        # else a cut may have lowered the durable record, which belongs to the partition (`log_cut`)
        return Loading(
            self.path,
            self.topic_id_bytes,
            clean=is_clean,
            write=write,
            in_set=context.in_set,
            recovery_point=recovery_point,
            log_start=self._checkpointed_offset(context.log_starts),
            earlier_publication=earlier_publication,
            known_durable=durable.offset if durable else 0,
            interval_bytes=self.config.index_interval_bytes,
            mode=context.mode,
            allocate_bytes=self.config.segment_bytes if reserves else 0,
            gaps_allowed=self.config.compacted or self._checkpointed_offset(context.cleaned) != 0,
            broker_wrote=broker_wrote,
            was_marked_dirty=is_dirty,
            visited=context.last_broker_visit != 0,
            producer_expiration_ms=context.producer_expiration_ms,
            work=context.loads,
        )

    def _checkpointed_offset(self, offsets: CheckpointedOffsets | None) -> int:
        """The offset of this partition in a checkpoint, 0 without one."""
        if offsets is None:
            return 0
        return offsets.of(self.topic, self.number)

    def mark_dirty(self) -> None:
        """Write the DIRTY mark to disk before the first write, so that the last process closes it.
        REQUIRES the append lock.
        """
        if self.marked_dirty:
            return
        is_first = dirty_mark.put(self.path, self.context.mode)
        self.marked_dirty = True
        mapped = self.page_file
        if is_first and self.config.preallocate and mapped is not None:
            self._reserve(mapped.page)

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
        published = self.page.read()
        if published is None:
            raise StorageError("the control page is damaged", path=self.path / file_names.PAGE)
        return published

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
            source = self._find_source()
            if isinstance(source, loader.Loaded):
                return source.published
            mapped = source
        published = mapped.page.read()
        if published is None or not mapped.page.is_alive():
            return self._remap_and_read()
        return published

    def _find_source(self) -> PageFile | loader.Loaded:
        """What the positions come from. Raises the error of `raise_closed`."""
        with self.mutex:  # one of the two is there, unless it was closed
            mapped = self.page_file
            loaded_files = self.loaded_files
        if mapped is not None:
            return mapped
        if loaded_files is None or self.closed:
            self.raise_closed()
        return loaded_files

    def _remap_and_read(self) -> Published:
        self.remap()
        source = self._find_source()
        if isinstance(source, loader.Loaded):  # of a reader whose last writer has left
            return source.published
        published = source.page.read()
        if published is None:
            raise StorageError(
                "the control page is damaged and could not be rebuilt",
                path=self.path / file_names.PAGE,
            )
        return published

    def check_page(self) -> None:
        """At the end of a wait: map the page again if its path leads to another file."""
        mapped = self.page_file
        if mapped is None or self.closed:
            return
        named = files.facts_of(mapped.path)
        if named is None or (named.device, named.inode) != (mapped.device, mapped.inode):
            self.remap()

    def bounds(self) -> Bounds:
        """The current offsets, from one read of the page.

        The first records of an open transaction may be deleted: the last stable offset is not
        before the log start, as in Kafka.
        """
        published = self.published()
        stable = published.high_watermark
        if published.first_unstable >= 0:
            stable = min(stable, max(published.first_unstable, published.log_start))
        return Bounds(
            published.log_start,
            published.log_end,
            published.high_watermark,
            stable,
            published.epoch,
        )

    @property
    def durable_offset(self) -> int:
        """Records below it are on stable storage, as far as the kernel reported."""
        self.ensure_open()
        mapped = self.page_file
        if mapped is None:
            return self.published().log_end
        return mapped.page.word(system.WORD_DURABLE)

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
        pid = 0
        mapped = self.page_file
        if mapped is not None:
            pid = mapped.page.word(system.WORD_OWNER)
        if mapped is not None and pid:
            age_s = (system.boot_ns() - mapped.page.word(system.WORD_OWNER_SINCE)) / 1e9
            owner = f"pid {pid} on {os.uname().nodename}"
            since = f" for {age_s:.1f} s"
        else:  # between the lock and the owner word
            owner = lock_holders.name_holders(path) or "an unknown process"
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
            reason = "is in a directory that was removed or renamed"
            if files.is_directory(self.path.parent):
                reason = "was deleted"
            raise UnknownTopicOrPartitionError(f"topic {self.topic} {reason}", path=self.path)
        self.forget_files()
        self._open()


def poisoned_bases(directory: Path) -> list[int]:
    """Segments of which a sync failed: their marker files survive a reboot."""
    names = files.listing(directory)
    bases = [file_names.base_after(file_names.POISON, name) for name in names]
    return sorted(base for base in bases if base is not None)
