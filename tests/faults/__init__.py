"""Faults on purpose: processes under remote control, crashes at chosen calls, damaged files, and checkers of what is left."""
