"""The drivers on a small broker: they find everything that was sent, and notice what is missing or changed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from oncelog.bench.driver import clients, consume, produce, topics
from oncelog.bench.driver.__main__ import ACTIONS
from oncelog.bench.driver.commit_cost import commit_cost
from oncelog.bench.driver.figures import percentile_figures
from oncelog.bench.driver.groups import groups
from oncelog.bench.driver.ids import init_ids
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.latency import latency
from oncelog.bench.driver.payload import ABORTED, pool
from oncelog.bench.driver.topics import create, delete
from oncelog.bench.driver.transactions import is_aborted, transactions
from oncelog.bench.measurement import Distribution
from oncelog.bench.workload import Workload
from oncelog.testing import broker

_numbers = itertools.count()
MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    few = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with broker(few) as process:
        yield process.bootstrap_servers


@pytest.fixture
def job(servers: str) -> MakeJob:
    """A job on a new topic, or on the topic of another job."""

    def make(kind: str, on: Job | None = None, expected: int | None = None, **fields: Any) -> Job:
        workload = Workload("w", kind, "w", **{"records": 500, "linger_ms": 1, **fields})
        made = Job(kind, servers, on.topic if on else f"topic-{next(_numbers)}", workload, expected)
        if on is None:
            create(made)
        return made

    return make


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is missing: half a second of silence is nothing on a busy machine."""
    monkeypatch.setattr(clients, "SETTLE_S", 3.0)
    monkeypatch.setattr(consume, "SILENCE_S", 5.0)


def test_a_job_survives_its_journey(job: MakeJob) -> None:
    made = job("produce", settings=(("client.id", "x"),), expected=3)
    assert Job.from_json(made.to_json()) == made
    assert all(action in ACTIONS for action in ("produce", "consume", "first-ack", "survivors"))


@pytest.mark.parametrize(
    "fields",
    [{}, {"partitions": 3}, {"compression": "lz4"}, {"acks": "0", "idempotence": False}, {"rate_per_s": 5000}],
    ids=["plain", "partitions", "lz4", "acks-0", "rate"],
)
def test_what_is_produced_is_found_by_a_reader_that_looks_at_everything(job: MakeJob, fields: dict[str, Any]) -> None:
    writing = job("produce", **fields)
    written = produce.produce(writing)
    assert written.problem == "" and written.arrived == 500 and written.figures["records_per_s"] > 0
    for read in (consume.consume, consume.verify, consume.survivors):
        assert read(job("consume", on=writing, partitions=writing.workload.partitions)).problem == ""
    delete(writing)


def test_a_rate_that_is_offered_is_kept(job: MakeJob) -> None:
    assert produce.produce(job("produce", records=200, rate_per_s=400)).figures["seconds"] >= 0.49


