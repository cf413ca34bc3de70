"""A whole broker without sockets: requests are encoded, served and decoded as on the wire, on a virtual clock."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncelog.controller.scram_changes import scram_record
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.broker_registration import Listener as Endpoint
from oncelog.protocol.messages.cluster_metadata import ConfigRecord, RemoveTopicRecord
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from oncelog.security.scram import ScramCredential, ScramUser
from oncelog.server.broker import Broker, Environment
from oncelog.server.context import Peer
from tests.virtual_clock import VirtualScheduler


class BrokerInProcess:
    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        seed: int = 1,
        clock: VirtualScheduler | None = None,
        boot_id: str | None = "one boot",
    ) -> None:
        """With another `boot_id` than before, the machine went down and not only the broker."""
        self.folder = folder
        self.boot_id = boot_id
        self.clock = clock or VirtualScheduler()
        self._entries = settings or {}
        self.peer = Peer("127.0.0.1", "127.0.0.1")
        self._random = random.Random(seed)
        self.broker = self._new()

    def _new(self) -> Broker:
        settings = BROKER_CONFIG.parse(self._entries)
        environment = Environment(
            self.clock,
            InlineWorker(),
            lambda: uuid.UUID(int=self._random.getrandbits(128), version=4),
            self._random.randrange,
            self.boot_id,
        )
        broker = Broker(self.folder, settings, environment)
        broker.advertised["PLAINTEXT"] = Address("127.0.0.1", 9092)
        membership = broker.join_own([Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092)], "PLAINTEXT")
        self.until(membership.loaded)
        membership.ready()
        self.until(membership.serving)
        broker.start()
        return broker

    def until(self, promise: Promise[Any], within_ms: int = 1000) -> None:
        while not promise.done:
            within_ms -= 1
            assert within_ms >= 0, "what was waited for did not happen"
            self.clock.advance_ms(1)

    def restart(self, *, clean: bool = True) -> None:
        self.stop(clean=clean)
        self.broker = self._new()

    def stop(self, *, clean: bool = True) -> None:
        if clean and self.broker.membership is not None:
            self.broker.membership.leave()
            self.until(self.broker.membership.ended)
        self.broker.stop(clean=clean)

    def send(self, request: Any, version: int, client_id: str = "test") -> Promise[Any]:
        """A promise of the decoded response; None where the protocol has no answer."""
        key = type(request).API_KEY
        body = encode_request(key, version, request)
        frame = b"".join(encode_request_frame(key, version, 1, client_id, body))
        answer = self.broker.dispatcher.serve(memoryview(frame[4:]), self.peer)
        if isinstance(answer, Promise):
            return answer.map(lambda buffers: self._decode(key, version, buffers))
        return Promise.resolved(self._decode(key, version, answer))

    def call(self, request: Any, version: int) -> Any:
        promise = self.send(request, version)
        self.clock.advance_ms(0)  # what follows the answer, in the next turn of the loop
        assert promise.done, f"{type(request).__name__} is still waiting for its answer"
        return promise.value

    def _decode(self, key: int, version: int, buffers: list[Any] | None) -> Any:
        if not buffers:
            return buffers  # None, or the empty list that closes the connection
        frame = memoryview(b"".join(buffers))
        _, position = parse_response_header(frame[4:], response_header_version(key, version))
        return decode_response(key, version, frame[4 + position :])

    def produce(
        self,
        topic: str,
        values: list[bytes],
        *,
        partition: int = 0,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
        **batch: Any,
    ) -> Any:
        """The partition's part of the answer to one produced batch."""
        data = batch_of(values, timestamp_ms=self.clock.now_ms(), **batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=1000,
            transactional_id=transactional_id,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=self.topic_id(topic),
                    partition_data=[PartitionProduceData(index=partition, records=data)],
                )
            ],
        )
        response = self.call(request, version)
        return None if response is None else response.responses[0].partition_responses[0]

    def topic_id(self, topic: str) -> uuid.UUID:
        known = self.broker.metadata.topics.get(topic)
        return known.topic_id if known is not None else uuid.UUID(int=0)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Raises KafkaError if it is refused."""
        entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=entries)
        result = self.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7).topics[0]
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    def delete(self, topic: str) -> None:
        """Whoever may do that."""
        self.change(RemoveTopicRecord(topic_id=self.topic_id(topic)))

    def change(self, *records: Message) -> None:
        """The metadata changes without a request: to what no request could ask for."""
        controller = self.broker.own_controller
        assert controller is not None
        stored = controller.node.add(lambda _: records)
        self.until(stored)
        assert stored.value is None
        self.clock.advance_ms(0)

    def configure(self, kind: ResourceType, name: str, configs: Mapping[str, str | None]) -> None:
        self.change(
            *[
                ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
                for key, value in configs.items()
            ]
        )

    def add_users(self, users: Mapping[ScramUser, ScramCredential]) -> None:
        self.change(*[scram_record(user, each) for user, each in users.items()])


def batch_of(values: list[bytes], *, timestamp_ms: int, **batch: Any) -> bytes:
    records = [Record(i, 0, None, value) for i, value in enumerate(values)]
    return build_batch(records, timestamp_ms=timestamp_ms, **batch)
