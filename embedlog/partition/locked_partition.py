"""The parts of a partition on which operations under the append lock work.

The lock (`append_lock`) makes a `LockedPartition` each time it is taken. An operation that REQUIRES
the lock takes one as an argument.
"""

from __future__ import annotations

from pathlib import Path

from embedlog._native import replication, system
from embedlog._native.replication import ROLE_NONE, Replica
from embedlog._native.system import Published
from embedlog.errors import StorageError
from embedlog.format.producer_state import ProducerState
from embedlog.partition.producer_sequences import ProducerSequences
from embedlog.partition.recovery import log_epochs, producer_history
from embedlog.partition.segment_info import active_info, start_of
from embedlog.partition.segment_list import SegmentList
from embedlog.partition.state import PartitionState
from embedlog.partition.writer import AppendWriter
from embedlog.storage import file_names
from embedlog.storage.checkpoints import EpochCache
from embedlog.storage.manifest import SegmentInfo


class LockedPartition:
    """A partition whose append lock this thread holds. `published` and `replica_at_begin` are what
    its page had when this was made.
    """

    __slots__ = ("producers", "published", "replica_at_begin", "segments", "state", "writer")

    def __init__(
        self,
        state: PartitionState,
        segments: SegmentList,
        writer: AppendWriter,
        producers: ProducerSequences,
        publication: tuple[Published, Replica] | None = None,
    ) -> None:
        self.state = state
        self.segments = segments
        self.writer = writer
        self.producers = producers
        self.published, self.replica_at_begin = publication or self.read_page()

    @property
    def path(self) -> Path:
        return self.state.path

    @property
    def page(self) -> system.Page:
        return self.state.page

    @property
    def mode(self) -> int:
        """Permissions of new files."""
        return self.state.context.mode

    def read_page(self) -> tuple[Published, Replica]:
        """The tuple and the replica state that are published now. Raises StorageError if the
        control page is damaged.
        """
        publication = replication.read(self.state.page)
        if publication is None:
            raise StorageError("the control page is damaged", path=self.path / file_names.PAGE)
        return publication

    @property
    def replica(self) -> Replica:
        """As `read_page`, without the tuple."""
        return self.read_page()[1]

    def publish(self, after: Published, replica: Replica | None = None) -> None:
        """Publish a tuple of the same files; without `replica` the replica state is kept."""
        if replica is None:
            self.state.page.publish(after, self.state.context.directory_page)
        else:
            replication.publish(self.state.page, after, replica, self.state.context.directory_page)

    def publish_replaced(self, after: Published, replica: Replica | None = None) -> None:
        """Publish a tuple that describes other files than before."""
        self.state.forget_files()
        self.publish(after, replica)

    def epochs(
        self, published: Published | None = None, replica: Replica | None = None
    ) -> EpochCache:
        """The leader-epoch-checkpoint, made again if it is damaged.

        `published`: a tuple that is published next. With `replica` both are those of the last
        publication.
        """
        state = self.state
        if published is None or replica is None:
            publication = self.read_page()
            if published is None:
                published = publication[0]
            replica = publication[1]
        file = state.epoch_file
        in_set = state.context.in_set
        epochs, is_made = log_epochs.read_or_make(
            self.path, published, replica, compare=in_set, file=file
        )
        if is_made:
            self.write_epochs(epochs)
        file.compared = list(epochs.entries)
        return epochs

    def remake_epochs(self, stored: EpochCache) -> EpochCache:
        """The epochs of the batches, which replace the `stored` ones of the checkpoint if they
        differ.
        """
        epochs, differ = log_epochs.make_again(
            self.path, self.state.read_page(), self.replica, stored
        )
        if differ:
            self.write_epochs(epochs)
        return epochs

    def write_epochs(self, epochs: EpochCache) -> None:
        """Replace the leader-epoch-checkpoint by epochs that agree with the batches; it is on disk
        when this returns.
        """
        self.state.epoch_file.write(epochs)

    def producer_state(self, published: Published) -> ProducerState:
        """The producers as of the log end of `published`."""
        return self.producers.state_locked(published)

    def write_snapshot(self, published: Published) -> None:
        """Write the snapshot of the producers as of the log end, unless it is there."""
        page = self.state.page
        if page.word(system.WORD_SNAPSHOT) != published.log_end + 1:
            producer_history.write_snapshot(
                self.path, self.producer_state(published).encode(), published.log_end, self.mode
            )
            page.set(system.WORD_SNAPSHOT, published.log_end + 1)

    def active_info(self, published: Published) -> SegmentInfo:
        """The active segment of a tuple. Its epoch is that of its last batch, which a page with a
        role need not have.
        """
        info = active_info(published)
        if self.replica.role == ROLE_NONE or published.segment_size == 0:
            return info
        return info._replace(epoch=max(0, self.epochs().epoch_for(published.log_end - 1)))

    def append_to_manifest(self, published: Published, info: SegmentInfo | None = None) -> None:
        """Add the start of the log, and a sealed segment, to the manifest."""
        self.state.manifest.append(start_of(published, self.state.context.last_broker_visit), info)

    def append_closed_to_manifest(self, published: Published) -> None:
        """Add the description of the active segment that an orderly close leaves."""
        self.append_to_manifest(published, self.active_info(published))

    def replace_manifest(self, published: Published, sealed: list[SegmentInfo]) -> None:
        """Write a manifest of these sealed segments only."""
        self.state.manifest.rewrite(
            sealed, start_of(published, self.state.context.last_broker_visit)
        )
