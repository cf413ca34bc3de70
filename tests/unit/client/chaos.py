"""A broker that misbehaves: it passes everything on to a real one, except for the accidents a test asks for.

It poses as a cluster of two nodes. Which of them leads a partition or coordinates an id is for the test to say, and to
change: the other node then refuses as a real one would. An accident is chosen for each request by `chaos.accident`, a
function of the API and the request; the default has none.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from oncelog.client.loop import LoopThread
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.api import decode_request, decode_response, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header, parse_response_header
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorResponse
from oncelog.protocol.messages.list_offsets import ListOffsetsRequest
from oncelog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.schema import Message
from tests.unit.client.refusals import refuse

NODES: Final = (1, 2)
COORDINATED: Final = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
    }
)


class Kind(Enum):
    LOSE_REQUEST = "the connection closes before the request arrives"
    LOSE_ANSWER = "the request is carried out, the connection closes before the answer"
    HALF_ANSWER = "the connection closes in the middle of the answer"
    HANG = "the request is carried out and never answered"
    DELAY = "the answer comes late"
    DOUBLE = "the answer comes twice"
    REFUSE = "an error instead of carrying it out"
    LIE = "an error although it was carried out"


@dataclass(frozen=True)
class Accident:
    kind: Kind
    code: int = 0
    delay_s: float = 0.05


Chooser = Callable[[ApiKey, Message], Accident | None]


class Chaos:
    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self.accident: Chooser = lambda key, request: None
        self.leaders: dict[TopicPartition, int] = {}
        self.coordinator = 1
        self.seen: Counter[ApiKey] = Counter()
        self.happened: Counter[Kind] = Counter()
        self.ports: dict[int, int] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = LoopThread()

    def __enter__(self) -> Chaos:
        self._thread.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._stop())
        self._thread.loop.call_soon_threadsafe(self._thread.loop.stop)
        self._thread._thread.join()
        self._thread.loop.close()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def once(self, key: ApiKey, *accidents: Accident) -> None:
        """Have these accidents with the next requests of an API, one each."""
        left = list(accidents)
        self.accident = lambda seen, request: left.pop(0) if seen == key and left else None

    async def _start(self) -> None:
        for node_id in NODES:
            server = await asyncio.start_server(
                lambda reader, writer, node_id=node_id: self._accept(node_id, reader, writer),  # type: ignore[misc]
                "127.0.0.1",
                0,
            )
            self.ports[node_id] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:  # the real one is away
            writer.close()
            return
        try:
            while await self._exchange(node_id, reader, writer, up_reader, up_writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            up_writer.close()

    async def _exchange(
        self,
        node_id: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """One request; whether the connection goes on."""
        frame = await _read_frame(reader)
        header, position = parse_request_header(frame)
        key = ApiKey(header.api_key)
        request = decode_request(key, header.api_version, memoryview(frame), position)
        self.seen[key] += 1
        accident = self.accident(key, request) or Accident(Kind.DELAY, delay_s=0)
        if accident.delay_s or accident.kind is not Kind.DELAY:
            self.happened[accident.kind] += 1
        if accident.kind is Kind.LOSE_REQUEST:
            return False
        refusal = self._wrong_node(node_id, key, request)
        if accident.kind is Kind.REFUSE:
            refusal = refuse(request, accident.code)
        if refusal is not None:
            answer = _encode(header, refusal)
        else:
            up_writer.write(struct.pack(">i", len(frame)) + frame)
            if isinstance(request, ProduceRequest) and request.acks == 0:
                return True
            answer = self._rewritten(header, await _read_frame(up_reader))
        if accident.kind is Kind.LIE:
            answer = _encode(header, refuse(request, accident.code))
        return await _deliver(writer, answer, accident)

    def _wrong_node(self, node_id: int, key: ApiKey, request: Message) -> Message | None:
        if key in COORDINATED and getattr(request, "transactional_id", "") is not None and node_id != self.coordinator:
            return refuse(request, ErrorCode.NOT_COORDINATOR)
        partitions: list[TopicPartition] = []
        if isinstance(request, ProduceRequest):
            partitions = [TopicPartition(t.name, p.index) for t in request.topic_data for p in t.partition_data]
        elif isinstance(request, FetchRequest):
            partitions = [TopicPartition(t.topic, p.partition) for t in request.topics for p in t.partitions]
        elif isinstance(request, ListOffsetsRequest):
            partitions = [TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions]
        if any(self.leaders.get(partition, 1) != node_id for partition in partitions):
            return refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return None

    def _rewritten(self, header: RequestHeader, frame: bytes) -> bytes:
        """Addresses in an answer become those of the two nodes."""
        if header.api_key not in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR):
            return struct.pack(">i", len(frame)) + frame
        header_version = response_header_version(header.api_key, header.api_version)
        _, position = parse_response_header(frame, header_version)
        response = decode_response(header.api_key, header.api_version, memoryview(frame), position)
        if isinstance(response, MetadataResponse):
            response.brokers = [
                MetadataResponseBroker(node_id=n, host="127.0.0.1", port=port) for n, port in self.ports.items()
            ]
            for topic in response.topics:
                for partition in topic.partitions:
                    place = TopicPartition(topic.name or "", partition.partition_index)
                    partition.leader_id = self.leaders.get(place, 1)
        elif isinstance(response, FindCoordinatorResponse):
            for found in response.coordinators:
                found.node_id, found.port = self.coordinator, self.ports[self.coordinator]
        return _encode(header, response)


def _encode(header: RequestHeader, response: Message) -> bytes:
    header_version = response_header_version(header.api_key, header.api_version)
    body = encode_response(header.api_key, header.api_version, response)
    return b"".join(frame_response(header.correlation_id, header_version, body))


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def _deliver(writer: asyncio.StreamWriter, answer: bytes, accident: Accident) -> bool:
    match accident.kind:
        case Kind.LOSE_ANSWER:
            return False
        case Kind.HALF_ANSWER:
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        case Kind.HANG:
            await asyncio.sleep(3600)
        case Kind.DOUBLE:
            answer += answer
        case Kind.DELAY if accident.delay_s:
            await asyncio.sleep(accident.delay_s)
    writer.write(answer)
    await writer.drain()
    return True
