"""The clients for asyncio.

They run the synchronous clients on threads and deliver results in the event loop. The package does
not use files or partitions. Exports: `producer.AsyncProducer`, `consumer.AsyncConsumer`.
"""
