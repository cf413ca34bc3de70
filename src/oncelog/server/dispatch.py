"""From a request frame to its handler and back to a response frame.

`API_VERSIONS` below is what this broker advertises: a key is listed only when it is really served, because clients
switch to whatever they see.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oncelog.core.promise import Promise
from oncelog.protocol.api import ApiKey, decode_request, encode_response, response_header_version
from oncelog.protocol.framing import frame_response, parse_request_header
from oncelog.server.context import HANG_UP, Peer, RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

Buffers = list[bytes | bytearray | memoryview]
Handler = Callable[["Broker", Any, RequestContext], Any]

# Module of each handler, and the versions it serves. Versions below `Produce` 3 are advertised for librdkafka, which
# otherwise takes the broker for one without message format 2, and refused when used.
_HANDLERS: Final[dict[ApiKey, tuple[str, int, int]]] = {
    ApiKey.PRODUCE: ("h00_produce", 0, 13),
    ApiKey.FETCH: ("h01_fetch", 4, 18),
    ApiKey.LIST_OFFSETS: ("h02_list_offsets", 1, 11),
    ApiKey.METADATA: ("h03_metadata", 0, 13),
    ApiKey.OFFSET_COMMIT: ("h08_offset_commit", 2, 10),
    ApiKey.OFFSET_FETCH: ("h09_offset_fetch", 1, 10),
    ApiKey.FIND_COORDINATOR: ("h10_find_coordinator", 0, 6),
    ApiKey.JOIN_GROUP: ("h11_join_group", 0, 9),
    ApiKey.HEARTBEAT: ("h12_heartbeat", 0, 4),
    ApiKey.LEAVE_GROUP: ("h13_leave_group", 0, 5),
    ApiKey.SYNC_GROUP: ("h14_sync_group", 0, 5),
    ApiKey.DESCRIBE_GROUPS: ("h15_describe_groups", 0, 6),
    ApiKey.LIST_GROUPS: ("h16_list_groups", 0, 5),
    ApiKey.API_VERSIONS: ("h18_api_versions", 0, 4),
    ApiKey.CREATE_TOPICS: ("h19_create_topics", 2, 7),
    ApiKey.DELETE_TOPICS: ("h20_delete_topics", 1, 6),
    ApiKey.DELETE_RECORDS: ("h21_delete_records", 0, 2),
    ApiKey.INIT_PRODUCER_ID: ("h22_init_producer_id", 0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("h23_offset_for_leader_epoch", 2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("h24_add_partitions_to_txn", 0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: ("h25_add_offsets_to_txn", 0, 4),
    ApiKey.END_TXN: ("h26_end_txn", 0, 5),
    ApiKey.WRITE_TXN_MARKERS: ("h27_write_txn_markers", 1, 2),
    ApiKey.TXN_OFFSET_COMMIT: ("h28_txn_offset_commit", 0, 5),
    ApiKey.DESCRIBE_CONFIGS: ("h32_describe_configs", 1, 4),
    ApiKey.ALTER_CONFIGS: ("h33_alter_configs", 0, 2),
    ApiKey.CREATE_PARTITIONS: ("h37_create_partitions", 0, 3),
    ApiKey.DELETE_GROUPS: ("h42_delete_groups", 0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("h44_incremental_alter_configs", 0, 1),
    ApiKey.OFFSET_DELETE: ("h47_offset_delete", 0, 0),
    ApiKey.DESCRIBE_CLUSTER: ("h60_describe_cluster", 0, 2),
    ApiKey.DESCRIBE_PRODUCERS: ("h61_describe_producers", 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ("h65_describe_transactions", 0, 0),
    ApiKey.LIST_TRANSACTIONS: ("h66_list_transactions", 0, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("h75_describe_topic_partitions", 0, 0),
}

_PRODUCE_VERSION_MIN: Final = 3
_INIT_PRODUCER_ID_2PC_VERSION: Final = 6


class UnservedRequest(Exception):
    """A key or version this broker does not serve: like Kafka's, it closes the connection."""


class Dispatcher:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loaded: dict[int, Handler] = {}
        self.versions = {key: (low, high) for key, (_, low, high) in _HANDLERS.items()}
        if broker.settings.boolean("transaction.two.phase.commit.enable"):
            self.versions[ApiKey.INIT_PRODUCER_ID] = (0, _INIT_PRODUCER_ID_2PC_VERSION)
        self._served = {**self.versions, ApiKey.PRODUCE: (_PRODUCE_VERSION_MIN, self.versions[ApiKey.PRODUCE][1])}

    def serve(self, frame: memoryview, peer: Peer) -> Buffers | Promise[Buffers | None] | None:
        """The response frame, a promise of it, or None where the protocol has no answer (acks=0).

        A frame without a byte stands for an answer that cannot be given: the connection is to be closed.
        """
        started_s = time.perf_counter()
        header, position = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        low, high = self._served.get(key, (0, -1))  # type: ignore[call-overload]  # an int is looked up as its IntEnum
        if not low <= version <= high:
            if key != ApiKey.API_VERSIONS:
                raise UnservedRequest(f"API key {key} version {version} is not served")
            version = 0
            body: Any = None
        else:
            body = decode_request(key, version, frame[position:])
        context = RequestContext(version, header.client_id or "", peer)
        answer = self._handler(key)(self._broker, body, context)
        metrics = self._broker.metrics
        if isinstance(answer, Promise):

            def finish(message: Any) -> Buffers | None:
                metrics.request_served(key, time.perf_counter() - started_s)
                try:
                    return _frame(key, version, header.correlation_id, message)
                except Exception:
                    # It would come out where the promise was resolved: in the middle of somebody else's request.
                    log.exception("the answer to a request with API key %d could not be encoded", key)
                    return []

            return answer.map(finish)
        metrics.request_served(key, time.perf_counter() - started_s)
        return _frame(key, version, header.correlation_id, answer)

    def _handler(self, key: int) -> Handler:
        handler = self._loaded.get(key)
        if handler is None:
            module = importlib.import_module(f"oncelog.server.handlers.{_HANDLERS[ApiKey(key)][0]}")
            handler = self._loaded[key] = module.handle
        return handler


def _frame(key: int, version: int, correlation_id: int, message: Any) -> Buffers | None:
    if message is None:
        return None
    if message is HANG_UP:
        return []
    buffers = message if isinstance(message, list) else encode_response(key, version, message)
    return frame_response(correlation_id, response_header_version(key, version), buffers)
