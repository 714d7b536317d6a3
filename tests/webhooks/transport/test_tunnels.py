"""With allow_private=False a proxy is asked for a tunnel to an address that was checked, never to a name."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.webhooks.transport import public_address
from outbox.webhooks.transport.resolver import SocketAddress
from outbox.webhooks.webhook import Webhook
from tests.support.receiver import LOOPBACK, Receiver, answers, hangs_up, says, tunnels
from tests.webhooks.deliveries import (
    MakeWebhook,
    deliver,
    deliver_one,
    make_event,
    resolving_with,
    retried,
    unavailable,
)

PROXY, NAME = "proxy.internal", "receiver.example"
ELSEWHERE = "8.8.4.4"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(autouse=True)
def _loopback_stands_for_a_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    is_public = public_address.is_public
    monkeypatch.setattr(public_address, "is_public", lambda text: text == LOOPBACK or is_public(text))
    monkeypatch.setattr(public_address, "is_own", lambda text: False)


@pytest.fixture
def trusting(authority: trustme.CA, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if client == "curl":
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        return {}
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return {"ssl_context": context}


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(context)
    return context


class Setup:
    """A webhook that reaches the receiver through the proxy, and the names that it looks up."""

    def __init__(self, make_webhook: MakeWebhook, trusting: dict[str, Any], *, proxy: Receiver, port: int) -> None:
        self.looked_up: list[str] = []
        self.found = [[LOOPBACK]]
        self.proxy_found = ["127.0.0.1"]
        webhook = make_webhook(
            f"https://{NAME}:{port}/hook",
            proxy=f"http://me:hush@{PROXY}:{proxy.port}",
            allow_private=False,
            token="bearer-token",
            **trusting,
        )
        self.webhook: Webhook = resolving_with(webhook, self._look_up)

    def _look_up(self, host: str, port: int) -> list[SocketAddress]:
        self.looked_up.append(host)
        if host == PROXY:
            return [SocketAddress(socket.AF_INET, (text, port)) for text in self.proxy_found]
        texts = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        return [SocketAddress(socket.AF_INET, (text, port)) for text in texts]


def test_the_tunnel_leads_to_the_address_and_the_certificate_is_for_the_name(
    make_webhook: MakeWebhook, trusting: dict[str, Any], context: ssl.SSLContext
) -> None:
    with Receiver(tunnels) as proxy, Receiver(ssl_context=context) as receiver:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=receiver.port)
        assert deliver(setup.webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
        asked = proxy.only
        assert (asked.method, asked.target) == ("CONNECT", f"{LOOPBACK}:{receiver.port}")
        assert asked.headers["proxy-authorization"] == "Basic bWU6aHVzaA=="
        assert "authorization" not in asked.headers
        assert NAME not in str(asked.pairs)
        assert [request.headers["host"] for request in receiver.requests] == [f"{NAME}:{receiver.port}"] * 2
        assert "proxy-authorization" not in receiver.requests[0].headers
        assert setup.looked_up == [NAME, PROXY]


def test_a_certificate_for_another_name_is_refused(
    make_webhook: MakeWebhook, trusting: dict[str, Any], authority: trustme.CA
) -> None:
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(other)
    with Receiver(tunnels) as proxy, Receiver(ssl_context=other) as receiver:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=receiver.port)
        assert "certificate was not accepted" in unavailable(deliver_one(setup.webhook))
        assert receiver.requests == []


@pytest.mark.parametrize("found", [["10.0.0.1"], ["8.8.8.8", "169.254.169.254"], ["127.0.0.2"]])
def test_a_private_address_is_refused_before_the_proxy_is_asked(
    make_webhook: MakeWebhook, trusting: dict[str, Any], found: list[str]
) -> None:
    with Receiver(tunnels) as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
        setup.found = [found]
        error = retried(deliver_one(setup.webhook))
        assert error == f"not sent: {NAME} resolves to {found[-1]}, which is not a public address"
        assert (proxy.connections, setup.looked_up) == (0, [NAME])


def test_an_address_of_this_host_is_refused(
    make_webhook: MakeWebhook, trusting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_address, "is_own", LOOPBACK.__eq__)
    with Receiver(tunnels) as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
        assert retried(deliver_one(setup.webhook)).endswith("which is an address of this host")
        assert proxy.connections == 0


def test_a_name_that_resolves_to_a_private_address_the_next_time_is_refused_then(
    make_webhook: MakeWebhook, trusting: dict[str, Any], context: ssl.SSLContext
) -> None:
    with Receiver(tunnels) as proxy, Receiver(answers(connection="close"), ssl_context=context) as receiver:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=receiver.port)
        setup.found = [[LOOPBACK], ["10.0.0.1"]]
        assert deliver_one(setup.webhook) == DELIVERED_OUTCOME
        retried(deliver_one(setup.webhook))
        assert (setup.looked_up.count(NAME), proxy.connections) == (2, 1)


def test_if_the_proxy_can_not_reach_one_address_the_next_one_is_tried(
    make_webhook: MakeWebhook, trusting: dict[str, Any], context: ssl.SSLContext
) -> None:
    with Receiver(answers("502 Bad Gateway"), tunnels) as proxy, Receiver(ssl_context=context) as receiver:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=receiver.port)
        setup.found = [[ELSEWHERE, LOOPBACK]]
        assert deliver_one(setup.webhook) == DELIVERED_OUTCOME
        targets = [request.target for request in proxy.requests]
        assert targets == [f"{ELSEWHERE}:{receiver.port}", f"{LOOPBACK}:{receiver.port}"]


def test_if_one_address_of_the_proxy_is_dead_the_next_one_is_used(
    make_webhook: MakeWebhook, trusting: dict[str, Any], context: ssl.SSLContext
) -> None:
    with Receiver(tunnels) as proxy, Receiver(ssl_context=context) as receiver:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=receiver.port)
        setup.proxy_found = ["127.0.0.99", "127.0.0.1"]
        assert deliver_one(setup.webhook) == DELIVERED_OUTCOME


def test_a_proxy_that_refuses_all_addresses(make_webhook: MakeWebhook, trusting: dict[str, Any]) -> None:
    with Receiver(answers("403 Forbidden")) as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
        setup.found = [[ELSEWHERE, LOOPBACK]]
        assert unavailable(deliver_one(setup.webhook)) == "the proxy responded 403 Forbidden"
        assert len(proxy.requests) == 2


@pytest.mark.parametrize("reply", [hangs_up, says(b"garbage\r\n\r\n"), says(b"HTTP/1.1 100 Go on\r\n\r\n" * 50)])
def test_a_proxy_that_does_not_speak_http(make_webhook: MakeWebhook, trusting: dict[str, Any], reply: Any) -> None:
    with Receiver(reply) as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
        assert "hush" not in unavailable(deliver_one(setup.webhook))


def test_a_proxy_that_is_away(make_webhook: MakeWebhook, trusting: dict[str, Any]) -> None:
    with Receiver() as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
    error = unavailable(deliver_one(setup.webhook))
    assert error == f"Connection refused while connecting to {PROXY}, port {proxy.port}"


@pytest.mark.parametrize("client", ["httpx"])
def test_what_a_proxy_sends_before_the_receiver_was_asked_is_no_response(
    make_webhook: MakeWebhook, trusting: dict[str, Any]
) -> None:
    with Receiver(says(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")) as proxy:
        setup = Setup(make_webhook, trusting, proxy=proxy, port=443)
        assert "the proxy sent data" in unavailable(deliver_one(setup.webhook))
