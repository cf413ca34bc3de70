"""Every command that changes something on a cluster, while the answers to its request are lost.

The broker carries the request out and the connection closes before the answer. Whatever a command says then, it must be
true: that it is done, if it is; that it is not, if it is not; or that this is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Admin, Producer, TopicPartition
from oncelog.client.admin import ConfigResource, OffsetSpec, ResourceType, ScramUpsertion
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ScramMechanism
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.unit.client.reading import Reading
from tests.waiting import wait_until

READING = {
    *(
        "topic describe",
        "topic list",
        "group describe",
        "group list",
        "config show",
        "cluster info",
        "cluster describe",
        "log dirs",
    ),
    *("txn blocking", "txn describe", "txn hanging", "txn history", "txn list", "txn watch", "console"),
    *("user list", "acl list", "acl explain", "quota list", "connect check", "connect status"),
}
READING_ONE = {
    "topic describe": ["{name}"],
    "topic list": [],
    "group describe": ["{name}"],
    "group list": [],
    "config show": ["topic", "{name}", "--all"],
    "cluster info": [],
    "cluster describe": [],
    "log dirs": [],
    "txn blocking": ["{name}"],
    "txn describe": ["{name}"],
    "txn hanging": [],
    "txn history": ["{name}"],
    "txn list": [],
    "txn watch": ["-n", "1"],
    "user list": [],
    "acl list": [],
    "acl explain": ["User:ANONYMOUS", "read", "--topic", "{name}"],
    "quota list": [],
}
"""With arguments. The others of READING go on without an end, or ask a file what to look at."""
ASKING = re.compile("(METADATA|API_VERSIONS|FIND_COORDINATOR|FETCH|LIST_|DESCRIBE_|OFFSET_FETCH|OFFSET_FOR_)")
"""Names of requests that change nothing."""
OF_MEMBERS = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT}
"""They change who is in a group, of which a command says nothing but that it has left."""
NO_CLUSTER = {"serve", "completion", "cluster split", "log dump", "log find", "log timeline", "log verify"}
OWN_WORK = {"lab", "demo", "run", "registry", "connect run", "cluster up", *(f"bench {name}" for name in
            ("commit-cost", "consume", "groups", "growth", "latency", "memory", "produce", "profile", "recovery",
             "start", "suite", "transactions"))}  # fmt: skip
"""They do and judge a work of their own, on topics of their own."""
NOT_KNOWN = re.compile(r"not known|not confirmed|may have done it")
NOT_DONE = re.compile(
    r"nothing was written|is aborted|not written|not committed|exists already|there is no|0 of \d+ [^;]* written", re.I
)
LOST = Accident(Kind.LOSE_ANSWER)
REFUSAL = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
QUICK = ("--timeout", "1s")
LESS_QUICK = ("--timeout", "8s")
PATIENT = ("--timeout", "20s")
QUICK_PRODUCER = ("--set", "request.timeout.ms=1500", "--set", "delivery.timeout.ms=5000")


class World:
    """What is true, seen past the losses; the command's cluster is the one that loses answers."""

    def __init__(self, chaos: Chaos, admin: Admin, reading: Reading, servers: str, name: str, folder: Path) -> None:
        self.chaos, self.admin, self.reading, self.servers, self.name = chaos, admin, reading, servers, name
        self.place = TopicPartition(name, 0)
        self.folder = folder
        self.acl = Acl(Resource.TOPIC, name, Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
        self.left_open: list[Producer] = []
        admin.create_topics([name])

    def lines(self) -> str:
        path = self.folder / "lines"
        path.write_text("one\ntwo\n")
        return str(path)

    def committed(self) -> list[bytes]:
        return self.reading.values(self.name, [0])

    def offset(self) -> int | None:
        found = self.admin.group_offsets(self.name, [self.place])
        return found[self.place].offset if self.place in found else None

    def setting(self, key: str) -> str | None:
        return self.admin.describe_configs(ConfigResource(ResourceType.TOPIC, self.name))[key].value

    def has_user(self) -> bool:
        return self.name in self.admin.describe_user_scram_credentials()

    def add_user(self) -> None:
        self.admin.alter_user_scram_credentials([ScramUpsertion(self.name, ScramMechanism.SHA_256, "x", 4096)])

    def quotas(self) -> dict[str, float]:
        found = self.admin.describe_client_quotas({"user": self.name})
        return {key: value for each in found for key, value in each.quotas.items()}

    def is_open(self) -> bool:
        producers = self.admin.describe_producers([self.place])[self.place]
        return any(producer.transaction_start_offset >= 0 for producer in producers)

    def write(self) -> None:
        with Producer({"bootstrap.servers": self.servers}) as producer:
            producer.send(self.name, "x")

    def open_transaction(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": self.name})
        self.left_open.append(producer)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.name, "x").result(60)


@dataclass(frozen=True)
class Case:
    answer: ApiKey
    arguments: Callable[[World], list[str]]
    is_done: Callable[[World], bool]
    says: str
    """In the output of a command that knows that it is done; {name} stands for the name."""
    before: Callable[[World], None] = lambda world: None
    finds_out: bool = True
    """Whether a repetition whose answer arrives tells that the first attempt was carried out."""
    is_made: bool = True
    """Whether what the command is for is done although no answer arrives."""


CASES: dict[str, Case] = {
    "topic create": Case(
        ApiKey.CREATE_TOPICS,
        lambda world: [f"{world.name}-new"],
        lambda world: f"{world.name}-new" in world.admin.list_topics(),
        "created {name}-new",
        finds_out=False,
    ),
    "topic create if it does not exist": Case(
        ApiKey.CREATE_TOPICS,
        lambda world: [f"{world.name}-new", "--if-not-exists"],
        lambda world: f"{world.name}-new" in world.admin.list_topics(),
        "created {name}-new",
    ),
    "topic alter, partitions": Case(
        ApiKey.CREATE_PARTITIONS,
        lambda world: [world.name, "-p", "4"],
        lambda world: len(world.admin.list_topics()[world.name].partitions) == 4,
        "{name} has 4 partitions now",
        finds_out=False,
    ),
    "topic alter, settings": Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda world: [world.name, "--topic-config", "retention.ms=5000"],
        lambda world: world.setting("retention.ms") == "5000",
        "{name}: retention.ms=5000",
    ),
    "topic delete": Case(
        ApiKey.DELETE_TOPICS,
        lambda world: [world.name, "--yes"],
        lambda world: world.name not in world.admin.list_topics(),
        "deleted {name}",
        finds_out=False,
    ),
    "topic delete-records": Case(
        ApiKey.DELETE_RECORDS,
        lambda world: [world.name, "--before", "latest", "--yes"],
        lambda world: world.admin.list_offsets({world.place: OffsetSpec.EARLIEST})[world.place].offset == 1,
        "the records are deleted",
        before=World.write,
    ),
    "config set": Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda world: ["topic", world.name, "retention.ms=5000"],
        lambda world: world.setting("retention.ms") == "5000",
        "retention.ms=5000",
    ),
    "config unset": Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda world: ["topic", world.name, "retention.ms"],
        lambda world: world.setting("retention.ms") != "5000",
        "retention.ms has its default again",
        before=lambda world: world.admin.alter_configs(
            ConfigResource(ResourceType.TOPIC, world.name), set={"retention.ms": "5000"}
        ),
    ),
    "group delete": Case(
        ApiKey.DELETE_GROUPS,
        lambda world: [world.name, "--yes"],
        lambda world: world.offset() is None,
        "deleted {name}",
        before=lambda world: world.admin.alter_group_offsets(world.name, {world.place: 0}),
        finds_out=False,
    ),
    "group delete-offsets": Case(
        ApiKey.OFFSET_DELETE,
        lambda world: [world.name, "--topic", world.name, "--yes"],
        lambda world: world.offset() is None,
        "{name} has no offset of {name}-0 any more",
        before=lambda world: world.admin.alter_group_offsets(world.name, {world.place: 0}),
        finds_out=False,
    ),
    "group reset-offsets": Case(
        ApiKey.OFFSET_COMMIT,
        lambda world: [world.name, "--topic", world.name, "--to", "latest", "--yes"],
        lambda world: world.offset() == 1,
        "offsets of {name} are set",
        before=World.write,
    ),
    "txn fence": Case(
        ApiKey.INIT_PRODUCER_ID,
        lambda world: [world.name, "--yes"],
        lambda world: not world.is_open(),
        "fenced {name}",
        before=World.open_transaction,
    ),
    "txn abort": Case(
        ApiKey.WRITE_TXN_MARKERS,
        lambda world: [f"{world.name}:0", "--start-offset", "0", "--yes"],
        lambda world: not world.is_open(),
        "aborted on {name}-0",
        before=World.open_transaction,
    ),
    "cluster elect": Case(
        ApiKey.ELECT_LEADERS,
        lambda world: [f"{world.name}:0"],
        lambda world: world.admin.list_topics()[world.name].partitions[0].leader == 1,
        "leaders are elected",
    ),
    "cluster reassign": Case(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda world: [f"{world.name}:0", "--replicas", "1"],
        lambda world: world.admin.list_reassignments() == {},
        "{name}-0 moves to 1",
    ),
    "cluster unregister": Case(
        ApiKey.UNREGISTER_BROKER,
        lambda world: ["7", "--yes"],
        # It is not there. One that was there would be gone with the first attempt, and the second be told the same.
        lambda world: True,
        "broker 7 is unregistered",
        finds_out=False,
    ),
    "user add": Case(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda world: [world.name, "--mechanism", "SCRAM-SHA-256", "--password-file", world.lines()],
        World.has_user,
        "{name} logs in with SCRAM-SHA-256",
    ),
    "user delete": Case(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda world: [world.name, "--yes"],
        lambda world: not world.has_user(),
        "deleted {name}",
        before=World.add_user,
        finds_out=False,
    ),
    "acl add": Case(
        ApiKey.CREATE_ACLS,
        lambda world: ["--principal", "User:alice", "--operation", "read", "--topic", world.name],
        lambda world: world.acl in world.admin.describe_acls(),
        "added ",
    ),
    "acl remove": Case(
        ApiKey.DELETE_ACLS,
        lambda world: ["--topic", world.name, "--yes"],
        lambda world: world.acl not in world.admin.describe_acls(),
        "removed 1 ACL",
        before=lambda world: world.admin.create_acls([world.acl]),
    ),
    "quota set": Case(
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda world: ["--user", world.name, "producer_byte_rate=1000000"],
        lambda world: world.quotas() == {"producer_byte_rate": 1e6},
        "user {name}: producer_byte_rate=1000000",
    ),
    "quota unset": Case(
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda world: ["--user", world.name, "producer_byte_rate"],
        lambda world: world.quotas() == {},
        "producer_byte_rate is removed",
        before=lambda world: world.admin.alter_client_quotas({"user": world.name}, {"producer_byte_rate": 1e6}),
    ),
    "consume with a group": Case(
        ApiKey.OFFSET_COMMIT,
        lambda world: [world.name, "--group", world.name],
        lambda world: world.offset() == 1,
        "x",
        before=World.write,
    ),
    "consume with a group that is left": Case(
        ApiKey.LEAVE_GROUP,
        lambda world: [world.name, "--group", world.name],
        lambda world: world.admin.describe_groups([world.name])[world.name].members == [],
        "x",
        before=World.write,
    ),
    "produce": Case(
        ApiKey.PRODUCE,
        lambda world: [world.name, world.lines(), *QUICK_PRODUCER],
        lambda world: world.committed() == [b"one", b"two"],
        "2 records to {name}",
    ),
    "produce in a transaction": Case(
        ApiKey.END_TXN,
        lambda world: [world.name, world.lines(), "--transactional-id", world.name],
        lambda world: world.committed() == [b"one", b"two"],
        "2 records to {name}",
    ),
    "produce in a transaction whose records are not acknowledged": Case(
        ApiKey.PRODUCE,
        lambda world: [world.name, world.lines(), "--transactional-id", world.name, *QUICK_PRODUCER],
        lambda world: world.committed() == [b"one", b"two"],
        "2 records to {name}",
        is_made=False,
    ),
    "produce in a transaction that does not begin": Case(
        ApiKey.INIT_PRODUCER_ID,
        lambda world: [world.name, world.lines(), "--transactional-id", world.name],
        lambda world: world.committed() == [b"one", b"two"],
        "2 records to {name}",
        is_made=False,
    ),
}
"""By command, and what is special about the case behind it."""


