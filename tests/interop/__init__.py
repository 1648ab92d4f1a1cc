"""Tests of files and groups shared with a real Kafka."""
