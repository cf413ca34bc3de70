"""What a source makes of topics that are gone or shorter than they were."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog.client import IsolationLevel, OffsetAndMetadata, TopicFacts, TopicPartition
from oncelog.client.admin import OffsetResult
from oncelog.spark import sink, topic_plan
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.offsets import LATEST, Offsets, StreamOffset
from oncelog.spark.planning import OffsetRange
from oncelog.spark.sink_options import sink_options
from oncelog.spark.source import TopicStreamReader
from oncelog.spark.source_options import OptionError, parse_source_options
from oncelog.spark.topic_plan import DataLost, TopicPlan

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Topics:
    """Stands for the cluster. All partitions begin at 0, unless told otherwise."""

    def __init__(
        self,
        committed: Offsets,
        written: Offsets | None = None,
        ids: dict[str, str] | None = None,
        begin: Offsets | None = None,
    ) -> None:
        self.committed = committed
        self.written = written or committed
        self.ids = ids or {}
        self.begin = begin or {}

    def partitions_of(self, topics: Collection[str] | None) -> dict[str, list[TopicPartition]]:
        there: dict[str, list[TopicPartition]] = {}
        for partition in sorted(self.committed):
            if topics is None or partition.topic in topics:
                there.setdefault(partition.topic, []).append(partition)
        return there

    def topic_facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        return {name: TopicFacts(len(partitions)) for name, partitions in self.partitions_of(topics).items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetResult]:
        ends = self.committed if isolation is IsolationLevel.READ_COMMITTED else self.written
        return {
            partition: OffsetResult(ends[partition] if which == LATEST else self.begin.get(partition, 0), -1, -1)
            for partition, which in wanted.items()
        }


def make_plan(monkeypatch: pytest.MonkeyPatch, topics: Topics, *, streaming: bool = True, **options: str) -> TopicPlan:
    monkeypatch.setattr(topic_plan, "worker_client", lambda _: topics)
    given = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a,b", **options}
    return TopicPlan(parse_source_options(given, streaming=streaming))


def test_a_stream_that_may_lose_data_goes_on_without_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, Topics({A0: 5}), failOnDataLoss="false")
    known = StreamOffset({A0: 3, B0: 7})
    assert plan.latest_offsets(known) == plan.latest_offsets() == StreamOffset({A0: 5})
    assert plan.begin_of_next(known, StreamOffset({A0: 5})) == StreamOffset({A0: 3})
    # A batch that was planned while the topic was there.
    assert plan.ranges({A0: 3, B0: 7}, {A0: 5, B0: 9}) == [OffsetRange(A0, 3, 5)]


def test_a_stream_that_may_lose_data_waits_when_all_its_topics_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, Topics({}), failOnDataLoss="false")
    known = StreamOffset({A0: 3, B0: 7}, topic_ids={"a": "1"})
    assert plan.latest_offsets(known) == known
    with pytest.raises(OptionError, match="topic a does not exist"):
        plan.latest_offsets()


def test_single_partitions_that_are_gone_are_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned = {"assign": '{"a": [0, 1], "b": [0]}', "failOnDataLoss": "false"}
    monkeypatch.setattr(topic_plan, "worker_client", lambda _: Topics({A0: 5}))
    given = {"kafka.bootstrap.servers": "nowhere:1", **assigned}
    plan = TopicPlan(parse_source_options(given, streaming=True))
    assert plan.latest_offsets(StreamOffset({A0: 1, A1: 2})) == StreamOffset({A0: 5})


def test_a_stream_that_must_not_lose_data_stops_at_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, Topics({A0: 5}))
    with pytest.raises(OptionError, match="topic b does not exist"):
        plan.latest_offsets(StreamOffset({A0: 3, B0: 7}))


def test_what_an_open_transaction_holds_back_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was read_uncommitted has read it already; read_committed, it waits for the transaction."""
    topics = Topics({A0: 5, B0: 1}, written={A0: 9, B0: 1})
    plan = make_plan(monkeypatch, topics)
    plan.begin_of_next(StreamOffset({A0: 9, B0: 1}), plan.latest_offsets())
    with pytest.raises(DataLost, match=r"a-0 ends at 9, before offset 10 where the stream is"):
        plan.begin_of_next(StreamOffset({A0: 10, B0: 1}), plan.latest_offsets())


