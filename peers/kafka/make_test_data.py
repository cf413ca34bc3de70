"""Make tests/data/kafka: small data folders written by Apache Kafka, with what Kafka itself says about them.

    python -m peers.kafka.make_test_data [NAME ...]

For each name of `FOLDERS`, and for `secured`: NAME.tar.xz (the folder), NAME.dump.txt.xz (DumpLogSegments of every
file) and NAME.json.xz (what clients of Kafka read from it: offsets, records by isolation level, groups, transactions;
for `secured` what the admin client says). tests/data/kafka/README.md describes the contents; change both together.
"""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from kafka import KafkaProducer
from oncelog.client import Admin
from oncelog.client.admin import Acl, Operation, Pattern, Permission, Resource, ScramMechanism, ScramUpsertion
from oncelog.client.admin import NewTopic as AdminNewTopic
from peers.kafka.dump import dump_files, segment_files, topic_of
from peers.kafka.jars import HERE
from peers.kafka.java_client import JavaClient
from peers.kafka.kafka import KafkaServer

OUTPUT: Final = HERE.parents[1] / "tests" / "data" / "kafka"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PAST_MS: Final = 1_700_000_000_000
OPEN_TIMEOUT_MS: Final = 900_000
CLEANED_TIMEOUT_S: Final = 60.0

BROKER: Final = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # A killed broker leaves index files at their preallocated size: keep that small.
    "log.index.size.max.bytes": "4096",
    "log.cleaner.backoff.ms": "200",
    "auto.create.topics.enable": "false",
}
SMALL: Final = {"internal.segment.bytes": "3000", "index.interval.bytes": "300", "retention.ms": "-1"}
TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "txn": (3, SMALL),
    "plain": (2, SMALL),
    "codecs-librdkafka": (5, SMALL),
    "codecs-aiokafka": (5, SMALL),
    "codecs-kafka-python": (2, SMALL),
    "append-time": (1, {**SMALL, "message.timestamp.type": "LogAppendTime"}),
    "compacted": (
        1,
        {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "3600000"},
    ),
}


@dataclass(frozen=True)
class Folder:
    transaction_version: int
    killed: bool = False


FOLDERS: Final = {
    "tv0": Folder(0),
    "tv1": Folder(1),
    "tv2": Folder(2),
    "tv2-killed": Folder(2, killed=True),
}
SECURED: Final = "secured"
PASSWORDS: Final = {"alice": "wonderland", "bob": "builder"}


def producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **settings})


def transactional(bootstrap: str, name: str, timeout_ms: int = OPEN_TIMEOUT_MS) -> Producer:
    made = producer(bootstrap, **{"transactional.id": name, "transaction.timeout.ms": timeout_ms})
    made.init_transactions(30)
    return made


def send(to: Producer, topic: str, partition: int, count: int, tag: str, size: int = 60) -> None:
    """Records in several small batches, so that indexes get entries and segments roll."""
    for number in range(count):
        to.produce(topic, partition=partition, key=f"{tag}-{number}", value=f"{tag}-{number}-".ljust(size, "."))
        if number % 4 == 3:
            to.flush(30)
    to.flush(30)


def create_topics(bootstrap: str) -> None:
    wanted = [NewTopic(name, partitions, 1, config=config) for name, (partitions, config) in TOPICS.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted).values():
        created.result(30)


def write_transactions(bootstrap: str) -> None:
    """Committed, aborted and open transactions of old-protocol clients, interleaved over partitions and segments."""
    committed, aborted = transactional(bootstrap, "tx-committed"), transactional(bootstrap, "tx-aborted")
    plain = producer(bootstrap, **{"enable.idempotence": False})
    for turn in range(4):
        aborted.begin_transaction()
        for partition in range(3):
            # The first records of the abort stand segments before its marker.
            send(aborted, "txn", partition, 2, f"aborted-{turn}")
        committed.begin_transaction()
        for partition in range(3):
            send(committed, "txn", partition, 10 + partition, f"committed-{turn}")
        send(plain, "txn", turn % 3, 6, f"plain-{turn}")
        committed.commit_transaction(30)
        for partition in range(3):
            send(aborted, "txn", partition, 3, f"aborted-{turn}-late")
        aborted.abort_transaction(30)


