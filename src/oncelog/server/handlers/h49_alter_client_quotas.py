"""AlterClientQuotas (49), v0-1. `controller.quota_changes` has the rules."""

from __future__ import annotations

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import quotas_entry
from oncelog.controller.quota_changes import Changes, altered_entry, checked_entries, named_entity
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps


def handle(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> Steps[AlterClientQuotasResponse | Promise[AlterClientQuotasResponse]]:
    try:
        context.require(Operation.ALTER_CONFIGS, Resource.CLUSTER)
    except KafkaError as error:
        refusal = error
        refused = yield from in_steps(altered_entry(entry, refusal) for entry in request.entries)
        return AlterClientQuotasResponse(entries=refused)
    entities = yield from in_steps(named_entity(entry) for entry in request.entries)
    checked = yield from in_steps(checked_entries(request.entries, entities))
    changes = [change for _, each in checked if not isinstance(each, KafkaError) for change in each]

    def decide() -> JournalEntry | None:
        return quotas_entry(changes) if changes and not request.validate_only else None

    def answer(error: KafkaError | None) -> Steps[AlterClientQuotasResponse]:
        if error is None and not request.validate_only:
            yield from _tell(context, changes)
        results = ((entry, each if isinstance(each, KafkaError) else error) for entry, each in checked)
        entries = yield from in_steps(altered_entry(entry, result) for entry, result in results)
        return AlterClientQuotasResponse(entries=entries)

    # A promise of HANG_UP is the dispatcher's to deal with.
    return broker.metadata.propose("quotas", decide).chain(
        lambda error: broker.turns.begin(answer(error), context.peer, to_the_end=True)
    )


def _tell(context: RequestContext, changes: Changes) -> Steps[None]:
    for entity, key, value in changes:
        yield
        name = ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity)
        context.tell_change("QUOTA", name, f"{key} is {'removed' if value is None else f'{value:g}'}")
