"""The asyncio shell: listens, accepts connections, starts the broker and stops it in order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import socket
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncelog.cluster.metadata_entries import ScramUser, users_entry
from oncelog.core.config import ConfigError, Settings
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.security.scram import ScramCredential
from oncelog.server.allocator import give_freed_memory_back
from oncelog.server.broker import ALL_ADDRESSES, Broker, Environment
from oncelog.server.connection import Connection
from oncelog.server.connection_limits import Admission, ConnectionLimits, parse_overrides
from oncelog.server.descriptors import Shares, raise_limit, share
from oncelog.server.listener import (
    Address,
    Listener,
    SecurityProtocol,
    between_brokers,
    exposed,
    listen_problem,
    parse_listeners,
)
from oncelog.server.login import Login
from oncelog.server.loop import LoopScheduler, LoopWorker
from oncelog.server.tls_listener import BACKLOG, LOOK_MS, Certificates, TlsListener

if TYPE_CHECKING:
    from oncelog.protocol.messages.broker_registration import Listener as Endpoint
    from oncelog.server.membership import Membership
    from oncelog.server.metrics_port import MetricsPort
    from oncelog.server.peer_connections import PeerConnections

log = logging.getLogger("oncelog.server")

_LAST_APPENDS_S: Final = 10
LEAVING_S_MAX: Final = 60
"""For a controlled shutdown, after which it is none."""
TRIMMED_AFTER_CONNECTIONS: Final = 256
"""So many have some tens of megabytes."""
TRIM_DELAY_S: Final = 1.0
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
"""Linux has it. Elsewhere every crash may have been one of the machine."""


T = TypeVar("T")
Users = Mapping[ScramUser, ScramCredential]


class ClusterRefusal(Exception):
    """The cluster does not take this broker, or not any more. The text says why and what to do."""


class Server:
    def __init__(self, data_dir: Path, settings: Settings, first_users: Users | None = None) -> None:
        """`first_users` are added unless they exist."""
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
        self._first_users = first_users or {}
        self._connections: set[Connection] = set()
        self._connections_peak = 0
        """Since memory was last given back."""
        self._connections_max = shares.connections
        self._limits: ConnectionLimits | None = None
        self._limit_overrides = parse_overrides(settings)
        self._servers: list[asyncio.Server] = []
        self._tls_listeners: list[TlsListener] = []
        self._bound: list[tuple[Listener, Address]] = []
        self._metrics: MetricsPort | None = None
        self._peers: PeerConnections | None = None
        self._membership: Membership | None = None

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise RuntimeError("the server was not started")
        return self._broker

    async def start(self) -> Address:
        """Takes the addresses before the folder: if another has one, nothing has been written. Returns the first."""
        self._bound = [(listener, await self._listen(listener)) for listener in parse_listeners(self._settings)]
        await self._start_broker()
        for tls_listener in self._tls_listeners:
            tls_listener.start()
        for server in self._servers:
            await server.start_serving()
        if self._membership is not None:
            self._membership.ready()
            await self._reached(self._membership.serving)
        if self._tls_listeners:
            self._loop.call_later(LOOK_MS / 1000, self._renew_certificates)
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
        )
        for listener, address in self._bound:
            self._announce(listener, address)
        if self.broker.is_in_cluster:
            await self._join([listener for listener, _ in self._bound])
        if any(listener.protocol.has_sasl for listener, _ in self._bound):
            self.broker.make_secret()
        self.broker.start()
        await self._add_users()
        await self._serve_metrics(self._bound[0][1].host)

    async def reset(self) -> None:
        """As if this had just been started on an empty folder: all data and all connections go, the address stays."""
        if self.broker.is_in_cluster:
            raise ConfigError("a broker in a cluster cannot be reset: its partitions belong to the cluster")
        await self._stop_broker(clean=False)
        old = self._data_dir.with_name(f"{self._data_dir.name}.reset-{uuid.uuid4()}")
        self._data_dir.rename(old)
        self._worker.run(lambda: shutil.rmtree(old, ignore_errors=True))
        await self._start_broker()
        self._close_connections()  # of clients that came back too soon

    async def _add_users(self) -> None:
        metadata = self.broker.metadata
        new = {user: credential for user, credential in self._first_users.items() if user not in metadata.users}
        if not new:
            return
        stored: asyncio.Future[KafkaError | None] = self._loop.create_future()
        metadata.propose("users", lambda: users_entry(new)).then(stored.set_result)
        error = await stored
        if error is not None:
            raise error

    async def _join(self, listeners: list[Listener]) -> None:
        """Waits until the metadata of the cluster is known. Raises ClusterRefusal."""
        from oncelog.server.peer_connections import PeerConnections

        broker = self.broker
        self._peers = PeerConnections(str(broker.node_id))
        endpoints = [_endpoint(listener, broker.advertised[listener.name]) for listener in listeners]
        self._membership = broker.join(self._peers, endpoints, between_brokers(listeners, self._settings))
        await self._reached(self._membership.loaded)

    async def _reached(self, promise: Promise[None]) -> None:
        membership = self._membership
        if membership is not None:
            reached: list[asyncio.Future[Any]] = [self._future(promise), self._future(membership.ended)]
            await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
            if membership.ended.done:
                raise ClusterRefusal(membership.ended.value or "the broker was stopped before it had joined")

    async def until_ended(self) -> None:
        """Raises ClusterRefusal when the cluster does not know this broker any more. One node has no such end."""
        if self._membership is None:
            await asyncio.Event().wait()
        else:
            reason = await self._future(self._membership.ended)
            raise ClusterRefusal(reason or "the cluster has let the broker go")

    def _future(self, promise: Promise[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        promise.then(lambda value: None if future.done() else future.set_result(value))
        return future

    async def _leave(self) -> None:
        """Others lead what this broker leads, before it stops to serve."""
        membership = self._membership
        if membership is not None and not membership.ended.done:
            membership.leave()
            try:
                await asyncio.wait_for(self._future(membership.ended), LEAVING_S_MAX)
            except TimeoutError:
                log.warning("the controllers did not let the broker go within %d s: it stops anyway", LEAVING_S_MAX)

    async def _listen(self, listener: Listener) -> Address:
        """Where it is bound. Nobody is served yet."""
        certificates = None if listener.tls is None else Certificates(listener.tls)
        try:
            server = await self._loop.create_server(
                lambda: self._new_connection(listener),
                *listener.address,
                backlog=BACKLOG,
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError(f"listeners: {listen_problem(listener.address, error)}", "listeners") from error
        bound = Address(listener.address.host, server.sockets[0].getsockname()[1])
        if certificates is None:
            self._servers.append(server)
        else:
            sockets = [socket.socket(fileno=os.dup(sock.fileno())) for sock in server.sockets]
            server.close()
            new_connection = partial(self._new_connection, listener)
            self._tls_listeners.append(TlsListener(sockets, certificates, new_connection, self._forget))
        return bound

    def _new_connection(self, listener: Listener) -> Connection:
        has_sasl = listener.protocol.has_sasl
        return Connection(
            Login(self.broker, listener) if has_sasl else self.broker.dispatcher,
            frame_max_bytes=self._settings.integer("socket.request.max.bytes"),
            login_max_bytes=listener.login_max_bytes if has_sasl else None,
            listener=listener.name,
            mapping=listener.mapping,
            budget=self.broker.budget,
            scheduler=self._environment.scheduler,
            accept=self._accept,
            forget=self._forget,
        )

    def _announce(self, listener: Listener, bound: Address) -> None:
        told = listener.advertised or bound
        self.broker.advertised[listener.name] = Address(told.host, told.port or bound.port)
        if listener.protocol is not SecurityProtocol.PLAINTEXT or listener.name != listener.protocol.value:
            log.info("listener %s is %s on %s", listener.name, listener.protocol.value, bound)
        warning = exposed(listener)
        if warning is not None:
            log.warning(warning)

    async def stop(self) -> None:
        await self._leave()
        for server in self._servers:
            server.close()
        for tls_listener in self._tls_listeners:
            tls_listener.close()
        await self._stop_broker(clean=True)
        self._worker.close()

    async def _stop_broker(self, *, clean: bool) -> None:
        self._close_connections()
        if self._metrics is not None:
            self._metrics.close()
        if self._broker is not None:
            self._broker.end_work()
            await self._until_idle()
            self._broker.stop(clean=clean)
        if self._peers is not None:
            self._peers.close()

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
        self._connections.add(connection)
        self._connections_peak = max(self._connections_peak, len(self._connections))
        self.broker.metrics.connections = len(self._connections)
        return admission

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

    def _renew_certificates(self) -> None:
        if not self.broker.stopped:
            for tls_listener in self._tls_listeners:
                tls_listener.certificates.renew(self._worker)
            self._loop.call_later(LOOK_MS / 1000, self._renew_certificates)

    def _idle_interval_s(self) -> float:
        return max(1.0, self._settings.integer("connections.max.idle.ms") / 1000)

    def _close_idle(self) -> None:
        """A connection that was silent over a whole interval goes; so one lives between one and two of them."""
        if self.broker.stopped:
            return
        for connection in list(self._connections):
            if connection.active:
                connection.active = connection.is_waiting
            else:
                connection.close()
        self._loop.call_later(self._idle_interval_s(), self._close_idle)

    async def _serve_metrics(self, host: str) -> None:
        port = self._settings.integer("oncelog.metrics.port")
        if not port:
            return
        from oncelog.server.metrics_page import read_metrics
        from oncelog.server.metrics_port import MetricsPort

        self._metrics = MetricsPort(lambda: read_metrics(self.broker), self._worker)
        try:
            await self._metrics.open(host, port)
        except OSError as error:
            raise ConfigError(f"oncelog.metrics.port: {listen_problem(Address(host, port), error)}") from error
        log.info("metrics for Prometheus on http://%s:%d/metrics", host, port)


_PROTOCOL_IDS: Final = {
    SecurityProtocol.PLAINTEXT: 0,
    SecurityProtocol.SSL: 1,
    SecurityProtocol.SASL_PLAINTEXT: 2,
    SecurityProtocol.SASL_SSL: 3,
}


def _endpoint(listener: Listener, told: Address) -> Endpoint:
    from oncelog.protocol.messages.broker_registration import Listener as Endpoint

    if told.host in ALL_ADDRESSES:
        raise ConfigError(
            f"advertised.listeners: other nodes cannot connect to {told}; name the address of listener {listener.name}"
        )
    return Endpoint(
        name=listener.name, host=told.host, port=told.port, security_protocol=_PROTOCOL_IDS[listener.protocol]
    )


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
