"""One connection: negotiation, pipelining, and every way in which answers can fail to come."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from oncelog.client import loop
from oncelog.client.blocking import Blocking
from oncelog.client.cluster import Cluster, CoordinatorKind
from oncelog.client.config import ClientConfig
from oncelog.client.connection import Connection
from oncelog.client.connections import open_cluster
from oncelog.client.deadline import Deadline
from oncelog.client.errors import ConnectionLost, IllegalState, TimedOut, UnsupportedByBroker
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.client.scripted_broker import Exchange, ScriptedBroker

CONFIG = ClientConfig(
    bootstrap_servers="127.0.0.1:1",
    request_timeout_ms=1_000,
    default_api_timeout_ms=3_000,
    retry_backoff_ms=5,
    retry_backoff_max_ms=20,
)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


async def connect(broker: ScriptedBroker, config: ClientConfig = CONFIG) -> Connection:
    return await Connection.open(config, "127.0.0.1", broker.port)


def beat(number: int = 0) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=number)


def test_versions_and_features_are_learned_when_connecting() -> None:
    async def scenario() -> None:
        async with ScriptedBroker({}) as broker:
            connection = await connect(broker)
            assert connection.wire.transaction_version == 2
            assert connection.wire.version_of(EndTxnRequest) == 5
            assert connection.wire.version_of(EndTxnRequest, 4) == 4
            capped = await connect(broker, replace(CONFIG, transaction_version_max=1))
            assert capped.wire.transaction_version == 1

    run(scenario())


def test_a_broker_that_knows_only_older_versions_is_asked_again() -> None:
    async def refuse_once(exchange: Exchange) -> None:
        if exchange.header.api_version > 3:
            keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=3)]
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
            await exchange.answer(refusal, version=0)
        else:
            keys = [ApiVersion(api_key=ApiKey.END_TXN, min_version=0, max_version=3)]
            await exchange.answer(ApiVersionsResponse(api_keys=keys))

    async def scenario() -> None:
        async with ScriptedBroker({ApiKey.API_VERSIONS: refuse_once}) as broker:
            connection = await connect(broker)
            assert connection.wire.version_of(EndTxnRequest) == 3
            assert connection.wire.transaction_version == 0
            with pytest.raises(UnsupportedByBroker, match="does not serve Heartbeat"):
                await connection.call(beat(), HeartbeatResponse)

    run(scenario())


def test_requests_are_pipelined_and_answered_in_order() -> None:
    waiting: list[Exchange] = []

    async def hold(exchange: Exchange) -> None:
        waiting.append(exchange)
        if len(waiting) == 5:
            for held in waiting:
                assert isinstance(held.request, HeartbeatRequest)
                await held.answer(HeartbeatResponse(throttle_time_ms=held.request.generation_id))

    async def scenario() -> None:
        async with ScriptedBroker({ApiKey.HEARTBEAT: hold}) as broker:
            connection = await connect(broker)
            answers = await asyncio.gather(*(connection.call(beat(n), HeartbeatResponse) for n in range(5)))
            assert [answer.throttle_time_ms for answer in answers] == [0, 1, 2, 3, 4]

    run(scenario())


async def never(exchange: Exchange) -> None:
    return


async def twice(exchange: Exchange) -> None:
    frame = exchange.frame(HeartbeatResponse())
    await exchange.write(frame + frame)


async def half(exchange: Exchange) -> None:
    await exchange.write(exchange.frame(HeartbeatResponse())[:-2])
    exchange.close()


async def wrong_number(exchange: Exchange) -> None:
    await exchange.answer(HeartbeatResponse(), correlation_id=9999)


async def nonsense(exchange: Exchange) -> None:
    await exchange.write(b"\x7f\xff\xff\xff garbage")


async def hang_up(exchange: Exchange) -> None:
    exchange.close()


@pytest.mark.parametrize("handler", [never, half, wrong_number, nonsense, hang_up])
def test_an_answer_that_does_not_come_loses_the_connection_in_bounded_time(handler: Any) -> None:
    async def scenario() -> None:
        async with ScriptedBroker({ApiKey.HEARTBEAT: handler}) as broker:
            connection = await connect(broker)
            started = time.monotonic()
            answers = await asyncio.gather(
                *(connection.call(beat(), HeartbeatResponse) for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(answer, ConnectionLost) for answer in answers)
            assert time.monotonic() - started < 20, "it does not wait for the time-out of whole calls, 60 s"
            assert connection.closed
            with pytest.raises(ConnectionLost, match="is closed"):
                await connection.call(beat(), HeartbeatResponse)

    run(scenario())


@pytest.mark.parametrize("takes_it", [True, False])
def test_a_broker_that_takes_nothing_holds_back_who_waits_for_no_answer(takes_it: bool) -> None:
    async def scenario() -> None:
        takes = asyncio.Event()

        async def stand_still(exchange: Exchange) -> None:
            await takes.wait()

        async with ScriptedBroker({ApiKey.PRODUCE: stand_still}) as broker:
            connection = await connect(broker)
            data = PartitionProduceData(records=bytes(1_000_000))
            request = ProduceRequest(acks=0, topic_data=[TopicProduceData(name="t", partition_data=[data])])
            for _ in range(100):
                held_back = connection.post(request, version_max=9)
                # Buffers of the system take some of it.
                if held_back is not None and not (await asyncio.wait([held_back], timeout=0.5))[0]:
                    break
            assert held_back is not None
            if takes_it:
                takes.set()
                await held_back
            else:
                with pytest.raises(ConnectionLost, match="was not taken within 1000 ms"):
                    await held_back
            assert connection.closed is not takes_it
            connection.close()

    run(scenario())


def test_an_answer_given_twice_closes_the_connection_after_the_first() -> None:
    async def scenario() -> None:
        async with ScriptedBroker({ApiKey.HEARTBEAT: twice}) as broker:
            connection = await connect(broker)
            assert (await connection.call(beat(), HeartbeatResponse)).error_code == 0
            async with asyncio.timeout(20):
                while not connection.closed:
                    await asyncio.sleep(0.005)

    run(scenario())


def test_what_waits_behind_a_login_is_told_when_the_login_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> int:
        raise RuntimeError("no thread can be started")

    async def scenario() -> None:
        async with ScriptedBroker({}) as broker:
            connection = await connect(broker)
            monkeypatch.setattr("oncelog.client.connection.log_in", broken)
            connection._begin_login()
            with pytest.raises(ConnectionLost):
                await connection.call(beat(), HeartbeatResponse)
            assert connection._login_task is not None
            with pytest.raises(RuntimeError):
                await connection._login_task

    run(scenario())


def test_nobody_listening_is_a_lost_connection() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await Connection.open(CONFIG, "127.0.0.1", 1)

    run(scenario())


def test_a_port_that_does_not_speak_kafka_is_given_up() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda r, w: w.write(b"HTTP/1.1 400\r\n\r\n"), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost, match="speaking Kafka"):
            await Connection.open(CONFIG, "127.0.0.1", port)
        server.close()

    run(scenario())


# The cluster


async def with_cluster(handlers: dict[int, Any], use: Any) -> None:
    async with ScriptedBroker(handlers) as broker:

        async def metadata(exchange: Exchange) -> None:
            brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port)]
            await exchange.answer(MetadataResponse(brokers=brokers, controller_id=1))

        async def find(exchange: Exchange) -> None:
            me = Coordinator(key="id", node_id=1, host="127.0.0.1", port=broker.port)
            await exchange.answer(FindCoordinatorResponse(coordinators=[me]))

        broker.handlers = {ApiKey.METADATA: metadata, ApiKey.FIND_COORDINATOR: find, **handlers}
        cluster = open_cluster(replace(CONFIG, bootstrap_servers=broker.address))
        try:
            await use(cluster, broker)
        finally:
            await cluster.close()


async def ask_end(cluster: Cluster) -> EndTxnResponse:
    return await cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        "id",
        EndTxnRequest(transactional_id="id"),
        EndTxnResponse,
        codes=lambda answer: [answer.error_code],
        deadline=Deadline(30_000),
        retry=[ErrorCode.CONCURRENT_TRANSACTIONS],
    )


def test_callers_at_the_same_time_share_one_connection() -> None:
    async def use(cluster: Cluster, broker: ScriptedBroker) -> None:
        await asyncio.gather(*(cluster.any_broker() for _ in range(10)))
        assert broker.connections == 1

    run(with_cluster({}, use))


def test_a_lost_answer_of_the_coordinator_is_asked_for_again() -> None:
    accidents: list[Any] = [hang_up, never]

    async def end(exchange: Exchange) -> None:
        if accidents:
            await accidents.pop(0)(exchange)
        else:
            await exchange.answer(EndTxnResponse())

    async def use(cluster: Cluster, broker: ScriptedBroker) -> None:
        assert (await ask_end(cluster)).error_code == 0

    run(with_cluster({ApiKey.END_TXN: end}, use))


def test_a_closed_client_says_so() -> None:
    async def use(cluster: Cluster, broker: ScriptedBroker) -> None:
        await cluster.close()
        with pytest.raises(IllegalState, match="closed"):
            await cluster.any_broker()

    run(with_cluster({}, use))


# Blocking calls


def test_blocking_calls_on_the_loop_itself_are_refused_instead_of_hanging() -> None:
    async def inner() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="own event loop"):
        loop.run(inner())


FORKING = """
import asyncio, os, sys
from oncelog.client import loop

