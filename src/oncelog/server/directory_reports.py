"""Tells the controller in which directory this broker has its replicas, when the metadata says another one.

A controller with one directory per broker knows it from the registration, until the disk is lost: the new folder has a
new id, and a replica in a directory that is gone is never elected. So AssignReplicasToDirs is sent for replicas that
are in another directory than the metadata says, all of them in one request, until the metadata says so too.

Deviation: Kafka reports any replica. Here one that does not follow a leader is left out: as the last one in sync it
would be elected with the empty log of its new disk, and everybody else would cut theirs. That takes an operator, who
can elect it uncleanly.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final

from oncelog.controller.delta import Delta, TopicIdPartition
from oncelog.controller.partition_image import MIGRATING_DIRECTORY, PartitionImage
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import METADATA_VERSION
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse
    from oncelog.server.broker import Broker
    from oncelog.server.membership import Membership

log = logging.getLogger("oncelog.server")

REPORT_INTERVAL_MS: Final = 1_000
_TIMEOUT_MS: Final = 30_000
_REPLICAS_PER_REQUEST: Final = 2_000
_METADATA_VERSION_MIN: Final = 17
"""3.7-IV2. Before it controllers know no directories."""


class DirectoryReports:
    def __init__(self, broker: Broker, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        self._elsewhere: dict[TopicIdPartition, PartitionImage] = {}
        """Replicas of this broker that the metadata has in another directory."""
        self._is_sent = False
        self._errors = RepeatedErrors(log, logging.WARNING)

    def follow(self, delta: Delta) -> Steps[None]:
        if not self._broker.is_in_cluster:
            return  # it leads them all, and its own controller gives it their directories
        node = self._broker.node_id
        for key, (_, after) in delta.partitions.items():
            if self._elsewhere:
                self._elsewhere.pop(key, None)
            if after is not None and node in after.replicas:
                known = after.directories[after.replicas.index(node)]
                if known not in (self._broker.log_dir.meta.directory_id, MIGRATING_DIRECTORY):
                    self._elsewhere[key] = after
            yield

    def report(self) -> None:
        """Report the folders of replicas, again and again until the metadata has them."""
        led = (key for key, partition in self._elsewhere.items() if partition.leader not in (-1, self._broker.node_id))
        keys = list(itertools.islice(led, _REPLICAS_PER_REQUEST))
        level = self._membership.finalised.get(METADATA_VERSION, 0)
        directory_id = self._broker.log_dir.meta.directory_id
        if not keys or self._is_sent or level < _METADATA_VERSION_MIN or directory_id is None:
            return
        from oncelog.protocol.messages.assign_replicas_to_dirs import (
            AssignedDirectory,
            AssignedPartition,
            AssignedTopic,
            AssignReplicasToDirsRequest,
            AssignReplicasToDirsResponse,
        )

        topics: dict[str, AssignedTopic] = {}
        for key in keys:
            topic = topics.setdefault(key.topic, AssignedTopic(topic_id=key.topic_id))
            topic.partitions.append(AssignedPartition(partition_index=key.partition))
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker.node_id,
            broker_epoch=self._membership.lifecycle.epoch,
            directories=[AssignedDirectory(id_=directory_id, topics=list(topics.values()))],
        )
        self._is_sent = True
        answer = self._membership.ask_controller("directories", request, AssignReplicasToDirsResponse, _TIMEOUT_MS)
        answer.then(lambda found: self._on_answer(len(keys), found))

    def _on_answer(self, count: int, answer: AssignReplicasToDirsResponse | KafkaError) -> None:
        self._is_sent = False
        if isinstance(answer, KafkaError):
            reason = str(answer)
        elif answer.error_code != ErrorCode.NONE:
            reason = f"error {answer.error_code}"
        else:
            self._errors.clear("directories")
            log.info("the controller was told that %d replica(s) are in another directory than before", count)
            return
        self._errors.report(
            "directories",
            "the controller could not be told where %d replica(s) are, which is tried again: %s",
            count,
            reason,
        )
