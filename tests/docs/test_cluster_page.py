"""The examples of the page about clusters: files of settings, and nodes in containers."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog.client import Consumer, Producer
from oncelog.client.admin import Admin, NewTopic
from oncelog.client.admin_configs import ConfigResource
from oncelog.core.broker_config import BROKER_CONFIG, check_roles, warnings_of
from oncelog.core.config_resources import ResourceType
from oncelog.core.properties import parse_properties
from oncelog.server.zookeeper_client import zookeeper_config
from oncelog.testing.zookeeper import free_ports
from tests.waiting import wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = [block for block in BLOCKS if re.fullmatch(r"(?:[a-z.\-0-9]+=.*\n)+", block)]
[COMPOSE] = [block for block in BLOCKS if "services:" in block]


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) >= 4


@pytest.mark.parametrize("text", FILES, ids=lambda text: text.partition("\n")[0])
def test_a_file_of_settings_is_one(text: str) -> None:
    settings = BROKER_CONFIG.parse(parse_properties(text, "the page"))
    whole = settings if "process.roles" in text or "zookeeper." not in text else BROKER_CONFIG.parse(
        {**parse_properties(text, "the page"), "process.roles": "controller"}
    )  # fmt: skip
    check_roles(whole)
    zookeeper_config(whole)
    assert [each for each in warnings_of(whole) if "process.roles" not in each] == []


def nodes_of_containers(folder: Path) -> dict[str, list[str]]:
    """The command of each service, with folders and addresses of this machine."""
    member = re.search(r"command: &member \[(.*?)\]", COMPOSE, re.DOTALL)
    assert member is not None
    ports = dict(zip(("controller:9093", *(f"broker-{n}:9092" for n in (1, 2, 3))), free_ports(4), strict=True))
    found = {}
    for name, service in re.findall(r"^  ([a-z0-9-]+):\n((?:    .*\n|              .*\n)+)", COMPOSE, re.MULTILINE):
        parts = re.findall(r"(?:entrypoint|command): (?:&member )?(?:\[(.*?)\]|(\*member))", service, re.DOTALL)
        text = ", ".join(given or member[1] for given, _ in parts)
        for address, port in ports.items():
            text = text.replace(address, f"127.0.0.1:{port}")
        words = [word.strip().strip('"') for word in text.replace("/data/log", str(folder / name)).split(",")]
        assert words[0] == "oncelog"
        found[name] = [sys.executable, "-m", *words]
    return found


def test_the_nodes_of_the_compose_file_are_a_cluster(tmp_path: Path) -> None:
    commands = nodes_of_containers(tmp_path)
    assert sorted(commands) == ["broker-1", "broker-2", "broker-3", "controller"]
    servers = ",".join(words[words.index("--listen") + 1] for words in commands.values() if "--listen" in words)
    with ExitStack() as stack:
        for name, command in commands.items():
            output = stack.enter_context((tmp_path / f"{name}.out").open("w"))
            process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
            stack.callback(process.terminate)
        wait_until(lambda: all("oncelog ready on" in (tmp_path / f"{name}.out").read_text() for name in commands))
        with Admin({"bootstrap.servers": servers}) as admin:
            admin.create_topics([NewTopic("orders", 1)])
            wait_until(lambda: admin.describe_topics(["orders"])["orders"].partitions)
            [partition] = admin.describe_topics(["orders"])["orders"].partitions
            assert sorted(partition.replicas) == [1, 2, 3]
            assert (
                admin.describe_configs(ConfigResource(ResourceType.TOPIC, "orders"))["min.insync.replicas"].value == "2"
            )
        with Producer({"bootstrap.servers": servers, "transactional.id": "t"}) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", "one")
        settings = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "group.id": "g"}
        with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
            consumer.subscribe(["orders"])
            deadline_s = time.monotonic() + 60
            while not (records := consumer.poll(500)):
                assert time.monotonic() < deadline_s
        assert [record.value for record in records] == [b"one"]
