"""The same questions asked of a broker with real producers and readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from oncelog.client import Admin, ClientConfig, Consumer, Producer, TopicPartition
from oncelog.client.fetcher import RangeReader
from oncelog.monitoring import commit_meter, visible_records
from oncelog.monitoring import timeline as timeline_module
from oncelog.monitoring import transaction_history as history
from oncelog.monitoring.groups import describe_group
from oncelog.monitoring.offset_reset import PartitionReset, plan_reset
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.positions import Position, PositionKind
from oncelog.monitoring.producers import partition_producers
from oncelog.monitoring.snapshot import Poller
from oncelog.monitoring.timeline import KnownBatches, read_timeline
from oncelog.monitoring.transaction_spans import TransactionOutcome
from oncelog.monitoring.visible_records import KnownRecords, count_visible
from oncelog.testing import BrokerProcess, broker
from tests.unit.monitoring.conftest import SETTINGS
from tests.waiting import wait_until

Transactional = Callable[[str], Producer]


def commit(producer: Producer, topic: str, count: int) -> None:
    with producer.transaction():
        for _ in range(count):
            producer.send(topic, b"x")


def abort(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, b"x").result(30)
    producer.abort_transaction()


def leave_open(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, b"x").result(30)


def test_a_poll_finds_an_open_transaction_and_who_waits_for_it(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    commit(transactional(f"done-{topic}"), topic, 2)
    leave_open(transactional(f"open-{topic}"), topic)
    admin.alter_group_offsets(f"group-{topic}", {place: 1})
    snapshot = Poller(admin).poll()
    (held,) = [one for one in snapshot.held_back if one.partition == place]
    assert [one.transactional_id for one in held.blocking] == [f"open-{topic}"]
    assert snapshot.groups_waiting_at(place) == [f"group-{topic}"]
    found = {one.transactional_id: one for one in snapshot.transactions}
    assert found[f"done-{topic}"].listing.state == "CompleteCommit"
    opened = found[f"open-{topic}"]
    assert opened.listing.state == "Ongoing"
    assert opened.description is not None
    assert opened.description.partitions == [place]
    assert opened.age_ms(snapshot.taken_ms) is not None
    (group,) = [state.group for state in snapshot.groups if state.listing.group_id == f"group-{topic}"]
    assert group is not None
    assert group.lag == 3
    assert sum(one.leads for one in snapshot.brokers) == sum(len(t.partitions) for t in snapshot.topics.values())


def test_a_poll_finds_the_transaction_that_holds_offsets_of_a_group(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    producer, group = transactional(f"commits-{topic}"), f"group-{topic}"
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, group)
    poller = Poller(admin)
    assert f"commits-{topic}" in [one.transactional_id for one in poller.poll().offsets_held_by(group)]
    producer.commit_transaction()
    wait_until(lambda: f"commits-{topic}" not in [o.transactional_id for o in poller.poll().offsets_held_by(group)])
    assert describe_group(admin, group).partitions[0].committed == 1


def test_the_timeline_has_every_transaction_with_its_outcome(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    first, second = transactional(f"first-{topic}"), transactional(f"second-{topic}")
    commit(first, topic, 2)
    abort(second, topic)
    leave_open(first, topic)
    timeline = read_timeline(admin, place)
    shown = [(s.first_offset, s.marker_offset, s.outcome) for s in timeline.spans]
    assert shown == [
        (0, 2, TransactionOutcome.COMMITTED),
        (3, 4, TransactionOutcome.ABORTED),
        (5, None, TransactionOutcome.OPEN),
    ]
    assert (timeline.start, timeline.end, timeline.offsets.last_stable) == (0, 6, 5)
    assert [(one.transactional_id, one.start_offset) for one in timeline.open] == [(f"first-{topic}", 5)]
    committed, aborted = timeline.spans[0].producer_id, timeline.spans[1].producer_id
    assert timeline.outcome_of(committed, 1) is TransactionOutcome.COMMITTED
    assert timeline.outcome_of(aborted, 3) is TransactionOutcome.ABORTED
    assert timeline.outcome_of(committed, 5) is TransactionOutcome.OPEN
    assert timeline.outcome_of(aborted, 1) is None


def test_who_looks_again_reads_only_what_is_new_and_sees_the_same(
    admin: Admin, transactional: Transactional, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, known = TopicPartition(topic, 0), KnownBatches()
    producer, other = transactional(f"again-{topic}"), transactional(f"other-{topic}")
    asked: list[int] = []
    read = RangeReader.read
    monkeypatch.setattr(
        RangeReader,
        "read",
        lambda self, topic, number, start, end: (asked.append(start), read(self, topic, number, start, end))[1],
    )
    leave_open(other, topic)
    for turn in range(3):
        commit(producer, topic, 2)
        end = read_timeline(admin, place, turn, known=known).end
    assert asked == [0, 4, 7]
    other.commit_transaction()
    before = read_timeline(admin, place, 2, known=known)
    assert asked[3:] == [end], "only the marker is new"
    assert before == read_timeline(admin, place, 2)
    read_timeline(admin, place, 0, known=known)
    assert asked[-1] == 0, "what was forgotten is read again"
    known.end = 1_000
    assert read_timeline(admin, place, 5, known=known) == read_timeline(admin, place, 5), "a log that is another one"


def test_a_timeline_is_bounded_by_offsets_and_by_batches(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    producer = transactional(f"many-{topic}")
    for _ in range(4):
        commit(producer, topic, 1)
    part = read_timeline(admin, place, 2, 6)
    assert [(span.first_offset, span.marker_offset) for span in part.spans] == [(2, 3), (4, 5)]
    assert (part.start, part.end) == (2, 6)
    short = read_timeline(admin, place, batches_max=3)
    assert (short.start, short.end) == (0, 3)
    assert [span.outcome for span in short.spans] == [TransactionOutcome.COMMITTED, TransactionOutcome.OPEN], (
        "the marker was not read"
    )


def test_who_follows_a_full_timeline_gets_to_its_end_and_still_sees_who_holds_readers_back(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    place, known = TopicPartition(topic, 0), KnownBatches()
    holder, producer = transactional(f"holder-{topic}"), transactional(f"quick-{topic}")
    leave_open(holder, topic)
    for turn in range(4):
        commit(producer, topic, 1)
        found = read_timeline(admin, place, 0, batches_max=4, newest=True, known=known)
        assert found.end == found.asked_end == found.offsets.end, f"turn {turn}"
    assert (found.start, found.asked_start, len(known.batches)) == (5, 0, 4)
    assert [(span.first_offset, span.outcome.value) for span in found.spans] == [
        (0, "open"),
        (5, "committed"),
        (7, "committed"),
    ]
    at_once = read_timeline(admin, place, 0, batches_max=4, newest=True)
    assert at_once == found, "whoever comes later sees the same"
    assert read_timeline(admin, place, 7, batches_max=4, newest=True, known=known).start == 7
    leave_open(producer, topic)
    assert read_timeline(admin, place, 3, 6, batches_max=2, newest=True).asked_end == 6


def test_markers_and_aborted_records_do_not_count_as_visible(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    producer = transactional(f"counted-{topic}")
    started_ms = int(time.time() * 1000)
    commit(producer, topic, 3)
    abort(producer, topic)
    offsets = partition_offsets(admin, [place])[place]
    all_of_it = count_visible(admin, place, 0, offsets)
    assert (all_of_it.records, all_of_it.is_exact) == (3, True)
    assert all_of_it.oldest_ms is not None
    assert all_of_it.oldest_ms >= started_ms
    assert count_visible(admin, place, 2, offsets).records == 1
    caught_up = count_visible(admin, place, 3, offsets)
    assert (caught_up.records, caught_up.oldest_ms) == (0, None), "a lag of 3 offsets, and nothing to read"
    assert (all_of_it.markers, caught_up.markers, count_visible(admin, place, 4, offsets).markers) == (2, 2, 1)
    commit(producer, topic, 1)
    later = partition_offsets(admin, [place])[place]
    assert not count_visible(admin, place, 0, later, batches_max=1).is_exact


def test_who_counts_again_reads_only_what_is_new_and_finds_the_same(
    admin: Admin, transactional: Transactional, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, known = TopicPartition(topic, 0), KnownRecords()
    producer = transactional(f"again-counted-{topic}")
    asked: list[int] = []
    read = RangeReader.read
    monkeypatch.setattr(
        RangeReader,
        "read",
        lambda self, topic, number, start, end: (asked.append(start), read(self, topic, number, start, end))[1],
    )

    def count(position: int, batches_max: int = 100) -> visible_records.VisibleRecords:
        offsets = partition_offsets(admin, [place])[place]
        found = count_visible(admin, place, position, offsets, batches_max=batches_max, known=known)
        before = len(asked)
        assert found == count_visible(admin, place, position, offsets, batches_max=batches_max), "as who counts anew"
        del asked[before:]
        return found

    commit(producer, topic, 3)
    abort(producer, topic)
    assert (count(0).records, count(0).markers, asked) == (3, 2, [0]), "nothing new, and nobody is asked"
    commit(producer, topic, 2)
    assert (count(1).records, asked) == (4, [0, 6]), "from inside of a batch"
    assert (count(4).records, asked) == (2, [0, 6])
    assert (count(2).records, asked) == (3, [0, 6, 2]), "what was forgotten is read again"
    for _ in range(3):
        commit(producer, topic, 1)
    full = count(6, batches_max=2)
    assert (full.records, full.is_exact) == (3, False)
    del asked[:]
    assert (count(6, batches_max=2).records, asked) == (3, []), "a full count is not read again"
    moved = count(9, batches_max=2)
    assert (moved.records, moved.is_exact) == (2, False)
    assert asked == [11], "it goes on where it stopped"
    known.end = 1_000
    assert count(0).records == 8, "a log that is another one"


def test_the_history_of_an_id_has_every_change(admin: Admin, transactional: Transactional, topic: str) -> None:
    name = f"history-{topic}"
    commit(transactional(name), topic, 1)
    transactional(name)
    events = history.read_history(admin, name)
    assert [event.what for event in events] == [
        history.INITIALISED,
        history.BEGAN,
        history.COMMITTING,
        history.COMMITTED,
        history.INITIALISED,
    ]
    assert events[1].partitions == (TopicPartition(topic, 0),)
    assert events[-1].producer_epoch > events[0].producer_epoch
    assert history.initialisations(events, since_ms=0) == 2
    assert history.initialisations(events, since_ms=events[-1].time_ms + 1) == 0
    assert history.read_history(admin, f"nobody-{topic}") == []
    assert [event.what for event in history.read_history(admin, name, offsets_max=1)] in ([], [history.INITIALISED])


def test_producers_are_shown_with_their_transactional_ids(
    admin: Admin, transactional: Transactional, topic: str, shared_broker: BrokerProcess
) -> None:
    commit(transactional(f"named-{topic}"), topic, 1)
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        producer.send(topic, b"x").result(30)
    found = partition_producers(admin, [TopicPartition(topic, 0)])
    assert sorted(one.transactional_id or "" for one in found) == ["", f"named-{topic}"]


def test_a_group_is_described_with_offsets_of_topics_that_are_gone(
    admin: Admin, transactional: Transactional, topic: str
) -> None:
    commit(transactional(f"writer-{topic}"), topic, 2)
    place, gone = TopicPartition(topic, 0), TopicPartition(f"gone-{topic}", 0)
    admin.create_topics([gone.topic])
    admin.alter_group_offsets(f"reader-{topic}", {place: 1, gone: 0})
    admin.delete_topics([gone.topic])
    group = describe_group(admin, f"reader-{topic}")
    found = {one.partition: one for one in group.partitions}
    assert found[place].lag is not None
    assert found[place].lag.total == 2
    assert gone not in found or found[gone].lag is None


class TestPlanReset:
    @pytest.fixture
    def place(self, admin: Admin, transactional: Transactional, topic: str) -> TopicPartition:
        """Offsets 0 to 4; the group has committed 2."""
        commit(transactional(f"writer-{topic}"), topic, 3)
        place = TopicPartition(topic, 0)
        admin.alter_group_offsets(f"group-{topic}", {place: 2})
        return place

    @pytest.mark.parametrize(
        ("target", "after"),
        [
            (Position(PositionKind.EARLIEST), 0),
            (Position(PositionKind.LATEST), 4),
            (Position(PositionKind.OFFSET, 3), 3),
            (Position(PositionKind.OFFSET, 99), 4),
            (Position(PositionKind.RELATIVE, -1), 1),
            (Position(PositionKind.RELATIVE, -5), 0),
            (Position(PositionKind.TIME_MS, 1), 0),
            (Position(PositionKind.TIME_MS, 2**43), 4),
        ],
        ids=str,
    )
    def test_the_plan_stays_within_the_log(
        self, admin: Admin, place: TopicPartition, target: Position, after: int
    ) -> None:
        group = f"group-{place.topic}"
        (plan,) = plan_reset(admin, group, [place], target)
        assert isinstance(plan, PartitionReset)
        assert (plan.before, plan.after) == (2, after)
        assert admin.group_offsets(group)[place].offset == 2, "nothing has changed yet"

    def test_what_was_never_committed_cannot_be_shifted(self, admin: Admin, place: TopicPartition) -> None:
        with pytest.raises(ValueError, match=f"{place} has no committed offset to start from"):
            plan_reset(admin, "nobody", [place], Position(PositionKind.RELATIVE, 1))


@pytest.fixture
def unused_broker() -> Iterator[BrokerProcess]:
    """Nobody has used a transactional id."""
    with broker(SETTINGS) as process:
        yield process


def test_the_first_events_of_a_cluster_are_not_missed(unused_broker: BrokerProcess) -> None:
    servers = unused_broker.bootstrap_servers
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin, Consumer({"bootstrap.servers": servers}) as consumer:
        admin.create_topics(["orders"])
        assert history.read_history(admin, "first") == []
        follower = history.TransactionFollower(admin, consumer)
        assert follower.poll(20) == []
        with Producer({"bootstrap.servers": servers, "transactional.id": "first"}) as producer:
            producer.init_transactions()
            commit(producer, "orders", 1)
        seen: list[str] = []
        deadline_s = time.monotonic() + 60
        while history.COMMITTED not in seen:
            assert time.monotonic() < deadline_s, seen
            seen += [event.what for event in follower.poll(20)]
    assert seen == [history.INITIALISED, history.BEGAN, history.COMMITTING, history.COMMITTED]


def state_offsets(admin: Admin) -> dict[TopicPartition, PartitionOffsets]:
    return partition_offsets(admin, history.state_partitions(admin))


def test_commits_and_aborts_are_counted_and_timed(admin: Admin, transactional: Transactional, topic: str) -> None:
    producer = transactional(f"rates-{topic}")
    meter = commit_meter.CommitMeter(admin)
    assert meter.look(state_offsets(admin), 1_000) is None, "there is no span of time yet"
    for _ in range(4):
        commit(producer, topic, 1)
    abort(producer, topic)
    wait_until(lambda: {one.state for one in history.read_history(admin, f"rates-{topic}")[-1:]} == {"CompleteAbort"})
    now_ms = int(time.time() * 1000)
    rates = meter.look(state_offsets(admin), now_ms)
    assert rates is not None
    lasted_s = (now_ms - 1_000) / 1000
    assert rates.commits_per_second * lasted_s == pytest.approx(4)
    assert rates.aborts_per_second * lasted_s == pytest.approx(1)
    assert rates.is_exact
    assert rates.p50_ms is not None and rates.p99_ms is not None and 0 <= rates.p50_ms <= rates.p99_ms


def test_where_there_is_too_much_a_part_stands_for_all(
    admin: Admin, transactional: Transactional, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = transactional(f"many-{topic}")
    meter = commit_meter.CommitMeter(admin)
    meter.look(state_offsets(admin), 0)
    for _ in range(20):
        commit(producer, topic, 1)
    wait_until(lambda: {one.state for one in history.read_history(admin, f"many-{topic}")[-1:]} == {"CompleteCommit"})
    monkeypatch.setattr(commit_meter, "OFFSETS_MAX", 10)
    rates = meter.look(state_offsets(admin), 1_000)
    assert rates is not None
    assert not rates.is_exact
    assert 10 <= rates.commits_per_second <= 40


def test_large_records_are_read_in_several_looks(
    admin: Admin, shared_broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, known = TopicPartition(topic, 0), KnownBatches()
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        for _ in range(6):
            producer.send(topic, bytes(900_000)).result(30)
    for module in (timeline_module, visible_records):
        monkeypatch.setattr(module, "READ_BYTES_MAX", 1_500_000)
    ends = [read_timeline(admin, place, known=known).end for _ in range(3)]
    assert ends[-1] == 6
    assert ends[0] < 6, "not all at once"
    offsets = partition_offsets(admin, [place])[place]
    counted = count_visible(admin, place, 0, offsets)
    assert not counted.is_exact
    assert 0 < counted.records < 6
