"""Checks the version of the installed pyspark before the first use, so that an error names the
version that is needed.

Reads and jobs run with each version that the extra `spark` admits. Streams from a log need the
limits of a batch that a later version passes to its sources.
"""

from __future__ import annotations

import re

import embedlog

OLDEST = (4, 1)
OLDEST_FOR_STREAMS = (4, 2)


def require_pyspark(purpose: str, oldest: tuple[int, int] = OLDEST) -> None:
    """Raises MissingExtraError if pyspark is not installed, or is older. `purpose` begins the
    message: "writing needs".
    """
    needed = ".".join(map(str, oldest))
    try:
        from pyspark import __version__ as installed
    except ImportError as missing:
        raise embedlog.MissingExtraError(
            f"{purpose} pyspark {needed} or newer", extra="spark"
        ) from missing
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest:
        upgrade = f'pip install "pyspark>={needed}"'
        raise embedlog.MissingExtraError(
            f"{purpose} pyspark {needed} or newer; found {installed} ({upgrade})", extra="spark"
        )
