"""The same logs compacted by Apache Kafka and by Oncelog.

    python -m tests.conformance.compaction        # writes tests/data/compaction again; needs Java 17

A round is: a stopped Kafka's partition folders (`before`), and the same folders after Kafka's cleaner went over them
(`after`). Oncelog cleans a copy of `before` and must come to `after`, batch by batch; only the moment of the cleaning,
which is part of new delete horizons, differs. What Kafka has cleaned is the input of the next round, together with what
was written since.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from oncelog.core.ids import TopicPartition
from oncelog.core.steps import at_once
from oncelog.protocol.batch import decode_records, iter_headers, parse_control
from oncelog.storage.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from oncelog.storage.cleaner import CleaningPass
from oncelog.storage.cleaner_pace import Pace
from oncelog.storage.cleaner_plan import find_cleanable
from oncelog.storage.file_cache import FileCache
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from oncelog.storage.txn_index import TxnIndex
from peers.kafka.java_client import JavaClient
from peers.kafka.kafka import KafkaServer

DATA: Final = Path(__file__).resolve().parents[1] / "data" / "compaction"
ARCHIVE: Final = DATA / "rounds.tar.xz"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT_BYTES: Final = 4000
INDEX_INTERVAL_BYTES: Final = 300
DELETE_RETENTION_MS: Final = {"short": 500, "long": 86_400_000, "append-time": 500}
"""Topics, by how long tombstones and markers outlive a cleaning: to the next round, or longer than all of them."""
HELD_MS: Final = 10**12
TIMEOUT_S: Final = 300.0
BROKER: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
    "auto.create.topics.enable": "false",
    "log.index.size.max.bytes": "4096",
}


@dataclass(frozen=True)
class Round:
    before: Path
    after: Path
    cleaned_at_ms: int
    """Some moment while Kafka was cleaning."""


# What is written


def write_first(bootstrap: str, topic: str) -> None:
    """Overwritten keys in all codecs, tombstones, records without a key, transactions of both protocols."""
    one, other = _transactional(bootstrap, f"{topic}-one"), _transactional(bootstrap, f"{topic}-other")
    for turn, codec in enumerate(CODECS):
        plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": codec})
        _put(plain, topic, {**{f"k{number}": f"{turn}-{codec}" for number in range(6)}, codec: "stays"})
        _put(plain, topic, {f"gone-{turn}": None, "": "no key", f"k{turn}": "again"})
        one.begin_transaction()
        _put(one, topic, {"k0": f"one-{turn}", f"one-{turn}": "kept"})
        other.begin_transaction()
        _put(other, topic, {"k1": f"other-{turn}", f"other-{turn}": "kept", f"k{turn}": None})
        _end(one, commit=turn % 2 == 0)
        _put(plain, topic, {"between": str(turn)})
        _end(other, commit=turn % 3 != 0)
    with JavaClient(bootstrap) as java:
        java.ok(f"producer j {topic}-java")
        java.ok("init j")
        for turn, end in enumerate(("commit", "abort", "commit", "abort", "commit")):
            java.ok("begin j")
            java.ok(f"send j {topic} 0 java {turn}")
            java.ok(f"send j {topic} 0 java-{turn} x")
            java.ok(f"{end} j")


def write_more(bootstrap: str, topic: str, turn: int) -> None:
    """Newer values for nearly everything, so that transactions lose their last records and markers can go."""
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    kept = {f"{who}-{number}": f"turn-{turn}" for number in range(5) for who in ("one", "other", "java")}
    _put(plain, topic, {**kept, "java": str(turn), "between": str(turn), f"gone-{turn}": "back"})
    one = _transactional(bootstrap, f"{topic}-one")
    one.begin_transaction()
    _put(one, topic, {"k0": f"late-{turn}", "k5": None})
    _end(one, commit=turn % 2 == 0)
    for number in range(30):
        _put(plain, topic, {f"fill-{number}": "f" * 100})


def _transactional(bootstrap: str, name: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5})
    made.init_transactions(120)
    return made


def _put(producer: Producer, topic: str, pairs: Mapping[str, str | None]) -> None:
    for key, value in pairs.items():
        producer.produce(topic, partition=0, key=key or None, value=value, headers=[("h", key)])
    producer.flush(120)


def _end(producer: Producer, *, commit: bool) -> None:
    (producer.commit_transaction if commit else producer.abort_transaction)(120)


# Kafka's part


def make_rounds(work: Path, count: int = 4) -> Iterator[Round]:
    """Rounds one by one, each with folders of its own below `work`."""
    server = KafkaServer(work / "kafka", properties=BROKER)
    with server:
        _create_topics(server.bootstrap_servers)
        for topic in DELETE_RETENTION_MS:
            write_first(server.bootstrap_servers, topic)
            write_more(server.bootstrap_servers, topic, 0)
    for number in range(count):
        if number:
            with server:
                _configure(server.bootstrap_servers, {"min.compaction.lag.ms": str(HELD_MS)})
                for topic in DELETE_RETENTION_MS:
                    write_more(server.bootstrap_servers, topic, number)
        before, after = work / f"{number}-before", work / f"{number}-after"
        _copy(server.data_dir, before)
        expected = {topic: end for topic, (end, _) in clean_all(before, work / f"{number}-expected").items()}
        with server:
            _configure(
                server.bootstrap_servers,
                {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0"},
            )
            cleaned_at_ms = int(time.time() * 1000)
            _wait_until_cleaned(server.data_dir, expected)
        _copy(server.data_dir, after)
        yield Round(before, after, cleaned_at_ms)


def _create_topics(bootstrap: str) -> None:
    small = {"internal.segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": str(INDEX_INTERVAL_BYTES)}
    topics = [
        NewTopic(
            topic,
            1,
            1,
            # Compacted later on: a compacted topic refuses records without a key.
            config={
                **small,
                "retention.ms": "-1",
                "delete.retention.ms": str(retention_ms),
                "min.compaction.lag.ms": str(HELD_MS),
                "file.delete.delay.ms": "0",
                "message.timestamp.type": "LogAppendTime" if topic == "append-time" else "CreateTime",
            },
        )
        for topic, retention_ms in DELETE_RETENTION_MS.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(120)


def _configure(bootstrap: str, values: Mapping[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resources = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in DELETE_RETENTION_MS
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for changed in admin.incremental_alter_configs(resources).values():
        changed.result(120)


def _wait_until_cleaned(data_dir: Path, expected: Mapping[str, int]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        reached = read_offsets(data_dir / CLEANER_OFFSETS)
        if all(reached.get(TopicPartition(topic, 0)) == end for topic, end in expected.items()):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"Kafka has cleaned up to {reached}, Oncelog up to {dict(expected)}")
        time.sleep(0.1)


def _copy(data_dir: Path, target: Path) -> None:
    """The partition folders of the topics and the checkpoints."""
    target.mkdir()
    for topic in DELETE_RETENTION_MS:
        shutil.copytree(data_dir / f"{topic}-0", target / f"{topic}-0", ignore=shutil.ignore_patterns("*.deleted"))
    for name in (CLEANER_OFFSETS, RECOVERY_POINTS, LOG_START_OFFSETS):
        if (data_dir / name).exists():
            shutil.copy(data_dir / name, target / name)


# Oncelog's part


def clean_all(before: Path, target: Path, now_ms: int | None = None) -> dict[str, tuple[int, Log]]:
    """A copy of each partition in `before`, cleaned: the first dirty offset after it, and the log."""
    shutil.copytree(before, target)
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    dirty, recovered = read_offsets(before / CLEANER_OFFSETS), read_offsets(before / RECOVERY_POINTS)
    cleaned = {}
    for topic, retention_ms in DELETE_RETENTION_MS.items():
        partition = TopicPartition(topic, 0)
        config = LogConfig(
            segment_bytes=SEGMENT_BYTES,
            index_interval_bytes=INDEX_INTERVAL_BYTES,
            segment_index_bytes=int(BROKER["log.index.size.max.bytes"]),
            cleanup_policy=("compact",),
            delete_retention_ms=retention_ms,
            producer_id_expiration_ms=10**15,
        )
        place = LogPlace(target / str(partition), partition, now_ms)
        log = Log(place, config, clean=True, log_start_offset=0, recovery_point=recovered.get(partition))
        cleanable = find_cleanable(log, dirty.get(partition), last_stable_offset=log.log_end_offset, now_ms=now_ms)
        work = CleaningPass(cleanable, map_memory_bytes=1 << 20, now_ms=now_ms, pace=Pace(rest_s=0))
        at_once(work.prepare())
        work.build_map()
        for group in work.groups:
            if not log.replace_segments(work.clean(group)):
                raise RuntimeError(f"{partition}: the segments of {group} could not be replaced")
        log.close()
        cleaned[topic] = (work.end_offset, log)
    return cleaned


# What is compared


def describe(folder: Path, now_ms: int, retention_ms: int) -> dict[str, Any]:
    """All that can be said of a partition's files except for the moment at which a new delete horizon was set."""
    segments: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        segments[path.name] = [_batch(data, position, now_ms + retention_ms) for position, _ in iter_headers(data)]
    aborted = [
        tuple(entry)
        for path in sorted(folder.glob("*.txnindex"))
        for entry in TxnIndex(FileCache().handle(path), int(path.name.partition(".")[0])).entries()
    ]
    return {"segments": segments, "aborted": aborted}


