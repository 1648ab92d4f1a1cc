"""The consumer: subscription, positions, fetches, group membership and commits.

The modules have the names of Kafka's client: fetcher, coordinator, subscription. The package does
not know producers, administration or asyncio. Exports: `consumer.Consumer`.
"""