def test_a_record_that_never_reached_the_log_is_noticed(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def send_one_less(producing: clients.Producing, job: Job, _: Iterator[bytes]) -> None:
        for number in range(2, job.workload.records):
            producing.send(job.topic, b"x", number % job.workload.partitions)

    monkeypatch.setattr(produce, "_send_all", send_one_less)
    assert produce.produce(job("produce")).problem == "499 records where 500 were expected"


def test_the_clock_starts_when_a_first_record_is_acknowledged(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ends = job("produce"), []
    send_all = produce._send_all

    def look(producing: clients.Producing, job: Job, values: Iterator[bytes]) -> None:
        ends.append(clients.end_offsets(job, range(job.workload.partitions)))
        send_all(producing, job, values)

    monkeypatch.setattr(produce, "_send_all", look)
    assert produce.produce(made).problem == "" and ends == [1]


def test_a_reader_notices_what_is_missing_and_what_is_too_much(job: MakeJob) -> None:
    writing = job("produce")
    produce.produce(writing)
    assert consume.consume(job("consume", on=writing, expected=501)).problem == "500 records where 501 were expected"
    assert consume.consume(job("consume", on=writing, expected=499)).problem == "500 records where 499 were expected"


def test_a_reader_notices_changed_content(job: MakeJob) -> None:
    writing = job("produce", size_bytes=100)
    produce.produce(writing)
    changed = consume.verify(job("consume", on=writing, size_bytes=101))
    assert changed.errors == 500 and "differ from what was sent" in changed.note
    assert consume.consume(job("consume", on=writing, size_bytes=101)).problem


def test_transactions_leave_their_records_and_one_marker_each(job: MakeJob) -> None:
    made = job("transactions", transactions=6, per_transaction=5, partitions=2, producers=2, aborted_percent=50)
    measured = transactions(made)
    assert measured.problem == ""
    assert measured.expected == 6 * 5 + 6 * 2
    assert measured.figures["committed_records"] == 15
    assert measured.distributions["commit_ms"].count == 6
    fields = {"transactions": 6, "partitions": 2}
    assert consume.verify(job("consume", on=made, expected=15, **fields)).problem == ""
    everything = job("consume", on=made, expected=30, isolation="read_uncommitted", **fields)
    assert consume.verify(everything).problem == ""


def test_a_value_of_an_aborted_transaction_is_an_error_to_a_committed_reader(job: MakeJob) -> None:
    made = job("transactions", transactions=4, per_transaction=5, aborted_percent=50)
    transactions(made)
    lying = job("consume", on=made, transactions=4, settings=(("isolation.level", "read_uncommitted"),), expected=20)
    assert consume.verify(lying).errors == 10
    assert all(value.startswith(ABORTED) for value in pool(100, ABORTED))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_changed_content_is_noticed_among_markers_too(job: MakeJob, isolation: str) -> None:
    made = job("transactions", transactions=4, per_transaction=5, size_bytes=100)
    transactions(made)
    reading = {"transactions": 4, "isolation": isolation, "expected": 20}
    assert consume.verify(job("consume", on=made, size_bytes=100, **reading)).problem == ""
    assert consume.verify(job("consume", on=made, size_bytes=101, **reading)).errors == 20


def test_aborted_transactions_are_spread_evenly_and_alike() -> None:
    for percent in (0, 10, 50, 90, 100):
        assert sum(is_aborted(number, percent) for number in range(1000)) == 10 * percent


def test_a_log_in_which_everything_was_aborted_has_nothing_for_a_committed_reader(job: MakeJob) -> None:
    made = job("transactions", transactions=4, per_transaction=5, aborted_percent=100)
    assert transactions(made).figures["committed_records"] == 0
    assert consume.verify(job("consume", on=made, transactions=4, expected=0)).problem == ""
    lying = job("consume", on=made, transactions=4, expected=0, isolation="read_uncommitted")
    assert consume.verify(lying).problem == "20 records where 0 were expected"


def test_transactions_by_time_are_committed_in_intervals_by_all_producers(job: MakeJob) -> None:
    fields = {"partitions": 2, "producers": 2, "aborted_percent": 50}
    made = job("transactions", commit_interval_ms=50, seconds=3.0, **fields)
    measured = transactions(made)
    assert measured.problem == ""
    commits = measured.distributions["commit_ms"].count
    assert 4 <= commits <= 120 and measured.figures["transactions"] == commits
    assert 0 < measured.figures["committed_records"] < measured.figures["records_per_s"] * measured.figures["seconds"]
    expected = int(measured.figures["committed_records"])
    assert consume.verify(job("consume", on=made, transactions=1, partitions=2, expected=expected)).problem == ""


def test_topics_are_made_with_the_settings_of_the_user_and_the_defaults_of_the_cluster(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job("produce", partitions=2)
    secured = replace(made, workload=replace(made.workload, settings=(("security.protocol", "nonsense"),)))
    for act in (create, delete):
        with pytest.raises(KafkaException, match=r"security\.protocol"):
            act(secured)
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def new_topic(*arguments: object, **named: object) -> NewTopic:
        asked.append((arguments, named))
        return NewTopic(*arguments, **named)

    monkeypatch.setattr(topics, "NewTopic", new_topic)
    create(replace(made, topic="defaults"))
    assert asked == [(("defaults", 2, -1), {})]


def test_latencies_are_those_of_all_records_after_the_first_second(job: MakeJob) -> None:
    measured = latency(job("latency", rate_per_s=200, seconds=1, linger_ms=0))
    assert measured.problem == "" and measured.arrived == 200
    assert measured.distributions["latency_ms"].count == 100
    assert 0 < measured.figures["latency_p50_ms"] <= measured.figures["latency_p99_ms"]
    assert 20 < measured.figures["sent_per_s"] <= 201, "a busy machine may be late, never early"


def test_a_producer_that_falls_behind_does_not_hide_how_long_records_waited(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = clients.Producing.send

    def held_up(self: clients.Producing, topic: str, value: bytes, partition: int) -> None:
        time.sleep(0.02)
        send(self, topic, value, partition)

    monkeypatch.setattr(clients.Producing, "send", held_up)
    measured = latency(job("latency", rate_per_s=200, seconds=1, linger_ms=0))
    # 200 records that take 20 ms each: the last is due after one second and sent after four.
    assert measured.figures["latency_p99_ms"] > 2500
    assert measured.figures["sent_per_s"] < 60


def test_the_cost_of_commits_counts_every_record_of_both_kinds(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.bench.driver.commit_cost.WARM_UP_S", 0.05)
    monkeypatch.setattr("oncelog.bench.driver.commit_cost.SLICE_S", 0.4)
    made = job("commit-cost", seconds=2.0, commit_interval_ms=20, partitions=2, settings=(("linger.ms", "0"),))
    measured = commit_cost(made)
    assert measured.problem == ""
    assert measured.distributions["commit_ms"].count >= 1
    assert measured.figures["commits_per_s"] > 1
    expected = int(measured.figures["committed_records"])
    assert consume.verify(job("consume", on=made, transactions=1, partitions=2, expected=expected)).problem == ""


def test_percentiles_need_samples() -> None:
    assert set(percentile_figures("x", Distribution.of([1.0] * 99))) == {"x_p50_ms"}
    assert set(percentile_figures("x", Distribution.of([1.0] * 999))) == {"x_p50_ms", "x_p99_ms"}
    assert set(percentile_figures("x", Distribution.of([1.0] * 1000))) == {"x_p50_ms", "x_p99_ms", "x_p999_ms"}


def test_groups_join_rebalance_and_commit(job: MakeJob) -> None:
    measured = groups(job("groups", records=10, partitions=2))
    assert measured.problem == "" and measured.arrived == 10
    assert measured.figures["rebalance_ms"] > 0


def test_ids_become_known(job: MakeJob) -> None:
    assert init_ids(job("id-growth", x=5)).problem == ""


def test_values_differ_and_have_their_size() -> None:
    for size_bytes in (16, 100, 1000):
        values = pool(size_bytes)
        assert {len(value) for value in values} == {size_bytes}
        assert len(set(values)) == len(values)
        assert values == pool(size_bytes), "the same in every process"
