"""docs/from-kafka-scripts.md, executed: every command of its tables does what stands beside it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Admin
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.testing import BrokerProcess, broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-kafka-scripts.md"
ROWS = re.findall(r"^\| (.*) \| (`oncelog .*) \|$", PAGE.read_text(), re.MULTILINE)
COMMANDS = [command for _, cell in ROWS for command in re.findall(r"`(oncelog [^`]*)`", cell)]
SETTINGS = {
    "oncelog.cluster.action.enable": "true",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
NOT_HERE = ("oncelog serve --config server.properties", "oncelog bench", "oncelog txn watch")
"""Programs of their own, which do not end, or take a while. Other tests run them."""
FINDS_NOTHING = (
    "oncelog txn abort orders:0 --start-offset 42",
    "oncelog log find orders-0 --offset 4711",
    "oncelog acl explain User:alice write --topic orders",
)
ASKS = re.compile(r"oncelog (topic delete|group (delete|reset)|txn (fence|abort)|acl remove|user delete)")
NEEDED: dict[str, list[str]] = {
    "oncelog acl remove": ["oncelog acl add --principal User:alice --producer --topic orders"],
    "oncelog consume 'orders-*'": ["oncelog topic create orders-eu --if-not-exists"],
    "oncelog topic delete 'test-*'": ["oncelog topic create test-1 test-2"],
    "oncelog quota unset": ["oncelog quota set --default-client-id consumer_byte_rate=1"],
}
"""What must be there, beside topic, group and transactional id."""


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    with broker(SETTINGS) as running:
        yield running


@pytest.fixture
def run(process: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", process.bootstrap_servers)
    monkeypatch.chdir(process.data_dir)

    def call(line: str, given: str = "") -> Result:
        return CliRunner().invoke(cli, shlex.split(line)[1:], input=given)

    return call


@pytest.fixture
def _a_topic_a_group_and_an_id(process: BrokerProcess, run: Callable[..., Result]) -> Iterator[None]:
    (process.data_dir / "orders.txt").write_text("a\nb\n")
    with Admin({"bootstrap.servers": process.bootstrap_servers}) as admin:
        if "orders" not in admin.list_topics():
            admin.create_topics(["orders"])
    for line in (
        "oncelog topic alter orders -p 4",
        "oncelog produce orders -p 0 --transactional-id nightly orders.txt",
        "oncelog produce orders -p 3 orders.txt",
        "oncelog consume orders --group billing",
    ):
        run(line)
    yield
    for name in ("orders.txt", "input"):
        (process.data_dir / name).unlink()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line not in NOT_HERE and "--follow" not in line])
@pytest.mark.usefixtures("_a_topic_a_group_and_an_id")
def test_a_command_of_the_page_does_its_work(process: BrokerProcess, run: Callable[..., Result], line: str) -> None:
    for start, needed in NEEDED.items():
        if line.startswith(start):
            assert [run(one).exit_code for one in needed] == [0] * len(needed)
    if line.startswith("oncelog topic create orders -p"):
        assert run("oncelog topic delete orders --yes").exit_code == 0
    yes = " --yes" if ASKS.match(line) and not re.search("--yes|--dry-run", line) else ""
    password = " --password-file -" if line.startswith("oncelog user add") else ""
    (process.data_dir / "input").write_text('{"value": "a"}\n' if "-F json" in line else "key:value\n")
    file = " input" if line.startswith("oncelog produce") and not line.endswith("orders.txt") else ""
    done = run(line.replace("--key-type long", "--key-type text") + yes + password + file, "secret")
    assert done.exit_code == (1 if line in FINDS_NOTHING else 0), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_the_tables_have_commands() -> None:
    assert len(COMMANDS) > 70
    assert {line for line in (*NOT_HERE, *FINDS_NOTHING) if line not in COMMANDS} == set()
