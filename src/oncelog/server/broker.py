"""The broker without its sockets: everything a handler can reach, its start and its stop.

It runs on whatever scheduler and worker it is given: an event loop with threads in a server, a virtual clock in a
simulation. Nothing in here waits or blocks longer than a file operation on the page cache.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelog.cluster.adoption import adopt_folders, complete_internal_topics
from oncelog.cluster.cluster_config import FEATURES, check_folder
from oncelog.cluster.internal_topics import internal_partition_count, internal_topic_configs
from oncelog.cluster.kraft_metadata import load_settings
from oncelog.cluster.log_configs import LogConfigs
from oncelog.cluster.log_survey import LogSurvey, survey_logs
from oncelog.cluster.metadata import Metadata, Topic, broker_configs
from oncelog.cluster.partition import EndOfLog
from oncelog.cluster.partitions import PartitionTable
from oncelog.core.address import ALL_ADDRESSES, LOOPBACK, Address
from oncelog.core.broker_config import is_in_cluster
from oncelog.core.clock import JUMP_BELIEVED_AFTER_MS, CautiousClock, Scheduler, SteadyClock
from oncelog.core.config import Settings
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import TRANSACTION_VERSION
from oncelog.core.ids import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NULL_UUID,
    NodeId,
)
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.core.topic_settings import BrokerSettings
from oncelog.core.worker import OneAtATime, Worker
from oncelog.server.authorization import AllowClients, Authorizer, acl_authorizer
from oncelog.server.cleaning import LogCleaner
from oncelog.server.context import RequestContext
from oncelog.server.dispatch import Dispatcher
from oncelog.server.fetch_session import FetchSessionCache
from oncelog.server.flusher import Flusher
from oncelog.server.group_runtime import GroupRuntime
from oncelog.server.large_requests import LargeRequests
from oncelog.server.log_starts import LogStarts
from oncelog.server.log_upkeep import LogUpkeep
from oncelog.server.markers import MarkerSender
from oncelog.server.memory_budget import MemoryBudget
from oncelog.server.metadata_changes import MetadataChanges
from oncelog.server.metrics import Metrics
from oncelog.server.producer_ids import ProducerIds
from oncelog.server.producer_room import ProducerRoom
from oncelog.server.quotas import FORGOTTEN_AFTER_MS, Quotas
from oncelog.server.recurring import RecurringWork
from oncelog.server.removals import Removals
from oncelog.server.turns import Turns
from oncelog.server.txn_runtime import TxnRuntime
from oncelog.storage import clean_shutdown
from oncelog.storage.batch_times import BatchTimesCache
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir

if TYPE_CHECKING:
    from oncelog.cluster.metadata_draft import MetadataDraft
    from oncelog.controller.image import Image
    from oncelog.protocol.messages.broker_registration import Listener as Endpoint
    from oncelog.server.cluster_topics import ClusterTopics
    from oncelog.server.login import Logins
    from oncelog.server.membership import Membership
    from oncelog.server.own_controller import OwnController
    from oncelog.server.peers import Peers
    from oncelog.server.replication import Replication

log = logging.getLogger("oncelog.server")

_NONCE_BITS: Final = 128
_SECRET_BITS: Final = 256


class Node(NamedTuple):
    """A broker in the answers to clients."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None


