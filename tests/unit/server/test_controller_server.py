"""The process of a controller, on a real loop: its connections, and who may log in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.cluster_metadata import UserScramCredentialRecord
from oncelog.security.scram import ScramMechanism, ScramUser
from oncelog.security.scram_decoys import Decoys, shared_secret
from oncelog.server.controller_server import ControllerServer


def run(folder: Path, test: Callable[[ControllerServer, Address], Awaitable[None]], **settings: str) -> None:
    given = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:0",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }

    async def body() -> None:
        server = ControllerServer(folder, BROKER_CONFIG.parse(given))
        try:
            await test(server, await server.start())
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_folder_of_a_node_of_its_own_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async def test(*_: object) -> None:
        raise AssertionError("it has started")

    NodeFacts().write(tmp_path / JOURNAL_FILE)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path} belongs to a node of its own")):
        run(tmp_path, test)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_connections_of_clients_that_are_silent_for_long_are_closed(tmp_path: Path) -> None:
    async def test(_: ControllerServer, address: Address) -> None:
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, test, connections_max_idle_ms="1")


def test_users_are_made_anew_when_they_have_changed(tmp_path: Path) -> None:
    async def test(server: ControllerServer, _: Address) -> None:
        assert server._node is not None
        assert server._users() == {}
        added: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        record = UserScramCredentialRecord(
            name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
        )
        server._node.add(lambda _: [record]).then(added.set_result)
        assert await added is None
        users = server._users()
        assert list(users) == [ScramUser("alice", ScramMechanism.SHA_256)]
        assert server._users() is users, "however many connections there are"
        assert server._logins is not None
        decoys = server._logins.decoys
        assert server._logins.decoys is decoys
        # All nodes of the cluster, and this one after its next start, tell an unknown user the same.
        shared = shared_secret(users.values())
        assert shared is not None
        same = Decoys(shared, [(ScramMechanism.SHA_256, credential) for credential in users.values()])
        made_up = decoys.credential(ScramMechanism.SHA_256, "nobody")
        assert made_up == same.credential(ScramMechanism.SHA_256, "nobody")

    run(tmp_path, test)
