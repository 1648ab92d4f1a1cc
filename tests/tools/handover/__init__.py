"""Tests of handing a directory to a broker, without a broker."""
