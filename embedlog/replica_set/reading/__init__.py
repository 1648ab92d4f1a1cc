"""Reads from replicas in the rack of a consumer (KIP-392).

It exports `nearby_partition.NearbyPartition`. It must not append, commit, or change a decision.
"""