def write_java_transactions(bootstrap: str) -> None:
    """A Java client speaks the newest protocol that the folder allows: on TV2 its epoch moves with every end."""
    with JavaClient(bootstrap) as java:
        java.ok("producer j tx-java")
        java.ok("init j")
        for turn, end in enumerate(("commit", "abort", "commit", "abort")):
            java.ok("begin j")
            for number in range(4):
                java.ok(f"send j txn {number % 3} java-{turn}-{number} {end}-{turn}-{number}")
            java.ok(f"offsets j group-java plain 0 {turn + 1}")
            java.ok(f"{end} j")


def open_transactions(bootstrap: str) -> list[Producer]:
    """Transactions that stay open: one old, reaching over many offsets, and one that holds offsets of a group."""
    first = transactional(bootstrap, "tx-open")
    first.begin_transaction()
    send(first, "txn", 0, 5, "open")
    send(first, "txn", 1, 5, "open")
    later = transactional(bootstrap, "tx-after-open")
    later.begin_transaction()
    send(later, "txn", 0, 20, "after-open-committed")
    later.commit_transaction(30)
    later.begin_transaction()
    send(later, "txn", 0, 3, "after-open-aborted")
    later.abort_transaction(30)
    with_offsets = transactional(bootstrap, "tx-open-offsets")
    with_offsets.begin_transaction()
    send(with_offsets, "txn", 2, 2, "open-offsets")
    commit_in_transaction(bootstrap, with_offsets, "group-pending", 3)
    return [first, later, with_offsets]


def write_plain(bootstrap: str) -> None:
    idempotent = producer(bootstrap, **{"enable.idempotence": True})
    send(idempotent, "plain", 0, 60, "idempotent")
    send(producer(bootstrap, **{"enable.idempotence": False, "acks": 1}), "plain", 1, 40, "plain")
    send(idempotent, "append-time", 0, 12, "appended")
    with_times = producer(bootstrap)
    # Timestamps that jump back and forth: the time index holds only new maxima.
    for number, seconds in enumerate((50, 10, 70, 60, 20, 90, 90, 30)):
        with_times.produce("plain", f"at-{seconds}", partition=1, key=f"k{number}", timestamp=PAST_MS + seconds * 1000)
        with_times.flush(30)


Payload = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
PAYLOADS: Final[tuple[Payload, ...]] = (
    (b"key", b"value", []),
    (None, b"no key", [("h", b"1"), ("h", b"2"), ("empty", b"")]),
    (b"tombstone", None, []),
    (b"", b"", []),
    (b"long", b"abcdefgh" * 100, []),
)


def write_codecs(bootstrap: str) -> None:
    """Partition n carries codec n: with headers, null keys, null and empty values, single records and full batches.

    Clients differ: librdkafka writes snappy as one raw block, the others in Xerial frames. kafka-python compresses with
    nothing but gzip unless more libraries are installed.
    """
    for partition, codec in enumerate(CODECS):
        rdkafka = producer(bootstrap, **{"compression.type": codec, "linger.ms": 50})
        for count in (1, len(PAYLOADS), len(PAYLOADS)):
            for key, value, headers in PAYLOADS[:count]:
                # librdkafka also has headers without a value, the others do not.
                more: list[tuple[str, str | bytes | None]] = [*headers, ("null", None)]
                rdkafka.produce("codecs-librdkafka", partition=partition, key=key, value=value, headers=more)
            rdkafka.flush(30)
        asyncio.run(write_codec_aiokafka(bootstrap, partition, None if codec == "none" else codec))
    for partition, compression in enumerate((None, "gzip")):
        python = KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=50)
        for count in (1, len(PAYLOADS), len(PAYLOADS)):
            for key, value, headers in PAYLOADS[:count]:
                python.send("codecs-kafka-python", partition=partition, key=key, value=value, headers=headers)
            python.flush(30)
        python.close()


