"""A stage for worked examples: one broker, a good network, and clients that do what they are told, step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.simulation import wire
from tests.simulation.model import Violation
from tests.simulation.network import LOST, Call, Link, Network, Weather
from tests.simulation.producers import JAVA_4, Dialect
from tests.simulation.station import SimulatedCrash, Station
from tests.simulation.wire import Identity, Place, Seen
from tests.virtual_clock import VirtualScheduler


class Scene:
    """`sends` leaves a request under way; everything else waits for its answer."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, seed: int = 1) -> None:
        self.clock = VirtualScheduler(1_700_000_000_000)
        self.station = Station(
            folder, self.clock, random.Random(seed), {"oncelog.cluster.action.enable": "true", **(settings or {})}
        )
        self.network = Network(self.station, random.Random(2), Weather(), _raise, lambda who, what: None)

    @contextmanager
    def opened(self) -> Iterator[Scene]:
        with self.station.installed():
            self.station.start()
            yield self
            if self.station.errors.messages:
                raise Violation("no-exception", f"the broker logged: {self.station.errors.messages}")

    # -- the broker

    def crash(self) -> None:
        self.station.crash()
        self.station.disarm()
        self.station.start()

    def dies_at(self, point: str, count: int = 1) -> None:
        """The next request that comes to this failpoint kills the broker; `sends` then answers LOST."""
        self.station.arm_crash(point, count)

    def restart(self) -> None:
        self.station.stop()
        self.station.start()

    def wait(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        entries = [CreatableTopicConfig(name=name.replace("_", "."), value=text) for name, text in configs.items()]
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=entries)
        answer = self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted]))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    # -- requests

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """LOST when the broker dies of it."""
        try:
            return self.network.ask(Call(key, version, message))
        except SimulatedCrash as crash:
            self.station.crash(str(crash))
            self.station.disarm()
            return LOST

    def sends(self, key: ApiKey, version: int, message: Any) -> list[Any]:
        """A request on a link of its own. The list has the answer once there is one."""
        answers: list[Any] = []
        Link(self.network, "step", is_ghost=True).deliver(Call(key, version, message, on_answered=answers.append))
        return answers

    def producer(self, transactional_id: str, dialect: Dialect = JAVA_4, timeout_ms: int = 60_000) -> ScenicProducer:
        producer = ScenicProducer(self, transactional_id, dialect, timeout_ms)
        assert producer.init() == 0
        return producer

    def plain(self, topic: str, *values: str, partition: int = 0) -> int:
        """Without a producer id. Returns the offset of the first."""
        data = wire.batch(values, None, -1, transactional=False, timestamp_ms=self.clock.now_ms())
        answer = self.ask(ApiKey.PRODUCE, 12, wire.produce({(topic, partition): data}))
        part = wire.produce_answers(answer)[topic, partition]
        assert part.error_code == 0
        return int(part.base_offset)

    # -- readers

    def fetch(self, topic: str, partition: int = 0, *, start: int = 0, committed: bool = True) -> Any:
        isolation = wire.READ_COMMITTED if committed else wire.READ_UNCOMMITTED
        place = (topic, partition)
        return wire.fetch_answers(self.ask(ApiKey.FETCH, 11, wire.fetch({place: start}, isolation)))[place]

    def read(self, topic: str, partition: int = 0, *, start: int = 0, committed: bool = True) -> list[str]:
        """The values a consumer gets, from there to the end."""
        return [seen.value or "" for seen in self.read_records(topic, partition, start=start, committed=committed)]

    def read_records(self, topic: str, partition: int = 0, *, start: int = 0, committed: bool = True) -> list[Seen]:
        found: list[Seen] = []
        while True:
            part = self.fetch(topic, partition, start=start, committed=committed)
            assert part.error_code == 0, part
            records, following = wire.filtered(part, start)
            found += records
            if following == start:
                return found
            start = following

    def start_offset(self, topic: str, partition: int = 0) -> int:
        return self._list_offset(topic, partition, -2, committed=False)

    def end_offset(self, topic: str, partition: int = 0, *, committed: bool = True) -> int:
        """The last stable offset or the high watermark."""
        return self._list_offset(topic, partition, -1, committed=committed)

    def _list_offset(self, topic: str, partition: int, timestamp: int, *, committed: bool) -> int:
        isolation_level = wire.READ_COMMITTED if committed else wire.READ_UNCOMMITTED
        request = wire.list_offsets((topic, partition), timestamp, isolation_level)
        return int(self.ask(ApiKey.LIST_OFFSETS, 5, request).topics[0].partitions[0].offset)

    def committed_offset(self, group_id: str, topic: str, partition: int = 0, *, stable: bool = True) -> int | None:
        """None while a transaction may change it."""
        request = wire.offset_fetch(group_id, [(topic, partition)], require_stable=stable)
        part = wire.offset_fetch_answers(self.ask(ApiKey.OFFSET_FETCH, 7, request))[topic, partition]
        if part.error_code == 88:
            return None
        assert part.error_code == 0, part
        return int(part.committed_offset)

    # -- operators

    def describe(self, transactional_id: str) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        return self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states[0]

    def state(self, transactional_id: str) -> str:
        return str(self.describe(transactional_id).transaction_state)

    def write_marker(
        self, topic: str, partition: int, identity: Identity, *, commit: bool, coordinator_epoch: int, version: int
    ) -> int:
        request = wire.markers((topic, partition), identity, commit, coordinator_epoch, version)
        answer = self.ask(ApiKey.WRITE_TXN_MARKERS, 2, request)
        return int(answer.markers[0].topics[0].partitions[0].error_code)


