"""Tests of the Spark data source."""
