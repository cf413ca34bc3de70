"""The controller as a state machine: what is committed and requests in; records and answers out.

No clock, no I/O. The owner

1. applies every committed record (`apply`, or `apply_in_steps` for many; `load` for a snapshot), whether this
   controller is active or not;
2. calls `activate` when it has become active;
3. while it is active, opens a `Round`, asks it all that waits, appends the records of the round as one batch, and gives
   the answers when that is committed. Then comes the next round. If the batch is not committed, the round is forgotten.

In a round each decision sees those before it. Nothing of it is in the machine before its records are committed, except
heartbeats: these are memory, and are taken as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from oncelog.controller import broker_changes
from oncelog.controller.decision import Deciding, Decision, Requester
from oncelog.controller.heartbeats import BrokerEpoch, BrokerState, Heartbeats
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.image_records import versioned
from oncelog.controller.placement import Below
from oncelog.controller.registration import register_broker, register_controller, unregister_broker
from oncelog.controller.registrations import BrokerRegistration
from oncelog.controller.replay import ENDS, Replay
from oncelog.controller.view import MIN_ISR, View
from oncelog.core.config import Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION
from oncelog.core.ids import INTERNAL_TOPICS, NodeId
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.steps import at_once
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from oncelog.protocol.messages.cluster_metadata import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UserScramCredentialRecord,
    encode_metadata_record,
)
from oncelog.protocol.schema import Message

if TYPE_CHECKING:
    from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest

NEVER_MS: Final = 1 << 62
ELECTIONS_MAX: Final = 1000
"""In one round of elections that nobody asked for."""
RECORD_BYTES_MAX: Final = 800_000
"""A larger record does not fit into a batch of the log, and all others of the round would fail with it."""


class ControllerConfig(NamedTuple):
    cluster_id: str
    node_id: int
    settings: Settings
    session_ms: int
    features: Sequence[Feature]
    """What this controller supports."""
    levels: Mapping[str, int]
    """What a new cluster begins with."""
    is_alone: bool = False
    """Whether the only broker is in the same process. Then a registration that is found is of a broker that has ended,
    and silence does not mean that it has."""


class Machine:
    """`new_uuid` and `below` are where random values come from."""

    def __init__(self, config: ControllerConfig, new_uuid: Callable[[], UUID], below: Below) -> None:
        self.config = config
        self.new_uuid: Callable[[], UUID] = new_uuid
        self.below = below
        self.heartbeats = self._new_heartbeats()
        self.kraft_version = 0
        self._replay = Replay()
        self._registered_offsets: dict[NodeId, int] = {}
        self._view = View(EMPTY_IMAGE, config.settings, config.node_id)
        self._has_news = False

    # What is committed

    def load(self, image: Image, end_offset: int) -> None:
        """A snapshot. Brokers have seen their registrations if they have seen all that it contains."""
        self._replay = Replay(image)
        self._has_news = True
        self._registered_offsets = dict.fromkeys(image.brokers, end_offset - 1)

    def apply(self, record: Message, offset: int) -> None:
        for _ in self.apply_in_steps([(offset, record)]):
            pass

    def apply_in_steps(self, records: Iterable[tuple[int, Message]]) -> Iterator[None]:
        """Offsets and records. Nothing of them is in the view before the end."""
        for offset, record in records:
            if type(record) in ENDS:
                yield from self._replay.apply_in_steps(record)
            else:
                self._replay.apply(record)
            if type(record) is RegisterBrokerRecord:
                self._registered_offsets[NodeId(record.broker_id)] = offset
            yield
        self._has_news = True

    @property
    def view(self) -> View:
        if self._has_news:
            self._has_news = False
            self._view = self._view.after(self._replay.image())
        return self._view

    def registered_offset(self, broker_id: int) -> int | None:
        """The offset of the record that registers a broker; None until it is committed."""
        return self._registered_offsets.get(NodeId(broker_id))

    # The office

    def activate(self, now_ms: int) -> None:
        self.heartbeats = self._new_heartbeats()
        for broker in self.view.image.brokers.values() if not self.config.is_alone else ():
            self.heartbeats.begin(broker, now_ms)

    def _new_heartbeats(self) -> Heartbeats:
        return Heartbeats(NEVER_MS if self.config.is_alone else self.config.session_ms)

    def bootstrap_records(self) -> list[Message]:
        """What a controller writes first into an empty log."""
        if self.view.image.features:
            return []
        levels = self.config.levels
        records: list[Message] = [BeginTransactionRecord(name="Bootstrap records")]
        for name in sorted(levels, key=lambda name: (name != METADATA_VERSION, name)):
            if levels[name]:
                records.append(FeatureLevelRecord(name=name, feature_level=levels[name]))
        if levels.get(ELR_VERSION, 0) > 0:
            value = str(self.config.settings.integer(MIN_ISR))
            records.append(ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=value))
        return [*records, EndTransactionRecord()]

    def round(self, next_offset: int) -> Round:
        """`next_offset` is where its records will be in the log."""
        return Round(self, next_offset)


class Round:
    def __init__(self, machine: Machine, next_offset: int) -> None:
        self._machine = machine
        self._next_offset = next_offset
        self._view = machine.view
        self._replay: Replay | None = None
        self.records: list[Message] = []

    def ask(self, request: Message, who: Requester, now_ms: int) -> Message:
        """The answer, to be given when the records are committed. Raises KafkaError."""
        return at_once(self.decide(request, who, now_ms))

    def decide(self, request: Message, who: Requester, now_ms: int) -> Generator[None, None, Message]:
        """As `ask`, in short steps. All of them must be taken before the next request is decided."""
        found = self._decision(request, who, now_ms)
        decision = found if isinstance(found, Decision) else (yield from found)
        level = self._view.image.metadata_version
        for record in decision.records:
            if type(record) not in _ALWAYS_SMALL:
                _check_size(record, level)
                yield
        yield from self._take_in_steps(decision.records, is_bounded=not all(map(_is_needed, decision.records)))
        return decision.answer

    def _decision(self, request: Message, who: Requester, now_ms: int) -> Decision | Deciding:
        if (own := _OWN.get(request.API_KEY)) is not None:
            return own(self, request, who, now_ms)
        from oncelog.controller.rules import RULES

        return RULES[request.API_KEY](self._machine, self._view, request, who)

    def take(self, records: Callable[[Image], Sequence[Message]]) -> Generator[None, None, None]:
        """What follows from the metadata as it is then, in steps as `decide`."""
        yield from self._take_in_steps(records(self._view.image))

    def fence_silent(self, now_ms: int) -> None:
        """Brokers that have not sent a heartbeat for the time of a session.

        Their sessions are forgotten when that is committed, so that it is done again if it is not.
        """
        for silent in self._machine.heartbeats.expired(now_ms):
            if _unfenced(self._machine.view, silent) is None:
                self._machine.heartbeats.forget(silent)
                continue
            broker = _unfenced(self._view, silent)
            if broker is not None:
                self._take(broker_changes.fenced(self._view, broker))

    def elect_preferred(self) -> None:
        from oncelog.controller.leader_elections import preferred_leaders

        self._take(preferred_leaders(self._view, ELECTIONS_MAX))

    def elect_unclean(self) -> None:
        from oncelog.controller.leader_elections import unclean_leaders

        self._take(unclean_leaders(self._view, ELECTIONS_MAX))

    def _take(self, records: Sequence[Message]) -> None:
        at_once(self._take_in_steps(records))

    def _take_in_steps(self, records: Sequence[Message], *, is_bounded: bool = False) -> Generator[None, None, None]:
        if not records:
            return
        if self._replay is None:
            self._replay = Replay(self._view.image)
        replay, self._replay = self._replay, None
        for record in records:
            # If one is refused, the next decision begins with the view before all of them.
            replay.apply(record)
            yield
        if is_bounded:
            self._check_room(replay.entry_bytes)
        self._replay = replay
        self.records += records
        self._view = self._view.after(self._replay.image())

    def _check_room(self, entry_bytes: int) -> None:
        """Whether there is room for more settings, quotas, ACLs and users. What makes them fewer is never refused."""
        limit = self._machine.config.settings.integer("oncelog.metadata.max.bytes")
        if entry_bytes > max(limit, self._view.image.entry_bytes):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Settings of topics, quotas, ACLs and users would take about {entry_bytes} bytes, more than "
                f"oncelog.metadata.max.bytes, which is {limit}.",
            )

    @property
    def _end_offset(self) -> int:
        return self._next_offset + len(self.records)

    def _register(self, request: BrokerRegistrationRequest, who: Requester, now_ms: int) -> Decision:
        machine = self._machine
        if request.cluster_id != machine.config.cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Expected cluster ID {machine.config.cluster_id}, but got cluster ID {request.cluster_id}",
            )
        existing = self._view.broker(request.broker_id)
        has_session = existing is not None and machine.heartbeats.has_session(
            BrokerEpoch(existing.broker_id, existing.epoch), now_ms
        )
        return register_broker(
            self._view,
            request,
            who,
            new_epoch=self._end_offset,
            has_session=has_session,
            is_alone=machine.config.is_alone,
            finalised={**self._view.image.features, KRAFT_VERSION: machine.kraft_version},
        )

    def _heartbeat(self, request: BrokerHeartbeatRequest, who: Requester, now_ms: int) -> Decision:
        heartbeats, view, is_alone = self._machine.heartbeats, self._view, self._machine.config.is_alone
        broker = view.check_epoch(request.broker_id, request.broker_epoch)
        identity = BrokerEpoch(broker.broker_id, broker.epoch)
        heartbeats.touch(identity, now_ms)
        heartbeats.note(identity, request)
        registered_offset = self._machine.registered_offset(broker.broker_id)
        is_caught_up = registered_offset is not None and request.current_metadata_offset >= registered_offset
        state = heartbeats.next_state(
            broker,
            request,
            is_caught_up=is_caught_up,
            leads=lambda: not is_alone and broker_changes.leads_something(view, broker.broker_id),
            active=[
                BrokerEpoch(other.broker_id, other.epoch)
                for other in view.image.brokers.values()
                if view.is_active(other.broker_id)
            ],
        )
        records: list[Message] = []
        if state is BrokerState.UNFENCED and broker.is_fenced:
            records = broker_changes.unfenced(view, broker)
        elif state is BrokerState.STOPPED and is_alone:
            records = broker_changes.stopped_alone(broker)
        elif state is BrokerState.STOPPED or (state is BrokerState.FENCED and not broker.is_fenced):
            records = broker_changes.fenced(view, broker)
        elif state is BrokerState.SHUTTING_DOWN and heartbeats.shutdown_offset(broker) is None:
            records = broker_changes.shutting_down(view, broker)
            heartbeats.note_shutdown(identity, self._end_offset + len(records) - 1)
        records += broker_changes.directories_failed(view, broker, request.offline_log_dirs)
        records += broker_changes.directories_cordoned(broker, request.cordoned_log_dirs)
        is_fenced = state in (BrokerState.FENCED, BrokerState.STOPPED)
        if is_fenced:
            heartbeats.forget_shutdown(identity)
        answer = BrokerHeartbeatResponse(
            is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=state is BrokerState.STOPPED
        )
        return Decision(records, answer)

    def _unregister(self, request: UnregisterBrokerRequest, who: Requester, now_ms: int) -> Decision:
        if self._machine.config.is_alone and self._view.broker(request.broker_id) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The only broker of a node that is alone stays registered.")
        return unregister_broker(self._view, request)


def _unfenced(view: View, wanted: BrokerEpoch) -> BrokerRegistration | None:
    broker = view.broker(wanted.broker_id)
    return broker if broker is not None and broker.epoch == wanted.epoch and not broker.is_fenced else None


_ALWAYS_SMALL: Final = (PartitionRecord, PartitionChangeRecord, TopicRecord, RemoveTopicRecord)
"""They come in thousands, and have nothing in them that is as long as a client likes."""


_OF_CLIENTS: Final = (ClientQuotaRecord, AccessControlEntryRecord, UserScramCredentialRecord)


def _is_needed(record: Message) -> bool:
    """Whether there is always room for it: for settings of brokers and of internal topics, which are few, and for what
    has no settings."""
    if type(record) is ConfigRecord:
        return record.resource_type == ResourceType.BROKER or record.resource_name in INTERNAL_TOPICS
    return type(record) not in _OF_CLIENTS


def _check_size(record: Message, level: int) -> None:
    size_bytes = len(encode_metadata_record(*versioned(record, level)))
    if size_bytes > RECORD_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The metadata would have a record of {size_bytes} bytes, which is more than {RECORD_BYTES_MAX}.",
        )


_OWN: Final[dict[int | None, Callable[[Round, Any, Requester, int], Decision]]] = {
    ApiKey.BROKER_REGISTRATION: Round._register,
    ApiKey.BROKER_HEARTBEAT: Round._heartbeat,
    ApiKey.CONTROLLER_REGISTRATION: lambda _, request, who, now_ms: register_controller(request),
    ApiKey.UNREGISTER_BROKER: Round._unregister,
}
