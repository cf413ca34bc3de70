"""The partitions of this broker. Each is opened at its first use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from oncelog.cluster.metadata import Metadata, Topic
from oncelog.cluster.partition import ALONE, CommitPolicy, Partition
from oncelog.cluster.partition_state import Role
from oncelog.cluster.replicas import ReplicaRules
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId, TopicPartition
from oncelog.storage.deletions import FolderRenames
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir

Closing = Generator[None, None, FolderRenames]


class PartitionTable:
    def __init__(
        self,
        log_dir: LogDir,
        metadata: Metadata,
        node_id: NodeId,
        log_config: Callable[[Topic], LogConfig],
        now_ms: Callable[[], int],
        commit_policy: CommitPolicy,
        verifies: Callable[[], bool] = lambda: True,
        steady_ms: Callable[[], int] = lambda: 0,
        admit_producer: Callable[[int], None] = lambda known: None,
        is_removing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_removing` tells whether folders and checkpoints of deleted partitions are being worked on. One of the
        same name is made when that is over."""
        self._log_dir = log_dir
        self._metadata = metadata
        self._node_id = node_id
        self._log_config = log_config
        self._now_ms = now_ms
        self._verifies = verifies
        self._commit_policy = commit_policy
        self._steady_ms = steady_ms
        self._admit_producer = admit_producer
        self._is_removing = is_removing
        self.rules: ReplicaRules = ALONE
        self._open: dict[tuple[str, int], Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._open.values()))

    def opened(self, topic: str, index: int) -> Partition | None:
        """A partition that is in use."""
        return self._open.get((topic, index))

    def find(self, topic: str, index: int) -> Partition | None:
        """A partition that this broker keeps, whoever leads it."""
        partition = self._open.get((topic, index))
        return partition if partition is not None else self._load(topic, index)

    def get(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads. Raises the error for the client if it does not."""
        partition = self._open.get((topic, index))
        if partition is None or not partition.is_leader:
            partition = self.kept(topic, index)
            partition.check_leads()
        return partition

    def kept(self, topic: str, index: int) -> Partition:
        """A partition that this broker keeps. Raises the error for the client if it does not."""
        partition = self._open.get((topic, index)) or self._load(topic, index)
        if partition is None and self._metadata.has_partition(topic, index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is not kept here, or not yet")
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        return partition

    def has_data(self, topic: str, index: int) -> bool:
        log = self._log_dir.logs.get(TopicPartition(topic, index))
        return log is not None and log.log_end_offset > 0

    def _load(self, name: str, index: int) -> Partition | None:
        topic = self._metadata.topics.get(name)
        if topic is None or not 0 <= index < topic.partition_count:
            return None
        state = self._metadata.partition_state(topic, index)
        if state.role_of(self._node_id) is Role.NONE:
            return None
        key = TopicPartition(name, index)
        log = self._log_dir.logs.get(key)
        if log is None:
            if self._is_removing() and self._log_dir.has_remains_of(key):
                # Else the checkpoints of all logs would be written here and now, with everybody waiting.
                return None
            log = self._log_dir.create_log(key, topic.topic_id, self._log_config(topic), now_ms=self._now_ms())
        try:
            log.producer_state.verification_enabled = self._verifies()
            log.producer_state.admit = self._admit_producer
            partition = Partition(
                log,
                state,
                self._node_id,
                self._commit_policy,
                checkpointed=self._log_dir.high_watermarks.get(key, 0),
                rules=self.rules,
                now_ms=self._steady_ms(),
            )
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} could not be opened: {error}") from error
        self._open[key] = partition
        return partition

    def reconfigure(self, topic: Topic) -> Generator[None, None, None]:
        """Hands a topic's changed settings to its logs, open or not, in steps."""
        config = self._log_config(topic)
        for index in range(topic.partition_count):
            log = self._log_dir.logs.get(TopicPartition(topic.name, index))
            if log is not None:
                log.reconfigure(config)
                if log.is_loaded:
                    log.producer_state.verification_enabled = self._verifies()
            yield

    def delete(self, topic: Topic) -> Generator[None, None, Closing]:
        return self.remove([TopicPartition(topic.name, index) for index in range(topic.partition_count)])

    def remove(self, keys: Sequence[TopicPartition]) -> Generator[None, None, Closing]:
        """Takes partitions out of use, in steps. What this returns closes them, and returns what is to be done to their
        folders."""
        closed: list[Partition] = []
        logs: list[Log] = []
        for key in keys:
            partition = self._open.pop(key, None)
            closed += [] if partition is None else [partition]
            logs += self._log_dir.take_out(key)
            yield
        return self._close(self._log_dir.close_deleted(logs), closed)

    def _close(self, logs: Closing, partitions: list[Partition]) -> Closing:
        renames = yield from logs
        while partitions:
            partitions.pop().close()  # and frees its memory, which takes as long
            yield
        return renames
