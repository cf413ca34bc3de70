"""The life of a broker as its controller sees it: registration, heartbeats, controlled shutdown. No sockets, no clock.

    UNREGISTERED --registered--> CATCHING_UP --caught up--> RECOVERING --ready--> UNFENCING --unfenced--> SERVING
         |                           \\_____________________________stop___________________________/
         |                                                           v
         +--stop--> STOPPED <--granted, stale epoch, too long-- STOPPING

- A broker registers, and is given its epoch. As long as it has not read its own registration in the metadata log it
  sends heartbeats at once one after the other; then it recovers its logs (`ready` says that this is done) and asks to
  be unfenced, which is when the controller makes it leader and clients may find it.
- A controller fences a broker that is silent for longer than `broker.session.timeout.ms`. That does not end its epoch:
  the next heartbeat unfences it. `is_fenced` is what the controller said last.
- To stop, a broker asks for leave and goes on serving until its partitions have other leaders.
- A broker whose epoch the controller does not know any more, since it was unregistered or another process has its id,
  is REFUSED; so is one that may not register. `refusal` says why, and what to do.

The owner calls `poll` whenever `wake_ms` has come, sends what it is given to the active controller, and brings back the
answer or the failure. To a controller that is not active any more it goes again, 50 ms later. A request that takes as
long as half a session is given up: the next one needs another connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple
from uuid import UUID

from oncelog.cluster.exchange import Exchange
from oncelog.core.errors import ErrorCode
from oncelog.core.invariant import invariant
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

BACKOFF_MS: Final = 50
CATCHING_UP_MS: Final = 10
STOPPING_MS: Final = 50
STOPPING_MAX_MS: Final = 300_000
"""After that the broker stops without leave: the controller may be gone for good."""
_REGISTRATION_RETRY_MS: Final = 2000


class State(Enum):
    UNREGISTERED = auto()
    CATCHING_UP = auto()
    RECOVERING = auto()
    UNFENCING = auto()
    SERVING = auto()
    STOPPING = auto()
    STOPPED = auto()
    REFUSED = auto()


class Event(Enum):
    REGISTERED = auto()
    REFUSAL = auto()
    CAUGHT_UP = auto()
    READY = auto()
    UNFENCED = auto()
    STOP = auto()
    GRANTED = auto()
    STALE_EPOCH = auto()
    TOO_LONG = auto()


_REGISTERED: Final = (State.CATCHING_UP, State.RECOVERING, State.UNFENCING, State.SERVING)
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.UNREGISTERED, Event.REGISTERED): State.CATCHING_UP,
    (State.UNREGISTERED, Event.REFUSAL): State.REFUSED,
    (State.UNREGISTERED, Event.STOP): State.STOPPED,
    (State.CATCHING_UP, Event.CAUGHT_UP): State.RECOVERING,
    (State.RECOVERING, Event.READY): State.UNFENCING,
    (State.UNFENCING, Event.UNFENCED): State.SERVING,
    **{(state, Event.STOP): State.STOPPING for state in _REGISTERED},
    **{(state, Event.STALE_EPOCH): State.REFUSED for state in _REGISTERED},
    (State.STOPPING, Event.GRANTED): State.STOPPED,
    (State.STOPPING, Event.STALE_EPOCH): State.STOPPED,
    (State.STOPPING, Event.TOO_LONG): State.STOPPED,
}
"""Any other event leaves the state as it is."""


class Identity(NamedTuple):
    """What a broker registers with. `incarnation_id` is new with every start of the process."""

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: Sequence[Listener]
    features: Sequence[Feature]
    rack: str | None
    directory_id: UUID
    previous_epoch: int
    """That of the last start, if it ended cleanly; else -1."""


class Timing(NamedTuple):
    """Settings of Kafka, in milliseconds."""

    heartbeat_interval: int = 2000
    session_timeout: int = 9000
    initial_registration_timeout: int = 60_000


class SendToController(NamedTuple):
    number: int
    request: BrokerRegistrationRequest | BrokerHeartbeatRequest


class Lifecycle:
    def __init__(self, identity: Identity, timing: Timing, now_ms: int) -> None:
        self._identity = identity
        self._timing = timing
        self._exchange = Exchange(timing.session_timeout // 2)
        self._give_up_ms = now_ms + timing.initial_registration_timeout
        self._is_ready = False
        self.state = State.UNREGISTERED
        self.epoch = -1
        self.is_fenced = True
        self.refusal: str | None = None

    @property
    def wake_ms(self) -> int | None:
        """When to call `poll` if nothing comes before; None: at once."""
        return self._exchange.wake_ms

    def ready(self) -> None:
        """Logs are recovered: partitions may be led."""
        self._is_ready = True
        self._go(Event.READY)

    def stop(self, now_ms: int) -> None:
        self._give_up_ms = now_ms + STOPPING_MAX_MS
        self._go(Event.STOP)

    def poll(self, now_ms: int, metadata_offset: int) -> SendToController | None:
        """`metadata_offset`: the last one applied."""
        if self.state is State.STOPPING and now_ms >= self._give_up_ms:
            self._go(Event.TOO_LONG)
        if self._exchange.has_timed_out(now_ms):
            self._exchange.give_up()
        if self.state in (State.STOPPED, State.REFUSED) or not self._exchange.is_due(now_ms):
            return None
        is_new = self.state is State.UNREGISTERED
        request = self._registration() if is_new else self._heartbeat(metadata_offset)
        return SendToController(self._exchange.sent(now_ms), request)

    def on_failure(self, number: int, now_ms: int) -> None:
        if self._exchange.accept(number):
            self._exchange.delay(now_ms, BACKOFF_MS)

    def on_registration(
        self, number: int, response: BrokerRegistrationResponse, now_ms: int, finalised: Mapping[str, int]
    ) -> None:
        """`finalised`: the levels of the cluster's features, by the image."""
        if not self._exchange.accept(number) or self.state is not State.UNREGISTERED:
            return
        code = response.error_code
        if code == ErrorCode.NONE:
            self.epoch = response.broker_epoch
            self._go(Event.REGISTERED)
        elif code == ErrorCode.NOT_CONTROLLER:
            self._exchange.delay(now_ms, BACKOFF_MS)
        elif code in _FINAL or now_ms >= self._give_up_ms:
            self.refusal = self._registration_refusal(code, finalised)
            self._go(Event.REFUSAL)
        else:
            self._exchange.delay(now_ms, _REGISTRATION_RETRY_MS)

    def on_heartbeat(self, number: int, response: BrokerHeartbeatResponse, now_ms: int) -> None:
        if not self._exchange.accept(number):
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self._go(Event.STALE_EPOCH)
            if self.state is State.REFUSED:
                self.refusal = (
                    f"the controller does not know broker {self._identity.broker_id} in epoch {self.epoch} any more: "
                    "it was unregistered, or another process has registered with its id. Stop that one, and start this "
                    "broker again"
                )
        elif response.error_code != ErrorCode.NONE:
            self._exchange.delay(now_ms, BACKOFF_MS)
        else:
            self._take(response)
            self._exchange.delay(now_ms, self._interval_ms())

    def _take(self, response: BrokerHeartbeatResponse) -> None:
        self.is_fenced = response.is_fenced
        if response.is_caught_up:
            self._go(Event.CAUGHT_UP)
            if self._is_ready:
                self._go(Event.READY)
        if not response.is_fenced:
            self._go(Event.UNFENCED)
        if response.should_shut_down:
            self._go(Event.GRANTED)

    def _go(self, event: Event) -> None:
        target = TRANSITIONS.get((self.state, event))
        if target is not None:
            self.state = target
            self._exchange.hurry()

    def _interval_ms(self) -> int:
        if self.state in (State.RECOVERING, State.SERVING):
            return self._timing.heartbeat_interval
        return STOPPING_MS if self.state is State.STOPPING else CATCHING_UP_MS

    def _registration(self) -> BrokerRegistrationRequest:
        identity = self._identity
        return BrokerRegistrationRequest(
            broker_id=identity.broker_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=list(identity.listeners),
            features=list(identity.features),
            rack=identity.rack,
            log_dirs=[identity.directory_id],
            previous_broker_epoch=identity.previous_epoch,
        )

    def _heartbeat(self, metadata_offset: int) -> BrokerHeartbeatRequest:
        invariant(self.epoch >= 0, "a broker sends heartbeats in the epoch of its registration")
        return BrokerHeartbeatRequest(
            broker_id=self._identity.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=self.state in (State.CATCHING_UP, State.RECOVERING),
            want_shut_down=self.state is State.STOPPING,
        )

    def _registration_refusal(self, code: int, finalised: Mapping[str, int]) -> str:
        identity = self._identity
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return f"the cluster does not take this broker: {unsupported(identity.features, finalised)}"
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return (
                f"broker id {identity.broker_id} is taken by another process, which the controller has heard of in the "
                f"last {self._timing.session_timeout} ms: stop it, or change node.id"
            )
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"the controllers are not of cluster {identity.cluster_id}, to which this data folder belongs: check "
                "controller.quorum.bootstrap.servers"
            )
        name = next((known.name for known in ErrorCode if known == code), f"error {code}")
        return f"the controller refuses to register broker {identity.broker_id}: {name}"


_FINAL: Final = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
"""Trying again would not help."""


def unsupported(declared: Sequence[Feature], finalised: Mapping[str, int]) -> str:
    """Which features stand against it, and what to do."""
    ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in declared}
    found = []
    for name, level in finalised.items():
        lowest, highest = ranges.get(name, (0, 0))
        if not lowest <= level <= highest:
            found.append(f"{name} is at level {level}, supported are {lowest} to {highest}")
    if not found:
        return "a feature is at a level that it does not support; see kafka-features describe"
    return (
        "; ".join(found) + ". Set these features with kafka-features, or format the cluster with --feature NAME=LEVEL"
    )
