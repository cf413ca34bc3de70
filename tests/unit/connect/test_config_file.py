"""The file of connectors: mistakes are named, secrets come from the environment."""

from __future__ import annotations

import pytest

from oncelog.connect.config_file import parse_file
from oncelog.connect.settings import ConnectorConfigError

GOOD = '[connectors.a]\nkind = "sqlite-sink"\nurl = "${FOLDER}/x.db"\ntopics = ["t", "u"]\n'
SOURCE = '[connectors.a]\nkind = "postgres-source"\nurl = "postgresql://h/d"\npublication = "p"\n'


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
        (SOURCE + 'outbox_table = "outbox"', "the name of the schema too"),
        ('[connectors."a b"]\nkind = "sqlite-sink"\nurl = "x"\ntopics = "t"', "a b for configuration name"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConnectorConfigError, match=problem):
        parse_file(text, {}, {"FOLDER": "/tmp"})


@pytest.mark.parametrize("kind", ["postgres-sink", "postgres-source"])
@pytest.mark.parametrize(
    "url",
    [
        "postgresqll://me:secret@db/shop",
        "postgresql://me:se@secret@db/shop",
        "postgresql://me:secret%zt@db/shop",
        "postgresql://me:secret /x@db/shop",
        "postgresql://me:secret/x@db/shop",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(kind: str, url: str) -> None:
    more = 'topics = "t"' if kind == "postgres-sink" else 'publication = "p"'
    with pytest.raises(ConnectorConfigError, match="connector a: url is not postgresql://") as caught:
        parse_file(f'[connectors.a]\nkind = "{kind}"\nurl = "{url}"\n{more}', {}, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:se%40cret@db,other:5433/shop", "host=/run/pg dbname=shop", "postgresql:///shop"]
)
def test_urls_of_postgres(url: str) -> None:
    [kind] = parse_file(f'[connectors.a]\nkind = "postgres-sink"\nurl = "{url}"\ntopics = "t"', {}, {})
    assert kind.name == "a"
