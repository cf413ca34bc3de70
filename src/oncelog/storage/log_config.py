"""The settings of one log, typed: what the storage layer needs of a topic's configuration and nothing else."""

from __future__ import annotations

import zlib
from dataclasses import field
from functools import partial

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.codec import TOPIC_CODECS
from oncelog.core.config import INT_MAX, Settings, setting
from oncelog.core.dataclass import dataclass
from oncelog.core.topic_config import TOPIC_CONFIG

LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = setting(TOPIC_CONFIG["segment.bytes"])
    segment_ms: int = setting(TOPIC_CONFIG["segment.ms"])
    segment_jitter_ms: int = setting(TOPIC_CONFIG["segment.jitter.ms"])
    index_interval_bytes: int = setting(TOPIC_CONFIG["index.interval.bytes"])
    segment_index_bytes: int = setting(TOPIC_CONFIG["segment.index.bytes"])
    max_message_bytes: int = setting(TOPIC_CONFIG["max.message.bytes"])
    retention_ms: int = setting(TOPIC_CONFIG["retention.ms"])
    retention_bytes: int = setting(TOPIC_CONFIG["retention.bytes"])
    cleanup_policy: tuple[str, ...] = setting(TOPIC_CONFIG["cleanup.policy"])
    message_timestamp_type: str = setting(TOPIC_CONFIG["message.timestamp.type"])
    message_timestamp_before_max_ms: int = setting(TOPIC_CONFIG["message.timestamp.before.max.ms"])
    message_timestamp_after_max_ms: int = setting(TOPIC_CONFIG["message.timestamp.after.max.ms"])
    flush_messages: int = setting(TOPIC_CONFIG["flush.messages"])
    flush_ms: int = setting(TOPIC_CONFIG["flush.ms"])
    file_delete_delay_ms: int = setting(TOPIC_CONFIG["file.delete.delay.ms"])
    min_compaction_lag_ms: int = setting(TOPIC_CONFIG["min.compaction.lag.ms"])
    max_compaction_lag_ms: int = setting(TOPIC_CONFIG["max.compaction.lag.ms"])
    delete_retention_ms: int = setting(TOPIC_CONFIG["delete.retention.ms"])
    min_cleanable_dirty_ratio: float = setting(TOPIC_CONFIG["min.cleanable.dirty.ratio"])
    min_insync_replicas: int = setting(TOPIC_CONFIG["min.insync.replicas"])
    compression_type: str = setting(TOPIC_CONFIG["compression.type"])
    producer_id_expiration_ms: int = setting(BROKER_CONFIG["producer.id.expiration.ms"])
    record_validation: str = setting(BROKER_CONFIG["oncelog.record.validation"])
    batch_records_max: int = setting(BROKER_CONFIG["oncelog.batch.records.max"])

    @classmethod
    def from_settings(cls, topic: Settings, broker: Settings) -> LogConfig:
        """From a topic's settings, and the few of its broker that a log needs."""
        for_tests = topic.get("internal.segment.bytes")
        segment_bytes = topic.integer("segment.bytes") if for_tests is None else for_tests
        return topic.bind(
            cls,
            segment_bytes=segment_bytes,
            producer_id_expiration_ms=broker.integer("producer.id.expiration.ms"),
            record_validation=broker.text("oncelog.record.validation"),
            batch_records_max=broker.integer("oncelog.batch.records.max"),
        )

    # What follows from the settings, and every append asks for.
    checks_lengths: bool = field(init=False, compare=False)
    checks_records: bool = field(init=False, compare=False)
    is_compacted: bool = field(init=False, compare=False)
    stamps_append_time: bool = field(init=False, compare=False)
    codec: int | None = field(init=False, compare=False)
    """The codec that every batch must have, or None to keep the producer's."""

    def __post_init__(self) -> None:
        set_once = partial(object.__setattr__, self)
        set_once("checks_lengths", self.record_validation != "batch")
        set_once("checks_records", self.record_validation == "records")
        set_once("is_compacted", "compact" in self.cleanup_policy)
        set_once("stamps_append_time", self.message_timestamp_type == LOG_APPEND_TIME)
        set_once("codec", TOPIC_CODECS[self.compression_type])

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    def roll_after_ms(self, log_name: str, base_offset: int) -> int:
        """`segment.ms` less a jitter, so that logs created together do not roll together.

        Kafka draws the jitter at random. A hash of the segment's name spreads as well and is the same after a restart.
        """
        segment_ms = self.segment_ms
        if self.is_compacted:
            # The active segment is never compacted, so it must not stay active for longer than this.
            segment_ms = min(segment_ms, self.max_compaction_lag_ms)
        spread_ms = min(self.segment_jitter_ms, segment_ms, INT_MAX)
        if spread_ms <= 0:
            return segment_ms
        return segment_ms - zlib.crc32(f"{log_name}/{base_offset}".encode()) % spread_ms
