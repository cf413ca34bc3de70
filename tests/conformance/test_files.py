"""The files that Oncelog leaves behind: Apache Kafka's DumpLogSegments must have nothing to complain about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peers.kafka.dump import check_data_dir, dump_files, segment_files
from tests.conformance.brokers import Broker
from tests.conformance.clients import CODECS, Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.data import kafka

pytestmark = pytest.mark.usefixtures("java")


def write_everything(broker: Broker) -> None:
    """All codecs, plain, idempotent and transactional batches, aborted and open transactions, groups."""
    client = CLIENTS["confluent-kafka"]
    create_topic(broker, "codecs", partitions=len(CODECS), index_interval_bytes="500")
    for partition, codec in enumerate(CODECS):
        messages = [Message(b"%d-" % number * 20, b"k", partition, (("h", b"v"),)) for number in range(60)]
        for start in range(0, 60, 10):
            client.produce(broker.bootstrap_servers, "codecs", messages[start : start + 10], codec=codec)
    create_topic(broker, "transactions", partitions=2, index_interval_bytes="100", segment_ms="100")
    transactional = client.transactional(broker.bootstrap_servers, "x")
    for turn in range(8):
        transactional.begin()
        transactional.send("transactions", b"%d" % turn)
        transactional.send("transactions", b"%d" % turn, 1)
        transactional.offsets("g", "transactions", turn)
        (transactional.abort if turn % 3 == 0 else transactional.commit)()
    transactional.begin()
    transactional.send("transactions", b"open")
    transactional.close()


only_oncelog = pytest.mark.parametrize("broker_kind", ["oncelog"], indirect=True)


@only_oncelog
@pytest.mark.parametrize("transaction_version", [0, 2], indirect=True)
def test_a_stopped_broker_s_files_are_read_without_a_complaint(new_broker: Callable[..., Broker]) -> None:
    broker = new_broker()
    write_everything(broker)
    broker.stop()
    assert check_data_dir(broker.data_dir) == []


@only_oncelog
def test_files_after_kill_and_recovery_are_read_without_a_complaint(new_broker: Callable[..., Broker]) -> None:
    broker = new_broker()
    write_everything(broker)
    broker.kill()
    broker.start()
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, "codecs", [Message(b"after")])
    broker.stop()
    assert check_data_dir(broker.data_dir) == []


@pytest.mark.parametrize("name", ["tv0", "tv2"])
def test_the_committed_folders_are_sound(name: str, kafka_data: Callable[[str], Path]) -> None:
    assert check_data_dir(kafka_data(name), compacted_topics=["compacted"]) == []


def test_the_dumps_beside_the_folders_are_current(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    files = [file for file in segment_files(folder) if file.parent.name == "txn-0"]
    output = dump_files(files, "--deep-iteration", "--print-data-log").stdout.replace(f"{folder}/", "")
    recorded = kafka.dump("tv2")
    wanted = [
        line
        for file in files
        for line in (f"Dumping {file.relative_to(folder)}", *recorded[str(file.relative_to(folder))])
    ]
    assert output.splitlines() == wanted


def damage_log(folder: Path) -> None:
    file = folder / "txn-0" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def damage_index(folder: Path) -> None:
    file = folder / "txn-0" / "00000000000000000000.index"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


def damage_time_index(folder: Path) -> None:
    file = folder / "txn-0" / "00000000000000000000.timeindex"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)


def damage_snapshot(folder: Path) -> None:
    file = next((folder / "txn-0").glob("*.snapshot"))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)


def damage_transaction_index(folder: Path) -> None:
    file = folder / "txn-0" / "00000000000000000000.txnindex"
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage", [damage_log, damage_index, damage_time_index, damage_snapshot, damage_transaction_index]
)
def test_damage_is_noticed(damage: Callable[[Path], None], kafka_data: Callable[[str], Path]) -> None:
    """What the check is worth: each kind of file, with one bit or byte wrong."""
    folder = kafka_data("tv2")
    for other in folder.iterdir():
        if other.is_dir() and other.name != "txn-0":
            other.rename(folder.parent / other.name)
    damage(folder)
    assert check_data_dir(folder) != []
