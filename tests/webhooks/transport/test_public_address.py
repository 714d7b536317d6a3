"""A webhook with allow_private=False connects only to public addresses, whatever its name resolves to."""

import socket

import pytest

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.webhooks.transport import public_address
from outbox.webhooks.transport.httpcore_threads import network_backend as network
from outbox.webhooks.transport.libcurl import transfer
from outbox.webhooks.transport.public_address import is_own, is_public
from outbox.webhooks.transport.resolver import SocketAddress, host_and_port
from tests.support.receiver import LOOPBACK, Receiver, answers
from tests.webhooks.deliveries import MakeWebhook, deliver, deliver_one, make_event, resolving_with, retried

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82a::200e",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "2001:0:0808:0808:0:0:f7f7:f7f7",  # Teredo: server and client are 8.8.8.8
]

NOT_PUBLIC = [
    # IPv4
    "0.0.0.0",  # noqa: S104  (bound to nothing)
    "0.255.255.255",
    "10.0.0.0",
    "10.255.255.255",
    "100.64.0.0",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.169.254",
    "172.16.0.0",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.255",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.0",
    "192.168.255.255",
    "198.18.0.0",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    # IPv6
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "100::1",
    "64:ff9b:1::8.8.8.8",
    "2001:db8::1",
    "2001:2::1",
    "3fff::1",
    "3ffe::1",
    "5f00::1",
    "fc00::1",
    "fdff::1",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700:4700::1111%1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff0e::1",
    # IPv4 inside IPv6
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:c0a8:101:1::1",
    "2001:0:7f00:1:0:0:f7f7:f7f7",  # Teredo: a private server
    "2001:0:808:808:0:0:80ff:fffe",  # Teredo: its client is 127.0.0.1
    # Nothing at all
    "",
    "localhost",
    "127.1",
    "1.1.1.1 ",
    "::g",
]

