"""A data folder with something in each kind of file, and what a broker must still show when one of them is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_dir import LogDirError
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import commit, committed
from tests.unit.storage.cleaner_harness import keyed, read_committed
from tests.unit.storage.damage import Damage
from tests.unit.storage.log_harness import append_txn, end_txn

SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
SMALL = {"internal_segment_bytes": "500", "index_interval_bytes": "60"}
TOPICS = ("plain", "txn", "compacted")
GROUPS = {"g1": 11, "g2": 22, "g3": 33}

Records = dict[int, tuple[bytes | None, bytes | None]]


def fill(node: BrokerInProcess) -> None:
    """Plain, transactional and compacted records over several segments, and committed offsets."""
    for topic in TOPICS:
        node.create(topic, cleanup_policy="compact" if topic == "compacted" else "delete", **SMALL)
    node.create("t", 2)
    now_ms = node.clock.now_ms()
    for number in range(24):
        for topic in ("plain", "compacted"):
            data = keyed((f"k{number % 5}", f"value-{number}"), timestamp=now_ms + number)
            node.broker.partitions.get(topic, 0).append_as_leader(data, now_ms=now_ms, origin=Origin.COORDINATOR)
        partition = node.broker.partitions.get("txn", 0)
        append_txn(partition.log, 5 + number % 2, number // 2)
        if number % 4 == 3:
            end_txn(partition.log, 5, commit=True)
            end_txn(partition.log, 6, commit=False)
        partition.advance_high_watermark(partition.log.log_end_offset)
    for group, offset in GROUPS.items():
        commit(node, group, 0, offset)
    # The last record of the metadata is then of no consequence.
    node.until(node.broker.producer_ids.available())


def shown(original: Path, scratch: Path) -> dict[str, Records]:
    """By a broker on a copy of the folder, by topic."""
    whole = scratch / "whole"
    shutil.copytree(original, whole)
    node = BrokerInProcess(whole, SETTINGS)
    found = {topic: read_committed(node.broker.partitions.get(topic, 0).log) for topic in TOPICS}
    node.broker.stop(clean=False)
    return found


def check(damage: Damage, folder: Path, expected: dict[str, Records]) -> None:
    try:
        node = BrokerInProcess(folder, SETTINGS)
    except LogDirError:
        # Not ours to guess: which topics there are, and whose folder this is.
        assert damage.topic == CLUSTER_METADATA_TOPIC or damage.file == "meta.properties", damage
        return
    try:
        for topic in TOPICS:
            log = node.broker.partitions.get(topic, 0).log
            if damage.topic == topic and damage.file.endswith(".log"):
                _check_what_is_left(damage, log, expected[topic])
            else:
                assert read_committed(log) == expected[topic], damage
        if damage.topic not in INTERNAL_TOPICS or not damage.file.endswith(".log"):
            assert {group: committed(node, group)[0] for group in GROUPS} == GROUPS, damage
        # And it can be written to.
        assert node.produce("plain", [b"after"]).error_code == 0, damage
    finally:
        node.broker.stop(clean=False)


def _check_what_is_left(damage: Damage, log: Log, expected: Records) -> None:
    """Segments before the damaged one are whole. Nothing is found that was not written.

    Damage to what a clean stop or a checkpoint vouches for is not looked for, except at the end: readers meet it.
    """
    base_offset = int(Path(damage.file).stem)
    try:
        found = read_committed(log)
    except KafkaError:
        end_offset, log.log_end_offset = log.log_end_offset, base_offset
        found = read_committed(log)
        log.log_end_offset = end_offset
    before = {offset: record for offset, record in found.items() if offset < base_offset}
    wanted = {offset: record for offset, record in expected.items() if offset < base_offset}
    if log.topic_partition.topic != "txn":
        assert before == wanted, damage
        assert damage.what == "flip" or found.items() <= expected.items(), damage
    elif damage.what != "missing":
        # With its marker, a transaction may have lost its end: it is open again then, and nothing of it is shown.
        assert before.items() <= wanted.items(), damage
