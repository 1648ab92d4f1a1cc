"""Compares embedlog with other logs, queues and stores: the same workloads, interleaved, each turn
in a process of its own.

    python -m benchmarks.race [--only GROUP] [--peer NAME] [--scale quick|default|full] [--rounds N]
    [--every-kind] [--json FILE] python -m benchmarks.race --pages      writes the page and its
    plots anew from the kept results, without a run

C1  all peers of a workload run in the same minutes, in alternation, each turn in a new process C2
every peer appends the same values, which are read from one file; the records of each store are
counted C3  a store that is read was verified before: the number and the checksum of all values in
order C4  equal promises are compared: durable with durable, page cache with page cache; checksums
are named C5  each peer has its sensible fast settings, which the page names C6  a workload that a
peer cannot do is shown with the reason, and a missing peer with the command that installs it C7
the page shows medians with least and most, and its first table is what embedlog loses
"""
