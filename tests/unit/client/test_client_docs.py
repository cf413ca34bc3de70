"""docs/client.md: its programs run, and its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import oncelog.client as package
from oncelog.client.consumer_config import CONSUMER_TABLE
from oncelog.client.producer_config import PRODUCER_TABLE
from oncelog.core.config import ConfigTable, format_value

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text()


def test_the_blocks_of_the_page_run_one_after_the_other(servers: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 9
    names: dict[str, Any] = {"servers": servers}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/client.md block {number}", "exec"), names)
    assert names["place"].topic == "orders"
    assert names["values"][0] == b"a value"
    assert names["table"].column("value").to_pylist() == [b"one", b"two", b"three"]
    assert names["features"]["transaction.version"] == 2


@pytest.mark.parametrize("table", [PRODUCER_TABLE, CONSUMER_TABLE], ids=["producer", "consumer"])
def test_every_setting_is_on_the_page_with_its_default_and_meaning(table: ConfigTable) -> None:
    for key in table:
        assert f"| `{key.name}` | {format_value(key.default) or ''} | {key.doc} |" in PAGE


def test_no_setting_is_on_the_page_that_is_not_in_the_code() -> None:
    named = re.findall(r"^\| `([a-z0-9.]+)` \|", PAGE.partition("## Settings")[2], re.MULTILINE)
    assert set(named) == {key.name for table in (PRODUCER_TABLE, CONSUMER_TABLE) for key in table}


def test_every_public_name_has_a_docstring() -> None:
    for name in package.__all__:
        thing = getattr(package, name)
        assert thing.__doc__, name
        for base in getattr(thing, "__mro__", ()):
            for method, value in vars(base).items():
                if base.__module__.startswith("oncelog.client") and callable(value) and not method.startswith("_"):
                    assert value.__doc__, f"{name}.{method}"


def test_the_programs_that_the_page_names_are_there() -> None:
    for path in re.findall(r"`(examples/[\w/]+\.py)`", PAGE):
        assert (Path(__file__).parents[3] / path).is_file()
