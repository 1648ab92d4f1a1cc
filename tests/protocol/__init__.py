"""Tests of the protocol between processes, rule by rule."""
