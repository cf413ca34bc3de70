"""The life of a broker: what it asks of its controller, and what the answers make of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.lifecycle import (
    BACKOFF_MS,
    CATCHING_UP_MS,
    STOPPING_MAX_MS,
    STOPPING_MS,
    TRANSITIONS,
    Event,
    Identity,
    Lifecycle,
    State,
    Timing,
)
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api import decode_response
from oncelog.protocol.compiler import encode_bytes
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

CAPTURED = json.loads((Path(__file__).parents[2] / "data" / "quorum" / "answers.json").read_text())
IDENTITY = Identity(
    broker_id=1,
    cluster_id="c",
    incarnation_id=uuid.UUID(int=1),
    listeners=[Listener(name="PLAINTEXT", host="h", port=9092)],
    features=[
        Feature(name="metadata.version", min_supported_version=30, max_supported_version=30),
        Feature(name="transaction.version", max_supported_version=2),
    ],
    rack="r",
    directory_id=uuid.UUID(int=2),
    previous_epoch=-1,
)


def captured(name: str) -> Any:
    found = CAPTURED[name]
    return decode_response(found["key"], found["version"], bytes.fromhex(found["answer"]))


class Played:
    """A broker, the time, and a controller that gives one answer after the other."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.life = Lifecycle(IDENTITY, Timing(), self.now_ms)

    def send(self) -> tuple[int, Any]:
        found = self.life.poll(self.now_ms, 29)
        assert found is not None, self.life.wake_ms
        return found

    def registered(self, error: int = 0, epoch: int = 29, finalised: dict[str, int] | None = None) -> None:
        number, request = self.send()
        assert isinstance(request, BrokerRegistrationRequest)
        response = BrokerRegistrationResponse(error_code=error, broker_epoch=-1 if error else epoch)
        self.life.on_registration(number, response, self.now_ms, finalised or {})

    def beat(self, **fields: Any) -> BrokerHeartbeatRequest:
        number, request = self.send()
        assert isinstance(request, BrokerHeartbeatRequest)
        self.life.on_heartbeat(number, BrokerHeartbeatResponse(**fields), self.now_ms)
        return request

    def wait(self) -> int:
        """For how long nothing is to be sent."""
        wake_ms = self.life.wake_ms
        waited, self.now_ms = (0, self.now_ms) if wake_ms is None else (wake_ms - self.now_ms, wake_ms)
        return waited

    def serve(self) -> None:
        self.registered()
        self.beat(is_caught_up=True)
        self.life.ready()
        self.beat(is_caught_up=True, is_fenced=False)


def test_from_registration_to_serving() -> None:
    broker = Played()
    broker.registered()
    assert (broker.life.state, broker.life.epoch, broker.wait()) == (State.CATCHING_UP, 29, 0)
    first = broker.beat()
    # As a Java broker sends it.
    assert encode_bytes(first, 2).hex() == "00000001000000000000001d000000000000001d010000"
    assert broker.wait() == CATCHING_UP_MS
    broker.beat(is_caught_up=True)
    assert (broker.life.state, broker.wait()) == (State.RECOVERING, 2000)
    assert broker.beat(is_caught_up=True).want_fence
    broker.life.ready()
    assert (broker.life.state, broker.wait()) == (State.UNFENCING, 0)
    asked = broker.beat(is_caught_up=True, is_fenced=False)
    assert (asked.want_fence, asked.want_shut_down) == (False, False)
    assert (broker.life.state, broker.life.is_fenced, broker.wait()) == (State.SERVING, False, 2000)


def test_with_the_answers_of_a_controller_of_kafka() -> None:
    broker = Played()
    number, _ = broker.send()
    broker.life.on_registration(number, captured("registration"), 0, {})
    assert broker.life.epoch == 20
    number, _ = broker.send()
    broker.life.on_heartbeat(number, captured("fenced heartbeat"), 0)
    assert broker.life.state is State.RECOVERING
    broker.life.ready()
    number, _ = broker.send()
    broker.life.on_heartbeat(number, captured("unfenced heartbeat"), 0)
    assert (broker.life.state, broker.life.is_fenced) == (State.SERVING, False)


def test_what_a_broker_registers_with() -> None:
    _, request = Played().send()
    assert request == BrokerRegistrationRequest(
        broker_id=1,
        cluster_id="c",
        incarnation_id=uuid.UUID(int=1),
        listeners=list(IDENTITY.listeners),
        features=list(IDENTITY.features),
        rack="r",
        log_dirs=[uuid.UUID(int=2)],
        previous_broker_epoch=-1,
    )


def test_a_broker_may_be_ready_before_it_has_caught_up() -> None:
    broker = Played()
    broker.registered()
    broker.life.ready()
    assert broker.beat().want_fence
    broker.wait()
    broker.beat(is_caught_up=True)
    assert (broker.life.state, broker.wait()) == (State.UNFENCING, CATCHING_UP_MS)
    broker.beat(is_caught_up=True)
    assert broker.life.state is State.UNFENCING, "the controller has not unfenced it yet"


def test_a_broker_that_was_fenced_for_its_silence_asks_to_be_unfenced() -> None:
    broker = Played()
    broker.serve()
    broker.wait()
    asked = broker.beat(is_caught_up=True, is_fenced=True)
    assert not asked.want_fence
    assert (broker.life.state, broker.life.is_fenced) == (State.SERVING, True)
    broker.wait()
    broker.beat(is_caught_up=True, is_fenced=False)
    assert not broker.life.is_fenced


