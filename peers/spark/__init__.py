"""Spark's own Kafka connector, as a peer of the pipeline."""
