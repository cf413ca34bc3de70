"""BrokerRegistration (62), ControllerRegistration (70), UnregisterBroker (64)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.controller import broker_changes
from oncelog.controller.decision import Decision, Requester
from oncelog.controller.registrations import BrokerRegistration
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import METADATA_VERSION
from oncelog.core.ids import uuid_to_text
from oncelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
)
from oncelog.protocol.messages.cluster_metadata import RegisterBrokerRecord, RegisterControllerRecord
from oncelog.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from oncelog.protocol.schema import Message

RESERVED_DIRECTORIES_BELOW: Final = 100
"""Of the ids, as numbers."""
_TELLS_PREVIOUS_EPOCH: Final = 3
"""The first version that does."""


def register_broker(
    view: View,
    request: BrokerRegistrationRequest,
    who: Requester,
    *,
    new_epoch: int,
    has_session: bool,
    is_alone: bool = False,
    finalised: Mapping[str, int],
) -> Decision:
    """`new_epoch` is the offset of the first record. `has_session`: the broker that is registered sends heartbeats.

    Raises KafkaError. The registration is the last record, so that a new controller that finds only some of them can
    do it again.
    """
    existing = view.broker(request.broker_id)
    is_same = existing is not None and existing.incarnation_id == request.incarnation_id
    if existing is not None and has_session and not is_same:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
    _check_directories(view, request)
    _check_features(request.features, finalised)
    records: list[Message] = []
    epoch = existing.epoch if existing is not None and is_same else new_epoch
    if not is_same:
        tells = who.api_version >= _TELLS_PREVIOUS_EPOCH and existing is not None
        was_clean = tells and existing is not None and existing.epoch == request.previous_broker_epoch
        if not is_alone or (view.has_elr and not was_clean):
            records += broker_changes.restarted(view, request.broker_id, was_clean=was_clean)
        elif not was_clean:
            records += broker_changes.restarted_alone(view, request.broker_id)
    records.append(_registration(request, epoch, existing if is_same else None))
    return Decision(records, BrokerRegistrationResponse(broker_epoch=epoch))


def _registration(
    request: BrokerRegistrationRequest, epoch: int, amended: BrokerRegistration | None
) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=request.listeners,
        features=request.features,
        rack=request.rack,
        fenced=amended is None or amended.is_fenced,
        in_controlled_shutdown=amended is not None and amended.in_controlled_shutdown,
        log_dirs=request.log_dirs,
    )


def _check_directories(view: View, request: BrokerRegistrationRequest) -> None:
    given = request.log_dirs
    if not given:
        raise _invalid("No directories specified in request")
    if any(directory.int < RESERVED_DIRECTORIES_BELOW for directory in given):
        raise _invalid("Reserved directory ID in request")
    if len(set(given)) < len(given):
        raise _invalid("Duplicate directory ID in request")
    for other in view.image.brokers.values():
        for directory in other.directories:
            if directory in given and other.broker_id != request.broker_id:
                raise _invalid(
                    f"Broker {other.broker_id} is already registered with directory {uuid_to_text(directory)}"
                )


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGISTRATION, reason)


def _check_features(given: list[Feature], finalised: Mapping[str, int]) -> None:
    """A feature that is left out is supported at level 0 only."""
    ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in given}
    if METADATA_VERSION not in ranges:
        raise _invalid(f"Request features do not contain '{METADATA_VERSION}'")
    for name in {**ranges, **finalised}:
        (low, high), level = ranges.get(name, (0, 0)), finalised.get(name, 0)
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {low} and {high}, inclusive.",
            )


def register_controller(request: ControllerRegistrationRequest) -> Decision:
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=request.listeners,
        features=request.features,
    )
    return Decision([record], ControllerRegistrationResponse(error_message=None))


def unregister_broker(view: View, request: UnregisterBrokerRequest) -> Decision:
    broker = view.broker(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    return Decision(broker_changes.unregistered(view, broker), UnregisterBrokerResponse(error_message=None))
