"""What a broker has imported when it opens its port."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SHOW_MODULES = """
import asyncio, json, sys
from pathlib import Path
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.server.server import Server

async def main():
    server = Server(Path(sys.argv[1]), BROKER_CONFIG.parse({"listeners": "127.0.0.1:0"}))
    await server.start()
    print(json.dumps(sorted(sys.modules)))
    await server.stop()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder: Path = tmp_path_factory.mktemp("started") / "data"
    command = [sys.executable, "-c", _SHOW_MODULES, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("handler", ["h00_produce", "h01_fetch", "h08_offset_commit", "h26_end_txn"])
def test_no_first_request_of_a_usual_client_waits_for_imports(modules: set[str], handler: str) -> None:
    assert f"oncelog.server.handlers.{handler}" in modules


def test_one_node_imports_nothing_that_it_needs_for_a_cluster_alone(modules: set[str]) -> None:
    of_clusters = ("oncelog.client", "oncelog.server.peer_", "oncelog.cluster.zookeeper", "kazoo")
    assert [module for module in sorted(modules) if module.startswith(of_clusters)] == []
