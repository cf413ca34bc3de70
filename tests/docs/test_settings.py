"""What the pages say of settings is what the tables say: names, defaults, and what has no effect.

The tables of docs/client.md are compared in `tests/unit/client/test_client_docs.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import LONG_MAX, ConfigKey, ConfigTable, format_value
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.spark.sink_options import SINK_TABLE
from oncelog.spark.source_options import PREFIX, SOURCE_TABLE

DOCS = Path(__file__).resolve().parents[2] / "docs"
IN_WORDS = {"off": str(LONG_MAX), "no limit": str(LONG_MAX), "one day": "86400000", "0 (off)": "0"}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of all tables of a page whose first column has this heading."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[- |]+\n((?:\|.*\n)+)", (DOCS / page).read_text(), re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for table in tables for row in table.splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def in_figures(text: str) -> str:
    """A default as a page tells it, as DescribeConfigs would."""
    text = text.replace("*", "").replace("`", "")
    mebibytes = re.fullmatch(r"(\d+) MiB", text)
    return str(int(mebibytes[1]) << 20) if mebibytes else IN_WORDS.get(text, text)


def key_of(name: str) -> ConfigKey:
    return BROKER_CONFIG[name] if name in BROKER_CONFIG else TOPIC_CONFIG[name]


def test_operators_read_the_right_defaults() -> None:
    told = {name: in_figures(row[1]) for row in rows("operations.md", "setting") for name in names(row[0])}
    assert len(told) > 15
    assert told == {name: format_value(key_of(name).default) for name in told}


def test_settings_that_a_page_calls_without_effect_are_so_in_the_tables_and_the_other_way_round() -> None:
    told = {name for row in rows("differences.md", "what") if "no effect" in row[2] for name in names(row[0])}
    without = {key.name for key in TOPIC_CONFIG if key.no_effect is not None}
    named_elsewhere = {name for name in without if re.match(r"(remote|local|leader|follower|unclean)\.", name)}
    assert told == without - named_elsewhere


def defaults_told(heading: str, table: ConfigTable) -> dict[str, str]:
    return {
        name: in_figures(cell)
        for row in rows("spark.md", heading)
        for name, cell in zip(names(row[0]), _each(row[2], len(names(row[0]))), strict=True)
        if name in table
    }


def _each(cell: str, count: int) -> list[str]:
    """The defaults of a row with several names: one for each, or the same for all."""
    parts = cell.split(", ")
    return parts if len(parts) == count else [cell] * count


def test_the_options_of_sparks_source_are_on_its_page() -> None:
    told = defaults_told("option", SOURCE_TABLE)
    own = {key.name for key in SOURCE_TABLE if not key.name.startswith(PREFIX)}
    assert own - told.keys() == set()
    for key in SOURCE_TABLE:
        if key.name in told and key.default not in (None, "") and told[key.name] != "Kafka's":
            assert told[key.name] == format_value(key.default), key.name


def test_the_arguments_of_sparks_sink_are_on_its_page() -> None:
    told = defaults_told("argument of `write_stream`", SINK_TABLE)
    assert told.keys() == {key.name for key in SINK_TABLE}
    for key in SINK_TABLE:
        if key.default not in (None, ""):
            assert told[key.name] == format_value(key.default), key.name
