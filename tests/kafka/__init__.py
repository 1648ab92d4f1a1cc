"""A real Apache Kafka as the judge of our files."""
