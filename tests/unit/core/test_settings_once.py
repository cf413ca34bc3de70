"""Every setting is declared once, its default stands in its table alone, and what nobody reads says so."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.cli.cluster_access import DEFAULT_SERVERS
from oncelog.client.config import CLIENT_TABLE, ClientConfig
from oncelog.client.consumer_config import CONSUMER_TABLE, ConsumerConfig
from oncelog.client.fetch import FetchSettings
from oncelog.client.producer_config import PRODUCER_TABLE, ProducerConfig
from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError, ConfigKey, ConfigTable, ConfigType, format_value, refused, setting
from oncelog.core.invariant import InvariantError
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.spark.sink_options import SINK_KAFKA_TABLE, SINK_TABLE, SinkOptions
from oncelog.spark.source_options import SOURCE_TABLE, SourceOptions
from oncelog.storage.log_config import LogConfig

SOURCE = Path(importlib.import_module("oncelog").__file__ or "").parent
TABLES = {
    table.family: table
    for table in (BROKER_CONFIG, TOPIC_CONFIG, CLIENT_TABLE, PRODUCER_TABLE, CONSUMER_TABLE, SOURCE_TABLE, SINK_TABLE)
}
BOUND = (
    LogConfig,
    TxnConfig,
    GroupConfig,
    ClientConfig,
    ProducerConfig,
    ConsumerConfig,
    FetchSettings,
    SourceOptions,
    SinkOptions,
)
DECLARING = ("ConfigKey", "without_effect", "refused")
DIFFERENT_THINGS = {
    *("compression.type", "fetch.max.bytes", "transaction.two.phase.commit.enable"),
    *("topic", "transaction_timeout_ms", "url", "batch_rows", "batch_ms", "schema_registry"),
}
"""Settings of brokers or topics, of clients, of Spark and of connectors that share no more than the name."""


@functools.cache
def modules() -> dict[Path, ast.Module]:
    """Without messages, whose fields have the protocol's defaults, and benchmarks, which must not move with ours."""
    left_out = {SOURCE / "protocol" / "messages", SOURCE / "bench"}
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py") if not left_out & {*path.parents}}


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


LITERAL = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)


def literal(node: ast.expr | None) -> str | None:
    """The value of an expression of literals such as `8 * 1024`, as text."""
    if node is None or not all(isinstance(part, LITERAL) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "", "eval"))
    return None if value is None else format_value(tuple(map(str, value)) if isinstance(value, tuple) else value)