async def write_codec_aiokafka(bootstrap: str, partition: int, codec: str | None) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=50) as aio:
        for count in (1, len(PAYLOADS), len(PAYLOADS)):
            batch = aio.create_batch()
            for key, value, headers in PAYLOADS[:count]:
                batch.append(key=key, value=value, timestamp=None, headers=headers)
            await (await aio.send_batch(batch, "codecs-aiokafka", partition=partition))


def write_compacted(bootstrap: str, data_dir: Path) -> None:
    """Overwritten keys, tombstones, committed and aborted transactions; then wait until the cleaner went over them."""
    plain, transaction = producer(bootstrap), transactional(bootstrap, "tx-compacted")
    for turn in range(6):
        for number in range(8):
            plain.produce("compacted", key=f"key-{number}", value=f"turn-{turn}-".ljust(80, "."))
        plain.flush(30)
        transaction.begin_transaction()
        transaction.produce("compacted", key="in-transaction", value=f"turn-{turn}-".ljust(80, "."))
        transaction.produce("compacted", key="key-7", value=f"transaction-{turn}-".ljust(80, "."))
        transaction.flush(30)
        (transaction.commit_transaction if turn % 2 else transaction.abort_transaction)(30)
    plain.produce("compacted", key="key-0", value=None)
    plain.produce("compacted", key="key-1", value=None)
    send(plain, "compacted", 0, 40, "filler")
    wait_until(lambda: cleaned_up_to(data_dir, "compacted") > 90, "the cleaner did not reach the compacted topic")


def cleaned_up_to(data_dir: Path, topic: str) -> int:
    checkpoint = data_dir / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    return max((int(line.split()[2]) for line in lines if line.split()[0] == topic), default=-1)


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + CLEANED_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(0.2)


@contextmanager
def consumer(bootstrap: str, group: str, **settings: Any) -> Iterator[Consumer]:
    base = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    made = Consumer({**base, "auto.offset.reset": "earliest", **settings})
    try:
        yield made
    finally:
        made.close()


def write_groups(bootstrap: str) -> None:
    """Classic and new-protocol groups, commits with metadata, commits in transactions that commit and that abort."""
    for group, settings in (("group-classic", {}), ("group-new-protocol", {"group.protocol": "consumer"})):
        with consumer(bootstrap, group, **settings) as reader:
            reader.subscribe(["plain"])
            wait_until(lambda reader=reader: reader.poll(0.5) is not None, f"{group} got nothing")  # type: ignore[misc]
            reader.commit(asynchronous=False)
    with consumer(bootstrap, "group-simple") as reader:
        reader.commit(
            offsets=[TopicPartition("plain", 0, 7, "a note"), TopicPartition("plain", 1, 9)], asynchronous=False
        )
    one, other = transactional(bootstrap, "tx-offsets"), transactional(bootstrap, "tx-offsets-aborted")
    one.begin_transaction()
    commit_in_transaction(bootstrap, one, "group-committed", 11)
    one.commit_transaction(30)
    other.begin_transaction()
    commit_in_transaction(bootstrap, other, "group-committed", 99)
    other.abort_transaction(30)


def commit_in_transaction(bootstrap: str, transaction: Producer, group: str, offset: int) -> None:
    with consumer(bootstrap, group) as reader:
        metadata = reader.consumer_group_metadata()
        transaction.send_offsets_to_transaction([TopicPartition("plain", 0, offset)], metadata, 30)


