"""`oncelog produce` and `oncelog consume`, in pipes and from files."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, NewTopic, Producer
from tests.unit.cli.conftest import Background, line_of
from tests.waiting import wait_until

Run = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


def lines_of(result: Result | subprocess.CompletedProcess[str]) -> list[str]:
    assert (result.exit_code if isinstance(result, Result) else result.returncode) == 0, result.stderr
    return result.stdout.splitlines()


def test_what_goes_in_by_a_pipe_comes_out_of_one(process: Process, topic: str) -> None:
    done = process("produce", topic, stdin="one\ntwo\n\nlast without a newline")
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.startswith(f"4 records to {topic}")
    read = process("consume", topic)
    assert read.stdout == "one\ntwo\n\nlast without a newline\n"
    assert read.stderr == ""


def test_keys_headers_and_tombstones(run: Run, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text("a:1\nb:NULL\nc:x:y\n")
    run("produce", topic, source, "-K:", "--null", "NULL", "-H", "origin=test", "-q")
    rows = [json.loads(line) for line in lines_of(run("consume", topic, "-o", "json"))]
    assert [(row["key"], row["value"]) for row in rows] == [("a", "1"), ("b", None), ("c", "x:y")]
    assert rows[0]["headers"] == [{"name": "origin", "value": "test"}]
    assert run("consume", topic, "-F", "key-value").stdout == "a\t1\nb\t\nc\tx:y\n"


def test_json_lines_survive_the_way_in_and_out(run: Run, admin: Admin, topic: str, name: str, tmp_path: Path) -> None:
    source = tmp_path / "records.jsonl"
    records = [
        {"key": "k", "value": "text", "timestamp": 1700000000000, "headers": [{"name": "h", "value": "1"}]},
        {"key": None, "value": None},
        {"key_base64": "/w==", "value_base64": "AAH/"},
        {"key": "object", "value": {"nested": [1, 2]}},
        {"key": "unicode", "value": "grün"},
    ]
    source.write_text("".join(json.dumps(record) + "\n" for record in records) + "\n")
    assert run("produce", topic, "-F", "json", source, "-q").exit_code == 0
    first = run("consume", topic, "-o", "json")
    again = tmp_path / "again.jsonl"
    again.write_text(first.stdout)
    copy = f"copy-of-{name}"
    admin.create_topics([copy])
    run("produce", copy, "-F", "json", again, "-q")
    second = run("consume", copy, "-o", "json")

    def content(result: Result) -> list[dict[str, object]]:
        rows = [json.loads(line) for line in lines_of(result)]
        return [{field: row[field] for field in row if field not in ("topic", "offset")} for row in rows]

    assert content(first) == content(second)
    assert content(first)[0]["timestamp"] == 1700000000000
    assert content(first)[3]["value"] == '{"nested":[1,2]}'


def test_large_input_takes_the_fast_way_with_the_same_result(
    run: Run, process: Process, admin: Admin, name: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(name, 3)])
    source = tmp_path / "lines"
    source.write_text("".join(f"key-{i % 100}|value {i} {'x' * 20}\n" for i in range(20_000)))
    run("produce", name, source, "-K|", "-q")
    done = process("consume", name, "-F", "key-value")
    assert sorted(done.stdout.replace("\t", "|").splitlines()) == sorted(source.read_text().splitlines())
    slowly = run("consume", name, "-F", "{partition}|{key}|{value}")
    places = {tuple(line.split("|")[:2]) for line in lines_of(slowly)}
    assert len(places) == 100, "every key is on one partition"


def test_a_file_shows_its_progress_in_a_terminal(servers: str, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text(("x" * 36 + "\n") * 10_000_000)  # for longer than the second after which progress is shown
    main_end, child_end = pty.openpty()
    command = [sys.executable, "-m", "oncelog", "produce", topic, str(source)]
    child = subprocess.Popen(command, stderr=child_end, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(child_end)
    seen = b""
    with contextlib.suppress(OSError):
        while part := os.read(main_end, 65536):
            seen += part
    os.close(main_end)
    assert child.wait(180) == 0
    assert b"370.0 MB" in seen
    assert f"10,000,000 records to {topic}".encode() in seen


def test_records_without_a_key_delimiter_name_their_line(run: Run, topic: str, tmp_path: Path) -> None:
    for lines in (["a:1", "broken"], [*(f"{i}:{'x' * 50}" for i in range(2_000)), "broken"]):
        source = tmp_path / "lines"
        source.write_text("\n".join(lines) + "\n")
        result = run("produce", topic, "-K:", source)
        assert result.exit_code == 1
        assert f"line {len(lines)} of {source}: there is no ':' between a key and a value: 'broken'" in result.stderr


@pytest.mark.parametrize("count", [2, 2_000])
def test_a_key_delimiter_may_be_a_byte_that_is_no_text(run: Run, topic: str, tmp_path: Path, count: int) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"k%d\xffv%d %s\n" % (i, i, b"x" * 50) for i in range(count)))
    assert run("produce", topic, "-K", r"\xff", source, "-q").exit_code == 0
    shown = lines_of(run("consume", topic, "-F", "{key} {value}"))
    assert shown == [f"k{i} v{i} {'x' * 50}" for i in range(count)]
    with source.open("ab") as file:
        file.write(b"broken\n")
    result = run("produce", topic, "-K", r"\xff", source, "-q")
    assert result.exit_code == 1
    assert f"line {count + 1} of {source}: there is no '\N{REPLACEMENT CHARACTER}' between" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "outcome", "visible"),
    [
        ([], "What was read before it, 2 records, is written.", 2),
        (["--transactional-id", "bad-json"], "The transaction of 2 records is aborted; nothing was written.", 0),
        (["--transactional-id", "bad-json", "--transaction-size", "1"], "2 records were committed before it.", 2),
    ],
    ids=["plain", "one transaction", "several transactions"],
)
def test_invalid_json_names_its_line_and_what_became_of_the_lines_before(
    process: Process, topic: str, arguments: list[str], outcome: str, visible: int
) -> None:
    done = process("produce", topic, "-F", "json", *arguments, stdin='{"value":1}\n{"value":2}\n{"value":\n')
    assert done.returncode == 1
    assert "line 3: it is not JSON" in done.stderr
    assert outcome in done.stderr
    assert len(lines_of(process("consume", topic))) == visible


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[1]", "expected a JSON object, found list"),
        ('{"valu": 1}', "unknown field 'valu'"),
        ('{"value_base64": "%"}', "value_base64 is not base64"),
        ('{"value": 1, "partition": "x"}', "partition must be a whole number"),
        ('{"value": 1, "headers": 3}', "headers must be an object"),
        ('{"value": 1, "partition": 9}', "there is no 9"),
        (r'{"value": "\ud800"}', r"lines: the value is not UTF-8: '\ud800'"),
        (r'{"value": 1, "headers": {"\udfff": "x"}}', r"lines: the name of a header is not UTF-8: '\udfff'"),
        ('{"value": ' + "[" * 5_000 + "]" * 5_000 + "}", "lines: it is nested too deeply"),
    ],
    ids=lambda text: text[:40],
)
def test_json_of_another_shape_is_explained(run: Run, topic: str, tmp_path: Path, line: str, complaint: str) -> None:
    source = tmp_path / "lines"
    source.write_text(line + "\n")
    result = run("produce", topic, "-F", "json", source)
    assert result.exit_code == 1
    assert complaint in result.stderr


def test_ctrl_c_in_a_transaction_aborts_it_and_says_so(run: Run, topic: str, background: Background) -> None:
    child = background("produce", topic, "--transactional-id", f"interrupted-{topic}")
    assert child.stdin is not None
    child.stdin.write("one\ntwo\n")
    child.stdin.flush()
    wait_until(lambda: "Ongoing" in run("txn", "list", "--pattern", f"interrupted-{topic}").stdout)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=180)
    assert child.returncode == 130
    assert "interrupted" in err
    assert "The transaction of 2 records is aborted; nothing was written." in err
    assert "Traceback" not in err
    assert run("consume", topic).stdout == ""
    assert run("consume", topic, "--isolation", "uncommitted").stdout == "one\ntwo\n"


def test_where_to_begin_and_to_end(run: Run, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text(
        "".join(json.dumps({"value": str(i), "timestamp": 1_700_000_000_000 + i}) + "\n" for i in range(10))
    )
    run("produce", topic, "-F", "json", source, "-q")
    assert lines_of(run("consume", topic, "--from", "7")) == ["7", "8", "9"]
    assert lines_of(run("consume", topic, "--from=-2")) == ["8", "9"]
    assert lines_of(run("consume", topic, "--from", "2", "--to", "4")) == ["2", "3"]
    assert lines_of(run("consume", topic, "--from", "1700000000008")) == ["8", "9"]
    assert lines_of(run("consume", topic, "-n", "3")) == ["0", "1", "2"]
    assert lines_of(run("consume", topic, "--from", "latest")) == []
    assert lines_of(run("consume", f"{topic}:0", "--from", "-1d")) == []
    assert lines_of(run("consume", f"{topic}:0", "--from", "-9000d", "-n", "1")) == ["0"]
    assert lines_of(run("consume", f"{topic}:0", "--to", "-1d", "-n", "1")) == ["0"]
    assert run("consume", topic, "--from", "8", "-F", "{offset}:{value}", "-D", "\\0").stdout == "8:8\x009:9\x00"


def test_a_group_goes_on_where_it_was(process: Process, run: Run, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text("".join(f"{i}\n" for i in range(10)))
    run("produce", topic, source, "-q")
    group = f"group-{topic}"
    assert lines_of(process("consume", topic, "--group", group, "-n", "4")) == ["0", "1", "2", "3"]
    assert lines_of(process("consume", topic, "--group", group)) == ["4", "5", "6", "7", "8", "9"]
    (described,) = json.loads(run("group", "describe", group, "-o", "json").stdout)
    assert [row["lag"] for row in described["offsets"]] == [0]


def test_following_prints_what_comes_and_ends_quietly_on_ctrl_c(
    process: Process, topic: str, background: Background
) -> None:
    child = background("consume", topic, "--follow")
    process("produce", topic, stdin="first\n")
    assert line_of(child) == "first\n"
    process("produce", topic, stdin="second\n")
    assert line_of(child) == "second\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")


def test_an_open_transaction_is_pointed_out_to_a_committed_reader(
    run: Run, transactional: Callable[..., Producer], topic: str
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(60)
    result = run("consume", topic)
    assert result.stdout == ""
    assert f"an open transaction holds back 1 offset from 0 on; 'oncelog txn blocking {topic}:0'" in result.stderr
    assert lines_of(run("consume", topic, "--isolation", "uncommitted")) == ["held back"]
    producer.commit_transaction()
    assert lines_of(run("consume", topic)) == ["held back"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["consume", "TOPIC", "--follow", "--to", "3"], "--follow has no end"),
        (["consume", "TOPIC", "--group", "g", "--from", "3"], "a group begins where it is"),
        (["consume", "TOPIC", "--format", "{vale}"], "{vale} is no field of a record"),
        (["consume", "TOPIC:x"], "expected TOPIC or TOPIC:PARTITION"),
        (["consume", "TOPIC", "--from", "soon"], "is not a time"),
        (["produce", "TOPIC", "--transaction-size", "3"], "needs --transactional-id"),
        (["produce", "TOPIC", "-F", "json", "-K:"], "are for lines"),
        (["produce", "TOPIC", "-H", "\udce4=x"], r"the name '\udce4' is not UTF-8"),
    ],
)
def test_options_that_contradict_are_usage_errors(run: Run, topic: str, arguments: list[str], complaint: str) -> None:
    result = run(*[argument.replace("TOPIC", topic) for argument in arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["consume", "TOPIC:7"], "has 1 partitions, there is no 7"),
        (["produce", "TOPIC", "-p", "7"], "has 1 partitions, there is no 7"),
        (["produce", "TOPIC", "--set", "lingr.ms=3"], "did you mean linger.ms?"),
        (["produce", "TOPIC", "--set", "acks=2"], "acks"),
        (["consume", "TOPIC", "--follow", "--set", "fetch.max.byte=3"], "did you mean fetch.max.bytes?"),
        (["topic", "list", "--set", "linger.ms=3"], "Unknown client config name: linger.ms"),
    ],
)
def test_mistakes_are_explained_in_a_line(run: Run, topic: str, arguments: list[str], complaint: str) -> None:
    result = run(*[argument.replace("TOPIC", topic) for argument in arguments])
    assert result.exit_code == 1
    assert complaint in result.stderr


@pytest.mark.parametrize("command", [["topic", "list"], ["consume", "t"], ["produce", "t"], ["txn", "list"]])
def test_a_missing_broker_is_told_at_once_with_what_to_do(command: list[str]) -> None:
    arguments = [*command, "-b", "127.0.0.1:1", "--timeout", "10m"]
    done = subprocess.run([sys.executable, "-m", "oncelog", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "no broker answers at 127.0.0.1:1" in done.stderr
    assert "oncelog serve" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cluster_can_be_named_in_a_file(
    servers: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={servers}\nsecurity.protocol=PLAINTEXT\nlinger.ms=1\n")
    monkeypatch.delenv("ONCELOG_BOOTSTRAP_SERVERS")
    assert run("topic", "list", "--config", config).exit_code == 0
    monkeypatch.setenv("ONCELOG_CONFIG", str(config))
    assert run("cluster", "info").exit_code == 0


def test_what_is_typed_counts_for_more_than_environment_and_file(
    servers: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run("topic", "list", "--set", f"bootstrap.servers={servers}").exit_code == 0
    assert run("topic", "list", "-b", servers, "--set", "bootstrap.servers=127.0.0.1:1").exit_code == 0
    listener = socket.create_server(("127.0.0.1", 0))
    silent = f"127.0.0.1:{listener.getsockname()[1]}"
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=60000\n")
    started_s = time.monotonic()
    assert run("topic", "list", "-b", silent, "--config", config, "--timeout", "1s").exit_code == 1
    assert time.monotonic() - started_s < 30
    listener.close()