def leaves(command: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path.strip()
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, f"{path} {name}")


def command_of(name: str) -> str:
    """The longest command that a case's name begins with."""
    return max((found for found in leaves(cli) if f"{name} ".replace(",", " ").startswith(f"{found} ")), key=len)


def test_every_command_changes_nothing_on_a_cluster_or_has_a_case() -> None:
    played = {command_of(name) for name in CASES}
    excused = READING | NO_CLUSTER | OWN_WORK
    assert set(leaves(cli)) == played | excused, "a command that may change something has no case"
    assert not played & excused


def test_a_broker_that_is_not_there_cannot_be_unregistered(run: Callable[..., Result]) -> None:
    done = run("cluster", "unregister", "7", "--yes")
    assert done.exit_code != 0
    assert "is not currently registered" in done.output
    assert not NOT_KNOWN.search(done.output)


@pytest.fixture
def make_world(
    servers: str, admin: Admin, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], World]]:
    worlds: list[World] = []
    with Chaos(servers) as chaos, Reading(servers) as reading:
        monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", chaos.bootstrap_servers)

        def make() -> World:
            worlds.append(World(chaos, admin, reading, servers, f"{name}-{len(worlds)}", tmp_path))
            return worlds[-1]

        yield make
        for producer in [producer for world in worlds for producer in world.left_open]:
            producer.close(timeout_ms=0)


