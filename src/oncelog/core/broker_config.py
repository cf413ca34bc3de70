"""Broker configuration keys: Kafka 4.3's names and defaults; Oncelog's own keys start with `oncelog.`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from oncelog.core.config import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    Settings,
    refused,
    without_effect,
)
from oncelog.core.tls_config import NAME_CHECK, TLS_KEYS
from oncelog.core.topic_config import NOT_TIERED, ONE_REPLICA, TOPIC_CONFIG

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _octal_problem(text: str) -> str | None:
    return None if re.fullmatch(r"0?[0-7]{3}", text) else "must be three octal digits, such as 077"


_IDENTITY = [
    ConfigKey("node.id", _INT, 1, "This broker's number.", low=0),
    ConfigKey("cluster.id", _STRING, None, "22-character base64 id of the cluster; made up at first start."),
    ConfigKey("log.dirs", _STRING, None, "The data folder."),
    ConfigKey("listeners", _STRING, "PLAINTEXT://127.0.0.1:9092",
              "Where clients are accepted: NAME://HOST:PORT, separated by commas."),
    ConfigKey("advertised.listeners", _STRING, None, "What clients are told to connect to."),
    ConfigKey("transaction.version", _SHORT, 2,
              "The transaction protocol of one node, 0, 1 or 2; where it is not set, a level that was finalised stays. "
              "In a cluster controllers decide.",
              low=0, high=2),
]  # fmt: skip


ALONE = "it is for a broker in a cluster, with process.roles=broker"


def _roles_problem(roles: tuple[str, ...]) -> str | None:
    if sorted(roles) in (["broker"], ["controller"], ["broker", "controller"]):
        return None
    return "broker joins a cluster; controller decides for one; broker,controller is a node of its own"


FOR_CONTROLLERS = "it is for controllers, with process.roles=controller"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

_ZOOKEEPER = [
    ConfigKey("zookeeper.connect", _STRING, None,
              "Where several controllers keep their log: HOST:PORT,HOST:PORT/chroot. Without it, one has it in files.",
              no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.session.timeout.ms", _INT, 18_000,
              "After so long without a word of the active controller another one takes over.", low=1,
              no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.set.acl", _BOOLEAN, False,
              "Whether nodes are made so that only who has the same credentials may use them.",
              no_effect=FOR_CONTROLLERS),
    ConfigKey("oncelog.zookeeper.digest", _STRING, "", "Credentials for ZooKeeper, USER:PASSWORD.", sensitive=True,
              no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.ssl.client.enable", _BOOLEAN, False, "Whether ZooKeeper is reached by TLS.",
              no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.ssl.keystore.location", _STRING, None,
              "A PEM file with one's own key and certificates, if ZooKeeper asks for them.", no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.ssl.keystore.password", _STRING, None, "The password of that key, if it has one.",
              sensitive=True, no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.ssl.truststore.location", _STRING, None,
              "A PEM file with the certificates that ZooKeeper is trusted by.", no_effect=FOR_CONTROLLERS),
    ConfigKey("zookeeper.ssl.endpoint.identification.algorithm", _STRING, "HTTPS",
              "HTTPS: the certificate must be for the host's name. Empty: for any.", no_effect=FOR_CONTROLLERS),
]  # fmt: skip

_CLUSTER = [
    ConfigKey("process.roles", _LIST, ("broker", "controller"),
              "broker: a broker in a cluster, whose controllers are Apache Kafka's or Oncelog's. controller: the "
              "controller of a cluster. broker,controller: one node alone.",
              check=_roles_problem),
    ConfigKey("controller.quorum.bootstrap.servers", _LIST, None, "Controllers to begin with, HOST:PORT.",
              no_effect=ALONE),
    ConfigKey("controller.quorum.voters", _LIST, None, "The same as ID@HOST:PORT.", no_effect=ALONE),
    ConfigKey("controller.listener.names", _STRING, None,
              "Names of the controllers' listeners; of those that are listed here as well, none is opened.",
              no_effect=ALONE),
    ConfigKey("inter.broker.listener.name", _STRING, None,
              "The listener by which brokers reach each other; PLAINTEXT if there is one, else the first.",
              no_effect=ALONE),
    ConfigKey("security.inter.broker.protocol", _STRING, None,
              "The same by protocol, for listeners that are named as their protocol.", no_effect=ALONE),
    ConfigKey("sasl.mechanism.inter.broker.protocol", _STRING, None,
              "How brokers log in to each other: PLAIN or SCRAM-SHA-256 or -512, as the user in the listener's "
              "sasl.jaas.config.", no_effect=ALONE),
    ConfigKey("sasl.mechanism.controller.protocol", _STRING, None, "The same for controllers.", no_effect=ALONE),
    replace(NAME_CHECK, no_effect=ALONE),
    ConfigKey("broker.rack", _STRING, None, "Where the broker stands: replicas are spread over racks.",
              no_effect=ALONE),
    ConfigKey("replica.selector.class", _STRING, None,
              "RackAwareReplicaSelector: consumers with a client.rack read from a follower in their rack.",
              allowed=(RACK_AWARE_SELECTOR, LEADER_SELECTOR), no_effect=ALONE),
    ConfigKey("broker.heartbeat.interval.ms", _INT, 2_000, "Time between two heartbeats to the controller.", low=1,
              no_effect=ALONE),
    ConfigKey("broker.session.timeout.ms", _INT, 9_000,
              "As the controllers have it: without a heartbeat for so long they fence the broker.", low=1,
              no_effect=ALONE),
    ConfigKey("auto.leader.rebalance.enable", _BOOLEAN, True,
              "Whether a controller gives leadership back to the first replica when it is in sync again.",
              no_effect=ALONE),
    ConfigKey("leader.imbalance.check.interval.seconds", _LONG, 300, "How often a controller looks for that.", low=1,
              no_effect=ALONE),
    ConfigKey("initial.broker.registration.timeout.ms", _INT, 60_000,
              "How long the first registration may take.", low=1, no_effect=ALONE),
    ConfigKey("leader.replication.throttled.rate", _LONG, LONG_MAX,
              "Bytes per second that this broker sends to followers of leader.replication.throttled.replicas.", low=0,
              dynamic=True, no_effect=ALONE),
    ConfigKey("follower.replication.throttled.rate", _LONG, LONG_MAX,
              "Bytes per second that this broker fetches for follower.replication.throttled.replicas.", low=0,
              dynamic=True, no_effect=ALONE),
    ConfigKey("replica.lag.time.max.ms", _LONG, 30_000,
              "A replica that has not caught up for so long is not in sync any more.", low=1, no_effect=ALONE),
    ConfigKey("replica.fetch.wait.max.ms", _INT, 500, "How long the fetch of a follower waits for data.", low=1,
              no_effect=ALONE),
    ConfigKey("replica.fetch.min.bytes", _INT, 1, "Bytes that such a fetch waits for.", low=1, no_effect=ALONE),
    ConfigKey("replica.fetch.max.bytes", _INT, 1_048_576, "Most bytes of one partition.", low=1,
              no_effect=ALONE),
    ConfigKey("replica.fetch.response.max.bytes", _INT, 10_485_760, "Most bytes of all partitions.", low=1,
              no_effect=ALONE),
    ConfigKey("replica.fetch.backoff.ms", _INT, 1_000, "Pause of a follower after an error.", low=1, no_effect=ALONE),
    ConfigKey("replica.socket.timeout.ms", _INT, 30_000, "How long a leader may take for an answer.", low=1,
              no_effect=ALONE),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", _LONG, 5_000,
              "Time between two checkpoints of what is committed.", low=1, no_effect=ALONE),
]  # fmt: skip


def _authorizer_problem(text: str) -> str | None:
    known = (STANDARD_AUTHORIZER, "")
    return None if text in known else f"no class is loaded; {STANDARD_AUTHORIZER} stands for Kafka's ACLs"


def _keys_url_problem(text: str) -> str | None:
    return None if text.startswith(("https://", "file:///")) else "must begin with https:// or file:///"


_SECURITY = [
    ConfigKey("listener.security.protocol.map", _STRING, None,
              "NAME:PROTOCOL pairs for listeners that are not named after their protocol."),
    ConfigKey("sasl.enabled.mechanisms", _LIST, None,
              "SASL mechanisms of listeners; listener.name.NAME.sasl.enabled.mechanisms goes before it."),
    ConfigKey("sasl.server.max.receive.size", _INT, 524_288, "Largest frame of a client that is not authenticated yet.",
              low=512),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", _STRING, None,
              "Where the keys are that sign tokens: https://... or file:///...", check=_keys_url_problem),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, 3_600_000, "How often they are read again.",
              low=1000),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, 100, "Pause after a failure to read them.",
              low=1),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, 10_000, "The longest such pause.", low=1),
    ConfigKey("sasl.oauthbearer.expected.audience", _LIST, (),
              "A token must be for one of them; * for any."),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, "Who must have issued a token; * for anybody."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", _INT, 30, "How much clocks may differ.", low=0, high=3600),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "The claim of a token that has the user."),
    ConfigKey("oncelog.oauthbearer.unsecured.enable", _BOOLEAN, False,
              "Whether tokens without a signature are taken. Anybody can make one: for development only."),
    ConfigKey("connections.max.reauth.ms", _LONG, 0,
              "How long a client that logged in with SASL stays so; it has to log in again before. 0: for ever.",
              low=0),
    ConfigKey("connection.failed.authentication.delay.ms", _INT, 100,
              "How long the answer to a failed login is held back.", low=0),
    ConfigKey("authorizer.class.name", _STRING, "",
              "Kafka's StandardAuthorizer turns ACLs on. Without it every client may do everything.",
              check=_authorizer_problem),
    ConfigKey("super.users", _STRING, "", "Principals that may do everything, separated by semicolons: User:admin."),
    ConfigKey("allow.everyone.if.no.acl.found", _BOOLEAN, False,
              "Whether a resource that no ACL is about is open to all."),
]  # fmt: skip

_TLS = [
    *TLS_KEYS.values(),
    ConfigKey("ssl.client.auth", _STRING, "none",
              "Whether clients must have a certificate. For SASL_SSL only listener.name.NAME.ssl.client.auth counts.",
              allowed=("none", "requested", "required")),
    ConfigKey("ssl.principal.mapping.rules", _STRING, "DEFAULT",
              "From the name in a client's certificate to a user: RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT, in order."),
]  # fmt: skip

_OF_LISTENERS = [
    ConfigKey("listener.name.", _STRING, None, "A setting of one listener.", sensitive=True),
]

_TOPICS = [
    ConfigKey("auto.create.topics.enable", _BOOLEAN, True, "Whether a metadata request may create a topic."),
    ConfigKey("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    ConfigKey("num.partitions", _INT, 1, "Partitions of an auto-created topic.", low=1, dynamic=True),
    ConfigKey("default.replication.factor", _INT, 1, "Replicas of an auto-created topic.", low=1, dynamic=True),
    *(replace(key, name=key.synonym, synonym=None, dynamic=True) for key in TOPIC_CONFIG if key.synonym is not None),
]

RECORD_VALIDATION: Final = ("batch", "lengths", "records")

_LOG = [
    ConfigKey("log.cleaner.enable", _BOOLEAN, True, "Whether compaction runs."),
    ConfigKey("log.cleaner.backoff.ms", _LONG, 15_000, "Pause of the cleaner when there is nothing to do.", low=0),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, 134_217_728, "Memory for the cleaner's offset map.", low=1024),
    ConfigKey("log.retention.check.interval.ms", _LONG, 300_000, "Time between looks for old segments.", low=1),
    ConfigKey("oncelog.acks.fsync", _BOOLEAN, False,
              "Whether acks=all and every decision of a coordinator wait until the data are on disk."),
    ConfigKey("oncelog.record.validation", _STRING, "lengths",
              "What is looked at before a batch is stored. batch: its header, checksum and codec, and whether its "
              "records can be in its bytes; lengths: also the lengths of the first 50 records, where they are not "
              "compressed; records: every field of every record, as Kafka does.",
              allowed=RECORD_VALIDATION, dynamic=True),
    ConfigKey("oncelog.batch.records.max", _INT, 500_000,
              "Records of one batch; more are refused with MESSAGE_TOO_LARGE, upon which Java's producer splits it.",
              low=1, dynamic=True),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", _INT, 60_000, "Time between two checkpoints.", low=0),
    ConfigKey("producer.id.expiration.ms", _INT, 86_400_000, "Idle time after which a producer is forgotten.",
              low=1, dynamic=True),
    ConfigKey("producer.id.expiration.check.interval.ms", _INT, 600_000, "Time between two such looks.",
              low=1, internal=True),
]  # fmt: skip

_GROUPS = [
    ConfigKey("group.initial.rebalance.delay.ms", _INT, 0,
              "Wait for more members before a new group's first rebalance. Kafka's default is 3000, for clusters in "
              "which many members start at once; its own single-node example sets 0, as Oncelog does.", low=0),
    ConfigKey("group.min.session.timeout.ms", _INT, 6_000, "Shortest session time-out a member may ask for.", low=0),
    ConfigKey("group.max.session.timeout.ms", _INT, 1_800_000, "Longest one.", low=0),
    ConfigKey("group.max.size", _INT, INT_MAX, "Most members of a group.", low=1),
    ConfigKey("offset.metadata.max.bytes", _INT, 4096, "Longest metadata text of a committed offset.", low=0),
    ConfigKey("offsets.retention.minutes", _INT, 10_080, "How long an empty group's offsets are kept.", low=1),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, 600_000, "Time between two looks for expired ones.", low=1),
    ConfigKey("offsets.topic.num.partitions", _INT, 50, "Partitions of __consumer_offsets.", low=1),
    ConfigKey("offsets.topic.replication.factor", _SHORT, 3, "Its replicas; at most as many as there are brokers.",
              low=1, no_effect=ONE_REPLICA),
    ConfigKey("offsets.topic.segment.bytes", _INT, 104_857_600, "Its segment size.", low=1),
]  # fmt: skip

_TRANSACTIONS = [
    ConfigKey("transaction.max.timeout.ms", _INT, 900_000, "Longest transaction time-out a producer may ask for.",
              low=1),
    ConfigKey("transactional.id.expiration.ms", _INT, 604_800_000, "Idle time after which an id is forgotten.", low=1),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10_000,
              "Time between two looks for timed-out transactions.", low=1),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, 3_600_000,
              "Time between two looks for expired transactional ids.", low=1),
    ConfigKey("transaction.state.log.num.partitions", _INT, 50, "Partitions of __transaction_state.", low=1),
    ConfigKey("transaction.state.log.replication.factor", _SHORT, 3, "Its replicas; at most as many as brokers.",
              low=1, no_effect=ONE_REPLICA),
    ConfigKey("transaction.state.log.min.isr", _INT, 2, "Replicas that must have a decision; at most its replicas.",
              low=1, no_effect=ONE_REPLICA),
    ConfigKey("transaction.state.log.segment.bytes", _INT, 104_857_600, "Its segment size.", low=1),
    ConfigKey("transaction.partition.verification.enable", _BOOLEAN, True,
              "Whether the first write of a transaction on a partition is checked with the coordinator (TV0/1).",
              dynamic=True),
    ConfigKey("oncelog.cluster.action.enable", _BOOLEAN, False,
              "Whether clients may send what brokers send each other: WriteTxnMarkers, for 'oncelog txn abort', and "
              "AddPartitionsToTxn of several ids. With an authorizer it takes an ACL for ClusterAction instead."),
    ConfigKey("transaction.two.phase.commit.enable", _BOOLEAN, False, "Whether producers may take part in 2PC."),
]  # fmt: skip

_LIMITS = [
    ConfigKey("socket.request.max.bytes", _INT, 104_857_600, "Largest request frame.", low=1),
    ConfigKey("max.connections", _INT, INT_MAX, "Most connections at a time.", low=0, dynamic=True, dynamic_low=10),
    ConfigKey("max.connections.per.ip", _INT, INT_MAX, "Most connections of one address.", low=0, dynamic=True,
              dynamic_low=10),
    ConfigKey("max.connections.per.ip.overrides", _STRING, "", "ADDRESS:NUMBER pairs that go before it."),
    ConfigKey("max.connection.creation.rate", _INT, INT_MAX, "New connections per second; more have to wait.",
              low=1, dynamic=True),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, "Idle time after which a connection is closed."),
    ConfigKey("fetch.max.bytes", _INT, 57_671_680, "Most bytes of one fetch answer.", low=1024),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, 1_000, "Fetch sessions kept.", low=0),
    ConfigKey("oncelog.fetch.session.partitions.max", _INT, 250_000,
              "Partitions of all fetch sessions; a client that would exceed it is served without one.", low=0),
    ConfigKey("oncelog.connections.max.bytes", _LONG, 536_870_912,
              "Requests in reception or service and answers not yet taken, of all clients together; above it, requests "
              "wait and whoever holds most is closed. From half of it on, fetches are answered with little.",
              low=131_072),
    ConfigKey("oncelog.parked.requests.max", _INT, 10_000,
              "Requests that may wait for a transaction to settle; more get CONCURRENT_TRANSACTIONS.", low=0),
    ConfigKey("oncelog.parked.request.ms", _INT, 2_000, "How long such a request waits at most.", low=0),
    ConfigKey("oncelog.partitions.max", _INT, 100_000, "Partitions of all topics; more are refused.", low=1),
    ConfigKey("oncelog.metadata.max.bytes", _LONG, 33_554_432,
              "Memory of settings of topics, quotas, ACLs and users, estimated; more are refused.", low=1_048_576),
    ConfigKey("oncelog.partition.producer.ids.max", _INT, 30_000,
              "Producers that one partition remembers; on it, further ones are refused.", low=1),
    ConfigKey("oncelog.producer.ids.max", _INT, 250_000,
              "Producers that all partitions remember together, each counted on each of its partitions; on a partition "
              "that does not know them, more are refused.", low=1),
    ConfigKey("oncelog.transactional.ids.max", _INT, 500_000, "Transactional ids known at a time; more are refused.",
              low=1),
    ConfigKey("oncelog.transactional.ids.max.bytes", _LONG, 67_108_864,
              "Bytes of all transactional ids and of the partitions of their transactions; more are refused.", low=1),
    ConfigKey("oncelog.groups.max", _INT, 100_000, "Groups known at a time; more are refused.", low=1),
    ConfigKey("oncelog.groups.max.bytes", _LONG, 134_217_728,
              "Memory of the ids of all groups and of all their members; what would exceed it is refused.",
              low=1),
    ConfigKey("oncelog.offsets.max.bytes", _LONG, 134_217_728,
              "Memory of the committed offsets of all groups; an offset that would exceed it is refused.", low=1),
    ConfigKey("oncelog.group.waiting.members.max", _INT, 1_000,
              "Members of a group that were given an id and have not come back with it; more are turned away.", low=1),
    ConfigKey("oncelog.group.metadata.max.bytes", _INT, 16_777_216,
              "Memory of the members of a group, with what they tell of themselves; more are turned away.", low=1),
    ConfigKey("oncelog.open.files.max", _INT, 512, "Log files kept open at a time.", low=16),
    ConfigKey("oncelog.umask", _STRING, "077",
              "Permissions that files and folders of the broker are made without, in octal; 022 lets others read.",
              check=_octal_problem),
    ConfigKey("oncelog.metrics.port", _INT, 0, "Port for Prometheus; 0 is off.", low=0, high=65_535),
    ConfigKey("oncelog.metrics.tls.enable", _BOOLEAN, False,
              "Whether that port has TLS, with ssl.keystore.location and ssl.client.auth."),
]  # fmt: skip

_NO_CONTROLLER = "there is no controller"
_NO_SUCH_GROUPS = "all groups are classic ones"
_ONE_THREAD = "one thread serves all clients, and a few others the disk"
_OWN_FETCHES = "a follower has one connection to each leader, and tunes it itself"
_OTHER_COORDINATOR = "it tunes how Kafka's coordinators write and load their logs"

# Keys of Kafka that its users have in their files and that one Python process has no use for. Those that ask for
# security are not among them: a broker without it must not start.
_WITHOUT_EFFECT = [
    *without_effect("the connection is tried until it is there", "zookeeper.connection.timeout.ms"),
    *without_effect(_NO_CONTROLLER, "controller.", "metadata.", "controlled.shutdown.enable"),
    *without_effect(_NO_SUCH_GROUPS, "group.consumer.", "group.share.", "group.streams.", "share.",
                    "group.coordinator.rebalance.protocols", "group.coordinator.new.enable"),
    *without_effect(NOT_TIERED, "remote."),
    *without_effect(_OWN_FETCHES, "replica."),
    *without_effect(_ONE_THREAD, "queued.max.requests", "socket.send.buffer.bytes", "socket.receive.buffer.bytes",
                    "socket.listen.backlog.size"),
    *without_effect(_OTHER_COORDINATOR, "offsets.load.buffer.size", "offsets.topic.compression.codec",
                    "offsets.commit.timeout.ms", "transaction.state.log.load.buffer.size",
                    "transaction.state.log.append.timeout.ms", "add.partitions.to.txn.retry.backoff.ms",
                    "add.partitions.to.txn.retry.backoff.max.ms"),
]  # fmt: skip

# The same for those that Kafka lets change while it runs. What tunes a security that nobody has asked for is harmless.
_DYNAMIC_WITHOUT_EFFECT = [
    *without_effect(_ONE_THREAD, "background.threads", "num.io.threads", "num.network.threads",
                    "num.recovery.threads.per.data.dir", "log.cleaner.threads", "log.cleaner.io.buffer.load.factor",
                    "log.cleaner.io.buffer.size", "log.cleaner.io.max.bytes.per.second", dynamic=True),
    *without_effect(_NO_SUCH_GROUPS, "group.consumer.assignment.interval.ms", "group.share.assignment.interval.ms",
                    "group.streams.assignment.interval.ms", "share.coordinator.cached.buffer.max.bytes", dynamic=True),
    *without_effect(_OTHER_COORDINATOR, "group.coordinator.cached.buffer.max.bytes", dynamic=True),
    *without_effect(_OWN_FETCHES, "num.replica.fetchers", dynamic=True),
    *without_effect(NOT_TIERED, "follower.fetch.last.tiered.offset.enable", "log.local.retention.bytes",
                    "log.local.retention.ms", "remote.fetch.max.wait.ms", "remote.list.offsets.request.timeout.ms",
                    "remote.log.index.file.cache.total.size.bytes", "remote.log.manager.copier.thread.pool.size",
                    "remote.log.manager.copy.max.bytes.per.second", "remote.log.manager.expiration.thread.pool.size",
                    "remote.log.manager.fetch.max.bytes.per.second", "remote.log.manager.follower.thread.pool.size",
                    "remote.log.reader.threads", dynamic=True),
    *without_effect("OpenSSL is used, not Java", "ssl.protocol", "ssl.provider", "ssl.keymanager.algorithm",
                    "ssl.trustmanager.algorithm", "ssl.secure.random.implementation"),
    *without_effect("a certificate may be replaced by any that can be used", "ssl.allow.dn.changes",
                    "ssl.allow.san.changes"),
    *without_effect("rates are measured over 11 windows of a second", "quota.window.num", "quota.window.size.seconds"),
    *without_effect("scopes of tokens are not looked at", "sasl.oauthbearer.scope.claim.name"),
    *without_effect("there is no Kerberos, and no broker logs in to another", "sasl.kerberos.kinit.cmd",
                    "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.jitter",
                    "sasl.kerberos.ticket.renew.window.factor",
                    "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds",
                    "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter", dynamic=True),
]  # fmt: skip

_OF_MECHANISMS = refused(
    "it belongs to a listener and a mechanism, in lower case: "
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config is one of SASL_SSL",
    "sasl.jaas.config",
)

# A topic's key is known by name where a broker's is expected, to be told which one is meant.
_OF_TOPICS = [
    refusal
    for key in TOPIC_CONFIG
    if key.synonym != key.name and key.no_effect != NOT_TIERED
    for refusal in refused(
        "a topic config; " + (f"for all topics set {key.synonym}" if key.synonym else "set it per topic"), key.name
    )
]

BROKER_CONFIG = ConfigTable(
    "broker",
    [*_IDENTITY, *_CLUSTER, *_ZOOKEEPER, *_SECURITY, *_TLS, *_TOPICS, *_LOG, *_GROUPS, *_TRANSACTIONS, *_LIMITS],
    others=[*_OF_LISTENERS, *_WITHOUT_EFFECT, *_DYNAMIC_WITHOUT_EFFECT, *_OF_MECHANISMS, *_OF_TOPICS],
    aliases={
        "broker.id": ("node.id", 1),
        "log.retention.minutes": ("log.retention.ms", 60_000),
        "log.retention.hours": ("log.retention.ms", 3_600_000),
        "log.roll.hours": ("log.roll.ms", 3_600_000),
        "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
    },
)


def is_in_cluster(settings: Settings) -> bool:
    """Whether controllers elsewhere decide about the metadata, and not this node alone."""
    return settings.words("process.roles") == ("broker",)


def is_controller(settings: Settings) -> bool:
    """Whether this node is a controller and no broker."""
    return settings.words("process.roles") == ("controller",)


def check_roles(settings: Settings) -> None:
    """Raises ConfigError if a node would be alone although it was told of other controllers."""
    if settings.optional_text("zookeeper.connect") and not is_in_cluster(settings) and not is_controller(settings):
        raise ConfigError(
            "zookeeper.connect: this node would be alone, with its metadata in its folder and not in ZooKeeper. Run a "
            "controller with process.roles=controller, and each broker as a process of its own with "
            "process.roles=broker and controller.quorum.bootstrap.servers; for a node alone, remove zookeeper.connect",
            "zookeeper.connect",
        )


def warnings_of(settings: Settings, roles: Settings | None = None) -> list[str]:
    """What to warn of in these settings. `roles` are the settings of the node itself, if these are a topic's."""
    reasons = _reasons_of_others(settings if roles is None else roles)
    return [text for text in settings.warnings if not text.endswith(reasons)]


def explanation_of(key: ConfigKey, settings: Settings) -> str:
    return key.doc if key.no_effect in _reasons_of_others(settings) else key.explanation


def _reasons_of_others(settings: Settings) -> tuple[str, ...]:
    """Reasons for which a setting has no effect on a node that is alone, but has one on this node in a cluster."""
    if not is_in_cluster(settings) and not is_controller(settings):
        return ()
    return (ALONE, ONE_REPLICA, _NO_CONTROLLER, *([FOR_CONTROLLERS] if is_controller(settings) else []))
