"""A state machine of the whole public API, judged by a small model of Kafka's semantics."""
