"""Defines the options of topics, log directories, producers and consumers.

Each option is defined once: name, type, default, bounds, documentation. The package must not know
where options are used. Exports: `topic` (TopicConfig, LogConfig), `client` (ProducerConfig,
ConsumerConfig), `options` (the definition of an option) and `keywords` (checks of keyword
arguments). `typed_options` has the same options as typed dictionaries, and is generated.
"""
