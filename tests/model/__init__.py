"""Tests of the executable model of the protocol."""
