"""One connection, its broker, and a transport whose client takes nothing until it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.server import turns
from oncelog.server.connection import FRAMES_AT_ONCE, LOGIN_MS_MAX, Connection
from oncelog.server.connection_limits import Admission
from oncelog.server.descriptors import RESERVED, share
from oncelog.server.listener import parse_listeners
from oncelog.server.login import Login
from oncelog.server.memory_budget import ROOM_WAIT_MS, SMALL_ANSWER_BYTES
from oncelog.server.outgoing import PIECE_BYTES
from oncelog.storage.record_examination import SHORT_RECORDS_MAX
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.held_worker import HeldWorker

FETCH_VERSION = 11
BATCH_BYTES = 40_000
BUDGET_BYTES = 600_000


class StuckTransport:
    def __init__(self) -> None:
        self.connection: Connection
        self.unsent = bytearray()
        self.high_bytes = 0
        self.aborted = False
        self.reading = True
        self._paused = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def set_write_buffer_limits(self, *, high: int) -> None:
        self.high_bytes = high

    def writelines(self, buffers: list[Any]) -> None:
        self.unsent += b"".join(buffers)
        if len(self.unsent) > self.high_bytes and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def take_piece(self) -> bytes:
        taken = bytes(self.unsent)
        self.unsent.clear()
        if self._paused:
            self._paused = False
            self.connection.resume_writing()
        return taken

    def take(self) -> bytes:
        """All of the answer that is there, piece by piece."""
        taken = bytearray()
        while True:
            is_last = not self.connection._outgoing
            taken += self.take_piece()
            if is_last:
                return bytes(taken)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@pytest.fixture
def running(tmp_path: Path) -> BrokerInProcess:
    running = BrokerInProcess(tmp_path, {"oncelog.connections.max.bytes": str(BUDGET_BYTES)})
    running.create("t")
    for _ in range(20):
        running.produce("t", [bytes(BATCH_BYTES)])
    return running


def connect(
    running: BrokerInProcess,
    admission: Admission = Admission(),  # noqa: B008  immutable
    login: Login | None = None,
) -> StuckTransport:
    transport = StuckTransport()
    transport.connection = Connection(
        login or running.broker.dispatcher,
        frame_max_bytes=1 << 20,
        login_max_bytes=None if login is None else 1 << 10,
        budget=running.broker.budget,
        scheduler=running.clock,
        accept=lambda _: admission,
        forget=lambda _: None,
    )
    transport.connection.connection_made(cast(Any, transport))
    return transport


def send(transport: StuckTransport, request: Any, version: int) -> None:
    body = encode_request(request.API_KEY, version, request)
    frame = b"".join(encode_request_frame(request.API_KEY, version, 1, "test", body))
    receive(transport, frame)


def receive(transport: StuckTransport, data: bytes) -> None:
    """As much of it as the connection wants."""
    while data and transport.reading and not transport.aborted:
        buffer = transport.connection.get_buffer(len(data))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        transport.connection.buffer_updated(count)


def fetch(transport: StuckTransport) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=topics)
    send(transport, request, FETCH_VERSION)


def fetched_bytes(answer: bytes) -> int:
    _, position = parse_response_header(memoryview(answer)[4:], response_header_version(1, FETCH_VERSION))
    response = decode_response(1, FETCH_VERSION, memoryview(answer)[4 + position :])
    return len(response.responses[0].partitions[0].records)


def test_a_login_has_a_time_however_much_is_said_in_it(tmp_path: Path) -> None:
    running = BrokerInProcess(tmp_path)
    users = {"listener.name.in.plain.sasl.jaas.config": 'PlainLoginModule required user_eve="pw";'}
    mapped = {"listener.security.protocol.map": "IN:SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN"}
    (listener,) = parse_listeners(BROKER_CONFIG.parse({"listeners": "IN://:1", **mapped, **users}))
    asking, known = (connect(running, login=Login(running.broker.logins, listener)) for _ in range(2))
    send(known, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    send(known, SaslAuthenticateRequest(auth_bytes=b"\0eve\0pw"), 1)
    for _ in range(5):
        running.clock.advance_ms(LOGIN_MS_MAX // 6)
        send(asking, ApiVersionsRequest(), 0)
        assert asking.take(), "it may ask which requests there are"
    running.clock.advance_ms(LOGIN_MS_MAX // 6)
    assert (asking.aborted, known.aborted) == (True, False)


def test_many_slow_readers_get_little_until_somebody_reads(running: BrokerInProcess) -> None:
    greedy, late = connect(running), connect(running)
    fetch(greedy)
    assert running.broker.budget.held_bytes > 200_000
    fetch(late)
    assert BATCH_BYTES < fetched_bytes(late.take()) <= SMALL_ANSWER_BYTES
    greedy.take()
    assert running.broker.budget.held_bytes == 0
    fetch(late)
    assert fetched_bytes(late.take()) > 200_000


def test_an_answer_counts_with_all_that_it_keeps_in_memory_until_it_is_taken(running: BrokerInProcess) -> None:
    running.broker.budget.max_bytes = 100 << 20
    for _ in range(80):
        running.produce("t", [bytes(BATCH_BYTES)])
    transport, held, taken = connect(running), [], [0]
    fetch(transport)
    answer = bytearray()
    while transport.connection._outgoing:
        held.append(running.broker.budget.held_bytes)
        answer += transport.take_piece()
        taken.append(len(answer))
    answer += transport.take()
    assert fetched_bytes(bytes(answer)) > 100 * BATCH_BYTES
    unsent = [len(answer) - each for each in taken[:-1]]
    assert len(held) > 5
    assert all(rest <= count <= 2 * rest + PIECE_BYTES for count, rest in zip(held, unsent, strict=True))
    assert running.broker.budget.held_bytes == 0


def test_what_a_lost_client_did_not_take_is_forgotten(running: BrokerInProcess) -> None:
    transport = connect(running)
    fetch(transport)
    assert running.broker.budget.held_bytes > 0
    transport.connection.connection_lost(None)
    assert running.broker.budget.held_bytes == 0


def test_a_client_that_does_not_read_is_not_served_on(running: BrokerInProcess) -> None:
    transport = connect(running)
    fetch(transport)
    held = len(transport.unsent)
    fetch(transport)
    assert len(transport.unsent) == held
    transport.take()
    assert len(transport.unsent) > 0


def half_a_request(transport: StuckTransport, size: int) -> None:
    receive(transport, (1 << 20).to_bytes(4, "big") + bytes(size))


def held_bytes(running: BrokerInProcess) -> int:
    return running.broker.budget.held_bytes


def test_half_a_request_counts_as_what_is_set_aside_for_it(running: BrokerInProcess) -> None:
    transport = connect(running)
    half_a_request(transport, 1_000)
    assert held_bytes(running) == 1 << 20
    transport.connection.connection_lost(None)
    assert held_bytes(running) == 0


def test_half_requests_wait_for_room_and_go_on_when_there_is_some(running: BrokerInProcess) -> None:
    reader, sender = connect(running), connect(running)
    running.broker.budget.max_bytes = (1 << 20) + 100_000
    fetch(reader)
    half_a_request(sender, 1_000)
    assert not sender.reading
    reader.take()
    assert sender.reading
    assert not sender.aborted


def test_whoever_holds_most_is_closed_when_nothing_is_freed(running: BrokerInProcess) -> None:
    reader, sender, late = connect(running), connect(running), connect(running)
    running.broker.budget.max_bytes = (1 << 20) + 100_000
    fetch(reader)
    half_a_request(sender, 1_000)
    running.clock.advance_ms(ROOM_WAIT_MS)
    assert sender.aborted
    assert not reader.aborted
    assert running.broker.budget.closed_connections == 1
    half_a_request(late, 1_000)
    assert not late.aborted
    running.clock.advance_ms(ROOM_WAIT_MS)
    assert late.aborted, "it is alone above the budget"
    assert not reader.aborted


def test_frames_that_have_only_begun_take_no_more_than_there_is_room_for(running: BrokerInProcess) -> None:
    running.broker.budget.max_bytes = 3 << 20
    begun = [connect(running) for _ in range(10)]
    for transport in begun:
        receive(transport, (1 << 20).to_bytes(4, "big"))
    assert held_bytes(running) == 4 << 20
    assert [transport.reading for transport in begun] == [True] * 3 + [False] * 7
    frame = large_produce()
    late = connect(running)
    receive(late, frame[:1_000])
    assert not late.reading
    begun[0].connection.connection_lost(None)
    assert [transport.reading for transport in begun[1:]] == [True] * 3 + [False] * 6
    assert held_bytes(running) == 4 << 20
    for transport in begun[1:]:
        transport.connection.connection_lost(None)
    assert late.reading
    receive(late, frame[1_000:])
    assert late.take()
    assert held_bytes(running) == 0
    assert not running.broker.budget._waiting


def test_frames_that_go_on_no_more_are_closed_together_for_whoever_waits(running: BrokerInProcess) -> None:
    running.broker.budget.max_bytes = 3 << 20
    slow, *silent = [connect(running) for _ in range(7)]
    for transport in (slow, *silent):
        receive(transport, (1 << 20).to_bytes(4, "big"))
    frame = large_produce()
    late = connect(running)
    receive(late, frame[:1_000])
    running.clock.advance_ms(ROOM_WAIT_MS // 2)
    receive(slow, b"x")
    running.clock.advance_ms(ROOM_WAIT_MS // 2)
    assert [transport.aborted for transport in silent] == [True] * 2 + [False] * 4, "the others have waited"
    for _ in range(2):
        receive(slow, b"x")
        running.clock.advance_ms(ROOM_WAIT_MS)
    assert late.reading
    receive(late, frame[1_000:])
    assert late.take()
    assert not slow.aborted


def test_answers_beyond_the_budget_close_whoever_holds_most(running: BrokerInProcess) -> None:
    many = [connect(running) for _ in range(20)]
    for transport in many:
        fetch(transport)
    assert held_bytes(running) <= BUDGET_BYTES
    assert not many[-1].aborted, "the last one holds little"
    unread = sum(len(transport.take()) for transport in many if not transport.aborted)
    assert 0 < unread <= BUDGET_BYTES + 20 * SMALL_ANSWER_BYTES


def produce(topic: str) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of([b"v"], timestamp_ms=1))
    return ProduceRequest(acks=0, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def test_a_failed_request_without_an_answer_closes_its_connection(running: BrokerInProcess) -> None:
    transport = connect(running)
    send(transport, produce("t"), 9)
    assert not transport.aborted
    send(transport, produce("nowhere"), 9)
    assert transport.aborted
    assert not transport.unsent


def wait_for_more(transport: StuckTransport) -> None:
    """A fetch that is answered when there is something new."""
    partition = FetchPartition(partition=0, fetch_offset=20, partition_max_bytes=1 << 30)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    send(transport, FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 30, topics=topics), FETCH_VERSION)


def large_produce() -> bytes:
    data = batch_of([bytes(300_000)], timestamp_ms=0)
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=data)])]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    return b"".join(encode_request_frame(0, 9, 2, "test", encode_request(0, 9, request)))


def test_a_request_that_waits_behind_another_counts(running: BrokerInProcess) -> None:
    transport, frame = connect(running), large_produce()
    wait_for_more(transport)
    receive(transport, frame)
    assert running.broker.budget.held_bytes == len(frame) - 4
    running.produce("t", [b"x"])
    running.clock.advance_ms(0)
    assert not transport.connection.is_waiting
    assert running.broker.budget.held_bytes == 0


def test_an_answer_for_a_lost_client_takes_nothing_of_the_budget(running: BrokerInProcess) -> None:
    transport, worker = connect(running), HeldWorker()
    running.broker.decoding._worker = worker
    many = [FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in range(4_000)])]
    send(transport, FetchRequest(max_wait_ms=0, topics=many), FETCH_VERSION)
    assert transport.connection.is_waiting
    receive(transport, large_produce()[:100_000])
    assert running.broker.budget.held_bytes > 300_000
    transport.connection.connection_lost(None)
    worker.finish(running.clock)
    assert running.broker.budget.held_bytes == 0


def test_large_requests_do_not_take_all_threads_from_fsyncs(running: BrokerInProcess) -> None:
    worker = HeldWorker()
    running.broker.worker = running.broker.decoding._worker = running.broker.encoding._worker = worker
    running.broker.budget.max_bytes = 100 << 20
    many = [FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in range(4_000)])]
    transports = [connect(running) for _ in range(4)]
    for transport in transports:
        send(transport, FetchRequest(max_wait_ms=0, topics=many), FETCH_VERSION)
    assert len(worker.jobs) == 1
    worker.finish(running.clock)
    assert all(transport.unsent for transport in transports)


def test_a_large_request_counts_as_the_objects_that_it_becomes(
    running: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    running.broker.budget.max_bytes = 14 << 20
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(50_000)))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    first, second = connect(running), connect(running)
    send(first, request, 9)
    held_once = running.broker.budget.held_bytes
    assert held_once > 50_000 * (4 + 4 + 32 + 8), "the frame, its texts, numbers and their places"
    send(second, request, 9)
    assert running.broker.budget.held_bytes > 2 * held_once - 10, "there is room"
    running.clock.advance_ms(100)
    assert running.broker.budget.closed_connections == 1, "for one of the answers, there is not"
    assert len(first.take() or second.take()) > 50_000 * 20


def test_a_short_request_of_many_numbers_counts_as_the_objects_that_it_becomes(running: BrokerInProcess) -> None:
    worker = HeldWorker()
    running.broker.decoding._worker = running.broker.encoding._worker = worker
    running.broker.budget.max_bytes = 100 << 20
    transport, count = connect(running), 10_000
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(count)))]
    send(transport, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)]), 9)
    assert len(worker.jobs) == 1, "its frame is below the size that is large"
    worker.finish_one()
    assert running.broker.budget.held_bytes > count * (4 + 32 + 8), "the frame, numbers and their places"
    worker.finish(running.clock)
    assert len(transport.take()) > count * 20
    assert running.broker.budget.held_bytes == 0


def test_while_half_of_the_budget_is_held_large_requests_are_served_one_at_a_time(running: BrokerInProcess) -> None:
    worker = HeldWorker()
    running.broker.decoding._worker = running.broker.encoding._worker = worker
    running.broker.budget.max_bytes = 12 << 20
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(50_000)))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    transports = [connect(running) for _ in range(10)]
    gone = transports[7]
    for transport in transports:
        send(transport, request, 9)
    gone.connection.connection_lost(None)
    answered = []
    while worker.jobs:
        worker.finish_one()
        running.clock.advance_ms(0)
        assert running.broker.budget.held_bytes < 12 << 20
        answered += [transport for transport in transports if transport.take()]
    assert answered == [transport for transport in transports if transport is not gone]
    assert running.broker.budget.closed_connections == 0
    assert running.broker.budget.held_bytes == 0


def test_nothing_is_read_from_a_connection_that_is_refused(running: BrokerInProcess) -> None:
    transport = connect(running, Admission("too many", 1000))
    read: list[bool] = []
    resume = transport.resume_reading
    transport.resume_reading = lambda: (read.append(True), resume())  # type: ignore[method-assign, return-value, func-returns-value]
    assert not transport.reading
    running.clock.advance_ms(1000)
    assert transport.aborted
    assert not read


def test_a_request_counts_until_it_is_served_also_when_its_client_has_gone(running: BrokerInProcess) -> None:
    running.create("compacted", cleanup_policy="compact")
    transport, worker = connect(running), HeldWorker()
    running.broker.long_reads._worker = worker
    records = [Record(number, 0, b"k", bytes(20)) for number in range(2 * SHORT_RECORDS_MAX)]
    data = PartitionProduceData(index=0, records=build_batch(records, timestamp_ms=running.clock.now_ms()))
    topics = [TopicProduceData(name="compacted", partition_data=[data])]
    send(transport, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 9)
    assert running.broker.budget.held_bytes > 200_000
    transport.connection.connection_lost(None)
    assert running.broker.budget.held_bytes > 200_000
    worker.finish(running.clock)
    assert running.broker.budget.held_bytes == 0


def test_a_request_in_pieces_whose_client_has_gone_counts_no_more(
    running: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    running.broker.budget.max_bytes = 100 << 20
    transport = connect(running)
    many = [FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in range(4_000)])]
    send(transport, FetchRequest(max_wait_ms=0, topics=many), FETCH_VERSION)
    assert transport.connection.is_waiting
    assert running.broker.budget.held_bytes > 65_536
    transport.connection.connection_lost(None)
    running.clock.advance_ms(0)
    assert running.broker.budget.held_bytes == 0


def wait_for_many(transport: StuckTransport, count: int, session: tuple[int, int] = (0, -1)) -> None:
    """A fetch of a topic with as many partitions, which gets an answer when there is something new."""
    partitions = [FetchPartition(partition=number, partition_max_bytes=1 << 20) for number in range(count)]
    topics = [FetchTopic(topic="many", partitions=partitions)] if count else []
    request = FetchRequest(
        max_wait_ms=2**31 - 1, min_bytes=1, topics=topics, session_id=session[0], session_epoch=session[1]
    )
    send(transport, request, FETCH_VERSION)
    assert transport.connection.is_waiting


def test_a_fetch_waits_no_longer_than_its_client(running: BrokerInProcess) -> None:
    running.create("many", 20)
    partition = running.broker.partitions.get("many", 0)
    transport = connect(running)
    wait_for_many(transport, 20)
    running.clock.advance_ms(100)
    assert partition._watchers
    transport.connection.connection_lost(None)
    running.clock.advance_ms(0)
    assert not partition._watchers
    assert not transport.connection.is_waiting
    assert running.broker.budget.held_bytes == 0


def test_a_fetch_counts_with_the_partitions_that_it_waits_for(running: BrokerInProcess) -> None:
    running.broker.budget.max_bytes = 100 << 20
    running.create("many", 1_000)
    few, many, again = connect(running), connect(running), connect(running)
    wait_for_more(few)
    assert running.broker.budget.held_bytes == 0, "a usual reader is not counted"
    wait_for_many(many, 1_000)
    assert running.broker.budget.held_bytes > 1_000 * 400, "what is named, and what waits at each partition"
    running.produce("many", [b"x"])
    running.clock.advance_ms(10)
    assert many.take()
    assert running.broker.budget.held_bytes == 0
    send(again, fetch_of_a_session(1_000), FETCH_VERSION)
    session_id = session_of(again.take())
    for epoch in range(1, 4):
        wait_for_many(connect(running), 0, (session_id, epoch))
    assert running.broker.budget.held_bytes > 3 * 1_000 * 190, "they name nothing, and wait for all of the session"


def fetch_of_a_session(count: int) -> FetchRequest:
    partitions = [FetchPartition(partition=number, partition_max_bytes=1 << 20) for number in range(count)]
    partitions[0].fetch_offset = 1
    return FetchRequest(topics=[FetchTopic(topic="many", partitions=partitions)], session_epoch=0)


def session_of(answer: bytes) -> int:
    _, position = parse_response_header(memoryview(answer)[4:], response_header_version(1, FETCH_VERSION))
    return int(decode_response(1, FETCH_VERSION, memoryview(answer)[4 + position :]).session_id)


def test_waiting_fetches_beyond_the_budget_close_whoever_holds_most(running: BrokerInProcess) -> None:
    running.broker.budget.max_bytes = 2 << 20
    running.create("many", 1_000)
    transports = [connect(running) for _ in range(8)]
    for transport in transports:
        wait_for_many(transport, 1_000)
    assert running.broker.budget.held_bytes <= 2 << 20
    assert 0 < sum(transport.aborted for transport in transports) < 8


def test_requests_behind_one_that_waits_stay_the_bytes_that_they_are(running: BrokerInProcess) -> None:
    transport, count = connect(running), 3_000
    wait_for_more(transport)
    asked = encode_request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    asks = [b"".join(encode_request_frame(ApiKey.API_VERSIONS, 0, number, None, asked)) for number in range(count)]
    receive(transport, b"".join(asks))
    assert not transport.reading
    assert len(transport.connection._waiting) == FRAMES_AT_ONCE
    running.produce("t", [b"x"])
    running.clock.advance_ms(0)
    answers, numbers = bytearray(), []
    while transport.unsent:
        answers += transport.take_piece()
        running.clock.advance_ms(0)
    position = int.from_bytes(answers[:4], "big") + 4  # behind that to the fetch
    while position < len(answers):
        numbers.append(int.from_bytes(answers[position + 4 : position + 8], "big"))
        position += int.from_bytes(answers[position : position + 4], "big") + 4
    assert numbers == list(range(count))
    assert transport.reading


def test_a_request_that_waits_keeps_no_buffer_of_a_lost_client(running: BrokerInProcess) -> None:
    transport = connect(running)
    wait_for_more(transport)
    transport.connection.connection_lost(None)
    assert len(transport.connection._reader.get_buffer()) == 0


def test_a_small_request_with_many_elements_counts_while_it_is_in_service(
    running: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    running.broker.budget.max_bytes = 100 << 20
    transport = connect(running)
    partitions = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(1_900)]
    send(transport, ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)]), 7)
    assert running.broker.budget.held_bytes > 1_900 * 100
    running.clock.advance_ms(100)
    assert transport.take()
    assert running.broker.budget.held_bytes == 0


def test_a_connection_that_is_being_closed_is_not_served_on(running: BrokerInProcess) -> None:
    """As at the stop of a broker: the folder may be given back before the connection is gone."""
    transport = connect(running)

    def closing(handle: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            transport.aborted = True
            return handle(*arguments)

        return wrapped

    running.broker.dispatcher.wrap_handler(ApiKey.PRODUCE, closing)
    request = produce("t")
    frame = b"".join(encode_request_frame(0, 9, 1, "test", encode_request(0, 9, request)))
    before = running.broker.partitions.get("t", 0).log_end_offset
    receive(transport, frame + frame)
    assert running.broker.partitions.get("t", 0).log_end_offset == before + 1


def test_connections_leave_descriptors_to_the_log_files() -> None:
    assert share(10_000, 512) == (512, 10_000 - 512 - RESERVED)
    assert share(256, 512) == (96, 96), "half of what there is, so that clients are not kept out"
    assert share(256, 20) == (20, 256 - 20 - RESERVED)
    assert share(32, 512) == (16, 1)
