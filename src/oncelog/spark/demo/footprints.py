"""Whether a kill now would tell: how far each query has come with its batch, by what topics and offsets show.

exactly-once    records are written and not visible: a transaction is open, and a successor aborts it
at-least-once   part of a batch is written and Spark has not been told: a successor writes all of it again
at-most-once    a batch is noted as done and not all written: no successor writes the rest
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oncelog.client.visibility import IsolationLevel
from oncelog.spark.demo.events import Event, EventLog
from oncelog.spark.demo.pipeline import GUARANTEES, Topics
from oncelog.spark.offsets import LATEST
from oncelog.spark.resume import Note
from oncelog.spark.worker_client import WorkerClient


@dataclass(slots=True)
class Footprints:
    """Ask often: a batch counts only when it was seen before anything of it was written."""

    client: WorkerClient
    topics: Topics
    events: EventLog
    per_batch: int
    _seen: dict[str, Event] = field(default_factory=dict)
    _length_then: dict[str, int] = field(default_factory=dict)

    def written(self, guarantee: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        """Records and markers in the outputs of a query."""
        names = [self.topics.enriched(guarantee), self.topics.dead_letters(guarantee)]
        partitions = [partition for found in self.client.partitions_of(names).values() for partition in found]
        return sum(self.client.list_offsets(dict.fromkeys(partitions, LATEST), isolation).values())

    def batches_done(self, guarantee: str) -> int:
        return sum(event.lane == guarantee and event.what == "done" for event in self.events.read())

    def all_in_the_middle(self, *, exactly_once_too: bool) -> bool:
        latest = self._latest_events()
        grown = {guarantee: self._grown(guarantee, latest.get(guarantee)) for guarantee in GUARANTEES}
        return (
            bool(grown["at-least-once"])
            and self._would_lose(latest.get("at-most-once"), grown["at-most-once"])
            and (not exactly_once_too or self._has_open_transaction())
        )

    def _latest_events(self) -> dict[str, Event]:
        return {event.lane: event for event in self.events.read() if event.lane in GUARANTEES}

    def _grown(self, guarantee: str, latest: Event | None) -> int | None:
        """What was written of the running batch; None when none is running, or when its beginning was not seen."""
        if latest is None or latest.what != "begin":
            self._seen.pop(guarantee, None)
            return None
        length = self.written(guarantee)
        if guarantee not in self._length_then:
            # The first look at this query: who knows what of this batch is written already.
            self._length_then[guarantee], self._seen[guarantee] = -1, latest
        elif self._seen.get(guarantee) != latest:
            self._length_then[guarantee], self._seen[guarantee] = length, latest
        then = self._length_then[guarantee]
        return None if then < 0 else length - then

    def _would_lose(self, latest: Event | None, grown: int | None) -> bool:
        if latest is None or grown is None or grown > self.per_batch // 2:
            return False
        committed = self.client.committed(self.topics.query_id("at-most-once"))
        notes = [Note.from_text(value.metadata) for value in committed.values()]
        return any(note is not None and note.batch_id == latest.batch for note in notes)

    def _has_open_transaction(self) -> bool:
        return self.written("exactly-once") > self.written("exactly-once", IsolationLevel.READ_COMMITTED)
