"""What the broker counts of its requests. It must cost next to nothing, so the hot path adds to plain lists; the values
become metrics of Prometheus when somebody scrapes them (`metrics_page`)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATENCY_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class RequestStats:
    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)


class Metrics:
    def __init__(self) -> None:
        self.requests: dict[int, RequestStats] = {}
        self.connections = 0
        self.rejections: dict[str, int] = {}

    def request_served(self, api_key: int, seconds: float) -> None:
        stats = self.requests.get(api_key)
        if stats is None:
            stats = self.requests[api_key] = RequestStats()
        stats.count += 1
        stats.total_s += seconds
        stats.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1

    def rejected(self, error_name: str) -> None:
        self.rejections[error_name] = self.rejections.get(error_name, 0) + 1
