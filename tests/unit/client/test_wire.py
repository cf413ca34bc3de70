"""The state of a connection, driven by bytes and by a time that the tests make up."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost, KafkaError, UnsupportedByBroker
from oncelog.client.wire import Wire
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api import decode_request, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header
from oncelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.schema import Message

CONFIG = ClientConfig(bootstrap_servers="b:1", request_timeout_ms=1_000)
SERVED = [
    ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.PRODUCE, min_version=3, max_version=13),
]


class Peer:
    """The broker's side of a wire: reads what was written, and answers in bytes."""

    def __init__(self) -> None:
        self.wire = Wire(CONFIG, "b:1", lambda frame: self.written.append(b"".join(frame)))
        self.written: list[bytes] = []
        self.results: list[Any] = []

    def requests(self) -> list[tuple[RequestHeader, Message]]:
        found = []
        for data in self.written:
            header, position = parse_request_header(memoryview(data)[4:])
            found.append((header, decode_request(header.api_key, header.api_version, memoryview(data)[4:], position)))
        self.written.clear()
        return found

    def answer(self, header: RequestHeader, response: Message, version: int | None = None) -> bytes:
        number = header.api_version if version is None else version
        body = encode_response(header.api_key, number, response)
        head_version = response_header_version(header.api_key, header.api_version)
        return b"".join(frame_response(header.correlation_id, head_version, body))

    def receive(self, data: bytes, step: int = 1 << 16) -> None:
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self.wire.get_buffer()[: len(part)] = part
            self.wire.buffer_updated(len(part))

    def negotiated(self) -> Peer:
        self.wire.negotiate(0.0, self.results.append)
        ((header, _),) = self.requests()
        self.receive(self.answer(header, ApiVersionsResponse(api_keys=SERVED)))
        assert self.results == [None]
        self.results.clear()
        return self

    def beat(self, number: int = 0, now_s: float = 0.0, **options: Any) -> float:
        request = HeartbeatRequest(group_id="g", generation_id=number)
        return self.wire.send(request, now_s, self.results.append, **options)


def test_versions_and_features_are_learned_from_one_answer() -> None:
    peer = Peer()
    peer.wire.negotiate(0.0, peer.results.append)
    ((header, _),) = peer.requests()
    feature = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)
    answer = ApiVersionsResponse(api_keys=SERVED, finalized_features_epoch=1, finalized_features=[feature])
    peer.receive(peer.answer(header, answer), step=3)
    assert peer.results == [None]
    assert peer.wire.transaction_version == 2
    assert peer.wire.version_of(HeartbeatRequest) == 4
    assert peer.wire.version_of(ProduceRequest) == 12, "capped: the next version names topics by id only"
    assert peer.wire.supports(HeartbeatRequest, 4)
    assert not peer.wire.supports(HeartbeatRequest, 5)
    with pytest.raises(UnsupportedByBroker, match="does not serve EndTxn"):
        peer.wire.version_of(EndTxnRequest)
    with pytest.raises(UnsupportedByBroker, match="speaks ProduceRequest 3-13, this client speaks 3-2"):
        peer.wire.version_of(ProduceRequest, 2)


def test_a_broker_that_refuses_the_version_is_asked_again_in_one_that_it_names() -> None:
    peer = Peer()
    peer.wire.negotiate(0.0, peer.results.append)
    ((first, _),) = peer.requests()
    older = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)]
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=older)
    peer.receive(peer.answer(first, refusal, version=0))
    ((second, _),) = peer.requests()
    assert (first.api_version, second.api_version) == (4, 2)
    peer.receive(peer.answer(second, ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))
    (error,) = peer.results
    assert isinstance(error, KafkaError)
    assert "refuses to tell its versions" in error.message


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_answers_come_in_the_order_of_the_requests(step: int) -> None:
    peer = Peer().negotiated()
    for number in range(4):
        peer.beat(number)
    answers = b""
    for header, request in peer.requests():
        assert isinstance(request, HeartbeatRequest)
        answers += peer.answer(header, HeartbeatResponse(throttle_time_ms=request.generation_id))
    peer.receive(answers, step)
    assert [answer.throttle_time_ms for answer in peer.results] == [0, 1, 2, 3]
    assert peer.wire.deadline_s is None


def test_the_earliest_deadline_closes_the_connection_for_all() -> None:
    peer = Peer().negotiated()
    assert peer.beat(now_s=10.0) == 11.0
    assert peer.beat(now_s=10.1, timeout_ms=300) == pytest.approx(10.4)
    assert peer.beat(now_s=10.2, timeout_ms=60_000) == pytest.approx(70.2)
    assert peer.wire.deadline_s == pytest.approx(10.4)
    peer.wire.expire(10.39)
    assert not peer.wire.closed
    peer.wire.expire(10.41)
    assert peer.wire.closed
    assert len(peer.results) == 3
    assert all(isinstance(result, ConnectionLost) for result in peer.results)
    assert "HEARTBEAT was not answered within 300 ms" in peer.results[0].message
    assert peer.wire.deadline_s is None
    with pytest.raises(ConnectionLost, match="is closed"):
        peer.beat()


def test_an_answer_in_time_takes_its_deadline_away() -> None:
    peer = Peer().negotiated()
    peer.beat(now_s=0.0, timeout_ms=100)
    peer.beat(now_s=0.0, timeout_ms=5_000)
    (first, _), _ = peer.requests()
    peer.receive(peer.answer(first, HeartbeatResponse()))
    peer.wire.expire(0.2)
    assert not peer.wire.closed
    assert peer.wire.deadline_s == 5.0


def test_a_request_without_an_answer_is_written_and_not_waited_for() -> None:
    peer = Peer().negotiated()
    peer.wire.post(ProduceRequest(acks=0), version_max=9)
    peer.beat()
    (posted, _), (asked, _) = peer.requests()
    assert posted.api_version == 9
    peer.receive(peer.answer(asked, HeartbeatResponse()))
    assert len(peer.results) == 1


@pytest.mark.parametrize("damage", ["wrong number", "not Kafka", "cut short", "to nothing"])
def test_what_cannot_be_read_closes_the_connection(damage: str) -> None:
    peer = Peer().negotiated()
    peer.beat()
    ((header, _),) = peer.requests()
    good = peer.answer(header, HeartbeatResponse())
    if damage == "wrong number":
        peer.receive(peer.answer(header._replace(correlation_id=99), HeartbeatResponse()))
    elif damage == "not Kafka":
        peer.receive(b"HTTP/1.1 400 Bad Request\r\n")
    elif damage == "cut short":
        body = good[4:-2]
        peer.receive(len(body).to_bytes(4, "big") + body)
    else:
        peer.receive(good + good)
    assert peer.wire.closed
    (result,) = peer.results
    assert isinstance(result, HeartbeatResponse if damage == "to nothing" else ConnectionLost)


def test_whoever_closes_it_tells_everybody_once() -> None:
    peer = Peer().negotiated()
    peer.beat()
    peer.beat()
    peer.wire.close("the broker went away")
    peer.wire.close("again")
    assert [result.message for result in peer.results] == ["b:1: the broker went away"] * 2
