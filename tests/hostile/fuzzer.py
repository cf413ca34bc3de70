"""Frames of every API and version, as they should be and with bytes changed, over a socket, from a seed.

`python -m tests.hostile.fuzzer ADDRESS SEED SECONDS` plays them against a broker that runs.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import time
import uuid
from collections import Counter
from typing import Any, Final

from oncelog.protocol.api import encode_request, messages
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame
from oncelog.protocol.schema import Field, Message
from tests.hostile.wire import Client
from tests.unit.server.harness import batch_of

ANSWER_S_MAX: Final = 0.1
"""Some requests wait for long by right; they are left waiting."""
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16}
_NAMES: Final = ("t", "g", "id", "", "__consumer_offsets", "x" * 300, "é\n\x1b[0m")
_BATCH: Final = batch_of([b"v"], timestamp_ms=1)


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def frame(self, key: ApiKey, version: int) -> bytes:
        request = self._message(messages(key).request, version)
        body = encode_request(key, version, request)
        frame = b"".join(encode_request_frame(key, version, 1, self._random.choice(_NAMES), body))
        return frame if self._random.random() < 0.3 else self._changed(frame)

    def _changed(self, frame: bytes) -> bytes:
        """Somewhere after the key and the version. The size stays true, so that the next frame is found."""
        body = bytearray(frame[8:])
        for _ in range(self._random.randint(1, 4)):
            at = self._random.randrange(len(body) + 1)
            match self._random.randrange(5):
                case 0:
                    body[at : at + 1] = bytes([self._random.randrange(256)])
                case 1:
                    del body[at:]
                case 2:
                    body[at : at + 4] = struct.pack(">i", self._random.choice((-1, -2, 0, 2**31 - 1, -(2**31), 10**6)))
                case 3:
                    body[at:at] = self._random.randbytes(self._random.randint(1, 40))
                case _:
                    del body[at : at + self._random.randint(1, 8)]
        return struct.pack(">i", 4 + len(body)) + frame[4:8] + body

    def _message(self, cls: type[Message], version: int) -> Message:
        fields = {name: field for name, field in cls.FIELDS.items() if field.is_in(version)}
        return cls(**{name: self._value(field, version) for name, field in fields.items()})

    def _value(self, field: Field, version: int) -> Any:
        choose = self._random
        if field.is_nullable_in(version) and choose.random() < 0.2:
            return None
        if field.kind in _BITS:
            bits = _BITS[field.kind]
            low, high = (0, 2**bits - 1) if field.kind == "uint16" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return choose.choice((0, 1, 2, 3, 4, 100, choose.randint(low, high), low, high)) & high
        match field.kind:
            case "boolean":
                return choose.random() < 0.5
            case "float64":
                return choose.random()
            case "string":
                return choose.choice(_NAMES)
            case "bytes":
                return choose.randbytes(choose.randrange(40))
            case "records":
                return _BATCH if choose.random() < 0.5 else choose.randbytes(choose.randrange(200))
            case "uuid":
                return uuid.UUID(int=choose.choice((0, 1, choose.getrandbits(128))))
            case "array":
                assert field.element is not None
                return [self._value(field.element, version) for _ in range(choose.choice((0, 1, 1, 2, 5)))]
            case _:
                assert field.struct is not None
                return self._message(field.struct, version)


def play(address: str, seed: int, seconds: float, apis: dict[ApiKey, tuple[int, int]]) -> Counter[str]:
    """What became of the frames."""
    fuzzer, outcomes = Fuzzer(seed), Counter[str]()
    end_s = time.monotonic() + seconds
    client = Client(address, ANSWER_S_MAX)
    while True:
        for key, (first, last) in apis.items():
            for version in range(first, last + 1):
                try:
                    client.send(fuzzer.frame(key, version))
                    client.receive()
                    outcomes["answered"] += 1
                except OSError as error:
                    outcomes["waiting" if isinstance(error, TimeoutError) else "closed"] += 1
                    client.close()
                    client = Client(address, ANSWER_S_MAX)
                outcomes[f"{key.name} {version}"] += 1
            if time.monotonic() > end_s and len(outcomes) > sum(last - first + 1 for first, last in apis.values()):
                client.close()
                return outcomes


def main(address: str, seed: str, seconds: str) -> None:
    apis = {key: (key.first, key.last) for key in ApiKey}
    with contextlib.suppress(KeyboardInterrupt):
        outcomes = play(address, int(seed), float(seconds), apis)
        sys.stdout.write(f"{ {name: outcomes[name] for name in ('answered', 'closed', 'waiting')} }\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
