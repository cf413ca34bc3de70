"""The power is cut: what docs/operations.md promises is there, and each fsync that makes it so is missed if left out.

Each promise is checked on a disk that keeps nothing but what was fsynced. Then the same again with one fsync left out,
or with an answer that does not wait for it: the check must fail. An fsync that nobody misses is either superfluous or
untested. What an acknowledgement promises is checked on the disk as it was at the moment the answer left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core import failpoints
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.core.promise import Promise
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server import cleaning
from oncelog.server.flusher import Flusher
from oncelog.server.handlers import h00_produce
from oncelog.server.removals import Removals
from oncelog.storage import atomic_file, clean_shutdown, cleaner, deletions, flush_work, snapshot_files
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_dir import LogDirError
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.power_cut import DiskImage, StrictDisk
from tests.unit.server.test_lost_tails import Client
from tests.unit.storage.cleaner_harness import keyed, read_committed
from tests.unit.storage.log_harness import append_txn, end_txn

pytestmark = pytest.mark.crash

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "1000000",
}
SMALL = {"internal_segment_bytes": "600"}
MINUTE_MS = 60_000

Patch = Callable[[pytest.MonkeyPatch], None]
Promised = Callable[[Path, Patch], None]


class Machine:
    """A broker and its disk, and the same after the power was cut."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, leave_out: Patch, settings: dict[str, str]) -> None:
        self._root = root
        self._settings = {**SETTINGS, **{name.replace("_", "."): text for name, text in settings.items()}}
        self.disk = StrictDisk(root / "data", patch)
        leave_out(patch)
        self.node = BrokerInProcess(root / "data", self._settings)

    def produce(self, topic: str, *values: str, **batch: int) -> list[DiskImage]:
        """Acknowledged with acks=all, or this fails. Returns the disk as each of the answers has left it."""
        return [self._produce(topic, value.encode(), **batch) for value in values]

    def _produce(self, topic: str, value: bytes, **batch: int) -> DiskImage:
        data = build_batch([Record(0, 0, None, value)], timestamp_ms=self.node.clock.now_ms(), **batch)
        topic_data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])]
        images: list[DiskImage] = []
        answer = self.node.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topic_data), 9)
        answer.then(lambda _: images.append(self.disk.image()))
        for _ in range(4):
            self.node.clock.advance_ms(0)
        assert answer.value.responses[0].partition_responses[0].error_code == 0
        return images[0]

    def put(self, topic: str, key: str, value: str) -> None:
        partition = self.node.broker.partitions.get(topic, 0)
        now_ms = self.node.clock.now_ms()
        partition.append_as_leader(keyed((key, value), timestamp=now_ms), now_ms=now_ms, origin=Origin.COORDINATOR)

    def cut_power(self) -> BrokerInProcess:
        """The broker as it is when the machine is up again."""
        return self.started_on(self.disk.cut_power(self._root / "after"))

    def cut_power_after_renames(self) -> Path:
        """A file system may also write names down before anybody asks it to, and contents not."""
        target = self._root / "renamed"
        for path in sorted(self.node.folder.rglob("*")):
            copy = target / path.relative_to(self.node.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                copy.write_bytes(self.disk._contents.get(path.stat().st_ino, b""))
        return target

    def started_on(self, folder: Path) -> BrokerInProcess:
        return BrokerInProcess(folder, self._settings, boot_id="the next boot")

    def check_at_each_answer(self, topic: str, sent: Sequence[str], images: Sequence[DiskImage]) -> None:
        """All that was answered so far is there if the power goes when an answer leaves."""
        for number, image in enumerate(images):
            after = self.started_on(image.restore(self._root / f"answer-{number}"))
            try:
                assert values_in(after, topic)[: number + 1] == list(sent[: number + 1])
            finally:
                after.broker.stop(clean=False)


def values_in(node: BrokerInProcess, topic: str) -> list[str]:
    seen = read_committed(node.broker.partitions.get(topic, 0).log).values()
    return [(value or b"").decode() for _, value in seen]


@contextmanager
def machine(root: Path, leave_out: Patch, **settings: str) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        found = Machine(root, patch, leave_out, settings)
        try:
            yield found
        finally:
            found.node.broker.stop(clean=False)
            found.disk.close()


@contextmanager
def restarted(found: Machine) -> Iterator[BrokerInProcess]:
    node = found.cut_power()
    try:
        yield node
    finally:
        node.broker.stop(clean=False)


# What is promised


def acks_fsync(root: Path, leave_out: Patch) -> None:
    """Nothing acknowledged is lost, over rolls too."""
    with machine(root, leave_out, oncelog_acks_fsync="true") as one:
        one.node.create("t", **SMALL)
        sent = [f"value-{number:03}" for number in range(12)]
        one.check_at_each_answer("t", sent, one.produce("t", *sent))


def flush_messages(root: Path, leave_out: Patch) -> None:
    with machine(root, leave_out) as one:
        one.node.create("t", flush_messages="1", **SMALL)
        sent = [f"value-{number:03}" for number in range(12)]
        one.check_at_each_answer("t", sent, one.produce("t", *sent))


def a_repeated_batch_with_acks_fsync(root: Path, leave_out: Patch) -> None:
    """Its first answer is still waiting for the disk, and so must the second, though nothing is written for it."""
    with machine(root, leave_out, oncelog_acks_fsync="true") as one:
        one.node.create("t")
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        data = build_batch([Record(0, 0, None, b"once")], timestamp_ms=one.node.clock.now_ms(), **producer)
        partition = one.node.broker.partitions.get("t", 0)
        partition.append_as_leader(data, now_ms=one.node.clock.now_ms())
        one.check_at_each_answer("t", ["once"], one.produce("t", "once", **producer))


def flush_ms(root: Path, leave_out: Patch) -> None:
    with machine(root, leave_out) as one:
        one.node.create("t", flush_ms="1000")
        one.produce("t", "a", "b")
        one.node.clock.advance_ms(2_000)
        with restarted(one) as after:
            assert values_in(after, "t") == ["a", "b"]


def a_minute_at_most(root: Path, leave_out: Patch) -> None:
    """By default everything is on disk, and the checkpoints say so, after a minute."""
    with machine(root, leave_out) as one:
        one.node.create("t", **SMALL)
        sent = [f"value-{number:03}" for number in range(12)]
        one.produce("t", *sent)
        one.node.clock.advance_ms(MINUTE_MS)
        one.produce("t", "too late")
        with restarted(one) as after:
            assert values_in(after, "t")[:12] == sent
            assert after.broker.partitions.get("t", 0).log.recovery_point >= 12


def what_a_crash_left_is_made_durable(root: Path, leave_out: Patch) -> None:
    """Read after a kill, and so committed, is durable with acks.fsync: a second cut does not take it."""
    with machine(root, leave_out, oncelog_acks_fsync="false") as one:
        one.node.create("t")
        one.produce("t", "a")
        one.node.broker.stop(clean=False)
        one._settings["oncelog.acks.fsync"] = "true"
        one.node = BrokerInProcess(root / "data", one._settings)
        assert values_in(one.node, "t") == ["a"]
        with restarted(one) as after:
            assert values_in(after, "t") == ["a"]


def topics_and_settings(root: Path, leave_out: Patch) -> None:
    """A change that was confirmed is there."""
    with machine(root, leave_out) as one:
        one.node.create("t", 2)
        one.node.configure(ResourceType.BROKER, "", {"log.retention.ms": "12345"})
        with restarted(one) as after:
            assert after.broker.metadata.topics["t"].partition_count == 2
            assert after.broker.settings.values["log.retention.ms"] == 12345


def a_snapshot_of_the_metadata(root: Path, leave_out: Patch) -> None:
    """What it replaces is gone."""
    with machine(root, leave_out) as one:
        one.node.create("t", 2)
        controller = one.node.broker.own_controller
        assert controller is not None
        assert controller.log.write_snapshot(controller.node.snapshot()).value is None
        with restarted(one) as after:
            assert after.broker.metadata.topics["t"].partition_count == 2


def deleted_topics_stay_deleted(root: Path, leave_out: Patch) -> None:
    with machine(root, leave_out) as one:
        one.node.create("t", flush_messages="1")
        one.produce("t", "a")
        one.node.delete("t")
        with restarted(one) as after:
            assert "t" not in after.broker.metadata.topics
            assert not [path.name for path in after.folder.glob("t-0*") if not path.name.endswith("-delete")]


def deleted_records_stay_deleted(root: Path, leave_out: Patch) -> None:
    """Also those in the middle of a segment, and the offsets of their successors are not used again."""
    with machine(root, leave_out) as one:
        one.node.create("t")
        one.produce("t", "a", "b", "c")
        wanted = [DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=3)])]
        (answer,) = one.node.call(DeleteRecordsRequest(topics=wanted), 2).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, 3)
        with restarted(one) as after:
            log = after.broker.partitions.get("t", 0).log
            assert (log.log_start_offset, log.log_end_offset) == (3, 3)


