"""The Arrow schema of a scan of all columns."""

from __future__ import annotations

import pyarrow

HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
SCHEMA = pyarrow.schema(
    [
        ("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("ms", "UTC")),
        ("timestamp_type", pyarrow.int8()),
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("headers", pyarrow.list_(HEADER)),
        ("leader_epoch", pyarrow.int32()),
    ]
)
