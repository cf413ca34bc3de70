"""The same security on Oncelog and Apache Kafka: TLS, a login with PLAIN, and ACLs of a user who is no super user."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.client import Admin
from oncelog.client.admin import Acl, Operation, Pattern, Permission, Resource

VARIANT: Final = "secured"
_TLS: Final = Path(__file__).parents[1] / "tests" / "data" / "tls"
_USER: Final = "bench"
_ADMIN: Final = "admin"
_PASSWORD: Final = "not a secret"

BROKER_SETTINGS: Final = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{_USER}="{_PASSWORD}" user_{_ADMIN}="{_PASSWORD}";'
    ),
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": str(_TLS / "broker.pem"),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # On Apache Kafka the broker itself comes without a login, by the other listener.
    "super.users": f"User:{_ADMIN};User:ANONYMOUS",
}
KAFKA_SETTINGS: Final = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(_TLS / "ca.pem")}
CLIENT_SETTINGS: Final = {
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": str(_TLS / "ca.pem"),
    "sasl.mechanisms": "PLAIN",
    "sasl.username": _USER,
    "sasl.password": _PASSWORD,
}
"""Under librdkafka's names."""


def allow(bootstrap_servers: str) -> None:
    """Lets the user do what a measurement takes."""
    connection = {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(_TLS / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": _ADMIN,
        "sasl.password": _PASSWORD,
    }
    names = {Resource.TOPIC: "bench-", Resource.GROUP: "oncelog-bench-", Resource.TRANSACTIONAL_ID: "bench-"}
    acls = [
        Acl(resource, name, Pattern.PREFIXED, f"User:{_USER}", "*", Operation.ALL, Permission.ALLOW)
        for resource, name in names.items()
    ]
    with Admin(connection) as admin:
        admin.create_acls(acls)
