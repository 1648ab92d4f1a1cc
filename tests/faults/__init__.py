"""Fault injection: processes under remote control, crashes at chosen calls, damaged files, and
checkers of the result.
"""
