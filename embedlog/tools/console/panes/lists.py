"""Contains the tabs of transactions, replicas, settings and processes."""

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
        self.confirm(question, name, changes.abort_transaction(name))


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
