"""Tests of one partition."""
