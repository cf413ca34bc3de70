"""A whole request that is refused: the answer of its kind, with the error wherever that kind has a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncelog.controller.acl_changes import created, not_deleted
from oncelog.controller.quota_changes import altered_entry
from oncelog.controller.scram_changes import scram_answer
from oncelog.core.errors import KafkaError
from oncelog.core.invariant import invariant
from oncelog.protocol.api import messages
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from oncelog.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from oncelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from oncelog.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from oncelog.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from oncelog.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from oncelog.protocol.schema import Message


def refused(request: Message, error: KafkaError) -> Message:
    make = _BY_PART.get(type(request))
    if make is not None:
        return make(request, error)
    invariant(request.API_KEY is not None, "%s is no request", type(request).__name__)
    response = messages(request.API_KEY or 0).response
    if "responses" in response.FIELDS and "error_code" not in response.FIELDS:
        return _of_resources(request, response, error)
    answer: Any = response()
    answer.error_code = error.code
    if "error_message" in response.FIELDS:
        answer.error_message = error.message or None
    return answer  # type: ignore[no-any-return]  # a message


def _of_resources(request: Any, response: Any, error: KafkaError) -> Message:
    """AlterConfigs and IncrementalAlterConfigs."""
    result = response.FIELDS["responses"].element.struct
    answers = [
        result(
            error_code=error.code,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]
    return response(responses=answers)  # type: ignore[no-any-return]  # a message


def _of_topics(request: CreateTopicsRequest, error: KafkaError) -> Message:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def _of_deletions(request: DeleteTopicsRequest, error: KafkaError) -> Message:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    results = [
        DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)
        for name, topic_id in named
    ]
    results += [
        DeletableTopicResult(name=name, error_code=error.code, error_message=error.message)
        for name in request.topic_names
    ]
    return DeleteTopicsResponse(responses=results)


def _of_growth(request: CreatePartitionsRequest, error: KafkaError) -> Message:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def _of_users(request: AlterUserScramCredentialsRequest, error: KafkaError) -> Message:
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return scram_answer(dict.fromkeys(names, error))


def _of_elections(request: ElectLeadersRequest, error: KafkaError) -> Message:
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or []
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def _of_reassignments(request: AlterPartitionReassignmentsRequest, error: KafkaError) -> Message:
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=each.partition_index, error_code=error.code, error_message=error.message
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message, responses=responses)


_BY_PART: Final[dict[type[Message], Callable[[Any, KafkaError], Message]]] = {
    CreateTopicsRequest: _of_topics,
    DeleteTopicsRequest: _of_deletions,
    CreatePartitionsRequest: _of_growth,
    ElectLeadersRequest: _of_elections,
    AlterPartitionReassignmentsRequest: _of_reassignments,
    AlterUserScramCredentialsRequest: _of_users,
    AlterClientQuotasRequest: lambda request, error: AlterClientQuotasResponse(
        entries=[altered_entry(entry, error) for entry in request.entries]
    ),
    CreateAclsRequest: lambda request, error: CreateAclsResponse(results=[created(error) for _ in request.creations]),
    DeleteAclsRequest: lambda request, error: DeleteAclsResponse(
        filter_results=[not_deleted(error) for _ in request.filters]
    ),
}
