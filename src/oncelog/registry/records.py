"""The records of the topic `_schemas`, in the form that Confluent's registry writes and reads. No I/O.

Keys and values are JSON without spaces; a key's fields have a fixed order, because compaction compares its bytes.

    {"keytype":"SCHEMA","subject":S,"version":V,"magic":1}
        {"subject":S,"version":V,"id":I,"md5":M,"schemaType":T,"references":[...],"schema":TEXT,"deleted":false}
        T is left out for Avro. No value: the version is gone for good.
    {"keytype":"DELETE_SUBJECT","subject":S,"magic":0}
        {"subject":S,"version":V}: all versions up to V are deleted, and can still be looked up.
    {"keytype":"CONFIG","subject":S or null,"magic":0}
        {"subject":S,"compatibilityLevel":L}
    {"keytype":"MODE","subject":S or null,"magic":0}
        {"subject":S,"mode":M}
    {"keytype":"NOOP","magic":0}
        Readers skip it. Oncelog notes here the highest id that was ever given, when it deletes a version for good:
        {"highestId":I}

Other types of keys are left alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from oncelog.schemas.schema import Schema

TOPIC: Final = "_schemas"


class Record(NamedTuple):
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Version:
    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            "guid": guid(self.schema),
            **self.schema.as_json(),
        }


def digest(schema: Schema) -> bytes:
    """The same for schemas that share an id."""
    parts = [
        schema.kind,
        schema.text,
        schema.notes,
        *(f"{r.name}\0{r.subject}\0{r.version}" for r in schema.references),
    ]
    return hashlib.md5("\1".join(parts).encode(), usedforsecurity=False).digest()


def guid(schema: Schema) -> str:
    return str(uuid.UUID(bytes=digest(schema)))


def schema_record(version: Version) -> Record:
    value = {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "md5": base64.b64encode(digest(version.schema)).decode(),
        **version.schema.as_json(),
        "deleted": version.deleted,
    }
    return Record(schema_key(version.subject, version.version), _text(value))


def schema_key(subject: str, version: int) -> bytes:
    return _text({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def subject_key(keytype: str, subject: str | None) -> bytes:
    return _text({"keytype": keytype, "subject": subject, "magic": 0})


def delete_subject_record(subject: str, version: int) -> Record:
    return Record(subject_key("DELETE_SUBJECT", subject), _text({"subject": subject, "version": version}))


def config_record(subject: str | None, level: str) -> Record:
    named = {} if subject is None else {"subject": subject}
    return Record(subject_key("CONFIG", subject), _text({**named, "compatibilityLevel": level}))


def mode_record(subject: str | None, mode: str) -> Record:
    named = {} if subject is None else {"subject": subject}
    return Record(subject_key("MODE", subject), _text({**named, "mode": mode}))


def highest_id_record(schema_id: int) -> Record:
    return Record(_text({"keytype": "NOOP", "magic": 0}), _text({"highestId": schema_id}))


def parse_version(value: dict[str, Any]) -> Version:
    """Raises ValueError or KeyError for what is no value of a SCHEMA key."""
    schema = Schema.from_json(value)
    return Version(value["subject"], int(value["version"]), int(value["id"]), schema, bool(value.get("deleted")))


def deleted(version: Version) -> Version:
    return replace(version, deleted=True)


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
