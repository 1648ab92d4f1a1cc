"""Contains a Ctrl-C that comes at a chosen instruction of a call.

The signal is noted by the interpreter before the nth instruction that looks for signals, as SIGINT
notes it, and the interpreter then raises KeyboardInterrupt by itself. A signal that comes before
another instruction is noticed at the next one that looks. So these points stand for all
instructions, and no exception is raised where none can come. Both numbers are counted.

`sys.monitoring` tells of the instructions where it is present, else a trace function. All functions
in Python are covered, also those of the standard library, in the calling thread, which must be the
main thread.
"""

from __future__ import annotations

import _thread
import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

# The instructions that look, in any version: a signal that is noted before another one comes at the
# next.
NAMES = ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "CALL", "POP_JUMP_BACKWARD", "INSTRUMENTED")
LOOKS = {code for name, code in dis.opmap.items() if name.startswith(NAMES)}
TOOL = 4  # of `sys.monitoring`: none of the numbers with a meaning


class _Signal:
    """`-signal` notes SIGINT without an instruction that looks for signals, so that it comes in the
    code that is traced.
    """

    __neg__ = _thread.interrupt_main


_signal: Any = _Signal()


class Strike:
    """One call with a Ctrl-C at its nth point; with `nth` 0 it only counts.

    `place` is where KeyboardInterrupt was raised, None if the call has fewer points or caught it;
    `has_struck` whether the signal was noted. `kept` is the exception, with its traceback. `result`
    is that of the call if it returned.
    """

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.points = 0
        self.instructions = 0
        self.has_struck = False
        self.place: str | None = None
        self.is_in_the_loop = False  # in asyncio's own functions: its tasks may never run again
        self.kept: BaseException | None = None
        self.result: Any = None
        self._main = threading.get_ident()

    def run(self, call: Callable[[], Any]) -> None:
        """Raises what the call raises, other than KeyboardInterrupt."""
        assert threading.current_thread() is threading.main_thread(), (
            "signals are handled in the main thread"
        )
        try:
            self._start()
            try:
                self.result = call()
            finally:
                self._stop()
                # the signal may have come after the last instruction of the call
                for _ in range(2):
                    pass
        except KeyboardInterrupt as problem:
            self.kept = problem
            self._note_place(problem)

    def _note_place(self, problem: BaseException) -> None:
        trace = problem.__traceback__
        names = []
        while trace is not None:
            code = trace.tb_frame.f_code
            names.append(
                f"{code.co_filename.rpartition('embedlog/')[2]}:{trace.tb_lineno} {code.co_name}"
            )
            if "/asyncio/" in code.co_filename or "/embedlog/" in code.co_filename:
                self.is_in_the_loop = "/asyncio/" in code.co_filename
            trace = trace.tb_next
        if len(names) > 1:
            self.place = " < ".join(names[:0:-1][:4])

    # ---- the instructions: a trace function ----

    def _trace(self, frame: FrameType, _: str, __: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        code = frame.f_code.co_code

        def step(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                self.instructions += 1
                if code[frame.f_lasti] in LOOKS:
                    self.points += 1
                    if self.points == self.nth:
                        self.has_struck = True
                        sys.settrace(None)
                        -_signal
            return step

        return step

    # ---- the instructions: sys.monitoring ----

    def _monitor(self, code: CodeType, offset: int) -> None:
        if threading.get_ident() == self._main and not self.has_struck:
            self.instructions += 1
            if code.co_code[offset] in LOOKS:
                self.points += 1
                if self.points == self.nth:
                    self.has_struck = True
                    -_signal

    def _start(self) -> None:
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            self._before = sys.gettrace()
            sys.settrace(self._trace)
            return
        monitoring.use_tool_id(TOOL, "interrupts")
        monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, self._monitor)
        monitoring.set_events(TOOL, monitoring.events.INSTRUCTION)

    def _stop(self) -> None:
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            sys.settrace(self._before)
            return
        monitoring.set_events(TOOL, 0)
        monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(TOOL)
