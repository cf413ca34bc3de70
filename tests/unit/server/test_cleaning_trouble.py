"""Compaction in the background when something goes wrong: with one log, with the disk, with the power."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC, TopicPartition
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.server import cleaning
from oncelog.storage import cleaner
from oncelog.storage import log as log_module
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.txn_index_keeper import Steps, TxnIndexKeeper
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import hold_worker
from tests.unit.server.power_cut import StrictDisk
from tests.unit.server.test_cleaning import (
    BACKOFF_MS,
    SETTINGS,
    SMALL,
    partition_of,
    values,
    work_until_segment_is_cleaned,
    write,
    write_dirty,
)
from tests.unit.storage.cleaner_harness import put_txn, read_committed, survivors
from tests.unit.storage.log_harness import append_txn, end_txn

BAD = TopicPartition("bad", 0)


def enospc() -> None:
    raise OSError(errno.ENOSPC, "injected")


def damage_second_segment(node: BrokerInProcess) -> None:
    """Its first batch is none any more."""
    path = partition_of(node, "bad").log.segments[1].log_file.path
    data = bytearray(path.read_bytes())
    data[16] = 77
    path.write_bytes(data)


def test_a_log_that_cannot_even_be_judged_is_left_alone_and_others_are_cleaned(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    damage_second_segment(node)
    node.restart(clean=True)
    with caplog.at_level(logging.ERROR, "oncelog.cleaner"):
        node.clock.advance_ms(10 * BACKOFF_MS)
    assert len(survivors(partition_of(node, "good").log)) < 10
    assert node.broker.cleaner.uncleanable == {BAD}
    assert len([record for record in caplog.records if "bad-0 cannot be cleaned" in record.message]) == 1


def test_a_log_that_fails_again_and_again_does_not_keep_others_from_their_turn(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good", "other"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    tries: list[TopicPartition] = []

    class Pass(cleaner.CleaningPass):
        def build_map(self) -> None:
            tries.append(self.cleanable.log.topic_partition)
            if tries[-1] == BAD:
                raise OSError(errno.EIO, "injected")
            super().build_map()

    monkeypatch.setattr(cleaner, "CleaningPass", Pass)
    node.clock.advance_ms(10 * BACKOFF_MS)
    for name in ("good", "other"):
        assert len(survivors(partition_of(node, name).log)) < 10
    assert tries[0] == BAD
    assert tries.count(BAD) > 3


def test_an_error_that_nobody_thought_of_does_not_end_all_cleaning(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    real = node.broker.cleaner._candidates
    with monkeypatch.context() as patch:
        patch.setattr(node.broker.cleaner, "_candidates", lambda internal_only: at_once(real(internal_only))[1000])
        node.clock.advance_ms(3 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 0
    node.clock.advance_ms(3 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 1


def test_a_look_at_many_logs_lets_others_have_their_turn(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "_LOGS_PER_STEP", 1)
    for name in ("a", "b", "c"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    steps = node.broker.cleaner._dirtiest(node.broker.cautious_ms(), internal_only=False)
    assert sum(1 for _ in steps) >= 6


@pytest.mark.parametrize("steps_before", [1, 2])
def test_a_log_that_is_deleted_during_a_look_is_not_cleaned(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, steps_before: int
) -> None:
    monkeypatch.setattr(cleaning, "_LOGS_PER_STEP", 1)
    node.create("t", **SMALL)
    write_dirty(node)
    now_ms = node.broker.cautious_ms()
    assert at_once(node.broker.cleaner._dirtiest(now_ms, internal_only=False)) is not None
    steps = node.broker.cleaner._dirtiest(now_ms, internal_only=False)
    for _ in range(steps_before):
        next(steps)
    node.delete("t")
    assert at_once(steps) is None


def test_a_pass_that_cannot_begin_leaves_its_log_alone_and_not_the_others(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        node.create(name, **SMALL)
        write_dirty(node, name)

    bad_indexes = partition_of(node, "bad").log.files.txn_indexes

    def check_below(indexes: TxnIndexKeeper, end_offset: int) -> Steps:
        yield
        if indexes is bad_indexes:
            raise ValueError("injected")

    monkeypatch.setattr(TxnIndexKeeper, "check_below", check_below)
    node.clock.advance_ms(10 * BACKOFF_MS)
    assert len(survivors(partition_of(node, "good").log)) < 10
    assert node.broker.cleaner.uncleanable == {BAD}


def test_a_cleaning_that_is_prepared_when_work_ends_flushes_nothing(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of its own could end after that of the stop, and the kernel reports a failed fsync only once."""
    node.create("t", **SMALL)
    write_dirty(node)
    worker = hold_worker(node)

    def check_below(indexes: TxnIndexKeeper, end_offset: int) -> Steps:
        yield
        node.broker.end_work()

    monkeypatch.setattr(TxnIndexKeeper, "check_below", check_below)
    node.clock.advance_ms(BACKOFF_MS)
    assert not worker.jobs


