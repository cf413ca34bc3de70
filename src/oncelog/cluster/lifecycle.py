"""Registration, heartbeats and controlled shutdown of a broker in a cluster: a state machine without sockets and clock.

    UNREGISTERED --registered--> CATCHING_UP --caught up--> RECOVERING --ready--> UNFENCING --unfenced--> SERVING
         |                           \\_____________________________stop___________________________/
         |                                                           v
         +--stop--> STOPPED <--granted, stale epoch, too long-- STOPPING

- The broker registers with the controller and gets its broker epoch. Until it has read its own registration in the
  metadata log, it sends a heartbeat every 10 ms. Then it recovers its logs, and the owner calls `ready`. The next
  heartbeat asks the controller to unfence the broker. From then on the controller may make it the leader of
  partitions.
- The controller fences a broker whose heartbeats stop for longer than `broker.session.timeout.ms`. The broker epoch
  stays valid, and the next heartbeat unfences the broker. `is_fenced` is the last answer of the controller.
- To stop, the broker requests a controlled shutdown. It serves until the controller has moved its leaderships away.
- The state becomes REFUSED if the controller rejects the registration, if no registration succeeds within
  `initial.broker.registration.timeout.ms`, or if the controller no longer knows the broker epoch because the broker
  was unregistered or another process registered with its id. `refusal` tells the reason and the remedy.

The owner calls `poll` when the time `wake_ms` has come, sends the request to the active controller, and passes the
response or the failure back. After NOT_CONTROLLER or a failure the request is sent again 50 ms later. A request
without a response for half a session time-out is abandoned: the owner sends the next one over a new connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final
from uuid import UUID

from oncelog.cluster.exchange import Exchange
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import setting
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import uuid_to_text
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
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
"""After that the broker stops without the controller's permission."""
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
    (State.UNREGISTERED, Event.TOO_LONG): State.REFUSED,
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
    """What a broker registers with. Each start of the process has a new `incarnation_id`."""

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: Sequence[Listener]
    features: Sequence[Feature]
    rack: str | None
    directory_id: UUID
    previous_epoch: int
    """The broker epoch before the last clean shutdown, or -1 if there was none."""


@dataclass(frozen=True, slots=True)
class Timing:
    heartbeat_interval_ms: int = setting(BROKER_CONFIG["broker.heartbeat.interval.ms"])
    session_timeout_ms: int = setting(BROKER_CONFIG["broker.session.timeout.ms"])
    initial_registration_timeout_ms: int = setting(BROKER_CONFIG["initial.broker.registration.timeout.ms"])


class SendToController(NamedTuple):
    number: int
    request: BrokerRegistrationRequest | BrokerHeartbeatRequest


class Lifecycle:
    def __init__(self, identity: Identity, timing: Timing, now_ms: int) -> None:
        self._identity = identity
        self._timing = timing
        self._exchange = Exchange(timing.session_timeout_ms // 2)
        self._give_up_ms = now_ms + timing.initial_registration_timeout_ms
        self._is_ready = False
        self.state = State.UNREGISTERED
        self.epoch = -1
        self.is_fenced = True
        self._reason = (
            f"no active controller has answered for {timing.initial_registration_timeout_ms} ms: check that "
            "controllers run, and controller.quorum.bootstrap.servers"
        )
        """What a refusal would say."""

    @property
    def wake_ms(self) -> int | None:
        """When to call `poll` next if no response arrives before. None means now."""
        return self._exchange.wake_ms

    @property
    def refusal(self) -> str | None:
        return self._reason if self.state is State.REFUSED else None

    def ready(self) -> None:
        """The logs are recovered: the broker can lead partitions."""
        self._is_ready = True
        self._go(Event.READY)

    def hurry(self) -> None:
        """A controller was found: there is nothing to wait for."""
        self._exchange.hurry()

    def stop(self, now_ms: int) -> None:
        self._give_up_ms = now_ms + STOPPING_MAX_MS
        self._go(Event.STOP)

    def poll(self, now_ms: int, metadata_offset: int) -> SendToController | None:
        """`metadata_offset` is the last offset of the metadata log that the broker has applied."""
        if now_ms >= self._give_up_ms:
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
        """`finalised` are the levels of the cluster's features, from the image."""
        if not self._exchange.accept(number) or self.state is not State.UNREGISTERED:
            return
        code = response.error_code
        if code == ErrorCode.NONE:
            self.epoch = response.broker_epoch
            self._go(Event.REGISTERED)
        elif code == ErrorCode.NOT_CONTROLLER:
            self._exchange.delay(now_ms, BACKOFF_MS)
        else:
            self._reason = self._registration_refusal(code, finalised)
            self._exchange.delay(now_ms, _REGISTRATION_RETRY_MS)
            if code in _FINAL:
                self._go(Event.REFUSAL)

    def on_heartbeat(self, number: int, response: BrokerHeartbeatResponse, now_ms: int) -> None:
        if not self._exchange.accept(number):
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self._reason = (
                f"the controller does not know broker {self._identity.broker_id} in epoch {self.epoch} any more: it "
                "was unregistered, or another process registered with its id. Stop that process and restart this broker"
            )
            self._go(Event.STALE_EPOCH)
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
            return self._timing.heartbeat_interval_ms
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
                f"broker id {identity.broker_id} is taken by another process, whose last heartbeat is less than "
                f"{self._timing.session_timeout_ms} ms old: stop that process, or change node.id"
            )
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"the controllers are not of cluster {identity.cluster_id}, to which this data folder belongs: check "
                "controller.quorum.bootstrap.servers"
            )
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return (
                f"the controller does not let broker {identity.broker_id} register: give the principal that it logs in "
                "with ClusterAction on the cluster, or name it in super.users of the controllers"
            )
        if code == ErrorCode.INVALID_REGISTRATION:
            return (
                f"the controller does not register broker {identity.broker_id} with the data folder "
                f"{uuid_to_text(identity.directory_id)}, which most likely was copied from another broker: start it "
                "with a folder of its own, which may be empty"
            )
        name = next((known.name for known in ErrorCode if known == code), f"error {code}")
        return f"the controller refuses to register broker {identity.broker_id}: {name}; its log says why"


_FINAL: Final = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
"""Errors for which a retry does not help."""


def unsupported(declared: Sequence[Feature], finalised: Mapping[str, int]) -> str:
    """Which features prevent the registration, and the remedy."""
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
