"""Events that an application writes in its own transaction, routed to topics: pure.

An event has the columns of Debezium's outbox: `aggregatetype` (chooses the topic), `aggregateid` (the key), `payload`
(the value), and if it likes `id` and `type` (headers). It is a row that is inserted into the outbox table, or a JSON
object with these fields, given to `pg_logical_emit_message(true, PREFIX, ...)`. Columns of the type bytea are taken as
the bytes that they are: so the payload can be Avro or Protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from oncelog.connect.errors import BadRecord
from oncelog.connect.source import Header, header

NEEDED: Final = ("aggregatetype", "aggregateid", "payload")


class OutboxEvent(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def outbox_event(fields: Mapping[str, Any], topic: str, where: str) -> OutboxEvent:
    """Raises BadRecord if a field is missing; `where` says where the event was found."""
    missing = [name for name in NEEDED if name not in fields]
    if missing or fields["aggregatetype"] is None:
        raise BadRecord(f"an event of the outbox ({where}) has no {' and no '.join(missing or ['aggregatetype'])}")
    given = {name: fields[name] for name in ("id", "type") if fields.get(name) is not None}
    headers = [(name, value) if isinstance(value, bytes) else header(name, value) for name, value in given.items()]
    return OutboxEvent(
        topic.replace("{aggregatetype}", str(fields["aggregatetype"])),
        _bytes(fields["aggregateid"]),
        _bytes(fields["payload"]),
        headers,
    )


def message_event(content: bytes, topic: str, where: str) -> OutboxEvent:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise BadRecord(f"a message of the outbox ({where}) is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRecord(f"a message of the outbox ({where}) is not a JSON object")
    return outbox_event(fields, topic, where)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
