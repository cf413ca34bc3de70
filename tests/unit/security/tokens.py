"""An authority of tokens for tests: keys, the set of them, and what it signs."""

from __future__ import annotations

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "oncelog"


class Authority:
    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def key_set(self, *key_ids: str) -> bytes:
        rsa_key = json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key()))
        ec_key = json.loads(ECAlgorithm.to_jwk(self.ec.public_key()))
        keys = [{**rsa_key, "kid": "r", "alg": "RS256"}, {**ec_key, "kid": "e"}]
        return json.dumps({"keys": [key for key in keys if not key_ids or key["kid"] in key_ids]}).encode()

    def token(
        self,
        now_s: float,
        *,
        user: str = "ann",
        key: Any = None,
        key_id: str | None = "r",
        algorithm: str = "RS256",
        lifetime_s: int = 3600,
        **changes: Any,
    ) -> str:
        claims = {
            "sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": int(now_s), "exp": int(now_s) + lifetime_s, **changes,
        }  # fmt: skip
        headers = {} if key_id is None else {"kid": key_id}
        given = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(given, key or self.rsa, algorithm=algorithm, headers=headers)
