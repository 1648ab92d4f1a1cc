"""Tests of `embedlog.partition.replication`."""
