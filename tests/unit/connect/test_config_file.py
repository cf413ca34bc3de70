"""The file of connectors: mistakes are named, secrets come from the environment."""

from __future__ import annotations

import pytest

from oncelog.connect.config_file import parse_file
from oncelog.connect.settings import ConnectorConfigError

GOOD = '[connectors.a]\nkind = "sqlite-sink"\nurl = "${FOLDER}/x.db"\ntopics = ["t", "u"]\n'


def test_a_connector_is_named_by_its_table_and_variables_are_filled_in() -> None:
    [kind] = parse_file(GOOD, {}, {"FOLDER": "/tmp"})
    assert kind.name == "a"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("=", "not TOML"),
        ("", "no connectors"),
        ("x = 1", "x is unknown"),
        ("[connectors.a]", "connector a: kind is missing"),
        ('[connectors.a]\nkind = "sqlite-sinc"', "did you mean sqlite-sink"),
        (GOOD + "tabel = 1", "tabel; did you mean table"),
        (GOOD + 'mode = "x"', "must be one of upsert, append"),
        (GOOD.replace("FOLDER", "NOWHERE"), "variable NOWHERE is not set"),
        ('[connectors.a]\nkind = "sqlite-sink"\ntopics = "t"', "connector a: .*url: must be given"),
        ('[connectors."a b"]\nkind = "sqlite-sink"\nurl = "x"\ntopics = "t"', "a b for configuration name"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConnectorConfigError, match=problem):
        parse_file(text, {}, {"FOLDER": "/tmp"})
