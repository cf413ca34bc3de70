"""A disk that is full or broken: refusals instead of losses, and on with it when there is space again."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import decode_records, iter_headers
from oncelog.storage import checkpoints
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from oncelog.storage.time_lookup import first_record_from, latest_record
from tests.unit.storage.faulty_disk import FaultyDisk
from tests.unit.storage.log_harness import (
    NOW_MS,
    TOPIC_ID,
    append,
    append_txn,
    batch,
    copy_log,
    end_txn,
    headers,
    headers_in,
    new_log,
    read_all,
    reopen,
)
from tests.unit.storage.small_disk import mounted

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=60)
STEPS = 24


class Writer:
    """Appends numbered records, some in transactions that abort, and remembers what was acknowledged."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.acknowledged: list[bytes] = []
        self.refusals = 0
        self.number = 0
        self.sequence = 0
        self.in_txn = False

    def step(self) -> bool:
        """Whether it was acknowledged. A refused step is repeated by the next call."""
        try:
            self._try()
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR, error
            self.refusals += 1
            return False
        self.number += 1
        return True

    def _try(self) -> None:
        kind = self.number % 6
        if kind == 3:
            append_txn(self.log, 5, self.sequence)
            self.sequence += 1
        elif kind == 4:
            end_txn(self.log, 5, commit=False)
        elif kind == 5:
            self.log.flush()
        else:
            value = b"record-%03d" % self.number
            append(self.log, batch(value=value.ljust(60, b".")))
            self.acknowledged.append(value)


def records_in(log: Log) -> list[bytes]:
    data = read_all(log)
    return [
        record.value.rstrip(b".")
        for position, header in iter_headers(data)
        if not header.is_control
        for record in decode_records(data, position)
        if record.value is not None and record.value.startswith(b"record-")
    ]


def check(log: Log, acknowledged: list[bytes]) -> None:
    """All that was acknowledged, in order. A record that was refused may be there, as after any lost answer."""
    found = records_in(log)
    assert list(dict.fromkeys(found)) == sorted(set(found))
    assert set(acknowledged) <= set(found)
    offsets = [header.base_offset for _, header in iter_headers(read_all(log))]
    assert offsets == sorted(set(offsets))


def operations_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    disk = FaultyDisk(monkeypatch, folder)
    writer = Writer(new_log(folder, CONFIG))
    while writer.number < STEPS:
        assert writer.step()
    writer.log.close(clean=False)
    return disk.operations


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("is_short", [False, True])
def test_a_full_disk_at_any_operation_costs_no_acknowledged_record(tmp_path: Path, length: int, is_short: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "dry").mkdir()
        total = operations_of_a_run(tmp_path / "dry", patch)
    assert total > 40
    for first in range(1, total + 1, 1 if length == 1 else 3):
        folder = tmp_path / f"run-{first}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, folder)
            disk.is_short = is_short
            disk.fail(first, length)
            _run_through(folder, disk, tmp_path / f"killed-{first}")
        shutil.rmtree(folder)


def _run_through(folder: Path, disk: FaultyDisk, killed: Path) -> None:
    log = _create(folder)
    writer = Writer(log)
    refused_in_a_row = 0
    while writer.number < STEPS:
        refused_in_a_row = 0 if writer.step() else refused_in_a_row + 1
        assert refused_in_a_row < 10, "the log does not go on although the disk has space again"
        check(log, writer.acknowledged)
    recovered = copy_log(log, killed)
    check(recovered, writer.acknowledged)
    assert recovered.log_end_offset == log.log_end_offset
    assert recovered.producer_state.first_undecided_offset == log.producer_state.first_undecided_offset
    assert recovered.aborted_transactions(0, 10_000) == log.aborted_transactions(0, 10_000)
    recovered.close(clean=False)
    log.close(clean=False)
    shutil.rmtree(killed)


def _create(folder: Path) -> Log:
    """As a broker does, which asks again when a topic is used again."""
    for _ in range(10):
        try:
            return new_log(folder, CONFIG)
        except OSError:
            continue
    raise AssertionError("the log cannot be created although the disk has space again")


