"""Brokers by fork, reset, waits and what breaks on purpose."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import oncelog.testing
from oncelog.client import Consumer, KafkaError, Producer, TopicPartition
from oncelog.testing import BrokerProcess, TimedOut
from oncelog.testing.launcher import Launcher
from tests.unit.testing import goals
from tests.waiting import wait_until


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with oncelog.testing.broker() as process:
        yield process


def producer_of(broker: BrokerProcess, **settings: object) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **named})


def test_a_reset_broker_is_empty_and_at_the_same_address(broker: BrokerProcess) -> None:
    address, pid = broker.bootstrap_servers, broker.pid
    topic = broker.create_topic(retention_ms=60_000)
    with producer_of(broker, transactional_id="a") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x")
        producer.commit_transaction()
    broker.reset()
    with broker.admin() as admin:
        assert admin.list_topics(internal=True) == {}
        assert admin.list_transactions() == []
    assert (broker.bootstrap_servers, broker.pid) == (address, pid)
    broker.kill()
    broker.start()
    with broker.admin() as admin:
        assert admin.list_topics(internal=True) == {}


def test_clients_of_a_reset_broker_go_on(broker: BrokerProcess) -> None:
    with producer_of(broker) as producer:
        producer.send("first", "x").result(30)
        broker.reset()
        producer.send("second", "x").result(30)
    with broker.admin() as admin:
        assert set(admin.list_topics()) == {"second"}


def test_a_kill_loses_nothing_of_a_folder_that_is_thrown_away(broker: BrokerProcess, tmp_path: Path) -> None:
    topic = broker.create_topic()
    with producer_of(broker, transactional_id="a") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x")
        producer.commit_transaction()
    # The answer comes before the markers: one that is killed in between would write them again.
    assert broker.wait.transaction_ended("a") == "CompleteCommit"
    broker.kill()
    broker.start()
    assert broker.wait.transaction_ended("a") == "CompleteCommit"
    assert broker.wait.records(topic, 2) == 2
    assert broker.throws_away
    with oncelog.testing.broker(data_dir=tmp_path / "kept") as other:
        assert not other.throws_away


def processor_s(pid: int) -> float:
    """What a process has used of it: others that are busy make that a little more, and not twenty times as much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_reset_takes_milliseconds() -> None:
    """On any machine, with much room. `make bench-testing` asserts the goals: 5 ms, and 0.15 s for a start."""
    starts, resets, begun = list[float](), list[float](), time.perf_counter()
    for _ in range(4):
        with oncelog.testing.broker() as broker:
            starts.append(processor_s(broker.pid))
            for _ in range(5):
                broker.reset()
            resets.append((processor_s(broker.pid) - starts[-1]) / 5)
    assert min(starts) < 0.6
    assert min(resets) < 0.1
    assert time.perf_counter() - begun < 60, "it waits for something"


def test_an_end_is_seen_with_its_exit_code(broker: BrokerProcess) -> None:
    assert broker.running
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.wait_for_exit(30) == -signal.SIGKILL
    assert not broker.running
    broker.start()
    assert broker.stop() == 0


@pytest.fixture
def own_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """To be ended: the brokers of other tests end with theirs."""
    launcher = Launcher()
    monkeypatch.setattr(sys.modules["oncelog.testing.broker"], "launcher", launcher)
    yield launcher
    launcher.close()


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """More than `select` can tell apart."""
    count = 1_100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * count)), hard))
    with contextlib.ExitStack() as many:
        for _ in range(count):
            many.enter_context(Path(os.devnull).open())
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_a_launcher_that_has_died_is_replaced(own_launcher: Launcher) -> None:
    with oncelog.testing.broker() as broker:
        process = own_launcher._process
        assert process is not None
        process.kill()
        process.wait()
        with oncelog.testing.broker() as other:
            assert other.running
        assert not broker.running


def test_a_broker_ends_with_its_launcher_also_if_nobody_looks(own_launcher: Launcher) -> None:
    with oncelog.testing.broker() as broker:
        process, started = own_launcher._process, Path(f"/proc/{broker.pid}")
        assert process is not None
        process.kill()
        wait_until(lambda: not started.exists() or ") Z " in (started / "stat").read_text())


