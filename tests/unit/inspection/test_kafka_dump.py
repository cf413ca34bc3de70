"""The lines of DumpLogSegments, as Apache Kafka printed them for the same folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.main import cli
from oncelog.cluster.committed_log import data_batches
from oncelog.controller.image_records import versioned
from oncelog.controller.metadata_batches import BatchWriter
from oncelog.inspection.kafka_dump import KafkaDump
from oncelog.inspection.layout import identify
from oncelog.protocol.messages.cluster_metadata import NoOpRecord, UserScramCredentialRecord
from tests.data import kafka
from tests.unit.inspection import damages


def is_remark(line: str) -> bool:
    """What Kafka prints to stderr, after everything else."""
    return line.startswith(("Non-consecutive offsets in ", "  "))


@pytest.mark.parametrize("name", kafka.NAMES)
def test_every_file_is_dumped_line_for_line_as_kafka_does(name: str, kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data(name)
    dump = KafkaDump()
    expected_remarks = []
    for path, lines in kafka.dump(name).items():
        file = identify(folder / path)
        assert file is not None
        assert list(dump.lines(file, path)) == [f"Dumping {path}", *(line for line in lines if not is_remark(line))]
        expected_remarks += [line for line in lines if is_remark(line)]
    assert by_file(dump.remarks) == by_file(expected_remarks)


def by_file(remarks: list[str]) -> dict[str, list[str]]:
    """Kafka's order of files is that of a hash table."""
    found: dict[str, list[str]] = {}
    for line in remarks:
        if not line.startswith("  "):
            current = found.setdefault(line, [])
        else:
            current.append(line)
    return found


def test_records_of_the_controllers_log_are_decoded(kafka_data: Callable[[str], Path]) -> None:
    file = identify(kafka_data("tv2") / "__cluster_metadata-0" / "00000000000000000000.log")
    assert file is not None
    lines = list(KafkaDump().lines(file))
    assert lines[3] == (
        "| offset: 0 CreateTime: 1794741265188 keySize: 4 valueSize: 19 sequence: -1 headerKeys: [] LeaderChange: "
        '{"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[{"voterId":1}]}'
    )
    assert (
        "| offset: 17 CreateTime: 1794741265756 keySize: -1 valueSize: 24 sequence: -1 headerKeys: [] payload: "
        '{"type":"TOPIC_RECORD","version":0,"data":{"name":"txn","topicId":"SyvRKsOSQUOEHBAfmpixcQ"}}'
    ) in lines
    assert (
        "| offset: 149 CreateTime: 1794741295887 keySize: -1 valueSize: 47 sequence: -1 headerKeys: [] payload: "
        '{"type":"PARTITION_CHANGE_RECORD","version":2,"data":{"partitionId":0,"topicId":"EP0m3S3-St2Akt9zYkScQA",'
        '"isr":[],"leader":-1,"eligibleLeaderReplicas":[1],"lastKnownElr":[1]}}'
    ) in lines
    assert not any("undecoded" in line or "Error at" in line for line in lines)


def test_batch_headers_alone_have_no_record_lines(kafka_data: Callable[[str], Path]) -> None:
    file = identify(kafka_data("tv2") / damages.LOG)
    assert file is not None
    lines = list(KafkaDump(deep=False).lines(file))
    assert not any(line.startswith("|") for line in lines)
    assert len(lines) == 2 + len(damages.batch_positions(file.path))


def test_damage_is_told_as_kafka_tells_it(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    index = "txn-0/00000000000000000029.index"
    damages.put(index, 8, ">i", 8)(folder)
    damages.flip_in_batch(damages.LOG, 3)(folder)
    damages.cut(damages.LAST_LOG, 5)(folder)
    dump = KafkaDump()
    lines = []
    for name in (index, damages.LOG, damages.LAST_LOG):
        file = identify(folder / name)
        assert file is not None
        lines += dump.lines(file, name)
    assert any(line.endswith("isvalid: false") for line in lines)
    assert "Found 73 invalid bytes at the end of 00000000000000000118.log" in lines
    assert f"Mismatches in :{index}" in dump.remarks


@pytest.mark.parametrize("style", ["oncelog", "kafka"])
def test_the_keys_of_users_in_the_metadata_log_are_not_shown(tmp_path: Path, style: str) -> None:
    record = UserScramCredentialRecord(
        name="eve", mechanism=1, salt=b"salt of eve", stored_key=b"stored", server_key=b"server", iterations=4096
    )
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    path = folder / f"{0:020}.log"
    writer = BatchWriter(next_offset=0, epoch=1, timestamp_ms=1)
    path.write_bytes(b"".join(data_batches([versioned(record, 30), versioned(NoOpRecord(), 30)], writer)))
    shown = CliRunner().invoke(cli, ["log", "dump", "--format", style, str(path)]).stdout
    assert "USER_SCRAM_CREDENTIAL_RECORD" in shown
    assert '"name":"eve"' in shown
    assert "NO_OP_RECORD" in shown
    assert "salt" not in shown
    assert not {"storedKey", "serverKey"} & set(shown.split('"'))
