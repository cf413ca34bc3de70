"""Calls to other nodes that cannot be reached, or speak older versions."""

from __future__ import annotations

import asyncio

from oncelog.core.address import Address
from oncelog.core.errors import KafkaError
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.server.peer_connections import PeerConnections
from oncelog.server.peer_security import plain_config
from oncelog.server.peers import Answer
from tests.unit.client.scripted_broker import Exchange, ScriptedBroker


def test_a_call_to_a_host_whose_name_is_none_is_answered_each_time() -> None:
    async def calls() -> list[Answer]:
        peers = PeerConnections(plain_config("1"))
        answers: list[Answer] = []
        for _ in range(2):
            known: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            peers.call("replica", Address("x" * 64, 9092), FetchRequest(), 1000).then(known.set_result)
            answers.append(await asyncio.wait_for(known, 60))
        return answers

    assert all(isinstance(answer, KafkaError) for answer in asyncio.run(calls()))


def test_markers_are_sent_in_the_version_that_the_leader_knows() -> None:
    """KAFKA-20322: brokers before 4.2 know version 1 only, which has no transaction version."""
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=2,
        transaction_result=True,
        coordinator_epoch=3,
        transaction_version=2,
        topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
    )
    asked: list[Exchange] = []

    async def call() -> Answer:
        async def tell_versions(exchange: Exchange) -> None:
            known = broker.api_versions()
            for entry in known.api_keys:
                if entry.api_key == ApiKey.WRITE_TXN_MARKERS:
                    entry.max_version = 1
            await exchange.answer(known)

        async def write_markers(exchange: Exchange) -> None:
            asked.append(exchange)
            await exchange.answer(WriteTxnMarkersResponse())

        handlers = {ApiKey.API_VERSIONS: tell_versions, ApiKey.WRITE_TXN_MARKERS: write_markers}
        async with ScriptedBroker({int(key): handler for key, handler in handlers.items()}) as broker:
            peers = PeerConnections(plain_config("1"))
            known: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            address = Address("127.0.0.1", broker.port)
            peers.call("markers", address, WriteTxnMarkersRequest(markers=[marker]), 30_000).then(known.set_result)
            try:
                return await asyncio.wait_for(known, 60)
            finally:
                peers.close()

    assert isinstance(asyncio.run(call()), WriteTxnMarkersResponse)
    [exchange] = asked
    assert exchange.header.api_version == 1
    assert isinstance(exchange.request, WriteTxnMarkersRequest)
    sent = exchange.request.markers[0]
    assert (sent.producer_id, sent.coordinator_epoch, sent.transaction_version) == (7, 3, 0)
