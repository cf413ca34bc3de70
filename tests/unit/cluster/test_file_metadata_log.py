"""The controllers' log in files: what is committed is there after a restart, and Apache Kafka's tools read it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from oncelog.cluster import committed_log
from oncelog.cluster.file_metadata_log import FileMetadataLog
from oncelog.cluster.quorum_log import Leader
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.replay import Replay
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.cluster_metadata import LeaderChangeMessage, VotersRecord
from oncelog.storage import fsyncs
from oncelog.storage.segment import Segment
from peers.kafka.dump import check_data_dir, dump_files
from peers.kafka.jars import kafka_available
from tests.unit.cluster.metadata_log import LEVEL, ImageKeeper, setting, snapshot_of, voters
from tests.virtual_clock import VirtualScheduler

ADDRESS = Address("127.0.0.1", 9093)
ALONE = voters(1)
T = TypeVar("T")


class HeldWorker:
    """Runs jobs when told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.failure: Exception | None = None

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        promise: Promise[T | Exception] = Promise()
        self.jobs.append(
            lambda: promise.resolve(self.failure if self.failure is not None else InlineWorker().run(job).value)
        )
        return promise

    def finish(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


class Node:
    def __init__(
        self, folder: Path, worker: HeldWorker | InlineWorker | None = None, voters: VotersRecord = ALONE
    ) -> None:
        self.scheduler = VirtualScheduler()
        self.follower = ImageKeeper()
        self.faults: list[str] = []
        self.log = FileMetadataLog(
            folder,
            node_id=1,
            address=ADDRESS,
            scheduler=self.scheduler,
            worker=worker or InlineWorker(),
            voters=voters,
            on_fault=self.faults.append,
        )
        self.log.start(self.follower)

    def lead(self) -> Node:
        self.log.campaign()
        self.settle()
        assert self.log.is_active
        return self

    def settle(self) -> None:
        self.scheduler.advance_ms(1)

    def append(self, *values: str) -> int:
        promise = self.log.append([setting(value) for value in values])
        self.settle()
        assert isinstance(promise.value, int)
        return promise.value

    @property
    def retention(self) -> str | None:
        return next((values.get("retention.ms") for values in self.follower.image.settings.values()), None)


def test_a_new_log_begins_with_a_leader_and_the_voters(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    assert node.follower.leaders == [Leader(1, 1, ADDRESS)]
    [batch] = read_batches(node.follower.batches[0])
    leader_change = batch.controls[0]
    assert isinstance(leader_change, LeaderChangeMessage)
    assert leader_change.leader_id == 1
    assert [member.voter_id for member in leader_change.granting_voters] == [1]
    assert node.follower.quorum == (1, voters(1))
    assert node.log.next_offset == node.log.committed.end_offset == 3


def test_what_is_committed_is_there_after_a_restart_under_a_new_epoch(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    assert node.append("1") == 3
    assert node.append("2", "3") == 4
    again = Node(tmp_path)
    assert again.follower.batches == node.follower.batches
    assert again.retention == "3"
    assert not again.log.is_active
    again.lead()
    assert again.log.epoch == 2
    # Known voters are not written again.
    assert again.log.committed.end_offset == 7
    assert json.loads((tmp_path / "__cluster_metadata-0" / "quorum-state").read_text())["leaderEpoch"] == 2


def test_an_epoch_that_was_won_is_not_won_again_even_if_nothing_was_written_in_it(tmp_path: Path) -> None:
    worker = HeldWorker()
    node = Node(tmp_path, worker)
    node.log.campaign()
    node.settle()
    assert node.log.committed.end_offset == 0
    log_file = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    log_file.write_bytes(b"")
    assert Node(tmp_path).lead().log.epoch == 2


def test_nothing_is_committed_before_it_is_on_disk_and_appends_share_an_fsync(tmp_path: Path) -> None:
    worker = HeldWorker()
    node = Node(tmp_path, worker)
    node.log.campaign()
    node.settle()
    assert node.follower.batches == []
    worker.finish()
    assert node.log.is_active
    first = node.log.append([setting("1")])
    node.settle()
    second, third = node.log.append([setting("2")]), node.log.append([setting("3")])
    assert node.log.next_offset == 6
    assert len(worker.jobs) == 1
    assert not first.done
    assert node.log.committed.end_offset == 3
    worker.finish()
    assert first.value == 3
    assert not second.done
    node.settle()
    worker.finish()
    assert (second.value, third.value) == (4, 5)
    assert node.retention == "3"


def test_what_a_controller_appends_first_shares_the_fsync_of_its_election(tmp_path: Path) -> None:
    worker = HeldWorker()
    node = Node(tmp_path, worker)
    node.log.campaign()
    first = node.log.append([setting("1")])
    node.settle()
    assert (len(worker.jobs), node.log.committed.end_offset, first.done) == (1, 0, False)
    worker.finish()
    assert (worker.jobs, first.value, node.retention) == ([], 3, "1")


def test_a_log_that_is_thrown_away_does_not_wait_for_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsyncs, "_are_needed", True)  # so that it is again after this test
    fsyncs.do_without()
    worker = HeldWorker()
    node = Node(tmp_path, worker).lead()
    assert node.append("1") == 3
    assert (worker.jobs, node.retention) == ([], "1")


def test_an_election_that_is_not_on_disk_ends_the_office(tmp_path: Path) -> None:
    worker = HeldWorker()
    worker.failure = OSError(5, "Input/output error")
    node = Node(tmp_path, worker)
    node.log.campaign()
    first = node.log.append([setting("1")])
    node.settle()
    worker.finish()
    assert isinstance(first.value, KafkaError)
    assert (node.log.is_active, node.follower.leaders[-1], node.follower.batches) == (False, None, [])
    assert node.faults == ["the metadata log cannot be written: [Errno 5] Input/output error"]


def test_nothing_is_committed_in_an_epoch_before_its_name_and_those_of_its_folder_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(tmp_path).lead().log.close()
    synced: list[str] = []
    node = Node(tmp_path)
    original = os.fsync

    def fsync(descriptor: int) -> None:
        assert node.log.committed.last_epoch == 1
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path)))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    node.lead()
    assert node.log.committed.last_epoch == 2
    assert [name.partition(".")[0] for name in synced] == [
        "/__cluster_metadata-0/quorum-state",
        "/__cluster_metadata-0",
        "",
    ]