def producers_of_deleted_records(root: Path, leave_out: Patch) -> None:
    """Retention removes the batches of a producer that is known from a snapshot only: a retry is still a duplicate."""
    with machine(root, leave_out) as one:
        one.node.create("t", flush_messages="1")
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        one.produce("t", "once", **producer)
        log = one.node.broker.partitions.get("t", 0).log
        log.roll(one.node.clock.now_ms())
        log.delete_records(1)
        after = one.started_on(one.cut_power_after_renames())
        try:
            data = build_batch([Record(0, 0, None, b"once")], timestamp_ms=one.node.clock.now_ms(), **producer)
            now_ms = one.node.clock.now_ms()
            assert after.broker.partitions.get("t", 0).append_as_leader(data, now_ms=now_ms).duplicate
        finally:
            after.broker.stop(clean=False)


def a_clean_stop(root: Path, leave_out: Patch) -> None:
    with machine(root, leave_out) as one:
        one.node.create("t", **SMALL)
        sent = [f"value-{number:03}" for number in range(12)]
        one.produce("t", *sent)
        one.node.broker.stop()
        with restarted(one) as after:
            assert after.broker.log_dir.was_clean
            assert values_in(after, "t") == sent


def the_marker_of_a_clean_stop_does_not_come_back(root: Path, leave_out: Patch) -> None:
    """A start after a cut must not take the folder for one that was stopped in order."""
    with machine(root, leave_out) as one:
        one.node.create("t")
        one.produce("t", "a")
        one.node.restart()
        with restarted(one) as after:
            assert not after.broker.log_dir.was_clean


