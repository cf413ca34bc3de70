"""AlterClientQuotas (49): what is right of a request is done, all of it or nothing.

Deviation: of an entity that is named twice, or that has two names of one type, nothing is changed. Kafka reports the
first as an error and does half of it, and takes the last of the names.
"""

from __future__ import annotations

from collections import Counter

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


def alter_quotas(view: View, request: AlterClientQuotasRequest) -> Deciding:
    records: list[Message] = []
    answered = []
    entities = []
    for entry in request.entries:
        entities.append(entity_of((part.entity_type, part.entity_name) for part in entry.entity))
        yield
    counts = Counter(entities)
    for entity, entry in dict(zip(entities, request.entries, strict=True)).items():
        yield
        present = view.image.quotas.get(entity, {})
        try:
            changes = _changes(entry, entity, is_duplicate=counts[entity] > 1)
        except KafkaError as error:
            answered.append(altered_entry(entry, error))
            continue
        records += [_record(entity, key, value) for key, value in changes.items() if present.get(key) != value]
        answered.append(altered_entry(entry, None))
    return Decision([] if request.validate_only else records, AlterClientQuotasResponse(entries=answered))


def _record(entity: Entity, key: str, value: float | None) -> ClientQuotaRecord:
    parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=parts, key=key, value=value or 0.0, remove=value is None)


def _changes(entry: EntryData, entity: Entity, *, is_duplicate: bool) -> dict[str, float | None]:
    """The values by key, None for what is to be removed. Raises KafkaError."""
    problem = entity_problem((part.entity_type, part.entity_name) for part in entry.entity)
    if problem is None and is_duplicate:
        problem = "Duplicate quota entity"
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    if problem is None and len(changes) < len(entry.ops):
        problem = "Duplicate quota key"
    for key, value in changes.items():
        # What is not there may be removed, also if it could not be there.
        if problem is None and value is not None:
            problem = quota_problem(entity, key, value)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return changes


def altered_entry(entry: EntryData, error: KafkaError | None) -> AlteredEntryData:
    parts = [AlteredEntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    return AlteredEntryData(error_code=code, error_message=message, entity=parts)
