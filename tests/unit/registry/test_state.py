"""The registry as a state machine over records: replay, compaction, ids that are never given twice."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.registry import decisions
from oncelog.registry.decisions import Decision, Wanted
from oncelog.registry.errors import Refusal
from oncelog.registry.records import Record, config_record, mode_record, schema_key
from oncelog.registry.state import State
from oncelog.schemas.schema import PROTOBUF, Reference, Schema


class Topic:
    """Records in their order, and the state of a registry that has read them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.state = State()

    def do(self, decision: Decision) -> Any:
        for record in decision.records:
            self.records.append(record)
            self.state.apply(*record)
        return decision.answer

    def register(self, subject: str, schema: str | Schema, **more: int) -> Any:
        given = Schema(schema) if isinstance(schema, str) else schema
        return self.do(decisions.register(self.state, Wanted(subject, given, **more)))

    def restarted(self) -> State:
        state = State()
        for record in self.records:
            state.apply(*record)
        return state

    def compact(self) -> None:
        last = {record.key: index for index, record in enumerate(self.records)}
        kept = [record for index, record in enumerate(self.records) if last[record.key] == index]
        self.records = [record for record in kept if record.value is not None]


def contents(state: State) -> Any:
    return [*state.everything()], state.highest_id, state._levels, state._modes


def code_of(call: Any, *arguments: Any, **more: Any) -> int:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value.code


def test_records_are_those_that_other_tools_know() -> None:
    topic = Topic()
    topic.register("orders-value", ' "int" ')
    topic.do(decisions.set_level(topic.state, None, "full"))
    topic.do(decisions.set_mode(topic.state, "orders-value", "READWRITE"))
    topic.do(decisions.delete_subject(topic.state, "orders-value", permanent=False))
    keys = [record.key.decode() for record in topic.records]
    assert keys == [
        '{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}',
        '{"keytype":"CONFIG","subject":null,"magic":0}',
        '{"keytype":"MODE","subject":"orders-value","magic":0}',
        '{"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}',
    ]
    values = [json.loads(record.value or b"") for record in topic.records]
    assert values[0].pop("md5")
    assert values[0] == {"subject": "orders-value", "version": 1, "id": 1, "schema": '"int"', "deleted": False}
    assert values[1:] == [
        {"compatibilityLevel": "FULL"},
        {"subject": "orders-value", "mode": "READWRITE"},
        {"subject": "orders-value", "version": 1},
    ]


def test_records_of_another_registry_are_understood() -> None:
    """Fields that are not known here, other types of keys, and records that are damaged."""
    state = State()
    value = {"subject": "s", "version": 1, "id": 40, "md5": "x", "schema": '"int"', "deleted": False, "newField": [1]}
    state.apply(schema_key("s", 1), json.dumps(value).encode())
    state.apply(b'{"keytype":"CONTEXT","tenant":"t","context":"c","magic":0}', b"{}")
    state.apply(b'{"keytype":"NOOP","magic":0}', None)
    state.apply(b"no JSON", b"{")
    state.apply(None, b"{}")
    state.apply(schema_key("s", 2), b'{"subject":"s"}')
    assert [version.version for version in state.versions("s")] == [1]
    assert decisions.register(state, Wanted("other", Schema('"long"'))).answer.id == 41
    state.apply(schema_key("s", 3), b'{"subject":"s","id":50}')
    assert decisions.register(state, Wanted("other", Schema('"long"'))).answer.id == 51


def test_the_same_schema_has_one_id_whatever_its_spaces() -> None:
    topic = Topic()
    first = topic.register("a", '{"type": "int"}')
    assert topic.register("b", '{"type":"int"}').id == first.id
    assert topic.register("a", '{"type":    "int"}') == first
    assert len(topic.records) == 2


def test_an_id_is_not_given_again_after_its_schema_is_gone_and_the_topic_compacted() -> None:
    topic = Topic()
    topic.register("a", '"int"')
    last = topic.register("b", '"long"')
    topic.do(decisions.delete_subject(topic.state, "b", permanent=False))
    topic.do(decisions.delete_subject(topic.state, "b", permanent=True))
    topic.compact()
    state = topic.restarted()
    assert decisions.register(state, Wanted("c", Schema('"string"'))).answer.id == last.id + 1
    assert code_of(state.schema, last.id) == 40403


def test_a_deleted_version_can_come_again_as_a_new_one() -> None:
    topic = Topic()
    first = topic.register("a", '"int"')
    topic.do(decisions.delete_subject(topic.state, "a", permanent=False))
    again = topic.register("a", '"int"')
    assert (again.id, again.version) == (first.id, 2)


