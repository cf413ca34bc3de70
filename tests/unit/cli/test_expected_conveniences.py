"""What people who know other tools expect: patterns, types of keys and values, narrow terminals, plain answers."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.cli.content_types import CONTENT_TYPES
from oncelog.cli.output import _fitted, shortened
from oncelog.client import Admin, NewTopic, Producer, TopicPartition

Run = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


def on_a_terminal(arguments: list[str], columns: int, typed: str = "") -> tuple[int, str]:
    """A command on a terminal of that width: exit code and what is shown."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "oncelog", *arguments]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    os.write(master, typed.encode())
    shown = b""
    while True:
        try:
            data = os.read(master, 65_536)
        except OSError:  # the terminal is closed when the last process has left it
            break
        if not data:
            break
        shown += data
    os.close(master)
    return child.wait(180), shown.decode().replace("\r\n", "\n")


def test_topics_are_named_by_patterns(run: Run, admin: Admin, name: str) -> None:
    admin.create_topics([f"{name}-a", f"{name}-b", f"other-{name}"])
    described = json.loads(run("topic", "describe", f"{name}-*", "-o", "json").stdout)
    assert [topic["topic"] for topic in described] == [f"{name}-a", f"{name}-b"]
    assert "no topic matches nothing-[xy]" in run("topic", "describe", "nothing-[xy]").output
    deleted = run("topic", "delete", f"{name}-?", "--yes")
    assert deleted.stdout == f"deleted {name}-a\ndeleted {name}-b\n"
    assert f"other-{name}" in admin.list_topics()


def test_patterns_reach_internal_topics_only_if_they_begin_like_them(
    run: Run, topic: str, transactional: Callable[..., Producer]
) -> None:
    transactional(f"id-{topic}")
    assert "__transaction_state" not in run("topic", "describe", "*").stdout
    assert "__transaction_state" in run("topic", "describe", "__*").stdout


def test_several_topics_are_consumed_at_once(run: Run, process: Process, admin: Admin, name: str) -> None:
    admin.create_topics([f"{name}-a", f"{name}-b"])
    for letter in "ab":
        assert process("produce", f"{name}-{letter}", stdin=f"{letter}\n").returncode == 0
    assert run("consume", f"{name}-a", f"{name}-b").stdout == "a\nb\n"
    assert run("consume", f"{name}-*").stdout == "a\nb\n"


def test_records_before_an_offset_or_a_time_are_deleted(run: Run, process: Process, topic: str) -> None:
    assert process("produce", topic, stdin="a\nb\nc\n").returncode == 0
    assert "Repeat the command with --yes" in run("topic", "delete-records", topic, "--before", "2").stderr
    assert run("consume", topic).stdout == "a\nb\nc\n"
    done = run("topic", "delete-records", topic, "--before", "2", "--yes", "-o", "json")
    assert json.loads(done.stdout) == [{"topic": topic, "partition": 0, "start": 0, "new_start": 2, "end": 3}]
    assert run("consume", topic).stdout == "c\n"
    beyond = run("topic", "delete-records", f"{topic}:0", "--before", "99", "--yes")
    assert "3 instead of 99" in beyond.stderr
    assert run("consume", topic).stdout == ""
    assert run("topic", "delete-records", topic, "--before", "+1", "--yes").exit_code == 2


def test_offsets_of_one_topic_are_deleted(run: Run, admin: Admin, name: str) -> None:
    admin.create_topics([f"{name}-a", f"{name}-b"])
    admin.alter_group_offsets(name, {TopicPartition(f"{name}-a", 0): 0, TopicPartition(f"{name}-b", 0): 0})
    done = run("group", "delete-offsets", name, "--topic", f"{name}-a", "--yes")
    assert done.stdout == f"{name} has no offset of {name}-a-0 any more\n"
    assert [str(partition) for partition in admin.group_offsets(name)] == [f"{name}-b-0"]
    assert "has no offsets of" in run("group", "delete-offsets", name, "--topic", f"{name}-a", "--yes").stderr


def test_blocking_without_a_topic_looks_at_all_of_them(
    run: Run, topic: str, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"holding-{topic}")
    producer.begin_transaction()
    producer.send(topic, "x")
    producer.flush()
    assert f"held back by holding-{topic}" in run("txn", "blocking").stdout
    producer.abort_transaction()


@pytest.mark.parametrize(
    ("kind", "text", "data"),
    [
        ("short", "-2", struct.pack(">h", -2)),
        ("int", "42", struct.pack(">i", 42)),
        ("long", "-5000000000", struct.pack(">q", -5_000_000_000)),
        ("float", "0.5", struct.pack(">f", 0.5)),
        ("double", "0.1", struct.pack(">d", 0.1)),
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "AP8=", b"\x00\xff"),
        ("json", '{"a": [1, null]}', b'{"a": [1, null]}'),
    ],
)
def test_types_go_from_text_to_bytes_and_back(kind: str, text: str, data: bytes) -> None:
    found = CONTENT_TYPES[kind]
    assert found.encode(text) == data
    assert found.text(data) == text.encode()
    assert found.encode(found.decode(data)) == (data.replace(b" ", b"") if kind == "json" else data)


def test_keys_and_values_of_a_type_go_in_and_out(run: Run, process: Process, topic: str) -> None:
    types = ("--key-type", "long", "--value-type", "json")
    assert process("produce", topic, "-K|", *types, stdin='7|{"a": 1}\n').returncode == 0
    assert run("consume", topic, "-F", "key-value", *types).stdout == '7\t{"a": 1}\n'
    as_json = run("consume", topic, "-o", "json", *types).stdout
    assert json.loads(as_json)["key"] == 7
    assert json.loads(as_json)["value"] == {"a": 1}
    assert process("produce", topic, "-F", "json", *types, stdin=as_json).returncode == 0
    raw = run("consume", topic, "-F", "key-value", "--key-type", "hex").stdout
    assert raw == '0000000000000007\t{"a": 1}\n0000000000000007\t{"a":1}\n'


