"""AlterClientQuotas (49), v0-1: what is right of a request is done, all of it or nothing.

Deviation: of an entity that is named twice, or that has two names of one type, nothing is changed. Kafka reports the
first as an error and does half of it, and takes the last of the names.
"""

from __future__ import annotations

from collections import Counter

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import quotas_entry
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntityData,
    AlteredEntryData,
    EntryData,
)
from oncelog.security.quotas import Entity, entity_of, entity_problem, quota_problem
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

Changes = list[tuple[Entity, str, float | None]]


def handle(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> Promise[AlterClientQuotasResponse]:
    try:
        context.require(Operation.ALTER_CONFIGS, Resource.CLUSTER)
    except KafkaError as error:
        return Promise.resolved(AlterClientQuotasResponse(entries=[_result(entry, error) for entry in request.entries]))
    counts = Counter(_entity(entry) for entry in request.entries)
    entries = list({_entity(entry): entry for entry in request.entries}.values())
    checked = [_checked(entry, is_duplicate=counts[_entity(entry)] > 1) for entry in entries]
    changes = [change for each in checked if not isinstance(each, KafkaError) for change in each]

    def decide() -> JournalEntry | None:
        return quotas_entry(changes) if changes and not request.validate_only else None

    def answer(error: KafkaError | None) -> AlterClientQuotasResponse:
        if error is None and not request.validate_only:
            _tell(context, changes)
        results = [each if isinstance(each, KafkaError) else error for each in checked]
        return AlterClientQuotasResponse(entries=list(map(_result, entries, results)))

    return broker.metadata.propose("quotas", decide).map(answer)


def _entity(entry: EntryData) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entry.entity)


def _checked(entry: EntryData, *, is_duplicate: bool) -> Changes | KafkaError:
    problem = entity_problem((part.entity_type, part.entity_name) for part in entry.entity)
    if problem is None and is_duplicate:
        problem = "Duplicate quota entity"
    if problem is not None:
        return KafkaError(ErrorCode.INVALID_REQUEST, problem)
    entity = _entity(entry)
    changes: Changes = [(entity, op.key, None if op.remove else op.value) for op in entry.ops]
    for _, key, value in changes:
        problem = quota_problem(entity, key, value)
        if problem is not None:
            return KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return changes


def _tell(context: RequestContext, changes: Changes) -> None:
    for entity, key, value in changes:
        name = ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity)
        context.tell_change("QUOTA", name, f"{key} is {'removed' if value is None else f'{value:g}'}")


def _result(entry: EntryData, error: KafkaError | None) -> AlteredEntryData:
    parts = [AlteredEntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    return AlteredEntryData(error_code=code, error_message=message, entity=parts)
