"""Check the parameters of `Webhook` that have no module of their own. An invalid one raises RegistrationError."""

from __future__ import annotations

import importlib.util
import math
import ssl
from pathlib import Path

from outbox.errors import RegistrationError, describe
from outbox.webhooks.signature import SigningKey, read_keys
from outbox.webhooks.transport.client_certificate import ClientCertificate
from outbox.webhooks.transport.protocol import Transport
from outbox.webhooks.transport.url import Url

HTTPX, CURL = "httpx", "curl"


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError(
            "A webhook needs a name, under which the progress of events is stored: Webhook('billing', …)."
        )
    return name


def check_concurrency(value: object) -> int:
    if not isinstance(value, int):
        raise RegistrationError(f"concurrency must be a whole number from 1 on, not {value!r}.")
    return value


def check_timeout(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
        raise RegistrationError(f"timeout must be a number of seconds greater than 0, not {value!r}.")
    return value


def signing_keys(secret: object) -> list[SigningKey]:
    """Return the keys of the secrets; none if requests are not to be signed."""
    if secret is None:
        return []
    try:
        return read_keys(secret)
    except ValueError as error:
        raise RegistrationError(
            f"Requests can't be signed: {error}. outbox.webhooks.new_secret() makes a secret."
        ) from None


def check_client_certificate(
    certificate: object, key: object, url: Url, ssl_context: object
) -> ClientCertificate | None:
    """Return the files of the client certificate, if there is one. They are loaded once, to find errors now."""
    if certificate is None:
        if key is not None:
            raise RegistrationError("client_key is given, but client_certificate is not.")
        return None
    if not isinstance(certificate, str | Path) or not isinstance(key, str | Path | None):
        raise RegistrationError("client_certificate and client_key must be the paths of PEM files.")
    if url.scheme != "https":
        raise RegistrationError("client_certificate needs an https:// URL: over http nothing identifies the sender.")
    if ssl_context is not None:
        raise RegistrationError(
            "client_certificate can't be used together with ssl_context: load the certificate into the context, with "
            "its load_cert_chain()."
        )
    files = ClientCertificate(str(certificate), str(certificate if key is None else key))
    try:
        files.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    except OSError as error:
        raise RegistrationError(
            f"client_certificate can't be used: {describe(error)}. It must be a PEM file with the certificate and its "
            "chain; client_key one with its key, without a passphrase (or the key is in the same file)."
        ) from None
    return files


def check_transport_options(
    transport: Transport | None,
    client: object,
    *,
    url: Url,
    allow_private: bool,
    proxy: Url | None,
    ssl_context: object,
    client_certificate: ClientCertificate | None,
) -> None:
    """Check the parameters that say how receivers are reached, and that the HTTP library is installed.

    `proxy` is the one that was chosen for this URL.
    """
    if not isinstance(ssl_context, ssl.SSLContext | None):
        raise RegistrationError("ssl_context must be an ssl.SSLContext.")
    if not allow_private and proxy is not None and url.scheme == "http":
        raise RegistrationError(
            "allow_private=False can't be enforced for an http:// URL through a proxy: the proxy resolves its name "
            "itself. Use https://: then the proxy is asked for a tunnel to an address that was checked."
        )
    if transport is None:
        _check_client(client, ssl_context)
    elif (
        not allow_private
        or proxy is not None
        or ssl_context is not None
        or client_certificate is not None
        or client != HTTPX
    ):
        raise RegistrationError(
            "allow_private, proxy, ssl_context, client_certificate and client can't be used together with a transport "
            "of your own."
        )


def _check_client(client: object, ssl_context: object) -> None:
    if client == CURL:
        if ssl_context is not None:
            raise RegistrationError(
                "ssl_context is Python's, and client='curl' can't use it: name a file with your certificate "
                "authorities in the variable SSL_CERT_FILE, or use client='httpx'."
            )
        _check_installed("client='curl' needs pycurl", "curl", "pycurl")
    elif client == HTTPX:
        _check_installed("Webhooks need httpx", "webhooks", "httpx", "httpcore")
    else:
        raise RegistrationError(f"client must be {HTTPX!r} or {CURL!r}, not {client!r}.")


def _check_installed(reason: str, extra: str, *packages: str) -> None:
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise RegistrationError(f"{reason}: pip install 'dramatiq-outbox[{extra}]'.")
