"""Logging in with SASL, frame by frame: who gets in, what is refused, and what every answer says."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.core.address import Address
from oncelog.core.promise import Promise
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.cluster_metadata import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.primitives import MalformedRequest
from oncelog.security.plain import PlainClient
from oncelog.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, ClientMechanism
from oncelog.security.scram import ScramClient, ScramMechanism, ScramUser, make_credential
from oncelog.server.broker import Broker
from oncelog.server.context import Peer
from oncelog.server.dispatch import LastAnswer, UnservedRequest
from oncelog.server.listener import Listener, SecurityProtocol
from oncelog.server.login import Login, State
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.virtual_cluster import VirtualCluster
from tests.virtual_clock import VirtualScheduler

NONE, FAILED, ILLEGAL, UNSUPPORTED = 0, 58, 34, 33
DELAY_MS, DELAYS_MAX = 100, 32


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path / "data", {"log.cleaner.enable": "false"})
    node.broker.make_secret()
    users = {ScramUser("eve", each): make_credential(each, "pw", b"salt" * 4, 4096) for each in ScramMechanism}
    node.add_users(users)
    node.broker.advertised["IN"] = Address("broker", 1)
    yield node
    node.broker.stop(clean=False)


class Member(NamedTuple):
    """A broker of a cluster."""

    broker: Broker
    clock: VirtualScheduler


class Client:
    def __init__(self, node: BrokerInProcess | Member, *mechanisms: str, reauth_ms: int = 0) -> None:
        listener = Listener(
            "IN",
            SecurityProtocol.SASL_PLAINTEXT,
            Address("127.0.0.1", 0),
            mechanisms=mechanisms or (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512),
            passwords={"eve": "pw", "bob": "secret"},
            reauth_ms=dict.fromkeys((PLAIN, SCRAM_SHA_256, SCRAM_SHA_512), reauth_ms),
            login_max_bytes=1000,
        )
        self.node = node
        self.peer = Peer("10.0.0.1", "127.0.0.1", listener="IN", is_known=False)
        self.login = Login(node.broker.logins, listener)

    def send(self, request: Any, version: int) -> tuple[Any, bool]:
        """The answer, and whether it is the last one."""
        key = type(request).API_KEY
        frame = b"".join(encode_request_frame(key, version, 1, "test", encode_request(key, version, request)))
        buffers = self.serve(frame[4:])
        data = memoryview(b"".join(buffers))[4:]
        _, position = parse_response_header(data, response_header_version(key, version))
        return decode_response(key, version, data[position:]), isinstance(buffers, LastAnswer)

    def serve(self, frame: bytes) -> Any:
        answer = self.login.serve(memoryview(frame), self.peer)
        if isinstance(answer, Promise):
            if self.login.state is State.FAILED:
                assert not answer.done, "a failure is held back"
                for _ in range(DELAYS_MAX):
                    if not answer.done:
                        self.node.clock.advance_ms(DELAY_MS)
            assert answer.done
            return answer.value
        return answer

    def shake_hands(self, mechanism: str, version: int = 1) -> int:
        answer, _ = self.send(SaslHandshakeRequest(mechanism=mechanism), version)
        return int(answer.error_code)

    def log_in(self, mechanism: str, user: str = "eve", password: str = "pw", version: int = 2) -> Any:
        """The last answer to a token."""
        assert self.shake_hands(mechanism) == NONE
        sasl = client_of(mechanism, user, password)
        token: bytes | None = sasl.first()
        while token is not None:
            answer, is_last = self.send(SaslAuthenticateRequest(auth_bytes=token), version)
            assert is_last == bool(answer.error_code)
            if answer.error_code:
                break
            token = sasl.step(answer.auth_bytes)
        return answer


def client_of(mechanism: str, user: str, password: str) -> ClientMechanism:
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(ScramMechanism.of(mechanism), user, password, nonce="abcdef")


every_mechanism = pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256, SCRAM_SHA_512])


@every_mechanism
@pytest.mark.parametrize("version", [0, 1, 2])
def test_whoever_logs_in_is_served_under_their_name(node: BrokerInProcess, mechanism: str, version: int) -> None:
    client = Client(node)
    versions, _ = client.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
    assert versions.error_code == NONE
    answer = client.log_in(mechanism, version=version)
    assert (answer.error_code, answer.session_lifetime_ms) == (NONE, 0)
    assert (client.peer.principal, client.peer.is_known) == ("User:eve", True)
    metadata, _ = client.send(MetadataRequest(topics=None), 12)
    assert [(broker.host, broker.port) for broker in metadata.brokers] == [("broker", 1)]


@every_mechanism
@pytest.mark.parametrize(("user", "password"), [("eve", "wrong"), ("nobody", "pw")])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    node: BrokerInProcess, mechanism: str, user: str, password: str
) -> None:
    client = Client(node)
    answer = client.log_in(mechanism, user, password)
    assert answer.error_code == FAILED
    assert answer.error_message == (
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )
    assert not client.peer.is_known
    with pytest.raises(UnservedRequest):
        client.send(MetadataRequest(topics=None), 12)
    assert node.broker.metrics.rejections == {"SASL_AUTHENTICATION_FAILED": 1}


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(node: BrokerInProcess) -> None:
    client = Client(node, SCRAM_SHA_512)
    answer, is_last = client.send(SaslHandshakeRequest(mechanism=PLAIN), 1)
    assert (answer.error_code, answer.mechanisms, is_last) == (UNSUPPORTED, [SCRAM_SHA_512], True)


def test_nothing_else_is_served_before_the_login(node: BrokerInProcess) -> None:
    for request, version in [(MetadataRequest(topics=None), 12), (SaslAuthenticateRequest(auth_bytes=b"x"), 2)]:
        with pytest.raises(UnservedRequest, match="where a login was due"):
            Client(node).send(request, version)
    client = Client(node)
    client.shake_hands(PLAIN)
    with pytest.raises(UnservedRequest):
        client.send(MetadataRequest(topics=None), 12)


def test_a_second_handshake_in_the_middle_is_refused(node: BrokerInProcess) -> None:
    client = Client(node)
    client.shake_hands(PLAIN)
    assert client.shake_hands(PLAIN) == ILLEGAL
    assert client.login.state is State.FAILED


def test_after_the_login_there_is_no_other_without_an_end_of_the_session(node: BrokerInProcess) -> None:
    client = Client(node)
    client.log_in(PLAIN)
    assert client.shake_hands(PLAIN) == ILLEGAL
    answer, _ = client.send(SaslAuthenticateRequest(auth_bytes=b"\0eve\0pw"), 2)
    assert answer.error_code == ILLEGAL
    metadata, _ = client.send(MetadataRequest(topics=None), 12)
    assert metadata.brokers, "and the session goes on"


def test_a_listener_without_sasl_takes_no_login(node: BrokerInProcess) -> None:
    assert node.call(SaslHandshakeRequest(mechanism=PLAIN), 1).error_code == ILLEGAL
    assert node.call(SaslAuthenticateRequest(auth_bytes=b""), 2).error_code == ILLEGAL


def test_bare_tokens_after_a_handshake_of_version_0(node: BrokerInProcess) -> None:
    client = Client(node)
    assert client.shake_hands(SCRAM_SHA_256, version=0) == NONE
    scram = client_of(SCRAM_SHA_256, "eve", "pw")
    token: bytes | None = scram.first()
    while token is not None:
        answer = b"".join(client.serve(token))
        assert struct.unpack(">i", answer[:4])[0] == len(answer) - 4
        token = scram.step(answer[4:])
    assert client.peer.principal == "User:eve"


def test_a_bare_token_that_fails_is_answered_by_the_end_alone(node: BrokerInProcess) -> None:
    client = Client(node)
    client.shake_hands(PLAIN, version=0)
    answer = client.serve(b"\0eve\0wrong")
    assert answer == []
    assert isinstance(answer, LastAnswer)


def test_who_logs_in_again_in_time_stays_and_who_does_not_is_closed(node: BrokerInProcess) -> None:
    client = Client(node, reauth_ms=10_000)
    assert client.log_in(SCRAM_SHA_256).session_lifetime_ms == 10_000
    node.clock.advance_ms(9_000)
    assert client.log_in(SCRAM_SHA_256).error_code == NONE
    node.clock.advance_ms(9_999)
    client.send(MetadataRequest(topics=None), 12)
    node.clock.advance_ms(1)
    late = encode_request_frame(3, 12, 1, "test", encode_request(3, 12, MetadataRequest(topics=None)))
    ended = client.serve(b"".join(late)[4:])
    assert (ended, type(ended)) == ([], LastAnswer)
    assert client.log_in(SCRAM_SHA_256).error_code == NONE, "a late login is one"


def test_nobody_becomes_somebody_else(node: BrokerInProcess) -> None:
    client = Client(node, reauth_ms=10_000)
    client.log_in(PLAIN)
    node.clock.advance_ms(5_000)
    answer = client.log_in(PLAIN, "bob", "secret")
    assert (answer.error_code, answer.error_message) == (FAILED, "Cannot change principals during re-authentication")
    assert client.peer.principal == "User:eve"


def test_another_mechanism_or_a_login_at_once_is_refused(node: BrokerInProcess) -> None:
    for mechanism, waited_ms in [(SCRAM_SHA_256, 5_000), (PLAIN, 999)]:
        client = Client(node, reauth_ms=10_000)
        client.log_in(PLAIN)
        node.clock.advance_ms(waited_ms)
        assert client.shake_hands(mechanism) == ILLEGAL


def test_a_user_that_was_removed_cannot_log_in_any_more(node: BrokerInProcess) -> None:
    node.change(RemoveUserScramCredentialRecord(name="eve", mechanism=ScramMechanism.SHA_256))
    assert Client(node).log_in(SCRAM_SHA_256).error_code == FAILED
    assert Client(node).log_in(SCRAM_SHA_512).error_code == NONE


def challenge_of(login: Client, user: str) -> tuple[bytes, int]:
    """Salt and iterations, which are told before a proof."""
    assert login.shake_hands(SCRAM_SHA_256) == NONE
    answer, _ = login.send(SaslAuthenticateRequest(auth_bytes=f"n,,n={user},r=abc".encode()), 2)
    _, salt, iterations = answer.auth_bytes.split(b",")
    return base64.b64decode(salt.removeprefix(b"s=")), int(iterations.removeprefix(b"i="))


def test_unknown_users_look_like_those_that_are_stored_at_the_time(node: BrokerInProcess) -> None:
    names = [f"nobody{number}" for number in range(100)]

    def forms() -> set[tuple[int, int]]:
        told = (challenge_of(Client(node), name) for name in names)
        return {(len(salt), iterations) for salt, iterations in told}

    assert forms() == {(16, 4096)}
    sha_256 = ScramMechanism.SHA_256
    java = {ScramUser("eve", sha_256): make_credential(sha_256, "pw", b"0123456789abcdefghijklm-%", 8192)}
    node.add_users(java)
    assert forms() == {(25, 8192)}
    more = {ScramUser("bob", sha_256): make_credential(sha_256, "pw", b"salt" * 4, 4096)}
    node.add_users(more)
    assert forms() == {(25, 8192), (16, 4096)}
    assert challenge_of(Client(node), "eve") == (b"0123456789abcdefghijklm-%", 8192)


def test_brokers_of_a_cluster_tell_an_unknown_user_the_same_also_after_a_restart(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path, 2).start()
    alice = UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"-" * 25, stored_key=b"k", server_key=b"secret", iterations=8192
    )
    cluster.controller.write(alice)

    def told(node: int, user: str) -> tuple[bytes, int]:
        broker = cluster.nodes[node].running
        if broker.metadata.secret is None:
            broker.make_secret()
        return challenge_of(Client(Member(broker, cluster.clock)), user)

    cluster.until(lambda: all(node.running.metadata.users for node in cluster.nodes.values()))
    first = told(1, "nobody")
    assert (len(first[0]), first[1]) == (25, 8192)
    assert told(2, "nobody") == first
    assert told(1, "somebody") != first
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    cluster.nodes[2].start()
    cluster.until(lambda: cluster.nodes[2].running.metadata.users)
    assert told(2, "nobody") == first


def test_users_and_the_secret_survive_a_restart(node: BrokerInProcess) -> None:
    def salt_of_nobody() -> bytes:
        return challenge_of(Client(node), "nobody")[0]

    before = salt_of_nobody()
    for clean in (True, False):
        node.restart(clean=clean)
        node.broker.advertised["IN"] = Address("broker", 1)
        assert Client(node).log_in(SCRAM_SHA_512).error_code == NONE
        assert salt_of_nobody() == before
    assert ScramUser("eve", ScramMechanism.SHA_256) in node.broker.metadata.users


def test_bytes_that_are_no_request_are_refused(node: BrokerInProcess) -> None:
    for junk in (b"", b"\0", b"\xff" * 40, b"\0\x11\0\x01\0\0\0\0\xff\xff\x7f\xff"):
        with pytest.raises((UnservedRequest, MalformedRequest)):
            Client(node).serve(junk)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_get_a_defined_answer_or_the_end(node: BrokerInProcess, data: st.DataObject) -> None:
    client = Client(node)
    for _ in range(data.draw(st.integers(1, 4))):
        if client.login.state is State.FAILED:
            break
        head = data.draw(st.sampled_from([b"", b"\0\x11\0\x01", b"\0\x24\0\x02", b"\0\x11\0\0", b"\0\x12\0\x03"]))
        junk = data.draw(st.binary(max_size=60))
        shaken = data.draw(st.booleans())
        if shaken and client.login.state is State.START:
            client.shake_hands(data.draw(st.sampled_from([PLAIN, SCRAM_SHA_256])), data.draw(st.integers(0, 1)))
        try:
            client.serve(head + junk)
        except (UnservedRequest, MalformedRequest):
            break
    assert client.login.state is not State.OPEN
    assert not client.peer.is_known


def valid_frames(mechanism: str) -> list[bytes]:
    """The frames of a login up to the point where the next one depends on the broker's answer."""
    client = client_of(mechanism, "eve", "pw")
    requests = [
        (ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3),
        (SaslHandshakeRequest(mechanism=mechanism), 1),
        (SaslAuthenticateRequest(auth_bytes=client.first()), 2),
    ]
    return [
        b"".join(
            encode_request_frame(type(each).API_KEY, version, 1, "c", encode_request(type(each).API_KEY, version, each))
        )[4:]
        for each, version in requests
    ]


