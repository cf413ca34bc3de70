"""The demo proves what it says, and would notice if it were not so."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog.cli import demo
from oncelog.cli.demo import parse_kills
from oncelog.client import BatchProducer, TransactionClient
from oncelog.client.config import ClientConfig
from oncelog.core.ids import TopicPartition
from oncelog.spark.demo import run
from oncelog.spark.demo.audit import audit
from oncelog.spark.demo.chaos import Chaos
from oncelog.spark.demo.driver import DriverOrder
from oncelog.spark.demo.events import Event, EventLog
from oncelog.spark.demo.hold import Hold
from oncelog.spark.demo.orders import as_record, is_broken, order, truth
from oncelog.spark.demo.proof import Tally, tally
from oncelog.spark.demo.timeline import bars, draw, lanes_of
from oncelog.storage.folder_lock import FolderLock
from oncelog.testing import BrokerProcess
from peers.kafka.kafka import free_port
from tests.spark.kafka import Kafka
from tests.waiting import wait_until

RECORDS = 3000


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_demo_survives_its_kills_and_proves_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unzipped_home: Path
) -> None:
    """And at-least-once doubles, and at-most-once loses, every time; and what is kept can be looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(unzipped_home))
    monkeypatch.setattr(run, "BATCHES", 8)
    monkeypatch.setattr(demo, "KEPT_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    arguments = ["--records", str(RECORDS), "--kills", "driver,broker", "--master", "local[2,4]", "--keep"]
    done = CliRunner().invoke(demo.demo_command, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("proven") == 6
    assert "FAILED" not in done.output
    assert "kill -9 driver" in done.output
    assert "kill -9 broker" in done.output
    assert re.search(r"compare +at-least-once: [1-9][\d,]* doubled, dead letters included", done.output), done.output
    assert re.search(r"compare +at-most-once: [1-9][\d,]* lost, dead letters included", done.output), done.output
    page = (tmp_path / "demo-results" / "index.html").read_text()
    assert "at-most-once" in page
    ET.parse(tmp_path / "demo-results" / "timeline.svg")
    run_kept_commands([line.strip() for line in done.output.splitlines() if line.startswith("  oncelog ")])


def run_kept_commands(commands: list[str]) -> None:
    """Each does what it promises; the broker stays up meanwhile."""
    assert len(commands) == 7
    with contextlib.ExitStack() as stack:
        for command in commands:
            words = [sys.executable, "-m", *command.split()]
            if words[3] == "serve":
                process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
                stack.callback(process.terminate)
                assert process.stdout is not None
                assert "ready" in process.stdout.readline()
                continue
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, command + done.stderr
            assert done.stdout.strip(), command


def test_a_proof_that_fails_is_a_failed_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that writes nothing at all: the checks are the real ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.Demo, "_run_pipeline", lambda *_: None)
    done = CliRunner().invoke(demo.demo_command, ["--records", "200", "--kills", "none", "--master", "local[2]"])
    assert done.exit_code == 1
    assert re.search(r"FAILED +every one of 198 orders is in the output once", done.output)
    assert "FAILED  the group's committed offsets" in done.output
    assert 'class="no"' in (tmp_path / "demo-results" / "index.html").read_text()
    assert "serve --data-dir demo-results/broker --console" in done.output
    assert (tmp_path / "demo-results" / "broker" / "meta.properties").exists()


def test_a_console_shows_the_demo_while_it_runs_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline itself is left out: what matters is that the console is there when it would run."""
    monkeypatch.chdir(tmp_path)
    port = free_port()
    seen: dict[str, object] = {}

    def look(*_: object) -> None:
        address = f"http://127.0.0.1:{port}/topics?format=json"

        def is_shown() -> bool:
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    found = json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code != 503
            seen["servers"] = found["status"]["bootstrap_servers"]
            seen["topics"] = [row["topic"] for row in found["data"]["rows"]]
            return bool(seen["topics"])

        wait_until(is_shown)

    monkeypatch.setattr(run.Demo, "_run_pipeline", look)
    pauses: list[str] = []
    monkeypatch.setattr(click, "pause", lambda text: pauses.append(text))
    arguments = ["--records", "200", "--kills", "none", "--master", "local[2]", "--console", f"127.0.0.1:{port}"]
    done = CliRunner().invoke(demo.demo_command, arguments)
    assert f"oncelog console on http://127.0.0.1:{port}/" in done.output, done.output
    assert any("orders" in topic for topic in seen["topics"]), seen
    assert pauses == ["The console stays until a key is pressed ..."]
    with socket.socket() as after, pytest.raises(ConnectionRefusedError):
        after.connect(("127.0.0.1", port))


def test_the_data_of_a_run_replace_those_of_an_earlier_one_unless_a_broker_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    demo.RESULTS.mkdir()

    def data(content: str) -> Path:
        folder = tmp_path / f"of-{content}"
        folder.mkdir()
        (folder / "content").write_text(content)
        return folder

    assert demo._leave(data("first")) == demo.LEFT
    assert demo._leave(data("second")) == demo.LEFT
    lock = FolderLock(demo.LEFT)
    assert demo._leave(data("third")) is None
    lock.release()
    assert (demo.LEFT / "content").read_text() == "second"
    assert "in use by the process" in capsys.readouterr().err


def test_a_query_waits_for_its_kill_only_when_asked(tmp_path: Path) -> None:
    hold = Hold(tmp_path)
    hold.wait_here("exactly-once")
    assert not hold.is_held("exactly-once")
    hold.ask()
    waiting = threading.Thread(target=hold.wait_here, args=("exactly-once",))
    waiting.start()
    wait_until(lambda: hold.is_held("exactly-once"))
    assert waiting.is_alive()
    hold.release()
    waiting.join(60)
    assert not waiting.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_a_tally_sees_what_is_lost_doubled_and_foreign() -> None:
    expected = Counter({b"a": 1, b"b": 1, b"c": 2})
    assert tally(expected, Counter({b"a": 1, b"b": 1, b"c": 2})).exact
    found = tally(expected, Counter({b"a": 3, b"c": 2, b"x": 1}))
    assert found == Tally(expected=4, once=2, lost=1, doubled=2, foreign=1)
    assert not found.exact


def test_the_truth_adds_up() -> None:
    known = truth(1000)
    assert known.broken.total() == sum(is_broken(number) for number in range(1000))
    assert known.enriched.total() + known.broken.total() == 1000
    assert sum(cents for _, cents in known.revenue.values()) == sum(
        order(number).cents for number in range(1000) if not is_broken(number)
    )
    assert as_record(5)[1] == b'{"id": 5, "customer": %d, "cents": %d, "at": %d}' % (
        order(5).customer,
        order(5).cents,
        order(5).at,
    )


def test_the_audit_tells_committed_aborted_and_open_transactions_apart(oncelog_broker: BrokerProcess) -> None:
    import pyarrow as pa

    from oncelog.client.columns import encode_columns

    config = ClientConfig(bootstrap_servers=oncelog_broker.bootstrap_servers)
    Kafka(config.bootstrap_servers).create("audited", 2)
    batches = encode_columns(pa.array([b"v"] * 5), timestamp_ms=1)

    def write(client: TransactionClient) -> None:
        with BatchProducer(config, client.share()) as producer:
            for partition in range(2):
                producer.write(TopicPartition("audited", partition), batches[0])
            producer.flush()

    with TransactionClient(config) as client:
        client.init("audited")
        for commit in (True, False):
            write(client)
            client.end(commit)
        found = audit(config, ["audited"])
        assert (found.committed, found.aborted, found.torn, found.open) == (1, 1, 0, 0)
        assert (found.hidden_records, found.visible_records) == (10, 10)
        assert found.whole
        write(client)
        unfinished = audit(config, ["audited"])
        assert unfinished.open == 1
        assert not unfinished.whole
        client.end(commit=False)


def test_kills_that_are_not_ours_are_left_out() -> None:
    assert parse_kills("driver,executor,broker", None, None) == ["driver", "executor", "broker"]
    assert parse_kills(None, "local[2]", "kafka:9092") == ["driver"]
    with pytest.raises(click.BadParameter, match="the broker is not started here with --bootstrap-servers"):
        parse_kills("driver,broker", None, "kafka:9092")
    with pytest.raises(click.BadParameter, match="the executor is not started here with --master"):
        parse_kills("executor", "local[2]", None)
    assert parse_kills("none", None, None) == []
    with pytest.raises(click.BadParameter, match="valid: driver, executor, broker, none"):
        parse_kills("driver,cat", None, None)


def test_what_is_killed_in_a_cluster_is_its_leader_coordinator_and_controller() -> None:
    assert parse_kills(None, None, None) == ["driver", "executor", "broker"]
    assert parse_kills(None, "local[2]", None, brokers=3) == ["driver", "leader", "coordinator", "controller"]
    with pytest.raises(click.BadParameter, match="valid: driver, executor, leader, coordinator, controller, none"):
        parse_kills("broker", None, None, brokers=3)


class FakeNodes:
    lanes = ("broker 1", "broker 2")

    def __init__(self, *found: str | None) -> None:
        self.found = list(found)
        self.revived: list[str] = []

    def kill(self, kind: str) -> str | None:
        return self.found.pop(0)

    def revive(self, lane: str) -> None:
        self.revived.append(lane)


class RunningDriver:
    def poll(self) -> None:
        return None


def test_a_node_is_killed_as_soon_as_it_is_known_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chaos, "_await_growth", lambda *_: None)
    order = DriverOrder("127.0.0.1:1", "local[2]", "demo", str(tmp_path), 10)
    nodes = FakeNodes(None, "broker 2")
    chaos = Chaos(["leader"], order=order, driver=RunningDriver(), records=100, nodes=nodes, cluster=None)
    chaos.step()
    assert nodes.found == [None, "broker 2"], "no batch was written yet"
    order.events.add("exactly-once", "done", position=100)
    chaos.step()
    assert chaos.done == []
    chaos.step()
    assert chaos.done == ["leader (broker 2)"]
    assert nodes.revived == ["broker 2"]
    happened = [(event.lane, event.what) for event in order.events.read()]
    assert happened[1:] == [("broker 2", "killed"), ("broker 2", "up")]


def test_a_picture_has_a_lane_for_each_node_of_a_cluster() -> None:
    events = [
        Event(0.0, "broker 1", "up"),
        Event(0.0, "broker 2", "up"),
        Event(0.0, "controller 101", "up"),
        Event(0.0, "driver", "up"),
        Event(2.0, "broker 2", "killed"),
        Event(5.0, "broker 2", "up"),
        Event(9.0, "driver", "down"),
    ]
    assert lanes_of(events)[:5] == ["broker 1", "broker 2", "controller 101", "driver", "executor"]
    text = "".join(ET.fromstring(draw(events)).itertext())
    assert "kill -9 broker 2" in text
    assert "controller 101: up, 9.0 s" in text


def test_events_of_a_run_become_a_picture(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.add("broker", "up")
    log.add("exactly-once", "done", batch=0, rows=5, position=5)
    assert log.position("exactly-once") == 5
    events = [
        Event(0.0, "broker", "up"),
        Event(0.0, "driver", "up"),
        Event(1.0, "exactly-once", "begin", 0),
        Event(2.0, "exactly-once", "done", 0, 10, 10),
        Event(2.1, "exactly-once", "begin", 1),
        Event(3.0, "driver", "killed"),
        Event(3.1, "driver", "up"),
        Event(5.0, "exactly-once", "begin", 1),
        Event(6.0, "exactly-once", "skipped", 1),
        Event(7.0, "driver", "down"),
    ]
    kinds = [(bar.lane, bar.kind) for bar in bars(events) if bar.lane == "exactly-once"]
    assert kinds == [("exactly-once", "done"), ("exactly-once", "interrupted"), ("exactly-once", "skipped")]
    drivers = [(bar.kind, bar.start_s, bar.end_s) for bar in bars(events) if bar.lane == "driver"]
    assert drivers == [("starting", 0.0, 1.0), ("up", 1.0, 3.0), ("starting", 3.1, 5.0), ("up", 5.0, 7.0)]
    root = ET.fromstring(draw(events, {"exactly-once": "each one once"}))
    assert "kill -9 driver" in "".join(root.itertext())
    assert "each one once" in "".join(root.itertext())
