"""Members of a consumer group that read input, write output and commit their offsets in transactions (KIP-447).

Each has a transactional id of its own, so it is the group's generation that fences a member which lost its
partitions, and the wait for stable offsets that keeps its successor from overtaking it. In the end every input below
the committed offset must have led to one output.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation import wire
from tests.simulation.actors import Fenced, MustAbort, Script
from tests.simulation.network import LOST, Call
from tests.simulation.producers import RETRIABLE, Dialect, TxnClient, fetch_offsets
from tests.simulation.wire import Place

if TYPE_CHECKING:
    from tests.simulation.history import History

GROUP: Final = "workers"
SESSION_TIMEOUT_MS: Final = 6_000
REBALANCE_TIMEOUT_MS: Final = 10_000
MEMBER_ID_REQUIRED: Final = 79
UNKNOWN_MEMBER_ID: Final = 25
INPUTS_PER_TRANSACTION: Final = 3


class LostMembership(Exception):
    """The group has moved on: join again."""


class Worker(TxnClient):
    def __init__(self, history: History, name: str, transactional_id: str, dialect: Dialect, timeout_ms: int) -> None:
        super().__init__(history, name, transactional_id, dialect, timeout_ms)
        self._member_id = ""
        self._generation = -1
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
                    yield self.rng.randrange(1, 200)
        except Fenced:
            self.trace("is fenced")

    # -- membership

    def _join(self) -> Script[None]:
        while True:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="split", metadata=b"")],
            )
            answer = yield from self.call(Call(ApiKey.JOIN_GROUP, 5, request))
            if answer is LOST:
                continue
            if answer.error_code == 0:
                break
            self._member_id = answer.member_id if answer.error_code == MEMBER_ID_REQUIRED else ""
            yield self.rng.randrange(1, 100)
        self._member_id, self._generation = answer.member_id, answer.generation_id
        yield from self._sync(answer)
        self.trace(f"owns {sorted(self._positions)} in generation {self._generation}")

    def _sync(self, joined: Any) -> Script[None]:
        assignments = []
        if joined.leader == self._member_id:
            names = sorted(member.member_id for member in joined.members)
            for i, name in enumerate(names):
                share = [place for j, place in enumerate(self.history.input_places) if j % len(names) == i]
                assignments.append(SyncGroupRequestAssignment(member_id=name, assignment=json.dumps(share).encode()))
        request = SyncGroupRequest(
            group_id=GROUP, generation_id=self._generation, member_id=self._member_id, assignments=assignments
        )
        answer = yield from self.call(Call(ApiKey.SYNC_GROUP, 3, request))
        if answer is LOST or answer.error_code:
            raise LostMembership
        places = [(topic, index) for topic, index in json.loads(bytes(answer.assignment) or b"[]")]
        self._positions = {}
        if places:
            offsets = yield from self._committed(places)
            self._positions = {place: max(0, offset) for place, offset in offsets.items()}

    def _committed(self, places: list[Place]) -> Script[dict[Place, int]]:
        return (yield from fetch_offsets(self, GROUP, places))

    def _heartbeat(self) -> Script[None]:
        request = HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._member_id)
        answer = yield from self.call(Call(ApiKey.HEARTBEAT, 3, request))
        if answer is not LOST and answer.error_code and answer.error_code not in RETRIABLE:
            if answer.error_code == UNKNOWN_MEMBER_ID:
                self._member_id = ""
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
            yield from self.commit_offsets(GROUP, offsets, self._generation, self._member_id)
            if self.chance(self.history.plan.pauses):
                yield self.rng.randrange(2 * SESSION_TIMEOUT_MS)
        except MustAbort:
            yield from self.give_up()
            raise LostMembership from None
        yield from self.end(commit=True)
        self._positions.update(offsets)
