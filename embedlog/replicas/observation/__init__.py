"""What a set shows: directories and replicas without locks, decisions in words, events and their
counters.

It must not decide, lock, or change anything. It exports `answers`, `decision_words`,
`directory_view`, `replica_events` and `topics_words`.
"""
