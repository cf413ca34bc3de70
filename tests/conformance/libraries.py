"""The client libraries that every script is run with, by name."""

from __future__ import annotations

from typing import Final

from tests.conformance.clients import AioKafka, Client, Confluent, KafkaPython
from tests.conformance.oncelog_client import OncelogClient

CLIENTS: Final[dict[str, Client]] = {
    client.name: client for client in (Confluent(), KafkaPython(), AioKafka(), OncelogClient())
}
