"""Comparison of batches that were read with what their appenders wrote: chain digests, and leader
epochs.

It works for the reader of one partition, and raises CorruptRecordError.
"""
