"""Waiting for records, notices and changes of the topics, on the futex words of control pages; and
looking without a wait.

- A wait of the main thread is divided into slices of at most 100 ms, so that Ctrl-C and SIGTERM are
  handled.
- A wait may spin before it sleeps, until a time of its caller: it needs no wake then, and takes a
  processor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from embedlog._native.calls import TIMED_OUT, boot_ns, ffi, lib
from embedlog._native.system import Page

WAIT_COMMITTED = 1
WAIT_UNCOUNTED = 2
# of `page_word_kind`
DATA_WORD = lib.EL_DATA_WORD
LOCK_WORD = lib.EL_LOCK_WORD
NOTICE_WORD = lib.EL_NOTICE_WORD
NOTICES_MAX: Final[int] = lib.EL_NOTICES_MAX
DIRECTORIES_MAX: Final[int] = lib.EL_DIRECTORIES_MAX
NOT_FOLLOWED: Final = -1  # the wait ignores the topics
# main thread: a signal ends the sleep, unless it arrived just before
MAIN_THREAD_SLICE_NS: Final = 100_000_000
OTHER_THREAD_SLICE_NS: Final = 1_000_000_000  # other threads: they run no signal handlers


def page_word_kind(position: int) -> int:
    """The kind of futex word at this byte of a control page."""
    return int(lib.el_page_word_kind(position))


def _is_changed(
    directories: Sequence[tuple[Page, int]], notices: Sequence[tuple[Page, int]]
) -> bool:
    """Whether a topics word or a notice word differs from the given value."""
    for page, topics in directories:
        if topics >= 0 and page.topics() != topics:
            return True
    return any(page.notice() != notice for page, notice in notices)


class Waiter:
    """Sleeps until a page publishes more than a given offset; `wake` from any thread ends it early.

    Threads: `wait` from one at a time, `wake` from any.
    """

    def __init__(self) -> None:
        self._word = ffi.new("uint32_t *")
        self._directories = ffi.new("el_watched_directory[]", DIRECTORIES_MAX)
        self.spin_until_ns = 0  # boot clock: until then `wait` does not sleep

    def wait(
        self,
        tails: Sequence[tuple[Page, int]],
        committed: bool,
        directories: Sequence[tuple[Page, int]],
        deadline_ns: int,
        notices: Sequence[tuple[Page, int]] = (),
    ) -> int:
        """Index of a tail that is ready; len(tails) if woken otherwise; TIMED_OUT at the deadline.

        `directories` has the pages of all directories of the tails, at most DIRECTORIES_MAX. With
        each is the value of its `Page.topics` before the caller last read the topics, or
        NOT_FOLLOWED. `notices` has values of `Page.notice` for at most NOTICES_MAX pages, each read
        before the data that it announces.
        """
        watched_notices = ffi.new("el_notice[]", [(page.raw, notice) for page, notice in notices])
        buffer = ffi.new("el_tail[]", [(page.raw, offset) for page, offset in tails])
        shared = self._directories
        for at, (page, topics) in enumerate(directories):
            watched = shared[at]
            watched.page = page.raw
            watched.topics = topics
        is_uncounted = any(
            page.locked or not page.writable for page, _ in (*tails, *directories)
        ) or any(page.locked for page, _ in notices)
        flags = 0
        if committed:
            flags |= WAIT_COMMITTED
        if is_uncounted:
            flags |= WAIT_UNCOUNTED
        if threading.get_ident() == threading.main_thread().ident:
            slice_ns = MAIN_THREAD_SLICE_NS
        else:
            slice_ns = OTHER_THREAD_SLICE_NS
        arguments = (
            buffer,
            len(tails),
            watched_notices,
            len(notices),
            shared,
            len(directories),
            flags,
            self._word,
        )
        while True:
            now_ns = boot_ns()
            until_ns = min(deadline_ns, now_ns + slice_ns)
            if self.spin_until_ns > now_ns:
                code = int(lib.el_spin(*arguments, min(until_ns, self.spin_until_ns)))
            else:
                code = int(lib.el_wait(*arguments, until_ns))
            if (
                code == len(tails)
                and not lib.el_is_woken(self._word)
                and not _is_changed(directories, notices)
            ):
                code = TIMED_OUT
            if code != TIMED_OUT or boot_ns() >= deadline_ns:
                return code

    def wake(self) -> None:
        lib.el_wake(self._word)

    def reset(self) -> None:
        lib.el_wake_reset(self._word)


class Looks:
    """Control pages as they are now, to learn later, in one call, whether any of them has published
    since. Threads: any.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = tuple(pages)  # which stay mapped
        self._looks = ffi.new(
            "el_look[]", [(page.raw, lib.el_page_sequence(page.raw)) for page in pages]
        )

    def are_current(self) -> bool:
        return int(lib.el_first_published(self._looks, len(self._pages))) == len(self._pages)
