"""Checks the files of a log, and repairs those of a closed one.

It knows files and their formats. It must not know open logs, locks and clients. It exports
`report`, `directory_check`, `partition_check` and `partition_repair`.
"""
