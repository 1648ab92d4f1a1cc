"""The sink of `format("embedlog")`, with things that happen in between (`sparking`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from embedlog._native import system
from pyspark_embedlog import DefaultSource
from tests.faults.spark.sparking import CALL, happen


class FaultySink(DefaultSource):
    """Options are those of the sink, and `plan`."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (Spark's name)
        from embedlog.spark.sink import stream_writer

        options = {name: text for name, text in self.options.items() if name.lower() != "plan"}
        return FaultyWriter(stream_writer(options, schema), self.options["plan"])


class FaultyWriter(DataSourceStreamArrowWriter):
    """A writer with faults."""

    def __init__(self, real: Any, plan: str) -> None:
        self.real = real
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> Any:
        happen(self.plan, "task-begins")
        message = self.real.write(self._interrupted(iterator))
        happen(self.plan, "task-ends")
        return message

    def _interrupted(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            happen(self.plan, "task-reads")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        happen(self.plan, "commit-begins")
        happen(self.plan, CALL)
        try:
            self.real.commit(messages, batchId)
        finally:
            system.fault_off()
        happen(self.plan, "commit-ends")

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self.real.abort(messages, batchId)
