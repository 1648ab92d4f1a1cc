"""This module adds directories to an open set, and retires them.

- The files of a new directory get its number, its ids and the members first. One decision brings
  its copy of the decision log level and adds it, on a majority of the old and of the new voters
  (QUORUM-6).
- An addition that was interrupted is repeated with the same path. It keeps the number and the ids
  of the directory, unless another directory got the number meanwhile.
- A directory is retired after its replicas were moved off it, so that no partition names it. The
  decision comes first. Then the remaining directories record their members. The retired one loses
  the file of its members, if it is reached: it is a log of its own then. It loses its directory id,
  and the next opening draws another one: no earlier file names it as a member then.
- A forced retirement needs only the voters that remain, of which this process must reach a
  majority. It begins another generation of the set, so that the retired directory is refused for
  ever, with everything that it holds.
- Either all directories with replicas have a rack, or none: otherwise no topic could be placed.
- A retirement that was interrupted after its decision, or whose outcome was not known, is completed
  by the same call. This needs a directory that still has the node among its members. The retired
  one is released if this process had opened it, and if it is of the current generation. One that
  was retired by force is refused for ever.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog._native import system, waits
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    ReplicaSetError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.decisions.refusals import error_of
from embedlog.replicas.members import (
    adoption,
    member_directories,
    registration,
    replacement,
    set_up,
)
from embedlog.replicas.members import membership as members
from embedlog.replicas.members.membership import Member, Membership
from embedlog.replicas.moves import growing_targets, move_off
from embedlog.replicas.rules.events import Event, ForceRetire, PartitionId, Refusal, Retire
from embedlog.storage import file_names, files, location
from embedlog.storage.identity import MetaProperties, id_bytes, new_id, read_meta, write_meta
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.config.topic import LogConfig
    from embedlog.replicas.assignments import Assignments
    from embedlog.replicas.decisions.decision_log import DecisionLog
    from embedlog.replicas.members.set_members import SetMembers
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")


# for the copies of replicas that leave a directory, or of one partition that gets further ones
MOVE_S: Final = 60
WAIT_NS: Final = 100_000_000  # between two looks at copies that others make
NAMES_SHOWN: Final = 5


class SetGrowth:
    """Additions and retirements of directories of an open set. Threads: any."""

    def __init__(self, members: SetMembers, assignments: Assignments, config: LogConfig) -> None:
        self._members = members
        self._assignments = assignments
        self._config = config

    # ---- growth ----------------------------------------------------------------------------------

    def add(self, path: Path, rack: str | None, *, replicas: bool, voter: bool) -> int:
        """Add a directory; its node. Raises ReplicaSetError, DirectoryInUseError,
        NotEnoughDirectoriesError, StorageError.
        """
        self._members.tend(by_hand=True)
        deadline_ns = files.deadline_after(self._config.lock_timeout_ms / 1000)
        state = self._members.decisions.settle(deadline_ns)
        set_up.check_texts(path, rack)
        registered_node = self._find_node(path, state)
        if registered_node is not None:
            return registered_node
        if len(state.nodes) >= waits.DIRECTORIES_MAX:
            raise ReplicaSetError(
                "the set has as many directories as it can have", expected=waits.DIRECTORIES_MAX
            )
        _check_rack(state, path, rack, replicas=replicas)
        _check_place(state, path)
        location.enter(path, read_only=False, create=True, mode=self._config.file_mode)
        with set_up.open_locks([path], deadline_ns, self._config.file_mode):
            planned = Member(
                state.highest_node + 1,
                new_id(),
                os.fspath(path),
                rack=rack,
                voter=voter,
                replicas=replicas,
            )
            own = self._prepare(path, state, planned)
        self._members.admit(member_directories.enter(self._members.make, path), deadline_ns)
        logger.info("the directory %s was added to the set as node %d", path, own.node)
        self.record(deadline_ns)
        return own.node

    def _find_node(self, path: Path, state: State) -> int | None:
        """The node of a directory that is a member already, as after an interrupted call."""
        directory = members.inspect(path)
        if directory.problem is not None:
            raise directory.problem
        if directory.membership is None:
            return None
        own = directory.membership.own
        registered = state.nodes.get(own.node)
        directory_id = uuid.UUID(bytes=id_bytes(own.directory_id))
        if registered is None or directory_id != registered.directory:
            return None
        if registered.path != os.fspath(path):
            raise ReplicaSetError(
                "the directory is a copy of a member",
                paths=[os.fspath(path), registered.path],
                found=own.directory_id,
            )
        return own.node

    def _prepare(self, path: Path, state: State, planned: Member) -> Membership:
        """Write identity and members into a new directory. REQUIRES its open lock."""
        directory = members.inspect(path)
        meta = directory.meta
        earlier = directory.membership  # of an interrupted addition
        adoption.check_new(directory, state.cluster_id)
        if meta is not None and meta.directory_id is not None:
            planned = planned._replace(directory_id=meta.directory_id)
        if earlier is not None and earlier.own.node > state.highest_node:
            planned = planned._replace(node=earlier.own.node)
        every = (*_members_of(state, self._members), planned)
        own = Membership(
            state.cluster_id, planned.node, uuid.uuid4(), every, cluster_generation=state.generation
        )
        if earlier is not None:
            own = own._replace(
                registration_id=earlier.registration_id, generation=earlier.generation
            )
        mode = self._config.file_mode
        others = {} if meta is None else meta.others
        new_meta = MetaProperties(1, own.cluster_id, planned.node, planned.directory_id, others)
        write_meta(path, new_meta, mode)
        # the last one: an opening takes a directory with both files only
        members.write(path, own, mode)
        return own

    def replace(self, node: int, path: Path, *, force: bool) -> None:
        """Give the place of a lost directory to another one. Raises the errors of
        `replacement.replace`.
        """
        replacement.replace(self._members, self._config, node, path, force=force)
        self.record(files.deadline_after(self._config.lock_timeout_ms / 1000))

    def replicate(self, factor: int, progress: Callable[[int, int], object] | None) -> None:
        """Give partitions of all topics further replicas, and copy them; `progress` gets the
        finished and all partitions.

        Raises InvalidReplicationFactorError, NotEnoughDirectoriesError; ReplicaSetError if no copy
        continues.
        """
        self._members.tend(by_hand=True)
        decisions = self._members.decisions
        deadline_ns = files.deadline_after(self._config.lock_timeout_ms / 1000)
        targets = growing_targets(decisions.settle(deadline_ns), factor)
        if targets:
            self._assignments.reassign(targets)
        copies = GrowingCopies(decisions, factor)
        report = progress or (lambda finished, total: None)
        missing = copies.find_missing()
        while missing:
            copies.check_progress(missing)
            version = self._members.version()
            for tp, partition_id in missing.items():
                report(copies.total - len(copies.find_missing()), copies.total)
                with suppress(LeaderNotAvailableError, UnknownTopicOrPartitionError):
                    self._assignments.tend(partition_id, tp.topic, lambda: False)
            if copies.find_missing() == missing:
                self._members.directories.wait(version, system.boot_ns() + WAIT_NS)
            missing = copies.find_missing()
        report(copies.total, copies.total)

    # ---- retirement ------------------------------------------------------------------------------

    def retire(self, node: int, *, force: bool) -> None:
        """Remove a directory from the set, after its replicas. Raises the errors of `move_off`,
        NotEnoughDirectoriesError.
        """
        deadline_ns = files.deadline_after(self._config.lock_timeout_ms / 1000)
        decisions = self._members.decisions
        state = decisions.counted_state() if force else decisions.settle(deadline_ns)
        is_member = node in state.nodes
        if not is_member and not self._is_unfinished(node):
            raise ReplicaSetError(
                "no directory of the set has this number",
                expected=f"one of {sorted(state.nodes)}",
                found=node,
            )
        if force:
            self._force(node, deadline_ns)
        elif is_member:
            if state.voters == (node,):
                raise error_of(Refusal.LAST_VOTER)
            racks = state.usable_racks()
            usable = [
                member.node
                for member in self._members.directories
                if member.problem is None and member.node in racks
            ]
            move_off(decisions, self._assignments, node, usable, files.deadline_after(MOVE_S))
            decisions.decide(
                lambda state: Retire(node), deadline_ns, reason=f"node {node} is retired"
            )
            logger.info("node %d left the set", node)
        self._members.leave_retired(node)  # or another thread has done so since the decision
        self.record(deadline_ns)
        for path in self._find_unreleased(node):
            self._release(path, deadline_ns)

    def _force(self, node: int, deadline_ns: int) -> None:
        """Decide a forced retirement. Nothing if the newest decisions, which count then, are
        without the node.
        """
        has_left = False

        def make_event(state: State) -> Event:
            nonlocal has_left
            has_left = node not in state.nodes
            return ForceRetire(node, self._members.observe_replicas(state))

        try:
            self._members.decisions.force(
                make_event, deadline_ns, reason=f"node {node} is retired by force"
            )
            logger.warning("node %d was retired by force: what only it holds is lost", node)
        except ReplicaSetError:
            if not has_left:
                raise

    def _is_unfinished(self, node: int) -> bool:
        """Whether a node that no decision has was retired, and a directory that this process
        reaches still has it as a member.
        """
        for opened in self._members.open_members():
            membership = members.inspect(opened.path).membership
            if membership is not None and any(member.node == node for member in membership.members):
                return True
        return bool(self._find_unreleased(node))

    def _find_unreleased(self, node: int) -> list[Path]:
        """The directory that left the set in order, and still has its members, if this process has
        opened it.
        """
        state = self._members.decisions.counted_state()
        unreleased = list[Path]()
        for path in self._members.directories.left_paths(node):
            own = members.inspect(path).membership
            # a new directory for which the same number was planned
            if own is None or own.registered_id is None:
                continue
            if (own.cluster_id, own.node, own.cluster_generation) == (
                state.cluster_id,
                node,
                state.generation,
            ):
                unreleased.append(path)
        return unreleased

    def _release(self, path: Path, deadline_ns: int) -> None:
        """Remove the members from a retired directory."""
        try:
            with set_up.open_locks([path], deadline_ns, self._config.file_mode):
                files.unlink(path / file_names.REPLICAS, missing_ok=True)
                files.sync_directory(path)
                meta = read_meta(path)
                if meta is not None:
                    write_meta(path, meta._replace(directory_id=None), self._config.file_mode)
        except EmbedlogError as problem:
            logger.warning("the retired directory %s still names its set: %s", path, problem)

    def record(self, deadline_ns: int) -> None:
        """Record the members in all open directories."""
        state = self._members.decisions.counted_state()
        paths = [opened.path for opened in self._members.open_members()]
        registration.record_changes(
            paths, state, deadline_ns=deadline_ns, mode=self._config.file_mode
        )


class GrowingCopies:
    """The partitions with fewer replicas in sync than wanted, during `replicate`."""

    def __init__(self, decisions: DecisionLog, factor: int) -> None:
        self._decisions = decisions
        self._factor = factor
        self.total = len(decisions.counted_state().partitions)
        self._least = self.total + 1
        self._since_ns = system.boot_ns()

    def find_missing(self) -> dict[TopicPartition, PartitionId]:
        """These partitions at present."""
        state = self._decisions.counted_state()
        missing = dict[TopicPartition, PartitionId]()
        for partition_id, partition in sorted(state.partitions.items()):
            if len(partition.isr) < self._factor:
                topic_uuid, number = partition_id
                missing[TopicPartition(state.topics[topic_uuid].name, number)] = partition_id
        return missing

    def check_progress(self, missing: Mapping[TopicPartition, PartitionId]) -> None:
        """Raises ReplicaSetError if no partition has got its replicas for some time."""
        now_ns = system.boot_ns()
        if len(missing) < self._least:
            self._least = len(missing)
            self._since_ns = now_ns
        if now_ns - self._since_ns > MOVE_S * 1_000_000_000:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in list(missing)[:NAMES_SHOWN])
            raise ReplicaSetError(
                f"no partition has got its replicas for {MOVE_S} s: the housekeeper continues, "
                "call this again later",
                expected=f"{self._factor} replicas in sync",
                found=f"{len(missing)} partitions with fewer, such as {names}",
            )


def _check_rack(state: State, path: Path, rack: str | None, *, replicas: bool) -> None:
    """Raises ReplicaSetError if some directories with replicas have a rack, and others have
    none.
    """
    if not replicas:
        return
    other_racks = [member.rack for member in state.nodes.values() if member.replicas]
    if any((other_rack is None) != (rack is None) for other_rack in other_racks):
        raise ReplicaSetError(
            "either all directories of a set have a rack, or none",
            paths=[os.fspath(path)],
            found=rack,
            expected="a rack" if any(other_racks) else "no rack",
        )


def _check_place(state: State, path: Path) -> None:
    """Raises ReplicaSetError for the place of a member whose directory is not there: a new disk may
    be mounted in it.
    """
    for node, registered in state.nodes.items():
        if registered.path == os.fspath(path) or members.is_same_directory(
            Path(registered.path), path
        ):
            text = (
                f"the path is that of node {node}, which is away: replace_directory({node}, path) "
                "copies its replicas there"
            )
            raise ReplicaSetError(
                text, paths=[os.fspath(path)], expected="a path of its own", found=f"node {node}"
            )


def _members_of(state: State, set_members: SetMembers) -> tuple[Member, ...]:
    """The registered members; none while no directory is open."""
    open_members = set_members.open_members()
    if not open_members:
        return ()
    return registration.members_of(state, open_members[0].entered.membership)
