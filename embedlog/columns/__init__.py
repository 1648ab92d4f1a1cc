"""Contains the input and output of records as Arrow and numpy columns.

The package reads partitions in bulk (`scan`) and turns columns into batches (`ingest`). It must not
know producers, consumers or groups. Exports: `scan.Scan`, `scan.Split`, `batch.Batch`, `ingest`,
`chunks`, `readahead`.
"""