BEFORE_THE_BATCHES = [
    "log.append.before_write",
    "log.roll.before",
    "log.roll.before_snapshot",
    "log.snapshot.before_write",
    "log.snapshot.after_write",
    "log.roll.before_create",
    "segment.create.after_log_file",
    "log.roll.after",
    "checkpoint.before_fsync",
    "checkpoint.before_rename",
]
"""An error here changes nothing: the next append is served."""
AFTER_THE_BATCHES = [
    "log.append.after_write",
    "log.append.after_indexes",
    "log.append.before_txn_index",
    "txn_index.append.before_write",
]
"""An error here needs the log to be recovered: by the operator after a broken disk, otherwise by itself."""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("point", [*BEFORE_THE_BATCHES, *AFTER_THE_BATCHES])
@pytest.mark.parametrize("hit", [1, 3])
def test_an_error_at_each_step_is_a_refusal_and_no_loss(tmp_path: Path, point: str, code: int, hit: int) -> None:
    def fail() -> None:
        raise OSError(code, "injected", point)

    writer = Writer(new_log(tmp_path, CONFIG))
    failpoints.arm(point, failpoints.on_nth_hit(hit, fail))
    restarts = 0
    try:
        while writer.number < 3 * STEPS:
            if not writer.step() and writer.log.has_failed and code == errno.EIO:
                assert not writer.step(), "a broken log went on without a restart"
                check(writer.log, writer.acknowledged)
                writer.log = reopen(writer.log, clean=False)
                restarts += 1
            check(writer.log, writer.acknowledged)
    finally:
        failpoints.disarm_all()
    # What is written beside the log for a start may fail without anybody being refused.
    assert writer.refusals or point.startswith("checkpoint.")
    assert restarts == (code == errno.EIO and point in AFTER_THE_BATCHES)
    recovered = copy_log(writer.log, tmp_path / "recovered")
    check(recovered, writer.acknowledged)
    assert recovered.aborted_transactions(0, 10_000) == writer.log.aborted_transactions(0, 10_000)
    recovered.close(clean=False)
    writer.log.close(clean=False)


def test_a_repaired_log_holds_nothing_back_for_transactions_that_were_over_before(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    log = new_log(tmp_path)
    append_txn(log, 5)
    end_txn(log, 5, commit=True)
    log.producer_state.on_high_watermark(log.log_end_offset)
    assert log.producer_state.first_unstable_offset is None
    failpoints.arm("log.append.after_write", failpoints.on_nth_hit(1, fail))
    try:
        with pytest.raises(KafkaError):
            append(log)
    finally:
        failpoints.disarm_all()
    log.repair()
    assert log.producer_state.first_unstable_offset is None
    log.close(clean=False)


def fail_half_way(append_one: Callable[[], object]) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    failpoints.arm("log.append.after_write", fail)
    try:
        with pytest.raises(KafkaError, match="half way"):
            append_one()
    finally:
        failpoints.disarm_all()


def test_a_repaired_log_takes_what_the_coordinator_has_agreed_to(tmp_path: Path) -> None:
    """Its producer was told that it had no transaction."""
    log = new_log(tmp_path)
    guard = log.producer_state.start_verification(5, 0, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    fail_half_way(lambda: append_txn(log, 6))
    append(log, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True, guard=guard)
    assert [header.producer_id for header in headers(log)] == [6, 5]
    log.close(clean=False)


@pytest.mark.parametrize("is_marker", [True, False])
def test_a_repair_counts_what_an_append_left_behind_against_the_word_of_the_coordinator(
    tmp_path: Path, is_marker: bool
) -> None:
    log = new_log(tmp_path)
    guard = log.producer_state.start_verification(5, 0, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    fail_half_way(lambda: end_txn(log, 5, commit=True) if is_marker else append_txn(log, 5))
    log.repair()
    if not is_marker:
        end_txn(log, 5, commit=True)
    with pytest.raises(KafkaError, match="no transaction open"):
        append(log, producer_id=5, producer_epoch=0, base_sequence=1, transactional=True, guard=guard)
    log.close(clean=False)


def test_a_log_that_has_failed_is_not_rolled(tmp_path: Path) -> None:
    """The batch that the append has left would be in one segment, and the next one with its offset in another."""
    log = new_log(tmp_path)
    append(log)
    fail_half_way(lambda: append(log))
    with pytest.raises(KafkaError, match="half way"):
        log.roll(NOW_MS)
    append(log)
    assert [header.base_offset for header in headers(log)] == [0, 1, 2]
    log.close(clean=False)


def test_a_leader_epoch_begins_behind_what_a_failed_append_has_left(tmp_path: Path) -> None:
    """The repair found the epoch in the midst of an older one's batches, and dropped it: followers with batches of an
    epoch between both were told nothing."""
    log = new_log(tmp_path)
    append(log, epoch=5)
    fail_half_way(lambda: append(log, epoch=5))
    log.begin_epoch(7)
    if log.has_failed:
        log.repair()
    assert log.end_offset_for_epoch(6) == (5, 2)
    fail_half_way(lambda: append(log, epoch=7))
    log.begin_epoch(7)
    assert log.has_failed, "a leader that is told of its role again does not need the disk"
    log.close(clean=False)


def test_a_repaired_log_has_the_settings_that_it_had(tmp_path: Path) -> None:
    def refuse(known: int) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"there are {known} producers")

    log = new_log(tmp_path)
    log.producer_state.verification_enabled, log.producer_state.admit = False, refuse
    fail_half_way(lambda: append(log))
    with pytest.raises(KafkaError, match="there are 0 producers"):
        append(log, producer_id=5, producer_epoch=0, base_sequence=0)
    assert not log.producer_state.verification_enabled
    log.close(clean=False)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    "name", [checkpoints.SUMS, checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_START_OFFSETS]
)
def test_an_error_at_a_checkpoint_leaves_the_old_one(tmp_path: Path, name: str, code: int) -> None:
    def fail() -> None:
        raise OSError(code, "injected", name)

    folder = log_dir(tmp_path / "data")
    partition = TopicPartition("t", 0)
    log = folder.create_log(partition, TOPIC_ID, CONFIG, now_ms=NOW_MS)
    append(log)
    folder.checkpoint({partition: 1})
    append(log)
    failpoints.arm(f"checkpoint.{name}", failpoints.on_nth_hit(1, fail))
    try:
        with pytest.raises(KafkaError) as refused:
            folder.checkpoint({partition: 2})
    finally:
        failpoints.disarm_all()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    append(log)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy)
    again = log_dir(copy)
    assert again.logs[partition].log_end_offset == 3
    assert again.logs[partition].recovery_point in (1, 2)
    again.abandon()
    folder.checkpoint({partition: 3})
    assert checkpoints.read_offsets(tmp_path / "data" / checkpoints.RECOVERY_POINTS) == {partition: 3}
    folder.abandon()