def compaction_removes_for_durable_records_only(root: Path, leave_out: Patch) -> None:
    """The newest durable record of a key is there, or a newer one: it must not go for one that a cut takes.

    The power is cut when the first of several segments has been swapped, and that got to disk.
    """
    with machine(root, leave_out, log_cleaner_backoff_ms="1000") as one:
        one.node.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **SMALL)
        one.put("t", "key", "old")
        one.node.broker.log_dir.checkpoint({})
        for number in range(20):
            one.put("t", "key", f"new-{number:03}")
        found: list[Path] = []
        cut = failpoints.on_nth_hit(1, lambda: found.append(one.cut_power_after_renames()))
        failpoints.arm("cleaner.swap.after", cut)
        try:
            while not one.node.broker.cleaner.passes:
                one.node.clock.advance_ms(1_000)
        finally:
            failpoints.disarm_all()
        after = one.started_on(found[0])
        try:
            assert values_in(after, "t")
        finally:
            after.broker.stop(clean=False)


def cleaned_segments(root: Path, leave_out: Patch) -> None:
    """When the checkpoint says that a log is clean, the cleaned segments are there, whole, and the old ones gone."""
    with machine(
        root, leave_out, log_cleaner_backoff_ms="1000", log_flush_offset_checkpoint_interval_ms="100000000"
    ) as one:
        one.node.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **SMALL)
        for number in range(30):
            one.put("t", f"key-{number % 3}", f"value-{number:03}")
        one.node.broker.partitions.get("t", 0).log.flush()
        while not one.node.broker.cleaner.passes:
            one.node.clock.advance_ms(1_000)
        expected = read_committed(one.node.broker.partitions.get("t", 0).log)
        with restarted(one) as after:
            assert read_committed(after.broker.partitions.get("t", 0).log) == expected
            assert after.broker.cleaner.first_dirty


def indexes_below_the_recovery_point(root: Path, leave_out: Patch) -> None:
    """What a flush vouches for is there: leader epochs and transaction indexes, by their new names."""
    with machine(root, leave_out, log_cleaner_enable="false") as one:
        one.node.create("t")
        log = one.node.broker.partitions.get("t", 0).log
        for epoch in range(3):
            log.append(keyed(("k", "v")), leader_epoch=epoch, origin=Origin.COORDINATOR, now_ms=1)
            log.flush()
        append_txn(log, 7, leader_epoch=2)
        end_txn(log, 7, commit=False, leader_epoch=2)
        log.flush()
        names = [log.leader_epochs.path, log.segments[-1].txn_index.path]
        expected = [path.read_bytes() for path in names]
        found = one.disk.cut_power(root / "files")
        assert [(found / path.relative_to(one.node.folder)).read_bytes() for path in names] == expected


