"""`oncelog log`: dump, verify, find and timeline on folders of Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from tests.data import kafka


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kafka.unpack("tv2", tmp_path_factory.mktemp("kafka"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["log", *map(str, arguments)])


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_kafka_format_of_a_partition_is_that_of_dump_log_segments(folder: Path) -> None:
    result = run("dump", "--format", "kafka", folder / "txn-0")
    expected = [
        line
        for path, lines in sorted(kafka.dump("tv2").items())
        if path.startswith("txn-0/")
        for line in [f"Dumping {folder}/{path}", *(line for line in lines if not line.startswith(("Non-", "  ")))]
    ]
    assert result.stdout.splitlines() == expected
    assert f"Non-consecutive offsets in {folder}/txn-0/00000000000000000029.log" in result.stderr


def test_json_has_an_object_per_line_with_every_file_kind(folder: Path) -> None:
    rows = json_lines(run("dump", "--output", "json", folder))
    assert {row["kind"] for row in rows} >= {
        "batch",
        "index entry",
        "time index entry",
        "aborted transaction",
        "producer",
        "leader epoch",
        "partition metadata",
        "meta properties",
        "checkpoint",
        "quorum state",
        "clean shutdown",
    }
    batches = [row for row in rows if row["kind"] == "batch" and row["file"].startswith("txn-0/") and row["count"]]
    offsets = [record["offset"] for row in batches for record in row["records"]]
    assert offsets[:12] == list(range(12))
    markers = [row["marker"]["type"] for row in batches if "marker" in row]
    assert {"ABORT", "COMMIT"} == set(markers)


def test_records_of_the_transaction_log_are_objects_with_named_states(folder: Path) -> None:
    rows = json_lines(run("dump", "-o", "json", folder / "__transaction_state-0"))
    states = [r["value"]["data"]["state"] for row in rows if row["kind"] == "batch" for r in row["records"]]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "Ongoing", "PrepareAbort", "CompleteAbort"]


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (["--producer", "3"], lambda row: row["producer_id"] == 3),
        (["--transactional-id", "tx-aborted"], lambda row: row["transactional_id"] == "tx-aborted"),
        (["--offsets", "30..50"], lambda row: row["last_offset"] >= 30 and row["base_offset"] <= 50),
        (["--times", "2026-11-15T11:14:34.600.."], lambda row: row["max_timestamp"] >= 1794741274600),
    ],
)
def test_a_selection_leaves_only_what_was_asked_for(
    folder: Path, arguments: list[str], check: Callable[[dict[str, Any]], bool]
) -> None:
    rows = [r for r in json_lines(run("dump", "-o", "json", folder / "txn-0", *arguments)) if r["kind"] == "batch"]
    everything = [r for r in json_lines(run("dump", "-o", "json", folder / "txn-0")) if r["kind"] == "batch"]
    assert 0 < len(rows) < len(everything)
    assert all(check(row) for row in rows)


def test_a_transactional_id_selects_its_records_in_the_transaction_log(folder: Path) -> None:
    rows = json_lines(run("dump", "-o", "json", folder / "__transaction_state-1", "--transactional-id", "tx-open"))
    ids = {r["key"]["data"]["transactionalId"] for row in rows for r in row.get("records", ())}
    names = {
        r["key"]["data"]["transactionalId"]
        for number in range(4)
        for row in json_lines(run("dump", "-o", "json", folder / f"__transaction_state-{number}"))
        for r in row.get("records", ())
    }
    assert "tx-open" in names
    assert ids <= {"tx-open"}


def test_text_shows_markers_with_the_names_of_their_transactions(folder: Path) -> None:
    text = run("dump", folder / "txn-0").stdout
    assert "ABORT marker  78 B  2026-11-15T11:14:29.612Z  producer 4:0  txn tx-aborted  coordinator epoch 0" in text
    assert "key=committed-0-3" in text
    assert "txn-0" not in text.splitlines()[0]


def test_headers_only_have_no_records(folder: Path) -> None:
    assert "key=" not in run("dump", "--no-records", folder / "txn-0").stdout


def test_a_truncated_file_is_dumped_up_to_where_it_is_whole(folder: Path, tmp_path: Path) -> None:
    whole = folder / "txn-0" / "00000000000000000118.log"
    cut = tmp_path / "txn-0" / whole.name
    cut.parent.mkdir()
    cut.write_bytes(whole.read_bytes()[:-5])
    result = run("dump", cut)
    assert result.exit_code == 0
    assert "@0  118..120" in result.stdout
    assert result.stdout.splitlines()[-1] == ("  @325  TORN: the batch has 78 bytes, of which 73 are there (73 bytes)")
    assert json_lines(run("dump", "-o", "json", cut))[-1]["kind"] == "torn end"


def test_verify_is_content_with_an_intact_folder(folder: Path) -> None:
    result = run("verify", folder)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("OK: 28 partitions")


def test_verify_says_what_is_wrong_and_what_the_broker_would_do(tmp_path: Path) -> None:
    folder = kafka.unpack("tv2-killed", tmp_path)
    log = folder / "txn-0/00000000000000000118.log"
    log.write_bytes(log.read_bytes()[:-5])
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "ERROR txn-0/00000000000000000118.log offset 121 position 325  [log.torn]" in result.stdout
    assert "At start a broker cuts the log at offset 121: no whole batch is lost." in result.stdout
    report = json.loads(run("verify", "-o", "json", folder).stdout)
    assert report["clean"] is False
    assert {"log.torn", "index.entry", "checkpoint.high_watermark"} <= {f["check"] for f in report["findings"]}


def test_find_shows_the_way_to_an_offset(folder: Path) -> None:
    result = run("find", folder / "txn-0", "--offset", "57")
    assert result.exit_code == 0
    assert "index: offset 56 is at byte 2680" in result.stdout
    assert "57..58" in result.stdout


def test_find_by_key_in_all_partitions(folder: Path) -> None:
    rows = json_lines(run("find", "-o", "json", folder, "--key", "committed-0-3"))
    assert [row["file"] for row in rows] == [f"txn-{number}/00000000000000000000.log" for number in range(3)]
    assert {row["records"][0]["key"] for row in rows} == {"committed-0-3"}


def test_find_stops_at_its_limit_and_says_so(folder: Path) -> None:
    result = run("find", folder / "txn-0", "--producer", "3", "--limit", "2", "-o", "json")
    assert len(result.stdout.splitlines()) == 2
    assert "stopped after 2" in result.stderr


def test_the_timeline_shows_the_last_stable_offset_and_every_transaction(folder: Path) -> None:
    result = run("timeline", folder / "txn-0", "--limit", "0")
    assert "last stable offset 92: 30 offsets behind it" in result.stdout
    assert "92..96  open  tx-open (9) epoch 0  5 records" in result.stdout
    assert "0..20 marker 22  aborted  tx-aborted (4) epoch 0" in result.stdout
    assert len([line for line in result.stdout.splitlines() if " epoch " in line]) == 15


def test_the_timeline_as_json(folder: Path) -> None:
    (history,) = json.loads(run("timeline", "-o", "json", folder / "txn-0").stdout)
    assert history["last_stable_offset"] == 92
    assert history["end_offset"] == 122
    assert [t["transactional_id"] for t in history["transactions"] if t["outcome"] == "open"] == ["tx-open"]
    assert len(history["aborted"]) == len([t for t in history["transactions"] if t["outcome"] == "aborted"])


@pytest.mark.parametrize("command", ["dump", "verify", "find", "timeline"])
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda folder: folder / "nowhere", "does not exist"),
        (lambda folder: folder, "neither a data folder"),
    ],
    ids=["missing", "not a data folder"],
)
def test_a_wrong_path_is_explained(tmp_path: Path, command: str, make: Callable[[Path], Path], complaint: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    arguments = ["--offset", "1"] if command == "find" else []
    result = run(command, make(tmp_path), *arguments)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_file_of_another_kind_is_explained(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = run("dump", tmp_path / "notes.txt")
    assert result.exit_code == 1
    assert "is not a file of a broker" in result.stderr


@pytest.mark.parametrize("name", ["oncelog-segments", "oncelog-checkpoint-sums"])
def test_notes_beside_the_files_of_a_log_are_not_called_strange(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    result = CliRunner().invoke(cli, ["log", "dump", str(tmp_path / name)])
    assert (result.exit_code, "has counts and checksums of the files beside it" in result.stderr) == (1, True)


def test_rubbish_in_any_kind_of_file_is_told_and_not_a_traceback(tmp_path: Path) -> None:
    for name in ("0" * 20 + ".log", "0" * 20 + ".index", "0" * 20 + ".timeindex", "0" * 20 + ".txnindex",
                 "0" * 20 + ".snapshot", "leader-epoch-checkpoint", "partition.metadata", "meta.properties",
                 "recovery-point-offset-checkpoint", ".kafka_cleanshutdown", "quorum-state",
                 "oncelog-metadata.journal", "00000000000000000000-0000000000.checkpoint"):  # fmt: skip
        path = tmp_path / "topic-0" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(range(256)) * 3)
        for arguments in (["dump", path], ["dump", "--format", "kafka", path], ["dump", "-o", "json", path]):
            result = run(*arguments)
            assert isinstance(result.exception, SystemExit | None), (name, arguments, result.exception)
    result = run("verify", tmp_path)
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--offsets", "abc"], "not a range of offsets"),
        (["--offsets", "9..3"], "ends before it begins"),
        (["--times", "yesterday"], "is not a time"),
    ],
)
def test_a_selection_that_makes_no_sense_is_a_usage_error(folder: Path, arguments: list[str], complaint: str) -> None:
    result = run("dump", folder / "txn-0", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_find_without_a_question_is_a_usage_error(folder: Path) -> None:
    result = run("find", folder)
    assert result.exit_code == 2
    assert "say what to find" in result.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(folder: Path) -> None:
    command = f"{sys.executable} -m oncelog log dump {folder} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=180)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert done.returncode == 141