def test_a_controlled_shutdown_waits_for_its_leave() -> None:
    broker = Played()
    broker.serve()
    broker.life.stop(broker.now_ms)
    asked = broker.beat(is_caught_up=True, is_fenced=False)
    assert (asked.want_fence, asked.want_shut_down) == (False, True)
    assert (broker.life.state, broker.wait()) == (State.STOPPING, STOPPING_MS)
    broker.beat(is_caught_up=True, is_fenced=True, should_shut_down=True)
    assert broker.life.state is State.STOPPED
    assert broker.life.poll(broker.now_ms + 60_000, 29) is None


def test_without_a_controller_a_shutdown_does_not_wait_for_ever() -> None:
    broker = Played()
    broker.serve()
    broker.life.stop(broker.now_ms)
    broker.now_ms += STOPPING_MAX_MS - 1
    broker.send()
    broker.now_ms += 1
    assert broker.life.poll(broker.now_ms, 29) is None
    assert broker.life.state is State.STOPPED


def test_a_broker_that_is_not_registered_stops_at_once() -> None:
    broker = Played()
    broker.life.stop(broker.now_ms)
    assert broker.life.state is State.STOPPED
    assert broker.life.poll(broker.now_ms, 29) is None


@pytest.mark.parametrize(
    ("code", "finalised", "reason"),
    [
        (
            ErrorCode.UNSUPPORTED_VERSION,
            {"metadata.version": 30, "transaction.version": 2, "share.version": 1, "group.version": 1},
            "share.version is at level 1, supported are 0 to 0; group.version is at level 1, supported are 0 to 0. Set",
        ),
        (ErrorCode.UNSUPPORTED_VERSION, {"metadata.version": 29}, "metadata.version is at level 29, supported are 30"),
        (ErrorCode.UNSUPPORTED_VERSION, {}, "a feature is at a level that it does not support"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, {}, "not of cluster c, to which this data folder belongs"),
        (ErrorCode.INVALID_REGISTRATION, {}, "copied from another broker: start it with a folder of its own"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, {}, "ClusterAction on the cluster, or name it in super.users"),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, {}, "broker 1: BROKER_ID_NOT_REGISTERED; its log says why"),
    ],
)
def test_a_refused_registration_says_what_to_do(code: int, finalised: dict[str, int], reason: str) -> None:
    broker = Played()
    broker.registered(code, finalised=finalised)
    assert broker.life.state is State.REFUSED
    assert broker.life.refusal is not None and reason in broker.life.refusal
    assert broker.life.poll(broker.now_ms + 10_000, 29) is None


def test_an_id_that_is_taken_is_tried_again_until_it_is_too_late() -> None:
    broker = Played()
    broker.registered(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert (broker.life.state, broker.wait()) == (State.UNREGISTERED, 2000)
    broker.registered()
    assert broker.life.state is State.CATCHING_UP

    late = Played()
    late.registered(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    late.now_ms += 60_000
    assert late.life.poll(late.now_ms, 29) is None
    assert late.life.refusal is not None and "broker id 1 is taken by another process" in late.life.refusal


def test_a_registration_without_any_answer_is_given_up() -> None:
    broker = Played()
    number, _ = broker.send()
    broker.life.on_failure(number, broker.now_ms)
    assert broker.life.refusal is None
    broker.now_ms += 60_000
    assert broker.life.poll(broker.now_ms, 29) is None
    assert broker.life.refusal is not None and "no active controller has answered for 60000 ms" in broker.life.refusal


def test_a_controller_that_is_not_active_is_asked_again() -> None:
    broker = Played()
    broker.registered(ErrorCode.NOT_CONTROLLER)
    assert broker.wait() == BACKOFF_MS
    broker.registered()
    broker.beat(error_code=ErrorCode.NOT_CONTROLLER)
    assert (broker.life.state, broker.wait()) == (State.CATCHING_UP, BACKOFF_MS)
    number, _ = broker.send()
    broker.life.on_failure(number, broker.now_ms)
    assert broker.wait() == BACKOFF_MS


def test_silence_is_not_waited_for_longer_than_half_a_session() -> None:
    broker = Played()
    broker.serve()
    broker.wait()
    first, _ = broker.send()
    assert broker.wait() == 4500
    broker.send()
    broker.life.on_heartbeat(first, BrokerHeartbeatResponse(should_shut_down=True, is_fenced=True), broker.now_ms)
    assert not broker.life.is_fenced, "an answer that came too late says nothing"


def test_an_epoch_that_the_controller_does_not_know_ends_the_broker() -> None:
    broker = Played()
    broker.serve()
    broker.wait()
    broker.beat(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert broker.life.state is State.REFUSED
    assert broker.life.refusal is not None and "broker 1 in epoch 29" in broker.life.refusal

    stopping = Played()
    stopping.serve()
    stopping.life.stop(stopping.now_ms)
    stopping.beat(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert (stopping.life.state, stopping.life.refusal) == (State.STOPPED, None)


def test_every_state_can_be_left_but_the_last_ones() -> None:
    left = {state for state, _ in TRANSITIONS}
    assert left == set(State) - {State.STOPPED, State.REFUSED}
    assert {event for _, event in TRANSITIONS} == set(Event)
