"""Network addresses, as settings and command lines name them."""

from __future__ import annotations

import ipaddress
from typing import Final

from oncelog.core.named_tuple import NamedTuple

LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = ("0.0.0.0", "::")
"""To listen on. Nobody can connect to them."""
_PORT_MAX: Final = 65_535


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def parse_address(text: str, default_host: str = "") -> Address:
    """HOST:PORT, where an IPv6 address may stand in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default_host
    if not colon or not host or "/" in host or not (port.isascii() and port.removeprefix("-").isdigit()):
        raise ValueError(f"{text!r} is not of the form HOST:PORT, such as {LOOPBACK}:9092")
    if not 0 <= int(port) <= _PORT_MAX:
        raise ValueError(f"the port of {text!r} is out of range: ports are 0 to {_PORT_MAX}")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
