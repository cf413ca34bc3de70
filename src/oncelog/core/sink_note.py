"""The note the sink commits with its offsets: whose they are and which plan they finish. JSON, as their metadata.

Brokers take 4096 bytes of metadata (`offset.metadata.max.bytes`); a note has some 150.
"""

from __future__ import annotations

import json

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.dataclass import dataclass

METADATA_BYTES_MAX = BROKER_CONFIG.defaults.integer("offset.metadata.max.bytes")
WRITER_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Note:
    query_id: str
    """The id of the streaming query; for a plain write the run id, which may be empty."""
    batch_id: int
    plan: int | None = None
    """When Spark planned the batch: the same when it runs that plan again, another one when it plans the batch anew.
    None in notes of earlier versions."""
    ends: tuple[int, ...] = ()
    """Where each source has come that reads this partition, when several read it and have not come equally far. The
    offset itself is the smallest of them."""
    call: str | None = None
    """Of a plain write: the call that wrote it."""
    writer: str | None = None
    """Of a stream: its transactional id, cut where it is very long."""
    tables: str | None = None
    """Of a query with state: what the batch has read of topics as tables (see `table_versions`). One note of a batch
    has it."""

    def to_text(self) -> str:
        value = {
            "queryId": self.query_id,
            "batchId": self.batch_id,
            "plan": self.plan,
            "ends": self.ends or None,
            "call": self.call,
            "writer": None if self.writer is None else self.writer[:WRITER_CHARACTERS_MAX],
            "tables": self.tables,
        }
        return json.dumps({name: one for name, one in value.items() if one is not None}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Note | None:
        """None for what somebody else wrote."""
        try:
            value = json.loads(text)
            plan = value.get("plan")
            call, writer, tables = (value.get(name) for name in ("call", "writer", "tables"))
            return cls(
                str(value["queryId"]),
                int(value["batchId"]),
                None if plan is None else int(plan),
                tuple(int(end) for end in value.get("ends", ())),
                None if call is None else str(call),
                None if writer is None else str(writer),
                None if tables is None else str(tables),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
