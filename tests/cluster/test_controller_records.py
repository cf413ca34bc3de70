"""The same requests to a controller of Apache Kafka and to Oncelog's: equal records, field by field, equal answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncelog.testing.broker import BrokerProcess
from peers.kafka.kafka import CLUSTER_ID, KafkaServer
from tests.cluster.controller_edges import DEVIATIONS
from tests.cluster.controller_player import SESSION_MS, Player
from tests.cluster.controller_script import play
from tests.conformance.conftest import require

SETTINGS: Mapping[str, str] = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
FEATURES = {"share.version": 0, "streams.version": 0, "group.version": 0}

LONG = pytest.mark.skipif(
    os.environ.get("ONCELOG_CLUSTER_TESTS") != "all", reason="takes half a minute more: make test-cluster"
)

Steps = list[tuple[str, list[Any], Any]]


def played(address: str, *, has_elr: bool) -> Steps:
    player = Player(address)
    try:
        play(player, has_elr=has_elr)
    finally:
        player.close()
    return player.steps


def of_kafka(folder: Path, has_elr: bool) -> Steps:
    server = KafkaServer(folder, features=FEATURES, node_id=100, roles="controller", properties=SETTINGS)
    try:
        return played(server.start().controller_address, has_elr=has_elr)
    finally:
        server.kill()


def of_oncelog(folder: Path, has_elr: bool) -> Steps:
    roles = {"process.roles": "controller", "node.id": "100", "cluster.id": CLUSTER_ID}
    process = BrokerProcess(folder, {**roles, **SETTINGS})
    try:
        return played(process.start(timeout_s=180).bootstrap_servers, has_elr=has_elr)
    finally:
        process.kill()


@pytest.mark.parametrize("has_elr", [True, pytest.param(False, marks=LONG)])
def test_a_controller_of_apache_kafka_writes_and_answers_the_same(tmp_path: Path, has_elr: bool) -> None:
    require("kafka")
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(of_kafka, tmp_path / "kafka", has_elr)
        ours = pool.submit(of_oncelog, tmp_path / "oncelog", has_elr)
        kafka, oncelog = theirs.result(), ours.result()
    assert [name for name, _, _ in kafka] == [name for name, _, _ in oncelog]
    pairs = list(zip(kafka, oncelog, strict=True))
    different = [f"{name}\n  Kafka   {one}\n  Oncelog {other}" for (name, *one), (_, *other) in pairs if one != other]
    unexpected = [each for each in different if each.partition("\n")[0] not in DEVIATIONS]
    if unexpected:
        pytest.fail(f"{len(unexpected)} differences:\n" + "\n".join(unexpected))
    assert {each.partition("\n")[0] for each in different} == DEVIATIONS.keys(), "a deviation is none any more"
