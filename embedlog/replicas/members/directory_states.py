"""The state of each directory of a set in this process: its standing, and the reason why it is away.

A directory stands where its opening has come to. Only `DirectoryStates` changes it:

| standing | the process holds its locks | its copy of the decision log is attached | its opening is registered |
| --- | --- | --- | --- |
| AWAY | no | no | – |
| ENTERED | yes | no: it may be a stranger | no |
| ATTACHED | yes | yes | no |
| REGISTERED | yes | yes | yes |

| change | by | when |
| --- | --- | --- |
| AWAY to ENTERED | `enter` | the locks are taken |
| ENTERED to ATTACHED | `attach` | it continues; a directory that replaces another one stays entered |
| ATTACHED or ENTERED to REGISTERED | `register` | a decision has its opening |
| any to AWAY | `leave` | it is a stranger, has failed, has left the set, or is opened again |

- A reader registers nothing: its directories stay attached. So do those of a set without a majority.
- What outlasts an opening belongs to the node, and stays in the state of a directory that is away:
  that this process had it open, and that a registration has an unknown outcome.
- Whether an open directory works is another question (`OpenDirectory.problem`): one that fails keeps
  its standing until it is opened again.
- A directory tells its node when it is opened. So the reason why one is away belongs to its path.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from embedlog.replicas.members.member_directories import OpenMember


class DirectoryStanding(Enum):
    """What a process may do with a directory: the table of the module."""

    AWAY = "away"
    ENTERED = "entered"
    ATTACHED = "attached"
    REGISTERED = "registered"


class DirectoryState(NamedTuple):
    """The state of the directory of one node. It is replaced as a whole: any thread reads it."""

    standing: DirectoryStanding
    opened: OpenMember | None  # None while it is away
    # the last registration failed, and its records may count
    is_uncertain: bool = False


class AwayDirectory(NamedTuple):
    """What is known of a path at which this process has no directory of the set open. It is kept by
    path and ends with `end_entry`: the standing AWAY, by node, ends a moment earlier with `enter`.
    """

    reason: str = ""  # for the user; empty during its first opening
    # its opening began, and has not ended well: another process may hold its locks, it is no usable
    # directory, or it is being opened now
    is_refused: bool = False


class DirectoryStates:
    """The states of the directories of one open set.

    Threads: any reads. A thread changes them that has the mutex of `SetMembers`, or that opens a
    directory while the holder waits for it.
    """

    def __init__(self) -> None:
        self._states: dict[int, DirectoryState] = {}  # by node
        self._away: dict[str, AwayDirectory] = {}  # by path
        self.openings = 0  # a number that changes after each change of the open directories

    # ---- changes ---------------------------------------------------------------------------------

    def begin_entry(self, path: Path) -> None:
        """The opening of the directory at a path begins: until `enter` it is a refused one."""
        away = self._away.get(str(path), AwayDirectory())
        self._away[str(path)] = away._replace(is_refused=True)

    def enter(self, opened: OpenMember) -> None:
        """The locks of a directory are held. REQUIRES: its node is away."""
        earlier = self._states.get(opened.node)
        is_uncertain = earlier is not None and earlier.is_uncertain
        self._states[opened.node] = DirectoryState(DirectoryStanding.ENTERED, opened, is_uncertain)
        self.openings += 1

    def end_entry(self, path: Path) -> None:
        """The directory at a path is open: nothing is away there."""
        self._away.pop(str(path), None)

    def change(self, opened: OpenMember) -> None:
        """Keep other facts about an open directory. Its standing stays."""
        self._states[opened.node] = self._states[opened.node]._replace(opened=opened)

    def attach(self, node: int) -> None:
        """An open directory continues, and its copy of the decision log is attached."""
        state = self._states[node]
        self._states[node] = state._replace(standing=DirectoryStanding.ATTACHED)

    def doubt(self, nodes: Iterable[int]) -> None:
        """A registration of these directories begins: until its outcome is known, it may count."""
        for node in nodes:
            self._states[node] = self._states[node]._replace(is_uncertain=True)

    def trust(self, nodes: Iterable[int]) -> None:
        """No registration of these directories has an unknown outcome."""
        for node in nodes:
            self._states[node] = self._states[node]._replace(is_uncertain=False)

    def register(self, node: int) -> None:
        """A decision has the opening of an open directory."""
        state = self._states[node]
        self._states[node] = state._replace(
            standing=DirectoryStanding.REGISTERED, is_uncertain=False
        )

    def leave(self, node: int) -> None:
        """A directory is not open any more, if it was."""
        state = self._states.get(node)
        if state is not None:
            self._states[node] = state._replace(standing=DirectoryStanding.AWAY, opened=None)
        self.openings += 1

    def note_away(self, path: Path | str, reason: str) -> None:
        """Keep the reason why there is no open directory at a path."""
        away = self._away.get(str(path), AwayDirectory())
        self._away[str(path)] = away._replace(reason=reason)

    # ---- questions -------------------------------------------------------------------------------

    def open_members(self) -> list[OpenMember]:
        """The open directories, by node."""
        states = self._states.copy()  # one step: another thread may change one meanwhile
        return [state.opened for _, state in sorted(states.items()) if state.opened is not None]

    def open_member(self, node: int) -> OpenMember | None:
        """The open directory of a node; None while it is away."""
        state = self._states.get(node)
        return None if state is None else state.opened

    def require(self, node: int) -> OpenMember:
        """The open directory of a node. REQUIRES that it is open."""
        opened = self._states[node].opened
        assert opened is not None
        return opened

    def standing(self, node: int) -> DirectoryStanding:
        """The standing of the directory of a node."""
        state = self._states.get(node)
        return DirectoryStanding.AWAY if state is None else state.standing

    def open_nodes(self) -> set[int]:
        """The nodes whose directories are open."""
        return {opened.node for opened in self.open_members()}

    def nodes_at(self, standing: DirectoryStanding) -> set[int]:
        """The nodes whose directories stand here."""
        states = self._states.copy()
        return {node for node, state in states.items() if state.standing is standing}

    def was_opened(self, node: int) -> bool:
        """Whether this process has the directory of a node open, or had it open."""
        return node in self._states

    def is_uncertain(self, node: int) -> bool:
        """Whether a registration of a directory failed whose records may count."""
        return node in self._states and self._states[node].is_uncertain

    def uncertain_nodes(self) -> set[int]:
        """The nodes that are `is_uncertain`."""
        states = self._states.copy()
        return {node for node, state in states.items() if state.is_uncertain}

    def reason(self, path: Path | str, default: str) -> str:
        """The reason why there is no open directory at a path."""
        away = self._away.get(str(path))
        return away.reason if away is not None and away.reason else default

    def reasons(self) -> dict[str, str]:
        """The reasons that are known, by path."""
        return {path: away.reason for path, away in self._away.items() if away.reason}

    def refused_paths(self) -> list[Path]:
        """The directories that are there, and could not be opened."""
        return [Path(path) for path, away in self._away.items() if away.is_refused]
