"""Replicas as an administrator names them: which are possible."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.placement import UsableBroker
from oncelog.controller.registrations import BrokerRegistration
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId


def check_assignment(view: View, replicas: Sequence[int], replication_factor: int | None = None) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT. The replication factor is that of other partitions of the topic."""
    if not replicas:
        raise _impossible("The manual partition assignment includes an empty replica list.")
    ordered = sorted(replicas)
    for position, broker_id in enumerate(ordered):
        broker = view.broker(broker_id)
        if broker is None:
            raise _impossible(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if not has_open_directory(broker):
            raise _impossible(
                f"The manual partition assignment includes broker {broker_id}, but all its log directories are "
                "cordoned."
            )
        if position and ordered[position - 1] == broker_id:
            raise _impossible(f"The manual partition assignment includes the broker {broker_id} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _impossible(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def has_open_directory(broker: BrokerRegistration) -> bool:
    """Whether new replicas may go to the broker."""
    cordoned = broker.cordoned_directories
    return cordoned is None or not broker.directories or bool(set(broker.directories) - set(cordoned))


def usable_brokers(view: View) -> list[UsableBroker]:
    """Those that new replicas may go to."""
    return [
        UsableBroker(broker.broker_id, broker.rack, broker.is_fenced)
        for broker in view.image.brokers.values()
        if (broker.is_fenced or not broker.in_controlled_shutdown) and has_open_directory(broker)
    ]


def new_partition(view: View, replicas: Sequence[int]) -> PartitionImage | None:
    """None if none of its replicas is active: the first one that is leads."""
    isr = tuple(NodeId(replica) for replica in replicas if view.is_active(replica))
    if not isr:
        return None
    return PartitionImage(
        replicas=tuple(map(NodeId, replicas)),
        directories=tuple(map(view.directory_of, replicas)),
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        elr=(),
        last_known_elr=(),
        leader=isr[0],
        is_recovering=False,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
    )


def _impossible(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
