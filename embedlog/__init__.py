"""embedlog: Kafka's log as an embedded library.

This is the front door: everything public is named in `__all__`, and every other name is ours to change.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
