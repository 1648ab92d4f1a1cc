"""Tests of topics, groups, backup."""
