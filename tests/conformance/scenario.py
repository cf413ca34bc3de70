"""Wire scenarios as data, and the runner that plays them on any broker and writes a transcript.

A scenario is a list of steps. A step is one request: an API, a version and its fields. In the fields

* a `Name("t")` is a topic, group or transactional id, made unique for each run and shown as "t" in the transcript;
* a `Ref("P.epoch", -1)` is a value that an earlier step saved, here the epoch of producer P less one;
* a `Batch(...)` becomes the bytes of a record batch.

The runner repeats a request whose answer says that a coordinator is busy or still loading (51 above all): Apache
Kafka answers so at once where another broker may wait and answer the final result, and clients repeat in either case.
Only the last answer is recorded. After the end of a transaction it waits until the coordinator calls it complete, so
that the next step meets a quiet state. Apache Kafka's controller answers a change of topics or settings before its
broker knows of it, so the runner waits for the broker before it asks for anything else.

Transcripts are normalised so that two brokers can be compared: producer ids, topic ids and member ids become symbols
in the order of their appearance; times, throttling, messages for people and the partition that a group's name is
hashed to are left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance import batches, brokers
from tests.conformance.wire import Disconnected, Fields, Wire

CONCURRENT_TRANSACTIONS: Final = 51
BUSY: Final = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
NOT_ENOUGH_REPLICAS: Final = 19
ANSWERED_BY_THE_CONTROLLER: Final = frozenset(
    {
        *("create_topics", "delete_topics", "create_partitions", "alter_configs", "incremental_alter_configs"),
        *("create_acls", "delete_acls", "alter_user_scram_credentials", "alter_client_quotas"),
    }
)
MEMBER_ID_REQUIRED: Final = 79
NO_TOPIC_ID: Final = "00000000-0000-0000-0000-000000000000"
BUSY_TIMEOUT_S: Final = 180.0
PAUSE_S: Final = 0.01
LOOK_AGAIN_S: Final = 0.1
"""Where a time-out is waited for."""
THIS_YEAR_MS: Final = 1_750_000_000_000
"""Records of scenarios are older than this; a later timestamp is the broker's own."""
UNFINISHED_STATES: Final = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")

NEW_PROTOCOL: Final = (1, 2)
"""Where clients of TV2 can be served: on `transaction.version` 0 Apache Kafka 4.3 refuses the first of their requests
that needs a record (35), because the old format has no place for the client's version, and then answers 51 to
everything for ever.
"""

_LEFT_OUT: Final = frozenset(
    {
        *("throttle_time", "error_message", "batch_index_error_message", "documentation"),
        *("node_endpoints", "preferred_read_replica", "host", "port", "cluster_id"),
    }
)
_ID_FIELDS: Final = {"producer_id": "producer", "topic_id": "topic id", "member_id": "member", "leader": "member"}
_TIMES: Final = frozenset({"log_append_time", "last_timestamp", "transaction_start_time"})


@dataclass(frozen=True)
class Name:
    """A name that is unique to the run."""

    text: str


@dataclass(frozen=True)
class Ref:
    """A value saved by an earlier step, plus a number."""

    symbol: str
    plus: int = 0


@dataclass(frozen=True)
class Batch:
    """A record batch; producer id and epoch may be references."""

    count: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    api: str
    version: int
    fields: Mapping[str, Any]
    save: Mapping[str, str] = field(default_factory=dict)
    """Symbols to save, each with the path of a field in the answer ("producer_id", "responses.0.base_offset")."""
    settle: Any = None
    """The transactional id whose end is awaited after the answer."""
    until: Mapping[str, Any] | None = None
    """Paths and values: the request is repeated until the answer has them."""
    connection: str = "main"
    """Each name has a connection of its own. "User:bob" comes by the listener with SASL, logged in as bob; what begins
    with "SASL" comes by it, too, and has not logged in."""
    answered: bool = True
    repeat: int = 1
    """How often the request is sent; the last answer is recorded."""
    note: str = ""


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: Sequence[Step]
    topics: Mapping[str, Any] = field(default_factory=lambda: {"t": 2})
    """Topics to create first: a number of partitions, or a pair of that number and settings."""
    transaction_versions: Sequence[int] = (0, 1, 2)
    profile: str = "default"
    """Which settings the broker needs: see brokers.PROFILES."""
    slow: bool = False
    """Too slow to be played on Apache Kafka again with every run."""


Transcript = list[dict[str, Any]]
_runs = itertools.count()


