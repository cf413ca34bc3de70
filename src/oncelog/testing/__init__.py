"""A broker for other people's tests.

    import oncelog.testing

    def test_orders():
        with oncelog.testing.broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs in a process of its own on a free port of 127.0.0.1, with a temporary folder. Both are gone afterwards, even if
the test process is killed. Under pytest the fixture `oncelog_broker` gives one broker for the whole run.
"""

from oncelog.testing.broker import BrokerProcess, broker

__all__ = ["BrokerProcess", "broker"]