class ScenicProducer:
    """Every method returns the error code of the answer, 0 for success."""

    def __init__(self, scene: Scene, transactional_id: str, dialect: Dialect, timeout_ms: int) -> None:
        self.scene = scene
        self.transactional_id = transactional_id
        self.dialect = dialect
        self.timeout_ms = timeout_ms
        self.identity = Identity(-1, -1)
        self.sequences: dict[Place, int] = {}
        self._added: set[Place] = set()

    # -- messages

    def init_message(self, expected: Identity | None = None) -> InitProducerIdRequest:
        message = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        if expected is not None:
            message.producer_id, message.producer_epoch = expected
        return message

    def produce_message(
        self,
        batches: dict[Place, Sequence[str]],
        sequences: dict[Place, int] | None = None,
        key: str | None = None,
    ) -> Any:
        """With the next sequences, or with others to repeat or to skip something. They are not counted here."""
        chosen = sequences if sequences is not None else self.sequences
        data = {
            place: wire.batch(
                values,
                self.identity,
                chosen.get(place, 0),
                transactional=True,
                timestamp_ms=self.scene.clock.now_ms(),
                keys=[key] * len(values),
            )
            for place, values in batches.items()
        }
        return wire.produce(data, self.transactional_id)

    def end_message(self, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )

    # -- steps

    def init(self, expected: Identity | None = None) -> int:
        answer = self.scene.ask(ApiKey.INIT_PRODUCER_ID, self.dialect.init, self.init_message(expected))
        if answer.error_code == 0:
            self._adopt(Identity(answer.producer_id, answer.producer_epoch))
        return int(answer.error_code)

    def _adopt(self, identity: Identity) -> None:
        if identity != self.identity:
            self.identity = identity
            self.sequences.clear()
        self._added.clear()

    def add(self, *places: Place) -> int:
        if self.dialect.add is None:
            return 0
        message = wire.add_partitions(self.transactional_id, self.identity, places)
        answer = self.scene.ask(ApiKey.ADD_PARTITIONS_TO_TXN, self.dialect.add, message)
        codes = wire.add_partitions_codes(answer)
        assert len(codes) == 1
        code = codes.pop()
        if code == 0:
            self._added.update(places)
        return code

    def send(self, topic: str, *values: str, partition: int = 0, key: str | None = None) -> int:
        """Adds the partition first where the client has to, and produces one batch."""
        place = (topic, partition)
        if place not in self._added and (code := self.add(place)):
            return code
        message = self.produce_message({place: values}, key=key)
        answer = self.scene.ask(ApiKey.PRODUCE, self.dialect.produce, message)
        code = int(wire.produce_answers(answer)[place].error_code)
        if code == 0:
            self.sequences[place] = self.sequences.get(place, 0) + len(values)
        return code

    def commit_offset(
        self, group_id: str, topic: str, offset: int, partition: int = 0, *, generation: int = -1, member: str = ""
    ) -> int:
        if self.dialect.add is not None:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                group_id=group_id,
            )
            added = self.scene.ask(ApiKey.ADD_OFFSETS_TO_TXN, self.dialect.add_offsets, request)
            if added.error_code:
                return int(added.error_code)
        message = wire.txn_offset_commit(
            self.transactional_id,
            self.identity,
            group_id,
            {(topic, partition): offset},
            generation_id=generation,
            member_id=member,
        )
        answer = self.scene.ask(ApiKey.TXN_OFFSET_COMMIT, self.dialect.txn_offset_commit, message)
        return wire.txn_offset_commit_codes(answer).pop()

    def commit(self) -> int:
        return self._end(commit=True)

    def abort(self) -> int:
        return self._end(commit=False)

    def _end(self, commit: bool) -> int:
        answer = self.scene.ask(ApiKey.END_TXN, self.dialect.end, self.end_message(commit))
        if answer is LOST:
            return -1
        if answer.error_code == 0:
            self._added.clear()
            if self.dialect.bumps_epochs:
                self._adopt(Identity(answer.producer_id, answer.producer_epoch))
        return int(answer.error_code)


def _raise(invariant: str, detail: str) -> None:
    raise Violation(invariant, detail)