class FinalisedFeatures(NamedTuple):
    epoch: int
    levels: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything in which a server and a simulation differ."""

    scheduler: Scheduler
    worker: Worker
    new_uuid: Callable[[], uuid.UUID]
    random_below: Callable[[int], int]
    boot_id: str | None = None
    """Changes with each start of the machine. None where the system has no such id."""
    open_files_max: int | None = None
    """The limit of open log files, if there are fewer descriptors than the settings ask for."""


class Broker:
    def __init__(self, data_dir: Path, settings: Settings, environment: Environment) -> None:
        self.scheduler = environment.scheduler
        self._steady_clock = SteadyClock(self.scheduler)
        self._cautious_clock = CautiousClock(self.scheduler, _tell_of_jump)
        self.worker = environment.worker
        self.long_reads = OneAtATime(self.worker)
        """For what clients can make take long: it must not keep fsyncs waiting."""
        self.decoding = OneAtATime(self.worker)
        self.encoding = OneAtATime(self.worker)
        """So are large requests and answers. Python would not work on several of them at once anyway."""
        self.batch_times = BatchTimesCache()
        self._environment = environment
        self.node_id = NodeId(settings.integer("node.id"))
        self._static_settings = settings
        self.advertised: dict[str, Address] = {"PLAINTEXT": Address(LOOPBACK, 0)}
        """The addresses that clients are told to connect to, by listener."""
        self.metrics = Metrics()
        self.budget = MemoryBudget(settings.integer("oncelog.connections.max.bytes"), self.scheduler)
        self.turns = Turns(self.scheduler, self.budget)
        self.large_requests = LargeRequests(self.decoding, self.budget)
        self.removals = Removals(self)
        self.recurring = RecurringWork(self.scheduler)
        self._data_dir = data_dir
        self.is_in_cluster = is_in_cluster(settings)
        """Whether there are other brokers, and controllers elsewhere. A node that is alone has its own controller."""
        self.own_controller: OwnController | None
        self.membership: Membership | None = None
        self.replication: Replication | None = None
        self.cluster_topics: ClusterTopics | None = None
        self.previous_epoch = clean_shutdown.NO_BROKER_EPOCH
        if self.is_in_cluster:
            check_folder(data_dir, settings)
        self.metadata = Metadata()
        self.producer_ids = ProducerIds(self)
        self.log_dir = LogDir.open(
            data_dir,
            node_id=self.node_id,
            cluster_id=settings.optional_text("cluster.id"),
            now_ms=self.now_ms(),
            open_files_max=environment.open_files_max or settings.integer("oncelog.open.files.max"),
            on_locked=self._load_metadata,
            config_for=self._log_config_by_name,
        )
        self.log_survey: LogSurvey | None = None
        """The numbers in the logs; None at a start after a clean stop, or on a folder that was just adopted."""
        self.own_controller = None if self.is_in_cluster else self._open_own_controller()
        self.acls = acl_authorizer(settings, self.metadata.acls)
        serves_brokers = self.is_in_cluster or settings.boolean("oncelog.cluster.action.enable")
        self.authorizer: Authorizer = AllowClients(cluster_action=serves_brokers)
        if self.acls is not None:
            self.authorizer = self.acls
        self.quotas = Quotas(self.metadata.quotas, self.steady_ms)
        self.flusher = Flusher(self.scheduler, self.worker)
        self.acks_fsync = self.settings.boolean("oncelog.acks.fsync")
        self.producer_room = ProducerRoom(self)
        self.partitions = PartitionTable(
            self.log_dir,
            self.metadata,
            self.node_id,
            self.log_config,
            self.now_ms,
            self.flusher if self.acks_fsync else EndOfLog(),
            verifies=lambda: self.settings.boolean("transaction.partition.verification.enable"),
            steady_ms=self.steady_ms,
            admit_producer=self.producer_room.admit,
            # With other brokers a partition takes its role when the controller says so, and nobody would ask again.
            is_removing=lambda: not self.is_in_cluster and self.removals.are_begun,
        )
        self.metadata_changes = MetadataChanges(self)
        self.fetch_sessions = self.new_fetch_sessions()
        self.markers = MarkerSender(self)
        self.transactions = TxnRuntime(self)
        self.groups = GroupRuntime(self)
        self.cleaner = LogCleaner(self)
        self.upkeep = LogUpkeep(self)
        self.log_starts = LogStarts(self.upkeep.write_checkpoint)
        self.dispatcher = Dispatcher(self)
        self.has_started = False
        self._has_ended = False
        self.stopped = False

    # Identity and settings

    @property
    def cluster_id(self) -> str:
        return self.log_dir.meta.cluster_id

    def now_ms(self) -> int:
        return self.scheduler.now_ms()

    def steady_ms(self) -> int:
        """The clock for time-outs: it is not affected when the time of day is set."""
        return self._steady_clock.now_ms()

    def cautious_ms(self) -> int:
        """The clock for deletion by age: a time of day that was set ahead counts only when it has lasted."""
        return self._cautious_clock.now_ms()

    def new_uuid(self) -> uuid.UUID:
        return self._environment.new_uuid()

    def new_fetch_sessions(self) -> FetchSessionCache:
        return FetchSessionCache(
            self.settings.integer("max.incremental.fetch.session.cache.slots"),
            self.settings.integer("oncelog.fetch.session.partitions.max"),
            lambda: self._environment.random_below(2**31 - 1) + 1,
        )

    def new_member_suffix(self) -> str:
        return str(self.new_uuid())

    def new_nonce(self) -> str:
        """A random text that nobody can guess and that was never used before."""
        return f"{self._environment.random_below(1 << _NONCE_BITS):032x}"

    @property
    def secret(self) -> bytes:
        """Random bytes, made once, that no client knows."""
        if self.metadata.secret is None:
            raise RuntimeError("make_secret was not called")
        return self.metadata.secret

    def make_secret(self) -> None:
        """Make the secret at the start if there is none."""
        if self.metadata.secret is not None:
            return
        value = self._environment.random_below(1 << _SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        self.metadata.secret = value
        if self.own_controller is not None:
            self.own_controller.keep_secret(value)

    @cached_property
    def logins(self) -> Logins:
        """What logs clients in, on listeners with SASL. Brokers without one do not import it."""
        from oncelog.server.login import Logins

        return Logins(
            self.dispatcher,
            settings=lambda: self.settings,
            scheduler=self.scheduler,
            steady_ms=self.steady_ms,
            users=lambda: self.metadata.users,
            secret=lambda: self.secret,
            new_nonce=self.new_nonce,
            on_failure=lambda: self.metrics.rejected(ErrorCode.SASL_AUTHENTICATION_FAILED.name),
            is_alone=not self.is_in_cluster,
        )

    @property
    def controller_id(self) -> NodeId:
        """Whom clients send what controllers decide. In a cluster any broker passes it on."""
        return self.node_id

    def nodes(self, context: RequestContext, *, with_fenced: bool = False) -> dict[NodeId, Node]:
        """The brokers, and where to send a client for each. One that listens on all addresses is named by the address
        that the client reached it by. To those that are fenced, as while they are away, nobody is sent."""
        if self.is_in_cluster:
            return self._nodes_of_cluster(self.metadata.image, context.peer.listener, with_fenced)
        address = self.advertised[context.peer.listener]
        host = context.peer.local_host if address.host in ALL_ADDRESSES else address.host
        return {self.node_id: Node(self.node_id, host, address.port)}

    def _nodes_of_cluster(self, image: Image, listener: str, with_fenced: bool) -> dict[NodeId, Node]:
        return {
            broker.broker_id: Node(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in image.brokers.values()
            if (with_fenced or not broker.is_fenced) and (endpoint := broker.listeners.get(listener)) is not None
        }

    def why_out_of_reach(self, leader: NodeId, context: RequestContext) -> ErrorCode:
        """Why a leader is not among `nodes`: it has no listener of the name that the client uses, or it is away."""
        known = self.metadata.image.brokers.get(leader)
        is_elsewhere = known is not None and context.peer.listener not in known.listeners
        return ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE

    def finalised_features(self) -> FinalisedFeatures:
        """Clients choose their transaction protocol by them."""
        if self.membership is not None:
            return FinalisedFeatures(max(0, self.membership.applied_offset), self.membership.finalised)
        return FinalisedFeatures(0, {TRANSACTION_VERSION: self.settings.integer(TRANSACTION_VERSION)})

    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """Their lowest and highest levels."""
        return {each.name: (each.min_supported_version, each.max_supported_version) for each in FEATURES}

    def join_own(self, endpoints: Sequence[Endpoint], listener: str) -> Membership:
        """`join` of a node that is alone. Raises KafkaError, InvalidMetadata or OSError."""
        controller = self.own_controller
        if controller is None:
            raise RuntimeError("this broker has no controller of its own")
        controller.start()
        return self.join(controller, controller, endpoints, listener)

    def join(self, controllers: Peers, brokers: Peers, endpoints: Sequence[Endpoint], listener: str) -> Membership:
        """Begins to follow the metadata of the cluster, and registers. `listener` is the one between brokers."""
        from oncelog.cluster.cluster_config import cluster_config
        from oncelog.server.cluster_topics import ClusterTopics
        from oncelog.server.membership import Membership
        from oncelog.server.replication import Replication

        alone = None if self.own_controller is None else [self.own_controller.log.address]
        config = cluster_config(self._static_settings, alone)
        self.membership = Membership(self, controllers, config, endpoints)
        if self.own_controller is not None:
            self.own_controller.hand_over(self.membership.quorum)
        self.replication = Replication(self, self.membership, brokers, config, listener)
        self.cluster_topics = ClusterTopics(self, self.membership)
        self.partitions.rules = self.replication.rules
        self.membership.start()
        return self.membership

    def _load_metadata(self) -> None:
        self._stopped_epoch = clean_shutdown.read_broker_epoch(self._data_dir)
        if self._stopped_epoch is not None:
            self.previous_epoch = self._stopped_epoch
        if not self.is_in_cluster and not clean_shutdown.has_clean_stop(self._data_dir):
            # All logs are read before there is a controller: by what was set for this broker while it ran.
            self.metadata.broker_configs = broker_configs(load_settings(self._data_dir))
        self.adopt_settings()

    def _open_own_controller(self) -> OwnController:
        from oncelog.server.own_controller import OwnController

        controller = OwnController(self, self._environment, self._static_settings)
        try:
            draft = controller.draft(
                stopped_epoch=self._stopped_epoch, was_clean=self.log_dir.was_clean, boot_id=self._environment.boot_id
            )
            complete_internal_topics(draft, self.settings)
            self._adopt(draft)
            controller.take_over(draft, self._environment.boot_id)
        except BaseException:
            controller.close(clean=False)
            self.log_dir.abandon()
            raise
        self.metadata.secret = controller.facts.secret
        self.metadata.doubtful_epoch = controller.facts.doubtful_epoch
        return controller

    def _adopt(self, draft: MetadataDraft) -> None:
        is_first = draft.is_new
        needs_survey = is_first or draft.is_cut or not self.log_dir.was_clean
        survey = survey_logs(self.log_dir.logs.values()) if needs_survey else None
        self.log_survey = None if is_first else survey
        adopt_folders(self.log_dir, draft, self.settings, survey)

    def adopt_settings(self) -> None:
        """Take over the settings of the metadata, which come before those that the broker was started with."""
        self.broker_settings = BrokerSettings(self._static_settings, self.metadata.broker_configs, str(self.node_id))
        self.settings = self.broker_settings.settings
        self._log_configs = LogConfigs(self.broker_settings)
        self.fetch_max_bytes = self.settings.integer("fetch.max.bytes")

    def log_config(self, topic: Topic) -> LogConfig:
        return self._log_configs.of(topic.configs)

    def _log_config_by_name(self, name: str) -> LogConfig:
        topic = self.metadata.topics.get(name)
        if topic is None:
            # One that will be adopted, or set aside.
            topic = Topic(name, NULL_UUID, 1, internal_topic_configs(name, self.settings))
        return self.log_config(topic)

    # Topics that come to be by themselves

    def auto_create_topic(self, name: str) -> Promise[Topic | KafkaError]:
        if name in INTERNAL_TOPICS:
            return self.internal_topic(name)
        if not self.settings.boolean("auto.create.topics.enable") or name == CLUSTER_METADATA_TOPIC:
            return Promise.resolved(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        count = self.settings.integer("num.partitions")
        log.info("topic %s is created with %d partition(s) because a client asked for it", name, count)
        return self._ensure_topic(name, -1, {})

    def internal_topic(self, name: str) -> Promise[Topic | KafkaError]:
        topic = self.metadata.topics.get(name)
        if topic is not None:
            return Promise.resolved(topic)
        count = internal_partition_count(name, self.settings)
        configs = internal_topic_configs(name, self.settings)
        return self._ensure_topic(name, count, configs)

    def _ensure_topic(self, name: str, count: int, configs: Mapping[str, str]) -> Promise[Topic | KafkaError]:
        invariant(self.cluster_topics is not None, "clients are served once the broker has joined")
        return self.cluster_topics.ensure(name, count, configs)  # type: ignore[union-attr]  # checked

    # Start and stop

    def start(self) -> None:
        self.has_started = True
        if self.acks_fsync:
            # What was found after a crash may have been in the page cache only; from here on it counts as committed.
            self.log_dir.checkpoint(self.log_dir.high_watermarks)
        self.transactions.start()
        self.groups.start()
        self.cleaner.start()
        self.upkeep.start()
        self.recurring.every("quotas", FORGOTTEN_AFTER_MS, self.quotas.forget_idle)
        if self.replication is not None:
            self.replication.start()

    def later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back after a delay, 0 for the next turn of the loop, unless the broker has ended by then."""
        self.scheduler.call_later_ms(delay_ms, lambda: None if self._has_ended else callback())

    def end_work(self) -> None:
        """Begin nothing new. Work on worker threads must be finished before a clean stop: it would write files that are
        older than those of the stop, and the kernel reports a failed fsync only once."""
        if self._has_ended:
            return
        self._has_ended = True
        self.recurring.stop()
        if self.replication is not None:
            self.replication.stop()
        if self.membership is not None:
            self.membership.stop()
        self.cleaner.stop()
        self.groups.stop()
        self.transactions.stop()

    def stop(self, *, clean: bool = True) -> None:
        """Ends all work; a clean stop leaves what spares the next start a scan: snapshots, checkpoints, the marker."""
        if self.stopped:
            return
        self.stopped = True
        self.end_work()
        self.flusher.stop()
        if self.membership is not None:
            self.membership.finish_applying()
        self._remove_what_was_deleted_last()
        self.removals.finish()
        self.turns.stop()
        broker_epoch = self._note_stop() if clean else clean_shutdown.NO_BROKER_EPOCH
        if self.own_controller is not None:
            self.own_controller.close(clean=clean)
        if clean:
            self.log_dir.close(self.upkeep.high_watermarks(), broker_epoch=broker_epoch)
        else:
            self.log_dir.abandon()

    def _remove_what_was_deleted_last(self) -> None:
        """Remove topics whose deletion was committed when the broker did not follow its own controller any more: the
        next start would not look for them."""
        if self.own_controller is not None:
            left = self.own_controller.node.machine.view.image.topics
            for topic in [topic for topic in self.metadata.topics.values() if topic.topic_id not in left]:
                self.removals.begin(at_once(self.partitions.delete(topic)))

    def _note_stop(self) -> int:
        if self.own_controller is not None:
            try:
                self.own_controller.note_stop()
            except OSError as error:
                log.error("this stop could not be noted: the next start would not notice lost metadata: %s", error)
        if self.membership is None or self.membership.lifecycle.epoch < 0:
            # One that was not registered has served nobody: its logs are those of the stop before.
            return self.previous_epoch
        return self.membership.lifecycle.epoch

    # Telling the operator

    def log_rejection(self, topic: str, index: int, transactional_id: str | None, error: KafkaError) -> None:
        """Of batches that clients produce."""
        self.metrics.rejected(error.code.name)
        if error.code not in _ORDINARY_REJECTIONS:
            whose = f" of transactional id {transactional_id!r}" if transactional_id else ""
            log.info("Produce%s to %s-%d is refused: %s", whose, topic, index, error)

    def log_refusal(self, api: str, code: ErrorCode, reason: str) -> None:
        self.metrics.rejected(code.name)
        if code not in _ORDINARY_REJECTIONS:
            log.info("%s is refused with %s: %s", api, code.name, reason)


def _tell_of_jump(by_ms: int) -> None:
    log.warning(
        "the clock of the machine was set ahead by %d s: nothing is deleted because of its age until it has shown that "
        "time for %d minutes, or until the next start",
        by_ms // 1000,
        JUMP_BELIEVED_AFTER_MS // 60_000,
    )


_ORDINARY_REJECTIONS = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.CONCURRENT_TRANSACTIONS}
)