def test_reading_goes_on_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(monkeypatch, tmp_path)
    writer = Writer(new_log(tmp_path, CONFIG))
    for _ in range(12):
        assert writer.step()
    disk.fail(1)
    for _ in range(5):
        assert not writer.step()
        check(writer.log, writer.acknowledged)
    disk.heal()
    while writer.number < STEPS:
        assert writer.step()
    check(writer.log, writer.acknowledged)


def test_a_roll_that_fails_half_way_leaves_no_segment_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray empty segment would be taken for the end of the log, with records behind it, by the next recovery."""
    log = new_log(tmp_path, CONFIG)
    append(log)
    disk = FaultyDisk(monkeypatch, tmp_path)
    for first in range(1, 12):
        disk.fail(first)
        try:
            log.roll(NOW_MS)
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            break
        finally:
            disk.heal()
        append(log)
        recovered = copy_log(log, tmp_path / f"copy-{first}")
        assert recovered.log_end_offset == log.log_end_offset
        recovered.close(clean=False)
    assert first > 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_fsync_stops_the_log_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    log = new_log(tmp_path, CONFIG)
    append(log)
    disk = FaultyDisk(monkeypatch, tmp_path, code=code, syncs=True)
    disk.fail(1, 2)  # The first is a note that it goes without.
    with pytest.raises(KafkaError, match="fsync failed"):
        log.flush()
    with pytest.raises(KafkaError) as refused:
        append(log)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.read(0, 1000, end_offset=1).data


# The folder


def log_dir(path: Path) -> LogDir:
    return LogDir.open(path, node_id=1, config_for=lambda _: CONFIG, now_ms=NOW_MS)


def test_a_log_that_could_not_be_created_can_be_created_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = log_dir(tmp_path / "data")
    disk = FaultyDisk(monkeypatch, tmp_path)
    partition = TopicPartition("t", 0)
    for first in range(1, 10):
        disk.fail(first)
        try:
            log = folder.create_log(partition, TOPIC_ID, CONFIG, now_ms=NOW_MS)
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert partition not in folder.logs
        else:
            break
        finally:
            disk.heal()
    assert first > 5
    append(log)
    assert records_of(folder.logs[partition]) == 1
    folder.abandon()


def records_of(log: Log) -> int:
    return sum(header.records_count for _, header in iter_headers(read_all(log)))


def test_a_checkpoint_that_finds_no_space_harms_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = log_dir(tmp_path / "data")
    log = folder.create_log(TopicPartition("t", 0), TOPIC_ID, CONFIG, now_ms=NOW_MS)
    append(log)
    folder.checkpoint({})
    append(log)
    written = (folder.path / checkpoints.RECOVERY_POINTS).read_bytes()
    disk = FaultyDisk(monkeypatch, folder.path)
    for first in range(1, 12):
        disk.fail(first)
        with pytest.raises(KafkaError) as caught:
            folder.checkpoint({})
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.heal()
        append(log)
        if (folder.path / checkpoints.RECOVERY_POINTS).read_bytes() != written:
            break
    folder.checkpoint({})
    assert log.recovery_point == log.log_end_offset
    folder.abandon()


def test_a_clean_stop_on_a_full_disk_is_recovered_from(tmp_path: Path) -> None:
    for first in range(1, 30, 2):
        path = tmp_path / f"data-{first}"
        with pytest.MonkeyPatch.context() as patch:
            folder = log_dir(path)
            log = folder.create_log(TopicPartition("t", 0), TOPIC_ID, CONFIG, now_ms=NOW_MS)
            for _ in range(15):
                append(log)
            disk = FaultyDisk(patch, path)
            disk.fail(first)
            try:
                folder.close({})
            except KafkaError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        again = log_dir(path)
        assert again.logs[TopicPartition("t", 0)].log_end_offset == 15
        again.abandon()


# A real one


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "256k") as folder:
        yield folder


def test_a_log_on_a_disk_that_really_is_full(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    writer = Writer(new_log(small_disk, CONFIG))
    for _ in range(3):
        ballast.write_bytes(bytes(1 << 10))
        _fill(ballast)
        refused = 0
        while refused < 5:
            refused = 0 if writer.step() else refused + 1
        check(writer.log, writer.acknowledged)
        ballast.unlink()
        before = len(writer.acknowledged)
        for _ in range(12):
            assert writer.step()
        assert len(writer.acknowledged) > before
        check(writer.log, writer.acknowledged)
    recovered = copy_log(writer.log, tmp_path / "recovered")
    check(recovered, writer.acknowledged)
    recovered.close(clean=False)
    writer.log.close(clean=False)


def _fill(ballast: Path) -> None:
    """All but two pages."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            size = file.tell()
    with ballast.open("r+b") as file:
        file.truncate(max(0, size - 2 * 4096))


