"""Defines the administration of the replicas of an open log, a part of the public `Log`.

A method calls one part; the work is done in the modules of the parts, which are imported on first
use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from embedlog.admin.directory_engine import open_directory
from embedlog.config import keywords
from embedlog.engine.engine import Engine
from embedlog.errors import InvalidReplicaAssignmentError, LeaderNotAvailableError, ReplicaSetError
from embedlog.storage import files, location
from embedlog.types import TopicPartition, by_partition

if TYPE_CHECKING:
    from embedlog.admin.replica_descriptions import ReplicaDescriber
    from embedlog.admin.topics import TopicAdmin
    from embedlog.descriptions.directories import ReplicasDescription
    from embedlog.descriptions.replicas import Reassignment, RepairReport, ReplicaDifference
    from embedlog.integrity.report import CheckReport
    from embedlog.replica import ReplicatedEngine
    from embedlog.replicas.replica_set import ReplicaSet


ROUNDS = 10  # of housekeeping after a repair


@keywords.part_of("Log")
class ReplicaAdministration:
    """Replicas of an open log: description, elections, assignments, directories. Threads: any."""

    _engine: Engine
    _topics: TopicAdmin

    def _use(self, engine: Engine) -> None:
        raise NotImplementedError

    def housekeep(self, *, due_only: bool = False) -> None:
        """Of the log."""
        raise NotImplementedError

    def replicas(self, topic: str | None = None) -> ReplicasDescription:
        """The directories, the leaders, ISRs and lags of all partitions or of one topic, and the
        recent decisions.

        It takes no lock, needs no majority, and works read-only and with one directory. A directory
        that fails or hangs is described as failed; one that hangs delays the first call by 5
        seconds. Raises UnknownTopicOrPartitionError, ClosedError.
        """
        from embedlog.admin.replica_descriptions import describe_one

        self._engine.check_open()
        if self._describer is None:
            return describe_one(self._engine, topic)
        return self._describer.describe(topic)

    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]:
        """Counters and gauges with the names of Kafka's brokers, of all directories, and of each of
        the `directories`, `topics`, `partitions` and `groups` (docs/metrics.md).

        Internal topics, such as `__consumer_offsets` with 50 partitions, are in `topics` and
        `partitions` only with `include_internal=True`. Their sums are always in `internal`, and
        they are counted in the values of the whole log. A meter is a dict with `Count` and
        `OneMinuteRate`, and counts the events of this process. Raises ClosedError.
        """
        from embedlog.admin import log_metrics, replica_metrics
        from embedlog.admin.replica_descriptions import describe_one
        from embedlog.replicas.observation.replica_events import ReplicaEvents

        engine = self._engine
        of_set = self._of_set
        engine.check_open()
        if of_set is None or self._describer is None:
            description = describe_one(engine)
            events = ReplicaEvents()
        else:
            description = self._describer.describe(decisions=False)
            events = of_set.set.events
        report = replica_metrics.report(description, events)
        for partition in description.partitions:
            report["partitions"][partition.topic, partition.partition].update(
                log_metrics.partition_gauges(engine, description, partition)
            )
        report |= log_metrics.report(engine, description)
        return log_metrics.split_internal(report, description, include_internal=include_internal)

    def add_directory(
        self,
        path: str | os.PathLike[str],
        *,
        rack: str | None = None,
        replicas: bool = True,
        voter: bool = True,
    ) -> int:
        """Add an empty directory to the set; its node. A repetition with the same path completes an
        interrupted call.

        A log of one directory becomes a set, with all its topics and records, in which that
        directory is the first one. No other process may have it open. Producers and consumers of
        this object are closed by that; make them again.

        `replicas=False` makes a witness: a voter of a few kilobytes without partitions, which lets
        one of two other directories fail. A directory with `voter=False` may fail without an effect
        on decisions. Every open log of the set uses the new directory. Existing partitions stay
        where they are: see `reassign`. Raises ReplicaSetError for a directory with other content;
        DirectoryInUseError, NotEnoughDirectoriesError, StorageError.
        """
        if rack is not None and (type(rack) is not str or not rack):
            raise TypeError(f"a rack is a text, not {rack!r:.100}")
        if {type(replicas), type(voter)} != {bool}:
            raise TypeError(
                f"replicas and voter are True or False, not {replicas!r:.50} and {voter!r:.50}"
            )
        checked_path = location.check_path(path)
        self._engine.check_writable()
        if self._of_set is None:
            self._begin_set(checked_path, rack)
        return self._changeable_set().growth.add(checked_path, rack, replicas=replicas, voter=voter)

    def _begin_set(self, new: Path, rack: str | None) -> None:
        """Make the only directory the first one of a set, and open it again. After an error it is
        open as its files show it.
        """
        from embedlog.replicas.members import adoption

        engine = self._engine
        config = engine.config
        deadline_ns = files.deadline_after(engine.config.lock_timeout_ms / 1000)
        adoption.prepare(engine.home, new, rack)
        try:
            engine.close()
            adoption.begin(engine.path, deadline_ns=deadline_ns, mode=config.file_mode)
        finally:
            self._open_again(engine)

    def _open_again(self, closed: Engine) -> None:
        """Serve the same directory with a new engine."""
        opened = open_directory(closed.path, read_only=False, create=False, config=closed.config)
        try:
            self._use(opened)
        except BaseException:
            opened.close()
            raise

    def retire_directory(self, node: int, *, force: bool = False) -> None:
        """Move all replicas off a directory, then remove it from the set; it is a log of its own
        then.

        Replicas move to other directories, as by `reassign`. If that takes more than a minute,
        ReplicaSetError is raised, the housekeeper continues, and a later call completes it. Topics
        keep their number of replicas.

        `force` removes a lost directory with all its replicas, by a majority of the other voters
        alone. Of two directories the other one continues. Records that only the lost directory has
        are gone, and it is refused if it comes back. Raises ReplicaSetError if too few directories
        would remain, and for the only voter; NotEnoughDirectoriesError.
        """
        if type(node) is not int:
            raise TypeError(f"a node is an int, not {type(node).__name__}")
        self._changeable_set().growth.retire(node, force=force)

    def replace_directory(
        self, node: int, path: str | os.PathLike[str], *, force: bool = False
    ) -> None:
        """Give the place of a lost directory in the set to the directory at `path`, also to a new
        disk at the old path.

        The directory begins empty: content that is there is kept beside it, as
        `<path>.replaced-<time>`. It is registered as `node`, and its replicas are copied from the
        others by the housekeepers of the open logs; `replicas()` shows their lags. A call that was
        interrupted is repeated.

        `force` gives up the records of partitions that no other directory has whole: they begin
        again with what the others have, after `elect(…, unclean=True)`. Raises ReplicaSetError if
        the directory of the node answers, if only it has records, and for a path of another member;
        DirectoryInUseError, NotEnoughDirectoriesError, StorageError. Nothing has changed then.
        """
        if type(node) is not int:
            raise TypeError(f"a node is an int, not {type(node).__name__}")
        checked_path = location.check_path(path)
        self._changeable_set().growth.replace(node, checked_path, force=force)

    def replicate(
        self, factor: int, *, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Give every partition at least `factor` replicas, also those of internal topics, and copy
        them.

        After a log has grown by `add_directory`, this protects all of its topics and its groups.
        Partitions with more replicas keep them. Internal topics get the `min.insync.replicas` that
        a set creates them with, and topics without a value of their own that of this log.
        `progress(finished partitions, all partitions)` is called repeatedly; its exception ends the
        call, and the housekeepers continue. A repetition completes an interrupted call. Raises
        InvalidReplicationFactorError if fewer directories take replicas; NotEnoughDirectoriesError;
        ReplicaSetError if no partition was finished for a minute.
        """
        if type(factor) is not int or factor < 1:
            raise TypeError(f"a replication factor is an int of at least 1, not {factor!r:.50}")
        used = self._changeable_set()
        used.growth.replicate(factor, progress)
        for name, least in cast("ReplicatedEngine", self._engine).undecided_least().items():
            self._topics.alter(name, {"min.insync.replicas": str(least)})

    def elect(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        preferred: bool = True,
        unclean: bool = False,
        node: int | None = None,
    ) -> dict[TopicPartition, int]:
        """Elect leaders: of one partition, of a topic, or of all topics; the nodes of the leaders
        that were elected.

        `preferred`: the first directory of each assignment shall lead, otherwise only partitions
        without a leader get one. `unclean` accepts a replica outside the ISR, which can lose
        acknowledged records, and `node` selects it: it becomes the whole ISR. Of several
        partitions, those that need no election are left out, and an error is raised after the
        others were elected. Raises ElectionNotNeededError (for one partition),
        PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError, LeaderNotAvailableError,
        NotEnoughDirectoriesError, UnknownTopicOrPartitionError, ReplicaSetError for one directory.
        """
        from embedlog.replicas.rules.events import Election

        if node is not None and not unclean:
            raise ValueError(
                "a node can be selected only for an unclean election: elect(…, unclean=True, "
                "node=…)"
            )
        if unclean:
            kind = Election.UNCLEAN
        elif preferred:
            kind = Election.PREFERRED
        else:
            kind = Election.OFFLINE
        return self._changeable_set().assignments.elect(topic, partition, kind, node)

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, throttle: int | None = None
    ) -> None:
        """Give partitions other directories: `{TopicPartition("t", 0): [3, 1]}`, the preferred
        leader first; None cancels.

        It returns when the change is decided. The housekeeper copies, and finishes each
        reassignment when all directories of its target are in sync (`reassignments`); `housekeep()`
        does a round of that. `throttle` limits the copies of these partitions out of each directory
        to bytes per second, of all processes together. Producers and consumers continue. Raises
        InvalidReplicaAssignmentError, NoReassignmentInProgressError, UnknownTopicOrPartitionError,
        NotEnoughDirectoriesError, ReplicaSetError for one directory; then nothing has changed.
        """
        if throttle is not None and (type(throttle) is not int or not 0 < throttle < 1 << 63):
            raise ValueError(
                f"a throttle is a positive number of bytes per second, not {throttle!r:.50}"
            )
        checked = {
            tp: None if nodes is None else _check_nodes(tp, nodes)
            for tp, nodes in by_partition("targets", targets).items()
        }
        self._changeable_set().assignments.reassign(checked, throttle)

    def proposed_assignment(
        self, topics: Iterable[str], nodes: Iterable[int] | None = None
    ) -> dict[TopicPartition, list[int]]:
        """Nodes for the partitions of topics by Kafka's formula, for `reassign`; nothing changes.

        `nodes`: the directories to use, all that take replicas if not given. Each topic keeps its
        replication factor. Racks are respected. Raises UnknownTopicOrPartitionError,
        InvalidReplicationFactorError, InvalidReplicaAssignmentError.
        """
        from embedlog.admin.proposed_assignments import propose

        return propose(self.replicas(), topics, nodes)

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The reassignments that are not finished: none for one directory."""
        self._engine.check_open()
        of_set = self._of_set
        return {} if of_set is None else of_set.set.assignments.in_progress()

    def verify_replicas(
        self,
        topic: str | None = None,
        *,
        repair: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> list[ReplicaDifference]:
        """Compare the committed records of all replicas in the ISRs with their leaders, of all
        topics or of one; the differences.

        All bytes are read, without a topic also those of the copies of the decision log
        (`__replica_state`). Of a compacted topic the last value of each key is compared. `repair`
        repairs the differences, as by `repair`. `progress(bytes compared)` is called repeatedly;
        its exception ends the call. One directory has no differences. Raises
        LeaderNotAvailableError, UnknownTopicOrPartitionError.
        """
        self._engine.check_open()
        of_set = self._of_set
        if of_set is None:
            return []
        used = self._changeable_set() if repair else of_set.set
        partitions = used.assignments.find_partition_ids(topic, None)
        differences = used.verification.find_differences(
            partitions, progress, decisions=topic is None
        )
        if repair and differences:
            used.verification.repair(differences, partitions)
        return differences

    def repair(self, topic: str | None = None, partition: int | None = None) -> RepairReport:
        """Replace damaged and different records of replicas by those of a complete replica; what
        was done.

        The replica leaves the ISR, its log is cut at the first difference, and it copies the
        records again. Cut bytes stay in files of the partition. A damaged leader hands over to
        another replica first. Without a complete replica nothing changes. Raises
        LeaderNotAvailableError, UnknownTopicOrPartitionError, ReplicaSetError for one directory.
        """
        used = self._changeable_set()
        partitions = used.assignments.find_partition_ids(topic, partition)
        differences = used.verification.find_differences(partitions, decisions=topic is None)
        return used.verification.repair(differences, partitions)

    def check(
        self, repair: bool = False, *, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Read all files of the log, and compare them: the findings, with their meaning and their
        remedy (`embedlog check`).

        It reads all batches with their checksums, offsets and epochs, and each entry of indexes and
        digests. It reads manifests, snapshots, transaction indexes, checkpoints, and compares
        replicas. Other processes may use the log meanwhile. `progress(bytes read, all bytes)` is
        called repeatedly; its exception ends the call.

        `repair` copies damaged replicas of a set from complete ones. A single directory is closed,
        repaired by `embedlog.repair`, and opened again. No other process may have it open.
        Producers and consumers of this object are closed by that. Raises LeaderNotAvailableError,
        ReadOnlyError and DirectoryInUseError for a repair, ClosedError.
        """
        self._engine.check_open()
        if repair:
            self._engine.check_writable()
        report = self._check_files(progress)
        if not repair or report.good:
            return report
        if self._of_set is None:
            return self._repair_directory()
        return self._repair_set()

    def _check_files(self, progress: Callable[[int, int], object] | None = None) -> CheckReport:
        from embedlog.admin import log_check

        of_set = self._of_set
        if of_set is None:
            return log_check.check(self._engine, progress=progress)
        unled: dict[TopicPartition, LeaderNotAvailableError] = {}
        partitions = of_set.set.assignments.find_partition_ids(None, None)
        differences = of_set.set.verification.find_differences(
            partitions, decisions=True, unled=unled
        )
        findings = log_check.findings_of_set(differences, self.replicas().directories, unled)
        return log_check.check(self._engine, findings, progress)

    def _repair_set(self) -> CheckReport:
        from dataclasses import replace

        report = self.repair()
        for _ in range(ROUNDS):  # one that cannot be loaded is copied by the housekeeper
            if not any(partition.under_replicated for partition in self.replicas().partitions):
                break
            self.housekeep()
        changes = tuple(
            f"{copy.topic}-{copy.partition}: node {copy.node} is copied again"
            for copy in report.repaired
        )
        return replace(self._check_files(), repaired=changes)

    def _repair_directory(self) -> CheckReport:
        """Close the directory, repair it, and open it again, as its files are then."""
        from embedlog.admin import directory_repair

        engine = self._engine
        engine.home.directory.check_only_process()
        engine.close()
        try:
            return directory_repair.repair_path(engine.path)
        finally:
            self._open_again(engine)

    def _changeable_set(self) -> ReplicaSet:
        self._engine.check_writable()
        of_set = self._of_set
        if of_set is None:
            raise ReplicaSetError(
                "the log has one directory without a set: begin one by add_directory(path)",
                paths=[str(self._engine.path)],
            )
        return of_set.set

    @property
    def _of_set(self) -> ReplicatedEngine | None:
        """The engine, if it is that of a set."""
        return cast("ReplicatedEngine", self._engine) if self._engine.replicated else None

    @cached_property
    def _describer(self) -> ReplicaDescriber | None:
        from embedlog.admin.replica_descriptions import ReplicaDescriber

        return None if self._of_set is None else ReplicaDescriber(self._of_set)


def _check_nodes(tp: TopicPartition, nodes: Sequence[int]) -> tuple[int, ...]:
    is_list = isinstance(nodes, Sequence) and not isinstance(nodes, str | bytes)
    if not is_list or not all(type(node) is int for node in nodes):
        raise InvalidReplicaAssignmentError(
            f"the target of {tp.topic}-{tp.partition}", expected="nodes", found=f"{nodes!r:.100}"
        )
    return tuple(nodes)
