"""An observer of the controllers' quorum: it follows `__cluster_metadata` and keeps the image. No sockets, no clock.

The owner calls `poll` when the time `wake_ms` has come, sends the request, and passes the response (`on_fetch`,
`on_snapshot`) or the failure (`on_failure`) back. A request is sent to `address` over the connection number
`connection`. When that number changes, the owner closes the old connection and opens a new one. `on_fetch` and
`on_snapshot` return an `Update` when records were applied. Of many records that takes long: `on_fetch_in_steps` yields
in between, and is to be gone through to its end before anything else is asked of the observer.

- The observer first asks any controller. One that is not the leader answers NOT_LEADER_OR_FOLLOWER or
  FENCED_LEADER_EPOCH with the id, the epoch and the address of the leader. The epoch of the quorum never goes back.
- A response contains records above the high watermark. They are held and applied when the high watermark has passed
  them. Held records that a new leader does not have are dropped (DivergingEpoch). Applied records are committed and
  never dropped.
- If the leader's log starts after the observer's end offset, the leader names a snapshot. The observer fetches it in
  pieces and continues with the log behind it. A snapshot replaces the whole image.
- The first update is returned when everything is applied that was committed at the time of the first records.

Nothing is stored on disk: after a restart the observer reads the log again. Records that cannot be decoded or applied
raise KafkaError, MalformedRequest or InvalidMetadata; the observer cannot be used after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

from oncelog.cluster.exchange import Exchange
from oncelog.controller.checkpoint import CheckpointReader, Quorum
from oncelog.controller.delta import Delta
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.metadata_batches import each_record, read_batches, split_batches
from oncelog.controller.replay import Replay
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.steps import at_once
from oncelog.protocol.batch import BatchHeader, whole_batches
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from oncelog.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    PartitionSnapshotRequest,
    SnapshotId,
    TopicSnapshotRequest,
)

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
NO_REPLICA: Final = -1
"""The replica id of somebody who only reads, such as the broker in a controller's own process."""
FETCH_TIMEOUT_MS: Final = 2000
"""As controller.quorum.fetch.timeout.ms."""
BACKOFF_MS: Final = 50
_MAX_WAIT_MS: Final = 500
_MAX_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 17
"""Of a snapshot. A piece is read at once, in about 20 ms, while clients of the broker wait."""
_HELD_MAX: Final = 100_000
"""Batches that are not committed yet. Further batches are fetched again later."""
_NO_OFFSET: Final = -1


class Leader(NamedTuple):
    """The leader of the quorum, which is the active controller as soon as it has read its log."""

    node_id: int
    epoch: int
    address: Address


class Send(NamedTuple):
    number: int
    connection: int
    address: Address
    request: FetchRequest | FetchSnapshotRequest


class Update(NamedTuple):
    image: Image
    delta: Delta
    last_offset: int


class _Held(NamedTuple):
    """A batch that is not decoded yet."""

    header: BatchHeader
    data: memoryview
    start_offset: int
    """Records before it are known."""


class _Download(NamedTuple):
    snapshot_id: SnapshotId
    reader: CheckpointReader


