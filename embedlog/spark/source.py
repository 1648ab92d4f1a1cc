"""The batch source of `format("embedlog")`: implements Spark's interface by calls to the other
modules of this package.

- Instances run in Spark's planner processes and in its tasks: they can be pickled and hold no open
  log.
- Filters are not pushed down: Spark 4.3 shares pushed filters among all uses of one `load()` and
  returns wrong rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import embedlog
from embedlog.spark import read_plan
from embedlog.spark.columns import arrow_schema, struct_of
from embedlog.spark.error_reports import without_internal_frames
from embedlog.spark.read_options import COLUMNS, ReadSettings, parse, schema_columns
from embedlog.spark.read_task import read
from embedlog.spark.versions import require_pyspark

require_pyspark("the Spark source needs")
from pyspark.sql.datasource import DataSourceReader, InputPartition  # noqa: E402 (older versions lack them)
from pyspark.sql.types import StructType  # noqa: E402


@without_internal_frames
def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a `load()`, for batches and streams alike. Raises ConfigError."""
    return struct_of(schema_columns(options))


def check_schema(struct: StructType) -> None:
    """Check that a user's schema contains columns of the source with their types. Raises
    ConfigError.
    """
    types = {field.name: field.dataType for field in struct_of(tuple(COLUMNS))}
    for field in struct:
        if field.name not in types:
            near = {name.lower(): name for name in types}.get(field.name.lower())
            hint = f"; did you mean {near}?" if near else ""
            raise embedlog.ConfigError(
                f"schema: no column {field.name}{hint}", expected=", ".join(types), found=field.name
            )
        if field.dataType != types[field.name]:
            raise embedlog.ConfigError(
                f"schema: the type of {field.name}; convert it in the query, such as CAST(value "
                "AS STRING)",
                expected=types[field.name].simpleString(),
                found=field.dataType.simpleString(),
            )


class Reader(DataSourceReader):
    """One batch query: its plan and its tasks."""

    def __init__(self, settings: ReadSettings, struct: StructType) -> None:
        self.settings = settings
        self.struct = struct

    @without_internal_frames
    def partitions(self) -> list[InputPartition]:
        """The tasks; Spark calls this once for each `load()`."""
        return [InputPartition(task) for task in read_plan.plan(self.settings)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # Spark's stand-in for an empty plan
            return iter(())
        return read(partition.value, arrow_schema(self.struct))


@without_internal_frames
def reader(options: Mapping[str, str], struct: StructType) -> Reader:
    """Raises ConfigError."""
    check_schema(struct)
    return Reader(parse(options, stream=False), struct)
