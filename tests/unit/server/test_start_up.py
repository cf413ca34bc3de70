"""What a broker has imported when it opens its port, and a moment later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

_SHOW_MODULES = """
import asyncio, json, sys, uvloop
from pathlib import Path
from typing import NamedTuple
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.server.server import Server

async def main():
    server = Server(Path(sys.argv[1]), BROKER_CONFIG.parse({"listeners": "127.0.0.1:0"}))
    await server.start()
    ready = sorted(sys.modules)
    server.load_handlers()
    turns = 0
    while turns < 100 and "oncelog.server.change_report" not in sys.modules:
        turns += 1
        await asyncio.sleep(0)
    standard = {
        f"{name}.{each.__name__}"
        for name in ready if name.startswith("oncelog.")
        for each in vars(sys.modules[name]).values() if isinstance(each, type) and hasattr(each, "__dataclass_params__")
    }
    tuples = {
        f"{name}.{each.__name__}"
        for name in ready if name.startswith("oncelog.")
        for each in vars(sys.modules[name]).values()
        if isinstance(each, type) and each.__module__ == name and getattr(each, "__orig_bases__", None) == (NamedTuple,)
    }
    print(json.dumps([ready, sorted(sys.modules), turns, sorted(standard), sorted(tuples)]))
    await server.stop()

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""
_SHOW_THRESHOLDS = """
import gc, sys
from pathlib import Path
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.server import main
from oncelog.server.allocator import GARBAGE_THRESHOLDS, START_THRESHOLDS

make = main._server

def begin(*arguments):
    print(gc.get_threshold() == START_THRESHOLDS, gc.get_freeze_count() > 0)
    gc.unfreeze()
    return make(*arguments)

def ready(_):
    print(gc.get_threshold() == GARBAGE_THRESHOLDS, gc.get_freeze_count() > 0)
    raise ConfigError("seen")

main._server = begin
try:
    main.run(Path(sys.argv[1]), BROKER_CONFIG.parse({"listeners": "PLAINTEXT://127.0.0.1:0"}), ready)
except ConfigError as error:
    print(error)
"""


class Imported(NamedTuple):
    ready: set[str]
    behind: set[str]
    """Between the turns of the loop that follow."""
    turns: int
    standard_dataclasses: list[str]
    standard_tuples: list[str]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder: Path = tmp_path_factory.mktemp("started") / "data"
    command = [sys.executable, "-c", _SHOW_MODULES, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    ready, behind, *others = json.loads(done.stdout)
    return Imported(set(ready), set(behind), *others)


@pytest.mark.parametrize("handler", ["h00_produce", "h01_fetch", "h08_offset_commit", "h26_end_txn"])
def test_what_usual_clients_ask_for_is_imported_behind_the_start(imported: Imported, handler: str) -> None:
    name = f"oncelog.server.handlers.{handler}"
    assert name in imported.behind
    assert name not in imported.ready


def test_others_are_served_between_these_imports(imported: Imported) -> None:
    assert imported.turns > 10


UNUSED = (
    *("tls", "server.login", "security.scram", "controller.acl_changes", "storage.cleaner", "client"),
    *("coordinator.group.machine", "coordinator.txn.machine"),
    *("cluster.follower", "cluster.follower_session", "cli.console_process"),
    *("protocol.messages.group_metadata_log", "protocol.messages.join_group", "protocol.messages.list_offsets"),
)


@pytest.mark.parametrize("module", UNUSED)
def test_a_plain_start_does_not_wait_for_what_it_does_not_use(imported: Imported, module: str) -> None:
    assert f"oncelog.{module}" not in imported.ready


def test_one_node_imports_nothing_that_it_needs_for_a_cluster_alone(imported: Imported) -> None:
    of_clusters = ("oncelog.client", "oncelog.server.peer_", "oncelog.cluster.zookeeper", "kazoo")
    assert [module for module in sorted(imported.behind) if module.startswith(of_clusters)] == []


def test_an_address_is_bound_without_the_codec_of_international_names(imported: Imported) -> None:
    assert "encodings.idna" not in imported.ready


def test_no_class_of_a_start_is_one_of_those_that_take_long_to_make(imported: Imported) -> None:
    """See docs/decisions/dataclasses.md."""
    assert imported.standard_dataclasses == []
    layers = ("oncelog.core", "oncelog.protocol", "oncelog.security", "oncelog.storage", "oncelog.coordinator")
    assert [name for name in imported.standard_tuples if name.startswith(layers)] == []


def test_a_start_does_not_look_for_garbage_again_and_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SHOW_THRESHOLDS, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.split() == ["True", "True", "True", "True", "seen"]
