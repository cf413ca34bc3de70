"""A broker of which a test writes every answer, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog.protocol.api import decode_request, encode_response, messages, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header
from oncelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from oncelog.protocol.schema import Message

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request, and the means to answer it: properly, twice, in part, or not at all."""

    def __init__(self, header: RequestHeader, request: Message, writer: asyncio.StreamWriter) -> None:
        self.header = header
        self.request = request
        self._writer = writer

    def frame(self, response: Message, *, version: int | None = None, correlation_id: int | None = None) -> bytes:
        key, asked = self.header.api_key, self.header.api_version
        body = encode_response(key, asked if version is None else version, response)
        correlation = self.header.correlation_id if correlation_id is None else correlation_id
        header_version = response_header_version(key, asked if version is None else version)
        return b"".join(frame_response(correlation, header_version, body))

    async def answer(self, response: Message, **options: Any) -> None:
        await self.write(self.frame(response, **options))

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class ScriptedBroker:
    """async with ScriptedBroker({ApiKey.METADATA: handler}) as broker: ... broker.port"""

    def __init__(self, handlers: dict[int, Handler], *, transaction_version: int = 2) -> None:
        self.handlers = handlers
        self.requests: list[Message] = []
        self.connections = 0
        self.port = 0
        self._transaction_version = transaction_version
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header, position = parse_request_header(frame)
                request = decode_request(header.api_key, header.api_version, memoryview(frame), position)
                self.requests.append(request)
                exchange = Exchange(header, request, writer)
                await self.handlers.get(header.api_key, self._default)(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _default(self, exchange: Exchange) -> None:
        if exchange.header.api_key == ApiKey.API_VERSIONS:
            await exchange.answer(self.api_versions())
        else:
            await exchange.answer(messages(exchange.header.api_key).response())

    def api_versions(self) -> ApiVersionsResponse:
        ranges = {key: messages(key).request.VERSIONS for key in ApiKey}
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()
            ],
            finalized_features_epoch=1,
            finalized_features=[
                FinalizedFeatureKey(
                    name="transaction.version",
                    max_version_level=self._transaction_version,
                    min_version_level=self._transaction_version,
                )
            ],
        )
