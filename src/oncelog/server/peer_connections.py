"""Connections to controllers and other brokers on the event loop, through the product's own client."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from oncelog.client.config import ClientConfig
from oncelog.client.connection import Connection
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.schema import Message
from oncelog.server.peers import Answer
from oncelog.tls import client_context


class _Call(NamedTuple):
    request: Message
    timeout_ms: int
    promise: Promise[Answer]


class _Link:
    """One connection, opened when it is first needed and again after it was lost."""

    def __init__(self, config: ClientConfig, address: Address) -> None:
        self._config = config
        self._address = address
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[_Call] = []
        self._is_closed = False

    def call(self, call: _Call) -> None:
        connection = self._connection
        if connection is not None and not connection.closed and self._opening is None:
            _send(connection, call)
            return
        self._waiting.append(call)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            settings = self._config.tls
            # Each time anew: the files may have been replaced.
            tls = None if settings is None else await asyncio.to_thread(client_context, settings)
            opened: Connection | KafkaError = await Connection.open(self._config, *self._address, tls)
        except KafkaError as error:
            opened = error
        except Exception as error:  # noqa: BLE001  told to all who wait, who would wait for ever without it
            opened = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {self._address}: {error!r}")
        self._opening = None
        if isinstance(opened, Connection):
            self._connection = opened
            if self._is_closed:
                opened.close("the broker stops")
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if isinstance(opened, Connection):
                _send(opened, call)
            else:
                call.promise.resolve(opened)

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close("the broker stops")


def _send(connection: Connection, call: _Call) -> None:
    try:
        connection.ask(
            call.request,
            call.promise.resolve,
            version_max=type(call.request).VERSIONS[1],
            timeout_ms=call.timeout_ms,
        )
    except KafkaError as error:
        call.promise.resolve(error)


class PeerConnections:
    def __init__(self, config: ClientConfig) -> None:
        """`config` is that of all connections. Their addresses come with the calls."""
        self._config = config
        self._links: dict[tuple[str, Address], _Link] = {}
        self._is_closed = False

    def call(self, purpose: str, address: Address, request: Message, timeout_ms: int) -> Promise[Answer]:
        if self._is_closed:
            return Promise.resolved(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker stops"))
        key = (purpose, address)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(self._config, address)
        promise: Promise[Answer] = Promise()
        link.call(_Call(request, timeout_ms, promise))
        return promise

    def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            link.close()