def mutated(frames: list[bytes], source: random.Random) -> list[bytes]:
    changed = [bytearray(frame) for frame in frames]
    for _ in range(source.randint(1, 4)):
        frame = source.choice(changed)
        place = source.randrange(len(frame)) if frame else 0
        match source.randrange(6):
            case 0 if frame:
                frame[place] ^= 1 << source.randrange(8)
            case 1:
                del frame[place:]
            case 2:
                frame[place:place] = source.randbytes(source.randint(1, 9))
            case 3:
                changed.insert(source.randrange(len(changed) + 1), bytearray(frame))
            case 4 if len(changed) > 1:
                changed.remove(frame)
            case _:
                source.shuffle(changed)
    return [bytes(frame) for frame in changed]


@every_mechanism
def test_changed_logins_make_nobody_else_of_a_client(node: BrokerInProcess, mechanism: str) -> None:
    """From a seed: bits are flipped, frames cut, filled, repeated, left out and put in another order."""
    frames, endings = valid_frames(mechanism), set()
    for seed in range(300):
        source = random.Random(f"{mechanism} {seed}")
        client = Client(node)
        for frame in mutated(frames, source):
            try:
                answer = client.serve(frame)
            except (UnservedRequest, MalformedRequest):
                break
            if isinstance(answer, LastAnswer):
                break
        endings.add(client.login.state)
        assert client.peer.principal in ("User:ANONYMOUS", "User:eve"), seed
        assert client.peer.is_known == (client.login.state is State.OPEN), seed
    assert {State.FAILED, State.START, State.TOKENS} <= endings, "every kind of ending was reached"


