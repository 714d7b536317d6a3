"""Mutual TLS: the webhook identifies itself with a certificate."""

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.errors import RegistrationError
from outbox.webhooks.transport.client_certificate import ClientCertificate, ClientContext
from outbox.webhooks.webhook import Webhook
from tests.support.receiver import LOOPBACK, Receiver, answers, tunnels
from tests.webhooks.deliveries import MakeWebhook, ReversingTransport, deliver, deliver_one, make_event, unavailable

URL = "https://receiver.example/"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(autouse=True)
def _trusting(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients trust the authorities of this file."""
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))


@pytest.fixture
def demanding(authority: trustme.CA) -> ssl.SSLContext:
    """A server's context that demands a certificate of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Any]:
    return write(authority, tmp_path)


def write(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    """Write a certificate and its key, as options of a webhook."""
    issued = authority.issue_cert("outbox@sender.example")
    certificate, key = folder / "client.pem", folder / "client.key"
    for path, parts in ((certificate, issued.cert_chain_pems), (key, [issued.private_key_pem])):
        new = folder / "new"
        new.write_bytes(b"".join(part.bytes() for part in parts))
        new.rename(path)
    return {"client_certificate": str(certificate), "client_key": key}


def test_the_receiver_accepts_it(make_webhook: MakeWebhook, demanding: ssl.SSLContext, files: dict[str, Any]) -> None:
    with Receiver(ssl_context=demanding) as receiver:
        webhook = make_webhook(receiver.url, **files)
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
        assert receiver.connections == 1


def test_without_one_such_a_receiver_is_unavailable(make_webhook: MakeWebhook, demanding: ssl.SSLContext) -> None:
    with Receiver(ssl_context=demanding) as receiver:
        unavailable(deliver_one(make_webhook(receiver.url)))
        assert receiver.requests == []


def test_the_key_may_be_in_the_same_file(
    make_webhook: MakeWebhook, demanding: ssl.SSLContext, files: dict[str, Any], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files["client_key"].read_bytes() + Path(files["client_certificate"]).read_bytes())
    with Receiver(ssl_context=demanding) as receiver:
        assert deliver_one(make_webhook(receiver.url, client_certificate=both)) == DELIVERED_OUTCOME


def test_it_is_for_the_receiver_and_not_for_the_proxy(
    make_webhook: MakeWebhook, demanding: ssl.SSLContext, files: dict[str, Any]
) -> None:
    with Receiver(tunnels) as proxy, Receiver(ssl_context=demanding) as receiver:
        webhook = make_webhook(receiver.url, proxy=f"http://127.0.0.1:{proxy.port}", **files)
        assert deliver_one(webhook) == DELIVERED_OUTCOME


def test_the_receivers_certificate_is_verified_as_ever(make_webhook: MakeWebhook, files: dict[str, Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(LOOPBACK).configure_cert(context)
    with Receiver(ssl_context=context) as receiver:
        assert "certificate was not accepted" in unavailable(deliver_one(make_webhook(receiver.url, **files)))
        assert receiver.requests == []


def test_files_that_are_replaced_are_used_for_the_next_connection(
    make_webhook: MakeWebhook, demanding: ssl.SSLContext, authority: trustme.CA, tmp_path: Path
) -> None:
    files = write(trustme.CA(), tmp_path)
    with Receiver(answers(connection="close"), ssl_context=demanding) as receiver:
        webhook = make_webhook(receiver.url, **files)
        unavailable(deliver_one(webhook))
        write(authority, tmp_path)
        assert deliver_one(webhook) == DELIVERED_OUTCOME


def test_while_the_files_do_not_fit_together_those_before_are_used(authority: trustme.CA, tmp_path: Path) -> None:
    given = write(authority, tmp_path)
    files = ClientCertificate(given["client_certificate"], str(given["client_key"]))
    context = ClientContext(files, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    first = context.current()
    assert context.current() is first
    certificate = Path(files.certificate).read_bytes()
    write(authority, tmp_path)
    new = Path(files.certificate).read_bytes()
    Path(files.certificate).write_bytes(certificate)
    assert context.current() is first
    os.unlink(files.key)  # noqa: PTH108
    assert context.current() is first
    write(authority, tmp_path)
    assert Path(files.certificate).read_bytes() not in (certificate, new)
    assert context.current() is not first


def refused(**options: Any) -> str:
    with pytest.raises(RegistrationError) as raised:
        Webhook("hook", **{"url": URL} | options)
    return str(raised.value)


def test_what_can_not_work_is_refused_when_the_webhook_is_made(files: dict[str, Any], tmp_path: Path) -> None:
    assert "client_certificate is not" in refused(client_key="client.key")
    assert "needs an https:// URL" in refused(url="http://receiver.example/", **files)
    assert "load_cert_chain()" in refused(ssl_context=ssl.create_default_context(), **files)
    assert "transport of your own" in refused(transport=ReversingTransport(), **files)
    assert "must be the paths" in refused(client_certificate=b"client.pem")
    assert "can't be used: FileNotFoundError" in refused(client_certificate=tmp_path / "none.pem")
    assert "can't be used: SSLError" in refused(client_certificate=files["client_certificate"])  # its key is elsewhere


def test_a_key_with_a_passphrase_is_refused_without_a_question(files: dict[str, Any], tmp_path: Path) -> None:
    key = load_pem_private_key(files["client_key"].read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"hush"))
    )
    assert "without a passphrase" in refused(client_certificate=files["client_certificate"], client_key=locked)