class QuorumLog:
    def __init__(self, *, cluster_id: str, replica_id: int, directory_id: UUID, bootstrap: Sequence[Address]) -> None:
        self._cluster_id = cluster_id
        self._replica_id = replica_id
        self._directory_id = directory_id
        self._bootstrap = list(bootstrap)
        self._exchange = Exchange(FETCH_TIMEOUT_MS)
        self._address = self._bootstrap[0]
        self._connection = 0
        self._epoch = 0
        self._download: _Download | None = None
        self._held: deque[_Held] = deque()
        """Fetched, but not committed yet."""
        self._applied_end = 0
        self._applied_epoch = 0
        self._high_watermark = _NO_OFFSET
        self._first_high_watermark: int | None = None
        self._has_news = False
        self._replay = Replay()
        self.leader: Leader | None = None
        """None while nobody is known to lead."""
        self.quorum = Quorum()
        self.image = EMPTY_IMAGE
        """The image of the last update, or that it began with."""
        self.last_offset = _NO_OFFSET
        """The last offset that the image contains."""

    def begin_with(self, image: Image, quorum: Quorum, *, end_offset: int, epoch: int) -> None:
        """What the controller in the same process has committed and applied: it is not decoded again. The next update
        tells what has changed since, and nothing of what came before."""
        self._replay, self.image, self.quorum = Replay(image), image, quorum
        self._applied_end, self._applied_epoch, self._high_watermark = end_offset, epoch, end_offset
        self._epoch = epoch
        self._download = None
        self._held.clear()
        self._has_news = True

    @property
    def end_offset(self) -> int:
        return self._held[-1].header.next_offset if self._held else self._applied_end

    @property
    def last_epoch(self) -> int:
        return self._held[-1].header.leader_epoch if self._held else self._applied_epoch

    @property
    def wake_ms(self) -> int | None:
        """When to call `poll` next if no response arrives before. None means now."""
        return self._exchange.wake_ms

    def poll(self, now_ms: int) -> Send | None:
        if self._exchange.has_timed_out(now_ms):
            self._exchange.give_up()
            self._ask_another()
        if not self._exchange.is_due(now_ms):
            return None
        request = self._fetch_request() if self._download is None else self._snapshot_request(self._download)
        return Send(self._exchange.sent(now_ms), self._connection, self._address, request)

    def on_failure(self, number: int, now_ms: int) -> None:
        """The connection failed before the response arrived."""
        if self._exchange.accept(number):
            self._ask_another()
            self._exchange.delay(now_ms, BACKOFF_MS)

    def on_fetch(self, number: int, response: FetchResponse, now_ms: int) -> Update | None:
        return at_once(self.on_fetch_in_steps(number, response, now_ms))

    def on_fetch_in_steps(
        self, number: int, response: FetchResponse, now_ms: int
    ) -> Generator[None, None, Update | None]:
        if not self._exchange.accept(number):
            return None
        self._check(response.error_code)
        partition = response.responses[0].partitions[0] if response.responses else None
        if partition is None:
            self._ask_another()
            self._exchange.delay(now_ms, BACKOFF_MS)
            return None
        current = partition.current_leader
        endpoints = {node.node_id: Address(node.host, node.port) for node in response.node_endpoints}
        is_moved = self._learn_leader(current.leader_id, current.leader_epoch, endpoints)
        if partition.error_code != ErrorCode.NONE:
            self._on_partition_error(partition.error_code, is_moved, now_ms)
            return None
        return (yield from self._on_records(partition))

    def on_snapshot(self, number: int, response: FetchSnapshotResponse, now_ms: int) -> Update | None:
        return at_once(self.on_snapshot_in_steps(number, response, now_ms))

    def on_snapshot_in_steps(
        self, number: int, response: FetchSnapshotResponse, now_ms: int
    ) -> Generator[None, None, Update | None]:
        if not self._exchange.accept(number) or self._download is None:
            return None
        partition = response.topics[0].partitions[0] if response.topics and not response.error_code else None
        if partition is None:
            self._check(response.error_code)
            self._restart_download(now_ms)
            return None
        current = partition.current_leader
        endpoints = {node.node_id: Address(node.host, node.port) for node in response.node_endpoints}
        if partition.error_code != ErrorCode.NONE:
            self._learn_leader(current.leader_id, current.leader_epoch, endpoints)
            self._restart_download(now_ms)
            return None
        return (yield from self._on_piece(self._download, partition, now_ms))

    def _fetch_request(self) -> FetchRequest:
        partition = FetchPartition(
            current_leader_epoch=self._epoch,
            fetch_offset=self.end_offset,
            last_fetched_epoch=self.last_epoch,
            replica_directory_id=self._directory_id,
            high_watermark=self._high_watermark,
        )
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=ReplicaState(replica_id=self._replica_id),
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=_MAX_BYTES,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
        )

    def _snapshot_request(self, download: _Download) -> FetchSnapshotRequest:
        partition = PartitionSnapshotRequest(
            current_leader_epoch=self._epoch,
            snapshot_id=download.snapshot_id,
            position=download.reader.size_bytes,
            replica_directory_id=self._directory_id,
        )
        return FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            replica_id=self._replica_id,
            max_bytes=PIECE_BYTES,
            topics=[TopicSnapshotRequest(name=TOPIC, partitions=[partition])],
        )

    def _check(self, error_code: int) -> None:
        if error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"the controller at {self._address.host}:{self._address.port} is of another cluster than this broker's "
                f"data folder, which is of {self._cluster_id}: check controller.quorum.bootstrap.servers, or give the "
                "broker a folder of its own",
            )

    def _learn_leader(self, leader_id: int, epoch: int, endpoints: dict[int, Address]) -> bool:
        """Whether this is new: a higher epoch, or the leader of the known one."""
        self._check_id(leader_id)
        if epoch < self._epoch or (epoch == self._epoch and (leader_id < 0 or self._is_known(leader_id))):
            return False
        self._epoch = epoch
        address = endpoints.get(leader_id)
        self.leader = None if address is None else Leader(leader_id, epoch, address)
        if address is not None and address != self._address:
            self._connect(address)
        return True

    def _check_id(self, controller_id: int) -> None:
        """Kafka's controllers take an observer with the id of one of them for that controller, and answer nonsense."""
        if controller_id == self._replica_id != NO_REPLICA:
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"node.id {controller_id} is the id of a controller of the cluster: give the broker another one",
            )

    def _is_known(self, leader_id: int) -> bool:
        return self.leader is not None and self.leader.node_id == leader_id and self.leader.address == self._address

    def _on_partition_error(self, code: int, is_moved: bool, now_ms: int) -> None:
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH) and is_moved and self.leader:
            return
        if code == ErrorCode.INVALID_REQUEST:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the controller refuses to send the metadata log: INVALID_REQUEST"
            )
        self._ask_another()
        self._exchange.delay(now_ms, BACKOFF_MS)

    def _ask_another(self) -> None:
        """The next address among those of the settings and those of the voters."""
        self.leader = None
        voters = self.quorum.voters.voters if self.quorum.voters is not None else []
        known = [Address(voter.endpoints[0].host, voter.endpoints[0].port) for voter in voters if voter.endpoints]
        candidates = list(dict.fromkeys([*self._bootstrap, *known]))
        position = candidates.index(self._address) if self._address in candidates else -1
        self._connect(candidates[(position + 1) % len(candidates)])

    def _connect(self, address: Address) -> None:
        self._address = address
        self._connection += 1

    def _on_records(self, partition: PartitionData) -> Generator[None, None, Update | None]:
        wanted = partition.snapshot_id
        # An answer from before `begin_with` can name a snapshot of what is known by now.
        if wanted.end_offset > self._applied_end or (wanted.end_offset >= 0 and wanted.epoch > self._applied_epoch):
            self._download = _Download(SnapshotId(end_offset=wanted.end_offset, epoch=wanted.epoch), CheckpointReader())
            return None
        if partition.diverging_epoch.epoch >= 0:
            self._truncate(partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset)
            return None
        start_offset = self.end_offset
        batches = split_batches(whole_batches(partition.records or b""), start_offset)
        held = (_Held(header, data, start_offset) for header, data in batches)
        self._held.extend(islice(held, _HELD_MAX - len(self._held)))
        self._high_watermark = max(self._high_watermark, partition.high_watermark)
        if self._first_high_watermark is None and self._high_watermark >= 0:
            self._first_high_watermark = self._high_watermark
        yield from self._apply_committed()
        return (yield from self._publish())

    def _truncate(self, epoch: int, end_offset: int) -> None:
        while self._held and (self.last_epoch > epoch or self.end_offset > end_offset):
            self._held.pop()
        if self._applied_epoch > epoch or self._applied_end > end_offset:
            raise InvalidMetadata(
                f"the controllers have lost committed metadata: their epoch {epoch} ends at offset {end_offset}, but "
                f"this broker has applied epoch {self._applied_epoch} up to offset {self._applied_end}"
            )

    def _apply_committed(self) -> Generator[None, None, None]:
        while self._held and self._held[0].header.next_offset <= self._high_watermark:
            batch = self._held.popleft()
            for offset, record in each_record(batch.data):
                if offset >= batch.start_offset:
                    yield from self._replay.apply_in_steps(record.known())
                yield
            for control in next(read_batches(batch.data)).controls if batch.header.is_control else ():
                self.quorum = self.quorum.after(control)
            self._check_voters()
            self._applied_end, self._applied_epoch = batch.header.next_offset, batch.header.leader_epoch
            self._has_news = True

    def _check_voters(self) -> None:
        for voter in self.quorum.voters.voters if self.quorum.voters is not None else ():
            self._check_id(voter.voter_id)

    def _publish(self) -> Generator[None, None, Update | None]:
        first = self._first_high_watermark
        is_caught_up = first is not None and self._applied_end >= first
        if not self._has_news or not is_caught_up or self._replay.is_in_transaction:
            return None
        self._has_news = False
        self.image, delta = yield from self._replay.image_after(self.image)
        self.last_offset = self._applied_end - 1
        return Update(self.image, delta, self.last_offset)

    def _restart_download(self, now_ms: int) -> None:
        """The snapshot is deleted, or the controller is not the leader any more. The next Fetch tells which."""
        self._download = None
        self._exchange.delay(now_ms, BACKOFF_MS)

    def _on_piece(
        self, download: _Download, partition: PartitionSnapshot, now_ms: int
    ) -> Generator[None, None, Update | None]:
        is_next = partition.position == download.reader.size_bytes and partition.snapshot_id == download.snapshot_id
        if not is_next or not partition.unaligned_records:
            self._restart_download(now_ms)
            return None
        download.reader.feed(partition.unaligned_records)
        if download.reader.size_bytes < partition.size:
            return None
        loaded = download.reader.finish()
        self._download = None
        self._held.clear()
        self._replay, self.quorum = Replay(loaded.image), loaded.quorum
        self._check_voters()
        self._applied_end, self._applied_epoch = download.snapshot_id.end_offset, download.snapshot_id.epoch
        self._high_watermark = max(self._high_watermark, self._applied_end)
        self._has_news = True
        return (yield from self._publish())
