"""Kafka's binary formats: record batches, compression, producer snapshots, transaction indexes,
wire fields.

Functions of bytes and numpy arrays. The package opens no file, takes no lock and knows no
partition. Exports: `record_batch`, `encoder`, `decoder`, `compression`, `wire`, `producer_state`,
`aborted_transactions` and others.
"""
