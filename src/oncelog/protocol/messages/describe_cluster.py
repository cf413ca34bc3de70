"""DescribeCluster (60): brokers and controller. v1 asks for brokers or controllers, v2 shows fenced ones."""

from __future__ import annotations

from typing import Final

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string

ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2


class DescribeClusterRequest(Message, api=ApiKey.DESCRIBE_CLUSTER):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=ENDPOINT_BROKERS)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterBroker(Message):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)
    is_fenced: bool = boolean(since=2)


class DescribeClusterResponse(Message, api=ApiKey.DESCRIBE_CLUSTER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    endpoint_type: int = int8(since=1, default=ENDPOINT_BROKERS)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-(2**31))