def test_a_stream_that_may_lose_data_goes_on_where_a_partition_ends_that_was_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an unclean election: what comes then is new, although the stream had read beyond these offsets."""
    topics = Topics({A0: 90, B0: 1}, ids={"a": "same", "b": "same"})
    known = StreamOffset({A0: 100, B0: 1}, topic_ids=topics.ids)
    plan = make_plan(monkeypatch, topics, failOnDataLoss="false")
    for _ in range(2):
        assert plan.begin_of_next(known, plan.latest_offsets()) == StreamOffset({A0: 90, B0: 1}, first={A0: 90})
    assert caplog.text.count("a-0 ends at 90, before offset 100 where the stream is") == 1
    assert plan.batch_ranges(known, StreamOffset({A0: 95, B0: 1}, {A0: 90}), is_first=False) == [
        OffsetRange(A0, 90, 95)
    ]


def test_a_stream_keeps_where_it_goes_on_in_a_partition_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics({A0: 90})
    make_plan(monkeypatch, topics)
    given = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a", "failOnDataLoss": "false"}
    reader = TopicStreamReader(parse_source_options(given, streaming=True))
    at_its_end = reader.latestOffset({"a": {"0": 100}}, ReadAllAvailable())
    assert at_its_end == {"a": {"0": 90}, "@oncelog": {"first": {"a": {"0": 90}}}}
    assert reader.latestOffset(at_its_end, ReadAllAvailable()) == at_its_end
    topics.committed[A0] = 95
    assert reader.latestOffset(at_its_end, ReadAllAvailable()) == {"a": {"0": 95}}


def test_a_table_is_not_waited_for_beyond_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics({A0: 20, B0: 5}, written={A0: 22, B0: 5})
    beyond = {"endingOffsets": '{"a": {"0": 30}, "b": {"0": 5}}'}
    with pytest.raises(DataLost, match="a-0 ends at 22, before offset 30 of the ending position"):
        make_plan(monkeypatch, topics, streaming=False, **beyond).ending_offsets()
    lossy = make_plan(monkeypatch, topics, streaming=False, failOnDataLoss="false", **beyond)
    assert lossy.ending_offsets() == {A0: 22, B0: 5}


def test_a_table_that_ends_before_it_starts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, Topics({A0: 20, B0: 5}), streaming=False)
    plan.check_order({A0: 20, B0: 0}, {A0: 20, B0: 5})
    with pytest.raises(OptionError, match="a-0: the starting position, offset 21, lies behind the ending position"):
        plan.check_order({A0: 21, B0: 0}, {A0: 20, B0: 5})
    group = {"startingOffsets": "committed", "kafka.group.id": "g"}
    make_plan(monkeypatch, Topics({A0: 20}), streaming=False, **group).check_order({A0: 21}, {A0: 20})


def test_a_topic_that_was_made_again_is_not_the_one_the_stream_was_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics({A0: 150, B0: 1}, ids={"a": "new", "b": "same"})
    known = StreamOffset({A0: 100, B0: 1}, topic_ids={"a": "old", "b": "same"})
    plan = make_plan(monkeypatch, topics)
    with pytest.raises(DataLost, match=r"topic a was deleted and created again \(its id was old and is new\)"):
        plan.begin_of_next(known, plan.latest_offsets())
    # A batch that was planned before that.
    with pytest.raises(DataLost, match="topic a was deleted and created again"):
        plan.batch_ranges(StreamOffset({A0: 50, B0: 0}), known, is_first=False)
    plan = make_plan(monkeypatch, topics, failOnDataLoss="false")
    assert plan.begin_of_next(known, plan.latest_offsets()) == StreamOffset({A0: 0, B0: 1}, first={A0: 0})
    assert plan.batch_ranges(StreamOffset({A0: 50, B0: 0}), known, is_first=False) == [OffsetRange(B0, 0, 1)]


def test_a_partition_that_appeared_without_its_beginning_is_lost_data(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, known = Topics({A0: 5, A1: 100}, begin={A1: 60}), StreamOffset({A0: 5})
    plan = make_plan(monkeypatch, topics, subscribe="a")
    with pytest.raises(DataLost, match=r"a-1 is new to the stream, and its offsets 0 to 60 are deleted already"):
        plan.begin_of_next(known, plan.latest_offsets())
    plan = make_plan(monkeypatch, topics, subscribe="a", failOnDataLoss="false")
    assert plan.begin_of_next(known, plan.latest_offsets()).first == {A1: 60}


def test_a_checkpoint_without_topic_ids_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, Topics({A0: 150, B0: 1}, ids={"a": "new", "b": "same"}))
    known = StreamOffset({A0: 100, B0: 1})
    assert plan.begin_of_next(known, plan.latest_offsets()) == known
    assert plan.batch_ranges(known, StreamOffset({A0: 150, B0: 1}), is_first=False) == [OffsetRange(A0, 100, 150)]


@pytest.mark.parametrize(
    ("starting", "begins", "ends", "reads"),
    [
        ("earliest", 0, 9, (0, 9)),
        ("earliest", 4, 9, None),
        ("earliest", 4, 0, ()),
        ("latest", 0, 9, None),
        ("latest", 0, 0, ()),
        ('{"a": {"0": 5}, "b": {"0": 0}}', 4, 9, (5, 9)),
        ('{"a": {"0": -2}, "b": {"0": 0}}', 4, 9, None),
    ],
)
def test_a_first_batch_of_an_earlier_version_begins_where_it_must_have_begun(
    monkeypatch: pytest.MonkeyPatch, starting: str, begins: int, ends: int, reads: tuple[int, ...] | None
) -> None:
    """Its plan does not tell, and where it would begin now may not be where it began."""
    topics = Topics({A0: 30, B0: 0}, begin={A0: begins})
    end = StreamOffset({A0: ends, B0: 0})
    plan = make_plan(monkeypatch, topics, startingOffsets=starting)
    if reads is None:
        with pytest.raises(DataLost, match="a-0: the batch that ends at 9 was planned by an earlier version"):
            plan.batch_ranges(StreamOffset({}), end, is_first=True)
    else:
        wanted = [OffsetRange(A0, *reads)] if reads else []
        assert plan.batch_ranges(StreamOffset({}), end, is_first=True) == wanted


def as_known(
    monkeypatch: pytest.MonkeyPatch, topics: Topics, end: Offsets, committed: Collection[TopicPartition] = ()
) -> tuple[Offsets, bool]:
    monkeypatch.setattr(sink, "worker_client", lambda _: topics)
    options = sink_options(
        bootstrap_servers="nowhere:1",
        transactional_id="x",
        group_id=None,
        on_new_checkpoint="refuse",
        kafka=None,
        topic="out",
    )
    batch = MicroBatch("q", 1, "file:/c", {A0: 0, A1: 0, B0: 0}, end, only_kafka=True)
    known = sink.only_existing_partitions(
        options, batch, {partition: OffsetAndMetadata(0, "") for partition in committed}
    )
    return known.end, known.only_kafka


def test_a_sink_knows_only_input_of_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics({A0: 5})
    assert as_known(monkeypatch, topics, {A0: 5}) == ({A0: 5}, True)
    assert as_known(monkeypatch, topics, {A0: 5, A1: 2, B0: 7}) == ({A0: 5}, False)
    assert as_known(monkeypatch, topics, {B0: 7}) == ({}, False)
    assert as_known(monkeypatch, topics, {}) == ({}, True)


def test_a_topic_that_the_group_knows_is_not_given_up_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets would stay behind, and the next batch would be taken for one of an old checkpoint."""
    topics = Topics({})
    looks: list[float] = []

    def look_again(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            topics.committed[A0] = 5

    monkeypatch.setattr(sink.time, "sleep", look_again)
    assert as_known(monkeypatch, topics, {A0: 5}, committed=[A0]) == ({A0: 5}, True)
    assert len(looks) == 2
    # One that stays away was deleted.
    assert as_known(monkeypatch, topics, {A0: 5, B0: 3}, committed=[A0, B0]) == ({A0: 5}, False)
