"""Tests of `embedlog.testing`."""
