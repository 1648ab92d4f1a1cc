"""Tests of mirrors between logs."""
