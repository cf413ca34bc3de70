"""Addresses as Kafka writes them: `PLAINTEXT://host:port`, or just `host:port`."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.core.config import ConfigError


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, *, key: str) -> Address:
    """The first listener of a list. Only PLAINTEXT is spoken."""
    first = text.split(",")[0].strip()
    protocol, separator, rest = first.rpartition("://")
    if separator and protocol.upper() != "PLAINTEXT":
        raise ConfigError(f"{key}: {first!r} asks for {protocol}, only PLAINTEXT is supported")
    host, colon, port_text = rest.rpartition(":")
    host = host.strip("[]")
    if not colon or not port_text.isdigit() or int(port_text) > 65_535:
        raise ConfigError(f"{key}: {first!r} is not of the form HOST:PORT, such as 127.0.0.1:9092")
    return Address(host or "127.0.0.1", int(port_text))
