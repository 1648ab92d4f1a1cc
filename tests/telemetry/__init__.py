"""Tests of log messages and metrics."""
