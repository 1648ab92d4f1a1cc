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
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from functools import partial
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
    the last recorded registration, the last one is the present one. Those between them may be
    registered, too: their processes were killed before they recorded it, or reached no majority.
    `births`: the birth time of `embedlog.door` at each of them, or at the opening after the last
    orderly close, as far as it is known; a file of an earlier version has none.
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

    @property
    def own(self) -> Member:
        """The member that this directory is."""
        return next(member for member in self.members if member.node == self.node)

    def with_opening(self, opening: UUID, created_ns: int | None) -> Membership:
        """These members after one more opening of the directory, which has this birth time."""
        kept = self.openings[:1] + self.openings[1:][-(OPENINGS_MAX - 2) :]
        births = (*(self.birth_at(each) for each in kept), created_ns)
        return self._replace(openings=(*kept, opening), births=births)

    def born(self, created_ns: int | None) -> Membership:
        """These members with one birth time at each opening: a copy that was closed in order stands
        for the directory.
        """
        return self._replace(births=tuple(created_ns for _ in self.openings))

    def since_opening(self, opening: UUID | None) -> Membership:
        """These members without the openings before this one, which is registered."""
        if opening not in self.openings:
            return self
        kept = self.openings[self.openings.index(opening) :]
        return self._replace(openings=kept, births=tuple(self.birth_at(each) for each in kept))

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
    generation, rest = _FILE.decode(path, data)
    try:
        cluster_id = _text(rest.pop("cluster_id"))
        node = _number(rest.pop("node"))
        registration_id = _uuid(rest.pop("registration_id"))
        registered = rest.pop("registered_id")
        broker_epoch = rest.pop("broker_epoch")
        alone = rest.pop("alone")
        created_ns = rest.pop("created_ns", None)  # a file of an earlier version has none
        openings = rest.pop("openings", [])  # likewise
        births = rest.pop("births", [])
        replaces = rest.pop("replaces", False)
        cluster_generation = _number(rest.pop("cluster_generation"))
        entries = rest.pop("members")
        if (
            type(broker_epoch) is not int
            or not -1 <= broker_epoch <= LONG_MAX
            or {type(alone), type(replaces)} != {bool}
        ):
            raise ValueError(
                f"broker epoch {broker_epoch!r:.100}, alone {alone!r:.100}, replaces "
                f"{replaces!r:.100}"
            )
        if not all(
            each is None or (type(each) is int and 0 < each <= LONG_MAX)
            for each in (created_ns, *births)
        ):
            raise ValueError(f"created_ns {created_ns!r:.100}, births {births!r:.100}")
        if not isinstance(openings, list) or len(openings) > OPENINGS_MAX:
            raise ValueError(f"openings {openings!r:.100}")
        if not isinstance(entries, list) or not 0 < len(entries) <= MEMBERS_MAX:
            raise ValueError(f"a set has 1 to {MEMBERS_MAX} members")
        members = tuple(
            sorted((_decode_member(entry) for entry in entries), key=lambda member: member.node)
        )
        _check_members(members, node)
        opening_ids = tuple(map(_uuid, openings))
        registered_id = None if registered is None else _uuid(registered)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ForeignDirectoryError(
            f"the members cannot be read ({problem!r:.300}); {_REMEDY}", path=path
        ) from problem
    return Membership(
        cluster_id,
        node,
        registration_id,
        members,
        registered_id,
        broker_epoch,
        alone,
        cluster_generation,
        generation,
        created_ns,
        rest,
        opening_ids,
        replaces,
        tuple(births),
    )


def _decode_member(entry: object) -> Member:
    rest = dict(entry)  # type: ignore[call-overload]
    member = Member(
        node=_number(rest.pop("node")),
        directory_id=_text(rest.pop("directory_id")),
        path=_text(rest.pop("path")),
        rack=rest.pop("rack"),
        voter=rest.pop("voter"),
        replicas=rest.pop("replicas"),
        others=rest,
    )
    id_bytes(member.directory_id)
    if not (member.rack is None or isinstance(member.rack, str)) or {
        type(member.voter),
        type(member.replicas),
    } != {bool}:
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


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.100} is no text")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INT_MAX:
        raise ValueError(f"{value!r:.100} is no number from 0 to {INT_MAX}")
    return value


