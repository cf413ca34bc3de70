"""What becomes of partitions when a broker comes, goes, or shuts down.

Fencing changes partitions first and then the broker; unfencing the other way round. So whoever follows the log never
sees a fenced broker lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import UUID

from oncelog.controller.registrations import BrokerRegistration
from oncelog.controller.view import Place, View
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from oncelog.protocol.schema import Message

FENCE, UNFENCE = 1, -1


def fenced(view: View, broker: BrokerRegistration) -> list[Message]:
    return [*without(view, broker.broker_id, _in_isr(view, broker.broker_id)), _change(broker, fenced=FENCE)]


def stopped_alone(broker: BrokerRegistration) -> list[Message]:
    """The only broker stops in order: nobody else can lead, and it goes on with what it leads."""
    return [_change(broker, fenced=FENCE)]


def unfenced(view: View, broker: BrokerRegistration) -> list[Message]:
    def is_alive(broker_id: int) -> bool:
        return broker_id == broker.broker_id or view.is_active(broker_id)

    leaderless = (place for place in view.places() if place.partition.leader < 0)
    return [_change(broker, fenced=UNFENCE), *_changed(view, leaderless, is_alive)]


def shutting_down(view: View, broker: BrokerRegistration) -> list[Message]:
    """Begin of a controlled shutdown."""
    begin = [] if broker.in_controlled_shutdown else [_change(broker, in_controlled_shutdown=1)]
    return [*begin, *without(view, broker.broker_id, _in_isr(view, broker.broker_id))]


def unregistered(view: View, broker: BrokerRegistration) -> list[Message]:
    gone = broker.broker_id
    return [
        *without(view, gone, _in_isr(view, gone)),
        *without(view, gone, _in_elr(view, gone)),
        UnregisterBrokerRecord(broker_id=gone, broker_epoch=broker.epoch),
    ]


def restarted(view: View, broker_id: int, *, was_clean: bool) -> list[PartitionChangeRecord]:
    """Before its new registration. With ELR, one that may have lost records leaves the ELR as well as the ISR."""
    if was_clean or not view.has_elr:
        return list(without(view, broker_id, _in_isr(view, broker_id)))
    places = [*_in_isr(view, broker_id), *_in_elr(view, broker_id)]
    return list(without(view, broker_id, places, unclean=(broker_id,)))


def restarted_alone(view: View, broker_id: int) -> list[Message]:
    """`restarted` of the only broker, after a crash: it leads what it has led, in a new epoch.

    That is one change of each partition, and not two as if nobody led it meanwhile. Clients are not let in before it is
    unfenced, and after a stop in order it leads while it is fenced as well.
    """
    return [
        PartitionChangeRecord(partition_id=place.partition_index, topic_id=place.topic.topic_id, leader=broker_id)
        for place in view.places()
        if place.partition.leader == broker_id
    ]


def directories_failed(view: View, broker: BrokerRegistration, failed: Sequence[UUID]) -> list[Message]:
    """Replicas that lay in directories which are broken now are out of sync."""
    gone = [directory for directory in broker.directories if directory in failed]
    if not gone:
        return []
    places = [place for place in view.places() if _directory(place, broker.broker_id) in gone]
    left = [directory for directory in broker.directories if directory not in gone]
    changes: list[Message] = list(without(view, broker.broker_id, places))
    if left:
        # No directories in a record mean that they are the same as before: it would be written with every heartbeat.
        left_ones = BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=left)
        changes.append(left_ones)
    return changes


def directories_cordoned(broker: BrokerRegistration, cordoned: Sequence[UUID] | None) -> list[Message]:
    """Directories that take no new replicas, if the broker names them and that is news."""
    known = broker.cordoned_directories
    if cordoned is None or (known is not None and set(known) == set(cordoned)):
        return []
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
    )
    return [change]


def _directory(place: Place, broker_id: int) -> UUID | None:
    partition = place.partition
    return next(
        (each for replica, each in zip(partition.replicas, partition.directories, strict=True) if replica == broker_id),
        None,
    )


def leads_something(view: View, broker_id: int) -> bool:
    return any(place.partition.leader == broker_id for place in view.places())


def _in_isr(view: View, broker_id: int) -> Iterator[Place]:
    return (place for place in view.places() if broker_id in place.partition.isr)


def _in_elr(view: View, broker_id: int) -> Iterator[Place]:
    return (place for place in view.places() if broker_id in place.partition.elr)


def _change(broker: BrokerRegistration, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> Message:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def without(
    view: View, broker_id: int, places: Iterable[Place], *, unclean: Sequence[int] = ()
) -> Iterator[PartitionChangeRecord]:
    """A broker leaves the ISR of partitions, and others lead them."""

    def is_alive(other: int) -> bool:
        return other != broker_id and view.is_active(other)

    return _changed(view, places, is_alive, without=broker_id, unclean=unclean)


def _changed(
    view: View,
    places: Iterable[Place],
    is_alive: Callable[[int], bool],
    *,
    without: int | None = None,
    unclean: Sequence[int] = (),
) -> Iterator[PartitionChangeRecord]:
    for place in places:
        change = view.change_by_settings(place, is_alive)
        change.isr = [member for member in place.partition.isr if member != without]
        change.unclean_shutdowns = unclean
        record = change.record(place.topic.topic_id, place.partition_index)
        if record is not None:
            yield record
