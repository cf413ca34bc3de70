"""Kafka's controller protocol: frames of brokers and of other controllers in, answers out.

A broker sends requests of its own, and those of clients in an Envelope. In it are the client's request and the
client's name, which the broker vouches for; so who may send envelopes may do everything.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Any, Final

from oncelog.cluster.quorum_serving import QuorumServing
from oncelog.core.address import LOOPBACK
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import KRAFT_VERSION
from oncelog.core.promise import Promise
from oncelog.protocol.api import decode_request, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header
from oncelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse
from oncelog.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.security.forwarded_principal import decode_principal
from oncelog.server.authorization import AllowClients, Authorizer, Operation, Resource, acls_are_disabled
from oncelog.server.context import HANG_UP, HangUp, Peer, RequestContext
from oncelog.server.controller_node import ControllerNode
from oncelog.server.dispatch import DECODED_HERE_BYTES_MAX, Answer, Buffers, UnservedRequest, is_long
from oncelog.server.forwarding import FORWARDED
from oncelog.server.quotas import Quotas
from oncelog.server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.core.clock import Scheduler
    from oncelog.core.worker import OneAtATime
    from oncelog.protocol.messages.api_versions import ApiVersionsResponse
    from oncelog.server.large_requests import LargeRequests
    from oncelog.server.memory_budget import MemoryBudget

log = logging.getLogger("oncelog.server")

_MAX_WAIT_MS: Final = 30_000
_CLUSTER_ACTION: Final = Operation.CLUSTER_ACTION
_OWN_BROKER: Final = Peer(LOOPBACK, LOOPBACK)
_EVERYTHING: Final = AllowClients(cluster_action=True)
NEEDED: Final[dict[ApiKey, Operation | None]] = {
    ApiKey.API_VERSIONS: None,
    ApiKey.SASL_HANDSHAKE: None,
    ApiKey.SASL_AUTHENTICATE: None,
    ApiKey.FETCH: _CLUSTER_ACTION,
    ApiKey.FETCH_SNAPSHOT: _CLUSTER_ACTION,
    ApiKey.ENVELOPE: _CLUSTER_ACTION,
    ApiKey.BROKER_REGISTRATION: _CLUSTER_ACTION,
    ApiKey.BROKER_HEARTBEAT: _CLUSTER_ACTION,
    ApiKey.CONTROLLER_REGISTRATION: _CLUSTER_ACTION,
    ApiKey.ALTER_PARTITION: _CLUSTER_ACTION,
    ApiKey.ALLOCATE_PRODUCER_IDS: _CLUSTER_ACTION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _CLUSTER_ACTION,
    ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
    ApiKey.DESCRIBE_CLUSTER: Operation.ALTER,  # as in Kafka: the addresses of controllers are not for everybody
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.UNREGISTER_BROKER: Operation.ALTER,
    ApiKey.ADD_RAFT_VOTER: Operation.ALTER,
    ApiKey.REMOVE_RAFT_VOTER: Operation.ALTER,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
    ApiKey.UPDATE_FEATURES: Operation.ALTER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
    ApiKey.CREATE_ACLS: Operation.ALTER,
    ApiKey.DELETE_ACLS: Operation.ALTER,
    ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
    # Of each topic or resource, by the rules themselves.
    ApiKey.CREATE_TOPICS: None,
    ApiKey.DELETE_TOPICS: None,
    ApiKey.CREATE_PARTITIONS: None,
    ApiKey.ALTER_CONFIGS: None,
    ApiKey.DESCRIBE_CONFIGS: None,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: None,
}
"""What is served, and the operation on the cluster that it needs."""
_LOGGED_IN: Final = KafkaError(
    ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
)
_FIXED_VOTERS: Final = KafkaError(
    ErrorCode.UNSUPPORTED_VERSION,
    "the voters are fixed: change controller.quorum.voters of all controllers and restart them one after the other",
)
_UNANSWERED: Final = EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
_WITH_ACLS: Final = frozenset({ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS})


class ControllerFront:
    """`has_acls`: somebody looks at ACLs. Without that, none are stored."""

    def __init__(
        self,
        node: ControllerNode,
        cluster_id: str,
        scheduler: Scheduler,
        budget: MemoryBudget,
        large_requests: LargeRequests,
        encoding: OneAtATime,
        authorizer: Callable[[], Authorizer],
        *,
        has_acls: bool,
    ) -> None:
        self._node = node
        self._serving = QuorumServing(node.log, cluster_id)
        self._scheduler = scheduler
        self._authorizer = authorizer
        self._has_acls = has_acls
        self._turns = Turns(scheduler, budget)
        self._large_requests = large_requests
        self._encoding = encoding
        self._long_polls: list[Callable[[], None]] = []
        self._known_quotas = node.machine.view.image.quotas
        self._mutation_quotas = Quotas(self._known_quotas, scheduler.monotonic_ms)
        node.on_news = self._wake

    def serve(self, frame: memoryview, peer: Peer) -> Answer:
        header, position = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        if key not in NEEDED or not ApiKey(key).first <= version <= ApiKey(key).last:
            if key != ApiKey.API_VERSIONS:
                raise UnservedRequest(f"API key {key} version {version} is not served by a controller")
            return _framed(header, 0, self._api_versions(is_known=False))
        if len(frame) <= DECODED_HERE_BYTES_MAX:
            return self._serve_decoded(header, peer, decode_request(key, version, frame[position:]))
        peer.request_bytes = len(frame)
        return self._large_requests.serve(
            key,
            peer,
            lambda: decode_request(key, version, frame[position:]),
            lambda request: self._serve_decoded(header, peer, request),
        )

    def _serve_decoded(self, header: RequestHeader, peer: Peer, request: Any) -> Promise[Buffers | None]:
        if isinstance(request, Exception):
            log.warning("a request of %s cannot be read: %s", peer.client_host, request)
            return Promise.resolved([])
        answer = self._answer(ApiKey(header.api_key), request, self._context(header, peer))
        return answer.chain(lambda message: self._framed_later(header, message))

    def _framed_later(self, header: RequestHeader, message: Message | HangUp) -> Promise[Buffers | None]:
        """A long answer by a worker."""
        if not is_long(header.api_key, message):
            return Promise.resolved(_framed(header, header.api_version, message))

        def encoded(result: Buffers | Exception) -> Buffers | None:
            return [] if isinstance(result, Exception) else result

        return self._encoding.run(lambda: _framed(header, header.api_version, message)).map(encoded)

    def serve_own(self, request: Message) -> Promise[Message]:
        """A request of the broker in this process, which may do everything."""
        key = ApiKey(type(request).API_KEY or 0)
        context = RequestContext(key.last, "", _OWN_BROKER, _EVERYTHING, key, is_of_broker=True)
        return self._answer(key, request, context)

    def _context(self, header: RequestHeader, peer: Peer) -> RequestContext:
        return RequestContext(
            header.api_version,
            header.client_id or "",
            peer,
            self._authorizer(),
            header.api_key,
            is_of_broker=True,
            mutation_quotas=self._newest_quotas(),
        )

    def _newest_quotas(self) -> Quotas:
        entries = self._node.machine.view.image.quotas
        if entries is not self._known_quotas:
            self._known_quotas = entries
            self._mutation_quotas.become(entries)
        return self._mutation_quotas

    def _answer(self, key: ApiKey, request: Any, context: RequestContext) -> Promise[Message]:
        needed = NEEDED[key]
        try:
            if needed is not None:
                context.require(needed, Resource.CLUSTER)
            if key in _WITH_ACLS and not self._has_acls:
                raise acls_are_disabled()
        except KafkaError as error:
            return Promise.resolved(_refused(request, error))
        match key:
            case ApiKey.API_VERSIONS:
                return Promise.resolved(self._api_versions(context.api_version, is_known=True))
            case ApiKey.SASL_HANDSHAKE | ApiKey.SASL_AUTHENTICATE:
                # Nobody is to log in here. A login itself never comes here: see `login`.
                return Promise.resolved(_refusal(request, _LOGGED_IN))
            case ApiKey.FETCH:
                return self._fetch(request, context.api_version)
            case ApiKey.FETCH_SNAPSHOT:
                return Promise.resolved(self._serving.fetch_snapshot(request))
            case ApiKey.DESCRIBE_QUORUM:
                return self._turns.begin(self._serving.describe(request, self._scheduler.now_ms()), context.peer)
            case ApiKey.DESCRIBE_CLUSTER:
                from oncelog.server.controller_descriptions import describe_cluster

                return Promise.resolved(describe_cluster(self._node, request, context))
            case ApiKey.DESCRIBE_CONFIGS:
                from oncelog.server.config_descriptions import describe_configs
                from oncelog.server.controller_descriptions import described_node

                return self._turns.begin(describe_configs(described_node(self._node), request, context), context.peer)
            case ApiKey.ADD_RAFT_VOTER | ApiKey.REMOVE_RAFT_VOTER:
                return Promise.resolved(_refusal(request, _FIXED_VOTERS))
            case ApiKey.ENVELOPE:
                return self._open(request, context.peer)

        def finished(answer: Message | KafkaError) -> Message:
            message = _refusal(request, answer) if isinstance(answer, KafkaError) else answer
            if context.throttle_ms and "throttle_time_ms" in message.FIELDS:
                message.throttle_time_ms = context.throttle_ms  # type: ignore[attr-defined]  # most answers have it
            return message

        return self._node.ask(request, context).map(finished)

    def _api_versions(self, version: int = 0, *, is_known: bool) -> ApiVersionsResponse:
        from oncelog.protocol.messages.api_versions import (
            ApiVersion,
            ApiVersionsResponse,
            FinalizedFeatureKey,
            SupportedFeatureKey,
        )
        from oncelog.server.handlers.h18_api_versions import WITH_LEVEL_ZERO

        if not is_known:
            versions = ApiKey.API_VERSIONS
            only = ApiVersion(api_key=versions, min_version=versions.first, max_version=versions.last)
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[only])
        machine = self._node.machine
        levels = {**machine.view.image.features, KRAFT_VERSION: machine.kraft_version}
        return ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=key, min_version=key.first, max_version=key.last) for key in sorted(NEEDED)],
            supported_features=[
                SupportedFeatureKey(
                    name=each.name, min_version=each.min_supported_version, max_version=each.max_supported_version
                )
                for each in machine.config.features
                if each.min_supported_version or version >= WITH_LEVEL_ZERO
            ],
            finalized_features_epoch=max(0, self._node.log.committed.end_offset - 1),
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in levels.items()
                if level
            ],
        )

    # Fetch

    def _fetch(self, request: FetchRequest, version: int) -> Promise[Message]:
        found = self._serving.fetch(request, version, self._scheduler.now_ms())
        if not found.can_wait or request.max_wait_ms <= 0:
            return Promise.resolved(found.response)
        promise: Promise[Message] = Promise()

        def again() -> None:
            if not promise.done:
                timer.cancel()
                promise.resolve(self._serving.fetch(request, version, self._scheduler.now_ms()).response)

        def too_long() -> None:
            if not promise.done:
                self._long_polls.remove(again)
                promise.resolve(found.response)

        self._long_polls.append(again)
        timer = self._scheduler.call_later_ms(min(request.max_wait_ms, _MAX_WAIT_MS), too_long)
        return promise

    def _wake(self) -> None:
        waiting, self._long_polls = self._long_polls, []
        for again in waiting:
            again()

    # Envelope

    def _open(self, envelope: EnvelopeRequest, sender: Peer) -> Promise[Message]:
        if not self._node.log.is_active:
            return Promise.resolved(EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))
        try:
            peer = Peer(
                _host(envelope.client_host_address),
                sender.local_host,
                principal=decode_principal(envelope.request_principal),
            )
            frame = memoryview(envelope.request_data)
            header, position = parse_request_header(frame)
            key, version = header.api_key, header.api_version
            if key not in FORWARDED or not ApiKey(key).first <= version <= ApiKey(key).last:
                return Promise.resolved(EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
            request = decode_request(key, version, frame[position:])
        except (MalformedRequest, IndexError, ValueError) as error:
            log.warning("an envelope of %s cannot be read: %s", sender.client_host, error)
            return Promise.resolved(EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST))

        def wrap(answer: Message) -> Promise[Message]:
            if _is_of_former_controller(answer):
                return Promise.resolved(EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))
            return self._framed_later(header, answer).map(enclose)

        def enclose(buffers: Buffers | None) -> Message:
            data = b"".join(buffers or ())
            return EnvelopeResponse(response_data=data[4:]) if data else _UNANSWERED

        return self._answer(ApiKey(key), request, self._context(header, peer)).chain(wrap)


def _framed(header: RequestHeader, version: int, message: Message | HangUp) -> Buffers:
    """Nothing if there is no answer, or it cannot be encoded: the connection is to be closed."""
    key = header.api_key
    if message is HANG_UP:
        return []
    try:
        buffers = encode_response(key, version, message)
    except Exception:
        # It would come out where the promise was resolved: in the middle of the answers to all others of the round.
        log.exception("the answer to a request with API key %d could not be encoded", key)
        return []
    return frame_response(header.correlation_id, response_header_version(key, version), buffers)


def _refused(request: Message, error: KafkaError) -> Message:
    if isinstance(request, FetchRequest):
        return FetchResponse(error_code=error.code)
    if isinstance(request, FetchSnapshotRequest):
        return FetchSnapshotResponse(error_code=error.code)
    if isinstance(request, EnvelopeRequest):
        return EnvelopeResponse(error_code=error.code)
    return _refusal(request, error)


def _refusal(request: Message, error: KafkaError) -> Message:
    from oncelog.controller.refusals import refused  # which knows the answers to all requests

    return refused(request, error)


def _is_of_former_controller(answer: Message) -> bool:
    """Whether the controller has lost its office meanwhile. The broker asks the next one."""
    parts: list[Any] = [answer]
    for name, field in type(answer).FIELDS.items():
        if field.kind == "array" and field.element is not None and field.element.struct is not None:
            parts += getattr(answer, name) or []
    return any(getattr(part, "error_code", None) == ErrorCode.NOT_CONTROLLER for part in parts)


def _host(address: bytes) -> str:
    return str(ipaddress.ip_address(address))
