"""The micro-benchmarks run: each call once, with the checks of its benchmark. `--benchmark-disable`
measures nothing.
"""

from __future__ import annotations

from benchmarks.test_micro import *  # noqa: F403  (its tests and fixtures)
