"""The settings of a broker in a cluster, checked, and the features that it supports."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from oncelog.cluster.follower import FetchLimits
from oncelog.cluster.lifecycle import Timing
from oncelog.cluster.metadata import JOURNAL_FILE
from oncelog.cluster.quorum_log import Address
from oncelog.core.config import ConfigError, Settings
from oncelog.protocol.messages.broker_registration import Feature
from oncelog.storage.meta_properties import MetaPropertiesError, read_meta_properties

FEATURES: Final = tuple(
    Feature(name=name, min_supported_version=low, max_supported_version=high)
    for name, low, high in (
        ("metadata.version", 21, 30),
        ("kraft.version", 0, 1),
        ("transaction.version", 0, 2),
        ("eligible.leader.replicas.version", 0, 1),
    )
)
"""A promise: the controllers raise no level beyond what a registered broker supports. Groups of the new protocol, share
groups and streams groups are not served, so their features have to be at 0."""
_BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"
_VOTERS: Final = "controller.quorum.voters"
_PROTOCOLS: Final = "listener.security.protocol.map"


class ClusterConfig(NamedTuple):
    controllers: list[Address]
    rack: str | None
    timing: Timing
    limits: FetchLimits
    lag_max_ms: int


def cluster_config(settings: Settings) -> ClusterConfig:
    """Raises ConfigError."""
    _check_protocol(settings)
    return ClusterConfig(
        _controllers(settings),
        settings.optional_text("broker.rack"),
        Timing(
            settings.integer("broker.heartbeat.interval.ms"),
            settings.integer("broker.session.timeout.ms"),
            settings.integer("initial.broker.registration.timeout.ms"),
        ),
        FetchLimits(
            wait_max_ms=settings.integer("replica.fetch.wait.max.ms"),
            response_min_bytes=settings.integer("replica.fetch.min.bytes"),
            response_max_bytes=settings.integer("replica.fetch.response.max.bytes"),
            max_bytes=settings.integer("replica.fetch.max.bytes"),
            backoff_ms=settings.integer("replica.fetch.backoff.ms"),
            socket_timeout_ms=settings.integer("replica.socket.timeout.ms"),
        ),
        settings.integer("replica.lag.time.max.ms"),
    )


def _check_protocol(settings: Settings) -> None:
    pairs = (part.partition(":") for part in (settings.optional_text(_PROTOCOLS) or "").split(","))
    protocols = {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}
    for name in (settings.optional_text("controller.listener.names") or "").split(","):
        protocol = protocols.get(name.strip().upper(), "PLAINTEXT") if name.strip() else "PLAINTEXT"
        if protocol != "PLAINTEXT":
            raise ConfigError(
                f"{_PROTOCOLS}: the controllers' listener {name.strip()} is {protocol}; "
                "TLS and SASL to controllers are not supported yet"
            )


def _controllers(settings: Settings) -> list[Address]:
    given = [(_BOOTSTRAP, text) for text in settings.get(_BOOTSTRAP) or ()]  # type: ignore[union-attr]  # a list
    given += [(_VOTERS, text.partition("@")[2]) for text in settings.get(_VOTERS) or ()]  # type: ignore[union-attr]
    if not given:
        raise ConfigError(f"process.roles=broker: {_BOOTSTRAP} has to name the controllers of the cluster, HOST:PORT")
    addresses = []
    for key, text in given:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal():
            form = "ID@HOST:PORT" if key == _VOTERS else "HOST:PORT"
            raise ConfigError(f"{key}: every entry has the form {form}, such as 127.0.0.1:9093")
        addresses.append(Address(host.strip("[]"), int(port)))
    return list(dict.fromkeys(addresses))


def check_folder(folder: Path, settings: Settings) -> None:
    """Raises ConfigError if the folder is not one of this cluster, or nobody can tell of which it will be."""
    if (folder / JOURNAL_FILE).exists():
        raise ConfigError(
            f"{folder} belongs to a node of its own, whose topics the cluster does not know: give the broker an empty "
            "folder, and copy the topics with a client"
        )
    try:
        found = read_meta_properties(folder)
    except MetaPropertiesError as error:
        raise ConfigError(str(error)) from error
    if found is None and not settings.optional_text("cluster.id"):
        raise ConfigError(
            f"cluster.id: {folder} is new, so the cluster that the broker joins has to be named. Its id is in "
            "meta.properties of any other node"
        )
