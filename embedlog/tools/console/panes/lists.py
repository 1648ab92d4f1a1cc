"""Contains the tabs of transactions, replicas, settings and processes.

The thread of the screen calls `work`. What that returns runs in a reader's thread, so `work` first
copies what it needs of the tab into local variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding

import embedlog
from embedlog.tools.console.model import changes, observe
from embedlog.tools.console.model.reader import Task
from embedlog.tools.console.panes.pane import GridsPane


class TransactionsPane(GridsPane):
    """Transactional ids, and open transactions."""

    NAME = "transactions"
    LABEL = "Transactions"
    CHANGES = frozenset({"abort"})
    SHORT = "Txns"
    SECTIONS = 2
    BINDINGS: ClassVar[list[Binding]] = [Binding("a", "abort", "abort")]

    def work(self) -> Callable[[Task], Any]:
        now_ms = self.console.now_ms()
        return lambda task: observe.transactions(task.log, now_ms)

    def action_abort(self) -> None:
        row = self.selected
        if row is None:
            return
        name = row.value
        question = f"Abort the transaction of {name}?\nIts producer is fenced: it cannot continue."
        abort = changes.abort_transaction(name)  # called after the confirmation
        self.confirm(question, name, abort)


class ReplicasPane(GridsPane):
    """Directories, replicas, warnings and decisions."""

    NAME = "replicas"
    LABEL = "Replicas"
    SECTIONS = 3
    BINDINGS: ClassVar[list[Binding]] = [Binding("i", "internal", "internal")]

    def __init__(self) -> None:
        super().__init__()
        self._internal = False

    def work(self) -> Callable[[Task], Any]:
        internal = self._internal
        return lambda task: observe.replicas(task.log, internal=internal)

    def action_internal(self) -> None:
        self._internal = not self._internal
        self.console.observe()


class SettingsPane(GridsPane):
    """The settings of topics."""

    NAME = "settings"
    LABEL = "Settings"
    BINDINGS: ClassVar[list[Binding]] = [Binding("o", "own", "own only")]

    def __init__(self) -> None:
        super().__init__()
        self._own_only = False

    def work(self) -> Callable[[Task], Any]:
        own_only = self._own_only
        return lambda task: observe.settings(task.log, own_only=own_only)

    def action_own(self) -> None:
        self._own_only = not self._own_only
        self.console.observe()


class ProcessesPane(GridsPane):
    """The processes that have the directory open."""

    NAME = "processes"
    LABEL = "Processes"
    SHORT = "Procs"

    def work(self) -> Callable[[Task], Any]:
        paths = self.console.paths
        return lambda task: observe.processes(paths, embedlog.processes)
