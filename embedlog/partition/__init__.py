"""One partition: append, read, recover, truncate, sync, compact.

The package knows one directory of segments. It does not know topics, groups, clients or other partitions.
Exports: `partition.Partition`, `context.Context`, `tail.Tail`, and the operations that the engine and the housekeeper start.
"""
