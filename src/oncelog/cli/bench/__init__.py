"""`oncelog bench`: figures of any Kafka-compatible cluster, or of clusters side by side."""

from oncelog.cli.bench.command import bench_command

__all__ = ["bench_command"]
