"""Topic configuration keys: names, defaults and limits of Kafka 4.3.

A key with a synonym is also the broker's key for all topics, with the same default and limits (`broker_config.py`).
"""

from __future__ import annotations

from oncelog.core.codec import TOPIC_CODECS
from oncelog.core.config import LONG_MAX, ConfigKey, ConfigTable, ConfigType

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST

ONE_REPLICA = "one node has one replica of everything"
NOT_TIERED = "there is no tiered storage"
_OWN_LEVEL = "the codec's own default is used"


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "must be -1 or between 1 and 9"


TOPIC_CONFIG = ConfigTable(
    "topic",
    [
        ConfigKey("cleanup.policy", _LIST, ("delete",), "What to do with old segments: delete, compact, or both.",
                  allowed=("delete", "compact"), synonym="log.cleanup.policy"),
        ConfigKey("compression.gzip.level", _INT, -1, "Level used when the broker compresses with gzip.",
                  check=_gzip_level, synonym="compression.gzip.level", no_effect=_OWN_LEVEL),
        ConfigKey("compression.lz4.level", _INT, 9, "Level used when the broker compresses with lz4.",
                  low=1, high=17, synonym="compression.lz4.level", no_effect=_OWN_LEVEL),
        ConfigKey("compression.type", _STRING, "producer", "Final codec of batches; 'producer' keeps what was sent.",
                  allowed=tuple(TOPIC_CODECS), synonym="compression.type"),
        ConfigKey("compression.zstd.level", _INT, 3, "Level used when the broker compresses with zstd.",
                  low=-131072, high=22, synonym="compression.zstd.level", no_effect=_OWN_LEVEL),
        ConfigKey("delete.retention.ms", _LONG, 86_400_000, "How long tombstones and markers outlive compaction.",
                  low=0, synonym="log.cleaner.delete.retention.ms"),
        ConfigKey("file.delete.delay.ms", _LONG, 60_000, "How long a deleted segment's files stay on disk.",
                  low=0, synonym="log.segment.delete.delay.ms"),
        ConfigKey("flush.messages", _LONG, LONG_MAX, "Records after which the log is fsynced.",
                  low=1, synonym="log.flush.interval.messages"),
        ConfigKey("flush.ms", _LONG, LONG_MAX, "Time after which the log is fsynced.",
                  low=0, synonym="log.flush.interval.ms"),
        ConfigKey("follower.replication.throttled.replicas", _LIST, (), "Replicas whose replication is throttled.",
                  no_effect=ONE_REPLICA),
        ConfigKey("index.interval.bytes", _INT, 4096, "Bytes between two entries of the offset index.",
                  low=0, synonym="log.index.interval.bytes"),
        ConfigKey("internal.segment.bytes", _INT, None, "Segment size below the public limit, for tests.",
                  low=0, internal=True),
        ConfigKey("leader.replication.throttled.replicas", _LIST, (), "Replicas whose replication is throttled.",
                  no_effect=ONE_REPLICA),
        ConfigKey("local.retention.bytes", _LONG, -2, "Bytes kept here of a tiered log; -2: retention.bytes.",
                  low=-2, no_effect=NOT_TIERED),
        ConfigKey("local.retention.ms", _LONG, -2, "Time kept here of a tiered log; -2: retention.ms.",
                  low=-2, no_effect=NOT_TIERED),
        ConfigKey("max.compaction.lag.ms", _LONG, LONG_MAX, "Longest time a record may stay uncompacted.",
                  low=1, synonym="log.cleaner.max.compaction.lag.ms"),
        ConfigKey("max.message.bytes", _INT, 1_048_588, "Largest record batch, after compression.",
                  low=0, synonym="message.max.bytes"),
        ConfigKey("message.timestamp.after.max.ms", _LONG, 3_600_000, "How far ahead of the broker a timestamp may be.",
                  low=0, synonym="log.message.timestamp.after.max.ms"),
        ConfigKey("message.timestamp.before.max.ms", _LONG, LONG_MAX, "How far behind the broker a timestamp may be.",
                  low=0, synonym="log.message.timestamp.before.max.ms"),
        ConfigKey("message.timestamp.type", _STRING, "CreateTime", "Whose clock stamps a record.",
                  allowed=("CreateTime", "LogAppendTime"), synonym="log.message.timestamp.type"),
        ConfigKey("min.cleanable.dirty.ratio", _DOUBLE, 0.5, "Share of uncleaned bytes from which a log is compacted.",
                  low=0, high=1, synonym="log.cleaner.min.cleanable.ratio"),
        ConfigKey("min.compaction.lag.ms", _LONG, 0, "Shortest time a record stays uncompacted.",
                  low=0, synonym="log.cleaner.min.compaction.lag.ms"),
        ConfigKey("min.insync.replicas", _INT, 1, "Replicas that must have a record before acks=all is answered.",
                  low=1, synonym="min.insync.replicas", no_effect=ONE_REPLICA),
        ConfigKey("preallocate", _BOOLEAN, False, "Whether a new segment's file is allocated in full.",
                  synonym="log.preallocate", no_effect="files grow as they are written"),
        ConfigKey("remote.log.copy.disable", _BOOLEAN, False, "Whether segments are no longer copied to the tier.",
                  no_effect=NOT_TIERED),
        ConfigKey("remote.log.delete.on.disable", _BOOLEAN, False, "Whether tiered segments go with the tiering.",
                  no_effect=NOT_TIERED),
        ConfigKey("remote.storage.enable", _BOOLEAN, False, "Whether the topic is tiered; only false is taken.",
                  check=lambda value: f"must be false: {NOT_TIERED}" if value else None, no_effect=NOT_TIERED),
        ConfigKey("retention.bytes", _LONG, -1, "Size of a partition above which old segments go; -1 is no limit.",
                  synonym="log.retention.bytes"),
        ConfigKey("retention.ms", _LONG, 604_800_000, "Age above which old segments go; -1 is no limit.",
                  low=-1, synonym="log.retention.ms"),
        ConfigKey("segment.bytes", _INT, 1_073_741_824, "Size at which a segment is rolled.",
                  low=1_048_576, synonym="log.segment.bytes"),
        ConfigKey("segment.index.bytes", _INT, 10_485_760, "Largest size of a segment's index files.",
                  low=4, synonym="log.index.size.max.bytes"),
        ConfigKey("segment.jitter.ms", _LONG, 0, "Random part taken off the age at which a segment is rolled.",
                  low=0, synonym="log.roll.jitter.ms"),
        ConfigKey("segment.ms", _LONG, 604_800_000, "Age at which a segment is rolled.",
                  low=1, synonym="log.roll.ms"),
        ConfigKey("unclean.leader.election.enable", _BOOLEAN, False, "Whether a lagging replica may become leader.",
                  synonym="unclean.leader.election.enable", no_effect=ONE_REPLICA),
    ],
)  # fmt: skip
