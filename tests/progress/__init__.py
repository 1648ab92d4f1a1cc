"""Tests of the progress bars."""
