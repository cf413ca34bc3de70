"""What of a record is shown: masked by rules, decoded by schemas, found in all partitions, with who wrote it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, NewTopic, Producer
from oncelog.client.consumer_records import ConsumerRecord
from oncelog.console import contents, messages
from oncelog.console.contents import Contents, Decoded, SchemaDecoder
from oncelog.console.masks import MASKED, Mask, mask_field, read_masks
from oncelog.schemas.registry_client import RegistryClient, RegistryError
from oncelog.schemas.schema import ParsedSchema, Schema
from oncelog.schemas.serialization import Serializer
from oncelog.schemas.wire_format import MAGIC_GUID, SchemaName, frame
from oncelog.testing import BrokerProcess
from tests.registries import serving_registry
from tests.unit.console.conftest import Browser, serving
from tests.waiting import wait_until

SECRET = "sam@example.org"
ORDER = {"id": 7, "customer": {"email": SECRET, "name": "Sam"}, "lines": [{"card": SECRET}, {"card": SECRET, "n": 2}]}


def record(value: bytes | None, key: bytes | None = b"k", topic: str = "orders") -> ConsumerRecord:
    return ConsumerRecord(topic, 0, 0, 0, 0, key, value, (("who", SECRET.encode()), ("n", None)), 0)


def rules(folder: Path, text: str) -> tuple[Mask, ...]:
    file = folder / "masks.json"
    file.write_text(text)
    return read_masks(file)


def test_fields_of_json_are_masked_by_their_paths() -> None:
    found = json.loads(json.dumps(ORDER))
    mask_field(found, ("customer", "email"))
    mask_field(found, ("lines", "*", "card"))
    mask_field(found, ("no", "such", "field"))
    mask_field(found, ("id", "deeper"))
    assert found == {
        "id": 7,
        "customer": {"email": MASKED, "name": "Sam"},
        "lines": [{"card": MASKED}, {"card": MASKED, "n": 2}],
    }


@pytest.mark.parametrize("value", [b"plain " + SECRET.encode(), b"{", b'"text"', b"[" * 100_000, b"\xff\x00", b"7"])
def test_what_cannot_be_looked_into_is_masked_as_a_whole(value: bytes) -> None:
    (mask,) = (Mask("orders", fields=(("customer", "email"),)),)
    assert mask.apply(record(value)).value == MASKED.encode()
    assert mask.apply(record(None)).value is None


def test_rules_are_for_topics_by_name_or_pattern(tmp_path: Path) -> None:
    masks = rules(
        tmp_path,
        '[{"topics": "pay*", "value": true, "key": true, "headers": ["who"]}, {"topics": "orders", "fields": ["a.b"]}]',
    )
    paid = Contents("payments", masks).see(record(b"x", topic="payments")).record
    assert (paid.key, paid.value, paid.headers) == (b"***", b"***", (("who", b"***"), ("n", None)))
    seen = Contents("orders", masks).see(record(b'{"a": {"b": 1}, "c": 2}'))
    assert json.loads(seen.record.value) == {"a": {"b": MASKED}, "c": 2}
    assert seen.raw == seen.record, "nothing gets around it"
    other = Contents("others", masks).see(record(b"x"))
    assert other.record.value == b"x"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("{}", "no list of rules"),
        ('[{"fields": ["a"]}]', 'no "topics"'),
        ('[{"topics": "t"}]', "masks nothing"),
        ('[{"topics": "t", "feilds": ["a"]}]', "unknown part 'feilds'"),
        ('[{"topics": "t", "fields": "a"}]', "a list of texts"),
        ('[{"topics": "t", "fields": [""]}]', "a list of texts"),
        ('[{"topics": "t", "fields": ["a..b"]}]', "names with dots"),
        ('[{"topics": "t", "key": "yes"}]', "true or false"),
    ],
)
def test_a_rule_that_is_not_understood_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rules(tmp_path, text)


def test_what_is_masked_is_on_no_page_and_in_no_search_and_in_no_file(
    shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        producer.send(topic, json.dumps(ORDER), key="k", headers=[("who", SECRET.encode())])
    masks = rules(
        tmp_path,
        json.dumps([{"topics": topic, "fields": ["customer.email", "lines.*.card"], "headers": ["who"]}]),
    )
    with serving(shared_broker.bootstrap_servers, masks=masks) as browser:
        wait_until(lambda: browser.get(f"/topics/{topic}").status == 200)
        path = f"/topics/{topic}/messages?start=earliest"
        one = f"/topics/{topic}/messages/0/0"
        paths = [path, f"{path}&view=keys", f"{path}&format=json", f"{path}&format=jsonl", f"{path}&format=csv"]
        for where in (*paths, f"{path}&q=Sam", one, f"{one}?format=json", f"{one}?download=value"):
            answer = browser.get(where)
            assert (answer.status, SECRET in answer.text) == (200, False), where
            assert SECRET.encode().hex(" ")[:20] not in answer.text, where
            assert "***" in answer.text and "Sam" in answer.text, where
        assert browser.data(f"{path}&q=Sam")["rows"] != []
        for field in ("any", "value", "header"):
            assert browser.data(f"{path}&q={SECRET}&field={field}")["rows"] == [], "it cannot be guessed by searching"


# Schemas

FIELDS = [{"name": "id", "type": "int"}, {"name": "email", "type": "string"}]
AVRO = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})


@pytest.fixture
def registry(shared_broker: BrokerProcess) -> Iterator[RegistryClient]:
    with serving_registry(shared_broker.bootstrap_servers) as address:
        yield RegistryClient(address)


def test_values_are_decoded_by_their_schemas_on_pages_and_in_searches_and_masked(
    shared_broker: BrokerProcess, registry: RegistryClient, topic: str
) -> None:
    encode = Serializer(registry, Schema(AVRO))
    value = encode(topic, {"id": 7, "email": SECRET})
    assert value is not None
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        for one in (value, b"plain", frame(999_999, b"x")):
            producer.send(topic, one)
    path = f"/topics/{topic}/messages?start=earliest"
    with serving(shared_broker.bootstrap_servers, schema_registry=registry) as browser:
        wait_until(lambda: browser.get(f"/topics/{topic}").status == 200)
        decoded, plain, unknown = browser.data(path)["rows"]
        assert json.loads(decoded["value"]) == {"id": 7, "email": SECRET}
        assert decoded["schema_problem"] is None
        assert (plain["value"], "schema_id" in plain) == ("plain", False)
        assert (unknown["schema_id"], "not found" in unknown["schema_problem"].lower()) == (999_999, True)
        html = browser.get(path).text
        assert f"schema {decoded['schema_id']}</span>" in html
        assert "not decoded by schema 999999" in html
        assert [row["offset"] for row in browser.data(f"{path}&q=%22email%22")["rows"]] == [0]
        page = browser.data(f"/topics/{topic}/messages/0/0")
        assert [node["name"] for node in page["value"]["json"]["children"]] == ["id", "email"]
        line = json.loads(browser.get(f"{path}&limit=1&format=jsonl").text)
        assert line["value_base64" if "value_base64" in line else "value"] != decoded["value"], "a file has the bytes"
    masks = (Mask(topic, fields=(("email",),)),)
    with serving(shared_broker.bootstrap_servers, schema_registry=registry, masks=masks) as browser:
        wait_until(lambda: browser.get(f"/topics/{topic}").status == 200)
        for where in (path, f"{path}&format=jsonl", f"/topics/{topic}/messages/0/0?download=value"):
            answer = browser.get(where)
            assert (SECRET in answer.text, "***" in answer.text) == (False, True), where


class FailingRegistry:
    def __init__(self) -> None:
        self.asked: list[SchemaName] = []

    def parsed(self, name: SchemaName) -> ParsedSchema:
        self.asked.append(name)
        raise RegistryError(40403, "Schema not found")


def test_a_registry_is_not_asked_again_and_again_for_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FAILURES_MAX", 3)
    now_s, registry = [0.0], FailingRegistry()
    decoder = SchemaDecoder(registry, lambda: now_s[0])
    monkeypatch.setattr(decoder, "_failed", type(decoder._failed)(maxlen=3))
    for schema_id in (1, 1, 2, 3, 4, 5):
        found = decoder.decode(frame(schema_id, b"x"))
        assert found is not None
        assert found.problem
    assert registry.asked == [1, 2, 3], "after three that are not there it does not go on"
    now_s[0] = contents.FAILURES_S + 1
    assert decoder.decode(frame(5, b"x")) == Decoded(5, None, "Schema not found (error 40403)")
    assert decoder.decode(b"no schema") is None


def test_a_schema_that_a_header_names_is_asked_for() -> None:
    registry, guid = FailingRegistry(), uuid.uuid4()
    header = ("__value_schema_id", bytes([MAGIC_GUID]) + guid.bytes)
    seen = Contents("orders", decoder=SchemaDecoder(registry)).see(record(b"x")._replace(headers=(header,)))
    assert registry.asked == [guid]
    assert messages.schema_row(seen.decoded)["schema_id"] == str(guid)


# Searching everywhere


@pytest.fixture
def wide(admin: Admin, browser: Browser, shared_broker: BrokerProcess, topic: str) -> str:
    """A topic of three partitions with ten records in each, of which two have `needle` in them."""
    name = f"wide-{topic}"
    admin.create_topics([NewTopic(name, 3)])
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        for partition in range(3):
            for number in range(10):
                producer.send(name, f"{'needle' if number in (3, 8) else 'hay'} {number}", partition=partition)
    wait_until(lambda: browser.get(f"/topics/{name}").status == 200)
    return name


def places(data: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in data["rows"]]


def test_a_search_goes_through_all_partitions_and_on_from_where_it_stopped(browser: Browser, wide: str) -> None:
    path = f"/topics/{wide}/messages?partition=all&start=earliest&q=needle"
    found = browser.data(path)
    assert places(found) == [(0, 3), (0, 8), (1, 3), (1, 8), (2, 3), (2, 8)]
    assert (found["at_end"], found["resume"], found["stopped_by"]) == (True, None, "the end of the last partition")
    first = browser.data(f"{path}&limit=3")
    assert (places(first), first["stopped_by"]) == ([(0, 3), (0, 8), (1, 3)], "the limit of 3 rows")
    html = browser.get(f"{path}&limit=3").text
    assert "Search on from here" in html
    assert f'href="/topics/{wide}/messages/1/3">1:3</a>' in html
    rest = browser.data(f"{path}&limit=3&resume={first['resume']}")
    assert places(rest) == [(1, 8), (2, 3), (2, 8)]
    at_a_border = browser.data(f"{path}&limit=2")
    assert places(browser.data(f"{path}&resume={at_a_border['resume']}")) == [(1, 3), (1, 8), (2, 3), (2, 8)]
    lines = browser.get(f"{path}&format=jsonl").text.splitlines()
    assert len(lines) == 6


def test_the_budget_is_one_for_all_partitions(browser: Browser, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BUDGET_BYTES", 1)
    path = f"/topics/{wide}/messages?partition=all&start=earliest&q=needle"
    seen: list[tuple[int, int]] = []
    resume = ""
    for _ in range(3):
        found = browser.data(f"{path}&resume={resume}")
        seen += places(found)
        assert len(found["searched"]) == 1
        resume = found["resume"] or ""
    assert seen == [(0, 3), (0, 8), (1, 3), (1, 8), (2, 3), (2, 8)]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("partition=all", "are for searching"),
        ("partition=all&q=x&view=keys", "are for searching"),
        ("partition=all&q=x&resume=1", "a partition and an offset"),
        ("partition=all&q=x&resume=1:" + "9" * 30, "a partition and an offset"),
    ],
)
def test_what_cannot_be_searched_is_said(browser: Browser, topic: str, query: str, words: str) -> None:
    answer = browser.get(f"/topics/{topic}/messages?{query}")
    assert (answer.status, words in answer.text) == (400, True)


def test_rows_name_the_transactional_id_that_wrote_them(
    browser: Browser, topic: str, transactional: Callable[[str], Producer], shared_broker: BrokerProcess
) -> None:
    producer = transactional(f"named-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"x")
    producer.commit_transaction()
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as plain:
        plain.send(topic, b"y")
    path = f"/topics/{topic}/messages?start=earliest"
    wait_until(lambda: len(browser.data(path)["rows"]) == 2)
    assert [row["transactional_id"] for row in browser.data(path)["rows"]] == [f"named-{topic}", None]
    assert f'<a href="/transactions/named-{topic}">named-{topic}</a>' in browser.get(path).text
