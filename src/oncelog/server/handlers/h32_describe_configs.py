"""DescribeConfigs (32), v1-4: topics and this broker."""

from __future__ import annotations

from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from oncelog.server.broker import Broker
from oncelog.server.config_descriptions import DescribedNode, describe_configs
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps


def handle(broker: Broker, request: DescribeConfigsRequest, context: RequestContext) -> Steps[DescribeConfigsResponse]:
    node = DescribedNode(broker.node_id, broker.broker_settings, lambda name: broker.metadata.require(name).configs)
    return describe_configs(node, request, context)
