"""Tests of serializers with schemas and of their registry."""
