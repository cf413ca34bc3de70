"""A broker, or a cluster of them, for other people's tests.

    import oncelog.testing

    def test_orders():
        with oncelog.testing.broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

A broker runs in a process of its own on a free port of 127.0.0.1, with a temporary folder. Both are gone afterwards,
even if the test process is killed. Under pytest there are the fixtures `oncelog_broker`, one for the whole run, and
`fresh_oncelog_broker`, empty at the start of every test. `oncelog.testing.cluster()` has several brokers.
"""

from oncelog.testing.broker import BrokerProcess, broker
from oncelog.testing.cluster import Cluster, cluster
from oncelog.testing.cluster_waiting import AsyncClusterWaits, ClusterWaits
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
