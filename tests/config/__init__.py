"""Tests of options, and an experiment for each."""
