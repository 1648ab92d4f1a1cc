"""A real Apache Kafka as the judge of our files."""

# The golden log directories (tests/data/README.md): one was shut down in order, the other's broker
# was killed.
CLEAN = ("clean", "clean-4.4.0", "clean-3.9.1")
UNCLEAN = ("unclean", "unclean-4.4.0", "unclean-3.9.1")
BOTH_PROTOCOLS = CLEAN[:2]  # with a group of Kafka's newer protocol, which Kafka 3 has switched off
GOLDEN = (*CLEAN, *UNCLEAN)
