"""The controller of a node that is alone: in the process of its broker, with its log in the broker's folder.

The broker works as in any cluster: it registers, sends heartbeats, follows the metadata log and passes requests of
clients on. What it would send to controllers comes here, as messages and without a network. `__cluster_metadata-0` in
the data folder is as Apache Kafka keeps it with `process.roles=broker,controller` and `controller.quorum.voters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.cluster.cluster_config import FEATURES, METADATA_LEVEL
from oncelog.cluster.file_metadata_log import OWN_ADDRESS, FileMetadataLog
from oncelog.cluster.metadata_draft import MetadataDraft, skipped_producer_ids
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE
from oncelog.controller.machine import ControllerConfig, Machine
from oncelog.controller.registration import RESERVED_DIRECTORIES_BELOW
from oncelog.core.address import Address
from oncelog.core.errors import KafkaError
from oncelog.core.features import METADATA_VERSION, TRANSACTION_VERSION
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.protocol.messages.create_topics import CreateTopicsRequest
from oncelog.protocol.messages.envelope import EnvelopeRequest
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.server.controller_front import ControllerFront
from oncelog.server.controller_node import ControllerNode
from oncelog.storage.log_dir import LogDirError

if TYPE_CHECKING:
    from oncelog.cluster.quorum_log import QuorumLog
    from oncelog.controller.image import Image
    from oncelog.core.config import Settings
    from oncelog.security.scram import ScramCredential, ScramUser
    from oncelog.server.broker import Broker, Environment
    from oncelog.server.peers import Answer

LISTENER: Final = "CONTROLLER"
_SEEN_BY_CLIENTS: Final = (EnvelopeRequest, CreateTopicsRequest)
_LOOK_MS: Final = 1
LONG_LOG_BYTES: Final = 32 << 10
"""A log that is longer, and longer than half of its snapshot, is replaced by a new one at a clean stop, or when a start
has found it so. A start reads both."""
SHORTENED_AFTER_MS: Final = 1_000
"""A start comes first."""

T = TypeVar("T")


class OwnController:
    """A `peers.Peers`. `start` reads and writes files; raises KafkaError or OSError."""

    def __init__(self, broker: Broker, environment: Environment, settings: Settings) -> None:
        self._broker = broker
        self._folder = broker.log_dir.path
        self._path = self._folder / JOURNAL_FILE
        self.facts = NodeFacts()
        self._new_uuid = environment.new_uuid
        self.log = FileMetadataLog(
            self._folder,
            node_id=broker.node_id,
            address=OWN_ADDRESS,
            scheduler=environment.scheduler,
            worker=environment.worker,
            on_fault=self._failed,
        )
        self._settings = settings
        config = ControllerConfig(
            broker.cluster_id,
            broker.node_id,
            settings,
            session_ms=settings.integer("broker.session.timeout.ms"),
            features=FEATURES,
            levels=self._levels({}),
            is_alone=True,
        )
        machine = Machine(config, environment.new_uuid, environment.random_below)
        endpoint = Listener(name=LISTENER, host=OWN_ADDRESS.host, port=OWN_ADDRESS.port)
        self.node = ControllerNode(
            self.log, machine, environment.scheduler, environment.worker, environment.new_uuid(), endpoint
        )
        self._front = ControllerFront(
            self.node,
            broker.cluster_id,
            environment.scheduler,
            broker.budget,
            broker.large_requests,
            broker.encoding,
            lambda: broker.authorizer,
            has_acls=bool(settings.text("authorizer.class.name")),
        )

    def draft(self, *, stopped_epoch: int | None, was_clean: bool, boot_id: str | None) -> MetadataDraft:
        """What is in the folder. Raises LogDirError or OSError."""
        known = NodeFacts.read(self._path)
        if known is not None:
            self._read()
            went_down = not was_clean and (boot_id is None or boot_id != known.boot_id)
            image = self.node.machine.view.image
            draft = MetadataDraft(image, known, went_down=went_down)
            draft.has_changed = image.features != self._levels(image.features) or self._is_of_another_folder(image)
            if self.log.torn_bytes:
                draft.mark_cut(f"its last {self.log.torn_bytes} bytes are torn or damaged")
            elif self.log.committed.end_offset < known.end_offset:
                draft.mark_cut(f"it ends at offset {self.log.committed.end_offset} and was longer")
            elif not self.log.committed.end_offset and self._broker.log_dir.logs:
                # Its length is noted when it is known: not in the first life of a node that was killed.
                draft.mark_cut("it is empty, although there are logs of topics")
        elif self._path.exists():
            from oncelog.cluster.journal_entries import draft_of_journal  # of earlier versions

            draft = draft_of_journal(
                self._path,
                stopped_incarnation=stopped_epoch,
                was_clean=was_clean,
                boot_id=boot_id,
                new_uuid=self._new_uuid,
            )
        else:
            draft = MetadataDraft(None, NodeFacts())
        return draft

    def _levels(self, found: Mapping[str, int]) -> dict[str, int]:
        """Levels of features. Those that were found stay, unless the settings of the node have another."""
        levels = {**found, METADATA_VERSION: METADATA_LEVEL}
        if not found or TRANSACTION_VERSION in self._settings.values:
            levels[TRANSACTION_VERSION] = self._settings.integer(TRANSACTION_VERSION)
        return {name: level for name, level in levels.items() if level}  # one of 0 is none

    def _is_of_another_folder(self, image: Image) -> bool:
        """Whether `meta.properties` has lost the id of the folder that replicas are in. Nobody would lead them."""
        partitions = (each for topic in image.topics.values() for each in topic.partitions.values())
        found = {directory for partition in partitions for directory in partition.directories}
        own = self._broker.log_dir.meta.directory_id
        return any(each != own and each.int >= RESERVED_DIRECTORIES_BELOW for each in found)

    def _read(self) -> None:
        with self._in_words():
            self.log.start(self.node)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, InvalidMetadata, MalformedRequest) as error:
            raise LogDirError(f"the metadata log in {self._folder} cannot be read: {error}") from error

    def take_over(self, draft: MetadataDraft, boot_id: str | None) -> None:
        """What was found, if it is not what this controller knows. Until the last step the folder is as it was."""
        known = NodeFacts.read(self._path)
        if draft.has_changed and (self.log.exists or draft.image != EMPTY_IMAGE):
            directory_id = self._broker.log_dir.meta.directory_id
            invariant(directory_id is not None, "meta.properties has a directory id")
            levels = self._levels(draft.image.features)
            image = draft.led_by(self._broker.node_id, directory_id, levels)  # type: ignore[arg-type]  # checked
            with self._in_words():
                self.log.begin_anew(image)
        if known is None:
            self._read()
        self.facts = NodeFacts(boot_id, draft.doubtful_epoch, self.log.committed.end_offset, draft.secret)
        if self.facts != known:
            # Nothing is committed before the log's first fsync, which has the name of this file too.
            self.facts.write(self._path, folder_follows=True)

    def hand_over(self, follower: QuorumLog) -> None:
        """The broker goes on with what was read or decided here, if it is behind. Of half an append it reads for
        itself."""
        committed = self.log.committed
        if committed.end_offset > follower.end_offset and self.node.is_applied and not committed.is_in_transaction:
            image = self.node.machine.view.image
            follower.begin_with(image, committed.quorum, end_offset=committed.end_offset, epoch=committed.last_epoch)

    def skip_producer_ids_above(self, highest: int) -> None:
        """No id up to `highest` is in blocks that are asked for from here on. Nothing changes if that is so anyway."""
        if highest >= self.node.machine.view.image.next_producer_id:
            self.node.add(partial(skipped_producer_ids, highest))

    def keep_secret(self, secret: bytes) -> None:
        self.facts = self.facts._replace(secret=secret)
        self.facts.write(self._path)

    def note_stop(self) -> None:
        """Note the length of the log before a clean stop, so that a start notices a lost end. Raises OSError."""
        committed = self.log.committed
        if self._is_long and self.log.is_active and not committed.is_in_transaction:
            self.log.write_last_snapshot(self.node.snapshot())
        self.facts = self.facts._replace(end_offset=self.log.committed.end_offset)
        self.facts.write(self._path)

    @property
    def _is_long(self) -> bool:
        committed = self.log.committed
        snapshot_bytes = 0 if committed.snapshot is None else len(committed.snapshot.data)
        return committed.bytes_since_snapshot > max(snapshot_bytes // 2, LONG_LOG_BYTES)

    def start(self) -> None:
        if self._is_long:
            # Each start after a kill adds a change of every partition, and would have more to read than the one before.
            self._broker.later(SHORTENED_AFTER_MS, self.node.store_snapshot)
        self.log.campaign()

    def call(self, purpose: str, address: Address, request: Message, timeout_ms: int) -> Promise[Answer]:
        answer: Promise[Answer] = Promise()
        # The first ones come while it takes office: refused, they would be sent again after a pause.
        self.node.active.then(lambda _: self._front.serve_own(request).then(answer.resolve))
        return answer.chain(self._when_applied) if isinstance(request, _SEEN_BY_CLIENTS) else answer

    def _when_applied(self, answer: T) -> Promise[T]:
        """Whoever has made a topic finds it on this broker when the answer has come, and whoever has deleted one can
        make it again."""
        promise: Promise[T] = Promise()
        end_offset = self.log.committed.end_offset

        def look() -> None:
            membership = self._broker.membership
            is_over = membership is None or membership.ended.done or self._broker.stopped
            if is_over:
                promise.resolve(answer)
            elif membership is not None and membership.applied_offset >= end_offset - 1:
                self._broker.removals.settled.then(lambda _: promise.resolve(answer))
            else:
                self._broker.scheduler.call_later_ms(_LOOK_MS, look)

        look()
        return promise

    def add_users(self, users: Mapping[ScramUser, ScramCredential]) -> Promise[KafkaError | None]:
        """Credentials that are ready, as no request has them."""
        from oncelog.controller.scram_changes import scram_record

        records = [scram_record(user, credential) for user, credential in users.items()]
        return self.node.add(lambda _: records).chain(self._when_applied)

    def _failed(self, problem: str) -> None:
        """What is on disk of the last changes is unknown. The next start finds out."""
        if self._broker.membership is not None:
            self._broker.membership.end(
                f"{self._folder}: {problem}. The broker ends; once the disk works, start it again: it goes on with "
                "what was committed"
            )

    def close(self, *, clean: bool = True) -> None:
        self.log.close(clean=clean)
        self.node.stop()
