"""An ensemble whose servers reach each other through proxies, so that one of them can be cut off from the others.

Each server has a proxy of its own to each port of each other one. Clients connect to the servers directly: a leader
that is cut off still hears them, and has to find out by itself that it leads nobody.
"""

from __future__ import annotations

from pathlib import Path

from oncelog.testing.zookeeper import Ports, ZooKeeperEnsemble, ZooKeeperServer
from tests.zookeeper.proxy import Proxy

_HOST = b"127.0.0.1:"


class SplitEnsemble(ZooKeeperEnsemble):
    def __init__(self, folder: Path, size: int = 3) -> None:
        super().__init__(folder, size)
        real = {server.number: server.ports for server in self.servers}
        pairs = [(one, other) for one in real for other in real if one != other]
        elections = {(one, other): Proxy(real[other].election) for one, other in pairs}
        for (one, other), proxy in elections.items():
            # The other one may call back, at the address that it is told.
            proxy.told = _HOST + b"%d" % real[one].election, _HOST + b"%d" % elections[other, one].port
        peers = {(one, other): Proxy(real[other].peer) for one, other in pairs}
        self._proxies = {pair: (peers[pair], elections[pair]) for pair in pairs}
        self.servers = [
            ZooKeeperServer(server.folder, server.number, self._seen_by(server.number, real), {})
            for server in self.servers
        ]

    def _seen_by(self, one: int, real: dict[int, Ports]) -> list[Ports]:
        """Its own ports, on which it listens, and the proxies to those of others."""
        return [
            ports if number == one else Ports(ports.client, *(proxy.port for proxy in self._proxies[one, number]))
            for number, ports in real.items()
        ]

    def isolate(self, number: int) -> None:
        """Silence, as of a network: no packet between this server and the others arrives."""
        for pair, proxies in self._proxies.items():
            for proxy in proxies if number in pair else ():
                proxy.is_silent = True

    def heal(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                if proxy.is_silent:
                    proxy.heal()
                    proxy.cut()

    def stop(self) -> None:
        super().stop()
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.close()
