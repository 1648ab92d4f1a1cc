"""Tests of files, locks and the small files of a log directory."""
