"""ElectLeaders (43), and the elections that the controller holds from time to time."""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.partition_change import Election
from oncelog.controller.view import Place, View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from oncelog.protocol.schema import Message

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def elect_leaders(view: View, request: ElectLeadersRequest) -> Deciding:
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    wanted = request.topic_partitions
    asked = (
        [(topic.name, list(topic.partitions)) for topic in view.image.topics.values()]
        if wanted is None
        else [(topic.topic, topic.partitions) for topic in wanted]
    )
    records: list[Message] = []
    results = []
    for name, indexes in asked:
        result = ReplicaElectionResult(topic=name)
        for index in dict.fromkeys(indexes):
            yield
            answer = PartitionResult(partition_id=index, error_message=None)
            try:
                records.append(_elect(view, name, index, election))
            except KafkaError as error:
                if wanted is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                answer.error_code, answer.error_message = error.code, error.message
            result.partition_result.append(answer)
        results.append(result)
    return Decision(records, ElectLeadersResponse(replica_election_results=results))


def _elect(view: View, name: str, index: int, election: Election) -> PartitionChangeRecord:
    """Raises KafkaError."""
    topic = view.image.topic(name)
    partition = None if topic is None else topic.partitions.get(index)
    if topic is None or partition is None:
        what = f"topic as {name}" if topic is None else f"partition as {name}-{index}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}")
    is_preferred = election is Election.PREFERRED
    if partition.leader == partition.replicas[0] if is_preferred else partition.leader >= 0:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    record = _elected(view, Place(topic, index, partition), election)
    if record is None and is_preferred:
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    if record is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
        )
    return record


def _elected(view: View, place: Place, election: Election) -> PartitionChangeRecord | None:
    change = view.change(place)
    change.election = election
    return change.record(place.topic.topic_id, place.partition_index)


def preferred_leaders(view: View, limit: int) -> list[Message]:
    """Leadership goes back to the first replicas that are in sync again: auto.leader.rebalance.enable."""
    places = (place for place in view.places() if place.partition.leader != place.partition.replicas[0])
    return _up_to(limit, (_elected(view, place, Election.PREFERRED) for place in places))


def unclean_leaders(view: View, limit: int) -> list[Message]:
    """Partitions without a leader get one that may have lost records, where unclean.leader.election.enable says so."""
    places = (place for place in view.places() if place.partition.leader < 0)
    allowed = (place for place in places if view.allows_unclean(place.topic.name))
    return _up_to(limit, (_elected(view, place, Election.UNCLEAN) for place in allowed))


def _up_to(limit: int, records: Iterator[PartitionChangeRecord | None]) -> list[Message]:
    found: list[Message] = []
    for record in records:
        if record is not None:
            found.append(record)
        if len(found) >= limit:
            break
    return found
