"""Defines the options of topics, log directories, producers and consumers.

Each option is defined once: name, type, default, bounds, documentation. The package must not know where options are used.
Exports: `topic` (TopicConfig, LogConfig), `client` (ProducerConfig, ConsumerConfig), `options` (the definition of an option),
`keywords` (checks of keyword arguments), `typed_options` (the same options as typed dictionaries, generated).
"""
