"""All that a registry knows, made of the records of its topic in their order. No I/O.

Only `apply` changes it. Applying a record twice changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from oncelog.registry.errors import schema_not_found, subject_not_found, version_not_found
from oncelog.registry.records import Version, deleted, digest, guid, parse_version
from oncelog.schemas.compatibility import DEFAULT_LEVEL, LEVELS
from oncelog.schemas.schema import MissingReference, Reference, Schema

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
DEFAULT_MODE: Final = "READWRITE"
logger = logging.getLogger("oncelog.registry")


class State:
    def __init__(self) -> None:
        self._versions: dict[str, dict[int, Version]] = {}
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[bytes, int] = {}
        self._levels: dict[str | None, str] = {}
        self._modes: dict[str | None, str] = {}
        self.highest_id = 0

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """What cannot be understood is skipped with a warning: one bad record must not stop a registry."""
        try:
            found = json.loads(key or b"")
            self._apply(found["keytype"], found, None if value is None else json.loads(value))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("a record of the topic is skipped, its key is %r: %r", (key or b"")[:200], error)

    def _apply(self, keytype: str, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        if keytype == "SCHEMA":
            self._apply_schema(key["subject"], int(key["version"]), value)
        elif keytype == "DELETE_SUBJECT" and value is not None:
            for number, version in self._versions.get(key["subject"], {}).items():
                if number <= int(value["version"]):
                    self._versions[key["subject"]][number] = deleted(version)
        elif keytype == "CONFIG":
            level = None if value is None else value.get("compatibilityLevel")
            _set(self._levels, key.get("subject"), level if level in LEVELS else None)
        elif keytype == "MODE":
            mode = None if value is None else value.get("mode")
            _set(self._modes, key.get("subject"), mode if mode in MODES else None)
        elif keytype == "NOOP" and value is not None:
            self.highest_id = max(self.highest_id, int(value.get("highestId", 0)))

    def _apply_schema(self, subject: str, number: int, value: dict[str, Any] | None) -> None:
        if value is None:
            self._forget(subject, number)
            return
        # Whatever else the record is, its id was given.
        self.highest_id = max(self.highest_id, int(value["id"]))
        version = parse_version(value)
        self._versions.setdefault(subject, {})[number] = version
        self._schemas[version.id] = version.schema
        self._ids.setdefault(digest(version.schema), version.id)

    def _forget(self, subject: str, number: int) -> None:
        """The id of a schema that no version has any longer is not given again, and leads nowhere."""
        versions = self._versions.get(subject, {})
        gone = versions.pop(number, None)
        if not versions:
            self._versions.pop(subject, None)
        if gone is not None and not any(version.id == gone.id for version in self.everything()):
            self._schemas.pop(gone.id, None)
            self._ids.pop(digest(gone.schema), None)

    def subjects(self, *, with_deleted: bool = False, only_deleted: bool = False) -> list[str]:
        def is_wanted(versions: dict[int, Version]) -> bool:
            is_live = any(not version.deleted for version in versions.values())
            return not is_live if only_deleted else is_live or with_deleted

        return sorted(subject for subject, versions in self._versions.items() if is_wanted(versions))

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[Version]:
        """Oldest first; raises 40401 if there are none."""
        found = [v for _, v in sorted(self._versions.get(subject, {}).items()) if with_deleted or not v.deleted]
        if not found:
            raise subject_not_found(subject)
        return found

    def all_versions(self, subject: str) -> list[Version]:
        """All versions of a subject, also deleted ones; empty if there are none."""
        return [version for _, version in sorted(self._versions.get(subject, {}).items())]

    def live_versions(self, subject: str) -> list[Version]:
        return [version for version in self.all_versions(subject) if not version.deleted]

    def version(self, subject: str, number: int | None, *, with_deleted: bool = False) -> Version:
        """A version of a subject, by default the last one. Raises 40401 or 40402."""
        found = self.versions(subject, with_deleted=with_deleted)
        if number is None:
            return found[-1]
        match = next((version for version in found if version.version == number), None)
        if match is None:
            raise version_not_found(number)
        return match

    def everything(self) -> Iterator[Version]:
        for subject in sorted(self._versions):
            yield from self.all_versions(subject)

    def schema(self, schema_id: int) -> Schema:
        """The schema with an id, also of deleted versions: records with the id may still exist. Raises 40403."""
        if schema_id not in self._schemas:
            raise schema_not_found(schema_id)
        return self._schemas[schema_id]

    def by_guid(self, wanted: str) -> tuple[int, Schema]:
        for schema_id, schema in self._schemas.items():
            if guid(schema) == wanted.lower():
                return schema_id, schema
        raise schema_not_found(wanted)

    def id_of(self, schema: Schema) -> int | None:
        """The id that the schema has under any subject."""
        return self._ids.get(digest(schema))

    def referenced_schema(self, reference: Reference) -> Schema:
        """The schema that a reference names, which parsing needs. Raises MissingReference."""
        version = self._versions.get(reference.subject, {}).get(reference.version)
        if version is None:
            raise MissingReference(f"there is no version {reference.version} of {reference.subject}: {reference.name}")
        return version.schema

    def referring_to(self, subject: str, number: int) -> list[Version]:
        """Live versions that need this one."""
        return [
            version
            for version in self.everything()
            if not version.deleted
            and any(r.subject == subject and r.version == number for r in version.schema.references)
        ]

    def level(self, subject: str | None) -> str | None:
        """The level that was set for the subject, or None. For subject None, which stands for all, there always is
        one."""
        return self._levels.get(subject) or (DEFAULT_LEVEL if subject is None else None)

    def mode(self, subject: str | None) -> str | None:
        return self._modes.get(subject) or (DEFAULT_MODE if subject is None else None)

    def effective_level(self, subject: str) -> str:
        return self._levels.get(subject) or self._levels.get(None) or DEFAULT_LEVEL

    def effective_mode(self, subject: str) -> str:
        everywhere = self._modes.get(None) or DEFAULT_MODE
        return everywhere if everywhere == "READONLY_OVERRIDE" else self._modes.get(subject) or everywhere


def _set(table: dict[str | None, str], subject: str | None, value: str | None) -> None:
    if value is None:
        table.pop(subject, None)
    else:
        table[subject] = value