def read_records(bootstrap: str, topic: str, partition: int, isolation: str, end: int) -> list[list[Any]]:
    """[offset, timestamp, key, value, headers] of what a reader of this isolation level is given."""
    found: list[list[Any]] = []
    with consumer(bootstrap, "unused", **{"isolation.level": isolation, "enable.partition.eof": True}) as reader:
        reader.assign([TopicPartition(topic, partition, 0)])
        while end > 0:
            message = reader.poll(10)
            if message is None:
                raise RuntimeError(f"nothing more from {topic}-{partition} before its end {end}")
            if message.error() is not None:
                break
            headers = [[name, _text(value)] for name, value in list(message.headers() or [])]
            found.append(
                [message.offset(), message.timestamp()[1], _text(message.key()), _text(message.value()), headers]
            )
    return found


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


def listed_offset(admin: AdminClient, partition: TopicPartition, isolation: IsolationLevel, *, latest: bool) -> int:
    # confluent-kafka does not annotate these two.
    spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    listed = admin.list_offsets({partition: spec}, isolation_level=isolation)
    offset: int = listed[partition].result(30).offset
    return offset


def describe(bootstrap: str) -> dict[str, Any]:
    """What clients of Apache Kafka read from the running broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    levels = {"committed": IsolationLevel.READ_COMMITTED, "uncommitted": IsolationLevel.READ_UNCOMMITTED}
    topics: dict[str, Any] = {}
    for topic, (partitions, _) in TOPICS.items():
        for number in range(partitions):
            where = TopicPartition(topic, number)
            seen: dict[str, Any] = {
                "start": listed_offset(admin, where, levels["uncommitted"], latest=False),
                "high_watermark": listed_offset(admin, where, levels["uncommitted"], latest=True),
                "last_stable_offset": listed_offset(admin, where, levels["committed"], latest=True),
            }
            for name in levels:
                end = seen["last_stable_offset" if name == "committed" else "high_watermark"]
                seen[name] = read_records(bootstrap, topic, number, f"read_{name}", end)
            topics[f"{topic}-{number}"] = seen
    return {"written_at_ms": int(time.time() * 1000), "partitions": topics, **describe_coordinators(bootstrap, admin)}


def describe_coordinators(bootstrap: str, admin: AdminClient) -> dict[str, Any]:
    groups = {}
    for listing in sorted(admin.list_consumer_groups().result(30).valid, key=lambda found: found.group_id):
        wanted = ConsumerGroupTopicPartitions(listing.group_id)
        offsets = admin.list_consumer_group_offsets([wanted])[listing.group_id].result(30).topic_partitions
        groups[listing.group_id] = {
            f"{found.topic}-{found.partition}": [found.offset, found.metadata] for found in offsets if found.offset >= 0
        }
    with JavaClient(bootstrap) as java:
        states = java.ok("list")["transactions"]
        transactions = {name: java.ok(f"describe {name}") for name in sorted(states)}
    for answer in transactions.values():
        del answer["command"], answer["ok"]
    return {"groups": groups, "transactions": transactions}


def write_folder(folder: Folder, work: Path) -> tuple[Path, dict[str, Any]]:
    server = KafkaServer(work, transaction_version=folder.transaction_version, properties=BROKER)
    with server:
        bootstrap = server.bootstrap_servers
        create_topics(bootstrap)
        write_plain(bootstrap)
        write_codecs(bootstrap)
        write_transactions(bootstrap)
        write_java_transactions(bootstrap)
        write_groups(bootstrap)
        write_compacted(bootstrap, server.data_dir)
        still_open = open_transactions(bootstrap)
        contents = describe(bootstrap)
        # The open transactions must outlive their clients: the broker goes first.
        if folder.killed:
            server.kill()
        else:
            server.stop()
        still_open.clear()
    return server.data_dir, contents


def write_secured(work: Path) -> tuple[Path, dict[str, Any]]:
    """A user that the folder is formatted with, and users, ACLs and quotas that were made while Kafka ran."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    server = KafkaServer(work, properties={**BROKER, **authorizer}, users={"alice": PASSWORDS["alice"]})
    with server, Admin({"bootstrap.servers": server.bootstrap_servers}) as admin:
        for topic in ("orders", "other"):
            admin.create_topics([AdminNewTopic(topic, configs={"retention.ms": "-1"})])
            send(producer(server.bootstrap_servers), topic, 0, 3, topic)
        admin.alter_user_scram_credentials([ScramUpsertion("bob", ScramMechanism.SHA_512, PASSWORDS["bob"])])
        admin.create_acls(
            [
                Acl(Resource.TOPIC, "or", Pattern.PREFIXED, "User:alice", "*", Operation.READ, Permission.ALLOW),
                Acl(Resource.TOPIC, "*", Pattern.LITERAL, "User:bob", "*", Operation.ALL, Permission.ALLOW),
                Acl(Resource.TOPIC, "other", Pattern.LITERAL, "User:bob", "*", Operation.READ, Permission.DENY),
            ]
        )
        admin.alter_client_quotas({"user": "alice"}, {"consumer_byte_rate": 1e6, "request_percentage": 200.0})
        admin.alter_client_quotas({"ip": None}, {"connection_creation_rate": 5000.0})
        contents = {
            "written_at_ms": int(time.time() * 1000),
            "passwords": PASSWORDS,
            "acls": sorted([*acl] for acl in admin.describe_acls()),
            "quotas": [[quota.entity, quota.quotas] for quota in admin.describe_client_quotas()],
        }
        server.stop()
    return server.data_dir, contents


