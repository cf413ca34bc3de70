"""The product's own client on the links of the simulation, in its virtual time.

A script that `yield from`s `play(coroutine)` runs a coroutine of the client: the requests and the pauses of the client
become those of the script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncelog.client.cluster import Cluster
from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost
from oncelog.client.wire import Wire
from oncelog.core.features import TRANSACTION_VERSION
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message
from tests.simulation.network import LOST, Call

if TYPE_CHECKING:
    from tests.simulation.actors import Actor, Script

T = TypeVar("T")
M = TypeVar("M", bound=Message)

FOR_EVER_MS: Final = 2**31 - 1
CONFIG: Final = ClientConfig(
    bootstrap_servers="station:9092",
    client_id="sim",
    default_api_timeout_ms=FOR_EVER_MS,
    retry_backoff_ms=20,
    retry_backoff_max_ms=100,
    allow_auto_create_topics=False,
)
LOOKUPS: Final = {
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
}
"""What all dialects share."""
CallOf = Callable[[ApiKey, int, Message], Call]
"""What is known of a request: who witnesses it, and whether it may arrive again."""


class _Command:
    """Something that a script yields, for a coroutine to wait for."""

    def __init__(self, command: Any) -> None:
        self._command = command

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._command)


def play(coroutine: Coroutine[Any, Any, T]) -> Script[T]:
    return (yield from coroutine.__await__())


class ActorNetwork:
    """A network with one broker, whose address does not matter. It serves the versions of the actor's dialect."""

    def __init__(self, actor: Actor, versions: Mapping[ApiKey, int], transaction_version: int, call_of: CallOf) -> None:
        self.rng = actor.rng
        self.wire = Wire(CONFIG, actor.name, lambda frame: None)
        self.wire.versions = {int(key): (0, last) for key, last in {**LOOKUPS, **versions}.items()}
        self.wire.features = {TRANSACTION_VERSION: transaction_version}
        self._actor = actor
        self._call_of = call_of

    def cluster(self) -> Cluster:
        return Cluster(CONFIG, self)  # type: ignore[arg-type]  # it is its only connection

    def now_s(self) -> float:
        return self._actor.now_ms() / 1000

    async def sleep(self, ms: float) -> None:
        await _Command(max(1, round(ms)))

    def limit(self, ms: float) -> contextlib.nullcontext[None]:
        """Requests have time limits of their own."""
        return contextlib.nullcontext()

    def open_one(self, host: str, port: int, channel: str) -> ActorNetwork:
        return self

    async def connect(self, host: str, port: int, channel: str) -> ActorNetwork:
        return self

    async def close(self) -> None:
        return

    def __str__(self) -> str:
        return self._actor.name

    async def call(
        self,
        request: Message,
        response_type: type[M],
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
    ) -> M:
        """On the actor's link; its time limit is the actor's."""
        version = self.wire.version_of(type(request), version_max)
        (answer,) = await _Command([self._call_of(ApiKey(request.API_KEY or 0), version, request)])
        if answer is LOST:
            raise ConnectionLost(f"{self} got no answer")
        return answer  # type: ignore[no-any-return]  # of the request's own kind
