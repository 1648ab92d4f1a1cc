"""DuckDB, Polars and Arrow, on a set of three directories."""

from tests.columns.test_query_engines import *  # noqa: F403 (its tests and fixtures run again here)
