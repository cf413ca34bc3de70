"""Clients that ask for partitions which this broker does not lead are told who leads them (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oncelog.server.context import RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker


def tell_leaders(
    broker: Broker, context: RequestContext, refused: Iterable[tuple[Any, str, int]], response: Any
) -> None:
    """`refused` are answers about partitions in the response to Produce or Fetch, each with its topic and number."""
    metadata, nodes = broker.metadata, broker.nodes(context)
    named = set()
    for answer, topic, index in refused:
        if metadata.has_partition(topic, index):
            state = metadata.partition_state(metadata.topics[topic], index)
            if state.leader in nodes:
                leader = type(answer).FIELDS["current_leader"].struct
                answer.current_leader = leader(leader_id=state.leader, leader_epoch=state.leader_epoch)
                named.add(state.leader)
    endpoint = type(response).FIELDS["node_endpoints"].element.struct
    response.node_endpoints = [
        endpoint(node_id=node, host=nodes[node].host, port=nodes[node].port, rack=nodes[node].rack)
        for node in sorted(named)
    ]
