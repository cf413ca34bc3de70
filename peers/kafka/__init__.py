"""Apache Kafka as a peer: its jars, a one-node server, its tools and its Java clients."""
