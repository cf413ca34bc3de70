"""Heartbeats of brokers: sessions, fencing, controlled shutdown. In the active controller's memory, not in the log.

| a broker that is    | and wants          | becomes               | if                                             |
| fenced              | to shut down       | stopped               |                                                |
| fenced              | to be unfenced     | unfenced              | it has read its own registration, and has      |
|                     |                    |                       | never wanted to shut down                      |
| unfenced            | to be fenced       | fenced                |                                                |
| unfenced            | to shut down       | stopped               | it leads nothing, or wants to be fenced too    |
| unfenced            | to shut down       | in controlled shutdown | it leads partitions: others do from now on    |
| in controlled shutdown | anything        | stopped               | it leads nothing, and all active brokers have |
|                     |                    |                       | read who leads instead                         |
| unfenced            | nothing for `session_ms` | fenced          |                                                |

A broker that may stop is fenced. One of its earlier heartbeats that comes late, on a connection of its own, does not
unfence it: its process has ended. Kafka's controllers do, and may have it lead until its session is over. A new active
controller knows no heartbeats: it gives every unfenced broker a new session.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from oncelog.controller.registrations import BrokerRegistration
from oncelog.core.dataclass import dataclass
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest


class BrokerState(Enum):
    FENCED = auto()
    UNFENCED = auto()
    SHUTTING_DOWN = auto()
    STOPPED = auto()


class BrokerEpoch(NamedTuple):
    broker_id: int
    epoch: int


@dataclass(slots=True)
class _Known:
    metadata_offset: int = -1
    wants_to_stop: bool = False
    shutdown_offset: int | None = None
    """The last record of those that moved leaderships away."""


class Heartbeats:
    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self._last_ms: dict[BrokerEpoch, int] = {}
        self._known: dict[BrokerEpoch, _Known] = {}

    def begin(self, broker: BrokerRegistration, now_ms: int) -> None:
        """A controller that becomes active gives an unfenced broker a new session."""
        if not broker.is_fenced:
            self.touch(BrokerEpoch(broker.broker_id, broker.epoch), now_ms)

    def touch(self, broker: BrokerEpoch, now_ms: int) -> None:
        self._last_ms[broker] = now_ms

    def has_session(self, broker: BrokerEpoch, now_ms: int) -> bool:
        last_ms = self._last_ms.get(broker)
        return last_ms is not None and now_ms - last_ms <= self.session_ms

    def excuse(self, absent_ms: int, now_ms: int) -> None:
        """The controller itself did not listen for so long: no broker was silent then."""
        for broker, last_ms in self._last_ms.items():
            self._last_ms[broker] = min(now_ms, last_ms + absent_ms)

    def expired(self, now_ms: int) -> list[BrokerEpoch]:
        """Brokers whose sessions have ended, until they are forgotten or send a heartbeat."""
        return [broker for broker, last_ms in self._last_ms.items() if now_ms - last_ms > self.session_ms]

    def forget(self, broker: BrokerEpoch) -> None:
        del self._last_ms[broker]
        self._known.pop(broker, None)

    @property
    def next_expiry_ms(self) -> int | None:
        return min(self._last_ms.values()) + self.session_ms + 1 if self._last_ms else None

    def note(self, broker: BrokerEpoch, request: BrokerHeartbeatRequest) -> None:
        known = self._of(broker)
        known.metadata_offset = request.current_metadata_offset
        known.wants_to_stop |= request.want_shut_down

    def note_shutdown(self, broker: BrokerEpoch, offset: int) -> None:
        self._of(broker).shutdown_offset = offset

    def forget_shutdown(self, broker: BrokerEpoch) -> None:
        self._of(broker).shutdown_offset = None

    def shutdown_offset(self, broker: BrokerRegistration) -> int | None:
        """What was noted at the begin of its controlled shutdown. None also if that was not committed: it begins
        anew."""
        known = self._of(BrokerEpoch(broker.broker_id, broker.epoch))
        return known.shutdown_offset if broker.in_controlled_shutdown else None

    def _of(self, broker: BrokerEpoch) -> _Known:
        return self._known.setdefault(broker, _Known())

    def next_state(
        self,
        broker: BrokerRegistration,
        request: BrokerHeartbeatRequest,
        *,
        is_caught_up: bool,
        leads: Callable[[], bool],
        active: list[BrokerEpoch],
    ) -> BrokerState:
        """`is_caught_up`: it has read its own registration. `active` are brokers neither fenced nor shutting down."""
        if broker.is_fenced:
            is_ending = (
                broker.in_controlled_shutdown or self._of(BrokerEpoch(broker.broker_id, broker.epoch)).wants_to_stop
            )
            return _next_of_fenced(request, may_serve=is_caught_up and not is_ending)
        shutdown_offset = self.shutdown_offset(broker)
        if shutdown_offset is not None:
            return self._next_of_shutdown(shutdown_offset, leads, active)
        if request.want_shut_down:
            return BrokerState.SHUTTING_DOWN if not request.want_fence and leads() else BrokerState.STOPPED
        return BrokerState.FENCED if request.want_fence else BrokerState.UNFENCED

    def _next_of_shutdown(
        self, shutdown_offset: int, leads: Callable[[], bool], active: list[BrokerEpoch]
    ) -> BrokerState:
        if leads() or any(self._of(other).metadata_offset < shutdown_offset for other in active):
            return BrokerState.SHUTTING_DOWN
        return BrokerState.STOPPED


def _next_of_fenced(request: BrokerHeartbeatRequest, *, may_serve: bool) -> BrokerState:
    if request.want_shut_down:
        return BrokerState.STOPPED
    return BrokerState.UNFENCED if may_serve and not request.want_fence else BrokerState.FENCED
