"""Tests of callbacks and interceptors."""
