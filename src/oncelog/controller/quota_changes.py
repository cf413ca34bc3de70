"""AlterClientQuotas (49): what is right of a request is done, all of it or nothing.

Deviation: of an entity that is named twice, or that has two names of one type, nothing is changed. Kafka reports the
first as an error and does half of it, and takes the last of the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntityData,
    AlteredEntryData,
    EntryData,
)
from oncelog.protocol.messages.cluster_metadata import ClientQuotaRecord, QuotaEntity
from oncelog.protocol.schema import Message
from oncelog.security.quotas import Entity, entity_of, entity_problem, quota_problem

Changes = list[tuple[Entity, str, float | None]]


def alter_quotas(view: View, request: AlterClientQuotasRequest) -> Deciding:
    records: list[Message] = []
    answered = []
    entities = []
    for entry in request.entries:
        entities.append(named_entity(entry))
        yield
    for entry, checked in checked_entries(request.entries, entities):
        yield
        if isinstance(checked, KafkaError):
            answered.append(altered_entry(entry, checked))
            continue
        for entity, key, value in checked:
            if view.image.quotas.get(entity, {}).get(key) != value:
                records.append(_record(entity, key, value))
        answered.append(altered_entry(entry, None))
    return Decision([] if request.validate_only else records, AlterClientQuotasResponse(entries=answered))


def _record(entity: Entity, key: str, value: float | None) -> ClientQuotaRecord:
    parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=parts, key=key, value=value or 0.0, remove=value is None)


def checked_entries(
    entries: Sequence[EntryData], entities: Sequence[Entity]
) -> Iterator[tuple[EntryData, Changes | KafkaError]]:
    """Each entity's entry, with what is to change or what is wrong. `entities` are those of the entries, in order."""
    counts = Counter(entities)
    for entity, entry in dict(zip(entities, entries, strict=True)).items():
        yield entry, _checked(entry, entity, is_duplicate=counts[entity] > 1)


def named_entity(entry: EntryData) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entry.entity)


def _checked(entry: EntryData, entity: Entity, *, is_duplicate: bool) -> Changes | KafkaError:
    problem = entity_problem((part.entity_type, part.entity_name) for part in entry.entity)
    if problem is None and is_duplicate:
        problem = "Duplicate quota entity"
    if problem is not None:
        return KafkaError(ErrorCode.INVALID_REQUEST, problem)
    changes: Changes = [(entity, op.key, None if op.remove else op.value) for op in entry.ops]
    if len({key for _, key, _ in changes}) < len(changes):
        return KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate quota key")
    for _, key, value in changes:
        # What is not there may be removed, also if it could not be there.
        problem = None if value is None else quota_problem(entity, key, value)
        if problem is not None:
            return KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return changes


def altered_entry(entry: EntryData, error: KafkaError | None) -> AlteredEntryData:
    parts = [AlteredEntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    return AlteredEntryData(error_code=code, error_message=message, entity=parts)
