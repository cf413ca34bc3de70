"""Which nodes a cluster on this machine has, their ports and settings; kept in its folder from run to run.

FOLDER/cluster.json           the plan
FOLDER/broker-1.properties    settings of a node, for `oncelog serve --config`
FOLDER/broker-1/              its data
FOLDER/broker-1.log           what it says
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from oncelog.core.address import LOOPBACK, parse_address
from oncelog.core.ids import uuid_to_text
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.folder_lock import LOCK_FILE

FILE_NAME: Final = "cluster.json"
FIRST_CONTROLLER: Final = 101
REPLICAS_MAX: Final = 3
CONTROLLER_PORTS: Final = 100
ZOOKEEPER_PORT: Final = 200
"""What is added to the port of the first broker."""


class ClusterFolderError(Exception):
    """The folder cannot be that of the cluster that is wanted. The text says what to do."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    cluster_id: str
    brokers: Mapping[int, int]
    """Ports by node; 0 for any free one."""
    controllers: Mapping[int, int]
    zookeeper: str | None = None
    """Somebody else's ZooKeeper, with a chroot."""
    zookeeper_port: int | None = None
    """That of an own ZooKeeper. Without either there is one controller, whose log is a file."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of all nodes."""

    @classmethod
    def new(cls, brokers: int, controllers: int, *, first_port: int = 0, zookeeper: str | None = None) -> Self:
        cluster_id = uuid_to_text(uuid.uuid4())
        own = first_port + ZOOKEEPER_PORT if first_port else 0
        plan = cls(
            cluster_id,
            dict.fromkeys(range(1, brokers + 1), 0),
            dict.fromkeys(range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers), 0),
            zookeeper if zookeeper is None or "/" in zookeeper else f"{zookeeper}/oncelog/{cluster_id}",
            own if zookeeper is None and controllers > 1 else None,
        )
        return plan.with_ports(first_port) if first_port else plan

    def with_ports(self, first: int) -> Self:
        return replace(
            self,
            brokers={node: first + node - 1 for node in self.brokers},
            controllers={node: first + CONTROLLER_PORTS + node - FIRST_CONTROLLER for node in self.controllers},
            zookeeper_port=None if self.zookeeper_port is None else first + ZOOKEEPER_PORT,
        )

    def with_these_ports(self, ports: Iterable[int]) -> Self:
        """The plan with these ports: brokers first, then controllers, then ZooKeeper."""
        given = iter(ports)
        return replace(
            self,
            brokers={node: next(given) for node in self.brokers},
            controllers={node: next(given) for node in self.controllers},
            zookeeper_port=None if self.zookeeper_port is None else next(given),
        )

    def with_brokers(self, count: int) -> Self:
        """The plan with more brokers. Fewer are refused: partitions have replicas on those that are there."""
        if count < len(self.brokers):
            raise ClusterFolderError(
                f"there are {len(self.brokers)} brokers in the folder, which may have partitions: start all of them, "
                "or move their partitions away with 'oncelog cluster reassign' and remove them from " + FILE_NAME
            )
        next_port = max(self.brokers.values()) + 1
        added = range(max(self.brokers) + 1, max(self.brokers) + 1 + count - len(self.brokers))
        return replace(self, brokers={**self.brokers, **{node: next_port + i for i, node in enumerate(added)}})

    def with_controllers(self, count: int) -> Self:
        """The plan with this number of controllers. It can only change where their log is in ZooKeeper."""
        if count != len(self.controllers) and not self.is_on_zookeeper:
            raise ClusterFolderError(
                "the metadata of this cluster is in the folder of its one controller: a cluster with several of them "
                "needs a new folder"
            )
        next_port = max(self.controllers.values()) + 1
        nodes = range(FIRST_CONTROLLER, FIRST_CONTROLLER + count)
        missing = [node for node in nodes if node not in self.controllers]
        ports = {**self.controllers, **{node: next_port + i for i, node in enumerate(missing)}}
        return replace(self, controllers={node: ports[node] for node in nodes})

    def with_zookeeper(self, address: str) -> Self:
        """Raises ClusterFolderError unless it is the ZooKeeper that has the metadata of this cluster."""
        known = self.zookeeper or ""
        if address not in (known, known.partition("/")[0]):
            where = f"in the ZooKeeper {known}" if known else "not in a ZooKeeper that was given"
            raise ClusterFolderError(
                f"the metadata of this cluster is {where}. If that has moved, change {FILE_NAME}; for a new cluster "
                "choose another folder"
            )
        return self

    @property
    def is_on_zookeeper(self) -> bool:
        return self.zookeeper is not None or self.zookeeper_port is not None

    @property
    def ports(self) -> dict[str, int]:
        """The port of each node, by the name it has in messages."""
        found = {f"broker {node}": port for node, port in self.brokers.items()}
        found |= {f"controller {node}": port for node, port in self.controllers.items()}
        return found | ({} if self.zookeeper_port is None else {"ZooKeeper": self.zookeeper_port})

    def controller_settings(self, node: int, zookeeper: str | None) -> dict[str, str]:
        settings = {"process.roles": "controller", **self._common(node)}
        if zookeeper is not None:
            settings["zookeeper.connect"] = zookeeper
            if all(self.controllers.values()):
                voters = (f"{each}@127.0.0.1:{port}" for each, port in self.controllers.items())
                settings["controller.quorum.voters"] = ",".join(voters)
        return {**settings, **self.settings}

    def broker_settings(self, node: int, controllers: str) -> dict[str, str]:
        return {
            "process.roles": "broker",
            **self._common(node),
            "controller.quorum.bootstrap.servers": controllers,
            **self.settings,
        }

    def _common(self, node: int) -> dict[str, str]:
        replicas = min(REPLICAS_MAX, len(self.brokers))
        needed = max(1, replicas - 1)
        return {
            "node.id": str(node),
            "cluster.id": self.cluster_id,
            "controller.listener.names": "CONTROLLER",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(needed),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(needed),
        }

    def save(self, folder: Path) -> None:
        replace_file(folder / FILE_NAME, f"{json.dumps(asdict(self), indent=2)}\n".encode(), durable=False)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """None for a new folder. Raises ClusterFolderError for one of another kind."""
        path = folder / FILE_NAME
        if path.exists():
            return cls._of(path)
        if (folder / "meta.properties").exists():
            raise ClusterFolderError(
                f"{folder} is the data folder of one node, not of a cluster: choose another folder"
            )
        if folder.exists() and (not folder.is_dir() or any(entry.name != LOCK_FILE for entry in folder.iterdir())):
            raise ClusterFolderError(f"{folder} is neither empty nor the folder of a cluster: choose another")
        return None

    @classmethod
    def _of(cls, path: Path) -> Self:
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            for nodes in ("brokers", "controllers"):
                found[nodes] = {int(node): int(port) for node, port in found[nodes].items()}
            plan = cls(**found)
            plan._check()
            return plan
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ClusterFolderError(f"{path} cannot be read as the plan of a cluster: {error}") from error

    def _check(self) -> None:
        """Users are told to change the file. Raises ValueError."""
        if not self.brokers or not self.controllers:
            raise ValueError("it needs a broker and a controller")
        for port in self.ports.values():
            parse_address(f"{LOOPBACK}:{port}")


def make_folder(folder: Path) -> None:
    """Readable for its owner alone: settings may have passwords, and a ZooKeeper has the keys of users."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    lines = (f"{name}={value}".replace("\\", "\\\\") for name, value in settings.items())
    path.write_text("".join(f"{line}\n" for line in lines))
