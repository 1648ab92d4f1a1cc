"""The chain of interceptors: order, failures, signals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from embedlog.errors import ConfigError
from embedlog.hooks.interceptors import InterceptorChain

LOGGER = logging.getLogger("embedlog.tests")


class Adding:
    def __init__(self, text: str = "+") -> None:
        self.text = text
        self.closed = 0

    def change(self, item: str) -> str:
        return item + self.text

    def close(self) -> None:
        self.closed += 1


class Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def change(self, *arguments: object) -> Any:
        raise self.error

    hear = close = change


def chain(*given: Any) -> InterceptorChain:
    return InterceptorChain(given, ("change", "hear"), LOGGER)


def text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError("a text")
    return item


def test_each_gets_the_result_of_the_one_before() -> None:
    assert chain(Adding("a"), Adding, Adding("b")).transform("change", "", text) == "a+b"


@pytest.mark.parametrize("error", [ValueError("x"), BaseException("x"), TypeError("x")])
def test_a_failure_is_logged_and_the_last_good_item_goes_on(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    made = chain(Adding("a"), Raising(error), Adding("b"))
    assert made.transform("change", "", text, " on this") == "ab"
    assert "change of the interceptor" in caplog.text
    assert "failed on this" in caplog.text
    assert caplog.records[0].exc_info is not None


def test_a_result_that_the_check_refuses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing(Adding):
        def change(self, item: str) -> Any:
            return None

    assert chain(Nothing(), Adding("b")).transform("change", "", text) == "b"
    assert "a text" in caplog.text


def test_one_that_raises_keeps_no_other_from_being_closed(caplog: pytest.LogCaptureFixture) -> None:
    last = Adding()
    made = chain(Raising(ValueError("x")), last)
    made.close()
    made.notify("hear", "an event", "a second argument")
    assert last.closed == 1
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["close", "hear"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_a_signal_raises_leaves_the_call(error: BaseException) -> None:
    made = chain(Raising(error))
    with pytest.raises(type(error)):
        made.transform("change", "", text)
    with pytest.raises(type(error)):
        made.close()


def test_a_handler_of_the_log_that_raises_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOGGER, "exception", Raising(OSError("full")).change)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    assert chain(Raising(ValueError("x"))).transform("change", "a", text) == "a"


@pytest.mark.parametrize(
    "given", [object(), print, type("Empty", (), {}), type("NotCallable", (), {"change": 1})]
)
def test_an_object_without_a_method_of_the_client_is_refused(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"interceptor\.classes: expected objects or classes with change or hear"
    ):
        chain(given)


def test_it_is_known_which_methods_there_are() -> None:
    made = chain(Adding())
    assert made.has("change")
    assert not made.has("hear")
