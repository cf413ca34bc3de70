"""`oncelog user`, `acl` and `quota`, on a broker with SASL and ACLs and on the folder of one that does not run."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Producer
from oncelog.cluster.stopped_node import open_folder
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.testing import BrokerProcess

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="root";'
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}
Run = Callable[..., Result]


def oncelog(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("secured")
    broker = BrokerProcess(folder / "data", SETTINGS, arguments=["--listen", "SASL_PLAINTEXT://127.0.0.1:0"])
    broker.start()
    yield broker
    broker.stop()


def properties(broker: BrokerProcess, folder: Path, user: str, password: str, mechanism: str) -> Path:
    """A client.properties file as Java's tools take it."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    file = folder / f"{user}.properties"
    file.write_text(
        f"bootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required \\\n"
        f'  username="{user}" password="{password}";\n'
    )
    return file


@pytest.fixture
def admin(secured: BrokerProcess, tmp_path: Path) -> Run:
    file = properties(secured, tmp_path, "admin", "root", "PLAIN")
    return lambda *arguments, stdin="": oncelog(*arguments, "--config", file, stdin=stdin)


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_a_user_is_added_and_can_log_in_until_it_is_deleted(secured: BrokerProcess, admin: Run, tmp_path: Path) -> None:
    done(admin("topic", "create", "tea"))
    said = done(admin("user", "add", "eve", "--password-file", "-", stdin="pencil\n"))
    assert said == "eve logs in with SCRAM-SHA-256 or SCRAM-SHA-512\n"
    rows = json.loads(done(admin("user", "list", "-o", "json")))
    assert {"user": "eve", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows
    eve = properties(secured, tmp_path, "eve", "pencil", "SCRAM-SHA-512")
    assert "there are no topics" in done(oncelog("topic", "list", "--config", eve))
    done(admin("acl", "add", "--principal", "User:eve", "--consumer", "--topic", "tea", "--group", "g"))
    assert "tea" in done(oncelog("topic", "list", "--config", eve))
    refused = oncelog("topic", "create", "mine", "--config", eve)
    assert (refused.exit_code, "TOPIC_AUTHORIZATION_FAILED" in refused.output) == (1, True)
    done(admin("user", "delete", "eve", "--yes"))
    gone = oncelog("topic", "list", "--config", eve)
    assert (gone.exit_code, "SASL_AUTHENTICATION_FAILED" in gone.output) == (1, True)
    assert "pencil" not in secured.log_path.read_text()


def test_a_password_is_no_argument_and_not_empty(admin: Run) -> None:
    assert "--password-file" in admin("user", "add", "eve").output
    assert "password is empty" in admin("user", "add", "eve", "--password-file", "-", stdin="\n").output
    assert "RESOURCE_NOT_FOUND" in admin("user", "delete", "nobody", "--yes").output


def test_acls_are_added_listed_explained_and_removed(admin: Run) -> None:
    bob = ("--principal", "User:bob")
    done(admin("acl", "add", *bob, "--producer", "--topic", "ord", "--transactional-id", "ord", "--prefixed"))
    done(admin("acl", "add", *bob, "--operation", "read", "--deny", "--topic", "orders", "--host", "10.0.0.1"))
    rows = json.loads(done(admin("acl", "list", *bob, "-o", "json")))
    assert len(rows) == 6
    assert {row["pattern"] for row in rows if row["name"] == "ord"} == {"prefixed"}
    matching = json.loads(done(admin("acl", "list", *bob, "--topic", "orders", "--matching", "-o", "json")))
    assert len(matching) == 4
    allowed = done(admin("acl", "explain", "User:bob", "write", "--topic", "orders"))
    assert allowed.startswith(
        "allowed: write on TOPIC 'orders': ALLOW WRITE to User:bob from * on TOPIC PREFIXED 'ord'"
    )
    denied = admin("acl", "explain", "User:bob", "read", "--topic", "orders", "--host", "10.0.0.1")
    assert (denied.exit_code, "DENY READ to User:bob" in denied.output) == (1, True)
    assert "super user" in done(admin("acl", "explain", "User:admin", "alter", "--cluster"))
    nothing = admin("acl", "explain", "User:bob", "read", "--group", "other")
    assert (nothing.exit_code, "no ACL is about" in nothing.output) == (1, True)
    assert "removed 6 ACLs" in done(admin("acl", "remove", *bob, "--yes"))
    assert "there are no such ACLs" in done(admin("acl", "list", *bob))
    assert "there are no such ACLs" in admin("acl", "remove", *bob, "--yes").output


def test_quotas_are_set_listed_and_removed(admin: Run) -> None:
    carl = ("--user", "carl")
    said = done(admin("quota", "set", *carl, "producer_byte_rate=1048576", "request_percentage=12.5"))
    assert said == "user carl: producer_byte_rate=1048576\nuser carl: request_percentage=12.5\n"
    done(admin("quota", "set", *carl, "--client-id", "app", "consumer_byte_rate=1000"))
    done(admin("quota", "set", "--default-user", "--client-id", "app", "consumer_byte_rate=2000"))
    done(admin("quota", "set", "--ip", "192.0.2.7", "connection_creation_rate=5"))
    rows = json.loads(done(admin("quota", "list", *carl, "-o", "json")))
    assert {"entity": {"user": "carl"}, "quota": "producer_byte_rate", "value": 1048576.0} in rows
    assert len(rows) == 3, "those of carl with a client id too"
    everything = done(admin("quota", "list"))
    assert "user (default)" in everything
    assert "192.0.2.7" in everything
    absent = admin("quota", "unset", *carl, "producer_byte_rate", "consumer_byte_rate")
    assert absent.exit_code == 1
    assert "user carl has no quota consumer_byte_rate; nothing was removed" in absent.output
    assert len(json.loads(done(admin("quota", "list", *carl, "-o", "json")))) == 3
    done(admin("quota", "unset", *carl, "producer_byte_rate", "request_percentage"))
    done(admin("quota", "unset", *carl, "--client-id", "app", "consumer_byte_rate"))
    assert "there are no such quotas" in done(admin("quota", "list", *carl))
    assert json.loads(done(admin("quota", "list", "--default-user", "-o", "json")))[0]["value"] == 2000.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["acl", "add", "--topic", "t", "--operation", "read"], "--principal"),
        (["acl", "add", "--principal", "User:x", "--operation", "read"], "name a resource"),
        (["acl", "add", "--principal", "User:x", "--topic", "t"], "--operation"),
        (["acl", "add", "--principal", "User:x", "--topic", "t", "--producer", "--operation", "read"], "either"),
        (["acl", "add", "--principal", "x", "--topic", "t", "--operation", "read"], "has no type"),
        (["acl", "add", "--principal", "User:x", "--group", "g", "--producer"], "neither needs anything of a group"),
        (["acl", "add", "--principal", "User:x", "--topic", "t", "--operation", "read", "--host", "a.example.org"],
         "host 'a.example.org' is no address"),
        (["acl", "add", "--principal", "User:x", "--topic", "t", "--operation", "read", "--host", "10.0.0.0/8"],
         "host '10.0.0.0/8' is no address"),
        (["acl", "remove", "--yes"], "say which"),
        (["acl", "explain", "User:x", "read"], "name a resource"),
        (["acl", "explain", "x", "read", "--topic", "t"], "principal 'x' has no type, as User:x has"),
        (["user", "add", "", "--password-file", "/dev/null"], "the name of the user is empty"),
        (["quota", "set", "producer_byte_rate=1"], "say whom it is for"),
        (["quota", "set", "--user", "x", "producer_byte_rate=much"], "'much' is not a number"),
        (["quota", "set", "--user", "x", "producer_byte_rate=0"], "must be greater than 0"),
        (["quota", "set", "--user", "x", "connection_creation_rate=1"], "Invalid configuration key"),
        (["quota", "set", "--user", "x", "--default-user", "producer_byte_rate=1"], "either --user or --default-user"),
        (["quota", "set", "--user", "x", "--ip", "192.0.2.7", "connection_creation_rate=1"], "stands alone"),
    ],
)  # fmt: skip
def test_what_is_not_said_is_asked_for(admin: Run, arguments: list[str], why: str) -> None:
    result = admin(*arguments)
    assert result.exit_code != 0
    assert why in result.output


