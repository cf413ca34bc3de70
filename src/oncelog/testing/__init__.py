"""A broker, or a cluster of them, for other people's tests.

    import oncelog.testing

    def test_orders():
        with oncelog.testing.broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

A broker runs in a process of its own on a free port of 127.0.0.1, with a temporary folder. Both are gone afterwards,
even if the test process is killed. Under pytest there are the fixtures `oncelog_broker`, one for the whole run, and
`fresh_oncelog_broker`, empty at the start of every test. `oncelog.testing.cluster()` has several brokers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from oncelog.testing.broker import BrokerProcess, broker

if TYPE_CHECKING:
    from oncelog.testing.cluster_waiting import AsyncClusterWaits, ClusterWaits
    from oncelog.testing.local_cluster import Cluster, cluster
    from oncelog.testing.waiting import AsyncWaits, TimedOut, Waits, unique_name

__all__ = [
    "AsyncClusterWaits",
    "AsyncWaits",
    "BrokerProcess",
    "Cluster",
    "ClusterWaits",
    "TimedOut",
    "Waits",
    "broker",
    "cluster",
    "unique_name",
]
_ELSEWHERE: Final = {
    "AsyncClusterWaits": "cluster_waiting",
    "AsyncWaits": "waiting",
    "Cluster": "local_cluster",
    "ClusterWaits": "cluster_waiting",
    "TimedOut": "waiting",
    "Waits": "waiting",
    "cluster": "local_cluster",
    "unique_name": "waiting",
}
"""The modules of names that are imported when they are used: whoever wants a broker does not wait for the rest."""


def __getattr__(name: str) -> object:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    globals()[name] = value
    return value