def dump_text(data_dir: Path, *, killed: bool) -> str:
    """DumpLogSegments of every file, file by file, with paths relative to the folder."""
    # The tool fails on the zero-filled index of an empty log, which only a killed broker leaves behind.
    skipped = (".index", ".timeindex") if killed else ()
    files = [file for file in segment_files(data_dir) if file.suffix not in skipped]
    parts = []
    for decoder, topic in (
        ((), None),
        (("--transaction-log-decoder",), "__transaction_state"),
        (("--offsets-decoder",), "__consumer_offsets"),
    ):
        chosen = [file for file in files if (topic_of(file) == topic if topic else not topic_of(file).startswith("__"))]
        dump = dump_files(chosen, "--deep-iteration", "--print-data-log", *decoder)
        if dump.exit_code != 0:
            raise RuntimeError(f"DumpLogSegments failed on {data_dir}:\n{dump.stderr}")
        parts += [dump.stdout, dump.stderr]
    return "".join(parts).replace(f"{data_dir}/", "")


def pack(name: str, data_dir: Path, contents: dict[str, Any]) -> None:
    dumped = dump_text(data_dir, killed=name in FOLDERS and FOLDERS[name].killed)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(data_dir.rglob("*")):
            if path.name != ".lock":
                tar.add(path, arcname=str(path.relative_to(data_dir)), recursive=False, filter=_anonymous)
    (OUTPUT / f"{name}.tar.xz").write_bytes(lzma.compress(archive.getvalue(), preset=9))
    (OUTPUT / f"{name}.dump.txt.xz").write_bytes(lzma.compress(dumped.encode(), preset=9))
    described = json.dumps(contents, indent=1, sort_keys=True)
    (OUTPUT / f"{name}.json.xz").write_bytes(lzma.compress(described.encode(), preset=9))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(names: Sequence[str]) -> int:
    for name in names or (*FOLDERS, SECURED):
        work = Path(tempfile.mkdtemp(prefix="oncelog-test-data-"))
        try:
            write = write_secured if name == SECURED else partial(write_folder, FOLDERS[name])
            data_dir, contents = write(work)
            pack(name, data_dir, contents)
        finally:
            shutil.rmtree(work)
        print(f"{name}: {sum(path.stat().st_size for path in OUTPUT.glob(f'{name}.*'))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