@pytest.mark.parametrize("point", ["log.append.after_write", "log.append.after_indexes", "log.append.before_txn_index"])
def test_what_an_append_left_behind_is_not_read_before_the_log_is_repaired(tmp_path: Path, point: str) -> None:
    """Readers would go on behind the high watermark, where the next fetch is out of range."""
    log = new_log(tmp_path, CONFIG)
    append(log)
    append_txn(log, 5)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    failpoints.arm(point, fail)
    with pytest.raises(KafkaError):
        end_txn(log, 5, commit=False)
    failpoints.disarm_all()
    end_offset = log.log_end_offset
    size_bytes = 2 * len(batch())
    assert [header.last_offset for header in headers_in(read_all(log))] == [0, 1]
    assert log.available_bytes(0, end_offset=end_offset) == len(read_all(log)) == size_bytes
    assert log.read(end_offset, 1_000, end_offset=end_offset).data == b""
    log.repair()
    assert log.log_end_offset == end_offset + 1
    assert len(headers_in(read_all(log))) == 3


def test_a_log_that_is_half_repaired_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair has begun indexes anew, and what the open log knows of them is not there. Without space nothing is
    begun, and reading goes on."""
    disk = FaultyDisk(monkeypatch, tmp_path)
    log = new_log(tmp_path, CONFIG)
    for sequence in range(8):
        append_txn(log, 5, sequence)
        end_txn(log, 5, commit=False)
    records, aborted = read_all(log), log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 8

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    failpoints.arm("log.append.after_write", fail)
    with pytest.raises(KafkaError):
        append(log)
    failpoints.disarm_all()
    disk.fail(1)
    with pytest.raises(KafkaError):
        log.repair()
    assert (read_all(log), log.aborted_transactions(0, log.log_end_offset)) == (records, aborted)
    disk.heal()
    failpoints.arm("txn_index.append.before_write", fail)
    with pytest.raises(KafkaError):
        log.repair()
    failpoints.disarm_all()
    for read in (
        lambda: log.read(0, 1_000, end_offset=log.log_end_offset),
        lambda: log.available_bytes(0, end_offset=log.log_end_offset),
        lambda: log.aborted_transactions(0, log.log_end_offset),
        lambda: latest_record(log),
        lambda: first_record_from(log, NOW_MS, end_offset=log.log_end_offset),
    ):
        with pytest.raises(KafkaError) as caught:
            read()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.repair()
    assert read_all(log).startswith(records)
    assert log.aborted_transactions(0, log.log_end_offset) == aborted