def test_a_flood_of_failures_leaves_nothing_behind(node: BrokerInProcess) -> None:
    for _ in range(50):
        assert Client(node).log_in(PLAIN, password="wrong").error_code == FAILED
    assert Client(node).log_in(PLAIN).error_code == NONE


def test_whoever_tries_passwords_waits_longer_and_longer_and_others_do_not(node: BrokerInProcess) -> None:
    def failure_ms(host: str) -> int:
        client = Client(node)
        client.peer.client_host = host
        before_ms = node.clock.monotonic_ms()
        assert client.log_in(PLAIN, password="wrong").error_code == FAILED
        return node.clock.monotonic_ms() - before_ms

    assert [failure_ms("10.0.0.1") for _ in range(8)] == [100, 200, 400, 800, 1600, 3200, 3200, 3200]
    assert failure_ms("10.0.0.2") == 100
    before_ms = node.clock.monotonic_ms()
    assert Client(node).log_in(PLAIN).error_code == NONE
    assert node.clock.monotonic_ms() == before_ms, "a password that is right is not held back"
    node.clock.advance_ms(60_000)
    assert failure_ms("10.0.0.1") == 100


def test_the_last_token_of_a_login_is_of_no_use_again(node: BrokerInProcess) -> None:
    """Neither on the same connection nor on another one."""
    mechanism = ScramClient(ScramMechanism.of(SCRAM_SHA_256), "eve", "pw", nonce="fixed")
    first = Client(node)
    first.shake_hands(SCRAM_SHA_256)
    answer, _ = first.send(SaslAuthenticateRequest(auth_bytes=mechanism.first()), 2)
    proof = mechanism.step(bytes(answer.auth_bytes))
    assert proof is not None
    assert first.send(SaslAuthenticateRequest(auth_bytes=proof), 2)[0].error_code == NONE
    assert first.send(SaslAuthenticateRequest(auth_bytes=proof), 2)[0].error_code == ILLEGAL
    second = Client(node)
    second.shake_hands(SCRAM_SHA_256)
    second.send(SaslAuthenticateRequest(auth_bytes=mechanism.first()), 2)
    assert second.send(SaslAuthenticateRequest(auth_bytes=proof), 2)[0].error_code == FAILED