def _batch(data: bytes, position: int, new_horizon_ms: int) -> dict[str, Any]:
    header = next(iter_headers(data[position:]))[1]
    shown = header._asdict()
    # The codecs of two libraries do not compress to the same bytes.
    del shown["crc"], shown["batch_length"]
    if not header.codec:
        shown["size"] = header.size_bytes
    times = [header.base_timestamp + record.timestamp_delta for record in decode_records(data, position)]
    shown["records"] = [
        (record.offset_delta, time_ms, record.key, record.value, record.headers)
        for time_ms, record in zip(times, decode_records(data, position), strict=True)
    ]
    if header.has_delete_horizon and abs(header.base_timestamp - new_horizon_ms) < TIMEOUT_S * 1000:
        shown["base_timestamp"] = "a new horizon"
        # The length of a delta depends on it.
        shown.pop("size", None)
    if header.is_control and header.records_count:
        shown["marker"] = tuple(parse_control(data, position))
    return shown


def describe_all(root: Path, now_ms: int) -> dict[str, Any]:
    return {
        topic: describe(root / f"{topic}-0", now_ms, retention_ms)
        for topic, retention_ms in DELETE_RETENTION_MS.items()
    }


# As committed test data


def record() -> None:
    work = Path(tempfile.mkdtemp(prefix="oncelog-compaction-"))
    try:
        rounds = list(make_rounds(work))
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for made in rounds:
                for root in (made.before, made.after):
                    for path in sorted(root.rglob("*")):
                        tar.add(path, arcname=str(path.relative_to(work)), recursive=False, filter=_anonymous)
            index = [{**asdict(made), "before": made.before.name, "after": made.after.name} for made in rounds]
            content = json.dumps(index).encode()
            entry = tarfile.TarInfo("rounds.json")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        DATA.mkdir(parents=True, exist_ok=True)
        ARCHIVE.write_bytes(lzma.compress(archive.getvalue(), preset=9))
        sys.stdout.write(f"{len(rounds)} rounds, {ARCHIVE.stat().st_size} bytes\n")
    finally:
        shutil.rmtree(work)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def recorded_rounds(into: Path) -> list[Round]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    return [
        Round(into / made["before"], into / made["after"], made["cleaned_at_ms"])
        for made in json.loads((into / "rounds.json").read_text())
    ]


if __name__ == "__main__":
    record()
