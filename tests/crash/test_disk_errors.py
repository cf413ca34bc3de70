"""Errors of the disk where a whole broker meets them: its metadata log, its cleaner, and a disk that really is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.log import Origin
from tests.unit.server.harness import BrokerInProcess
from tests.unit.storage.cleaner_harness import keyed, read_committed
from tests.unit.storage.small_disk import mounted

pytestmark = pytest.mark.crash

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "1000",
}
CODES = [errno.ENOSPC, errno.EIO]


@contextmanager
def failing(point: str, code: int, hit: int = 1) -> Iterator[list[str]]:
    """The failpoint raises once. The list has its name as soon as it did."""
    struck: list[str] = []

    def fail() -> None:
        struck.append(point)
        raise OSError(code, "injected", point)

    failpoints.arm(point, failpoints.on_nth_hit(hit, fail))
    try:
        yield struck
    finally:
        failpoints.disarm_all()


def with_compacted_topic(folder: Path) -> BrokerInProcess:
    node = BrokerInProcess(folder, SETTINGS)
    node.create("t", cleanup_policy="compact", internal_segment_bytes="600", min_cleanable_dirty_ratio="0.01")
    write(node)
    return node


def records(node: BrokerInProcess) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value."""
    return list(read_committed(node.broker.partitions.get("t", 0).log).values())


@pytest.mark.parametrize("code", CODES)
def test_a_change_of_topics_that_cannot_be_written_is_refused(tmp_path: Path, code: int) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("before")
    with failing("log.append.after_write", code) as struck:
        with pytest.raises(KafkaError) as refused:
            node.create("refused")
        assert struck
    # It may be in the log: a start that comes before the next change would find it there.
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert "refused" not in node.broker.metadata.topics
    assert node.produce("before", [b"1"]).error_code == 0
    assert node.broker.membership is not None
    if code == errno.EIO:
        # What the disk has of the change is not known: the broker ends, and its next start finds out.
        assert "start it again" in (node.broker.membership.ended.value or "")
        node.restart(clean=False)
        assert "before" in node.broker.metadata.topics
        node.create("after")
    else:
        assert not node.broker.membership.ended.done
        node.create("after")
        node.restart(clean=False)
        assert set(node.broker.metadata.topics) == {"before", "after"}
        node.create("refused")
    assert node.produce("after", [b"2"]).error_code == 0
    node.broker.stop(clean=False)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "point", ["cleaner.before_fsync", "checkpoint.cleaner-offset-checkpoint", "checkpoint.oncelog-checkpoint-sums"]
)
def test_a_cleaning_that_meets_an_error_is_tried_again(tmp_path: Path, point: str, code: int) -> None:
    node = with_compacted_topic(tmp_path / "data")
    before = dict(records(node))
    with failing(point, code) as struck:
        node.clock.advance_ms(1_500)
        assert struck
    assert not list((node.folder / "t-0").glob("*.cleaned"))
    write(node, "later")
    for _ in range(5):
        node.clock.advance_ms(1_000)
    assert node.broker.cleaner.passes > 0
    assert (node.folder / "cleaner-offset-checkpoint").exists()
    after = dict(records(node))
    assert after == dict.fromkeys(before, b"later")
    node.restart(clean=False)
    assert dict(records(node)) == after
    node.broker.stop(clean=False)


@pytest.mark.parametrize("code", CODES)
def test_a_swap_that_fails_half_way_loses_nothing(tmp_path: Path, code: int) -> None:
    """After a full disk the log recovers itself with the next append; after a broken one, with the next start."""
    for hit in range(1, 12):
        node = with_compacted_topic(tmp_path / f"data-{hit}")
        before = dict(records(node))
        with failing("cleaner.swap.before_rename", code, hit) as struck:
            node.clock.advance_ms(1_500)
        if not struck:
            node.broker.stop(clean=False)
            break
        if code == errno.EIO:
            with pytest.raises(KafkaError, match="restart the broker"):
                write(node)
            node.restart(clean=False)
        write(node, "later")
        found = dict(records(node))
        assert found == dict.fromkeys(before, b"later")
        node.broker.stop(clean=False)
    assert hit > 4


def write(node: BrokerInProcess, value: str = "value") -> None:
    partition = node.broker.partitions.get("t", 0)
    now_ms = node.clock.now_ms()
    for number in range(20):
        data = keyed((f"k{number % 3}", value), timestamp=now_ms)
        partition.append_as_leader(data, now_ms=now_ms, origin=Origin.COORDINATOR)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "1m") as folder:
        yield folder


def test_a_broker_on_a_disk_that_really_is_full(small_disk: Path) -> None:
    node = BrokerInProcess(small_disk / "data", SETTINGS)
    node.create("t", internal_segment_bytes="20000")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    acknowledged: list[bytes] = []
    refusals = 0
    number = 0
    while refusals < 20:
        value = b"%06d" % number + bytes(5_000)
        number += 1
        code = node.produce("t", [value]).error_code
        if code == 0:
            acknowledged.append(value)
        else:
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            refusals += 1
        assert len(acknowledged) < 500
    assert len(acknowledged) > 20
    assert set(acknowledged) <= {value for _, value in records(node)}, "reading goes on"
    with pytest.raises(KafkaError) as refused:
        for topic in range(200):
            node.create(f"another-{topic}")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    ballast.unlink()
    for number in range(10):
        value = b"later-%d" % number
        assert node.produce("t", [value]).error_code == 0
        acknowledged.append(value)
    node.create("later")
    node.restart(clean=False)
    assert [value for _, value in records(node) if value in set(acknowledged)] == acknowledged
    assert "later" in node.broker.metadata.topics
    node.broker.stop()
