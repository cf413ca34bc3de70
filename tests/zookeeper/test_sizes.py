"""Nodes near what ZooKeeper takes (jute.maxbuffer, 1 MiB with all that is around a node), and beyond it."""

from __future__ import annotations

from kazoo.client import KazooClient

from oncelog.cluster.committed_log import BATCH_BYTES_MAX
from oncelog.cluster.zookeeper import Create, Lost
from oncelog.cluster.zookeeper_nodes import LOG, SNAPSHOTS
from oncelog.cluster.zookeeper_snapshots import PART_BYTES_MAX
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.server.zookeeper_client import ZooKeeperClient
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from tests.unit.cluster.metadata_log import setting, snapshot_of
from tests.waiting import wait_until
from tests.zookeeper.nodes import LogNode, LoopThread, log_nodes
from tests.zookeeper.test_one_server import States, config_of, wait_active

NEAR = 0.99
VALUE_BYTES = 10_000
TOO_MUCH = 1 << 20


def test_a_batch_and_a_part_of_a_snapshot_of_nearly_the_limit_are_stored(
    zookeeper: ZooKeeperEnsemble, chroot: str
) -> None:
    config = config_of(zookeeper, chroot)
    with log_nodes(config, config, config) as (node, follower, late):
        node.start()
        follower.start(campaigns=False)
        wait_active(node)
        # One batch, nearly full; then an append of several batches, which share no multi; all distinct settings.
        count = BATCH_BYTES_MAX // (VALUE_BYTES + 100)
        assert isinstance(_append(node, 0, count), int)
        assert isinstance(_append(node, count, 3 * count), int)
        wait_until(lambda: follower.thread.call(lambda: follower.follower.image == node.follower.image))
        assert _snapshot(node) is None
        assert isinstance(node.append("last"), int)
        late.start(campaigns=False)
        wait_until(lambda: late.thread.call(lambda: late.follower.image == node.follower.image))
        assert len(late.follower.snapshots) == 1
    sizes = _sizes(zookeeper, chroot)
    assert NEAR * BATCH_BYTES_MAX < max(follower_sizes(follower)) <= BATCH_BYTES_MAX
    assert max(sizes) == PART_BYTES_MAX


def follower_sizes(node: LogNode) -> list[int]:
    return [len(batch) for batch in node.follower.batches]


def _append(node: LogNode, first: int, count: int) -> int | KafkaError:
    records = [setting("v" * VALUE_BYTES, topic=f"topic-{number}") for number in range(first, first + count)]
    return node.thread.wait_for(lambda: node.log.append(records))


def _snapshot(node: LogNode) -> KafkaError | None:
    def write() -> Promise[KafkaError | None]:
        return node.log.write_snapshot(snapshot_of(node.log.committed, node.follower.image))

    return node.thread.wait_for(write)


def _sizes(zookeeper: ZooKeeperEnsemble, chroot: str) -> list[int]:
    """Of the parts of the snapshot."""
    operator = KazooClient(zookeeper.connect)
    operator.start(60)
    [snapshot] = operator.get_children(chroot + SNAPSHOTS)
    path = f"{chroot}{SNAPSHOTS}/{snapshot}"
    sizes = [len(operator.get(f"{path}/{part}")[0]) for part in operator.get_children(path)]
    # The log before it is deleted but for its last node and what came since.
    assert len(operator.get_children(chroot + LOG)) == 2
    operator.stop()
    operator.close()
    return sizes


def test_more_than_the_limit_is_a_lost_connection(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    """That is why batches and parts are smaller: nobody could tell it from an answer that was lost."""
    thread, states = LoopThread(), States()
    client = ZooKeeperClient(config_of(zookeeper, chroot), thread.loop.call_soon_threadsafe)
    try:
        thread.call(lambda: client.start(states))
        wait_until(lambda: states.seen == ["connected"])
        assert isinstance(thread.wait_for(lambda: client.multi([Create("/a", b"x" * TOO_MUCH)])), Lost)
        wait_until(lambda: states.seen[-1] == "connected" and len(states.seen) > 1)
        assert thread.wait_for(lambda: client.get("/a")) is None
        assert thread.wait_for(lambda: client.multi([Create("/a", b"x" * PART_BYTES_MAX)])) is None
    finally:
        thread.call(client.close)
        thread.stop()
