"""Victims, their tasks, self-describing values, and steps of an interleaving: the parts that all
experiments use.
"""