def test_the_follower_has_a_batch_before_its_append_is_answered(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    seen: list[str | None] = []
    node.log.append([setting("7")]).then(lambda _: seen.append(node.retention))
    node.settle()
    assert seen == ["7"]


def test_a_failed_fsync_ends_the_office(tmp_path: Path) -> None:
    worker = HeldWorker()
    node = Node(tmp_path, worker)
    node.log.campaign()
    node.settle()
    worker.finish()
    worker.failure = OSError(5, "Input/output error")
    promise = node.log.append([setting("1")])
    node.settle()
    worker.finish()
    assert isinstance(promise.value, KafkaError)
    assert promise.value.code == ErrorCode.REQUEST_TIMED_OUT, "the next start may find it"
    assert node.follower.leaders[-1] is None
    assert node.faults == ["the metadata log cannot be written: [Errno 5] Input/output error"]
    later = node.log.append([setting("2")]).value
    assert isinstance(later, KafkaError)
    assert later.code == ErrorCode.NOT_CONTROLLER


def test_an_append_on_its_way_when_the_controller_stops_is_not_called_refused(tmp_path: Path) -> None:
    worker = HeldWorker()
    node = Node(tmp_path, worker)
    node.log.campaign()
    node.settle()
    worker.finish()
    promise = node.log.append([setting("1")])
    node.log.close()
    assert isinstance(promise.value, KafkaError)
    assert promise.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert Node(tmp_path).retention == "1"


def test_an_append_that_failed_behind_its_write_is_not_called_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path).lead()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "commit_write", fail)
        result = node.log.append([setting("1")]).value
    assert isinstance(result, KafkaError)
    assert result.code == ErrorCode.REQUEST_TIMED_OUT
    assert Node(tmp_path).retention == "1", "it is on disk"


@pytest.mark.parametrize("content", [b"", b'{"leaderId":1,"leaderEp', b"[]", b"\0" * 20])
def test_a_quorum_state_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    node = Node(tmp_path).lead()
    node.append("1")
    node.log.close()
    path = tmp_path / "__cluster_metadata-0" / "quorum-state"
    path.write_bytes(content)
    with pytest.raises(InvalidMetadata, match=f"{path} is empty or damaged.*Remove it"):
        Node(tmp_path)
    path.unlink()
    again = Node(tmp_path).lead()
    assert (again.retention, again.log.epoch) == ("1", 2)


def test_a_snapshot_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    node.append("1")
    assert node.log.write_snapshot(snapshot_of(node.log.committed, node.follower.image)).value is None
    node.log.close()
    [path] = (tmp_path / "__cluster_metadata-0").glob("*.checkpoint")
    content = path.read_bytes()
    for damaged in (b"", content[:-5], content[:70] + b"?" + content[71:]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidMetadata, match=f"{path} cannot be read: .* Restore {path.parent} from a copy"):
            Node(tmp_path)


def test_a_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    node.append("1")
    snapshot = snapshot_of(node.log.committed, node.follower.image)
    assert node.log.write_snapshot(snapshot).value is None
    node.append("2")
    assert node.log.committed.start_offset == 4
    assert node.log.committed.snapshot == snapshot
    names = sorted(
        path.name for path in (tmp_path / "__cluster_metadata-0").iterdir() if path.suffix in (".log", ".checkpoint")
    )
    assert names == ["00000000000000000004-0000000001.checkpoint", "00000000000000000004.log"]
    again = Node(tmp_path)
    assert again.follower.snapshots == [(4, 1)]
    assert again.retention == "2"
    assert again.follower.quorum == (1, voters(1))
    again.lead()
    assert again.log.write_snapshot(snapshot_of(again.log.committed, again.follower.image)).value is None
    assert Node(tmp_path).follower.snapshots == [(6, 2)]


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    node.log.write_snapshot(snapshot_of(node.log.committed, node.follower.image))
    node.append("1")
    next((tmp_path / "__cluster_metadata-0").glob("*.checkpoint")).unlink()
    with pytest.raises(InvalidMetadata, match="no snapshot that reaches so far"):
        Node(tmp_path)