def test_each_mechanism_of_a_user_has_a_salt_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    done(oncelog("user", "add", "eve", "--password-file", "-", "--data-dir", folder, stdin="pencil"))
    with open_folder(folder) as node:
        assert len({credential.salt for credential in node.users.values()}) == 2


def test_the_folder_of_a_broker_that_does_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = BrokerProcess(folder, SETTINGS, arguments=["--listen", "SASL_PLAINTEXT://127.0.0.1:0"])
    broker.start()
    assert "in use" in oncelog("user", "list", "--data-dir", folder).output
    broker.stop()
    done(oncelog("user", "add", "eve", "--password-file", "-", "--data-dir", folder, stdin="pencil"))
    done(oncelog("acl", "add", "--principal", "User:eve", "--operation", "all", "--topic", "*", "--data-dir", folder))
    done(oncelog("acl", "add", "--principal", "User:eve", "--operation", "alter", "--cluster", "--data-dir", folder))
    assert "removed 1 ACL" in done(oncelog("acl", "remove", "--operation", "alter", "--data-dir", folder, "--yes"))
    assert len(json.loads(done(oncelog("acl", "list", "--data-dir", folder, "-o", "json")))) == 1
    broker.start()
    eve = properties(broker, tmp_path, "eve", "pencil", "SCRAM-SHA-256")
    done(oncelog("topic", "create", "tea", "--config", eve))
    broker.stop()
    done(oncelog("user", "delete", "eve", "--data-dir", folder, "--yes"))
    assert "there are no users" in done(oncelog("user", "list", "--data-dir", folder))
    assert "there is no user eve" in oncelog("user", "delete", "eve", "--data-dir", folder, "--yes").output


