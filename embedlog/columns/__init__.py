"""Records as Arrow and numpy columns, in and out.

The package reads partitions in bulk (`scan`) and turns columns into batches (`ingest`). It does not know producers, consumers or
groups.
Exports: `scan.Scan`, `batch.Batch`, `splits`, `ingest`, `chunks`, `readahead`.
"""