HIDDEN_LOOPBACKS = [
    *("127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "127.0.0.01", "2130706433", "017700000001", "0177.1"),
    *("0177.0.0.1", "0177.0.0.01", "0x7f000001", "0X7F000001", "0x7f.1", "0x7f.0.0.1", "0x7f.0x0.0x0.0x1", "0"),
    *("000000", "0x0", "0x0.0", "0.0.0.0", "00.0.0.0", "localhost", "LocalHost", "[::1]", "[0:0:0:0:0:0:0:1]"),  # noqa: S104
    *("[0000::0001]", "[::]", "[0::0]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::FFFF:7f00:1]", "[::ffff:0:0]"),
    *("[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "user@127.0.0.1"),
    *("1.1.1.1@127.0.0.1", "127\u30020\u30020\u30021", "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("host", HIDDEN_LOOPBACKS)
def test_loopback_is_refused_however_it_is_written(make_webhook: MakeWebhook, host: str) -> None:
    with Receiver() as receiver:
        url = f"http://{host}:{receiver.port}/"
        error = retried(deliver_one(make_webhook(url, allow_private=False)))
        assert error.startswith("not sent: ")
        assert error.endswith("which is not a public address")
        assert receiver.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "0x7f000001", "2130706433", "127.1", "localhost"])
def test_loopback_is_reached_if_private_addresses_are_allowed(make_webhook: MakeWebhook, host: str) -> None:
    with Receiver() as receiver:
        assert deliver_one(make_webhook(f"http://{host}:{receiver.port}/")) == DELIVERED_OUTCOME


class Names:
    """A resolver that returns one result after the other, and then always the last one."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def lookup(self, host: str, port: int) -> list[SocketAddress]:
        self.asked.append((host, port))
        texts = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return [_address(text, port) for text in texts]


def _address(text: str, port: int) -> SocketAddress:
    if ":" in text:
        return SocketAddress(socket.AF_INET6, (text, port, 0, 0))
    return SocketAddress(socket.AF_INET, (text, port))


class Routes:
    """Connections to public addresses go to a receiver on this host: a test has no internet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
        self.taken: list[str] = []
        connect = network._open

        def here(address: SocketAddress) -> SocketAddress:
            self.taken.append(address.text)
            return SocketAddress(socket.AF_INET, (LOOPBACK, receiver.port))

        monkeypatch.setattr(network, "_open", lambda address, seconds: connect(here(address), seconds))
        monkeypatch.setattr(transfer, "host_and_port", lambda address: host_and_port(here(address)))
        monkeypatch.setattr(transfer, "is_public", LOOPBACK.__eq__)


@pytest.mark.parametrize(
    "found", [["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::1", "8.8.8.8"], ["8.8.8.8", "fe80::1%lo"]]
)
def test_one_private_address_is_enough_to_refuse_a_name(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    with Receiver() as receiver:
        routes = Routes(monkeypatch, receiver)
        webhook = resolving_with(make_webhook("http://receiver.example/", allow_private=False), Names(found).lookup)
        error = retried(deliver_one(webhook))
        wrong = next(text for text in found if not is_public(text))
        assert error == f"not sent: receiver.example resolves to {wrong}, which is not a public address"
        assert (routes.taken, receiver.connections) == ([], 0)


def test_the_connection_goes_to_an_address_that_was_checked(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to a public address at first, and to a private one a moment later, is of no use."""
    names = Names(["8.8.8.8"], ["127.0.0.1"])
    with Receiver(answers(connection="close")) as receiver:
        routes = Routes(monkeypatch, receiver)
        webhook = resolving_with(make_webhook("http://receiver.example:8080/", allow_private=False), names.lookup)
        assert deliver_one(webhook) == DELIVERED_OUTCOME
        assert names.asked == [("receiver.example", 8080)], "once per connection"
        assert routes.taken == ["8.8.8.8"]
        assert receiver.only.headers["host"] == "receiver.example:8080"
        retried(deliver_one(webhook))
        assert (len(names.asked), routes.taken, receiver.connections) == (2, ["8.8.8.8"], 1)


def test_a_kept_connection_is_not_resolved_again(make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(["8.8.8.8"], ["127.0.0.1"])
    with Receiver() as receiver:
        Routes(monkeypatch, receiver)
        webhook = resolving_with(make_webhook("http://receiver.example/", allow_private=False), names.lookup)
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
        assert len(names.asked) == 1


@pytest.mark.parametrize("client", ["curl"])
def test_libcurl_connects_to_no_other_address_whatever_was_checked_before(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "check_public", lambda host, addresses: None)
    with Receiver() as receiver:
        webhook = make_webhook(f"http://localhost:{receiver.port}/", allow_private=False)
        error = retried(deliver_one(webhook))
        assert error.startswith("not sent: localhost resolves to ")
        assert error.endswith(", which is not a public address")
        assert receiver.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_an_address_of_this_host_is_refused_even_if_it_is_public(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Loopback stands for the host's public address: a connection to either has the same address at both ends."""
    for module in (public_address, transfer):
        monkeypatch.setattr(module, "is_public", lambda text: True)
    with Receiver() as receiver:
        webhook = make_webhook(f"http://{host}:{receiver.port}/", allow_private=False)
        error = retried(deliver_one(webhook))
        assert error.startswith("not sent: ")
        assert error.endswith("which is an address of this host")
        assert receiver.connections == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::"])
def test_own(address: str) -> None:
    assert is_own(address)


@pytest.mark.parametrize("address", [*PUBLIC, "10.255.255.254", "192.0.2.1", "fe80::1%1"])
def test_not_own(address: str) -> None:
    assert not is_own(address)


def test_public_ipv6_is_reached(make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(["2606:4700:4700::1111", "1.1.1.1"])
    with Receiver() as receiver:
        routes = Routes(monkeypatch, receiver)
        webhook = resolving_with(make_webhook("http://receiver.example/", allow_private=False), names.lookup)
        assert deliver_one(webhook) == DELIVERED_OUTCOME
        assert routes.taken == ["2606:4700:4700::1111"]
