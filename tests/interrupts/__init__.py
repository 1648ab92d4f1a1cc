"""Ctrl-C at every instruction of every public verb: what others need is free afterwards, and
nothing is lost or doubled.
"""
