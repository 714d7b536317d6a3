"""Check the parameters of `Webhook` that have no module of their own. An invalid one raises RegistrationError."""

from __future__ import annotations

import importlib.util
import math
import ssl

from outbox.errors import RegistrationError
from outbox.webhooks.signature import SigningKey, read_keys
from outbox.webhooks.transport.protocol import Transport

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


def check_transport_options(
    transport: Transport | None, client: object, *, allow_private: bool, proxy: object, ssl_context: object
) -> None:
    """Check the parameters that say how receivers are reached, and that the HTTP library is installed."""
    if not isinstance(ssl_context, ssl.SSLContext | None):
        raise RegistrationError("ssl_context must be an ssl.SSLContext.")
    if not allow_private and proxy is not None:
        raise RegistrationError(
            "allow_private=False can't be enforced through a proxy: the proxy resolves names itself."
        )
    if transport is None:
        _check_client(client, ssl_context)
    elif not allow_private or proxy is not None or ssl_context is not None or client != HTTPX:
        raise RegistrationError(
            "allow_private, proxy, ssl_context and client can't be used together with a transport of your own."
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