PROMISES = [
    acks_fsync,
    a_repeated_batch_with_acks_fsync,
    flush_messages,
    flush_ms,
    a_minute_at_most,
    what_a_crash_left_is_made_durable,
    topics_and_settings,
    a_snapshot_of_the_metadata,
    deleted_topics_stay_deleted,
    deleted_records_stay_deleted,
    producers_of_deleted_records,
    a_clean_stop,
    the_marker_of_a_clean_stop_does_not_come_back,
    compaction_removes_for_durable_records_only,
    cleaned_segments,
    indexes_below_the_recovery_point,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_what_is_promised_survives_a_power_cut(tmp_path: Path, promise: Promised) -> None:
    promise(tmp_path, lambda _: None)


def test_the_next_transaction_after_a_cut_is_not_taken_for_one_of_before(tmp_path: Path) -> None:
    """`flush.messages=1` keeps the topic, and the coordinator's log goes back to what the last checkpoint had."""
    with machine(tmp_path, lambda _: None) as one:
        one.node.create("t", flush_messages="1")
        producer = Client(one.node, tv2=False, topic="t")
        for value, commit in ((b"a", True), (b"b", False)):
            assert producer.init() == 0
            assert producer.produce(value)
            assert producer.end(commit) == 0
            if value == b"a":
                one.node.clock.advance_ms(MINUTE_MS)
        with restarted(one) as after:
            assert after.broker.partitions.get(TRANSACTION_STATE_TOPIC, 0).log.log_end_offset < (
                one.node.broker.partitions.get(TRANSACTION_STATE_TOPIC, 0).log.log_end_offset
            )
            assert values_in(after, "t") == ["a"]
            successor = Client(after, tv2=False, topic="t")
            assert successor.init() == 0
            assert successor.produce(b"c")
            assert successor.end(commit=True) == 0
            assert values_in(after, "t") == ["a", "c"]


# Without one fsync


def without_sync_of(wanted: Callable[[Path], bool]) -> Patch:
    """Leave out fsync and fdatasync of files whose path is wanted."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for name in ("fsync", "fdatasync"):
            real = getattr(os, name)

            def sync(fd: int, real: Callable[[int], None] = real) -> None:
                if not wanted(Path(f"/proc/self/fd/{fd}").readlink()):
                    real(fd)

            patch.setattr(os, name, sync)

    return apply


def without(module: Any, name: str, wanted: Callable[[Path], bool] = lambda _: True) -> Patch:
    """Leave out what one module fsyncs through a function of this name."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)
        patch.setattr(module, name, lambda path: None if wanted(path) else real(path))

    return apply


def both(*patches: Patch) -> Patch:
    """Where one fsync makes up for another that is left out."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(patch)

    return apply


def without_flush_before_cleaning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flusher, "flush", lambda *_, **__: Promise.resolved(True))


def without_checkpoint_at_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("oncelog.storage.log_dir.LogDir.checkpoint", lambda *_: None)


def without_checkpoint_after_a_deletion(patch: pytest.MonkeyPatch) -> None:
    """As if it could not be written. It would sync the folder of all logs as well."""
    patch.setattr(Removals, "_write_checkpoint", lambda _: Promise.resolved(None))


def answers_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    """Readers and coordinators wait as they should; who has produced is told too early."""
    patch.setattr(h00_produce._Produce, "_when_all_committed", lambda produce, uncommitted, response: response)


def answers_a_repetition_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    append = Partition.append_as_leader

    def hasty(partition: Partition, *arguments: Any, **options: Any) -> Any:
        info = append(partition, *arguments, **options)
        return replace(info, last_offset=-1) if info.duplicate else info

    patch.setattr(Partition, "append_as_leader", hasty)


def flushes_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    """`flush.messages` seen to with the next append instead of with this one."""
    append, flush = Log.append, Log._flush_if_due

    def hasty(log: Log, *arguments: Any, **options: Any) -> Any:
        flush(log)
        return append(log, *arguments, **options)

    patch.setattr(Log, "append", hasty)
    patch.setattr(Log, "_flush_if_due", lambda _: None)


def is_metadata(path: Path) -> bool:
    return any(part.startswith(CLUSTER_METADATA_TOPIC) for part in path.parts)


def is_partition(path: Path) -> bool:
    return path.name.endswith("-0") and not is_metadata(path)


def is_of_batches(path: Path) -> bool:
    return path.suffix == ".log" and not is_metadata(path)


MISSED: list[tuple[str, Patch, Promised]] = [
    ("batches, acks.fsync", without_sync_of(is_of_batches), acks_fsync),
    ("batches, flush.messages", without_sync_of(is_of_batches), flush_messages),
    ("batches, flush.ms", without_sync_of(is_of_batches), flush_ms),
    ("batches, checkpoint", without_sync_of(is_of_batches), a_minute_at_most),
    ("batches, clean stop", without_sync_of(is_of_batches), a_clean_stop),
    ("answer, acks.fsync", answers_before_the_fsync, acks_fsync),
    ("answer to a repetition", answers_a_repetition_before_the_fsync, a_repeated_batch_with_acks_fsync),
    ("answer, flush.messages", flushes_after_the_answer, flush_messages),
    ("names of segments", without(flush_work, "sync_folder", is_partition), acks_fsync),
    ("names of partitions", without(flush_work, "sync_folder", lambda path: not path.name.endswith("-0")), acks_fsync),
    ("names of segments, flush", without(flush_work, "sync_folder", is_partition), indexes_below_the_recovery_point),
    ("transaction index", without_sync_of(lambda path: path.suffix == ".txnindex"), indexes_below_the_recovery_point),
    ("leader epochs", without_sync_of(lambda path: "leader-epoch" in path.name), indexes_below_the_recovery_point),
    ("recovery points", without_sync_of(lambda path: "recovery-point" in path.name), a_minute_at_most),
    ("name of a checkpoint", without(atomic_file, "sync_path", lambda path: not is_metadata(path)), a_minute_at_most),
    ("name of the marker", without(atomic_file, "sync_path", lambda path: not is_metadata(path)), a_clean_stop),
    (
        "marker taken",
        both(
            without(clean_shutdown, "sync_path"),
            without(atomic_file, "sync_path", lambda path: not is_metadata(path)),
            without(flush_work, "sync_folder", lambda path: not path.name.endswith("-0")),
        ),
        the_marker_of_a_clean_stop_does_not_come_back,
    ),
    ("what a crash left", without_checkpoint_at_the_start, what_a_crash_left_is_made_durable),
    ("metadata log", without_sync_of(lambda path: is_metadata(path) and path.suffix == ".log"), topics_and_settings),
    (
        "names in the metadata log",
        both(without(flush_work, "sync_folder", is_metadata), without(atomic_file, "sync_path", is_metadata)),
        topics_and_settings,
    ),
    ("snapshot", without_sync_of(lambda path: ".checkpoint" in path.name), a_snapshot_of_the_metadata),
    ("before a cleaning", without_flush_before_cleaning, compaction_removes_for_durable_records_only),
    ("cleaned segments", without(cleaner, "sync_path"), cleaned_segments),
    ("swap, before the cleaner's checkpoint", without(cleaning, "sync_path"), cleaned_segments),
    (
        "deleted folder",
        both(without(deletions, "sync_path"), without_checkpoint_after_a_deletion),
        deleted_topics_stay_deleted,
    ),
    ("log starts", without_sync_of(lambda path: "log-start" in path.name), deleted_records_stay_deleted),
    ("batches before log starts", without_sync_of(is_of_batches), deleted_records_stay_deleted),
    ("snapshot before segments go", without(snapshot_files, "sync_path"), producers_of_deleted_records),
]


@pytest.mark.parametrize(("left_out", "promise"), [pytest.param(*row[1:], id=row[0]) for row in MISSED])
def test_an_fsync_that_is_left_out_or_comes_too_late_is_missed(
    tmp_path: Path, left_out: Patch, promise: Promised
) -> None:
    with pytest.raises((AssertionError, KafkaError, KeyError, LogDirError, OSError)):
        promise(tmp_path, left_out)


def test_every_promise_depends_on_an_fsync() -> None:
    assert {promise for _, _, promise in MISSED} == set(PROMISES)
