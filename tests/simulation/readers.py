"""Readers that look on all the time, through crashes and time-outs, and remember what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncelog.protocol.api_keys import ApiKey
from tests.simulation import wire
from tests.simulation.actors import Actor, Script
from tests.simulation.network import LOST, Call
from tests.simulation.wire import Place, Seen

if TYPE_CHECKING:
    from tests.simulation.history import History


OUT_OF_RANGE: Final = 1


class Reader(Actor):
    """A consumer without a group. Its position only moves forward; what it was given is never taken back."""

    def __init__(self, history: History, name: str, isolation_level: int) -> None:
        super().__init__(history, name)
        self.isolation_level = isolation_level
        self.positions: dict[Place, int] = dict.fromkeys(history.places, 0)
        self.view: dict[Place, list[Seen]] = {place: [] for place in history.places}
        self.skipped: dict[Place, list[range]] = {place: [] for place in history.places}
        """Offsets that were deleted before they could be read."""

    def script(self) -> Script[None]:
        while self.history.in_trouble:
            yield from self._poll()
            yield self.rng.randrange(300)

    def _poll(self) -> Script[None]:
        request = wire.fetch(
            self.positions,
            self.isolation_level,
            max_wait_ms=self.rng.choice((0, 20, 500)),
            max_bytes=self.rng.choice((1, 200, 1 << 20)),
            topic_ids=self.history.topic_ids,
        )
        answer = yield from self.call(Call(ApiKey.FETCH, self.rng.choice((4, 7, 11, 12, 13, 16, 18)), request))
        if answer is not LOST:
            for place, part in wire.fetch_answers(answer, self.history.topic_ids).items():
                if part.error_code == OUT_OF_RANGE:
                    yield from self._skip(place)
                else:
                    self.take(place, part)

    def _skip(self, place: Place) -> Script[None]:
        """To where the log starts now."""
        answer = yield from self.call(Call(ApiKey.LIST_OFFSETS, 5, wire.list_offsets(place)))
        if answer is LOST or answer.topics[0].partitions[0].error_code:
            return
        position, start = self.positions[place], answer.topics[0].partitions[0].offset
        if start <= position or not self.model.removals.affects(place):
            self.model.violated(
                "reader-consistent", f"{self.name}: {position} of {place} is gone; it starts at {start}"
            )
        self.trace(f"{place} is deleted up to {start}, goes on from there")
        self.skipped[place].append(range(position, start))
        self.positions[place] = start

    def has_skipped(self, place: Place, offset: int) -> bool:
        return any(offset in gone for gone in self.skipped[place])

    def take(self, place: Place, part: Any) -> None:
        if part.error_code:
            return
        position = self.positions[place]
        if self.isolation_level == wire.READ_COMMITTED:
            records, position = wire.filtered(part, position)
            for record in records:
                self.model.read_committed(place, record.offset, record.value)
            end = part.last_stable_offset
        else:
            records = [record for record in wire.records_in(part.records or b"") if record.offset >= position]
            position = records[-1].offset + 1 if records else position
            end = part.high_watermark
        is_committed = self.isolation_level == wire.READ_COMMITTED
        if is_committed and not part.log_start_offset <= part.last_stable_offset <= part.high_watermark:
            self.model.violated(
                "start-moves-on",
                f"{place} starts at {part.log_start_offset}, is stable up to {part.last_stable_offset} and committed "
                f"up to {part.high_watermark}",
            )
        self.model.seen(place, records)
        if position > max(end, self.positions[place]):
            self.model.violated("reader-consistent", f"{self.name} got {place} up to {position}, beyond its end {end}")
        self.view[place] += records
        self.positions[place] = position


class OffsetWatcher(Actor):
    """Looks at committed offsets: they come from committed transactions only, and do not go back."""

    def __init__(self, history: History, name: str, group_id: str) -> None:
        super().__init__(history, name)
        self.group_id = group_id
        self._seen: dict[Place, int] = {}

    def script(self) -> Script[None]:
        while self.history.in_trouble:
            places = self.history.input_places
            stable = self.chance(500)
            request = wire.offset_fetch(self.group_id, places, require_stable=stable)
            answer = yield from self.call(
                Call(ApiKey.OFFSET_FETCH, 7, request, on_answered=lambda answer: self._witness(answer))
            )
            if answer is not LOST and answer.error_code == 0:
                self._compare(answer)
            yield self.rng.randrange(50, 800)

    def _witness(self, answer: Any) -> None:
        for place, part in wire.offset_fetch_answers(answer).items():
            if part.error_code == 0:
                self.model.read_offset(self.group_id, place, part.committed_offset)

    def _compare(self, answer: Any) -> None:
        for place, part in wire.offset_fetch_answers(answer).items():
            if part.error_code == 0:
                before = self._seen.get(place, -1)
                if part.committed_offset < before:
                    self.model.violated(
                        "offsets-atomic",
                        f"{self.group_id}: the offset of {place} went back from {before} to {part.committed_offset}",
                    )
                self._seen[place] = part.committed_offset
