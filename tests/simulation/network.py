"""A network that delays, breaks and repeats: TCP as clients know it.

On one link bytes arrive once and in order, or the link breaks. When it breaks, nobody knows what the other side has
got: the request may never have arrived, or its answer is lost. What TCP does not promise is that a request from a
broken link is gone: it may sit in a buffer and arrive long after its sender has repeated it on another link and moved
on. Such a `ghost` is sent only for requests that the protocol protects against it (`Call.may_haunt`).

The client's side of a link is the real `client.wire.Wire`, the broker's the real `server.connection.Connection` on a
transport made here.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from oncelog.client.config import ClientConfig
from oncelog.client.errors import KafkaError
from oncelog.client.wire import Wire
from oncelog.core.invariant import invariant
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.server.connection import Connection
from oncelog.server.connection_limits import Admission
from tests.simulation.wire import parse_response

if TYPE_CHECKING:
    from tests.simulation.station import Station

CLIENT: Final = ClientConfig(bootstrap_servers="station:9092", client_id="sim")
FRAME_MAX_BYTES: Final = 1 << 24
ANSWER_MS_MAX: Final = 8_000
"""A request that does not wait by its nature is answered within this time, with parking, retries and a lagging high
watermark."""
WAITING_ANSWER_MS_MAX: Final = 70_000
"""JoinGroup and SyncGroup wait for other members: at most for the rebalance time-out of the slowest."""


class Lost:
    """In place of an answer: the link broke, or nothing came in time."""

    def __repr__(self) -> str:
        return "LOST"


LOST: Final = Lost()


@dataclass(eq=False)
class Call:
    key: ApiKey
    version: int
    message: Any
    on_delivered: Callable[[], None] = lambda: None
    """When the broker gets it, a ghost of it included."""
    on_answered: Callable[[Any], None] = lambda _: None
    """When the broker answers, whether the client learns of it or not."""
    may_haunt: bool = False

    def __str__(self) -> str:
        return f"{self.key.name} v{self.version}"


@dataclass
class Weather:
    """Chances per request, in permille, and delays."""

    break_before: int = 0
    break_after: int = 0
    haunt: int = 0
    slow: int = 0
    delay_ms_max: int = 4
    slow_ms_max: int = 1_500
    ghost_ms_max: int = 12_000


@dataclass
class Network:
    station: Station
    rng: random.Random
    weather: Weather
    violated: Callable[[str, str], None]
    trace: Callable[[str, str], None]
    links: dict[Link, None] = field(default_factory=dict)
    """In the order they were opened: the order of a set would change from run to run."""
    calls: int = 0
    ghosts: int = 0

    def __post_init__(self) -> None:
        self.station.on_down.append(self._broker_went_down)

    def _broker_went_down(self) -> None:
        for link in list(self.links):
            link.snap()

    def open(self, name: str) -> Link:
        return Link(self, name)

    def later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.station.clock.call_later_ms(delay_ms, callback)

    def now_ms(self) -> int:
        return self.station.clock.now_ms()

    def chance(self, permille: int) -> bool:
        return permille > 0 and self.rng.randrange(1000) < permille

    def delay_ms(self) -> int:
        weather = self.weather
        if self.chance(weather.slow):
            return self.rng.randrange(weather.slow_ms_max)
        return self.rng.randrange(weather.delay_ms_max + 1)

    def send_ghost(self, call: Call, ms_max: int | None = None) -> None:
        delay_ms = self.rng.randrange(1, ms_max or self.weather.ghost_ms_max)

        def arrive() -> None:
            if self.station.broker is not None:
                self.ghosts += 1
                self.trace("ghost", f"{call} arrives")
                Link(self, "ghost", is_ghost=True).deliver(call)

        self.later(delay_ms, arrive)

    def ask(self, call: Call) -> Any:
        """On a good day: straight to the broker, and time passes until it answers. LOST if it does not."""
        answers: list[Any] = []
        witness, call.on_answered = call.on_answered, answers.append
        Link(self, "ask", is_ghost=True).deliver(call)
        deadline_ms = self.now_ms() + _bound_ms(call) + 1_000
        while not answers and self.now_ms() < deadline_ms:
            self.station.clock.advance_ms(10)
        if not answers:
            self.violated("nobody-waits", f"{call} is not answered")
            return LOST
        self.station.clock.advance_ms(0)  # what the broker does once the answer has left
        witness(answers[0])
        return answers[0]

    def check_nobody_waits(self) -> None:
        now_ms = self.now_ms()
        for link in self.links:
            link.check_waiting(now_ms)


def _bound_ms(call: Call) -> int:
    if call.key == ApiKey.FETCH:
        return int(call.message.max_wait_ms) + 1_000
    if call.key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
        return WAITING_ANSWER_MS_MAX
    return ANSWER_MS_MAX


class Link:
    """A client's connection. It is used until it breaks, and never again."""

    def __init__(self, network: Network, name: str, *, is_ghost: bool = False) -> None:
        self._net = network
        self._name = name
        self._is_ghost = is_ghost
        self._incarnation = network.station.broker
        self._connection: Connection | None = None
        self._wire = Wire(CLIENT, name, lambda frame: self._frames.append(b"".join(frame)))
        self._frames: list[bytes] = []
        """Written by the client, and not yet given to the network."""
        self._refused: list[Callable[[Any], None]] = []
        self._served: dict[int, tuple[Call, int]] = {}
        self._held: deque[tuple[bytes, Call]] = deque()
        self._reading = True
        self._is_cut = False
        """Nothing reaches the broker any more; the client does not know yet."""
        self._silent_from: int | None = None
        """The first request whose answer, like all that follow, does not reach the client."""
        self._last_request_ms = self._last_answer_ms = 0
        self.broken = False
        if self._incarnation is not None:
            self._connect()
        network.links[self] = None

    def _connect(self) -> None:
        connection = Connection(
            self._net.station.running.dispatcher,
            frame_max_bytes=FRAME_MAX_BYTES,
            budget=self._net.station.running.budget,
            scheduler=self._net.station.running.scheduler,
            accept=lambda _: Admission(),
            forget=lambda _: None,
        )
        connection.connection_made(cast(Any, _Transport(self)))
        self._connection = connection
        self._negotiate(connection)

    def _negotiate(self, connection: Connection) -> None:
        """Past all weather: a broker that is up answers at once."""
        outcomes: list[KafkaError | None] = []
        self._wire.negotiate(self._now_s(), outcomes.append)
        versions = Call(ApiKey.API_VERSIONS, ApiVersionsRequest.VERSIONS[1], None)
        self._served[1] = (versions, self._net.now_ms())
        _receive(connection, self._frames.pop())
        invariant(outcomes == [None], "negotiating versions gave %s", outcomes)

    # -- the client's side

    def _now_s(self) -> float:
        return self._net.now_ms() / 1000

    def send(self, call: Call, timeout_ms: int, on_result: Callable[[Any], None]) -> None:
        net = self._net
        net.calls += 1
        if self.broken:
            net.later(1, lambda: on_result(LOST))
            return
        if self._connection is None:
            self._refused.append(on_result)
            net.later(net.rng.randrange(1, 20), self.snap)
            return
        frame = self._frame_of(call, on_result, timeout_ms)
        net.later(timeout_ms + 1, self._expire)
        if net.station.broker is not self._incarnation:
            net.later(net.rng.randrange(1, 20), self.snap)
            return
        if call.may_haunt and net.chance(net.weather.haunt):
            net.send_ghost(call)
        if self._is_cut or net.chance(net.weather.break_before):
            self._is_cut = True
            net.trace(self._name, f"{call} is lost on its way")
            net.later(net.rng.randrange(1, 100), self.snap)
            return
        self._last_request_ms = max(self._last_request_ms, net.now_ms() + net.delay_ms())
        if net.chance(net.weather.break_after) and self._silent_from is None:
            self._silent_from = _correlation_of(frame, 8)
        net.later(self._last_request_ms - net.now_ms(), lambda: self._arrive(frame, call))

    def _frame_of(self, call: Call, on_result: Callable[[Any], None], timeout_ms: int | None = None) -> bytes:
        def answered(answer: Any) -> None:
            on_result(LOST if isinstance(answer, KafkaError) else answer)

        self._wire.send(call.message, self._now_s(), answered, version_max=call.version, timeout_ms=timeout_ms)
        return self._frames.pop()

    def _expire(self) -> None:
        self._wire.expire(self._now_s())
        if self._wire.closed and not self.broken:
            self._net.trace(self._name, "gives up waiting")
            self.snap()

    def snap(self) -> None:
        """The link breaks: everybody who waits for an answer on it learns that."""
        if self.broken:
            return
        self.broken = True
        self._net.links.pop(self, None)
        connection, self._connection = self._connection, None
        if connection is not None and self._net.station.broker is self._incarnation:
            connection.connection_lost(None)
        self._wire.close("the link broke")
        refused, self._refused = self._refused, []
        for on_result in refused:
            on_result(LOST)

    # -- the broker's side

    def deliver(self, call: Call) -> None:
        """Straight to the broker, past all weather, with nobody who waits for the answer."""
        if self._connection is not None:
            self._feed(self._frame_of(call, lambda _: None), call)

    def _arrive(self, frame: bytes, call: Call) -> None:
        if self.broken or self._connection is None:
            return
        if self._reading and not self._held:
            self._feed(frame, call)
        else:
            self._held.append((frame, call))

    def _feed(self, frame: bytes, call: Call) -> None:
        connection = self._connection
        if connection is None:
            return
        call.on_delivered()
        self._net.trace(self._name, f"-> {call}")
        self._served[_correlation_of(frame, 8)] = (call, self._net.now_ms())
        _receive(connection, frame)

    def answered(self, frame: bytes) -> None:
        correlation = _correlation_of(frame, 4)
        call, since_ms = self._served.pop(correlation)
        if call.key == ApiKey.API_VERSIONS:
            _receive(self._wire, frame)
            return
        response = parse_response(call.key, call.version, frame)
        self._check_time(call, self._net.now_ms() - since_ms)
        call.on_answered(response)
        if self._is_ghost:
            self.snap()
            return
        if self._silent_from is not None and correlation >= self._silent_from:
            self._net.trace(self._name, f"the answer to {call} is lost")
            self._net.later(self._net.rng.randrange(1, 100), self.snap)
            return
        self._last_answer_ms = max(self._last_answer_ms, self._net.now_ms() + self._net.delay_ms())
        self._net.later(self._last_answer_ms - self._net.now_ms(), lambda: self._return(frame))

    def _return(self, frame: bytes) -> None:
        if self.broken:
            return
        _receive(self._wire, frame)
        if self._wire.closed:
            self._net.violated("no-exception", f"{self._name} cannot read an answer of the broker")

    def check_waiting(self, now_ms: int) -> None:
        for call, since_ms in self._served.values():
            self._check_time(call, now_ms - since_ms)

    def _check_time(self, call: Call, elapsed_ms: int) -> None:
        if elapsed_ms > _bound_ms(call):
            self._net.violated("nobody-waits", f"{call} of {self._name} waits for {elapsed_ms} ms")

    def closed_by_broker(self) -> None:
        if self._net.station.broker is self._incarnation and self._incarnation is not None:
            asked = ", ".join(str(call) for call, _ in self._served.values())
            self._net.violated("no-exception", f"the broker closed the connection of {self._name} over {asked}")
        self._net.later(1, self.snap)

    def set_reading(self, wanted: bool) -> None:
        self._reading = wanted
        if wanted and self._held:
            self._net.later(0, self._feed_held)

    def _feed_held(self) -> None:
        while self._held and self._reading and not self.broken:
            self._feed(*self._held.popleft())


def _correlation_of(frame: bytes, position: int) -> int:
    return int.from_bytes(frame[position : position + 4], "big")


def _receive(receiver: Connection | Wire, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        room = receiver.get_buffer(-1)
        taken = min(len(room), len(rest))
        room[:taken] = rest[:taken]
        rest = rest[taken:]
        receiver.buffer_updated(taken)


class _Transport:
    """As much of asyncio.Transport as `Connection` uses."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._closing = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("10.0.0.1", 4711), "sockname": ("10.0.0.9", 9092)}.get(name)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def writelines(self, buffers: list[bytes]) -> None:
        self._link.answered(b"".join(buffers))

    def pause_reading(self) -> None:
        self._link.set_reading(False)

    def resume_reading(self) -> None:
        self._link.set_reading(True)

    def abort(self) -> None:
        self._closing = True
        self._link.closed_by_broker()

    close = abort