def _uuid(value: object) -> UUID:
    return UUID(bytes=id_bytes(_text(value)))


# ---- the check of a set --------------------------------------------------------------------------


class Found(NamedTuple):
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

    found: tuple[Found, ...]
    membership: Membership | None

    @property
    def is_registered(self) -> bool:
        """Whether the decision log of the set has a registration."""
        return any(
            each.membership is not None and each.membership.registered_id is not None
            for each in self.found
        )


def check_set(
    paths: Iterable[str | os.PathLike[str]], *, alone: bool = False, at: Call = call_here
) -> CheckedSet:
    """Read and compare the given directories (QUORUM-1). Changes nothing.

    A directory that is missing, damaged or cannot be read is away, not an error. Raises
    ReplicaSetError if one is given twice, if one is a clone, and if they belong to different sets.
    One directory of a larger set is refused, too, unless it is opened `alone`. `at` makes the calls
    about a directory.
    """
    given = [Path(path) for path in paths]
    check_doubles(given, at)
    found = tuple(found_at(path, at) for path in given)
    _check_clusters(found)
    _check_clones(found)
    known = [each.membership for each in found if each.membership is not None]
    newest = max(known, key=_age, default=None)
    checked = CheckedSet(found, newest)
    if newest is not None:
        _check_members_of(checked, newest)
        if len(given) == 1 and not alone:
            check_alone(given[0], newest)
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


def found_in(path: Path) -> Found:
    """What a directory has of its identity and its members; a problem instead of an error."""
    try:
        if not files.is_directory(path):
            return Found(path)  # it can be made, if it is new
        return Found(path, read_meta(path), read(path))
    except EmbedlogError as problem:
        return Found(path, problem=problem)


def found_at(path: Path, at: Call) -> Found:
    """As `found_in`, by a call about the directory. One that does not answer has a problem, too."""
    try:
        return at(path, partial(found_in, path))
    except EmbedlogError as problem:
        return Found(path, problem=problem)


def _real(path: Path) -> tuple[Path, Facts | None]:
    real = Path(files.real_path(path))
    return real, files.lstat(real)


def check_doubles(paths: list[Path], at: Call = call_here) -> None:
    """Raises ReplicaSetError if two paths lead to one directory."""
    places: dict[object, Path] = {}
    for path in paths:
        try:
            real, facts = at(path, partial(_real, path))
        except StorageError as problem:
            if problem.errno != errno.ETIMEDOUT:
                raise
            real = path
            facts = None
        for place in {real, real if facts is None else (facts.device, facts.inode)}:
            if place in places:
                raise ReplicaSetError(
                    "the same directory is given twice",
                    paths=[os.fspath(places[place]), os.fspath(path)],
                )
            places[place] = path


def _check_clusters(found: Iterable[Found]) -> None:
    first: tuple[str, Path] | None = None
    for each in found:
        ids = {each.meta.cluster_id} if each.meta is not None and each.meta.cluster_id else set()
        ids |= {each.membership.cluster_id} if each.membership is not None else set()
        for cluster_id in sorted(ids):
            first = first or (cluster_id, each.path)
            if cluster_id != first[0]:
                raise ReplicaSetError(
                    "the directories belong to different clusters",
                    expected=f"{first[0]!r:.100} as in {first[1]}",
                    found=f"{cluster_id!r:.100}",
                    paths=[os.fspath(first[1]), os.fspath(each.path)],
                )


def _check_clones(found: Iterable[Found]) -> None:
    """No two directories have one directory id or one node, in their identity or in their
    members.
    """
    for kind in ("directory id", "node"):
        claims: dict[object, list[str]] = {}
        for each in found:
            claims.setdefault(_claimed(each, kind), []).append(os.fspath(each.path))
        for value, paths in claims.items():
            if value is not None and len(paths) > 1:
                count = "two" if len(paths) == 2 else len(paths)
                raise ReplicaSetError(
                    f"{count} directories have one {kind}: one is a copy of the other, or was set "
                    "up alone",
                    found=value,
                    paths=paths,
                )


