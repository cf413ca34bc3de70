"""What controllers decide is passed on to the active one, with who asked, and its answer goes back as it is.

The controller checks what the client may do, and says so in its answer. Where no controller answers, the connection of
the client is closed: nobody knows whether the request was carried out, and clients ask again.
"""

from __future__ import annotations

import ipaddress
import logging
import struct
from typing import TYPE_CHECKING, Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from oncelog.server.context import Peer

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

FORWARDED: Final[dict[int, tuple[int, int]]] = {
    **{
        key: key.advertised
        for key in (
            ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.ELECT_LEADERS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKey.DESCRIBE_QUORUM,
            ApiKey.UPDATE_FEATURES,
        )
    },
    45: (0, 1),  # AlterPartitionReassignments
    46: (0, 0),  # ListPartitionReassignments
    64: (0, 0),  # UnregisterBroker
}
"""Keys with the versions that are passed on, which Kafka 4.3 serves. Not all of them have a handler here."""
_TIMEOUT_MS: Final = 60_000
_RETRY_MS: Final = 50
_SIZE: Final = struct.Struct(">i")

Buffers = list[bytes | bytearray | memoryview]


class Forwarder:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def takes(self, key: int) -> bool:
        return key in FORWARDED

    def forward(self, frame: memoryview, peer: Peer) -> Promise[Buffers | None]:
        request = EnvelopeRequest(
            request_data=bytes(frame),
            request_principal=_principal(peer.principal),
            client_host_address=_address(peer.client_host),
        )
        promise: Promise[Buffers | None] = Promise()
        self._send(request, promise, self._broker.steady_ms() + _TIMEOUT_MS)
        return promise

    def _send(self, request: EnvelopeRequest, promise: Promise[Buffers | None], deadline_ms: int) -> None:
        membership, now_ms = self._broker.membership, self._broker.steady_ms()
        if membership is None or now_ms >= deadline_ms or self._broker.stopped:
            promise.resolve([])
            return
        answer = membership.ask_controller("forwarding", request, EnvelopeResponse, deadline_ms - now_ms)
        answer.then(lambda found: self._answered(request, promise, deadline_ms, found))

    def _answered(
        self,
        request: EnvelopeRequest,
        promise: Promise[Buffers | None],
        deadline_ms: int,
        answer: EnvelopeResponse | KafkaError,
    ) -> None:
        code = answer.code if isinstance(answer, KafkaError) else answer.error_code
        if code == ErrorCode.NOT_CONTROLLER:
            self._broker.scheduler.call_later_ms(_RETRY_MS, lambda: self._send(request, promise, deadline_ms))
        elif isinstance(answer, KafkaError) or answer.response_data is None:
            log.warning("the controller did not answer a request that was passed on: %s", answer)
            promise.resolve([])
        else:
            data = answer.response_data
            promise.resolve([_SIZE.pack(len(data)), data])


def _principal(principal: str) -> bytes:
    """As Kafka writes it: version, type, name, whether it came by a token, no tags."""
    kind, _, name = principal.partition(":")
    return b"\0\0" + _compact(kind) + _compact(name) + b"\0\0"


def _compact(text: str) -> bytes:
    data = text.encode()
    length, head = len(data) + 1, bytearray()
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


def _address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return ipaddress.IPv4Address(0).packed
