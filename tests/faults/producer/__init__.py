"""Idempotent producers under errors and kill -9."""
