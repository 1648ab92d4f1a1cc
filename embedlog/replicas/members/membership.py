"""Members of a set of directories, recorded in the file `embedlog.replicas` of each one
(`docs/protocol.md`, QUORUM-1).

- The file is replaced as a whole; its writer holds the open lock of the directory.
- A set-up first writes the planned members into every directory, then the identities, then makes
  the first decision. A repeat completes an interrupted one with the same numbers and ids.
- A directory belongs to a set by cluster id, node and directory id; its path may change.
- An empty directory in the place of a registered one is not prepared again: its disk may be absent.
- A new registration id is on disk before anything is written in its name; the registered one
  remains beside it.
- Two directories of one cluster and one generation are of one set if the members of one of them
  name the other. Of two members, the one that was added later names the other one, also after a
  crash between the steps of a growth. A directory that was away names members that have left since,
  so the relation is followed over several directories.
- A directory of an earlier generation is of the set only if one of the last generation names it.
  Its own members do not count: it may have been retired by force.
- Two parts of a set that each retired a member of the other one by force are two sets, although
  they may name directories of each other, and begin the same generation. A number is used once, so
  a directory without an earlier member, whose number is not above the highest one that it knows,
  has retired that member.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from embedlog._native.system import Facts
from embedlog.errors import EmbedlogError, ForeignDirectoryError, ReplicaSetError, StorageError
from embedlog.replicas.members.directory_workers import Call, call_here
from embedlog.storage import files
from embedlog.storage.checkpoints import LONG_MAX
from embedlog.storage.file_names import INT_MAX, REPLICAS
from embedlog.storage.identity import MetaProperties, id_bytes, id_text, read_meta
from embedlog.storage.json_file import JsonFile

VERSION: Final = 1
MEMBERS_MAX: Final = 64  # bits of the ISR in a control page
# of one directory without a majority; then the oldest one but the registered one is forgotten
OPENINGS_MAX: Final = 64
_REMEDY = (
    "restore the file from another copy of the directory; without it the directory belongs to no "
    "set"
)
_FILE = JsonFile(
    "members",
    "the directories of a set of replicas; written by embedlog, change them through it",
    VERSION,
    _REMEDY,
)


class Member(NamedTuple):
    """One directory of a set. A directory with `replicas=False` is a witness: it votes and has no
    partitions of topics.
    """

    node: int
    directory_id: str
    path: str
    rack: str | None = None
    voter: bool = True
    replicas: bool = True
    others: Mapping[str, Any] = MappingProxyType({})  # unknown fields of a newer version


class Membership(NamedTuple):
    """The content of `embedlog.replicas`.

    `registration_id` is that of the directory now. `registered_id` and `broker_epoch` are those of
    its last registration in the decision log, None and -1 before the first one. `alone`: the
    directory was written without its set since then. `created_ns`: the birth time of
    `embedlog.door` at that registration, None if it is not known. `replaces`: the directory was
    prepared empty, to get the place of another one, and no registration of it is recorded yet.

    `openings`: an id for each opening of the directory by a first process. The first one is that of
    the last recorded registration, the last one is the current one. Those between them may be
    registered, too: their processes were killed before they recorded it, or reached no majority.
    `births`: the birth time of `embedlog.door` at each of them, or at the opening after the last
    orderly close, as far as it is known; a file of an earlier version has none.

    `highest_node`: the highest number that the set had used, -1 if it is that of a member, or not
    known.
    """

    cluster_id: str
    node: int
    registration_id: UUID
    members: tuple[Member, ...]
    registered_id: UUID | None = None
    broker_epoch: int = -1
    alone: bool = False
    cluster_generation: int = 0
    generation: int = 0
    created_ns: int | None = None
    others: Mapping[str, Any] = MappingProxyType({})
    openings: tuple[UUID, ...] = ()
    replaces: bool = False
    births: tuple[int | None, ...] = ()
    highest_node: int = -1

    @property
    def own(self) -> Member:
        """The member that this directory is."""
        return next(member for member in self.members if member.node == self.node)

    def with_opening(self, opening: UUID, created_ns: int | None) -> Membership:
        """These members after one more opening of the directory, which has this birth time."""
        earlier = self.openings[:1] + self.openings[1:][-(OPENINGS_MAX - 2) :]
        births = (*map(self.birth_at, earlier), created_ns)
        return self._replace(openings=(*earlier, opening), births=births)

    def with_birth(self, created_ns: int | None) -> Membership:
        """These members with one birth time at each opening: a copy that was closed in order stands
        for the directory.
        """
        return self._replace(births=tuple(created_ns for _ in self.openings))

    def since_opening(self, opening: UUID | None) -> Membership:
        """These members without the openings before this one, which is registered."""
        if opening not in self.openings:
            return self
        openings = self.openings[self.openings.index(opening) :]
        return self._replace(openings=openings, births=tuple(map(self.birth_at, openings)))

    def birth_at(self, opening: UUID | None) -> int | None:
        """The birth time of the directory when this opening of it was registered; None if it is not
        known.
        """
        if opening in self.openings and len(self.births) == len(self.openings):
            return self.births[self.openings.index(opening)]
        return self.created_ns

    @property
    def others_paths(self) -> list[str]:
        """The paths of the other members."""
        return [member.path for member in self.members if member.node != self.node]


# ---- the file ------------------------------------------------------------------------------------


def read(directory: Path) -> Membership | None:
    """The members that a directory has recorded; None if it belongs to no set.

    Raises ForeignDirectoryError for a damaged file, UnsupportedFormatError for a newer one.
    """
    path = directory / REPLICAS
    data = files.read_bytes(path)
    return None if data is None else _decode(path, data)


def write(directory: Path, membership: Membership, mode: int = 0o666) -> Membership:
    """Replace the file durably; the written content. REQUIRES the open lock of the directory."""
    new = membership._replace(generation=membership.generation + 1)
    files.write_atomically(directory / REPLICAS, encode(new), mode)
    return new


def encode(membership: Membership) -> bytes:
    """The bytes of the file."""
    registered = membership.registered_id
    content = {
        "cluster_id": membership.cluster_id,
        "node": membership.node,
        "registration_id": id_text(membership.registration_id.bytes),
        "registered_id": None if registered is None else id_text(registered.bytes),
        "broker_epoch": membership.broker_epoch,
        "alone": membership.alone,
        "created_ns": membership.created_ns,
        "openings": [id_text(opening.bytes) for opening in membership.openings],
        "births": list(membership.births),
        "cluster_generation": membership.cluster_generation,
        **({"replaces": True} if membership.replaces else {}),
        **({"highest_node": membership.highest_node} if membership.highest_node >= 0 else {}),
        "members": [_encode_member(member) for member in membership.members],
    }
    return _FILE.encode(membership.generation, content, membership.others)


def _encode_member(member: Member) -> dict[str, Any]:
    return {
        **member.others,
        "node": member.node,
        "directory_id": member.directory_id,
        "path": member.path,
        "rack": member.rack,
        "voter": member.voter,
        "replicas": member.replicas,
    }


def _decode(path: Path, data: bytes) -> Membership:
    generation, fields = _FILE.decode(path, data)
    try:
        cluster_id = _check_text(fields.pop("cluster_id"))
        node = _check_number(fields.pop("node"))
        registration_id = _read_uuid(fields.pop("registration_id"))
        registered = fields.pop("registered_id")
        broker_epoch = fields.pop("broker_epoch")
        alone = fields.pop("alone")
        created_ns = fields.pop("created_ns", None)  # a file of an earlier version has none
        openings = fields.pop("openings", [])  # likewise
        births = fields.pop("births", [])
        replaces = fields.pop("replaces", False)
        highest_node = fields.pop("highest_node", -1)
        cluster_generation = _check_number(fields.pop("cluster_generation"))
        entries = fields.pop("members")
        if (
            type(broker_epoch) is not int
            or not -1 <= broker_epoch <= LONG_MAX
            or type(alone) is not bool
            or type(replaces) is not bool
        ):
            raise ValueError(
                f"broker epoch {broker_epoch!r:.100}, alone {alone!r:.100}, replaces "
                f"{replaces!r:.100}"
            )
        if not all(_is_birth(birth) for birth in (created_ns, *births)):
            raise ValueError(f"created_ns {created_ns!r:.100}, births {births!r:.100}")
        if type(highest_node) is not int or not -1 <= highest_node <= INT_MAX:
            raise ValueError(f"highest_node {highest_node!r:.100}")
        if not isinstance(openings, list) or len(openings) > OPENINGS_MAX:
            raise ValueError(f"openings {openings!r:.100}")
        if not isinstance(entries, list) or not 0 < len(entries) <= MEMBERS_MAX:
            raise ValueError(f"a set has 1 to {MEMBERS_MAX} members")
        members = tuple(
            sorted((_decode_member(entry) for entry in entries), key=lambda member: member.node)
        )
        _check_members(members, node)
        opening_ids = tuple(map(_read_uuid, openings))
        registered_id = None if registered is None else _read_uuid(registered)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ForeignDirectoryError(
            f"the members cannot be read ({problem!r:.300}); {_REMEDY}", path=path
        ) from problem
    return Membership(
        cluster_id=cluster_id,
        node=node,
        registration_id=registration_id,
        members=members,
        registered_id=registered_id,
        broker_epoch=broker_epoch,
        alone=alone,
        cluster_generation=cluster_generation,
        generation=generation,
        created_ns=created_ns,
        others=fields,
        openings=opening_ids,
        replaces=replaces,
        births=tuple(births),
        highest_node=highest_node,
    )


def _decode_member(entry: object) -> Member:
    fields = dict(entry)  # type: ignore[call-overload]
    member = Member(
        node=_check_number(fields.pop("node")),
        directory_id=_check_text(fields.pop("directory_id")),
        path=_check_text(fields.pop("path")),
        rack=fields.pop("rack"),
        voter=fields.pop("voter"),
        replicas=fields.pop("replicas"),
        others=fields,
    )
    id_bytes(member.directory_id)
    if (
        not isinstance(member.rack, str | None)
        or type(member.voter) is not bool
        or type(member.replicas) is not bool
    ):
        raise ValueError(
            f"rack {member.rack!r}, voter {member.voter!r}, replicas {member.replicas!r}"
        )
    return member


def _check_members(members: tuple[Member, ...], node: int) -> None:
    nodes = {member.node for member in members}
    ids = {member.directory_id for member in members}
    if len(nodes) != len(members) or len(ids) != len(members):
        raise ValueError("a node or a directory id occurs twice")
    if node not in nodes:
        raise ValueError(f"the node {node} is no member")
    if not any(member.voter for member in members):
        raise ValueError("no member is a voter")


def _is_birth(value: object) -> bool:
    """Whether a value of the file is a birth time in nanoseconds, or that of an unknown one."""
    return value is None or (type(value) is int and 0 < value <= LONG_MAX)


def _check_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.100} is no text")
    return value


def _check_number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INT_MAX:
        raise ValueError(f"{value!r:.100} is no number from 0 to {INT_MAX}")
    return value


def _read_uuid(value: object) -> UUID:
    return UUID(bytes=id_bytes(_check_text(value)))


# ---- the check of a set --------------------------------------------------------------------------


class FoundDirectory(NamedTuple):
    """One given directory: its path, its identity and members as far as it has them. `problem`: the
    reason why it is away.
    """

    path: Path
    meta: MetaProperties | None = None
    membership: Membership | None = None
    problem: EmbedlogError | None = None

    @property
    def is_new(self) -> bool:
        """Whether it has neither an identity nor members."""
        return self.problem is None and self.meta is None and self.membership is None


class CheckedSet(NamedTuple):
    """The given directories in their order, and the members with the highest generation; None
    before the first set-up.
    """

    directories: tuple[FoundDirectory, ...]
    membership: Membership | None

    @property
    def is_registered(self) -> bool:
        """Whether the decision log of the set has a registration."""
        return any(
            directory.membership is not None and directory.membership.registered_id is not None
            for directory in self.directories
        )


def check_set(
    paths: Iterable[str | os.PathLike[str]], *, alone: bool = False, run_at: Call = call_here
) -> CheckedSet:
    """Read and compare the given directories (QUORUM-1). Changes nothing.

    A directory that is missing, damaged or cannot be read is away, not an error. Raises
    ReplicaSetError if one is given twice, if one is a clone, and if they belong to different sets.
    One directory of a larger set is refused, too, unless it is opened `alone`. `run_at` makes the
    calls about a directory.
    """
    given_paths = [Path(path) for path in paths]
    check_doubles(given_paths, run_at)
    directories = tuple(inspect_at(path, run_at) for path in given_paths)
    _check_clusters(directories)
    _check_clones(directories)
    recorded = [
        directory.membership for directory in directories if directory.membership is not None
    ]
    newest = max(recorded, key=_age, default=None)
    checked = CheckedSet(directories, newest)
    if newest is not None:
        _check_members_of(checked, newest)
        if len(given_paths) == 1 and not alone:
            check_alone(given_paths[0], newest)
    return checked


def check_alone(path: Path, membership: Membership) -> None:
    """Raises ReplicaSetError if a directory has fellow members, without which it must not be
    written.
    """
    if len(membership.members) > 1:
        raise ReplicaSetError(
            "the directory belongs to a set: open all of its directories, or this one with "
            "read_only=True or alone=True",
            path=path,
            expected=f"{len(membership.members)} directories",
            found="one",
            paths=[os.fspath(path), *membership.others_paths],
        )


def inspect(path: Path) -> FoundDirectory:
    """What a directory has of its identity and its members; a problem instead of an error."""
    try:
        if not files.is_directory(path):
            return FoundDirectory(path)  # it can be made, if it is new
        return FoundDirectory(path, read_meta(path), read(path))
    except EmbedlogError as problem:
        return FoundDirectory(path, problem=problem)


def inspect_at(path: Path, run_at: Call) -> FoundDirectory:
    """As `inspect`, by a call about the directory. One that does not answer has a problem, too."""
    try:
        return run_at(path, partial(inspect, path))
    except EmbedlogError as problem:
        return FoundDirectory(path, problem=problem)


def _find_real_path(path: Path) -> tuple[Path, Facts | None]:
    real = Path(files.real_path(path))
    return real, files.lstat(real)


def check_doubles(paths: list[Path], run_at: Call = call_here) -> None:
    """Raises ReplicaSetError if two paths lead to one directory."""
    paths_by_place: dict[object, Path] = {}
    for path in paths:
        try:
            real, facts = run_at(path, partial(_find_real_path, path))
        except StorageError as problem:
            if problem.errno != errno.ETIMEDOUT:
                raise
            real = path
            facts = None
        places: set[object] = {real}
        if facts is not None:
            places.add((facts.device, facts.inode))
        for place in places:
            if place in paths_by_place:
                raise ReplicaSetError(
                    "the same directory is given twice",
                    paths=[os.fspath(paths_by_place[place]), os.fspath(path)],
                )
            paths_by_place[place] = path


def _check_clusters(directories: Iterable[FoundDirectory]) -> None:
    first_id: str | None = None
    first_path = Path()
    for directory in directories:
        ids = set[str]()
        if directory.meta is not None and directory.meta.cluster_id:
            ids.add(directory.meta.cluster_id)
        if directory.membership is not None:
            ids.add(directory.membership.cluster_id)
        for cluster_id in sorted(ids):
            if first_id is None:
                first_id = cluster_id
                first_path = directory.path
            if cluster_id != first_id:
                raise ReplicaSetError(
                    "the directories belong to different clusters",
                    expected=f"{first_id!r:.100} as in {first_path}",
                    found=f"{cluster_id!r:.100}",
                    paths=[os.fspath(first_path), os.fspath(directory.path)],
                )


def _check_clones(directories: Iterable[FoundDirectory]) -> None:
    """No two directories have one directory id or one node, in their identity or in their
    members.
    """
    for kind in ("directory id", "node"):
        claims: dict[object, list[str]] = {}
        for directory in directories:
            claims.setdefault(_claim_of(directory, kind), []).append(os.fspath(directory.path))
        for value, paths in claims.items():
            if value is not None and len(paths) > 1:
                count = "two" if len(paths) == 2 else len(paths)
                raise ReplicaSetError(
                    f"{count} directories have one {kind}: one is a copy of the other, or was set "
                    "up alone",
                    found=value,
                    paths=paths,
                )


def _claim_of(directory: FoundDirectory, kind: str) -> object:
    """The node or the directory id of a directory, of which its two files must agree. Raises
    ReplicaSetError.
    """
    claims = set[object]()
    if directory.meta is not None:
        meta = directory.meta
        claims.add(meta.node_id if kind == "node" else meta.directory_id)
    if directory.membership is not None:
        own = directory.membership.own
        claims.add(own.node if kind == "node" else own.directory_id)
    claims.discard(None)
    if len(claims) > 1:
        raise ReplicaSetError(
            f"the {kind} in meta.properties is not the one in {REPLICAS}",
            path=directory.path,
            found=" and ".join(sorted(map(str, claims))),
            paths=[os.fspath(directory.path)],
        )
    return next(iter(claims), None)


def check_one_set(directories: Iterable[FoundDirectory]) -> None:
    """Raises ReplicaSetError unless all directories that have members are of one set."""
    memberships = {
        directory.path: directory.membership
        for directory in directories
        if directory.membership is not None
    }
    if not memberships:
        return
    for (path, one), (other_path, other) in combinations(memberships.items(), 2):
        if _has_retired(one, other) and _has_retired(other, one):
            raise ReplicaSetError(
                "the directories belong to two sets: each one has retired a member of the other "
                "one by force; open those of one set only",
                path=other_path,
                expected=_nodes(one),
                found=_nodes(other),
                paths=[os.fspath(path), os.fspath(other_path)],
            )
    newest_path, newest = max(memberships.items(), key=lambda item: _age(item[1]))
    unlinked = {
        path: own
        for path, own in memberships.items()
        if own.cluster_generation == newest.cluster_generation
    }
    linked: list[Membership] = []
    reached = [newest_path]
    while reached:
        linked += [unlinked.pop(path) for path in reached]
        reached = [
            path
            for path, own in unlinked.items()
            if any(_names(own, member) or _names(member, own) for member in linked)
        ]
    for path, own in memberships.items():
        if own.cluster_generation == newest.cluster_generation:
            if path in unlinked:
                raise ReplicaSetError(
                    "the directories belong to two sets: neither one names the other as a member",
                    path=path,
                    expected=_nodes(newest),
                    found=_nodes(own),
                    paths=[os.fspath(newest_path), os.fspath(path)],
                )
        elif not any(_names(member, own) for member in linked):
            raise ReplicaSetError(
                "the directory belongs to another generation of the set",
                path=path,
                expected=newest.cluster_generation,
                found=own.cluster_generation,
                paths=[os.fspath(path)],
            )


def is_beside(own: Membership, others: Iterable[tuple[Membership, Path]]) -> bool:
    """Whether a directory has recorded one of these other members at the path where it is, or at
    one to the same directory.

    False for a directory of the set from which all the others were copied.
    """
    recorded_paths = {
        (member.node, member.directory_id): Path(member.path)
        for member in own.members
        if member.node != own.node
    }
    pairs = list[tuple[Path, Path]]()
    for membership, path in others:
        recorded = recorded_paths.get((membership.node, membership.own.directory_id))
        if recorded is not None:
            pairs.append((recorded, path))
    if any(recorded == path for recorded, path in pairs):
        return True
    return any(is_same_directory(recorded, path) for recorded, path in pairs)


def is_same_directory(path: Path, other_path: Path) -> bool:
    """Whether two paths lead to the same directory."""
    try:
        facts = files.lstat(files.real_path(path))
        other_facts = files.lstat(files.real_path(other_path))
    except EmbedlogError:
        return False
    if facts is None or other_facts is None:
        return False
    return (facts.device, facts.inode) == (other_facts.device, other_facts.inode)


def _age(membership: Membership) -> tuple[bool, int, int]:
    """The order of the members of several directories: the highest are the newest ones."""
    return (
        membership.registered_id is not None,
        membership.cluster_generation,
        membership.generation,
    )


def _names(membership: Membership, named: Membership) -> bool:
    """Whether the members of a directory have another directory."""
    own = named.own
    return any(
        (member.node, member.directory_id) == (own.node, own.directory_id)
        for member in membership.members
    )


def _has_retired(one: Membership, other: Membership) -> bool:
    """Whether the set of one directory has retired a member that another directory has."""
    nodes = {each.node for each in one.members}
    highest = max(one.highest_node, *nodes)
    return any(each.node not in nodes and each.node <= highest for each in other.members)


def _nodes(membership: Membership) -> str:
    return "nodes " + ", ".join(str(member.node) for member in membership.members)


def _check_members_of(checked: CheckedSet, newest: Membership) -> None:
    """Raises ReplicaSetError for another directory in the place of a member, and for directories of
    other sets.
    """
    members = {member.node: member for member in newest.members}
    for directory in checked.directories:
        if directory.membership is None:
            continue
        own = directory.membership.own
        member = members.get(own.node)
        if member is not None and member.directory_id != own.directory_id:
            raise ReplicaSetError(
                f"another directory is node {own.node} of the set",
                path=directory.path,
                expected=f"directory id {member.directory_id}",
                found=own.directory_id,
                paths=[os.fspath(directory.path), member.path],
            )
    check_one_set(checked.directories)