def test_a_look_goes_on_when_an_internal_topic_is_deleted(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "_LOGS_PER_STEP", 1)
    for name in (GROUP_METADATA_TOPIC, "t"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    steps = node.broker.cleaner._dirtiest(node.broker.cautious_ms(), internal_only=False)
    for _ in range(2):
        next(steps)
    # Its partitions are closed in later turns.
    monkeypatch.setattr(node.broker.removals, "begin", lambda _: Promise())
    node.delete(GROUP_METADATA_TOPIC)
    found = at_once(steps)
    assert found is not None
    assert found.log.topic_partition.topic == "t"


def test_a_swap_that_met_a_full_disk_is_tried_again_once_the_log_is_repaired(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    failpoints.arm("segment.delete.before_rename", failpoints.on_nth_hit(1, enospc))
    with monkeypatch.context() as patch:
        patch.setattr(Log, "can_be_repaired", False)
        node.clock.advance_ms(BACKOFF_MS)
    log = partition_of(node).log
    assert log.has_failed
    write(node, ("k0", "20"))
    assert not log.has_failed
    node.clock.advance_ms(3 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 1
    assert not node.broker.cleaner.uncleanable
    assert values(node) == {"k0": "20", "k1": "19", "k2": "17"}


def test_a_log_that_repairs_itself_during_its_cleaning_goes_on_and_is_cleaned_later(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    log = partition_of(node).log
    append_txn(log, 5)
    worker = hold_worker(node)
    node.clock.advance_ms(BACKOFF_MS)
    work_until_segment_is_cleaned(worker, log.folder)
    failpoints.arm("log.append.before_txn_index", failpoints.on_nth_hit(1, enospc))
    with pytest.raises(KafkaError, match="half way"):
        end_txn(log, 5, commit=False)
    write(node, ("k0", "20"))
    worker.finish(node.clock)
    write(node, ("k0", "21"))
    assert not log.has_failed
    assert node.broker.cleaner.passes == 0
    node.clock.advance_ms(2 * BACKOFF_MS)
    worker.finish(node.clock)
    assert node.broker.cleaner.passes == 1
    assert values(node)["k0"] == "21"


def test_a_map_built_while_the_log_was_repaired_is_not_used(node: BrokerInProcess) -> None:
    """The repair has rebuilt transaction indexes, and the map may be made from half of their entries."""
    node.create("t", **SMALL)
    write_dirty(node)
    log = partition_of(node).log
    append_txn(log, 5)
    log.flush()
    worker = hold_worker(node)
    node.clock.advance_ms(BACKOFF_MS)
    worker.work()
    failpoints.arm("log.append.before_txn_index", failpoints.on_nth_hit(1, enospc))
    with pytest.raises(KafkaError, match="half way"):
        end_txn(log, 5, commit=False)
    write(node, ("k0", "20"))
    worker.deliver()
    assert not worker.jobs


def test_a_record_stays_until_the_marker_of_the_one_that_replaces_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(tmp_path / "data", monkeypatch)
    settings = {**SETTINGS, "log.flush.offset.checkpoint.interval.ms": "600000"}
    node = BrokerInProcess(tmp_path / "data", settings)
    node.create("t", **SMALL)
    write(node, ("key", "old"))
    write_dirty(node)
    partition = partition_of(node)
    log = partition.log
    first_offset = put_txn(log, 7, 0, ("key", "new")).first_offset
    while log.segments[-1].base_offset <= first_offset:
        write(node, ("fill", "fill"))
    log.flush()
    # The marker lies behind all that is cleaned, and in the page cache only.
    now_ms = node.clock.now_ms()
    partition.append_marker(
        commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=0, now_ms=now_ms
    )
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1
    assert values(node)["key"] == "new"
    after = BrokerInProcess(disk.cut_power(tmp_path / "after"), settings)
    assert (b"key", b"new") in read_committed(partition_of(after).log).values()
    for broker in (node.broker, after.broker):
        broker.stop(clean=False)
    disk.close()


def test_a_log_that_cannot_be_opened_does_not_keep_others_from_being_cleaned(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    load_log = log_module.load_log

    def load(place: LogPlace, *arguments: Any, **options: Any) -> Any:
        if place.partition == BAD:
            raise OSError(errno.EIO, "injected")
        return load_log(place, *arguments, **options)

    monkeypatch.setattr(log_module, "load_log", load)
    node.restart(clean=True)
    node.clock.advance_ms(10 * BACKOFF_MS)
    assert len(survivors(partition_of(node, "good").log)) < 10


def test_an_early_roll_on_a_full_disk_is_tried_with_pauses_and_said_once(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaning, "INTERNAL_ACTIVE_BYTES", 0)
    node.until(node.broker.internal_topic("__consumer_offsets"))
    write(node, ("k", "v"), topic="__consumer_offsets")
    rolls: list[int] = []

    def roll(self: Log, now_ms: int) -> None:
        rolls.append(now_ms)
        enospc()

    monkeypatch.setattr(Log, "roll", roll)
    with caplog.at_level(logging.ERROR, "oncelog.cleaner"):
        node.clock.advance_ms(100 * BACKOFF_MS)
    assert 1 < len(rolls) <= 100 // cleaning.POSTPONED_LOOKS + 1
    assert len(caplog.records) == 1


def test_an_older_checkpoint_of_the_cleaner_does_not_replace_a_newer_one(node: BrokerInProcess) -> None:
    node.create("bad", **SMALL)
    cleaner = node.broker.cleaner
    partition_of(node, "bad")
    worker = hold_worker(node)
    cleaner.first_dirty[BAD] = 5
    cleaner._write_checkpoint(lambda: None)
    cleaner.first_dirty[BAD] = 9
    cleaner._write_checkpoint(lambda: None)
    worker.jobs.reverse()
    worker.finish(node.clock)
    assert node.broker.log_dir.read_cleaner_offsets() == {BAD: 9}
