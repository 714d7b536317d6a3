"""TLS: a receiver's certificate must be valid for its name."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.webhooks.transport import public_address as address
from outbox.webhooks.transport.httpcore_threads import connection as sender
from outbox.webhooks.transport.libcurl import transfer
from outbox.webhooks.transport.resolver import SocketAddress
from tests.support.receiver import LOOPBACK, ClientConnection, Receiver, answers, drips_its_body, tunnels
from tests.webhooks.deliveries import (
    MakeWebhook,
    deliver,
    deliver_one,
    make_event,
    make_large_event,
    resolving_to,
    unavailable,
)

Trust = dict[str, ssl.SSLContext]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    """The webhook options with which a client trusts the authority."""
    if client == "curl":
        file = tmp_path / "authority.pem"
        authority.cert_pem.write_to_path(str(file))
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        return {}
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return {"ssl_context": context}


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """Return a server's SSL context with a certificate for these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def test_a_valid_certificate_is_accepted(make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust) -> None:
    with Receiver(ssl_context=certified(authority, "localhost"), name="localhost") as receiver:
        webhook = make_webhook(receiver.url, **trusting)
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME, DELIVERED_OUTCOME]
        assert receiver.connections == 1


def test_http_2_is_not_negotiated(make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust) -> None:
    context = certified(authority, "localhost")
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Receiver(ssl_context=context, name="localhost") as receiver:
        assert deliver_one(make_webhook(receiver.url, **trusting)) == DELIVERED_OUTCOME
        assert receiver.only.method == "POST"


def test_a_certificate_for_an_address_is_accepted(
    make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust
) -> None:
    with Receiver(ssl_context=certified(authority, LOOPBACK)) as receiver:
        assert deliver_one(make_webhook(receiver.url, **trusting)) == DELIVERED_OUTCOME


def is_about_the_name(error: str) -> bool:
    """Return OpenSSL's or libcurl's reason for refusing a certificate."""
    said = error.removeprefix("the receiver's certificate was not accepted: ")
    return said != error and ("Hostname mismatch" in said or "no alternative certificate subject name matches" in said)


def test_a_certificate_for_another_name_is_refused(
    make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust
) -> None:
    with Receiver(ssl_context=certified(authority, "other.example"), name="localhost") as receiver:
        error = unavailable(deliver_one(make_webhook(receiver.url, **trusting)))
        assert is_about_the_name(error)
        assert receiver.requests == []


def test_a_certificate_of_an_unknown_authority_is_refused(make_webhook: MakeWebhook, authority: trustme.CA) -> None:
    with Receiver(ssl_context=certified(authority, "localhost"), name="localhost") as receiver:
        error = unavailable(deliver_one(make_webhook(receiver.url)))
        assert error.startswith("the receiver's certificate was not accepted: unable to get local issuer certificate")
        assert receiver.requests == []


def test_a_receiver_without_tls_is_refused(make_webhook: MakeWebhook) -> None:
    with Receiver(on_connect=lambda connection: connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as receiver:
        error = unavailable(deliver_one(make_webhook(receiver.url.replace("http:", "https:"))))
    assert error.endswith("while negotiating TLS")


def test_a_body_that_comes_byte_by_byte_is_cut(
    make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust
) -> None:
    with Receiver(drips_its_body, ssl_context=certified(authority, LOOPBACK)) as receiver:
        assert deliver_one(make_webhook(receiver.url, **trusting)) == DELIVERED_OUTCOME
        receiver.notices_the_end()


def test_a_receiver_that_reads_in_spurts(make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust) -> None:
    def gulp(connection: ClientConnection) -> None:
        while True:
            connection.read(10_000)
            connection.pause(0.005)

    with Receiver(on_connect=gulp, ssl_context=certified(authority, LOOPBACK)) as receiver:
        webhook = make_webhook(receiver.url, **trusting, timeout=2)
        outcome = deliver_one(webhook, make_large_event())  # ten seconds' worth
        assert unavailable(outcome) == "timed out while sending"
        assert receiver.requests == []


def test_the_certificate_is_for_the_name_although_the_address_is_connected_to(
    make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(ssl_context=certified(authority, "receiver.example")) as receiver:
        found = SocketAddress(socket.AF_INET, (LOOPBACK, receiver.port))
        for module in (address, transfer):
            monkeypatch.setattr(module, "is_public", LOOPBACK.__eq__)
        monkeypatch.setattr(address, "is_own", lambda text: False)
        url = f"https://receiver.example:{receiver.port}/"
        assert deliver_one(resolving_to(make_webhook(url, **trusting, allow_private=False), found)) == DELIVERED_OUTCOME
        assert receiver.only.headers["host"] == f"receiver.example:{receiver.port}"
        other = resolving_to(make_webhook(url.replace("receiver", "other"), **trusting), found)
        error = unavailable(deliver_one(other))
        assert is_about_the_name(error)


def test_through_a_proxy_it_is_the_receivers_certificate_that_counts(
    make_webhook: MakeWebhook, authority: trustme.CA, trusting: Trust
) -> None:
    context = certified(authority, "localhost")
    with Receiver(tunnels) as proxy, Receiver(ssl_context=context, name="localhost") as receiver:
        options: dict[str, Any] = {**trusting, "proxy": f"http://me:hush@127.0.0.1:{proxy.port}", "token": "hush"}
        webhook = make_webhook(receiver.url, **options)
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME, DELIVERED_OUTCOME]
        assert len(receiver.requests) == 2
        asked = proxy.only
        assert (asked.method, asked.target) == ("CONNECT", f"localhost:{receiver.port}")
        assert asked.headers["proxy-authorization"] == "Basic bWU6aHVzaA=="
        assert "authorization" not in asked.headers
        assert "proxy-authorization" not in receiver.requests[0].headers


def test_a_proxy_that_refuses(make_webhook: MakeWebhook, trusting: Trust) -> None:
    with Receiver(answers("407 Who are you")) as proxy:
        webhook = make_webhook("https://receiver.example/", proxy=f"http://127.0.0.1:{proxy.port}", **trusting)
        assert unavailable(deliver_one(webhook)) == "the proxy responded 407 Who are you"


def test_the_authorities_are_read_once_for_all_webhooks() -> None:
    assert sender.default_ssl_context() is sender.default_ssl_context()
    assert sender.default_ssl_context().verify_mode == ssl.CERT_REQUIRED
