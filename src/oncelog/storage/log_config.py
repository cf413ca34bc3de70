"""The settings of one log, typed: what the storage layer needs of a topic's configuration and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.core.config import INT_MAX, LONG_MAX, ConfigValue, Settings
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.protocol.compression import Codec

LOG_APPEND_TIME = "LogAppendTime"

_CODECS: Mapping[str, int | None] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10_485_760
    max_message_bytes: int = 1_048_588
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    cleanup_policy: tuple[str, ...] = ("delete",)
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    preallocate: bool = False
    compression_type: str = "producer"

    @classmethod
    def from_values(
        cls, values: Mapping[str, ConfigValue], *, producer_id_expiration_ms: int = 86_400_000
    ) -> LogConfig:
        """From parsed values by Kafka's topic config names; a key that is not there has Kafka's default.

        `producer.id.expiration.ms` is a broker key, so it comes on its own.
        """
        settings = Settings(TOPIC_CONFIG, values)
        internal_segment_bytes = settings.get("internal.segment.bytes")
        return cls(
            segment_bytes=internal_segment_bytes
            if isinstance(internal_segment_bytes, int)
            else settings.integer("segment.bytes"),
            segment_ms=settings.integer("segment.ms"),
            segment_jitter_ms=settings.integer("segment.jitter.ms"),
            index_interval_bytes=settings.integer("index.interval.bytes"),
            segment_index_bytes=settings.integer("segment.index.bytes"),
            max_message_bytes=settings.integer("max.message.bytes"),
            retention_ms=settings.integer("retention.ms"),
            retention_bytes=settings.integer("retention.bytes"),
            cleanup_policy=settings.words("cleanup.policy"),
            message_timestamp_type=settings.text("message.timestamp.type"),
            message_timestamp_before_max_ms=settings.integer("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms=settings.integer("message.timestamp.after.max.ms"),
            flush_messages=settings.integer("flush.messages"),
            flush_ms=settings.integer("flush.ms"),
            file_delete_delay_ms=settings.integer("file.delete.delay.ms"),
            producer_id_expiration_ms=producer_id_expiration_ms,
            min_compaction_lag_ms=settings.integer("min.compaction.lag.ms"),
            max_compaction_lag_ms=settings.integer("max.compaction.lag.ms"),
            delete_retention_ms=settings.integer("delete.retention.ms"),
            min_cleanable_dirty_ratio=settings.number("min.cleanable.dirty.ratio"),
            preallocate=settings.boolean("preallocate"),
            compression_type=settings.text("compression.type"),
        )

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def stamps_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def codec(self) -> int | None:
        """The codec that every batch must have, or None to keep the producer's."""
        return _CODECS[self.compression_type]

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
