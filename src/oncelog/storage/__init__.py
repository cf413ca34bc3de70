"""Blocking files: Kafka's own formats on disk, and the log of a partition on top of them. No sockets, no event loop."""
