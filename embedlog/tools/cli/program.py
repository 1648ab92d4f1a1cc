"""Runs the command line and turns its result into an exit status.

- Statuses: 0 done, 1 nothing found or not done, 2 refused, 130 interrupted, 141 the reader of the
  output has ended.
- An error is one line on standard error; `--debug` shows the traceback. Without a verb, that is the
  help.
- The calling process may have closed a standard stream: Python has None in its place. A closed
  input is an error when it is read, a closed error output drops messages, and a closed output is
  refused.
- Garbage collections are rarer than in other programs: those of a short run find nothing. The end
  makes none: it would visit all that was imported.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence

from embedlog.tools.cli.option_words import text_in_options
from embedlog.tools.cli.terminal import protect, tell, tell_traceback

OK = 0
NOT_DONE = 1
REFUSED = 2
INTERRUPTED = 130
NO_READER = 141
ALLOCATIONS = 50_000  # between two garbage collections


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process; returns the exit status."""
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    if arguments is None:
        atexit.register(gc.freeze)
    if not _prepare_streams():
        tell("embedlog: standard output is closed: give it a file, or /dev/null")
        return NOT_DONE
    try:
        import click  # noqa: F401
    except ImportError:
        tell("embedlog: the command line needs click and rich: pip install 'embedlog[cli]'")
        return REFUSED
    return _run(arguments)


def _prepare_streams() -> bool:
    """Replace closed streams; False if the output is closed. Control characters reach no terminal.

    Their descriptors are occupied before any file is opened: a log file as descriptor 1 would get
    what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()))
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it is open until the process ends)
    if sys.stdout is None:
        return False
    protect()
    return True


class _ClosedInput(io.RawIOBase):
    """An input whose use is an error."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("standard input is closed")

    def readinto(self, buffer: object) -> int:
        raise OSError("standard input is closed")


def _run(arguments: Sequence[str] | None) -> int:
    import click

    import embedlog
    from embedlog.tools.cli.commands import program
    from embedlog.tools.cli.invocation import Invocation, NoReader

    invocation = Invocation()
    try:
        status = program.main(
            arguments, prog_name="embedlog", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
        return OK if status is None else int(status)
    except (NoReader, BrokenPipeError):
        with open(os.devnull, "wb") as nothing:
            # the interpreter flushes standard output once more at its end
            os.dup2(nothing.fileno(), 1)
        return NO_READER
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        # absent in 8.1, which prints the help itself
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            error.show()
            return REFUSED
        if invocation.debug:
            tell_traceback()
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f" ({error.ctx.command_path} --help lists the options)"
        tell(f"embedlog: {' '.join(error.format_message().split())}{hint}")
        return REFUSED
    except (embedlog.EmbedlogError, OSError) as error:
        if invocation.debug:
            tell_traceback()
        tell(f"embedlog: {text_in_options(error)}")
        return REFUSED if isinstance(error, _refusals()) else NOT_DONE


def _refusals() -> tuple[type[Exception], ...]:
    """Errors of the request or of the installation: the same command line fails again."""
    import embedlog

    return (
        embedlog.ConfigError,
        embedlog.DirectoryInUseError,
        embedlog.ForeignDirectoryError,
        embedlog.InvalidGroupIdError,
        embedlog.InvalidPartitionsError,
        embedlog.InvalidReplicaAssignmentError,
        embedlog.InvalidReplicationFactorError,
        embedlog.InvalidTopicError,
        embedlog.MissingExtraError,
        embedlog.PolicyViolationError,
        embedlog.ReadOnlyError,
        embedlog.ReplicaSetError,
        embedlog.UnsupportedFilesystemError,
        embedlog.UnsupportedFormatError,
    )
