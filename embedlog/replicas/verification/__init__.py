"""Comparison of the replicas of a partition, and repair of those that are damaged or different.

It knows the replicas and decisions of one set. It must not know the public `Log`. It exports
`verification.Verification`.
"""
