"""Topics as files and files as topics: parquet, Arrow IPC, JSON lines, CSV.

Each step survives a kill: a file is complete or absent, and an import stores its position in the
transaction of its records.
"""
