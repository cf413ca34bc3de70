"""A broker's place in a cluster: it follows the metadata log, is registered, sends heartbeats, and leaves in order.

`cluster.quorum_log` and `cluster.lifecycle` decide; this sends their requests and passes the answers back. Requests
that others have for the active controller go out here as well: its address is known to the observer only.

The metadata is applied once the broker has seen its own registration in it. A broker that comes back within its session
would otherwise take up the leaderships of the process before it, without knowing what was committed since.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.cluster.cluster_config import FEATURES, ClusterConfig
from oncelog.cluster.lifecycle import Identity, Lifecycle, State
from oncelog.cluster.quorum_log import FETCH_TIMEOUT_MS, NO_REPLICA, QuorumLog, Update
from oncelog.controller.delta import Delta
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import KRAFT_VERSION
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once, take_slice
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import BrokerRegistrationResponse, Listener
from oncelog.protocol.messages.fetch import FetchResponse
from oncelog.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.server.peers import Answer, Peers, Pump
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

_NO_CONTROLLER_MS: Final = 50
SLICE_MS: Final = 5
"""As controllers have it."""

M = TypeVar("M", bound=Message)


class Membership:
    def __init__(self, broker: Broker, peers: Peers, config: ClusterConfig, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._peers = peers
        directory_id = broker.log_dir.meta.directory_id
        invariant(directory_id is not None, "meta.properties has a directory id")
        self.quorum = QuorumLog(
            cluster_id=broker.cluster_id,
            replica_id=broker.node_id if broker.is_in_cluster else NO_REPLICA,
            directory_id=directory_id,  # type: ignore[arg-type]  # checked above
            bootstrap=config.controllers,
        )
        identity = Identity(
            broker_id=broker.node_id,
            cluster_id=broker.cluster_id,
            incarnation_id=broker.new_uuid(),
            listeners=listeners,
            features=FEATURES,
            rack=config.rack,
            directory_id=directory_id,  # type: ignore[arg-type]  # checked above
            previous_epoch=broker.previous_epoch,
        )
        self.lifecycle = Lifecycle(identity, config.timing, broker.steady_ms())
        self._session_timeout_ms = config.timing.session_timeout_ms
        self._life_timeout_ms = self._session_timeout_ms // 2
        self._quorum_pump = Pump(broker.scheduler, self._poll_quorum)
        self._life_pump = Pump(broker.scheduler, self._poll_life)
        self._errors = RepeatedErrors(log, logging.WARNING)
        self._waits = RepeatedErrors(log, logging.INFO)
        self._asked: dict[Promise[Answer], Address] = {}
        """What controllers have not answered yet."""
        self._applying: Steps[None] | None = None
        """An answer about the metadata log that is being applied. Nothing is asked meanwhile."""
        self.applied_offset = -1
        """Of the metadata that is applied, or before that, read."""
        self.loaded: Promise[None] = Promise()
        """The first image is applied."""
        self.serving: Promise[None] = Promise()
        self.ended: Promise[str | None] = Promise()
        """With the reason, or None for the end that was asked for."""
        self.given_up: str | None = None
        """Why the broker could not go on."""

    def start(self) -> None:
        self._quorum_pump.kick()
        self._life_pump.kick()

    def ready(self) -> None:
        """Clients are served: the controller may give this broker partitions to lead."""
        self.lifecycle.ready()
        self._life_pump.kick()

    @property
    def is_leaving(self) -> bool:
        return self.ended.done or self.lifecycle.state is State.STOPPING

    def give_up(self, reason: str) -> None:
        """`leave` of a broker that cannot go on, which ends with this reason."""
        self.given_up = reason
        self.leave()

    def leave(self) -> None:
        """Asks the controller to move leaderships away. The metadata log is followed until `ended`."""
        self.lifecycle.stop(self._broker.steady_ms())
        self._look_at_state()
        self._life_pump.kick()

    def stop(self) -> None:
        self._quorum_pump.stop()
        self._life_pump.stop()

    @property
    def finalised(self) -> Mapping[str, int]:
        """The levels of the cluster's features."""
        return {**self.quorum.image.features, KRAFT_VERSION: self.quorum.quorum.kraft_version}

    def ask_controller(
        self, purpose: str, request: Message, response_type: type[M], timeout_ms: int
    ) -> Promise[M | KafkaError]:
        """One attempt. An error means that there is no answer from the active controller."""

        def check(answer: Answer) -> M | KafkaError:
            if isinstance(answer, KafkaError):
                return answer
            invariant(isinstance(answer, response_type), "%s was answered by another kind", type(request).__name__)
            return answer  # type: ignore[return-value]  # narrowed by the invariant above

        return self._ask(purpose, request, timeout_ms).map(check)

    def _ask(self, purpose: str, request: Message, timeout_ms: int) -> Promise[Answer]:
        leader = self.quorum.leader
        if leader is None:
            return Promise.resolved(KafkaError(ErrorCode.NOT_CONTROLLER, "no active controller is known"))
        promise: Promise[Answer] = Promise()
        self._asked[promise] = leader.address

        def answered(answer: Answer) -> None:
            if self._asked.pop(promise, None) is not None:
                promise.resolve(answer)

        self._peers.call(purpose, leader.address, request, timeout_ms).then(answered)
        return promise

    def _give_up_former_controllers(self) -> None:
        """One that is paused or cut off answers late or never, and whoever waits for it can ask the next one now."""
        leader = self.quorum.leader
        if leader is None:
            return
        reason = f"controller {leader.node_id} is active now, and the one before has not answered"
        for promise in [promise for promise, address in self._asked.items() if address != leader.address]:
            if self._asked.pop(promise, None) is not None:
                promise.resolve(KafkaError(ErrorCode.NETWORK_EXCEPTION, reason))

    # -- the metadata log

    def _poll_quorum(self) -> int | None:
        if self._applying is not None:
            return None
        now_ms = self._broker.steady_ms()
        send = self.quorum.poll(now_ms)
        if send is not None:
            number, address = send.number, Address(*send.address)
            self._peers.call("quorum", address, send.request, FETCH_TIMEOUT_MS).then(
                lambda answer: self._on_quorum(number, address, answer)
            )
        wake_ms = self.quorum.wake_ms
        return 0 if wake_ms is None else wake_ms - now_ms

    def _on_quorum(self, number: int, address: Address, answer: Answer) -> None:
        is_over = self.ended.done or self._broker.stopped  # then it is this broker that closes connections
        if isinstance(answer, KafkaError) and not is_over:
            self._errors.report(address, "controller %s gives no answer: %s", address, answer)
        elif getattr(answer, "error_code", ErrorCode.NONE) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._errors.report(
                address, "controller %s refuses this broker: its user needs ClusterAction on the cluster", address
            )
        else:
            self._errors.clear(address)
        if self._applying is None:  # else it is a late answer, and the one to a later request is being applied
            self._applying = self._follow(number, answer)
            self._go_on()

    def _go_on(self) -> None:
        """What is decided for thousands of partitions takes long, and others have their turn in between."""
        steps = self._applying
        if steps is None or take_slice(steps, self._broker.scheduler, SLICE_MS, self._go_on):
            self._applying = None
            self._give_up_former_controllers()
            self._quorum_pump.kick()

    def finish_applying(self) -> None:
        """The broker stops: what has begun is not left half done."""
        if self._applying is not None and inspect.getgeneratorstate(self._applying) != inspect.GEN_RUNNING:
            at_once(self._applying)
            self._applying = None

    def _follow(self, number: int, answer: Answer) -> Steps[None]:
        now_ms = self._broker.steady_ms()
        update, controller = None, self._broker.own_controller
        if controller is not None and self.quorum.leader is not None and not self.loaded.done:
            # Until the first image is applied nobody asks what has changed. After a kill that is every partition.
            controller.hand_over(self.quorum)
        try:
            if isinstance(answer, FetchResponse):
                update = yield from self.quorum.on_fetch_in_steps(number, answer, now_ms)
            elif isinstance(answer, FetchSnapshotResponse):
                update = yield from self.quorum.on_snapshot_in_steps(number, answer, now_ms)
            else:
                self.quorum.on_failure(number, now_ms)
            if update is not None:
                yield from self._apply(update)
        except KafkaError as error:
            self.end(error.message)
        except (InvalidMetadata, MalformedRequest) as error:
            self.end(f"the metadata log of the controllers cannot be followed: {error}")
        except Exception as error:
            # One that knows half of a change must not go on.
            log.exception("the metadata up to offset %s could not be applied", getattr(update, "last_offset", "?"))
            self.end(f"a change of the metadata could not be applied: {error}")

    def _apply(self, update: Update) -> Steps[None]:
        if self.loaded.done:
            yield from self._broker.metadata_changes.apply(update.image, update.delta)
        else:
            if self.applied_offset < 0:
                self.lifecycle.hurry()
            self._life_pump.kick()
        self.applied_offset = update.last_offset
        if not self._broker.is_in_cluster and self.lifecycle.state is State.STOPPING:
            # Nobody else is there who would have to take over first.
            self.lifecycle.hurry()
            self._life_pump.kick()

    def _apply_first(self) -> None:
        image = self.quorum.image
        try:
            at_once(self._broker.metadata_changes.apply(image, Delta.between(EMPTY_IMAGE, image)))
        except Exception as error:
            log.exception("the metadata up to offset %d could not be applied", self.applied_offset)
            self.end(f"the metadata could not be applied: {error}")
            return
        if self._broker.is_in_cluster:
            self._broker.producer_ids.skip_those_of(self._broker.log_dir.logs.values())
        self.loaded.resolve(None)

    # -- registration and heartbeats

    def _poll_life(self) -> int | None:
        now_ms = self._broker.steady_ms()
        send = self.lifecycle.poll(now_ms, self.applied_offset)
        if send is not None:
            number = send.number
            self._ask_life(send.request).then(lambda answer: self._on_life(number, answer))
        self._look_at_state()
        if self.ended.done:
            return None
        wake_ms = self.lifecycle.wake_ms
        return _NO_CONTROLLER_MS if wake_ms is None else wake_ms - now_ms

    def _ask_life(self, request: Message) -> Promise[Answer]:
        if self.applied_offset < 0:
            return Promise.resolved(KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata is not read yet"))
        return self._ask("lifecycle", request, self._life_timeout_ms)

    def _on_life(self, number: int, answer: Answer) -> None:
        now_ms = self._broker.steady_ms()
        if isinstance(answer, BrokerRegistrationResponse):
            if answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self._waits.report(
                    "session",
                    "broker %d waits: the controller has a session of a broker with this id. If it is that of its last "
                    "process, it is over in at most %d ms",
                    self._broker.node_id,
                    self._session_timeout_ms,
                )
            self.lifecycle.on_registration(number, answer, now_ms, self.finalised)
        elif isinstance(answer, BrokerHeartbeatResponse):
            self.lifecycle.on_heartbeat(number, answer, now_ms)
        else:
            self.lifecycle.on_failure(number, now_ms)
        self._look_at_state()
        self._life_pump.kick()

    def _look_at_state(self) -> None:
        state = self.lifecycle.state
        if state is State.RECOVERING and not self.loaded.done:
            self._apply_first()
        if state is State.SERVING and not self.serving.done:
            log.info("broker %d is registered with epoch %d and unfenced", self._broker.node_id, self.lifecycle.epoch)
            self.serving.resolve(None)
        if state is State.REFUSED:
            self.end(self.lifecycle.refusal)
        elif state is State.STOPPED:
            self.end(self.given_up)

    def end(self, reason: str | None) -> None:
        if not self.ended.done:
            self.stop()
            self.ended.resolve(reason)
