"""The `ssl.` settings that a broker and a client have in common."""

from __future__ import annotations

from typing import Final

from oncelog.core.config import ConfigKey, ConfigType

_STRING: Final = ConfigType.STRING

_KEYS: Final = [
    ConfigKey("ssl.keystore.location", _STRING, None,
              "A file with the own key and certificates. A broker needs it; a client needs it if brokers ask for it."),
    ConfigKey("ssl.keystore.key", _STRING, None, "The key as PEM in the setting itself.", sensitive=True),
    ConfigKey("ssl.keystore.certificate.chain", _STRING, None, "The certificates of that key, as PEM."),
    ConfigKey("ssl.keystore.type", _STRING, None, "PEM, PKCS12 or JKS; recognised by its bytes if it is not given."),
    ConfigKey("ssl.keystore.password", _STRING, None, "The password of a PKCS12 or JKS store.", sensitive=True),
    ConfigKey("ssl.key.password", _STRING, None, "The password of the key, if it has one.", sensitive=True),
    ConfigKey("ssl.truststore.location", _STRING, None,
              "A file with the certificates to trust. A client without it trusts those of the system."),
    ConfigKey("ssl.truststore.certificates", _STRING, None, "The same as PEM in the setting itself."),
    ConfigKey("ssl.truststore.type", _STRING, None, "PEM, PKCS12 or JKS; recognised by its bytes if it is not given."),
    ConfigKey("ssl.truststore.password", _STRING, None, "The password of a PKCS12 or JKS store.", sensitive=True),
    ConfigKey("ssl.enabled.protocols", ConfigType.LIST, ("TLSv1.2", "TLSv1.3"), "Versions of TLS."),
    ConfigKey("ssl.cipher.suites", ConfigType.LIST, (), "Cipher suites, by Java's names; all that are safe if empty."),
]  # fmt: skip
TLS_KEYS: Final = {key.name: key for key in _KEYS}

NAME_CHECK: Final = ConfigKey(
    "ssl.endpoint.identification.algorithm",
    ConfigType.STRING,
    "https",
    "Empty: the name in a broker's certificate is not checked.",
    allowed=("https", ""),
)