@pytest.fixture
def world(make_world: Callable[[], World]) -> World:
    return make_world()


def play(world: World, played: str, accidents: Iterable[Accident], *options: str) -> Result:
    case = CASES[played]
    case.before(world)
    left = iter(accidents)
    world.chaos.accident = lambda key, request: next(left, None) if key is case.answer else None
    arguments = [*command_of(played).split(), *case.arguments(world), *options]
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def judge(world: World, case: Case, result: Result) -> None:
    if result.exit_code == 0:
        assert case.says.format(name=world.name) in result.output
        wait_until(lambda: case.is_done(world))
    else:
        said = NOT_KNOWN.search(result.output) or NOT_DONE.search(result.output)
        assert said, f"nothing is said about the outcome: {result.output}"
    if case.is_done(world):
        assert not NOT_DONE.search(result.output), f"it is done: {result.output}"


@pytest.mark.parametrize("command", sorted({command_of(name) for name in CASES}))
def test_every_request_by_which_a_command_changes_something_loses_its_answer_in_a_case(
    make_world: Callable[[], World], command: str
) -> None:
    cases = {name: case for name, case in CASES.items() if command_of(name) == command}
    for name in cases:
        world = make_world()
        world.chaos.seen.clear()
        play(world, name, [])
        changes = {key for key in world.chaos.seen if not ASKING.match(key.name)} - OF_MEMBERS
        assert changes <= {case.answer for case in cases.values()}, name


