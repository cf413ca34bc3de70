"""What connectors report about themselves: records in the compacted topic `oncelog-connect`, by connector.

The committed offsets of sources belong to this topic too (`source_log`), so it is never deleted while one is in use.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final, Self

from oncelog.client import Admin, BufferExhausted, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from oncelog.connect.progress import Status

STATUS_TOPIC: Final = "oncelog-connect"
READ_TIMEOUT_MS: Final = 10_000
_FIELDS: Final = frozenset((*Status("").as_row(), "time_ms"))
logger = logging.getLogger("oncelog.connect")


def ensure_status_topic(client: Mapping[str, Any]) -> None:
    with Admin(client) as admin:
        admin.ensure_topic(NewTopic(STATUS_TOPIC, 1, configs={"cleanup.policy": "compact"}))


class StatusWriter:
    """Nothing waits for what it writes, and nothing fails if it cannot be written."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._producer = Producer({**client, "max.block.ms": 1000})
        self._is_ready = False

    def write(self, status: Status) -> None:
        row = {**status.as_row(), "time_ms": int(time.time() * 1000)}
        try:
            if not self._is_ready:
                ensure_status_topic(self._client)
                self._is_ready = True
            self._producer.send(STATUS_TOPIC, json.dumps(row), status.name)
        except (KafkaError, BufferExhausted) as error:
            logger.info("the status of %s was not written: %s", status.name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close(timeout_ms=5000)


def read_status(client: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The last report of each connector."""
    with Admin(client) as admin:
        if STATUS_TOPIC not in admin.list_topics():
            return []
    place = TopicPartition(STATUS_TOPIC, 0)
    found: dict[bytes, dict[str, Any]] = {}
    with Consumer({**client, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        deadline_s = time.monotonic() + READ_TIMEOUT_MS / 1000
        while consumer.position(place) < end and time.monotonic() < deadline_s:
            for record in consumer.poll(timeout_ms=500):
                row = _report(record.value)
                if row is not None:
                    found[record.key] = row
                else:
                    found.pop(record.key, None)
    return sorted(found.values(), key=lambda row: str(row["connector"]))


def _report(value: bytes | None) -> dict[str, Any] | None:
    """None for a tombstone, by which a report is removed, and for what no connector has written."""
    try:
        row = None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row.keys() >= _FIELDS else None
