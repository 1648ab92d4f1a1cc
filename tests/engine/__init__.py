"""Tests of open logs."""
