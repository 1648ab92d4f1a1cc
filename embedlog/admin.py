"""Administration: the verbs that make, change and remove topics."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedlog import topic_files
from embedlog.identity import new_id
from embedlog.topic import Topic, TopicRegistry, check_name

if TYPE_CHECKING:
    from embedlog.config import LogConfig


class Admin:
    """Verbs of an open log, for `Log` to inherit. Threads: any."""

    config: LogConfig
    path: Any
    _registry: TopicRegistry

    def _check_writable(self) -> None:
        raise AssertionError("Log has it")

    def _directory_lock(self) -> contextlib.AbstractContextManager[None]:
        raise AssertionError("Log has it")

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, Any] | None = None) -> None:
        """Make a topic."""
        self._check_writable()
        with self._directory_lock():
            self._registry.refresh()
            topic = Topic(
                check_name(name), new_id(), partitions, {key: str(value) for key, value in (config or {}).items()}, "creating"
            )
            self._registry.put(topic)
            topic_files.finish_creation(self.path, self._registry, topic, self.config.file_mode)
