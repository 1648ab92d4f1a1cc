"""Progress bars for long work, in terminals and notebooks (extra `progress`)."""

from embedlog.progress.bars import Advance, bar

__all__ = ["Advance", "bar"]