loop.run(asyncio.sleep(0))
child = os.fork()
if child == 0:
    loop.run(asyncio.sleep(0))
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    """In a process of its own: a child of the tests' process would share the connections of all other clients in it."""
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=60, check=False).returncode == 7


def test_a_client_of_another_process_says_what_to_do() -> None:
    client = Blocking(CONFIG)
    client._pid = -1
    with pytest.raises(IllegalState, match="make a new one"):
        client._run(asyncio.sleep(0))
    with pytest.raises(TypeError, match="pickle its ClientConfig"):
        pickle.dumps(client)


def test_a_listener_that_ends_the_first_request_is_told_with_what_it_may_be() -> None:
    """As one with TLS does, and what is no broker at all."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            with pytest.raises(ConnectionLost) as caught:
                await Connection.open(CONFIG, "127.0.0.1", server.sockets[0].getsockname()[1])
        return str(caught.value)

    assert "is that a listener of Kafka, without TLS?" in run(scenario())


def test_a_cluster_that_does_not_answer_is_named() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            cluster = open_cluster(replace(CONFIG, bootstrap_servers=address, request_timeout_ms=10_000))
            with pytest.raises(TimedOut, match=f"no answer from the cluster at {address}"):
                await cluster.retrying("metadata", cluster.any_broker, cluster.deadline(300))
            await cluster.close()

    run(scenario())


def test_a_refused_connection_is_told_without_the_number_of_the_error() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1: \w") as caught:
        run(Connection.open(CONFIG, "127.0.0.1", 1))
    assert "Errno" not in caught.value.message
