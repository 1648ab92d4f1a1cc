"""The decision log of a set: its copies in the directories, promises, and decisions on a majority
of the copies.

It must not know leaders, or partitions of topics. It makes no decision of its own:
`embedlog.replicas.rules` does.
"""
