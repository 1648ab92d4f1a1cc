"""Tests of the project itself: package, documents, style, dependency directions."""
