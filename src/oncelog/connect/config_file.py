"""The file of connectors: TOML, a table for each connector under `connectors`.

    [connectors.orders]
    kind = "postgres-sink"
    url = "postgresql://shop:${PASSWORD}@db/shop"
    topics = ["orders"]

`${NAME}` in a text stands for an environment variable, so that a file need not have secrets in it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from oncelog.connect.kinds import KINDS, Kind
from oncelog.connect.settings import ConnectorConfigError
from oncelog.core.config import did_you_mean


def parse_file(text: str, client: Mapping[str, Any], environment: Mapping[str, str]) -> list[Kind]:
    """Raises ConnectorConfigError, which names connector and setting."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConnectorConfigError(f"this is not TOML: {error}") from None
    unknown = sorted(tables.keys() - {"connectors"})
    if unknown:
        raise ConnectorConfigError(f"{unknown[0]} is unknown: connectors are tables named [connectors.NAME]")
    connectors = tables.get("connectors")
    if not isinstance(connectors, dict) or not connectors:
        raise ConnectorConfigError("there are no connectors: write a table named [connectors.NAME] for each")
    return [_connector(name, given, client, environment) for name, given in connectors.items()]


def _connector(name: str, given: Any, client: Mapping[str, Any], environment: Mapping[str, str]) -> Kind:
    if not isinstance(given, dict) or not isinstance(kind := given.get("kind"), str):
        raise ConnectorConfigError(f"connector {name}: kind is missing, one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise ConnectorConfigError(
            f"connector {name}: kind {kind} is none of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        )
    settings = {key: _expanded(value, environment) for key, value in given.items() if key != "kind"}
    try:
        return KINDS[kind]({**settings, "name": name}, {**client, "client.id": f"oncelog-connect-{name}"})
    except ConnectorConfigError as error:
        raise ConnectorConfigError(f"connector {name}: {error}") from None


def _expanded(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_expanded(item, environment) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item, environment) for key, item in value.items()}
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise ConnectorConfigError(f"the environment variable {found[1]} is not set")
        return environment[found[1]]

    return re.sub(r"\$\{(\w+)\}", variable, value)
