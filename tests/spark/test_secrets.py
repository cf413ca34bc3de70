"""Passwords of a pipeline: it works with TLS and SASL, and they are in no plan, log, event log or checkpoint."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import oncelog.spark
from oncelog.client import Admin, Producer
from oncelog.core.ids import TopicPartition
from oncelog.testing import BrokerProcess

pytestmark = pytest.mark.spark

PASSWORD = "correct-horse-battery-staple"
TLS = Path(__file__).parents[1] / "data" / "tls"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "listener.security.protocol.map": "SAFE:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.safe.plain.sasl.jaas.config": f'{MODULE} required user_spark="{PASSWORD}";',
        "ssl.keystore.location": TLS / "broker.pem",
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    folder = tmp_path_factory.mktemp("secured")
    broker = BrokerProcess(folder / "data", settings, arguments=["--listen", "SAFE://127.0.0.1:0"]).start()
    yield broker
    broker.stop()


def client(broker: BrokerProcess, *, is_jaas: bool) -> dict[str, str]:
    login = (
        {"sasl.jaas.config": f'{MODULE} required username="spark" password="{PASSWORD}";'}
        if is_jaas
        else {"sasl.username": "spark", "sasl.password": PASSWORD}
    )
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.truststore.location": str(TLS / "ca.pem"),
        **login,
    }


def run(spark: Any, broker: BrokerProcess, source: str, target: str, settings: dict[str, str], folder: Path) -> str:
    """What the plan shows of it."""
    options = {f"kafka.{name}": value for name, value in settings.items()}
    frame = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(subscribe=source, startingOffsets="earliest", **options)
        .load()
    )
    rows = frame.select("key", "value")
    query = (
        oncelog.spark.write_stream(
            rows, bootstrap_servers=broker.bootstrap_servers, transactional_id=target, topic=target, kafka=settings
        )
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown = io.StringIO()
    with redirect_stdout(shown):
        rows.explain(True)
        query.explain(True)
    return shown.getvalue() + str(query.lastProgress)


@pytest.mark.parametrize("is_jaas", [False, True])
def test_a_pipeline_with_a_password_shows_it_nowhere(
    spark: Any, secured: BrokerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str], is_jaas: bool
) -> None:
    settings = client(secured, is_jaas=is_jaas)
    connection = {"bootstrap.servers": secured.bootstrap_servers, **settings}
    source, target = f"in-{is_jaas}", f"out-{is_jaas}"
    with Admin(connection) as admin, Producer(connection) as producer:
        admin.create_topics([source, target])
        producer.send(source, b"row").result(20)
    plan = run(spark, secured, source, target, settings, tmp_path / "checkpoint")
    with Admin(connection) as admin:
        (end,) = admin.list_offsets({TopicPartition(target, 0): -1}).values()
    assert end.offset > 0, "the row has arrived"
    out, err = capfd.readouterr()
    assert PASSWORD not in plan + out + err
    events = Path(urlparse(spark.sparkContext.getConf().get("spark.eventLog.dir")).path)
    for folder in (events, tmp_path / "checkpoint"):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert any(b"oncelog" in path.read_bytes() for path in files), f"nothing of the pipeline is in {folder}"
        holding = [path.name for path in files if PASSWORD.encode() in path.read_bytes()]
        assert not holding, f"the password is in {holding}"
