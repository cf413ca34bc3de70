"""A broker for other people's tests.

    import oncelog.testing

    def test_orders():
        with oncelog.testing.broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs in a process of its own on a free port of 127.0.0.1, with a temporary folder. Both are gone afterwards, even if
the test process is killed. Under pytest there are the fixtures `oncelog_broker`, one for the whole run, and
`fresh_oncelog_broker`, empty at the start of every test.
"""

from oncelog.testing.broker import BrokerProcess, broker
from oncelog.testing.waiting import TimedOut, Waits, unique_name

__all__ = ["BrokerProcess", "TimedOut", "Waits", "broker", "unique_name"]
