"""Tests of the directory, groups and transactions."""
