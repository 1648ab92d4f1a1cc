"""Tests of the command line, the console, and the handover to a broker."""
