"""The producer: from `send()` to batches in partitions.

The modules have the names of Kafka's client: accumulator, sender, transaction manager. The package
does not know consumers, administration or asyncio. Exports: `producer.Producer`.
"""
