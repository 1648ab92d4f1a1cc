"""Tests of several threads at the same time, which matter most without the GIL."""
