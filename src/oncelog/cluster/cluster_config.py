"""The settings of a broker in a cluster, checked, and the features that it supports."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.cluster.lifecycle import Timing
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.address import Address, parse_address
from oncelog.core.broker_config import BROKER_CONFIG, RACK_AWARE_SELECTOR
from oncelog.core.config import ConfigError, Settings, setting
from oncelog.core.dataclass import dataclass
from oncelog.core.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION, TRANSACTION_VERSION
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.broker_registration import Feature
from oncelog.storage.meta_properties import MetaPropertiesError, read_meta_properties

METADATA_LEVEL: Final = 30
"""What new metadata begins with: that of Kafka 4.3."""
FEATURES: Final = tuple(
    Feature(name=name, min_supported_version=low, max_supported_version=high)
    for name, low, high in (
        (METADATA_VERSION, 21, METADATA_LEVEL),
        (KRAFT_VERSION, 0, 1),
        (TRANSACTION_VERSION, 0, 2),
        (ELR_VERSION, 0, 1),
    )
)
"""A promise: the controllers raise no level beyond what a registered broker supports. Groups of the new protocol, share
groups and streams groups are not served, so their features have to be at 0."""
_BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"
_VOTERS: Final = "controller.quorum.voters"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    wait_max_ms: int = setting(BROKER_CONFIG["replica.fetch.wait.max.ms"])
    response_min_bytes: int = setting(BROKER_CONFIG["replica.fetch.min.bytes"])
    response_max_bytes: int = setting(BROKER_CONFIG["replica.fetch.response.max.bytes"])
    max_bytes: int = setting(BROKER_CONFIG["replica.fetch.max.bytes"])
    backoff_ms: int = setting(BROKER_CONFIG["replica.fetch.backoff.ms"])
    socket_timeout_ms: int = setting(BROKER_CONFIG["replica.socket.timeout.ms"])


class ClusterConfig(NamedTuple):
    controllers: list[Address]
    rack: str | None
    timing: Timing
    limits: FetchLimits
    lag_max_ms: int
    serves_racks: bool = False
    """Whether consumers are sent to followers in their rack."""


def cluster_config(settings: Settings, controllers: list[Address] | None = None) -> ClusterConfig:
    """Without `controllers` the settings name them. Raises ConfigError."""
    return ClusterConfig(
        controllers or _controllers(settings),
        settings.optional_text("broker.rack"),
        settings.bind(Timing),
        settings.bind(FetchLimits),
        settings.integer("replica.lag.time.max.ms"),
        settings.optional_text("replica.selector.class") == RACK_AWARE_SELECTOR,
    )


def _controllers(settings: Settings) -> list[Address]:
    given = [(_BOOTSTRAP, text) for text in settings.get(_BOOTSTRAP) or ()]  # type: ignore[union-attr]  # a list
    given += [(_VOTERS, text.partition("@")[2]) for text in settings.get(_VOTERS) or ()]  # type: ignore[union-attr]
    if not given:
        raise ConfigError(f"process.roles=broker: {_BOOTSTRAP} has to name the controllers of the cluster, HOST:PORT")
    addresses = []
    for key, text in given:
        try:
            addresses.append(parse_address(text))
        except ValueError as error:
            form = "ID@HOST:PORT" if key == _VOTERS else "HOST:PORT"
            raise ConfigError(f"{key}: every entry has the form {form}, such as 127.0.0.1:9093") from error
    return list(dict.fromkeys(addresses))


def refuse_one_node(folder: Path, problem: str) -> None:
    """Raises ConfigError if the folder is one of a node of its own: that has both roles, and goes on with both."""
    if (folder / JOURNAL_FILE).exists():
        import shlex

        split = ["oncelog", "cluster", "split", "--data-dir", str(folder), "--controller-dir", f"{folder}-controller"]
        raise ConfigError(
            f"{folder} belongs to a node of its own, {problem}; or make a cluster of that node by: {shlex.join(split)}"
        )


def check_folder(folder: Path, settings: Settings) -> None:
    """Raises ConfigError if the folder is not one of this cluster, or nobody can tell of which it will be."""
    refuse_one_node(
        folder,
        "whose topics the cluster does not know: give the broker an empty folder, and copy the topics with a client",
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
