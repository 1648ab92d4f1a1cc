"""Compaction of one partition: which records stay (`rules`), one pass (`cleaner`), replacement of
segments (`swap`).
"""
