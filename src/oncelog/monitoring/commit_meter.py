"""How many transactions of a cluster commit and abort in a second, and how long a commit takes.

Both are taken from the new records of `__transaction_state`, a bounded number of them at each look. If there are more,
the newest of the partitions with most of them stand for the rest. This works on Apache Kafka as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer_records import iter_records
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.range_reader import reader_of
from oncelog.monitoring.transaction_history import ABORTED, COMMITTED, COMMITTING, EventDecoder, TransactionEvent

WINDOW_MS: Final = 10_000
PARTITIONS_MAX: Final = 8
OFFSETS_MAX: Final = 250
"""Read of each partition at one look."""
LATENCIES_KEPT: Final = 1_000
DECIDED_KEPT: Final = 2_000
FETCH_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class CommitRates:
    commits_per_second: float
    aborts_per_second: float
    is_exact: bool
    """Otherwise a part of the transactions stands for all."""
    p50_ms: int | None
    """From the decision to commit to the last marker; None if no commit was seen lately."""
    p99_ms: int | None

    def as_row(self) -> dict[str, Any]:
        return {
            "commits_per_second": round(self.commits_per_second, 1),
            "aborts_per_second": round(self.aborts_per_second, 1),
            "is_exact": self.is_exact,
            "commit_p50_ms": self.p50_ms,
            "commit_p99_ms": self.p99_ms,
        }


@dataclass(frozen=True, slots=True)
class _Look:
    time_ms: int
    commits: float
    aborts: float
    is_exact: bool


class CommitMeter:
    """Ask it again and again, with the offsets of all partitions; it reads what is new since the last time."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._ends: dict[TopicPartition, int] = {}
        self._looks: deque[_Look] = deque()
        self._decided_ms: dict[str, int] = {}
        self._latencies: deque[tuple[int, int]] = deque(maxlen=LATENCIES_KEPT)
        self._is_allowed = True

    def look(self, offsets: Mapping[TopicPartition, PartitionOffsets], now_ms: int) -> CommitRates | None:
        """None until there is a span of time to speak of, and for whom ACLs do not let read the topic."""
        ends = {place: found.end for place, found in offsets.items() if place.topic == TRANSACTION_STATE_TOPIC}
        new = {place: end - self._ends[place] for place, end in ends.items() if end > self._ends.get(place, end)}
        is_first, self._ends = not self._looks, ends
        try:
            look = self._look(new, ends, now_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            self._is_allowed = False
        if not self._is_allowed:
            return None
        self._looks.append(look)
        while len(self._looks) > 2 and self._looks[1].time_ms <= now_ms - WINDOW_MS:
            self._looks.popleft()
        return None if is_first else self._rates(now_ms)

    def _look(self, new: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now_ms: int) -> _Look:
        most = sorted(new, key=lambda place: -new[place])[:PARTITIONS_MAX] if self._is_allowed else []
        events: list[TransactionEvent] = []
        for place in most:
            events += self._read(place, ends[place] - min(new[place], OFFSETS_MAX), ends[place])
        self._take_latencies(events)
        read = sum(min(new[place], OFFSETS_MAX) for place in most)
        factor = sum(new.values()) / read if read else 1.0
        commits = sum(event.what == COMMITTED for event in events)
        aborts = sum(event.what == ABORTED for event in events)
        return _Look(now_ms, commits * factor, aborts * factor, factor == 1.0)

    def _read(self, place: TopicPartition, start: int, end: int) -> list[TransactionEvent]:
        decoder = EventDecoder()
        with reader_of(self._admin, fetch_bytes=FETCH_BYTES) as reader:
            return [event for chunk in reader.read(*place, start, end) for event in decoder.events(iter_records(chunk))]

    def _take_latencies(self, events: Iterable[TransactionEvent]) -> None:
        for event in events:
            if event.what == COMMITTING:
                self._decided_ms[event.transactional_id] = event.time_ms
            else:
                decided_ms = self._decided_ms.pop(event.transactional_id, None)
                if decided_ms is not None and event.what == COMMITTED:
                    self._latencies.append((event.time_ms, max(event.time_ms - decided_ms, 0)))
        while len(self._decided_ms) > DECIDED_KEPT:
            del self._decided_ms[next(iter(self._decided_ms))]

    def _rates(self, now_ms: int) -> CommitRates:
        first, *later = self._looks
        lasted_s = max(now_ms - first.time_ms, 1) / 1000
        lasted = sorted(took for time_ms, took in self._latencies if time_ms > now_ms - WINDOW_MS)
        return CommitRates(
            sum(one.commits for one in later) / lasted_s,
            sum(one.aborts for one in later) / lasted_s,
            all(one.is_exact for one in later),
            lasted[len(lasted) // 2] if lasted else None,
            lasted[min(len(lasted) * 99 // 100, len(lasted) - 1)] if lasted else None,
        )
