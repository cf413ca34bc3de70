"""What controllers tell of themselves: DescribeCluster, and whose settings DescribeConfigs describes.

Any controller answers, active or not, by the metadata that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncelog.controller.image import ConfigResource
from oncelog.controller.topic_rules import unknown_topic
from oncelog.core.address import Address
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.protocol.messages.cluster_metadata import VoterEndpoint
from oncelog.protocol.messages.describe_cluster import (
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from oncelog.server.authorization import NOT_ASKED
from oncelog.server.config_descriptions import DescribedNode
from oncelog.server.context import RequestContext
from oncelog.server.controller_node import ControllerNode


def describe_cluster(
    node: ControllerNode, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type != ENDPOINT_CONTROLLERS:
        return _other_endpoints(request.endpoint_type, context.api_version)
    addresses, leader = _controllers(node, context.peer.listener), node.log.leader
    return DescribeClusterResponse(
        error_message=None,
        endpoint_type=ENDPOINT_CONTROLLERS,
        cluster_id=node.machine.config.cluster_id,
        controller_id=leader.node_id if leader is not None and leader.node_id in addresses else -1,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port)
            for node_id, address in sorted(addresses.items())
        ],
        cluster_authorized_operations=context.operations_on_cluster()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _other_endpoints(wanted: int, api_version: int) -> DescribeClusterResponse:
    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if wanted == ENDPOINT_BROKERS else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    return DescribeClusterResponse(
        error_code=code if api_version > 0 else ErrorCode.INVALID_REQUEST,
        error_message=f"This is a controller, which describes controllers (2), not endpoints of type {wanted}.",
    )


def _controllers(node: ControllerNode, listener: str) -> dict[int, Address]:
    """The addresses of controllers: of those that have registered, and of voters that were never active."""
    voters = node.log.committed.quorum.voters
    known: dict[int, Sequence[VoterEndpoint | Listener]] = {}
    if voters is not None:
        known |= {voter.voter_id: voter.endpoints for voter in voters.voters}
    known |= {record.controller_id: record.end_points for record in node.machine.view.image.controllers.values()}
    return {
        node_id: Address(endpoint.host, endpoint.port)
        for node_id, endpoints in known.items()
        for endpoint in endpoints
        if endpoint.name.upper() == listener.upper()
    }


def described_node(node: ControllerNode) -> DescribedNode:
    view = node.machine.view

    def topic_configs(name: str) -> Mapping[str, str]:
        if name not in view.image.topic_ids:
            raise unknown_topic()
        return view.image.settings.get(ConfigResource(ResourceType.TOPIC, name), {})

    return DescribedNode(node.machine.config.node_id, view.settings, topic_configs)