def test_a_token_that_is_refused_is_told_once_also_if_its_client_does_not_come_back(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def failures() -> int:
        return sum('"login-failed"' in record.getMessage() for record in caplog.records)

    client = Client(node, OAUTHBEARER)
    client.shake_hands(OAUTHBEARER)
    answer, is_last = client.send(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer x\x01\x01"), 2)
    assert (answer.error_code, bytes(answer.auth_bytes), is_last) == (NONE, b'{"status":"invalid_token"}', False)
    assert failures() == 1
    answer, is_last = client.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
    assert (answer.error_code, is_last, client.peer.is_known) == (FAILED, True, False)
    assert failures() == 1


@pytest.mark.parametrize("kept", range(0, 40, 3))
def test_a_token_that_is_cut_short_lets_nobody_in(node: BrokerInProcess, kept: int) -> None:
    mechanism = ScramClient(ScramMechanism.of(SCRAM_SHA_512), "eve", "pw", nonce="fixed")
    client = Client(node)
    client.shake_hands(SCRAM_SHA_512)
    whole = mechanism.first()
    answer, is_last = client.send(SaslAuthenticateRequest(auth_bytes=whole[:kept]), 2)
    if kept >= len(whole):
        proof = mechanism.step(bytes(answer.auth_bytes)) or b""
        answer, is_last = client.send(SaslAuthenticateRequest(auth_bytes=proof[:kept]), 2)
    if answer.error_code == NONE:
        answer, is_last = client.send(SaslAuthenticateRequest(auth_bytes=whole), 2)
    assert (answer.error_code, is_last) == (FAILED, True)
    assert not client.peer.is_known
