"""Topics that come to be by themselves in a cluster: the controller makes them, and the metadata log tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from oncelog.cluster.internal_topics import as_for_controllers
from oncelog.cluster.metadata import Topic
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from oncelog.core.promise import Promise
from oncelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.server.membership import Membership

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

_TIMEOUT_MS: Final = 5_000
_LOOK_MS: Final = 10
_LOOKS_MAX: Final = 200
_FACTORS: Final = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
}


class ClusterTopics:
    def __init__(self, broker: Broker, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        self._coming: dict[str, Promise[Topic | KafkaError]] = {}

    def ensure(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Promise[Topic | KafkaError]:
        """Promises the topic. If that takes too long, clients are told to ask again."""
        coming = self._coming.get(name)
        if coming is not None:
            return coming
        promise: Promise[Topic | KafkaError] = Promise()
        self._coming[name] = promise

        def forget(_: Topic | KafkaError) -> None:
            del self._coming[name]

        promise.then(forget)
        request = CreateTopicsRequest(topics=[self._wanted(name, partition_count, configs)], timeout_ms=_TIMEOUT_MS)
        self._membership.ask_controller("topics", request, CreateTopicsResponse, _TIMEOUT_MS).then(
            lambda answer: self._answered(name, answer, promise)
        )
        return promise

    def _wanted(self, name: str, partition_count: int, configs: Mapping[str, str]) -> CreatableTopic:
        settings = self._broker.settings
        wanted = as_for_controllers(configs) if name in INTERNAL_TOPICS else dict(configs)
        is_alone = not self._broker.is_in_cluster
        if name == TRANSACTION_STATE_TOPIC and not is_alone:
            wanted["min.insync.replicas"] = str(settings.integer("transaction.state.log.min.isr"))
        factor = settings.integer(_FACTORS[name]) if name in _FACTORS else -1
        factor = 1 if is_alone else factor
        entries = [CreatableTopicConfig(name=key, value=value) for key, value in wanted.items()]
        return CreatableTopic(name=name, num_partitions=partition_count, replication_factor=factor, configs=entries)

    def _answered(
        self, name: str, answer: CreateTopicsResponse | KafkaError, promise: Promise[Topic | KafkaError]
    ) -> None:
        if isinstance(answer, KafkaError):
            promise.resolve(_later(name, answer.message))
            return
        result = answer.topics[0]
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._look(name, promise, _LOOKS_MAX)
        elif name in INTERNAL_TOPICS:
            reason = result.error_message or str(result.error_code)
            self._broker.log_refusal("CreateTopics", ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}: {reason}")
            promise.resolve(_later(name, reason))
        else:
            promise.resolve(KafkaError(ErrorCode(result.error_code), result.error_message or ""))

    def _look(self, name: str, promise: Promise[Topic | KafkaError], looks: int) -> None:
        """The answer may be faster than the metadata log."""
        topic = self._broker.metadata.topics.get(name)
        if topic is not None:
            promise.resolve(topic)
        elif not looks or self._broker.stopped:
            promise.resolve(_later(name, "it is not in the metadata yet"))
        else:
            self._broker.scheduler.call_later_ms(_LOOK_MS, lambda: self._look(name, promise, looks - 1))


def _later(name: str, reason: str) -> KafkaError:
    is_internal = name in INTERNAL_TOPICS
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_internal else ErrorCode.LEADER_NOT_AVAILABLE
    return KafkaError(code, f"{name} is being made: {reason}")
