"""Measuring a Kafka-compatible cluster: workloads in processes of their own, and tables of what came out."""
