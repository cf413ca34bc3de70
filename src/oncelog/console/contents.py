"""What is shown of a record: its value decoded by a schema registry if there is one, and masked where rules say so.

Everything that reads records for a page goes through `Contents`, before it is searched.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from oncelog.client.consumer_records import ConsumerRecord
from oncelog.console.masks import Mask, masks_of
from oncelog.schemas.registry_client import RegistryError
from oncelog.schemas.schema import ParsedSchema
from oncelog.schemas.wire_format import SchemaName, unframe, with_header

FAILURES_MAX: Final = 20
FAILURES_S: Final = 60.0
"""After so many schemas within this time that were not found, no others are asked for: those are no ids of schemas."""


class Registry(Protocol):
    def parsed(self, name: SchemaName) -> ParsedSchema: ...


class Decoded(NamedTuple):
    schema_id: SchemaName
    value: Any
    problem: str = ""
    """Why there is no value; empty if there is one."""


class SchemaDecoder:
    """Values by the schema whose id is in front of them. Used by several threads."""

    def __init__(self, registry: Registry, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock_s = clock_s
        self._failed: deque[tuple[float, SchemaName, str]] = deque(maxlen=FAILURES_MAX)
        self._lock = threading.Lock()

    def decode(self, data: bytes) -> Decoded | None:
        """None for what has no schema in front."""
        try:
            schema_id, payload = unframe(data)
        except ValueError:
            return None
        problem = self._known_problem(schema_id)
        if problem:
            return Decoded(schema_id, None, problem)
        try:
            return Decoded(schema_id, self._registry.parsed(schema_id).decode(payload))
        except RegistryError as error:
            with self._lock:
                self._failed.append((self._clock_s(), schema_id, str(error)))
            return Decoded(schema_id, None, str(error))
        except ValueError as error:
            return Decoded(schema_id, None, str(error))

    def _known_problem(self, schema_id: SchemaName) -> str:
        with self._lock:
            recent = [one for one in self._failed if one[0] > self._clock_s() - FAILURES_S]
        known = [problem for _, failed, problem in recent if failed == schema_id]
        if known:
            return known[-1]
        return "too many schemas were not found within a minute" if len(recent) == FAILURES_MAX else ""


class Seen(NamedTuple):
    """A record as it is shown and searched."""

    record: ConsumerRecord
    raw: ConsumerRecord
    """As it is in the log, unless something of it is masked."""
    decoded: Decoded | None = None


class Contents:
    """What may be seen of the records of one topic."""

    def __init__(self, topic: str, masks: Sequence[Mask] = (), decoder: SchemaDecoder | None = None) -> None:
        self._masks = masks_of(masks, topic)
        self._decoder = decoder

    def see(self, record: ConsumerRecord) -> Seen:
        decoded = None
        if self._decoder is not None and record.value is not None:
            decoded = self._decoder.decode(with_header(record.headers, "value", record.value))
        shown = record
        if decoded is not None and not decoded.problem:
            shown = record._replace(value=json.dumps(decoded.value, ensure_ascii=False).encode())
        for mask in self._masks:
            shown = mask.apply(shown)
        return Seen(shown, shown if self._masks else record, decoded)
