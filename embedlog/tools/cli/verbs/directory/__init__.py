"""Verbs about the files of a directory, each in a module of its own."""
