"""The asyncio shell: listens, accepts connections, starts the broker and stops it in order."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncelog.core.address import ALL_ADDRESSES, LOOPBACK, Address
from oncelog.core.broker_config import is_in_cluster
from oncelog.core.config import ConfigError, Settings
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.server.allocator import give_freed_memory_back
from oncelog.server.broker import Broker, Environment
from oncelog.server.connection import Connection, close_idle
from oncelog.server.connection_limits import Admission, ConnectionLimits, parse_overrides
from oncelog.server.descriptors import Shares, raise_limit, share
from oncelog.server.listener import (
    Listener,
    SecurityProtocol,
    between_brokers,
    exposed,
    listen_problem,
    metrics_tls,
    of_controllers,
    parse_listeners,
)
from oncelog.server.listening import Listening, certificates_of
from oncelog.server.log_upkeep import OURSELVES
from oncelog.server.loop import LoopScheduler, LoopWorker

if TYPE_CHECKING:
    from oncelog.security.scram import ScramCredential, ScramUser
    from oncelog.server.dispatch import Front
    from oncelog.server.membership import Membership
    from oncelog.server.metrics_port import MetricsPort
    from oncelog.server.peer_connections import PeerConnections

log = logging.getLogger("oncelog.server")

_LAST_APPENDS_S: Final = 10
LEAVING_S_MAX: Final = 60
"""How long a controlled shutdown may take. After that the broker stops without one."""
LEAVING_ALONE_S_MAX: Final = 10
"""As long as no controller is active. An election of controllers takes a few seconds."""
TRIMMED_AFTER_CONNECTIONS: Final = 256
"""So many connections hold some tens of megabytes."""
TRIM_DELAY_S: Final = 1.0
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
"""Linux has it. Elsewhere every crash may have been one of the machine."""


T = TypeVar("T")
Users = Mapping["ScramUser", "ScramCredential"]


class FirstUsers(NamedTuple):
    """Users that a broker creates when it starts."""

    credentials: Users = MappingProxyType({})
    are_replaced: bool = False
    """Whether they get these credentials even if they exist."""


NO_USERS: Final = FirstUsers()


class ClusterRefusal(Exception):
    """The cluster does not take this broker, or not any more. The text says why and what to do."""


class Server:
    def __init__(self, data_dir: Path, settings: Settings, first_users: FirstUsers = NO_USERS) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._worker = LoopWorker(loop)
        shares = _share_descriptors(settings.integer("oncelog.open.files.max"))
        self._environment = Environment(
            LoopScheduler(loop),
            self._worker,
            uuid.uuid4,
            random.SystemRandom().randrange,
            _boot_id(),
            shares.open_files,
        )
        self._data_dir = data_dir
        self._broker: Broker | None = None
        self._settings = settings
        self._first_users = first_users
        self._connections: set[Connection] = set()
        self._connections_peak = 0
        """Since memory was last given back."""
        self._connections_max = shares.connections
        self._limits: ConnectionLimits | None = None
        self._limit_overrides = parse_overrides(settings)
        self._listening = Listening(self._worker, self._new_connection, self._forget)
        self._bound: list[tuple[Listener, Address]] = []
        self._metrics: MetricsPort | None = None
        self._peers: list[PeerConnections] = []
        self._membership: Membership | None = None
        self._ended: asyncio.Future[str | None] = loop.create_future()
        """Why the broker cannot go on."""

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise RuntimeError("the server was not started")
        return self._broker

    async def start(self) -> Address:
        """Takes the addresses before the folder: if another has one, nothing has been written. Returns the first."""
        self._bound = [(each, await self._listening.bind(each)) for each in parse_listeners(self._settings)]
        await self._start_broker()
        await self._listening.start()
        if self._membership is not None:
            self._membership.ready()
            await self._reached(self._membership.serving)
        if self._settings.integer("connections.max.idle.ms") >= 0:
            self._loop.call_later(self._idle_interval_s(), self._close_idle)
        return self._bound[0][1]

    async def _start_broker(self) -> None:
        self._broker = Broker(self._data_dir, self._settings, self._environment)
        self._limits = ConnectionLimits(
            lambda: self.broker.settings,
            {listener.name: listener.limits for listener, _ in self._bound},
            self._limit_overrides,
            self._connections_max,
            self.broker.quotas.table,
            self.broker.steady_ms,
            self._between_brokers(),
        )
        for listener, address in self._bound:
            self._announce(listener, address)
        listeners = [listener for listener, _ in self._bound]
        await (self._join(listeners) if self.broker.is_in_cluster else self._join_own(listeners))
        if any(listener.protocol.has_sasl for listener, _ in self._bound):
            self.broker.make_secret()
        self.broker.start()
        if any(listener.oauth is not None for listener, _ in self._bound):
            self.broker.logins.read_keys([listener for listener, _ in self._bound], self._worker)
        await self._add_users()
        await self._serve_metrics(self._bound[0][1].host)

    def load_handlers(self) -> None:
        """Clients are accepted already, and requests are served between the steps."""
        steps = self.broker.dispatcher.load_handlers()

        def step() -> None:
            if next(steps, self) is not self:
                self._loop.call_soon(step)

        step()

    async def reset(self) -> None:
        """As if this had just been started on an empty folder: all data and all connections go, the address stays."""
        if is_in_cluster(self._settings):
            raise ConfigError("a broker in a cluster cannot be reset: its partitions belong to the cluster")
        await self._stop_broker(clean=False)
        old = self._data_dir.with_name(f"{self._data_dir.name}.reset-{uuid.uuid4()}")
        self._data_dir.rename(old)
        try:
            await self._start_broker()
        finally:
            self._worker.run(partial(_remove, old))  # nobody waits for that
        self._close_connections()  # of clients that came back too soon

    async def _add_users(self) -> None:
        known, controller = self.broker.metadata.users, self.broker.own_controller
        given, are_replaced = self._first_users
        new = {user: credential for user, credential in given.items() if are_replaced or user not in known}
        for user in new.keys() & known.keys():
            log.warning("user %s exists, and gets another password for %s", user.name, user.mechanism.sasl_name)
        if not new or controller is None:
            return
        error = await self._future(controller.add_users(new))
        if error is not None:
            raise error

    async def _join_own(self, listeners: list[Listener]) -> None:
        """Waits until the metadata of the folder is known. Raises ClusterRefusal."""
        # Nobody else is there who would have to know where all addresses are.
        addresses = {
            name: Address(LOOPBACK, where.port) if where.host in ALL_ADDRESSES else where
            for name, where in self.broker.advertised.items()
        }
        endpoints = [listener.endpoint(addresses[listener.name]) for listener in listeners]
        membership = self.broker.join_own(endpoints, listeners[0].name)
        self._watch(membership)
        await self._reached(membership.loaded)
        # Coordinators begin with markers that are missing: for that, this broker has to lead its partitions.
        membership.ready()
        await self._reached(membership.serving)

    async def _join(self, listeners: list[Listener]) -> None:
        """Waits until the metadata of the cluster is known. Raises ClusterRefusal."""
        from oncelog.server.peer_connections import PeerConnections
        from oncelog.server.peer_security import peer_config

        broker, settings = self.broker, self._settings
        client_id, shared = str(broker.node_id), between_brokers(listeners, settings)
        to_brokers = peer_config(
            settings, client_id, shared.name, shared.protocol, "sasl.mechanism.inter.broker.protocol"
        )
        to_controllers = peer_config(
            settings, client_id, *of_controllers(settings), "sasl.mechanism.controller.protocol"
        )
        controllers, brokers = PeerConnections(to_controllers), PeerConnections(to_brokers)
        self._peers = [controllers, brokers]
        endpoints = [listener.endpoint(broker.advertised[listener.name]) for listener in listeners]
        membership = broker.join(controllers, brokers, endpoints, shared.name)
        self._watch(membership)
        await self._reached(membership.loaded)

    async def _reached(self, promise: Promise[None]) -> None:
        membership = self._membership
        if membership is not None:
            reached: list[asyncio.Future[Any]] = [self._future(promise), self._future(membership.ended)]
            await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
            if membership.ended.done:
                raise ClusterRefusal(membership.ended.value or "the broker was stopped before it had joined")

    async def until_ended(self) -> None:
        """Raises ClusterRefusal when the cluster does not know this broker any more. One node ends if it
        cannot write its metadata."""
        raise ClusterRefusal(await self._ended or "the cluster has let the broker go")

    def _watch(self, membership: Membership) -> None:
        self._membership = membership
        membership.ended.then(lambda reason: None if self._ended.done() else self._ended.set_result(reason))

    def _future(self, promise: Promise[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        promise.then(lambda value: None if future.done() else future.set_result(value))
        return future

    async def _leave(self) -> None:
        """Others lead what this broker leads, before it stops to serve."""
        membership = self._membership
        if membership is not None and not membership.ended.done:
            membership.leave()
            ended, started_s, alone_s = self._future(membership.ended), self._loop.time(), 0.0
            while not ended.done() and self._loop.time() - started_s < LEAVING_S_MAX and alone_s < LEAVING_ALONE_S_MAX:
                await asyncio.wait([ended], timeout=1)
                alone_s = alone_s + 1 if membership.quorum.leader is None else 0
            if not ended.done():
                log.warning("the controllers did not let the broker go: it stops without moving its leaderships away")

    def _new_connection(self, listener: Listener) -> Connection:
        has_sasl = listener.protocol.has_sasl
        return Connection(
            self._new_login(listener) if has_sasl else self.broker.dispatcher,
            frame_max_bytes=self._settings.integer("socket.request.max.bytes"),
            login_max_bytes=listener.login_max_bytes if has_sasl else None,
            listener=listener.name,
            mapping=listener.mapping,
            budget=self.broker.budget,
            scheduler=self._environment.scheduler,
            accept=self._accept,
            forget=self._forget,
        )

    def _new_login(self, listener: Listener) -> Front:
        from oncelog.server.login import Login  # for listeners with SASL alone

        return Login(self.broker.logins, listener)

    def _announce(self, listener: Listener, bound: Address) -> None:
        self.broker.advertised[listener.name] = listener.advertised_at(bound)
        if listener.protocol is not SecurityProtocol.PLAINTEXT or listener.name != listener.protocol.value:
            log.info("listener %s is %s on %s", listener.name, listener.protocol.value, bound)
        warning = exposed(listener)
        if warning is not None:
            log.warning(warning)

    async def stop(self) -> None:
        await self._leave()
        self._listening.close()
        # After a failure of the disk nothing may be taken for clean: the next start reads all logs.
        await self._stop_broker(clean=self._membership is None or self._membership.given_up is None)
        self._worker.close()

    async def _stop_broker(self, *, clean: bool) -> None:
        self._close_connections()
        if self._metrics is not None:
            self._metrics.close()
        if self._broker is not None:
            self._broker.end_work()
            await self._until_idle()
            self._broker.stop(clean=clean)
        for peers in self._peers:
            peers.close()

    def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()

    async def _until_idle(self) -> None:
        """What an fsync has committed may lead to appends, and these to fsyncs: as markers follow a decision."""
        deadline_s = self._loop.time() + _LAST_APPENDS_S
        await self._worker.until_idle()
        while not self.broker.flusher.is_idle and self._loop.time() < deadline_s:
            await asyncio.sleep(0)
            await self._worker.until_idle()

    def _accept(self, connection: Connection) -> Admission:
        admission = self._limits.admit(connection.host, connection.listener) if self._limits else Admission()
        if admission.refusal is not None:
            log.warning("a connection of %s is refused: %s", connection.address, admission.refusal)
            return admission
        if admission.displaces is not None:
            self._make_room(connection.listener, admission.displaces)
        self._connections.add(connection)
        self._connections_peak = max(self._connections_peak, len(self._connections))
        self.broker.metrics.connections = len(self._connections)
        return admission

    def _make_room(self, listener: str, limit: str) -> None:
        """Close a client's connection, so that one between brokers can be accepted."""
        others = [each for each in self._connections if each.listener != listener and each.is_made]
        if others:
            silent = min(others, key=lambda each: each.last_use)
            self._forget(silent)
            silent.give_up(f"it was silent for longest, and another broker needs room: {limit}")

    def _between_brokers(self) -> str | None:
        if not is_in_cluster(self._settings):
            return None
        return between_brokers([listener for listener, _ in self._bound], self._settings).name

    def _forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        if self._limits is not None:
            self._limits.forget(connection.host, connection.listener)
        count = self.broker.metrics.connections = len(self._connections)
        if self._connections_peak > TRIMMED_AFTER_CONNECTIONS and count < self._connections_peak // 2:
            self._connections_peak = count
            self._loop.call_later(TRIM_DELAY_S, self._give_memory_back)

    def _give_memory_back(self) -> None:
        if not self.broker.stopped:
            self._worker.run(give_freed_memory_back)

    def _idle_interval_s(self) -> float:
        return max(1.0, self._settings.integer("connections.max.idle.ms") / 1000)

    def _close_idle(self) -> None:
        if self.broker.stopped:
            return
        close_idle(self._connections)
        self._loop.call_later(self._idle_interval_s(), self._close_idle)

    async def _serve_metrics(self, host: str) -> None:
        port = self._settings.integer("oncelog.metrics.port")
        if not port:
            return
        from oncelog.server.metrics_page import read_metrics
        from oncelog.server.metrics_port import MetricsPort

        broker = self.broker
        self._metrics = MetricsPort(lambda: broker.turns.begin(read_metrics(broker), OURSELVES), self._worker)
        tls = metrics_tls(self._settings)
        certificates = None if tls is None else certificates_of(tls)
        if certificates is not None:
            self._listening.keep_new(certificates)
        try:
            await self._metrics.open(host, port, certificates)
        except OSError as error:
            raise ConfigError(f"oncelog.metrics.port: {listen_problem(Address(host, port), error)}") from error
        scheme = "http" if tls is None else "https"
        log.info("metrics for Prometheus on %s://%s/metrics", scheme, Address(host, port))


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _share_descriptors(open_files_max: int) -> Shares:
    descriptors = raise_limit()
    shares = share(descriptors, open_files_max)
    level = logging.WARNING if shares.open_files < open_files_max else logging.INFO
    log.log(
        level,
        "`ulimit -n` is %d: up to %d log files are kept open, and %d connections accepted",
        descriptors,
        *shares,
    )
    return shares


def _boot_id() -> str | None:
    try:
        return _BOOT_ID_FILE.read_text().strip() or None
    except OSError:
        return None
