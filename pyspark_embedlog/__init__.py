"""Where Spark finds `format("embedlog")`: it imports every top-level module called `pyspark_…` and
takes its `DefaultSource`.

One of them that cannot be imported spoils the search for all, so this one imports nothing but
pyspark; embedlog is imported when the format is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Topics of a log directory, with the schema and the options of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "embedlog"

    def schema(self) -> Any:
        from embedlog.spark.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: Any) -> Any:
        from embedlog.spark.source import reader

        return reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 (Spark's name)
        from embedlog.spark.stream_source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from embedlog.spark.sink import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        from embedlog.spark.sink import stream_writer

        return stream_writer(self.options, schema)
