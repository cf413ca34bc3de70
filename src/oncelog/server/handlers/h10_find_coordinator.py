"""FindCoordinator (10), v0-6: the leader of the partition that holds a group or a transactional id.

The internal topic behind a coordinator is made when it is first asked for; Kafka answers COORDINATOR_NOT_AVAILABLE
while it makes it, here the answer waits for it.
"""

from __future__ import annotations

from oncelog.cluster.metadata import Topic
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, NodeId
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one

_KEY_TYPES = {
    0: (GROUP_METADATA_TOPIC, Resource.GROUP),
    1: (TRANSACTION_STATE_TOPIC, Resource.TRANSACTIONAL_ID),
}


def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> Steps[Promise[FindCoordinatorResponse]]:
    if context.api_version >= 4:
        keys = dict.fromkeys(request.coordinator_keys)
        yield
        found = yield from one_by_one(lambda key: _find(broker, key, request.key_type, context), keys)
        return gather(found).map(lambda coordinators: FindCoordinatorResponse(coordinators=coordinators))
    return _find(broker, request.key, request.key_type, context).map(
        lambda found: FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    )


def _find(broker: Broker, key: str, key_type: int, context: RequestContext) -> Promise[Coordinator]:
    try:
        if key_type not in _KEY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"coordinators of key type {key_type} are not served")
        name, resource = _KEY_TYPES[key_type]
        context.require(Operation.DESCRIBE, resource, key)
    except KafkaError as error:
        return Promise.resolved(_failed(key, error))

    def answer(topic: Topic | KafkaError) -> Coordinator:
        if isinstance(topic, KafkaError):
            return _failed(key, topic)
        node = broker.nodes(context).get(_coordinator_of(broker, topic, key))
        if node is None:
            return _failed(key, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now"))
        return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message=None)

    return broker.internal_topic(name).map(answer)


def _failed(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.message)


def _coordinator_of(broker: Broker, topic: Topic, key: str) -> NodeId:
    index = coordinator_partition(key, topic.partition_count)
    return broker.metadata.partition_state(topic, index).leader
