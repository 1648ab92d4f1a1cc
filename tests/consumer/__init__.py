"""Tests of the consumer."""
