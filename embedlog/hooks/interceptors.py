"""Contains the chain of interceptors that producers and consumers share.

- Interceptors run in the order of the list; each one gets the result of the one before.
- If an interceptor raises, or its result is refused by the check, this is logged and the last good
  item continues.
- A failure never keeps the other interceptors from being called; only exceptions of signals are
  raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from embedlog.errors import ConfigError
from embedlog.hooks import callbacks

if TYPE_CHECKING:
    import logging

T = TypeVar("T")


class InterceptorChain:
    """The `interceptor.classes` of one client. `methods` are those that it calls; each interceptor
    has at least one of them.
    """

    def __init__(
        self, interceptors: Iterable[Any], methods: tuple[str, ...], logger: logging.Logger
    ) -> None:
        self.all = [_make_interceptor(entry, methods) for entry in interceptors]
        self._logger = logger
        self._having = {
            name: [interceptor for interceptor in self.all if _has(interceptor, name)]
            for name in (*methods, "close")
        }

    def has(self, method: str) -> bool:
        """Whether any interceptor has this method."""
        return bool(self._having[method])

    def transform(self, method: str, item: T, check: Callable[[Any], T], subject: str = "") -> T:
        """The item after the last interceptor. `check` returns a result that is allowed and raises
        for any other.
        """
        for interceptor in self._having[method]:
            try:
                item = check(getattr(interceptor, method)(item))
            except BaseException as error:  # whatever the user's code raises: the item continues
                if callbacks.is_interrupt(error):
                    raise
                self._report(method, interceptor, subject)
        return item

    def notify(self, method: str, *arguments: object) -> None:
        """Calls the method of every interceptor that has it."""
        for interceptor in self._having[method]:
            self._notify(interceptor, method, *arguments)

    def _notify(self, interceptor: Any, method: str, *arguments: object) -> None:
        try:
            getattr(interceptor, method)(*arguments)
        except BaseException as error:  # whatever the user's code raises: the others are called
            if callbacks.is_interrupt(error):
                raise
            self._report(method, interceptor)

    def close(self) -> None:
        """Closes every interceptor that has a method `close`, once; after an interrupt the next
        call closes the rest.
        """
        to_close = self._having["close"]
        while to_close:
            self._notify(to_close[0], "close")
            del to_close[:1]

    def _report(self, method: str, interceptor: object, subject: str = "") -> None:
        callbacks.log_exception(
            self._logger, "%s of the interceptor %r failed%s", method, interceptor, subject
        )


def _has(interceptor: object, method: str) -> bool:
    return callable(getattr(interceptor, method, None))


def _make_interceptor(entry: Any, methods: tuple[str, ...]) -> Any:
    """The interceptor itself; a class is called without arguments."""
    interceptor = entry() if isinstance(entry, type) else entry
    if not any(_has(interceptor, name) for name in methods):
        raise ConfigError(
            "interceptor.classes",
            expected=f"objects or classes with {' or '.join(methods)}",
            found=repr(entry),
        )
    return interceptor