def test_import_takes_ids_and_versions_of_another_registry() -> None:
    topic = Topic()
    assert code_of(topic.register, "a", '"int"', id=9) == 42205
    topic.do(decisions.set_mode(topic.state, None, "IMPORT"))
    assert code_of(topic.register, "a", '"int"') == 42205
    taken = topic.register("a", '"int"', id=9, version=4)
    assert (taken.id, taken.version) == (9, 4)
    assert code_of(topic.register, "b", '"long"', id=9) == 42207
    topic.do(decisions.set_mode(topic.state, None, "READWRITE"))
    assert topic.register("a", '"long"').id == 10


def test_an_import_does_not_take_the_place_of_a_version_with_another_id() -> None:
    """Compaction would leave nothing of the other id: records with it could not be read, and it could come again."""
    topic = Topic()
    topic.do(decisions.set_mode(topic.state, None, "IMPORT"))
    first = topic.register("a", '"int"', id=9, version=1)
    assert code_of(topic.register, "a", '"long"', id=3, version=1) == 42205
    assert topic.register("a", '"int"', id=9, version=1) == first, "a request that is repeated"
    topic.compact()
    state = topic.restarted()
    assert state.schema(9) == first.schema
    state.apply(*mode_record(None, "READWRITE"))
    assert decisions.register(state, Wanted("b", Schema('"string"'))).answer.id == 10


@pytest.mark.parametrize("subject", ["", "x" * 501, "a\nb", ":.context:s"])
def test_names_that_are_no_subjects(subject: str) -> None:
    assert code_of(Topic().register, subject, '"int"') == 42208


def test_a_reference_to_what_was_deleted_is_refused() -> None:
    topic = Topic()
    topic.register("money", '{"type": "record", "name": "Money", "fields": []}')
    topic.do(decisions.delete_subject(topic.state, "money", permanent=False))
    assert code_of(topic.register, "bill", Schema('"Money"', references=(Reference("Money", "money", 1),))) == 42201


def test_a_deleted_version_whose_reference_became_another_file_is_like_nothing() -> None:
    topic, references = Topic(), (Reference("n.proto", "n", 1),)
    topic.register("n", Schema(proto_file("n"), PROTOBUF))
    topic.register("m", Schema(proto_file("m", uses=".n.M"), PROTOBUF, references))
    for subject in ("m", "n"):
        topic.do(decisions.delete_subject(topic.state, subject, permanent=False))
    topic.do(decisions.delete_subject(topic.state, "n", permanent=True))
    topic.register("n", Schema(proto_file("other"), PROTOBUF))
    wanted = decisions.prepared(topic.state, Schema(proto_file("m", uses=".other.M"), PROTOBUF, references))
    assert decisions.find(topic.state, *wanted, topic.state.all_versions("m")) is None


def proto_file(package: str, uses: str = "") -> str:
    file = FileDescriptorProto(package=package, syntax="proto3")
    message = file.message_type.add(name="M")
    if uses:
        file.dependency.append("n.proto")
        message.field.add(name="f", number=1, label=1, type=11, type_name=uses)
    return base64.b64encode(file.SerializeToString()).decode()


def test_a_setting_that_is_deleted_leaves_the_default() -> None:
    state = State()
    state.apply(*config_record("s", "NONE"))
    state.apply(*mode_record("s", "READONLY"))
    assert (state.effective_level("s"), state.effective_mode("s")) == ("NONE", "READONLY")
    for record in (config_record("s", "NONE"), mode_record("s", "READONLY")):
        state.apply(record.key, None)
    assert (state.effective_level("s"), state.effective_mode("s")) == ("BACKWARD", "READWRITE")


TYPES = ["int", "long", "float", "string"]
STEPS = st.one_of(
    st.tuples(st.just("register"), st.sampled_from("ab"), st.sampled_from(TYPES)),
    st.tuples(st.just("delete version"), st.sampled_from("ab"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("delete subject"), st.sampled_from("ab"), st.booleans()),
    st.tuples(st.just("level"), st.sampled_from(["a", None]), st.sampled_from(["NONE", "FULL", "BACKWARD"])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("restart")),
)


def step(topic: Topic, kind: str, *arguments: Any) -> Any:
    if kind == "register":
        return topic.register(arguments[0], json.dumps(arguments[1]))
    if kind == "delete version":
        subject, number, permanent = arguments
        return topic.do(decisions.delete_version(topic.state, subject, number, permanent=permanent))
    if kind == "delete subject":
        return topic.do(decisions.delete_subject(topic.state, arguments[0], permanent=arguments[1]))
    if kind == "level":
        return topic.do(decisions.set_level(topic.state, *arguments))
    if kind == "compact":
        return topic.compact()
    topic.state = topic.restarted()
    return None


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=30))
def test_an_id_stands_for_one_schema_in_any_history(history: list[Any]) -> None:
    topic, meaning = Topic(), {}
    for each in history:
        try:
            answer = step(topic, *each)
        except Refusal:
            continue
        if each[0] == "register":
            assert meaning.setdefault(answer.id, each[2]) == each[2]
        assert contents(topic.restarted()) == contents(topic.state)
