"""The runner of wire scenarios on a broker that learns from its controller only after the controller has answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance import scenario
from tests.conformance.scenario import Scenario, play
from tests.conformance.scenarios import administering
from tests.conformance.wire import Fields


class LateBroker:
    """Knows topics, partitions and settings. A change that the controller has answered is seen only a while later."""

    def __init__(self, changes_a_call: int) -> None:
        self._changes_a_call = changes_a_call
        self._unseen: list[Callable[[], None]] = []
        self._ids = itertools.count(1)
        self._known: dict[str, Fields] = {}
        """What the broker knows: by topic, its id, number of partitions and settings."""
        self._deciding: dict[str, Fields] = {}
        """What the controller knows."""

    def __call__(self, bootstrap_servers: str) -> LateBroker:
        return self

    def close(self) -> None:
        return None

    def call(self, api: str, version: int, **fields: Any) -> Fields:
        if api in scenario.ANSWERED_BY_THE_CONTROLLER:
            answer = getattr(self, f"_{api}")(**fields)
            image = {name: {**topic} for name, topic in self._deciding.items()}
            self._unseen.append(lambda: self.__dict__.update(_known=image))
            return answer
        answer = getattr(self, f"_{api}")(**fields)
        for _ in range(self._changes_a_call):
            if self._unseen:
                self._unseen.pop(0)()
        return answer

    def _create_topics(self, topics: list[Fields], **_: Any) -> Fields:
        answers = []
        for topic in topics:
            made = {"topic_id": str(next(self._ids)), "count": topic["num_partitions"], "settings": {}}
            self._deciding[topic["name"]] = made
            answers.append({"name": topic["name"], "topic_id": made["topic_id"], "error_code": 0})
        return {"topics": answers}

    def _delete_topics(self, **fields: Any) -> Fields:
        names = fields["topic_names"] if "topic_names" in fields else [topic["name"] for topic in fields["topics"]]
        codes = {name: 0 if self._deciding.pop(name, None) else 3 for name in names}
        return {"responses": [{"name": name, "error_code": code} for name, code in codes.items()]}

    def _create_partitions(self, topics: list[Fields], **_: Any) -> Fields:
        for topic in topics:
            self._deciding[topic["name"]] = {**self._deciding[topic["name"]], "count": topic["count"]}
        return {"results": [{"name": topic["name"], "error_code": 0} for topic in topics]}

    def _incremental_alter_configs(self, resources: list[Fields], **_: Any) -> Fields:
        for resource in resources:
            topic = self._deciding[resource["resource_name"]]
            settings = {**topic["settings"], **{one["name"]: one["value"] for one in resource["configs"]}}
            self._deciding[resource["resource_name"]] = {**topic, "settings": settings}
        return {"responses": [{"error_code": 0} for _ in resources]}

    def _list_offsets(self, topics: list[Fields], **_: Any) -> Fields:
        def code(topic: Fields, partition: Fields) -> int:
            known = self._known.get(topic["name"])
            return 0 if known and partition["partition_index"] < known["count"] else 3

        return {"topics": [{"partitions": [{"error_code": code(t, p)} for p in t["partitions"]]} for t in topics]}

    def _metadata(self, topics: list[Fields], **_: Any) -> Fields:
        found = [(topic["name"], self._known.get(topic["name"])) for topic in topics]
        return {
            "topics": [
                {"name": name, "error_code": 0, **known} if known else {"error_code": 3} for name, known in found
            ]
        }

    def _describe_configs(self, resources: list[Fields], **_: Any) -> Fields:
        return {"results": [self._known[resource["resource_name"]]["settings"] for resource in resources]}


CHANGES = Scenario(
    "changes",
    [
        administering.create(scenario.Name("a")),
        administering.metadata([scenario.Name("a")]),
        administering.add(scenario.Name("a"), 3),
        administering.metadata([scenario.Name("a")]),
        administering.alter(scenario.Name("a"), [("retention.ms", 0, "1000")]),
        administering.configs(scenario.Name("a"), ["retention.ms"]),
        administering.delete(scenario.Name("a")),
        administering.create(scenario.Name("b")),
        administering.metadata([scenario.Name("a"), scenario.Name("b")]),
    ],
    topics={},
)


@pytest.fixture(params=[1, 2, 100])
def late_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateBroker]:
    broker = LateBroker(request.param)
    monkeypatch.setattr(scenario, "Wire", broker)
    return broker


@pytest.mark.usefixtures("late_broker")
def test_a_broker_that_learns_of_changes_late_is_waited_for() -> None:
    answers = {step["step"]: step.get("answer") for step in play("", CHANGES)}
    assert answers["01 metadata v12"]["topics"][0]["error_code"] == 0
    assert answers["03 metadata v12"]["topics"][0]["count"] == 3
    assert answers["05 describe_configs v4"]["results"] == [{"retention.ms": "1000"}]
    codes = {topic.get("name", "gone"): topic["error_code"] for topic in answers["08 metadata v12"]["topics"]}
    assert codes == {"gone": 3, "b": 0}
