"""Members of a consumer group that read input, write output and commit their offsets in transactions (KIP-447).

Each is a `GroupMember` of the product and has a transactional id of its own, so the group's generation fences
a member which lost its partitions, and the wait for stable offsets that keeps its successor from overtaking it. In the
end every input below the committed offset must have led to one output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.errors import KafkaError
from oncelog.client.group_member import GroupMember
from oncelog.protocol.api_keys import ApiKey
from tests.simulation import wire
from tests.simulation.actors import Fenced, MustAbort, Script
from tests.simulation.client import play
from tests.simulation.network import LOST, Call
from tests.simulation.producers import Dialect, TxnClient
from tests.simulation.wire import Place

if TYPE_CHECKING:
    from tests.simulation.history import History

GROUP: Final = "workers"
SESSION_TIMEOUT_MS: Final = 6_000
REBALANCE_TIMEOUT_MS: Final = 10_000
GROUP_CONFIG: Final = ConsumerConfig.parse(
    {
        "bootstrap.servers": "station:9092",
        "group.id": GROUP,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 3,
        "max.poll.interval.ms": REBALANCE_TIMEOUT_MS,
    }
)
INPUTS_PER_TRANSACTION: Final = 3


class LostMembership(Exception):
    """The group has moved on: join again."""


class Worker(TxnClient):
    def __init__(self, history: History, name: str, transactional_id: str, dialect: Dialect, timeout_ms: int) -> None:
        super().__init__(history, name, transactional_id, dialect, timeout_ms)
        self._member = GroupMember(self.transactions.cluster, GROUP_CONFIG, lambda: None)
        self._positions: dict[Place, int] = {}

    def timeout_ms(self, calls: list[Call]) -> int:
        waits = calls[0].key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
        return 80_000 if waits else super().timeout_ms(calls)

    def script(self) -> Script[None]:
        try:
            yield from self.initialise()
            while self.history.in_trouble:
                try:
                    yield from self._join()
                    yield from self._work()
                except LostMembership:
                    self.trace("lost its membership")
                    self._member.lost = False
                    yield self.rng.randrange(1, 200)
        except Fenced:
            self.trace("is fenced")

    # -- membership

    def _join(self) -> Script[None]:
        topics = {topic for topic, _ in self.history.input_places}
        try:
            assigned = yield from play(self._member.join(topics, ()))
        except KafkaError as error:
            # A poll would raise it, and the next one would join again.
            raise LostMembership from error
        places = [(partition.topic, partition.partition) for partition in assigned]
        self._positions = {}
        if places:
            offsets = yield from self.fetch_offsets(GROUP, places)
            self._positions = {place: max(0, offset) for place, offset in offsets.items()}
        self.trace(f"owns {sorted(self._positions)} in generation {self._member.generation_id}")

    def _heartbeat(self) -> Script[None]:
        yield from play(self._member.heartbeat())
        if self._member.lost or self._member.rejoin_needed:
            raise LostMembership

    # -- work

    def _work(self) -> Script[None]:
        while self.history.in_trouble:
            yield from self._heartbeat()
            inputs = yield from self._read()
            if not inputs:
                yield self.rng.randrange(50, 600)
                continue
            yield from self._transform(inputs)
            yield self.rng.randrange(100)

    def _read(self) -> Script[list[tuple[Place, int, str]]]:
        if not self._positions:
            return []
        request = wire.fetch(self._positions, wire.READ_COMMITTED)
        answer = yield from self.call(Call(ApiKey.FETCH, 11, request))
        found: list[tuple[Place, int, str]] = []
        if answer is not LOST:
            for place, part in wire.fetch_answers(answer).items():
                if part.error_code == 0:
                    records, _ = wire.filtered(part, self._positions[place])
                    found += [(place, record.offset, record.value or "") for record in records]
        return found[: self.rng.randrange(1, INPUTS_PER_TRANSACTION + 1)]

    def _transform(self, inputs: list[tuple[Place, int, str]]) -> Script[None]:
        transaction = self.begin()
        offsets = {place: offset + 1 for place, offset, _ in inputs}
        batches = [
            self.compose(self.rng.choice(self.history.output_places), [f"{transaction.name}<{value}>"], transaction)
            for _, _, value in inputs
        ]
        try:
            yield from self.write(batches)
            if self.chance(self.history.plan.pauses):
                yield self.rng.randrange(2 * SESSION_TIMEOUT_MS)
            yield from self.commit_offsets(self._member.joined_as, offsets)
            if self.chance(self.history.plan.pauses):
                yield self.rng.randrange(2 * SESSION_TIMEOUT_MS)
        except MustAbort:
            yield from self.give_up()
            raise LostMembership from None
        yield from self.end(commit=True)
        self._positions.update(offsets)
