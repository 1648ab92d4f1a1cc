"""Tests of checks and repairs of files."""