def _claimed(found: Found, kind: str) -> object:
    """The node or the directory id of a directory, of which its two files must agree. Raises
    ReplicaSetError.
    """
    meta = found.meta
    own = None if found.membership is None else found.membership.own
    claims = {getattr(meta, "node_id" if kind == "node" else "directory_id", None)}
    claims |= {getattr(own, "node" if kind == "node" else "directory_id", None)}
    claims -= {None}
    if len(claims) > 1:
        raise ReplicaSetError(
            f"the {kind} in meta.properties is not the one in {REPLICAS}",
            path=found.path,
            found=" and ".join(sorted(map(str, claims))),
            paths=[os.fspath(found.path)],
        )
    return next(iter(claims), None)


def check_one_set(found: Iterable[Found]) -> None:
    """Raises ReplicaSetError unless all directories that have members are of one set."""
    known = {each.path: each.membership for each in found if each.membership is not None}
    if not known:
        return
    first, newest = max(known.items(), key=lambda each: _age(each[1]))
    left = {
        path: own
        for path, own in known.items()
        if own.cluster_generation == newest.cluster_generation
    }
    linked: list[Membership] = []
    reached = [first]
    while reached:
        linked += [left.pop(path) for path in reached]
        reached = [
            path
            for path, own in left.items()
            if any(_names(own, one) or _names(one, own) for one in linked)
        ]
    for path, own in known.items():
        if own.cluster_generation == newest.cluster_generation:
            if path in left:
                raise ReplicaSetError(
                    "the directories belong to two sets: neither one names the other as a member",
                    path=path,
                    expected=_nodes(newest),
                    found=_nodes(own),
                    paths=[os.fspath(first), os.fspath(path)],
                )
        elif not any(_names(one, own) for one in linked):
            raise ReplicaSetError(
                "the directory belongs to another generation of the set",
                path=path,
                expected=newest.cluster_generation,
                found=own.cluster_generation,
                paths=[os.fspath(path)],
            )


def is_beside(found: Membership, others: Iterable[tuple[Membership, Path]]) -> bool:
    """Whether a directory has recorded one of these other members at the path where it is, or at
    one to the same directory.

    False for a directory of the set from which all the others were copied.
    """
    recorded = {
        (each.node, each.directory_id): each.path
        for each in found.members
        if each.node != found.node
    }
    pairs = [(recorded.get((other.node, other.own.directory_id)), path) for other, path in others]
    known = [(Path(text), path) for text, path in pairs if text is not None]
    return any(one == path for one, path in known) or any(is_same(one, path) for one, path in known)


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same directory."""
    try:
        facts = [files.lstat(files.real_path(path)) for path in (one, other)]
    except EmbedlogError:
        return False
    places = [(each.device, each.inode) for each in facts if each is not None]
    return len(places) == 2 and places[0] == places[1]


def _age(membership: Membership) -> tuple[bool, int, int]:
    """The order of the members of several directories: the highest are the newest ones."""
    return (
        membership.registered_id is not None,
        membership.cluster_generation,
        membership.generation,
    )


def _names(one: Membership, other: Membership) -> bool:
    """Whether the members of a directory have another directory."""
    return any(
        (each.node, each.directory_id) == (other.node, other.own.directory_id)
        for each in one.members
    )


def _nodes(membership: Membership) -> str:
    return "nodes " + ", ".join(str(member.node) for member in membership.members)


def _check_members_of(checked: CheckedSet, newest: Membership) -> None:
    """Raises ReplicaSetError for another directory in the place of a member, and for directories of
    other sets.
    """
    members = {member.node: member for member in newest.members}
    for each in checked.found:
        own = each.membership
        member = members.get(own.node) if own is not None else None
        if own is not None and member is not None and member.directory_id != own.own.directory_id:
            raise ReplicaSetError(
                f"another directory is node {own.node} of the set",
                path=each.path,
                expected=f"directory id {member.directory_id}",
                found=own.own.directory_id,
                paths=[os.fspath(each.path), member.path],
            )
    check_one_set(checked.found)
