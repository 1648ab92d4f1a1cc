"""Tests of Kafka's binary formats."""
