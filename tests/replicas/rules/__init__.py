"""Tests of decisions about replicas."""
