from __future__ import annotations

import subprocess
import sys

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol import api
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import NEVER


@pytest.mark.parametrize("key", list(ApiKey))
def test_messages_have_the_versions_of_their_api_key(key: ApiKey) -> None:
    for message in api.messages(key):
        assert (key, (key.first, key.last), key.flexible) == (message.API_KEY, message.VERSIONS, message.FLEXIBLE)
    for version in range(key.first, key.last + 1):
        flexible = version >= key.flexible
        assert api.request_header_version(key, version) == (2 if flexible else 1)
        assert api.response_header_version(key, version) == int(flexible and key != ApiKey.API_VERSIONS)


def test_advertised_versions_are_those_with_a_schema_but_for_two() -> None:
    assert {key: key.advertised for key in ApiKey if key.advertised != (key.first, key.last)} == {
        ApiKey.PRODUCE: (0, 13),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
    }


def test_never_flexible_apis() -> None:
    assert [key for key in ApiKey if api.messages(key).request.FLEXIBLE == NEVER] == [
        ApiKey.SASL_HANDSHAKE,
        ApiKey.OFFSET_DELETE,
    ]


def test_request_and_response_round_trip() -> None:
    request = EndTxnRequest(transactional_id="tx", producer_id=1000, producer_epoch=3, committed=True)
    body = b"".join(api.encode_request(ApiKey.END_TXN, 5, request))
    assert body == b"\x03tx" + (1000).to_bytes(8, "big") + b"\0\3" + b"\1" + b"\0"
    assert api.decode_request(26, 5, memoryview(body)) == request
    assert api.decode_request(26, 5, b"header" + body, 6) == request

    response = EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED, producer_id=7, producer_epoch=1)
    old = b"".join(api.encode_response(26, 4, response))
    assert api.decode_response(26, 4, old) == EndTxnResponse(error_code=90)
    assert api.decode_response(26, 5, b"".join(api.encode_response(26, 5, response))) == response


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (26, 6), (26, -1), (4, 0), (999, 0)])
def test_unknown_keys_and_versions_have_their_own_error(key: int, version: int) -> None:
    with pytest.raises(KafkaError) as raised:
        api.decode_request(key, version, b"")
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_malformed_body() -> None:
    with pytest.raises(MalformedRequest):
        api.decode_request(26, 5, b"\x03t")


def test_importing_the_api_does_not_import_the_messages() -> None:
    script = "import sys, oncelog.protocol.api; print([m for m in sys.modules if 'protocol.messages.' in m])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
