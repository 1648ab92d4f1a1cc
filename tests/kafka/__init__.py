"""A real Apache Kafka as the judge of our files."""

# The golden log directories (tests/data/README.md): one was shut down in order, the other's broker was killed.
CLEAN = ("clean", "clean-4.4.0")
UNCLEAN = ("unclean", "unclean-4.4.0")
GOLDEN = (*CLEAN, *UNCLEAN)
