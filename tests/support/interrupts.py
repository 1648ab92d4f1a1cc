"""Ctrl-C at every point where the interpreter looks for signals."""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

import pytest

# after these it looks
LOOKS = {dis.opmap[name] for name in ("CALL", "RESUME", "JUMP_BACKWARD") if name in dis.opmap}
OF_THIS_INTERPRETER = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the points are those of its byte code"
)


class Interrupt:
    """Does `action`, by default KeyboardInterrupt, at the nth such point of `call` in modules with
    these file names.

    `struck` is the place, None if it has fewer points.
    """

    def __init__(
        self, nth: int, modules: Collection[str], action: Callable[[], object] | None = None
    ) -> None:
        self._left = nth
        self._modules = modules
        self._action = action
        self.struck: tuple[str, int] | None = None

    def run(self, call: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _: str, __: Any) -> Any:
        code: CodeType = frame.f_code
        if os.path.basename(code.co_filename) not in self._modules:
            return None
        frame.f_trace_opcodes = True
        last = [-1]

        def step(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                looked = last[0] in LOOKS
                last[0] = code.co_code[frame.f_lasti]
                if looked and self.struck is None:
                    self._left -= 1
                    if self._left == 0:
                        self._strike(frame)
            return step

        return step

    def _strike(self, frame: FrameType) -> None:
        self.struck = (frame.f_code.co_name, frame.f_lineno)
        if self._action is None:
            raise KeyboardInterrupt
        sys.settrace(None)
        self._action()


def within(seconds: float, call: Callable[[], object]) -> None:
    """The call must end in that time; it runs on another thread, which would otherwise stop the
    test. Raises its exception.
    """
    problems: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as problem:  # noqa: BLE001  (raised below)
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the call does not end"
    for problem in problems:
        raise problem
