"""Tests of Kafka's documented behaviour, sentence by sentence."""