def test_a_large_append_is_a_transaction_and_one_that_breaks_off_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_log, "BATCH_BYTES_MAX", 400)
    node = Node(tmp_path).lead()
    values = [str(number) for number in range(20)]
    node.append(*values)
    assert len(node.follower.batches) > 3
    assert all(len(batch) < 500 for batch in node.follower.batches)
    assert node.retention == "19"
    assert not node.log.committed.is_in_transaction
    # A power cut in the middle of the next one.
    end = len((tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes())
    node.append(*values)
    with (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").open("r+b") as file:
        file.truncate(end + 600)
    again = Node(tmp_path)
    assert again.log.committed.is_in_transaction
    again.lead()
    assert not again.log.committed.is_in_transaction
    again.append("21")
    assert again.retention == "21"


def test_readers_get_whole_batches_and_learn_where_they_diverge(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    for value in "123":
        node.append(value)
    committed = node.log.committed
    assert [header.base_offset for _, header in iter_headers(committed.read(3, 100_000))] == [3, 4, 5]
    assert [header.base_offset for _, header in iter_headers(committed.read(4, 1))] == [4]
    assert committed.read(6, 100) == b""
    assert committed.divergence(1, 6) is None
    assert committed.divergence(0, 0) is None
    assert committed.divergence(1, 7) == (1, 6)
    assert committed.divergence(2, 6) == (1, 6)
    again = Node(tmp_path).lead()
    assert again.log.committed.divergence(1, 6) is None
    assert again.log.committed.divergence(1, 7) == (1, 6)
    assert again.log.write_snapshot(snapshot_of(again.log.committed, again.follower.image)).value is None
    assert again.log.committed.divergence(2, 7) is None


@pytest.mark.skipif(kafka_available() is not None, reason=str(kafka_available()))
def test_apache_kafkas_tools_read_log_and_snapshot(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    promise = node.log.append([LEVEL, setting("1")])
    node.settle()
    assert promise.value == 3
    node.log.write_snapshot(snapshot_of(node.log.committed, node.follower.image))
    node.append("2")
    node.log.close()
    Node(tmp_path).lead().log.close()
    assert check_data_dir(tmp_path) == []
    folder = tmp_path / "__cluster_metadata-0"
    dumped = dump_files(sorted(folder.glob("*.log")), "--cluster-metadata-decoder").stdout
    assert '"name":"retention.ms","value":"2"' in dumped
    assert "LeaderChange" in dumped, dumped
    [snapshot] = folder.glob("*.checkpoint")
    dumped = dump_files([snapshot], "--cluster-metadata-decoder").stdout
    assert '"name":"retention.ms","value":"1"' in dumped
    assert "SnapshotFooter" in dumped


def test_an_image_takes_the_place_of_a_log_that_lost_its_end(tmp_path: Path) -> None:
    node = Node(tmp_path).lead()
    node.append("1")
    node.append("2")
    node.log.close()
    segment = max((tmp_path / "__cluster_metadata-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    again = Node(tmp_path)
    assert again.log.torn_bytes > 0
    assert again.retention == "1"
    replay = Replay(again.follower.image)
    replay.apply(setting("7").message)
    again.log.begin_anew(replay.image())
    assert again.retention == "7"
    again.lead().append("8")
    again.log.close()
    last = Node(tmp_path)
    assert (last.log.torn_bytes, last.retention) == (0, "8")
    assert last.log.epoch == 3, "the image has an epoch of its own"


def test_an_image_takes_the_place_of_a_log_before_it_is_read(tmp_path: Path) -> None:
    Node(tmp_path).lead().append("1")
    other = FileMetadataLog(tmp_path, node_id=1, address=ADDRESS, scheduler=VirtualScheduler(), worker=InlineWorker())
    replay = Replay()
    replay.apply(LEVEL.message)
    replay.apply(setting("7").message)
    other.begin_anew(replay.image())
    follower = ImageKeeper()
    other.start(follower)
    assert follower.image == replay.image()
    assert follower.batches == []
    assert follower.snapshots[0].epoch == 2
    assert follower.quorum == (1, voters(1)), "the folder keeps its kraft.version"


def test_a_folder_of_several_controllers_is_refused(tmp_path: Path) -> None:
    Node(tmp_path, voters=voters(1, 2)).lead()
    with pytest.raises(InvalidMetadata, match="of several controllers, with 2,"):
        Node(tmp_path)


def test_voters_that_are_others_are_not_taken_over(tmp_path: Path) -> None:
    Node(tmp_path, voters=voters(1, 2)).lead()
    other = FileMetadataLog(tmp_path, node_id=1, address=ADDRESS, scheduler=VirtualScheduler(), worker=InlineWorker())
    other.begin_anew(EMPTY_IMAGE)
    follower = ImageKeeper()
    other.start(follower)
    assert follower.quorum == (0, None)
