"""Administration of topics and groups, backup, and housekeeping.

The package uses the engine; the engine does not know it.
Exports: `topics`, `groups`, `backup`, `housekeeper.Housekeeper`.
"""