class Runner:
    """Plays one scenario on one broker."""

    def __init__(self, bootstrap_servers: str, scenario: Scenario, sasl_servers: str | None = None) -> None:
        self._bootstrap = bootstrap_servers
        self._sasl_servers = sasl_servers
        self._scenario = scenario
        self._prefix = f"w{os.getpid()}-{next(_runs)}-"
        self._symbols: dict[str, Any] = {}
        self._wires: dict[str, Wire] = {}
        self._seen_ids: dict[str, dict[Any, str]] = {}
        self._is_broker_behind = False
        self._barriers = itertools.count()

    def play(self) -> Transcript:
        try:
            self._create_topics()
            return [self._play(number, step) for number, step in enumerate(self._scenario.steps)]
        finally:
            for wire in self._wires.values():
                wire.close()

    def _wire(self, name: str) -> Wire:
        if name not in self._wires:
            kind, _, user = name.partition(":")
            wire = Wire(self._bootstrap if not name.startswith(("User:", "SASL")) else self._sasl_servers or "")
            if kind == "User":
                wire.log_in(user, brokers.PASSWORD)
            self._wires[name] = wire
        return self._wires[name]

    def _create_topics(self) -> None:
        wanted = []
        for name, shape in self._scenario.topics.items():
            partitions, settings = shape if isinstance(shape, tuple) else (shape, {})
            wanted.append(_new_topic(self._prefix + name, partitions, settings))
        if wanted:
            self._create(wanted)

    def _create(self, wanted: Sequence[Fields]) -> None:
        answer = self._wire("main").call("create_topics", 7, topics=wanted, timeout=30_000, validate_only=False)
        for created in answer["topics"]:
            if created["error_code"] != 0:
                raise AssertionError(f"creating {created['name']}: {created}")
            self._symbols[f"{created['name'].removeprefix(self._prefix)}.id"] = created["topic_id"]
        self._await_leaders([(topic["name"], topic["num_partitions"]) for topic in wanted])

    def _await_broker(self) -> None:
        """Until the broker has taken over all that the controller has answered.

        It does so in order: a topic that was made later and is led now shows that the changes before it have arrived.
        The broker may have taken over both together and be busy with the rest of it, but not when it leads a second
        topic, which was asked for when it led the first.
        """
        for _ in range(2):
            self._create([_new_topic(f"{self._prefix}barrier-{next(self._barriers)}", 1, {})])
        self._is_broker_behind = False

    def _await_leaders(self, topics: Sequence[tuple[str, int]]) -> None:
        """Apache Kafka answers before the partitions of a new topic are led."""
        entries = [
            {"name": name, "partitions": [{"partition_index": index, "timestamp": -1} for index in range(count)]}
            for name, count in topics
        ]
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._wire("main").call("list_offsets", 7, replica_id=-1, topics=entries)
            if error_codes(answer) == {0}:
                return
            time.sleep(PAUSE_S)
        raise AssertionError(f"no leaders for {topics}")

    def _play(self, number: int, step: Step) -> dict[str, Any]:
        label = f"{number:02d} {step.api} v{step.version}" + (f" ({step.note})" if step.note else "")
        fields = self._resolve(step.fields)
        if self._is_broker_behind and step.api not in ANSWERED_BY_THE_CONTROLLER:
            self._await_broker()
        wire = self._wire(step.connection)
        if not step.answered:
            wire.send_only(step.api, step.version, **fields)
            return {"step": label}
        try:
            if step.repeat > 1:
                wire.call_many(step.api, step.version, step.repeat - 1, **fields)
            answer = self._call_until_settled(wire, step, fields)
        except Disconnected:
            return {"step": label, "answer": "disconnected"}
        self._is_broker_behind |= step.api in ANSWERED_BY_THE_CONTROLLER
        # JoinGroup hands out the member id together with the error that asks for it.
        if answer.get("error_code", 0) in (0, MEMBER_ID_REQUIRED):
            self._symbols.update({symbol: at_path(answer, path) for symbol, path in step.save.items()})
        if step.settle is not None:
            self._await_completion(self._resolve(step.settle))
        return {"step": label, "answer": self._normalise(answer)}

    def _call_until_settled(self, wire: Wire, step: Step, fields: Fields) -> Fields:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            answer = wire.call(step.api, step.version, **fields)
            wanted = step.until is None or all(at_path(answer, path) == value for path, value in step.until.items())
            if (wanted and not _is_busy(step.api, answer)) or time.monotonic() > deadline:
                return answer
            time.sleep(PAUSE_S if wanted else LOOK_AGAIN_S)

    def _await_completion(self, transactional_id: str) -> None:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._wire("main").call("describe_transactions", 0, transactional_ids=[transactional_id])
            state = answer["transaction_states"][0]
            if state["error_code"] not in BUSY and state["transaction_state"] not in UNFINISHED_STATES:
                return
            time.sleep(PAUSE_S)
        raise AssertionError(f"the transaction of {transactional_id} does not end")

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Name):
            return self._prefix + value.text
        if isinstance(value, Ref):
            found = self._symbols[value.symbol]
            return found + value.plus if value.plus else found
        if isinstance(value, Batch):
            options = {key: self._resolve(option) for key, option in value.options.items()}
            values = options.pop("values", None) or [b"v%d" % number for number in range(value.count)]
            return batches.batch(values, **options)
        if isinstance(value, Mapping):
            return {key: self._resolve(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self._resolve(item) for item in value]
            return b"".join(parts) if value and all(isinstance(item, Batch) for item in value) else parts
        return value

    def _normalise(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            left_out = _LEFT_OUT | {"log_start_offset"} if value.get("error_code", 0) != 0 else _LEFT_OUT
            if "__consumer_offsets" in (value.get("topic"), value.get("name")):
                left_out = left_out | {"partitions", "partition_indexes"}
            if "topic_config_error_code" in value:
                # The settings of a new topic, of which every broker has some of its own: DescribeConfigs shows those
                # that count.
                left_out = left_out | {"configs"}
            shown = {name: item for name, item in value.items() if name not in left_out and not _says_nothing(item)}
            return {name: self._normalise(item, name) for name, item in shown.items()}
        if isinstance(value, list):
            # Kafka keeps partitions, topics and the like in hash sets: their order means nothing.
            order = _content if key in _SETS else _order
            return sorted((self._normalise(item, key) for item in value), key=order)
        if key in _TIMES or (key == "timestamp" and value > THIS_YEAR_MS):
            return "time" if value is not None and value >= 0 else value
        if key == "records":
            return [self._normalise(header) for header in batches.headers(value)]
        kind = _ID_FIELDS.get(key)
        if kind is not None and value not in (-1, "", None, NO_TOPIC_ID):
            seen = self._seen_ids.setdefault(kind, {})
            return seen.setdefault(value, f"{kind} {len(seen) + 1}")
        if isinstance(value, bytes):
            return value.hex()
        return value.replace(self._prefix, "") if isinstance(value, str) else value


def _new_topic(name: str, partitions: int, settings: Mapping[str, str]) -> Fields:
    configs = [{"name": key, "value": value} for key, value in settings.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return {**topic, "assignments": [], "configs": configs}


_SETS: Final = frozenset({"acls", "entity", "entries", "values", "credential_infos", "matching_acls", "resources"})
"""Lists of elements without a name of their own, in no order."""


def _content(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


_ORDERED_BY: Final = (
    *("name", "topic", "topic_name", "transactional_id", "group_id", "member_id"),
    *("index", "partition_index", "partition", "user", "resource_name"),
)


def _order(item: Any) -> tuple[str, str]:
    if isinstance(item, dict):
        found = next((item[key] for key in _ORDERED_BY if key in item), "")
        return (f"{found:010d}" if isinstance(found, int) else str(found), "")
    return ("", f"{item:010d}" if isinstance(item, int) else str(item))


def _says_nothing(value: Any) -> bool:
    """A structure of defaults, such as the diverging epoch of a fetch that found none."""
    return isinstance(value, dict) and bool(value) and all(item == -1 for item in value.values())


def at_path(answer: Any, path: str) -> Any:
    for part in path.split("."):
        answer = answer[int(part)] if part.isdigit() else answer[part]
    return answer


def error_codes(answer: Any) -> set[int]:
    if isinstance(answer, dict):
        own = {code for key, code in answer.items() if key in ("error_code", "partition_error_code")}
        return own.union(*(error_codes(item) for item in answer.values()))
    if isinstance(answer, list):
        return set().union(*(error_codes(item) for item in answer))
    return set()


def _is_busy(api: str, answer: Fields) -> bool:
    codes = error_codes(answer)
    # Kafka tells a client that does not know CONCURRENT_TRANSACTIONS on Produce that replicas are missing.
    return bool(codes & BUSY) or (api == "produce" and NOT_ENOUGH_REPLICAS in codes)


def with_name(scenario: Scenario, suffix: str) -> Scenario:
    return dataclasses.replace(scenario, name=f"{scenario.name}{suffix}")


def play(bootstrap_servers: str, scenario: Scenario, sasl_servers: str | None = None) -> Transcript:
    return Runner(bootstrap_servers, scenario, sasl_servers).play()
