"""Who kills the broker, at random or by a failpoint, and starts it again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic

from oncelog.testing import BrokerProcess
from tests.crash.load import PARTITIONS

SETTINGS: dict[str, object] = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
BUSY_SETTINGS: dict[str, object] = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
}
"""Everything that changes files happens all the time."""
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "200"}
MEDIUM = {"internal.segment.bytes": "20000"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
RETAINED = {**SMALL, "retention.bytes": "9000"}


def create(broker: BrokerProcess, topic: str, config: dict[str, str] = MEDIUM) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(60)


class Killer(threading.Thread):
    """Kills the broker at random moments and starts it again, until it has done so often enough."""

    def __init__(self, broker: BrokerProcess, kills: int, seed: int) -> None:
        super().__init__()
        self._broker = broker
        self._kills = kills
        self._random = random.Random(seed)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._kills):
                time.sleep(self._random.uniform(0.1, 0.6))
                self._broker.kill()
                self._broker.start()
        except BaseException as error:  # noqa: BLE001  it is raised again in the test
            self.error = error

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error


def work_while_killed(broker: BrokerProcess, work: Callable[[], None], *, kills: int, seed: int) -> None:
    """Do the work again and again, until the broker has been killed at random often enough and is back."""
    killer = Killer(broker, kills=kills, seed=seed)
    killer.start()
    while killer.is_alive():
        work()
    killer.finish()


def start_with_failpoint(broker: BrokerProcess, failpoint: str) -> bool:
    """Restart the broker with the failpoint armed. False if it was killed by it before it served: then it is back."""
    broker.stop()
    try:
        broker.start(extra_arguments=["--failpoint", failpoint])
    except RuntimeError as error:
        assert "exit code -9" in str(error), error
        broker.start()
        return False
    return True


def work_until_killed(broker: BrokerProcess, point: str, hit: int, work: Callable[[], None]) -> None:
    """Restart the broker with the failpoint armed, and do the work again and again until it has died and is back.

    Its own start comes to some failpoints too, with its metadata log. After a kill there, it is a later hit's turn.
    """
    while not start_with_failpoint(broker, failpoint := f"{point}@{hit}"):
        hit += 1
    reviver = threading.Thread(target=_revive, args=(broker,))
    reviver.start()
    deadline_s = time.monotonic() + 180
    while reviver.is_alive() and time.monotonic() < deadline_s:
        work()
        time.sleep(0.005)
    if reviver.is_alive():
        broker.kill()
        reviver.join()
        raise AssertionError(f"the broker never came to {failpoint}")
    assert broker.running, f"the broker did not start again after it was killed at {failpoint}"


def _revive(broker: BrokerProcess) -> None:
    assert broker.wait_for_exit(240) == -9
    broker.start()
