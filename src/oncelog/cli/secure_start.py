"""`oncelog serve --secure`: all that TLS, a login and ACLs need for a first try, in a folder beside the data.

| file | what it is |
| --- | --- |
| ca.pem | the certificate of an authority of its own; its key is not kept, so that nothing else can be signed |
| broker.pem | key and certificate of the broker, for localhost, the host name and the address that is listened on |
| client.properties | how a client connects as `admin`, who may do everything; password included |

All but ca.pem are for their owner alone. What is there is used again. Without the folder all of it is made anew, also
the password of a user that the data have already.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelog.core.address import ALL_ADDRESSES, Address
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.config import ConfigError, Settings
from oncelog.core.properties import decode_properties, parse_properties
from oncelog.security.jaas import parse_jaas
from oncelog.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, ScramUser, make_credential
from oncelog.server.listener import address_of
from oncelog.server.server import FirstUsers

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

USER: Final = "admin"
MECHANISM: Final = ScramMechanism.of("SCRAM-SHA-512")
VALID_FOR: Final = timedelta(days=825)
_JAAS: Final = "sasl.jaas.config"
_LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_MADE_HERE: Final = ("ssl.", "sasl.", "listener.name.", "authorizer.class.name", "super.users")


class SecureStart:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.with_name(data_dir.name + "-secure").absolute()
        known = self._known_password()
        self._is_new, self._password = known is None, known or secrets.token_urlsafe(18)

    @property
    def client_file(self) -> Path:
        return self._folder / "client.properties"

    @property
    def _authority_file(self) -> Path:
        return self._folder / "ca.pem"

    @property
    def _broker_file(self) -> Path:
        return self._folder / "broker.pem"

    def settings(self, given: Settings) -> dict[str, str]:
        """The settings that make a broker secure. Raises ConfigError if one of them is given already."""
        clashing = [key for key in given.values if key.startswith(_MADE_HERE)]
        if clashing:
            raise ConfigError(f"{clashing[0]}: --secure makes this setting itself; leave out one of both")
        listen = given.text("listeners").removeprefix("PLAINTEXT://")
        if "://" in listen or "," in listen:
            raise ConfigError(f"listeners: --secure makes one listener, so {listen!r} must be HOST:PORT")
        self._make_certificates(address_of("listeners", listen), given.optional_text("advertised.listeners"))
        advertised = given.optional_text("advertised.listeners")
        return {
            "listeners": f"SASL_SSL://{listen}",
            **({"advertised.listeners": advertised.removeprefix("PLAINTEXT://")} if advertised else {}),
            "ssl.keystore.location": str(self._broker_file),
            "sasl.enabled.mechanisms": MECHANISM.sasl_name,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{USER}",
        }

    @property
    def users(self) -> FirstUsers:
        """A password that was changed since stays so. One that nobody has any more gives way to the one made now."""
        salt = secrets.token_bytes(SALT_BYTES)
        credential = make_credential(MECHANISM, self._password, salt, ITERATIONS_MIN)
        return FirstUsers({ScramUser(USER, MECHANISM): credential}, are_replaced=self._is_new)

    def servers(self, settings: Settings, bound: Address) -> Address:
        """Where clients find the broker."""
        advertised = settings.optional_text("advertised.listeners")
        if advertised:
            return address_of("advertised.listeners", advertised)
        return Address(socket.gethostname(), bound.port) if bound.host in ALL_ADDRESSES else bound

    def certificate_problem(self, servers: Address) -> str | None:
        """Why clients will refuse the broker. A certificate that an earlier start made may be for other addresses."""
        from cryptography import x509

        found = x509.load_pem_x509_certificate(self._broker_file.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if found.not_valid_after_utc < datetime.now(UTC):
            problem = "has expired"
        elif _general_name(servers.host) not in names:
            problem = f"is not for {servers.host}"
        else:
            return None
        return f"{self._broker_file} {problem}: remove {self._folder} to have another one made"

    def write_client_file(self, servers: Address) -> None:
        lines = (
            f"# User {USER} may do everything. Add others with: oncelog user add NAME --config {self.client_file}",
            f"bootstrap.servers={servers}",
            "security.protocol=SASL_SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self._authority_file}",
            f"sasl.mechanism={MECHANISM.sasl_name}",
            f'{_JAAS}={_LOGIN_MODULE} required username="{USER}" password="{self._password}";',
        )
        _write(self.client_file, "".join(f"{line}\n" for line in lines).encode())

    def instructions(self, servers: Address) -> str:
        """How each client connects, without the password."""
        file, authority, mechanism = self.client_file, self._authority_file, MECHANISM.sasl_name
        tls = f'ssl_cafile="{authority}"'
        login = f'sasl_mechanism="{mechanism}", sasl_plain_username="{USER}", sasl_plain_password=PASSWORD'
        return f"""
TLS, a login and ACLs are on. User {USER} may do everything; PASSWORD is in {file}.

  oncelog           oncelog topic list --config {file}
  Kafka's tools     kafka-topics.sh --bootstrap-server {servers} --command-config {file} --list
  Java, oncelog.client   the settings in {file}
  confluent-kafka   {{"bootstrap.servers": "{servers}", "security.protocol": "SASL_SSL",
                     "ssl.ca.location": "{authority}", "sasl.mechanisms": "{mechanism}",
                     "sasl.username": "{USER}", "sasl.password": PASSWORD}}
  kafka-python      bootstrap_servers="{servers}", security_protocol="SASL_SSL", {tls},
                    {login}
  aiokafka          bootstrap_servers="{servers}", security_protocol="SASL_SSL",
                    ssl_context=ssl.create_default_context(cafile="{authority}"),
                    {login}
  Spark             the settings in {file}, with kafka. before each

More: docs/security.md
""".strip("\n")

    def _known_password(self) -> str | None:
        try:
            lines = parse_properties(decode_properties(self.client_file.read_bytes()))
        except FileNotFoundError:
            return None
        return parse_jaas(str(lines.get(_JAAS, "")), key=f"{self.client_file}: {_JAAS}").options.get("password")

    def _make_certificates(self, listen: Address, advertised: str | None) -> None:
        if self._broker_file.exists() and self._authority_file.exists():
            return
        hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname(), listen.host}
        if advertised:
            hosts.add(address_of("advertised.listeners", advertised.removeprefix("PLAINTEXT://")).host)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority, broker = _certificates(sorted(hosts - set(ALL_ADDRESSES)))
        _write(self._broker_file, broker)
        _write(self._authority_file, authority, mode=0o644)


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Never readable for others, not even for a moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    beside.replace(path)


def _certificates(hosts: Iterable[str]) -> tuple[bytes, bytes]:
    """PEM of the authority's certificate, and of the broker's key and certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key, broker_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = f"Oncelog authority {secrets.token_hex(4)}"
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = _signed(
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False),
        authority_key,
    )
    broker = _signed(
        _builder("oncelog", authority_name, broker_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False),
        authority_key,
    )
    key = broker_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return authority.public_bytes(pem), key + broker.public_bytes(pem)


def _builder(subject: str, issuer: str, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def _signed(builder: CertificateBuilder, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _general_name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
