"""The examples do what they say; `oncelog run` and spark-submit run them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oncelog.spark.java import find_java
from oncelog.spark.spark_session import STAGE_ATTEMPTS
from oncelog.spark.standalone_cluster import spark_home
from tests.spark.conftest import QUIET
from tests.spark.kafka import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2000)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"
Name = Callable[[str], str]


def load(example: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_are_counted(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    source, target = kafka.create(name("in")), kafka.create(name("out"))
    kafka.send(source, [b"To be, or not to be", b"be"])
    load("word_count").start(spark, kafka.servers, source, target, checkpoint).awaitTermination()
    counts = {seen.key: seen.value for seen in kafka.read(target)}
    assert counts == {b"to": b"2", b"be": b"3", b"or": b"1", b"not": b"1"}


def test_orders_get_the_names_of_their_customers(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topics = {what: kafka.create(name(what)) for what in ("orders", "customers", "enriched")}
    kafka.send(topics["customers"], [(b"c1", b"Ada"), (b"c2", b"Bob"), (b"c1", b"Ada Lovelace")])
    orders = [{"id": i, "customer": f"c{i}", "cents": i * 100} for i in (1, 2, 3)]
    kafka.send(topics["orders"], [json.dumps(order).encode() for order in orders])
    load("order_enrichment").start(spark, kafka.servers, topics, checkpoint).awaitTermination()
    seen = sorted((json.loads(value or b"") for value in kafka.values(topics["enriched"])), key=lambda o: o["id"])
    assert [order.get("name") for order in seen] == ["Ada Lovelace", "Bob", None]


def test_what_cannot_be_read_goes_to_the_dead_letters(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topics = {what: kafka.create(name(what)) for what in ("readings", "good", "dead")}
    records = [b'{"sensor": "a", "celsius": 21.5}', b"no json", b'{"sensor": "a"}', b'{"sensor": "b", "celsius": -300}']
    kafka.send(topics["readings"], records)
    load("dead_letters").start(spark, kafka.servers, topics, checkpoint).awaitTermination()
    assert kafka.values(topics["good"]) == records[:1]
    reasons = {seen.value: dict(seen.headers or [])["reason"] for seen in kafka.read(topics["dead"])}
    assert reasons == {
        records[1]: b"not JSON of a reading",
        records[2]: b"no temperature",
        records[3]: b"colder than cold",
    }


def run_program(*command: str) -> None:
    environment = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_first_pipeline_of_the_page_copies_what_the_page_writes(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str
) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "spark.md").read_text()
    commands, program = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    topics = {what: kafka.create(name(what), 3) for what in ("orders", "orders-copy")}
    (written,) = re.findall(r"printf '(.*?)' \| oncelog produce orders -K:", commands)
    orders = [tuple(line.encode().split(b":")) for line in written.split("\\n") if line]
    kafka.send(topics["orders"], orders)
    mine = {f'"{what}"': f'"{topic}"' for what, topic in topics.items()}
    mine |= {
        "localhost:9092": kafka.servers,
        "checkpoints/copy-orders": checkpoint,
        '"copy-orders"': f'"{name("copy")}"',
    }
    mine |= {"oncelog.spark.session()": "shared", "query.awaitTermination()": "query.processAllAvailable()"}
    for what, replacement in mine.items():
        assert what in program
        program = program.replace(what, replacement)
    names: dict[str, Any] = {"shared": spark}
    try:
        exec(compile(program, "docs/spark.md", "exec"), names)
    finally:
        if "query" in names:
            names["query"].stop()
    assert sorted((seen.key, seen.value) for seen in kafka.read(topics["orders-copy"])) == sorted(orders)


def test_oncelog_run_runs_a_program(kafka: Kafka, name: Name, tmp_path: Path) -> None:
    topics = {what: kafka.create(name(what)) for what in ("readings", "good", "dead")}
    kafka.send(topics["readings"], [b'{"celsius": 20}', b"?"])
    confs = [part for key, value in QUIET.items() for part in ("--conf", f"{key}={value}")]
    entry = "from oncelog.cli.demo import run_command; run_command()"
    command = [sys.executable, "-c", entry, "--master", "local[2]", "--bootstrap-servers", kafka.servers, *confs]
    command += [str(EXAMPLES / "dead_letters.py"), "--checkpoint", str(tmp_path / "checkpoint")]
    run_program(*command, *(part for what, topic in topics.items() for part in (f"--{what}", topic)))
    assert kafka.values(topics["good"]) == [b'{"celsius": 20}']
    assert kafka.values(topics["dead"]) == [b"?"]


PLAIN_PROGRAM = """
import sys
from pyspark.sql import SparkSession
import oncelog.spark

servers, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("not ours").getOrCreate()
oncelog.spark.register(spark)
reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", servers)
rows = reader.option("subscribe", source).option("startingOffsets", "earliest").load().select("key", "value")
writer = oncelog.spark.write_stream(rows, bootstrap_servers=servers, transactional_id=target, topic=target)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


def test_spark_submit_runs_a_program_on_a_session_of_its_own(kafka: Kafka, name: Name, tmp_path: Path) -> None:
    source, target = kafka.create(name("in")), kafka.create(name("out"))
    kafka.send(source, [b"a", b"b"])
    program = tmp_path / "pipeline.py"
    program.write_text(PLAIN_PROGRAM)
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    for key, value in {**QUIET, **dict.fromkeys(STAGE_ATTEMPTS, "1")}.items():
        command += ["--conf", f"{key}={value}"]
    run_program(*command, str(program), kafka.servers, source, target, str(tmp_path / "checkpoint"))
    assert kafka.values(target) == [b"a", b"b"]


def test_a_program_that_fails_shows_where(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import signal\nprint(signal.getsignal(signal.SIGTERM))\nopen('/no/such/file')\n")
    command = [sys.executable, "-m", "oncelog", "run", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "Handlers.SIG_DFL" in done.stdout or done.stdout.strip() == "0", "signals are those of a plain program"
    assert "open('/no/such/file')" in done.stderr
    assert "FileNotFoundError" in done.stderr
