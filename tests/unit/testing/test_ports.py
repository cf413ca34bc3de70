"""Ports that are chosen for servers which start later."""

from __future__ import annotations

import socket
import sys

import pytest

from oncelog.testing.zookeeper import free_ports


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let two sockets have one port, or none")
def test_a_chosen_port_is_for_whoever_asks_for_it_and_for_nobody_who_asks_for_any() -> None:
    port, other = free_ports(2)
    assert port != other
    with socket.socket() as stranger, pytest.raises(OSError, match="already in use"):
        stranger.bind(("127.0.0.1", port))
    for _ in range(2):  # a server that is killed starts again
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