def test_users_and_acls_before_the_first_start(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    done(oncelog("user", "add", "eve", "--password-file", "-", "--data-dir", folder, "--node-id", "7", stdin="pencil"))
    done(oncelog("acl", "add", "--principal", "User:eve", "--operation", "all", "--topic", "*", "--data-dir", folder))
    assert stat.S_IMODE((folder / "oncelog-metadata.journal").stat().st_mode) == 0o600
    settings = {**SETTINGS, "node.id": 7}
    broker = BrokerProcess(folder, settings, arguments=["--listen", "SASL_PLAINTEXT://127.0.0.1:0"])
    broker.start()
    eve = properties(broker, tmp_path, "eve", "pencil", "SCRAM-SHA-256")
    done(oncelog("topic", "create", "tea", "--config", eve))
    broker.stop()
    log = broker.log_path.read_text()
    assert "WARNING" not in log and "lost" not in log, "it is the start of a folder in order"


def test_a_folder_of_something_else_is_not_made_one_of_a_broker(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    refused = oncelog("user", "add", "eve", "--password-file", "-", "--data-dir", tmp_path, stdin="pencil")
    assert (refused.exit_code, "not the data folder of a node of its own" in refused.output) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    inside = tmp_path / "letter.txt" / "data"
    refused = oncelog("user", "add", "eve", "--password-file", "-", "--data-dir", inside, stdin="pencil")
    assert refused.stderr == f"Error: {inside} cannot be used as a data folder: Not a directory\n"


def test_who_cannot_see_an_id_is_not_told_that_its_transaction_hangs(
    secured: BrokerProcess, admin: Run, tmp_path: Path
) -> None:
    done(admin("topic", "create", "sales"))
    done(admin("user", "add", "reader", "--password-file", "-", stdin="secret\n"))
    done(admin("acl", "add", "--principal", "User:reader", "--operation", "read", "--topic", "sales"))
    account = {"bootstrap.servers": secured.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    account |= {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "root"}
    with Producer({**account, "transactional.id": "till"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("sales", b"x").result(30)
        file = properties(secured, tmp_path, "reader", "secret", "SCRAM-SHA-512")
        hanging = oncelog("txn", "hanging", "--older-than", "0s", "--config", file)
        blocking = oncelog("txn", "blocking", "sales", "--config", file)
        abort = oncelog("txn", "abort", "sales:0", "--start-offset", "0", "--yes", "--config", file)
        producer.abort_transaction()
    assert (hanging.exit_code, "whether they hang is not known" in hanging.stderr) == (0, True), hanging.output
    assert "ACLs hide its transactional id from you" in done(blocking)
    assert "HANGING" not in blocking.output
    assert (abort.exit_code, "may still commit it" in abort.stderr) == (1, True), abort.output