@pytest.mark.parametrize("command", READING_ONE)
def test_a_command_that_is_said_to_change_nothing_sends_no_request_that_does(world: World, command: str) -> None:
    world.admin.alter_group_offsets(world.name, {world.place: 0})
    world.open_transaction()
    world.chaos.seen.clear()
    arguments = [word.format(name=world.name) for word in READING_ONE[command]]
    result = CliRunner().invoke(cli, [*command.split(), *arguments])
    assert result.exit_code == 0, result.output
    assert [key.name for key in world.chaos.seen if not ASKING.match(key.name)] == []
    assert world.chaos.seen, "it did not ask the cluster"


@pytest.mark.parametrize("played", CASES)
def test_a_command_whose_first_answer_is_lost_finds_out_or_says_that_it_does_not_know(
    world: World, played: str
) -> None:
    case = CASES[played]
    result = play(world, played, [LOST], *PATIENT)
    assert world.chaos.happened[Kind.LOSE_ANSWER] == 1, result.output
    judge(world, case, result)
    assert (result.exit_code == 0) or not case.finds_out, result.output


@pytest.mark.parametrize("kind", [Kind.LOSE_ANSWER, Kind.HANG], ids=["the connection closes", "nothing comes"])
@pytest.mark.parametrize("played", CASES)
def test_a_command_that_gets_no_answer_says_nothing_false(
    make_world: Callable[[], World], played: str, kind: Kind
) -> None:
    case = CASES[played]
    for options in (QUICK, LESS_QUICK):
        world = make_world()
        result = play(world, played, [Accident(kind)] * 1000, *options)
        if world.chaos.happened[kind]:
            break  # on a busy machine the time may be over before anything is asked
    assert world.chaos.happened[kind] >= 1, result.output
    judge(world, case, result)
    if case.is_made:
        wait_until(lambda: case.is_done(world))


def test_a_cluster_without_an_active_controller_is_described_by_its_brokers(world: World) -> None:
    world.chaos.accident = lambda key, _: LOST if key is ApiKey.DESCRIBE_QUORUM else None
    described = CliRunner().invoke(cli, ["cluster", "describe", "--timeout", "10s"])
    assert described.exit_code == 0, described.output
    assert "no controller is active" in described.stdout
    assert re.search(r"^ +1 +127.0.0.1:\d+", described.stdout, re.M), described.stdout


@pytest.mark.parametrize("played", CASES)
def test_a_command_that_is_refused_after_its_first_answer_was_lost_says_nothing_false(
    world: World, played: str
) -> None:
    case = CASES[played]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if case.answer is ApiKey.PRODUCE else REFUSAL
    result = play(world, played, [LOST, *[Accident(Kind.REFUSE, code)] * 1000], *LESS_QUICK)
    assert world.chaos.happened[Kind.LOSE_ANSWER] == 1, result.output
    world.chaos.accident = lambda key, request: None
    judge(world, case, result)


def test_what_a_command_has_done_before_it_fails_is_told(world: World) -> None:
    names = [f"{world.name}-1", f"{world.name}-2"]
    for name in names:
        world.admin.alter_group_offsets(name, {world.place: 0})
    seen = []

    def lose_from_the_second_on(key: ApiKey, request: object) -> Accident | None:
        if key is ApiKey.DELETE_GROUPS:
            seen.append(request)
        return Accident(Kind.LOSE_ANSWER) if key is ApiKey.DELETE_GROUPS and len(seen) > 1 else None

    world.chaos.accident = lose_from_the_second_on
    result = CliRunner().invoke(cli, ["group", "delete", *names, "--yes", *LESS_QUICK])
    assert result.exit_code == 1
    assert f"deleted {names[0]}" in result.output
    assert NOT_KNOWN.search(result.output)
