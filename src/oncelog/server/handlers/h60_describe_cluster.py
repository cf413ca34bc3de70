"""DescribeCluster (60), v0-2: the brokers; there are no separate controllers to describe (endpoint type 2)."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import (
    ENDPOINT_BROKERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from oncelog.server.authorization import NOT_ASKED
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != ENDPOINT_BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This is a broker; there are no separate controllers to describe.",
            endpoint_type=ENDPOINT_BROKERS,
        )
    alive = broker.nodes(context).keys()
    return DescribeClusterResponse(
        error_message=None,
        endpoint_type=ENDPOINT_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=node.node_id not in alive,
            )
            for node in broker.nodes(context, with_fenced=request.include_fenced_brokers).values()
        ],
        cluster_authorized_operations=context.operations_on_cluster()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )
