"""The controllers' log in ZooKeeper, on a fake one: elections, fencing, lost answers, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from oncelog.cluster import committed_log, zookeeper_appends, zookeeper_log, zookeeper_snapshots
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import Create, Delete, Lost, Operation, Reason, Refused, SetData
from oncelog.cluster.zookeeper import Node as ZooKeeperNode
from oncelog.cluster.zookeeper_log import ZooKeeperMetadataLog
from oncelog.cluster.zookeeper_nodes import CONTROLLER, EPOCH, LOG, SNAPSHOT, SNAPSHOTS, log_path, part_path
from oncelog.controller.image import ConfigResource
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from tests.metadata_log_simulation.fake_zookeeper import NOTICED_MS, SESSION_MS, Ensemble, FakeZooKeeper, Process
from tests.unit.cluster.metadata_log import ImageKeeper, setting, snapshot_of, voters
from tests.virtual_clock import VirtualScheduler


class Calm(Random):
    """Nothing is late, stale or lost by chance."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 0.99


class World:
    def __init__(self) -> None:
        self.scheduler = VirtualScheduler()
        self.ensemble = Ensemble(self.scheduler, Calm())

    def node(self, node_id: int) -> Node:
        return Node(self, node_id)

    def run(self, ms: int = 100) -> None:
        self.scheduler.advance_ms(ms)

    def log_nodes(self) -> list[int]:
        return [int(path.rpartition("/")[2]) for path in self.ensemble.paths() if path.startswith(f"{LOG}/")]


class Strict(FakeZooKeeper):
    """Lets nobody write below some paths, as by ACLs."""

    def __init__(self, world: World, process: Process, *closed: str) -> None:
        super().__init__(world.ensemble, process)
        self._closed = closed
        self.refused = 0
        self.requests = 0

    def get(self, path: str) -> Promise[ZooKeeperNode | Lost | None]:
        self.requests += 1
        return super().get(path)

    def multi(self, operations: Sequence[Operation]) -> Promise[Refused | Lost | None]:
        for position, operation in enumerate(operations):
            if operation.path in self._closed:
                self.refused += 1
                return Promise.resolved(Refused(position, Reason.DENIED, "NoAuthError"))
        return super().multi(operations)


class Node(ImageKeeper):
    def __init__(self, world: World, node_id: int, *closed: str, cluster_id: str = "", runs: bool = True) -> None:
        super().__init__()
        self.world = world
        self.faults: list[str] = []
        self.process = Process(world.scheduler)
        self.zookeeper = Strict(world, self.process, *closed)
        self.log = ZooKeeperMetadataLog(
            self.zookeeper,
            node_id=node_id,
            address=Address("127.0.0.1", 9000 + node_id),
            scheduler=self.process,
            cluster_id=cluster_id,
            voters=voters(1, 2),
            on_fault=self.faults.append,
        )
        self.log.start(self)
        self.log.campaign()
        if runs:
            world.run()

    def append(self, *values: str) -> Promise[int | KafkaError]:
        return self.log.append([setting(value) for value in values])

    def appended(self, *values: str) -> int | KafkaError:
        promise = self.append(*values)
        self.world.run()
        return promise.value

    def snapshot(self) -> KafkaError | None:
        promise = self.log.write_snapshot(snapshot_of(self.log.committed, self.image))
        self.world.run(1000)
        return promise.value

    @property
    def retention(self) -> str | None:
        return next((values.get("retention.ms") for values in self.image.settings.values()), None)


@pytest.fixture
def world() -> World:
    return World()


def is_not_active(result: int | KafkaError | None) -> bool:
    return isinstance(result, KafkaError) and result.code == ErrorCode.NOT_CONTROLLER


def is_unknown(result: int | KafkaError | None) -> bool:
    return isinstance(result, KafkaError) and result.code == ErrorCode.REQUEST_TIMED_OUT


def test_the_first_is_active_and_the_others_follow(world: World) -> None:
    first, second = world.node(1), world.node(2)
    leader = Leader(1, 1, Address("127.0.0.1", 9001))
    assert first.leaders == second.leaders == [leader]
    assert first.log.is_active
    assert not second.log.is_active
    assert first.appended("1") == 3
    assert second.retention == "1"
    assert is_not_active(second.appended("2"))
    assert first.quorum == second.quorum == (1, voters(1, 2))


def test_appends_of_one_moment_are_one_multi(world: World) -> None:
    node = world.node(1)
    node.append("1")
    before = world.ensemble.zxid
    promises = [node.append(str(number)) for number in range(2, 12)]
    assert node.log.next_offset == 14
    world.run()
    assert [promise.value for promise in promises] == list(range(4, 14))
    assert world.ensemble.zxid == before + 2
    assert world.log_nodes() == list(range(12))


def test_a_standby_takes_over_when_the_session_of_the_active_one_ends(world: World) -> None:
    first, second = world.node(1), world.node(2)
    first.append("1")
    world.run()
    first.process.kill()
    first.zookeeper.kill()
    world.run(SESSION_MS - 200)
    assert not second.log.is_active
    world.run(400)
    assert second.log.is_active
    assert second.log.epoch == 2
    assert second.appended("2") == 5
    assert second.retention == "2"


def test_a_restarted_controller_waits_for_the_end_of_its_last_session(world: World) -> None:
    """A node /controller with its own number is not its own office."""
    first = world.node(1)
    first.process.kill()
    first.zookeeper.kill()
    again = world.node(1)
    assert not again.log.is_active
    assert again.leaders == []
    assert is_not_active(again.appended("1"))
    world.run(SESSION_MS)
    assert again.log.is_active
    assert again.log.epoch == 2


def test_a_lost_connection_ends_the_office_at_once_and_others_may_already_be_active(world: World) -> None:
    """The client learns of the end of its session only with its next connection."""
    first, second = world.node(1), world.node(2)
    first.zookeeper.isolate()
    world.run(NOTICED_MS)
    assert not first.log.is_active
    assert first.leaders[-1] is None
    world.run(SESSION_MS)
    assert second.log.is_active
    assert second.appended("1") == 4
    first.zookeeper.heal()
    world.run()
    assert first.retention == "1"
    assert first.leaders[-1] == second.log.leader


def test_a_paused_controller_writes_nothing_when_it_wakes_up(world: World) -> None:
    first, second = world.node(1), world.node(2)
    first.process.pause()
    world.run(2 * SESSION_MS)
    assert second.log.is_active
    assert second.appended("1") == 4
    # It still believes what it believed. The connection is gone, but it has not been told yet.
    late = first.append("zombie")
    assert first.log.is_active
    first.process.resume()
    world.run(SESSION_MS)
    assert is_not_active(late.value)
    assert first.retention == "1"
    assert not first.log.is_active


def test_an_append_with_a_stale_epoch_is_refused(world: World) -> None:
    first = world.node(1)
    epoch = world.ensemble.read(EPOCH)
    assert epoch is not None
    promise = first.append("zombie")
    when_answered: list[bool] = []
    promise.then(lambda _: when_answered.append(first.log.is_active))
    world.ensemble.commit([SetData(EPOCH, b"7", epoch.version)], 0)
    world.run()
    assert is_not_active(promise.value)
    assert when_answered == [False], "whoever is told would take it for the active one"
    world.run(500)
    # Nobody else is there: it wins again, with a higher epoch.
    assert first.log.is_active
    assert first.log.epoch == 8
    assert first.retention is None


def test_an_append_whose_answer_was_lost_is_found_in_the_log(world: World) -> None:
    first, second = world.node(1), world.node(2)
    promise = first.append("1")
    world.scheduler.advance_ms(1)
    # Carried out, but the answer is still on its way.
    assert world.log_nodes() == [0, 1]
    first.zookeeper.cut()
    waiting = first.append("2")
    assert is_not_active(waiting.value)
    assert not promise.done
    world.run(1000)
    assert promise.value == 3
    assert first.retention == second.retention == "1"
    assert world.log_nodes() == [0, 1, 2]


def test_an_append_that_never_arrived_fails_after_the_next_connection(world: World) -> None:
    first = world.node(1)
    first.zookeeper.mute()
    promise = first.append("1")
    world.run(NOTICED_MS)
    assert is_not_active(promise.value)
    world.run(1000)
    assert first.log.is_active
    assert first.retention is None


def test_the_pause_after_a_lost_answer_ends_with_the_next_connection(world: World) -> None:
    """Requests fail before the state of the connection is known: the retry must not disturb the next office."""
    node = world.node(1)
    node.append("lost")
    node.zookeeper.cut()
    world.run(100)
    assert node.log.is_active
    epoch = node.log.epoch
    promises = []
    for number in range(30):
        promises.append(node.append(str(number)))
        world.run(10)
    world.run(1000)
    assert node.log.is_active
    assert node.log.epoch == epoch
    assert all(isinstance(promise.value, int) for promise in promises)
    assert node.retention == "29"


def test_an_append_without_an_answer_is_given_up_within_the_time_of_a_session(world: World) -> None:
    """NOT_CONTROLLER would be wrong: it is in the log."""
    first = world.node(1)
    promise = first.append("1")
    world.scheduler.advance_ms(1)
    first.zookeeper.isolate()
    first.zookeeper.cut()
    world.run(SESSION_MS - 200)
    assert not promise.done
    world.run(400)
    assert is_unknown(promise.value)
    assert world.log_nodes() == [0, 1]


def test_an_append_on_its_way_when_the_controller_stops_is_not_called_refused(world: World) -> None:
    first = world.node(1)
    promise = first.append("1")
    world.scheduler.advance_ms(1)
    first.log.close()
    assert is_unknown(promise.value)
    assert world.log_nodes() == [0, 1]


def test_an_append_that_may_be_in_the_snapshot_of_another_controller_is_not_called_refused(world: World) -> None:
    first, second = world.node(1), world.node(2)
    promise = first.append("1")
    world.scheduler.advance_ms(1)
    first.zookeeper.isolate()
    first.zookeeper.cut()
    # Before the first one gives up, the second is in office and replaces the log.
    world.ensemble.commit([Delete(CONTROLLER)], 0)
    world.run(200)
    assert second.log.is_active
    assert second.snapshot() is None
    assert second.appended("2")
    assert not promise.done
    first.zookeeper.heal()
    world.run(200)
    assert is_unknown(promise.value)


def test_the_office_ends_if_nothing_is_answered_even_if_the_connection_seems_to_be_there(world: World) -> None:
    first = world.node(1)
    first.zookeeper._is_mute = True
    promise = first.append("1")
    world.run(SESSION_MS + 100)
    assert not first.log.is_active
    assert is_unknown(promise.value)


def test_a_node_of_ones_own_session_does_not_keep_one_out_of_office(world: World) -> None:
    first = world.node(1)
    session = first.zookeeper.session_id
    first.zookeeper.cut()
    assert not first.log.is_active
    world.run(500)
    assert first.zookeeper.session_id == session
    assert first.log.is_active
    assert first.log.epoch == 2


def test_watches_are_set_again_after_a_lost_connection(world: World) -> None:
    first, second = world.node(1), world.node(2)
    second.zookeeper.cut()
    world.run(500)
    first.append("1")
    world.run()
    assert second.retention == "1"
    first.log.close()
    world.run()
    assert second.log.is_active


def test_a_controller_that_resigns_lets_others_go_first(world: World) -> None:
    first, second = world.node(1), world.node(2)
    sent, waiting = first.append("1"), first.append("2")
    first.log.resign()
    assert is_not_active(waiting.value)
    assert first.leaders[-1] is None
    world.run()
    assert sent.value == 3
    assert second.log.is_active
    assert first.log.leader == second.log.leader
    second.log.resign()
    world.run()
    assert world.ensemble.read(CONTROLLER) is None
    first.log.campaign()
    world.run()
    assert first.log.is_active
    assert first.log.epoch == 3


def test_an_operator_deletes_the_node_and_has_a_controller_elected(world: World) -> None:
    first = world.node(1)
    world.ensemble.commit([Delete(CONTROLLER)], 0)
    world.run(500)
    assert first.log.is_active
    assert first.log.epoch == 2


def test_a_snapshot_replaces_the_log_for_those_who_come_later(world: World) -> None:
    first, second = world.node(1), world.node(2)
    for value in "123":
        first.append(value)
        world.run()
    assert first.snapshot() is None
    assert world.log_nodes() == [3]
    assert first.appended("4") == 6
    late = world.node(3)
    assert late.snapshots == [(6, 1)]
    assert late.image == first.image
    assert late.quorum == first.quorum
    # Those who have the records do not load it, but shorten what they keep.
    assert second.snapshots == []
    assert second.log.committed.start_offset == 6
    first.log.close()
    world.run()
    assert second.log.is_active or late.log.is_active
    third = second if second.log.is_active else late
    assert third.snapshot() is None
    assert len(world.log_nodes()) == 1
    assert len({path.split("/")[2] for path in world.ensemble.paths() if path.startswith(f"{SNAPSHOTS}/")}) == 1


