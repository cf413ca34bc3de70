"""Broker configuration keys: Kafka 4.3's names and defaults; Oncelog's own keys start with `oncelog.`."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.core.config import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    Settings,
)
from oncelog.core.topic_config import CODECS, TOPIC_CONFIG

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

_IDENTITY = [
    ConfigKey("node.id", _INT, 1, "This broker's number.", low=0),
    ConfigKey("cluster.id", _STRING, None, "22-character base64 id of the cluster; made up at first start."),
    ConfigKey("log.dirs", _STRING, None, "The data folder."),
    ConfigKey("listeners", _STRING, "PLAINTEXT://127.0.0.1:9092", "Where clients are accepted."),
    ConfigKey("advertised.listeners", _STRING, None, "What clients are told to connect to."),
    ConfigKey("transaction.version", _SHORT, 2, "The finalised transaction protocol: 0, 1 or 2.", low=0, high=2),
]

_TOPICS = [
    ConfigKey("auto.create.topics.enable", _BOOLEAN, True, "Whether a metadata request may create a topic."),
    ConfigKey("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    ConfigKey("num.partitions", _INT, 1, "Partitions of an auto-created topic.", low=1, dynamic=True),
    ConfigKey("default.replication.factor", _INT, 1, "Replicas of an auto-created topic.", low=1, dynamic=True),
    ConfigKey("min.insync.replicas", _INT, 1, "Replicas that must have a record before acks=all is answered.",
              low=1, dynamic=True),
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, False, "Whether a lagging replica may lead.", dynamic=True),
    ConfigKey("compression.type", _STRING, "producer", "Final codec of topics; 'producer' keeps what was sent.",
              allowed=CODECS, dynamic=True),
    ConfigKey("compression.gzip.level", _INT, -1, "Level used when the broker compresses with gzip.", dynamic=True),
    ConfigKey("compression.lz4.level", _INT, 9, "Level used when the broker compresses with lz4.",
              low=1, high=17, dynamic=True),
    ConfigKey("compression.zstd.level", _INT, 3, "Level used when the broker compresses with zstd.", dynamic=True),
    ConfigKey("message.max.bytes", _INT, 1_048_588, "Largest record batch, after compression.", low=0, dynamic=True),
]  # fmt: skip

_LOG = [
    ConfigKey("log.cleanup.policy", _LIST, ("delete",), "What to do with old segments.",
              allowed=("delete", "compact"), dynamic=True),
    ConfigKey("log.cleaner.enable", _BOOLEAN, True, "Whether compaction runs."),
    ConfigKey("log.cleaner.backoff.ms", _LONG, 15_000, "Pause of the cleaner when there is nothing to do.", low=0),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, 134_217_728, "Memory for the cleaner's offset map.", low=1024),
    ConfigKey("log.cleaner.delete.retention.ms", _LONG, 86_400_000, "How long tombstones outlive compaction.",
              low=0, dynamic=True),
    ConfigKey("log.cleaner.min.cleanable.ratio", _DOUBLE, 0.5, "Share of uncleaned bytes that starts compaction.",
              low=0, high=1, dynamic=True),
    ConfigKey("log.cleaner.min.compaction.lag.ms", _LONG, 0, "Shortest time a record stays uncompacted.",
              low=0, dynamic=True),
    ConfigKey("log.cleaner.max.compaction.lag.ms", _LONG, LONG_MAX, "Longest time a record stays uncompacted.",
              low=1, dynamic=True),
    ConfigKey("log.segment.bytes", _INT, 1_073_741_824, "Size at which a segment is rolled.",
              low=1_048_576, dynamic=True),
    ConfigKey("log.roll.ms", _LONG, 604_800_000, "Age at which a segment is rolled.", low=1, dynamic=True),
    ConfigKey("log.roll.jitter.ms", _LONG, 0, "Random part taken off log.roll.ms.", low=0, dynamic=True),
    ConfigKey("log.retention.ms", _LONG, 604_800_000, "Age above which old segments go; -1 is no limit.",
              low=-1, dynamic=True),
    ConfigKey("log.retention.bytes", _LONG, -1, "Size of a partition above which old segments go.", dynamic=True),
    ConfigKey("log.retention.check.interval.ms", _LONG, 300_000, "Time between looks for old segments.", low=1),
    ConfigKey("log.segment.delete.delay.ms", _LONG, 60_000, "How long deleted files stay.", low=0, dynamic=True),
    ConfigKey("log.index.interval.bytes", _INT, 4096, "Bytes between two index entries.", low=0, dynamic=True),
    ConfigKey("log.index.size.max.bytes", _INT, 10_485_760, "Largest index file.", low=4, dynamic=True),
    ConfigKey("log.flush.interval.messages", _LONG, LONG_MAX, "Records after which a log is fsynced.",
              low=1, dynamic=True),
    ConfigKey("log.flush.interval.ms", _LONG, LONG_MAX, "Time after which a log is fsynced.", low=0, dynamic=True),
    ConfigKey("oncelog.acks.fsync", _BOOLEAN, False,
              "Whether acks=all and every decision of a coordinator wait until the data are on disk."),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", _INT, 60_000, "Time between two checkpoints.", low=0),
    ConfigKey("log.preallocate", _BOOLEAN, False, "Whether a new segment's file is allocated in full.", dynamic=True),
    ConfigKey("log.message.timestamp.type", _STRING, "CreateTime", "Whose clock stamps a record.",
              allowed=("CreateTime", "LogAppendTime"), dynamic=True),
    ConfigKey("log.message.timestamp.before.max.ms", _LONG, LONG_MAX, "How far behind a timestamp may be.",
              low=0, dynamic=True),
    ConfigKey("log.message.timestamp.after.max.ms", _LONG, 3_600_000, "How far ahead a timestamp may be.",
              low=0, dynamic=True),
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
              low=1),
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
              low=1),
    ConfigKey("transaction.state.log.min.isr", _INT, 2, "Replicas that must have a decision; at most its replicas.",
              low=1),
    ConfigKey("transaction.state.log.segment.bytes", _INT, 104_857_600, "Its segment size.", low=1),
    ConfigKey("transaction.partition.verification.enable", _BOOLEAN, True,
              "Whether the first write of a transaction on a partition is checked with the coordinator (TV0/1).",
              dynamic=True),
    ConfigKey("oncelog.cluster.action.enable", _BOOLEAN, False,
              "Whether clients may send what brokers send each other: WriteTxnMarkers, for 'oncelog txn abort', and "
              "AddPartitionsToTxn of several ids."),
    ConfigKey("transaction.two.phase.commit.enable", _BOOLEAN, False, "Whether producers may take part in 2PC."),
]  # fmt: skip

_LIMITS = [
    ConfigKey("socket.request.max.bytes", _INT, 104_857_600, "Largest request frame.", low=1),
    ConfigKey("max.connections", _INT, INT_MAX, "Most connections at a time.", low=0, dynamic=True),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, "Idle time after which a connection is closed."),
    ConfigKey("fetch.max.bytes", _INT, 57_671_680, "Most bytes of one fetch answer.", low=1024),
    ConfigKey("max.incremental.fetch.session.cache.slots", _INT, 1_000, "Fetch sessions kept.", low=0),
    ConfigKey("oncelog.connection.unsent.max.bytes", _INT, 33_554_432,
              "Unsent response bytes of one connection above which its requests wait.", low=65_536),
    ConfigKey("oncelog.unsent.max.bytes", _LONG, 536_870_912,
              "Unsent response bytes of slow clients, all together, above which fetches are answered with little.",
              low=0),
    ConfigKey("oncelog.parked.requests.max", _INT, 10_000,
              "Requests that may wait for a transaction to settle; more get CONCURRENT_TRANSACTIONS.", low=0),
    ConfigKey("oncelog.parked.request.ms", _INT, 2_000, "How long such a request waits at most.", low=0),
    ConfigKey("oncelog.open.files.max", _INT, 512, "Log files kept open at a time.", low=16),
    ConfigKey("oncelog.metrics.port", _INT, 0, "Port for Prometheus; 0 is off.", low=0, high=65_535),
]  # fmt: skip

# Keys of Kafka that its users have in their files and that one Python process has no use for. A dot at the end stands
# for all that begin so. Those that ask for security are not among them: a broker without it must not start.
_WITHOUT_EFFECT = (
    "controller.",
    "group.consumer.",
    "group.share.",
    "group.streams.",
    "metadata.",
    "remote.",
    "replica.",
    "share.",
    "process.roles",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "queued.max.requests",
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "socket.listen.backlog.size",
    "offsets.load.buffer.size",
    "offsets.topic.compression.codec",
    "offsets.commit.timeout.ms",
    "transaction.state.log.load.buffer.size",
    "zookeeper.connect",
    "zookeeper.connection.timeout.ms",
    "controlled.shutdown.enable",
    "auto.leader.rebalance.enable",
    "group.coordinator.rebalance.protocols",
    "group.coordinator.new.enable",
    "transaction.state.log.append.timeout.ms",
    "add.partitions.to.txn.retry.backoff.ms",
    "add.partitions.to.txn.retry.backoff.max.ms",
)

# The same for those that Kafka lets change while it runs. What tunes a security that nobody has asked for is harmless.
_DYNAMIC_WITHOUT_EFFECT = (
    "background.threads",
    "follower.fetch.last.tiered.offset.enable",
    "group.consumer.assignment.interval.ms",
    "group.coordinator.cached.buffer.max.bytes",
    "group.share.assignment.interval.ms",
    "group.streams.assignment.interval.ms",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "share.coordinator.cached.buffer.max.bytes",
)

BROKER_CONFIG = ConfigTable(
    "broker",
    [*_IDENTITY, *_TOPICS, *_LOG, *_GROUPS, *_TRANSACTIONS, *_LIMITS],
    without_effect=_WITHOUT_EFFECT,
    dynamic_without_effect=_DYNAMIC_WITHOUT_EFFECT,
)

# Older or coarser spellings of a key: (key, factor).
_SPELLINGS = {
    "broker.id": ("node.id", 1),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}


def broker_settings(entries: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Parsed broker settings, and warnings for keys that Kafka knows and that have no effect here."""
    values: dict[str, ConfigValue] = {}
    warnings: list[str] = []
    for name, text in entries.items():
        if name in _SPELLINGS:
            finer, factor = _SPELLINGS[name]
            if finer not in entries:
                amount = BROKER_CONFIG[finer].parse(text)
                values[finer] = amount * factor if isinstance(amount, int) and amount > 0 else amount
        elif BROKER_CONFIG.has_no_effect(name):
            warnings.append(f"{name} has no effect in Oncelog")
        elif name in BROKER_CONFIG or name not in TOPIC_CONFIG:
            values[name] = BROKER_CONFIG.key(name).parse(text)
        else:
            instead = TOPIC_CONFIG[name].synonym
            raise ConfigError(
                f"{name} is a topic config; " + (f"for all topics set {instead}" if instead else "set it per topic")
            )
    return Settings(BROKER_CONFIG, values), warnings