def test_what_is_not_of_the_type_is_said_with_its_place(run: Run, process: Process, topic: str) -> None:
    bad = process("produce", topic, "--value-type", "int", stdin="1\n2.5\n")
    assert bad.returncode == 1
    assert "line 2" in bad.stderr
    assert "the value '2.5' is not an int" in bad.stderr
    assert process("produce", topic, stdin="abc\n").returncode == 0
    seen = run("consume", topic, "--value-type", "long", "--from=-1")
    assert seen.exit_code == 1
    assert "the value is not what --value-type says: it has 3 bytes, and a long has 8" in seen.stderr
    assert "--key-type needs keys" in run("produce", topic, "--key-type", "int").stderr


def test_commands_and_states_that_do_not_exist_are_answered_with_near_ones(run: Run) -> None:
    assert "there is no command serv; did you mean serve?" in run("serv").stderr
    assert "did you mean" in run("topic", "lst").stderr.lower()
    assert "'oncelog --help' lists them" in run("xyzzy").stderr
    assert "did you mean Ongoing?" in run("txn", "list", "--state", "ongiong").stderr
    assert "did you mean Stable?" in run("group", "list", "--state", "stabel").stderr


def test_the_answer_no_is_no_interruption(servers: str, admin: Admin, topic: str) -> None:
    code, shown = on_a_terminal(["topic", "delete", topic], 80, "n\n")
    assert code == 1
    assert shown.endswith("nothing was done\n")
    assert "interrupted" not in shown
    assert topic in admin.list_topics()


def test_what_was_typed_ahead_ends_with_one_ctrl_d(servers: str, run: Run, topic: str) -> None:
    code, _ = on_a_terminal(["produce", topic, "-q"], 80, "a\nb\n\x04")
    assert code == 0
    assert run("consume", topic).stdout == "a\nb\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_on_a_terminal_and_are_whole_in_json(run: Run, admin: Admin, name: str, columns: int) -> None:
    long = f"{name}-{'x' * 120}-end"
    admin.create_topics([NewTopic(long, 2)])
    code, shown = on_a_terminal(["topic", "list"], columns)
    assert code == 0
    assert max(map(len, shown.splitlines())) <= columns
    assert re.search(rf"^{re.escape(name)}-x+…x+-end +2 +1$", shown, re.MULTILINE)
    assert long in run("topic", "list", "-o", "json").stdout
    assert long in run("topic", "list").stdout


def test_the_demo_says_at_once_that_its_cluster_is_not_there(run: Run) -> None:
    done = run("demo", "--bootstrap-servers", "127.0.0.1:1")
    assert done.exit_code == 1
    assert "no broker answers at 127.0.0.1:1" in done.stderr


def test_a_table_that_cannot_fit_stays_whole_and_times_always_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.cli.output.columns_of", lambda _: 30)
    assert _fitted([24, 20], [True, False]) == [24, 20]
    assert _fitted([10, 30], [True, False]) == [10, 18]


def test_names_of_settings_are_never_shortened(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("output", "config"):
        monkeypatch.setattr(f"oncelog.cli.{module}.columns_of", lambda _: 80)
    lines = run("config", "show", "broker", "1", "--all").stdout.splitlines()
    assert "transaction.abort.timed.out.transaction.cleanup.interval.ms=100  (static_broker)" in lines
    assert "num.partitions=1" in lines
    explained = run("config", "show", "broker", "1", "--explain").stdout.splitlines()
    assert "    " + "Principals that may do everything, separated by semicolons: User:admin." in explained
    assert max(len(line) for line in explained if line.startswith(" ")) <= 80


def test_the_history_of_an_id_fits_a_terminal(run: Run, name: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    run("produce", topic, "--transactional-id", name, file)
    assert max(map(len, run("txn", "history", name).stdout.splitlines())) <= 80


def test_what_makes_no_sense_is_said_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    assert "-5 is not in the range" in run("log", "find", tmp_path, "--offset", "-5").stderr
    assert "no topic ''" in run("consume", "").stderr
    assert "RE2" in run("txn", "list", "--pattern", "(").stderr


def test_a_shortened_text_has_its_start_and_its_end() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcdefghij", 4) == "ab…j"


def test_a_bad_line_of_a_settings_file_is_named(run: Run, process: Process, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("# my broker\n\nnum.partition=3\n")
    unknown = process("serve", "--config", config, "--data-dir", tmp_path / "data")
    assert f"{config}: line 3: Unknown broker config name: num.partition" in unknown.stderr
    config.write_text("client.id=\\u12\n")
    assert f"{config}: line 1: \\u12 is not \\u and four hex digits" in run("topic", "list", "--config", config).stderr
    config.write_text("client.id=me\nrequest.timeout.ms=soon\n")
    late = run("topic", "list", "--config", config).stderr
    assert f"{config}: line 2: Invalid value soon for configuration request.timeout.ms" in late


def test_what_a_broker_needs_and_does_not_get_is_said_in_words(process: Process, tmp_path: Path) -> None:
    def serve(listen: str, folder: object = tmp_path / "data") -> str:
        done = process("serve", "--data-dir", folder, "--listen", listen)
        assert done.returncode == 1
        assert "Errno" not in done.stderr
        return done.stderr

    assert "192.0.2.1 is no address of this machine" in serve("192.0.2.1:9092")
    assert "/proc/data cannot be used as a data folder: No such file" in serve("127.0.0.1:0", "/proc/data")