def test_a_reader_that_is_behind_loads_the_snapshot(world: World) -> None:
    first, second = world.node(1), world.node(2)
    second.zookeeper.isolate()
    for value in "12345":
        first.append(value)
        world.run()
    assert first.snapshot() is None
    first.append("6")
    world.run(SESSION_MS)
    second.zookeeper.heal()
    world.run(1000)
    assert second.snapshots == [(8, 1)]
    assert second.image == first.image


def test_a_snapshot_whose_parts_are_gone_is_waited_for_without_haste(world: World) -> None:
    first = world.node(1)
    for value in "12345":
        first.append(value)
        world.run()
    assert first.snapshot() is None
    path = part_path(next(each for each in world.ensemble.paths() if each.startswith(f"{SNAPSHOTS}/")).split("/")[2], 0)
    part = world.ensemble.read(path)
    assert part is not None
    assert world.ensemble.commit([Delete(path)], session=0) is None
    late = world.node(2)
    asked = []
    get = late.zookeeper.get
    late.zookeeper.get = lambda path: asked.append(path) or get(path)  # type: ignore[method-assign, func-returns-value]
    world.run(10_000)
    assert 0 < len(asked) < 10 * 10_000 // zookeeper_log.RETRY_MS
    assert world.ensemble.commit([Create(path, part.data)], session=0) is None
    world.run(1000)
    assert late.image == first.image


def test_snapshots_are_stored_in_parts_and_deleted_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_snapshots, "PART_BYTES_MAX", 50)
    monkeypatch.setattr(zookeeper_snapshots, "DELETED_AT_ONCE_MAX", 3)
    first = world.node(1)
    for number in range(10):
        first.append(str(number))
        world.run()
    assert first.snapshot() is None
    assert len([path for path in world.ensemble.paths() if path.startswith(f"{SNAPSHOTS}/")]) > 5
    assert world.log_nodes() == [10]
    late = world.node(2)
    assert late.image == first.image


def test_what_a_broken_off_snapshot_has_left_is_swept_by_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_snapshots, "PART_BYTES_MAX", 50)
    first, second = world.node(1), world.node(2)
    first.append("1")
    world.run()
    promise = first.log.write_snapshot(snapshot_of(first.log.committed, first.image))
    world.scheduler.advance_ms(12)
    assert not promise.done
    left = [path for path in world.ensemble.paths() if path.startswith(f"{SNAPSHOTS}/")]
    assert left
    first.process.kill()
    first.zookeeper.kill()
    world.run(SESSION_MS + 500)
    assert second.appended("2") == 5
    assert second.snapshot() is None
    assert not set(left) & set(world.ensemble.paths())
    assert world.node(3).image == second.image


def test_appends_are_not_held_up_by_a_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_snapshots, "PART_BYTES_MAX", 20)
    first = world.node(1)
    job = first.log.write_snapshot(snapshot_of(first.log.committed, first.image))
    world.scheduler.advance_ms(6)
    promise = first.append("1")
    world.scheduler.advance_ms(6)
    assert promise.value == 3
    assert not job.done
    world.run()
    assert job.value is None
    assert world.node(2).image == first.image


def test_a_large_append_that_breaks_off_is_undone_by_the_next_controller(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_log, "BATCH_BYTES_MAX", 400)
    monkeypatch.setattr(zookeeper_appends, "BATCH_BYTES_MAX", 400)
    first, second = world.node(1), world.node(2)
    values = [str(number) for number in range(20)]
    assert isinstance(first.appended(*values), int)
    assert second.retention == "19"
    promise = first.append(*reversed(values))
    world.scheduler.advance_ms(3)
    first.process.kill()
    first.zookeeper.kill()
    world.run(SESSION_MS + 500)
    assert not promise.done
    assert second.log.is_active
    assert not second.replay.is_in_transaction
    assert second.retention == "19"
    assert isinstance(second.appended("20"), int)
    assert second.retention == "20"


def test_a_log_that_zookeeper_has_lost_is_not_continued(world: World) -> None:
    """As after a restore of an old copy: the controllers know more than ZooKeeper does."""
    first = world.node(1)
    first.append("1")
    world.run()
    world.ensemble.commit([Delete(f"{LOG}/{1:020}")], 0)
    assert is_not_active(first.appended("2"))
    world.run(2000)
    assert not first.log.is_active
    assert world.log_nodes() == [0]


@pytest.mark.parametrize("lost", [1, 4])
def test_a_log_without_one_of_its_nodes_is_cut_all_the_same(world: World, lost: int) -> None:
    """The active controller knows the rest. Whoever starts reads the snapshot."""
    first = world.node(1)
    for value in "12345":
        first.appended(value)
    world.ensemble.commit([Delete(log_path(lost))], 0)
    for value in "67":
        assert first.snapshot() is None
        first.appended(value)
    assert world.log_nodes()[-2:] == [6, 7]
    late = world.node(2)
    assert late.image == first.image
    first.log.close()
    world.run()
    assert late.log.is_active


def test_a_damaged_pointer_keeps_no_controller_from_appending(world: World) -> None:
    first = world.node(1)
    world.ensemble.commit([Create(f"{SNAPSHOTS}/{3:020}-{1:010}")], 0)
    pointer = world.ensemble.read(SNAPSHOT)
    assert pointer is not None
    error = first.snapshot()
    assert isinstance(error, KafkaError)
    assert "is not stored" in error.message
    assert first.log.is_active
    assert first.appended("1") == 3