def test_a_launcher_whose_start_was_interrupted_can_be_closed(
    own_launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at a bad moment: its traceback keeps what the interrupted function had, so nothing closes by itself."""

    def interrupted(kind: str, pid: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(sys.modules["oncelog.testing.launcher"].janitor, "take", interrupted)
        own_launcher.warm_up()
    process = own_launcher._process
    assert process is not None
    closing = threading.Thread(target=own_launcher.close, daemon=True)
    closing.start()
    closing.join(60)
    hangs = closing.is_alive()
    process.kill()
    assert not hangs, kept


def test_a_launch_that_is_interrupted_is_followed_by_one_that_is_not(own_launcher: Launcher) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(KeyboardInterrupt), oncelog.testing.broker():
            time.sleep(60)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with oncelog.testing.broker() as broker, broker.admin() as admin:
        assert admin.list_topics() == {}
        assert Path(f"/proc/{broker.pid}").exists()


def test_settings_and_environment_reach_a_forked_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with oncelog.testing.broker({"num.partitions": 3}, data_dir="here") as broker, broker.admin() as admin:
        admin.create_topics(["t"])
        assert len(admin.list_topics()["t"].partitions) == 3
    assert (tmp_path / "here" / "meta.properties").exists()


def test_a_lost_answer_is_one_to_a_request_that_was_carried_out(broker: BrokerProcess) -> None:
    topic = broker.create_topic()
    with producer_of(broker, transactional_id="a") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x")
        producer.flush()
        broker.lose_answers("EndTxn")
        producer.commit_transaction()
    assert broker.wait.transaction_ended("a") == "CompleteCommit"
    assert broker.wait.records(topic, 2) == 2
    with pytest.raises(RuntimeError, match="Nonsense is no request"):
        broker.lose_answers("Nonsense")


def test_appends_fail_as_often_as_asked(broker: BrokerProcess) -> None:
    topic = broker.create_topic()
    with producer_of(broker, retries=0) as producer:
        broker.fail_appends()
        with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR.*No space left"):
            producer.send(topic, "x").result(30)
    with producer_of(broker) as producer:
        producer.send(topic, "y").result(60)
    assert broker.wait.records(topic, 1) == 1


def test_a_paused_broker_answers_when_it_goes_on(broker: BrokerProcess) -> None:
    topic = broker.create_topic()
    with producer_of(broker) as producer:
        producer.send(topic, "w").result(60)
        broker.pause()
        future = producer.send(topic, "x")
        with pytest.raises(TimeoutError):
            future.result(0.2)
        broker.resume()
        future.result(60)


def test_waits_return_what_there_is_or_say_what_there_was(broker: BrokerProcess) -> None:
    topic = broker.create_topic()
    with producer_of(broker) as producer:
        producer.send(topic, "x").result(30)
    with pytest.raises(TimedOut, match=r"offset 1 of .* did not come within 0\.05 s; last seen: (None|REQ)"):
        broker.wait.offset_committed("readers", topic, 1, timeout_s=0.05)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        consumer.poll(30_000)
        assert broker.wait.group_stable("readers", members=1) == 1
        consumer.commit({TopicPartition(topic, 0): 1})
    assert broker.wait.offset_committed("readers", topic, 1) == 1


def test_names_are_unique() -> None:
    names = {oncelog.testing.unique_name("a") for _ in range(100)}
    assert len(names) == 100


class TestFixtures:
    @pytest.fixture
    def fresh_oncelog_settings(self) -> Mapping[str, object]:
        return {"num.partitions": 2}

    @pytest.mark.parametrize("number", range(3))
    def test_each_test_finds_nothing(self, fresh_oncelog_broker: BrokerProcess, number: int) -> None:
        with fresh_oncelog_broker.admin() as admin:
            assert admin.list_topics() == {}
            admin.create_topics(["t"])
            assert len(admin.list_topics()["t"].partitions) == 2
        if number == 1:
            fresh_oncelog_broker.kill()

    def test_a_topic_of_its_own(self, oncelog_broker: BrokerProcess, oncelog_topic: str) -> None:
        with oncelog_broker.admin() as admin:
            assert oncelog_topic in admin.list_topics()


@pytest.mark.timeout(1_500)
def test_a_hundred_tests_with_a_broker_each(tmp_path: Path) -> None:
    """On any machine. `make bench-testing` asserts the goal, which is 30 s on two cores that do nothing else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = goals.run_many_tests(tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "100 passed" in done.stdout, done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120


def test_a_goal_that_is_missed_would_be_noticed() -> None:
    assert str(goals.Figure("a reset", 0.006, goals.RESET_S_MAX)).endswith("6.0 ms  goal 5.0 ms: MISSED")
    assert not goals.Figure("a reset", 0.006, goals.RESET_S_MAX).is_met
    assert goals.Figure("a reset", 0.004, goals.RESET_S_MAX).is_met
