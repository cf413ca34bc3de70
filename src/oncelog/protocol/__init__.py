"""The Kafka protocol without I/O: message tables and their compiler, framing, the record batch format."""
