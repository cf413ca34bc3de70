"""Calls to other nodes that cannot be reached."""

from __future__ import annotations

import asyncio

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.server.peer_connections import PeerConnections
from oncelog.server.peers import Answer, PeerAddress


def test_a_call_to_a_host_whose_name_is_none_is_answered_each_time() -> None:
    async def calls() -> list[Answer]:
        peers = PeerConnections("1")
        answers: list[Answer] = []
        for _ in range(2):
            known: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            peers.call("replica", PeerAddress("x" * 64, 9092), FetchRequest(), 1000).then(known.set_result)
            answers.append(await asyncio.wait_for(known, 10))
        return answers

    assert all(isinstance(answer, KafkaError) for answer in asyncio.run(calls()))
