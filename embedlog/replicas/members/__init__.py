"""The directories of a set: who belongs to it, who is away, who joins, leaves or is replaced.

`membership` has the file of members, and `judgement` says which directories continue.
`registration` registers those that are opened, and `set_members` keeps the open ones.
`directory_workers` makes calls into a directory, so that a disk that hangs stops no caller.
"""