def test_a_controller_that_cannot_go_on_lets_another_one_into_office(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.node(1), world.node(2)

    def fail(batch: bytes) -> None:
        raise ValueError("a record of the future")

    monkeypatch.setattr(first, "on_committed", fail)
    first.append("1")
    world.run(1000)
    assert not first.log.is_active
    assert first.leaders[-1] is None
    assert first.faults == ["the metadata log cannot be followed: ValueError('a record of the future')"]
    assert is_not_active(first.append("2").value)
    assert second.log.is_active
    assert second.retention == "1"


def test_a_node_that_nobody_can_read_is_a_fault(world: World) -> None:
    world.ensemble.commit([Create(CONTROLLER, b"{")], 0)
    node = world.node(1)
    world.run(1000)
    assert len(node.faults) == 1


@pytest.mark.parametrize("path", [EPOCH, CONTROLLER, "/log/00000000000000000000"])
def test_a_controller_that_is_not_let_in_ends_with_a_reason(world: World, path: str) -> None:
    node = Node(world, 1, path)
    assert node.faults == [f"this controller may not write {path}: NoAuthError"]
    assert not node.log.is_active
    tries = node.zookeeper.refused
    world.run(10_000)
    assert node.zookeeper.refused == tries == 1


def test_nodes_that_two_controllers_make_at_once_are_made_once(world: World) -> None:
    first, second = Node(world, 1, runs=False), Node(world, 2, runs=False)
    world.run(1000)
    assert first.faults == second.faults == []
    assert first.log.is_active != second.log.is_active


def test_nodes_of_which_some_are_missing_are_a_fault(world: World) -> None:
    world.ensemble.commit([Create(EPOCH, b"0")], 0)
    assert world.node(1).faults == ["there is a node /epoch without a node /log: somebody has deleted it"]


def test_the_metadata_of_another_cluster_is_a_fault(world: World) -> None:
    world.ensemble.commit([Create(EPOCH, b"0"), Create(LOG, b"other"), Create(SNAPSHOT), Create(SNAPSHOTS)], 0)
    node = Node(world, 1, cluster_id="own")
    assert node.faults == ["there is the metadata of cluster other, not of own"]
    assert world.ensemble.read(CONTROLLER) is None


def test_what_the_connection_reports_as_refused_is_a_fault(world: World) -> None:
    node = world.node(1)
    node.log.on_refused("the credentials are not accepted")
    assert node.faults == ["the credentials are not accepted"]
    assert not node.log.is_active
    world.run(5000)
    assert node.faults == ["the credentials are not accepted"]


def test_a_controller_that_waits_for_the_session_of_its_last_process_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Or of another one with its node.id, which nobody else would tell."""
    caplog.set_level("INFO")
    world.node(1).process.pause()
    again = world.node(1)
    world.run(SESSION_MS // 2)
    assert not again.log.is_active
    told = [record.message for record in caplog.records if "waits" in record.message]
    assert len(told) == 1
    assert "node.id 1 too" in told[0]
    world.run(2 * SESSION_MS)
    assert again.log.is_active


def delete_all(world: World) -> None:
    """As an operator can do it: children first."""
    for path in sorted(world.ensemble.paths(), key=len, reverse=True):
        world.ensemble.commit([Delete(path)], 0)


def test_controllers_wait_for_a_log_that_was_deleted_and_say_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first, second = world.node(1), world.node(2)
    first.appended("1")
    delete_all(world)
    world.run(60_000)
    assert [first.log.is_active, second.log.is_active] == [False, False]
    assert first.faults == second.faults == [], "with a restart they would begin an empty log"
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2, "once each"
    assert "/log/00000000000000000001" in told[0]
    assert first.zookeeper.requests + second.zookeeper.requests < 4000


@pytest.mark.parametrize("restored", [[], [EPOCH]])
def test_controllers_that_know_a_log_make_no_other_one(
    world: World, caplog: pytest.LogCaptureFixture, restored: list[str]
) -> None:
    """Also with their next connection. Whoever restores the data finds no nodes in the way."""
    nodes = [world.node(1), world.node(2)]
    nodes[0].appended("1")
    copy = copy_of(world)
    for node in nodes:
        node.zookeeper.isolate()
    world.run(2 * SESSION_MS)
    delete_all(world)
    world.ensemble.commit([Create(path, copy[path]) for path in restored], 0)
    for node in nodes:
        node.zookeeper.heal()
    world.run(2 * SESSION_MS)
    assert world.ensemble.paths() == restored
    assert [node.faults for node in nodes] == [[], []], "with a restart they would begin an empty log"
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2, "once each"
    for path, data in sorted(copy.items()):
        world.ensemble.commit([Create(path, data)], 0)
    world.run(5000)
    assert any(node.log.is_active for node in nodes)
    assert [node.retention for node in nodes] == ["1", "1"]


def test_a_log_that_was_restored_is_gone_on_with(world: World) -> None:
    first, second = world.node(1), world.node(2)
    first.appended("1")
    first.appended("2")
    *_, last = (path for path in world.ensemble.paths() if path.startswith(f"{LOG}/"))
    lost = world.ensemble.read(last)
    assert lost is not None
    world.ensemble.commit([Delete(last), Delete(CONTROLLER)], 0)
    world.run(5000)
    # An older copy: nobody goes on from it, nor makes epochs up.
    assert [first.log.is_active, second.log.is_active] == [False, False]
    epoch = world.ensemble.read(EPOCH)
    assert epoch is not None
    assert epoch.data == b"1"
    # Another controller may have gone on from it, with other contents.
    world.ensemble.commit([Create(last, b"1 3 7\nother")], 0)
    world.run(5000)
    assert [first.log.is_active, second.log.is_active] == [False, False]
    world.ensemble.commit([Delete(last)], 0)
    world.ensemble.commit([Create(last, lost.data)], 0)
    world.run(5000)
    assert first.log.is_active or second.log.is_active
    active = first if first.log.is_active else second
    assert isinstance(active.appended("3"), int)
    assert first.retention == second.retention == "3"


def test_an_epoch_that_was_deleted_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    node = world.node(1)
    node.appended("1")
    world.ensemble.commit([Delete(EPOCH), Delete(CONTROLLER)], 0)
    world.run(60_000)
    assert not node.log.is_active
    assert [record.message for record in caplog.records if "/epoch" in record.message and record.levelname == "ERROR"]
    assert node.zookeeper.requests < 2000
    node.zookeeper.cut()
    world.run(60_000)
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1, "once, and with the next connection it is the same"
    assert "set it to 1" in told[0]


class Slow(Strict):
    """Watches of the log are held back until `release`, as those of a process that stands still for a moment."""

    held: list[Callable[[], None]] | None = None

    def watch(self, path: str, on_event: Callable[[], None]) -> Promise[bool | Lost]:
        if self.held is None or not path.startswith(LOG):
            return super().watch(path, on_event)
        later: Promise[bool | Lost] = Promise()
        self.held.append(lambda: super(Slow, self).watch(path, on_event).then(later.resolve))
        return later

    def release(self) -> None:
        held, self.held = self.held or [], None
        for watch in held:
            watch()


def test_a_log_that_is_cut_before_the_watch_is_set_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.node(1)
    monkeypatch.setattr(f"{__name__}.Strict", Slow)
    second = world.node(2)
    zookeeper = second.zookeeper
    assert isinstance(zookeeper, Slow)
    zookeeper.held = []
    first.appended("1")
    world.run()
    assert zookeeper.held, "it has read to the end, and is about to wait for more"
    for value in "234":
        first.appended(value)
    assert first.snapshot() is None
    assert len(world.log_nodes()) == 1
    zookeeper.release()
    world.run(2000)
    assert second.retention == "4"


@pytest.mark.parametrize("content", [b"0", b"", b"one"])
def test_an_epoch_that_somebody_has_made_anew_is_not_taken_if_the_log_has_a_later_one(
    world: World, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """A batch of an earlier epoch than the one before it could be read by no controller any more."""
    first, second = world.node(1), world.node(2)
    first.appended("1")
    world.ensemble.commit([Delete(EPOCH), Delete(CONTROLLER)], 0)
    world.ensemble.commit([Create(EPOCH, content)], 0)
    world.run(5000)
    assert first.faults == second.faults == []
    assert [first.log.is_active, second.log.is_active] == [False, False]
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2, "once each"
    assert "/epoch" in told[0]
    assert "set it to 1" in told[0]
    # Also by controllers that were not there before.
    late = world.node(3)
    world.run(5000)
    assert (late.faults, late.log.is_active) == ([], False)
    epoch = world.ensemble.read(EPOCH)
    assert epoch is not None
    world.ensemble.commit([SetData(EPOCH, b"1", epoch.version)], 0)
    world.run(5000)
    active = next(node for node in (first, second, late) if node.log.is_active)
    assert active.log.epoch == 2
    assert isinstance(active.appended("2"), int)
    assert first.retention == second.retention == late.retention == "2"


@pytest.mark.parametrize("gap", [(2,), (2, 3), (2, 3, 4), (0, 1)])
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_gap_in_the_log_is_not_written_into(
    world: World, caplog: pytest.LogCaptureFixture, gap: tuple[int, ...], has_snapshot: bool
) -> None:
    """A controller that starts reads to the gap only. What it wrote there could never be followed by the rest."""
    first = world.node(1)
    behind = 0
    if has_snapshot:
        first.appended("0")
        assert first.snapshot() is None
        [last] = world.log_nodes()
        behind = last + 1
    for value in "1234567":
        first.appended(value)
    first.log.close()
    world.run()
    paths = [log_path(behind + number) for number in gap]
    lost = [node for path in paths if (node := world.ensemble.read(path)) is not None]
    assert len(lost) == len(gap)
    world.ensemble.commit([Delete(path) for path in paths], 0)
    before = world.log_nodes()
    second = world.node(2)
    world.run(5000)
    assert world.log_nodes() == before
    assert (second.faults, second.log.is_active) == ([], False)
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert f"{paths[0]} is gone" in told[0]
    world.ensemble.commit([Create(path, node.data) for path, node in zip(paths, lost, strict=True)], 0)
    world.run(5000)
    assert second.log.is_active
    assert second.retention == "7"


def test_a_log_that_another_controller_has_gone_on_with_from_an_older_copy_is_not_followed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Even where what was written anew has as many records as what was lost, so that offsets fit."""
    first, second = world.node(1), world.node(2)
    first.appended("1")
    *_, last = (path for path in world.ensemble.paths() if path.startswith(f"{LOG}/"))
    lost = world.ensemble.read(last)
    assert lost is not None
    world.ensemble.commit([Delete(last), Delete(CONTROLLER)], 0)
    world.run(5000)
    third = world.node(3)
    world.run(5000)
    assert third.log.is_active
    assert isinstance(third.appended("2"), int)
    world.run(5000)
    assert third.retention == "2"
    assert [first.retention, second.retention] == ["1", "1"]
    assert first.faults == second.faults == []
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len([text for text in told if "is not the one that was read" in text]) == 2, "once each"
    third.log.close()
    world.run(2 * SESSION_MS)
    assert [first.log.is_active, second.log.is_active] == [False, False]
    again = world.node(1)
    world.run(5000)
    assert again.log.is_active
    assert again.retention == "2"


def test_the_last_node_that_is_deleted_behind_a_snapshot_is_missed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.node(1)
    first.appended("1")
    assert first.snapshot() is None
    [last] = world.log_nodes()
    world.ensemble.commit([Delete(log_path(last)), Delete(CONTROLLER)], 0)
    world.run(5000)
    assert not first.log.is_active
    assert f"{log_path(last)} is gone" in "".join(caplog.messages)
    epoch = world.ensemble.read(EPOCH)
    assert epoch is not None
    assert epoch.data == b"1"


def restore(world: World, copy: dict[str, bytes]) -> None:
    delete_all(world)
    for path, data in sorted(copy.items()):
        world.ensemble.commit([Create(path, data)], 0)


def copy_of(world: World) -> dict[str, bytes]:
    found = {path: world.ensemble.read(path) for path in world.ensemble.paths() if path != CONTROLLER}
    return {path: node.data for path, node in found.items() if node is not None}


def test_an_older_copy_is_noticed_by_controllers_that_have_all_in_a_snapshot(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no batch behind it to compare, and offsets can fit here as well."""
    first = world.node(1)
    first.appended("1")
    copy = copy_of(world)
    first.appended("2")
    assert first.snapshot() is None
    second = world.node(2)
    assert second.batches == [], "it has read the snapshot alone"
    for node in (first, second):
        node.zookeeper.isolate()
    world.run(2 * SESSION_MS)
    restore(world, copy)
    third = world.node(3)
    world.run(5000)
    assert third.log.is_active
    assert third.log.committed.end_offset == first.log.committed.end_offset == second.log.committed.end_offset
    third.appended("3")
    for node in (first, second):
        node.zookeeper.heal()
    world.run(2 * SESSION_MS)
    assert [first.retention, second.retention, third.retention] == ["2", "2", "3"]
    assert [first.faults, second.faults] == [[], []]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2, "once each"
    third.log.close()
    world.run(2 * SESSION_MS)
    assert [first.log.is_active, second.log.is_active] == [False, False]


def test_a_snapshot_of_another_history_shortens_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It may be of fewer log nodes that have more records."""
    first = world.node(1)
    first.appended("1")
    copy = copy_of(world)
    for value in "234567":
        first.appended(value)
    first.zookeeper.isolate()
    world.run(2 * SESSION_MS)
    restore(world, copy)
    third = world.node(3)
    world.run(5000)
    third.appended(*"abcdefghijkl")
    assert third.snapshot() is None
    end_offset = first.log.committed.end_offset
    assert third.log.committed.start_offset > end_offset
    first.zookeeper.heal()
    world.run(2 * SESSION_MS)
    assert first.log.committed.start_offset <= first.log.committed.end_offset == end_offset
    assert (first.faults, first.retention, first.log.is_active) == ([], "7", False)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


@pytest.mark.parametrize("lost_records", [1, 3])
def test_of_another_history_whose_beginning_was_cut_all_is_read_or_nothing(
    world: World, caplog: pytest.LogCaptureFixture, lost_records: int
) -> None:
    """The node that could tell is gone, and the next one may fit."""
    first = world.node(1)
    first.appended("1")
    copy = copy_of(world)
    first.log.append([setting(str(number), topic="lost") for number in range(lost_records)])
    world.run()
    first.zookeeper.isolate()
    world.run(2 * SESSION_MS)
    restore(world, copy)
    third = world.node(3)
    world.run(5000)
    third.log.write_snapshot(snapshot_of(third.log.committed, third.image))
    third.append("3")
    world.run(1000)
    assert world.log_nodes() == [len(first.batches)], "the last one that was read is not there, the next one is"
    first.zookeeper.heal()
    world.run(2 * SESSION_MS)
    assert first.faults == []
    if lost_records == 1:
        assert first.image == third.image
    else:
        assert (first.end_offset, first.log.is_active) == (first.log.committed.end_offset, False)
        assert ConfigResource(2, "lost") in first.image.settings
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
