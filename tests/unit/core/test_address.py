import pytest

from oncelog.core.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("broker:9092", Address("broker", 9092)),
        ("[::1]:0", Address("::1", 0)),
        ("fe80::1:65535", Address("fe80::1", 65_535)),
    ],
)
def test_host_and_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_without_a_host_the_default_is_taken() -> None:
    assert parse_address(":9092", default_host="127.0.0.1") == Address("127.0.0.1", 9092)


@pytest.mark.parametrize("text", ["", "broker", "broker:", ":9092", "broker:port", "b:٣"])
def test_anything_else_is_refused_with_the_form_that_is_wanted(text: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form HOST:PORT, such as 127\.0\.0\.1:9092"):
        parse_address(text)


@pytest.mark.parametrize("text", ["broker:-1", "broker:65536"])
def test_a_port_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"the port of '{text}' is out of range: ports are 0 to 65535"):
        parse_address(text)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert parse_address(str(Address("::1", 9092))) == Address("::1", 9092)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("localhost", True), ("127.0.0.2", True), ("::1", True), ("127.example.com", False), ("0.0.0.0", False)],
)
def test_loopback(host: str, is_loopback: bool) -> None:
    assert Address(host, 9092).is_loopback is is_loopback
