"""The asyncio shell of a controller (`process.roles=controller`): its folder, its listener, start and stop."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import uuid
from functools import partial
from pathlib import Path
from typing import Final

from oncelog.cluster.cluster_config import FEATURES, refuse_one_node
from oncelog.cluster.file_metadata_log import FileMetadataLog
from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.metadata_log import MetadataLog
from oncelog.cluster.zookeeper_log import ZooKeeperMetadataLog
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE
from oncelog.controller.machine import ControllerConfig, Machine
from oncelog.core.address import Address, parse_address
from oncelog.core.config import ConfigError, Settings
from oncelog.core.errors import KafkaError
from oncelog.core.features import KRAFT_VERSION
from oncelog.core.worker import OneAtATime
from oncelog.protocol.messages.broker_registration import Listener as Endpoint
from oncelog.protocol.messages.cluster_metadata import VersionRange, VoterEndpoint, VotersRecord, VotersVoter
from oncelog.security.acl import Acl, AclAuthorizer
from oncelog.security.scram import ScramCredential, ScramUser
from oncelog.server.authorization import AllowClients, Authorizer, acl_authorizer
from oncelog.server.connection import Connection, close_idle
from oncelog.server.connection_limits import Admission
from oncelog.server.controller_front import ControllerFront
from oncelog.server.controller_node import ControllerNode
from oncelog.server.descriptors import raise_limit, share
from oncelog.server.large_requests import LargeRequests
from oncelog.server.listener import Listener, exposed, listener_of_controller
from oncelog.server.listening import Listening
from oncelog.server.login import Login, Logins
from oncelog.server.loop import LoopScheduler, LoopWorker
from oncelog.server.memory_budget import MemoryBudget, connections_max
from oncelog.server.zookeeper_client import ZooKeeperClient, ZooKeeperConfig, zookeeper_config
from oncelog.storage import meta_properties
from oncelog.storage.log_dir import OwnFolder, take_folder
from oncelog.storage.meta_properties import MetaProperties

log = logging.getLogger("oncelog.server")

LEVELS: Final = {feature.name: feature.max_supported_version for feature in FEATURES if feature.name != KRAFT_VERSION}
"""What a new cluster begins with."""
_OPEN_FILES: Final = 64
"""The metadata log has few files."""
_NONCE_BYTES: Final = 16
_SECRET_BYTES: Final = 32


class ControllerServer:
    def __init__(self, data_dir: Path, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._data_dir = data_dir
        self._settings = settings
        self._scheduler = LoopScheduler(self._loop)
        self._worker = LoopWorker(self._loop, threads=2)
        self._budget = MemoryBudget(settings.integer("oncelog.connections.max.bytes"), self._scheduler)
        self._connections: set[Connection] = set()
        self._connections_max = min(
            settings.integer("max.connections"),
            share(raise_limit(), _OPEN_FILES).connections,
            connections_max(self._budget.max_bytes),
        )
        self._listening = Listening(self._worker, self._new_connection, self._connections.discard)
        self._folder: OwnFolder | None = None
        self._node: ControllerNode | None = None
        self._front: ControllerFront | None = None
        self._logins: Logins | None = None
        self._acls: AclAuthorizer | None = None
        self._known_acls: object = None
        self._known_scram: object = None
        self._scram_users: dict[ScramUser, ScramCredential] = {}
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._idle_interval_s = max(1.0, settings.integer("connections.max.idle.ms") / 1000)
        self._is_stopped = False
        self._fault: asyncio.Future[None] = self._loop.create_future()
        """Why this controller can never serve again."""

    async def start(self) -> Address:
        """Takes the address before the folder. Returns it when this controller is active, or another one is."""
        refuse_one_node(self._data_dir, "which has a controller: set process.roles=broker,controller for it")
        listener = listener_of_controller(self._settings)
        bound = await self._listening.bind(listener)
        warning = exposed(listener)
        if warning is not None:
            log.warning(warning)
        settings, cluster_id = self._settings, self._settings.optional_text("cluster.id")
        node_id, zookeeper = settings.integer("node.id"), zookeeper_config(settings)
        if zookeeper is not None and cluster_id is None and not (self._data_dir / meta_properties.FILE_NAME).exists():
            raise ConfigError(
                "cluster.id is not set: controllers that share a log need the same one, also for a new folder"
            )
        self._folder = take_folder(self._data_dir, cluster_id=cluster_id, node_id=node_id)
        meta = self._folder.meta
        endpoint = listener.endpoint(listener.advertised_at(bound))
        metadata_log = self._metadata_log(zookeeper, meta, node_id, endpoint)
        config = ControllerConfig(
            meta.cluster_id, node_id, settings, settings.integer("broker.session.timeout.ms"), FEATURES, LEVELS
        )
        machine = Machine(config, uuid.uuid4, random.SystemRandom().randrange)
        self._node = ControllerNode(metadata_log, machine, self._scheduler, self._worker, uuid.uuid4(), endpoint)
        self._acls = acl_authorizer(settings, ())
        self._front = ControllerFront(
            self._node,
            meta.cluster_id,
            self._scheduler,
            self._budget,
            LargeRequests(OneAtATime(self._worker), self._budget),
            OneAtATime(self._worker),
            self._authorizer,
            has_acls=self._acls is not None,
        )
        self._logins = self._new_logins(self._front)
        self._logins.read_keys([listener], self._worker)
        try:
            self._node.start()
        except (KafkaError, InvalidMetadata) as error:
            raise ConfigError(f"{self._data_dir}: the metadata log cannot be used: {error}") from error
        active: asyncio.Future[None] = self._loop.create_future()
        self._node.active.then(lambda _: None if active.done() else active.set_result(None))
        await self._listening.start()
        if settings.integer("connections.max.idle.ms") >= 0:
            self._loop.call_later(self._idle_interval_s, self._close_idle)
        await asyncio.wait([active, self._fault], return_when=asyncio.FIRST_COMPLETED)
        if self._fault.done():
            await self._fault
        return bound

    def _metadata_log(
        self, zookeeper: ZooKeeperConfig | None, meta: MetaProperties, node_id: int, endpoint: Endpoint
    ) -> MetadataLog:
        """In ZooKeeper if there are other controllers, else in the data folder."""
        address = Address(endpoint.host, endpoint.port)
        if zookeeper is None:
            return FileMetadataLog(
                self._data_dir,
                node_id=node_id,
                address=address,
                scheduler=self._scheduler,
                worker=self._worker,
                voters=VotersRecord(voters=[_voter(node_id, meta.directory_id or uuid.uuid4(), endpoint)]),
                on_fault=lambda problem: _fail(self._fault, f"{self._data_dir}: {problem}"),
            )
        return ZooKeeperMetadataLog(
            ZooKeeperClient(zookeeper, self._loop.call_soon_threadsafe),
            node_id=node_id,
            address=address,
            scheduler=self._scheduler,
            cluster_id=meta.cluster_id,
            voters=_shared_voters(self._settings, meta.cluster_id, node_id, endpoint),
            on_fault=lambda problem: _fail(
                self._fault, f"zookeeper.connect: in {zookeeper.connect} {problem}", "zookeeper.connect"
            ),
        )

    async def until_ended(self) -> None:
        """Raises ConfigError if this controller can never serve again."""
        await self._fault

    def _close_idle(self) -> None:
        if not self._is_stopped:
            close_idle(self._connections)
            self._loop.call_later(self._idle_interval_s, self._close_idle)

    async def stop(self) -> None:
        self._is_stopped = True
        self._listening.close()
        for connection in list(self._connections):
            connection.close()
        if self._node is not None:
            self._node.stop()
        await self._worker.until_idle()
        self._worker.close()
        if self._folder is not None:
            self._folder.lock.release()

    def _new_connection(self, listener: Listener) -> Connection:
        if self._front is None or self._logins is None:
            raise RuntimeError("the controller was not started")
        has_sasl = listener.protocol.has_sasl
        return Connection(
            Login(self._logins, listener) if has_sasl else self._front,
            frame_max_bytes=self._settings.integer("socket.request.max.bytes"),
            login_max_bytes=listener.login_max_bytes if has_sasl else None,
            listener=listener.name,
            mapping=listener.mapping,
            budget=self._budget,
            scheduler=self._scheduler,
            accept=self._accept,
            forget=self._connections.discard,
        )

    def _new_logins(self, front: ControllerFront) -> Logins:
        return Logins(
            front,
            settings=lambda: self._settings,
            scheduler=self._scheduler,
            steady_ms=self._scheduler.monotonic_ms,
            users=self._users,
            secret=lambda: self._secret,
            new_nonce=partial(secrets.token_hex, _NONCE_BYTES),
            on_failure=lambda: None,
            is_alone=False,
        )

    def _users(self) -> dict[ScramUser, ScramCredential]:
        """They are not made anew for each login."""
        image = EMPTY_IMAGE if self._node is None else self._node.machine.view.image
        if image.scram is not self._known_scram:
            self._known_scram, self._scram_users = image.scram, scram_users(image)
        return self._scram_users

    def _accept(self, connection: Connection) -> Admission:
        if len(self._connections) >= self._connections_max:
            refusal = (
                f"there are {self._connections_max} connections, which is the limit (max.connections, ulimit -n, "
                "oncelog.connections.max.bytes)"
            )
            log.warning("a connection of %s is refused: %s", connection.address, refusal)
            return Admission(refusal)
        self._connections.add(connection)
        return Admission()

    def _authorizer(self) -> Authorizer:
        if self._acls is None or self._node is None:
            return AllowClients(cluster_action=True)
        image = self._node.machine.view.image
        if image.acls is not self._known_acls:
            self._known_acls = image.acls
            known: dict[Acl, None] = dict.fromkeys(acls_of(image))
            self._acls.become(known)
        return self._acls


def _fail(fault: asyncio.Future[None], problem: str, key: str | None = None) -> None:
    log.error("%s", problem)
    if not fault.done():
        fault.set_exception(ConfigError(problem, key))


def _shared_voters(settings: Settings, cluster_id: str, node_id: int, endpoint: Endpoint) -> VotersRecord:
    """The voters in controller.quorum.voters, the same on all controllers; without it, this controller alone."""
    endpoints = {node_id: endpoint}
    for text in settings.words("controller.quorum.voters") if settings.get("controller.quorum.voters") else ():
        number, _, address = text.partition("@")
        try:
            if not (number.isascii() and number.isdecimal()):
                raise ValueError(f"{number!r} is no number of a node")
            host, port = parse_address(address)
            endpoints[int(number)] = Endpoint(name=endpoint.name, host=host, port=port)
        except ValueError as error:
            raise ConfigError(f"controller.quorum.voters: {text!r} is not of the form ID@HOST:PORT: {error}") from error
    # All controllers make up the same ids: they are of voters here, not of folders.
    ids = {number: uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id} {number}") for number in endpoints}
    return VotersRecord(voters=[_voter(number, ids[number], endpoints[number]) for number in sorted(endpoints)])


def _voter(node_id: int, directory_id: uuid.UUID, endpoint: Endpoint) -> VotersVoter:
    return VotersVoter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        endpoints=[VoterEndpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port)],
        k_raft_version_feature=VersionRange(min_supported_version=0, max_supported_version=1),
    )
