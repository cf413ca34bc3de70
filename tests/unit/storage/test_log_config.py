"""A topic's configuration as the log sees it."""

from __future__ import annotations

import dataclasses

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.storage.log_config import LogConfig


def of(texts: dict[str, str], producer_id_expiration_ms: int = 5) -> LogConfig:
    broker = BROKER_CONFIG.parse({"producer.id.expiration.ms": str(producer_id_expiration_ms)})
    return LogConfig.from_settings(TOPIC_CONFIG.parse(texts), broker)


def test_defaults_are_the_tables() -> None:
    assert of({}, LogConfig().producer_id_expiration_ms) == LogConfig()


def test_values_go_by_kafkas_names() -> None:
    texts = {
        "segment.bytes": "2000000",
        "retention.ms": "-1",
        "cleanup.policy": "compact,delete",
        "compression.type": "lz4",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.25",
        "flush.messages": "10",
    }
    config = of(texts)
    assert (config.segment_bytes, config.retention_ms, config.flush_messages) == (2_000_000, -1, 10)
    assert (config.is_compacted, config.is_deleted_by_retention) == (True, True)
    assert (config.codec, config.stamps_append_time) == (3, True)
    assert (config.min_cleanable_dirty_ratio, config.producer_id_expiration_ms) == (0.25, 5)


def test_every_field_can_be_set_by_a_key() -> None:
    fields = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig) if field.init}
    of_the_broker = {"producer.id.expiration.ms", "record.validation", "batch.records.max"}
    assert fields - {key.name for key in TOPIC_CONFIG} == of_the_broker


def test_internal_segment_size_goes_below_the_public_limit() -> None:
    assert of({"segment.bytes": "2000000", "internal.segment.bytes": "300"}).segment_bytes == 300


def test_producers_codec_is_kept_by_default() -> None:
    assert LogConfig().codec is None
    assert LogConfig(compression_type="uncompressed").codec == 0
