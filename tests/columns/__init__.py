"""Tests of scan, batch and ingest."""
