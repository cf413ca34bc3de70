"""How long a produce takes while the cleaner works, against the same broker at rest.

    python -m tests.crash.cleaning_latency                 # 300,000 records are cleaned meanwhile

One producer sends one record per request and waits for the answer. The logs to be cleaned are of other topics, filled
before; what cleaning costs is the processor, which it shares with the thread that serves clients. It is measured with
a user's topic, and with half as many committed offsets that have piled up in the logs of fifty partitions, because the
cleaner was switched off while they were written.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from oncelog.protocol.api import encode_request
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.framing import encode_request_frame
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server.cleaning import INTERNAL_ACTIVE_BYTES
from oncelog.storage.checkpoints import CLEANER_OFFSETS
from oncelog.testing import BrokerProcess
from oncelog.testing import broker as broker_process
from tests.crash.commits import TOPIC, commit_many, stored_bytes
from tests.crash.killer import create

KEYS = 20_000
REQUESTS_AT_REST = 8_000
PAUSE_S = 0.0005
_SETTINGS: dict[str, object] = {"log.cleaner.backoff.ms": 100}
_COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "4000000", "min.cleanable.dirty.ratio": "1"}


class OneProducer:
    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = build_batch([Record(0, 0, b"key", b"v" * 100)], timestamp_ms=int(time.time() * 1000))
        parts = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=parts)
        self._frame = b"".join(
            encode_request_frame(ApiKey.PRODUCE, 9, 1, "latency", encode_request(ApiKey.PRODUCE, 9, request))
        )

    def send(self) -> float:
        """Seconds until the answer is there."""
        begun_s = time.perf_counter()
        self._socket.sendall(self._frame)
        size = int.from_bytes(self._socket.recv(4, socket.MSG_WAITALL), "big")
        self._socket.recv(size, socket.MSG_WAITALL)
        return time.perf_counter() - begun_s

    def close(self) -> None:
        self._socket.close()


def percentiles(latencies_s: list[float]) -> str:
    ordered = sorted(latencies_s)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {ordered[-1] * 1000:.1f} ms of {len(ordered)} requests"


def fill(bootstrap_servers: str, topic: str, records: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "log_level": 0,
        }
    )
    for number in range(records):
        producer.produce(topic, b"v" * 100, key=f"key-{number % KEYS}")
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("the topic could not be filled")


def start_cleaning(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def send_while(producer: OneProducer, goes_on: Callable[[], bool]) -> list[float]:
    latencies_s = []
    while goes_on():
        latencies_s.append(producer.send())
        time.sleep(PAUSE_S)
    return latencies_s


def send_some(producer: OneProducer, count: int) -> list[float]:
    requests = iter(range(count))
    return send_while(producer, lambda: next(requests, None) is not None)


def measure_users_topic(records: int) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="oncelog-latency-") as folder:
        broker = BrokerProcess(Path(folder) / "data", _SETTINGS, log_level="warning").start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            topics = [NewTopic("busy", 1, 1), NewTopic("compacted", 1, 1, config=_COMPACTED)]
            for created in admin.create_topics(topics).values():
                created.result(60)
            fill(broker.bootstrap_servers, "compacted", records)
            producer = OneProducer(broker.bootstrap_servers, "busy")
            at_rest = send_some(producer, REQUESTS_AT_REST)
            checkpoint = broker.data_dir / CLEANER_OFFSETS
            start_cleaning(broker.bootstrap_servers, "compacted")
            begun_s = time.perf_counter()
            cleaning = send_while(producer, lambda: not checkpoint.exists() and time.perf_counter() - begun_s < 120)
            producer.close()
            return percentiles(at_rest), f"{percentiles(cleaning)}, in {time.perf_counter() - begun_s:.1f} s"
        finally:
            broker.stop()


def measure_offsets(commits: int) -> str:
    with tempfile.TemporaryDirectory(prefix="oncelog-latency-") as folder:
        data_dir = Path(folder) / "data"
        with broker_process({"log.cleaner.enable": False}, data_dir=data_dir) as broker:
            create(broker, TOPIC, {})
            commit_many(broker.bootstrap_servers, commits)
        with broker_process(data_dir=data_dir) as broker:
            piled_up_bytes = stored_bytes(data_dir)
            producer = OneProducer(broker.bootstrap_servers, TOPIC)
            begun_s = time.perf_counter()
            until_s = begun_s + 120
            latencies_s: list[float] = []
            while stored_bytes(data_dir) > INTERNAL_ACTIVE_BYTES and time.perf_counter() < until_s:
                latencies_s += send_some(producer, 100)
            producer.close()
            took_s = time.perf_counter() - begun_s
            return f"{percentiles(latencies_s)}, {piled_up_bytes / 1e6:.0f} MB in {took_s:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    records = parser.parse_args().records
    at_rest, cleaning = measure_users_topic(records)
    sys.stdout.write(f"at rest:                {at_rest}\nwhile cleaning:         {cleaning}\n")
    sys.stdout.write(f"while cleaning offsets: {measure_offsets(records // 2)}\n")


if __name__ == "__main__":
    main()
