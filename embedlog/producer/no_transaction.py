"""Replaces the transaction state of a producer that has no transactional.id; such a producer does
not import the real one.
"""

from __future__ import annotations

from typing import Any, NoReturn

from embedlog.errors import InvalidTransactionStateError


class NoTransaction:
    """Has the calls of `transaction_manager.TransactionManager`."""

    has_failed = False
    opener = None

    def check_send(self) -> None:
        """Always allowed."""

    def note_failure(self, error: BaseException) -> None:
        """No state."""

    def close(self, timeout_s: float | None) -> None:
        """No transaction."""

    def leave(self) -> None:
        """No transaction."""

    def init(self) -> NoReturn:
        raise InvalidTransactionStateError("transactions need a producer with a transactional.id")

    commit = abort = init

    def begin(self, opener: object = None) -> NoReturn:
        self.init()

    def abort_after_failure(self, problem: BaseException) -> BaseException:
        """No transaction."""
        return problem

    def send_offsets(self, offsets: Any, group: Any) -> NoReturn:
        self.init()
