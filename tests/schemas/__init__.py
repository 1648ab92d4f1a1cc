"""Tests of serializers with schemas, and of the registry."""
