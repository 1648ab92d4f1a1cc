"""Tests of the demo program."""