def written_defaults(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Names with the literal that a parameter, a field or a constant of that name has as its value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            pairs = [
                *zip(plain[::-1], node.defaults[::-1], strict=False),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            # A flag of a function is a choice of its own, not a quantity that must follow a setting.
            given = ((argument.arg, literal(default)) for argument, default in pairs)
            yield from (pair for pair in given if pair[1] not in ("true", "false"))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, literal(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, literal(node.value)


@functools.cache
def defaults_by_name() -> dict[str, set[str | None]]:
    """What a variable or a constant would be called that repeats a setting, by the key's name, or by the field's."""
    defaults: dict[str, set[str | None]] = defaultdict(set)
    for table in TABLES.values():
        for key in table:
            name = key.name.replace(".", "_").removeprefix("kafka_").removeprefix("oncelog_").lower()
            for spelling in (name, name.upper()):
                defaults[spelling].add(format_value(key.default))
    for cls in BOUND:
        for field in dataclasses.fields(cls):
            if "key" in field.metadata:
                defaults[field.name].add(format_value(field.metadata["key"].default))
    return defaults


def duplicated_defaults(tree: ast.AST) -> list[str]:
    return [
        f"{name} = {value}"
        for name, value in written_defaults(tree)
        if value and value in defaults_by_name().get(name.strip("_"), ())
    ]


def test_no_default_of_a_setting_is_written_outside_of_its_table() -> None:
    found = {str(path.relative_to(SOURCE)): duplicated_defaults(tree) for path, tree in modules().items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "def f(request_timeout_ms=30_000): ...",
        "def f(*, batch_attempts: int = 3): ...",
        "LINGER_MS: Final = 5",
        "_FETCH_MAX_BYTES = 50 * 1024 * 1024",
        "class C:\n    in_flight_max: int = 5",
    ],
)
def test_a_default_that_is_written_again_would_be_noticed(code: str) -> None:
    assert len(duplicated_defaults(ast.parse(code))) == 1


def test_commands_look_for_a_broker_where_one_listens_by_default() -> None:
    """A constant of its own, because commands start faster without the broker's table."""
    assert BROKER_CONFIG["listeners"].default == f"PLAINTEXT://{DEFAULT_SERVERS}"


def test_no_key_is_declared_twice() -> None:
    places = defaultdict(list)
    for path, tree in modules().items():
        for call in calls(tree, "ConfigKey"):
            if isinstance(call.args[0], ast.Constant):
                places[call.args[0].value].append(path.name)
    assert len(places) > 100
    assert {name for name, paths in places.items() if len(paths) > 1} == DIFFERENT_THINGS


def test_a_table_refuses_a_key_that_it_has_already() -> None:
    key = ConfigKey("a", ConfigType.INT, 1, "")
    for keys, others, aliases in (([key, key], [], {}), ([key], refused("", "a"), {}), ([key], [], {"a": ("a", 1)})):
        with pytest.raises(InvariantError, match="twice"):
            ConfigTable("odd", keys, others=others, aliases=aliases)


def test_the_brokers_key_for_all_topics_is_the_topics_key() -> None:
    for key in TOPIC_CONFIG:
        if key.synonym is not None:
            assert BROKER_CONFIG[key.synonym] == dataclasses.replace(
                key, name=key.synonym, synonym=None, dynamic=True
            ), key.name


@pytest.mark.parametrize("cls", BOUND)
def test_a_field_has_the_type_of_its_key(cls: type) -> None:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if "key" in field.metadata:
            expected = typing.get_args(hints[field.name]) or (hints[field.name],)
            if typing.get_origin(hints[field.name]) is tuple:
                expected = (tuple,)
            assert isinstance(field.default, expected), field.name


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_default_is_a_value_that_its_key_takes(table: ConfigTable) -> None:
    for key in table:
        if key.default is not None and key.name not in ("kafka.bootstrap.servers", "transactional_id"):
            assert key.parse(format_value(key.default)) == key.default, key.name


def read_names() -> set[str]:
    """Keys of fields, and strings of the source that are not there to declare a key."""
    read = {field.metadata["key"].name for cls in BOUND for field in dataclasses.fields(cls) if "key" in field.metadata}
    for tree in modules().values():
        declaring = {id(leaf) for call in calls(tree, *DECLARING) for leaf in ast.walk(call)}
        read |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in declaring
        }
    return read


CHECKED_ONLY = {"sasl.login.callback.handler.class"}
"""Files for Java's client have to name the class. Another one than for what is done here anyway is refused."""


def test_a_setting_that_nobody_reads_says_that_it_has_no_effect() -> None:
    read = read_names()
    ends = tuple(text for text in read if text.startswith(".") and text.count(".") > 1)
    for_all_topics = {key.synonym for key in TOPIC_CONFIG if key.name in read}
    unread = [
        f"{table.family}: {key.name}"
        for table in (BROKER_CONFIG, TOPIC_CONFIG, CLIENT_TABLE, PRODUCER_TABLE, CONSUMER_TABLE, SINK_TABLE)
        for key in table
        if key.no_effect is None
        and key.name not in read | for_all_topics | CHECKED_ONLY
        and not key.name.endswith(ends)
    ]
    assert unread == []


def test_keys_that_clients_and_spark_take_without_effect_are_named_with_the_reason() -> None:
    given = {
        CLIENT_TABLE: "send.buffer.bytes",
        PRODUCER_TABLE: "metadata.max.idle.ms",
        CONSUMER_TABLE: "receive.buffer.bytes",
        SOURCE_TABLE: "kafka.max.poll.records",
        SINK_KAFKA_TABLE: "linger.ms",
        BROKER_CONFIG: "num.io.threads",
        TOPIC_CONFIG: "min.insync.replicas",
    }
    for table, name in given.items():
        (warning,) = table.parse({name: "2"}).warnings
        assert warning.startswith(f"{name} has no effect in Oncelog: "), table.family


@pytest.mark.parametrize("table", [*TABLES.values(), SINK_KAFKA_TABLE], ids=[*TABLES, "sink-kafka"])
def test_every_table_answers_a_misspelt_name_and_a_wrong_value_alike(table: ConfigTable) -> None:
    key = next(key for key in table if key.type is ConfigType.INT and key.low is not None and key.low > 0)
    with pytest.raises(ConfigError, match=rf"^Unknown .* config name: {key.name}x; did you mean {key.name}\?$"):
        table.parse({f"{key.name}x": "1"})
    with pytest.raises(
        ConfigError, match=rf"^Invalid value -5 for configuration {key.name}: must be (at least|between)"
    ):
        table.parse({key.name: -5})


def test_a_field_takes_its_default_and_its_value_from_its_key() -> None:
    table = ConfigTable("odd", [ConfigKey("a.minutes", ConfigType.INT, 2, "", low=1)])

    @dataclasses.dataclass
    class Odd:
        other: str
        a_ms: int = setting(table["a.minutes"], lambda minutes: minutes * 60_000)

    assert Odd("x").a_ms == 120_000
    assert table.parse({"a.minutes": "3"}).bind(Odd, other="x") == Odd("x", 180_000)
