"""Set the `authorization` header of a webhook, and list the texts that must not appear in errors and logs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, unquote_plus

from outbox.errors import RegistrationError
from outbox.webhooks.transport.headers import is_header_value
from outbox.webhooks.transport.url import Url

# Parts of paths that are not secret, and that errors often contain.
ORDINARY_SEGMENTS = frozenset(
    (
        "callback", "callbacks", "endpoint", "endpoints", "event", "events", "hooks", "inbound", "inbox", "incoming",
        "ingest", "messages", "notifications", "notify", "orders", "outbox", "public", "receive", "receiver",
        "service", "services", "stream", "trigger", "users", "webhook", "webhooks", "workflows",
    )
)  # fmt: skip


def with_authorization(headers: dict[str, str], url: Url, token: object) -> dict[str, str]:
    """Return the headers with an `authorization` header: Bearer from `token`, or Basic from the user in the URL.

    With neither, return the headers as they are: the user may have set `authorization` in them. Raise
    RegistrationError if more than one of the three is given, or if the token can't be sent.
    """
    if token is not None and not (is_header_value(token) and len(str(token).split()) == 1):
        raise RegistrationError("token must be visible ASCII characters without spaces.")
    if [token is not None, url.credentials is not None, "authorization" in headers].count(True) > 1:
        raise RegistrationError("Only one of token, the header 'authorization' and a user in the URL can be sent.")
    if token is not None:
        return headers | {"authorization": f"Bearer {token}"}
    if url.credentials is not None:
        return headers | {"authorization": f"Basic {basic_pair(url.credentials)}"}
    return headers


def basic_pair(credentials: tuple[str, str]) -> str:
    """Return user and password as Basic authentication sends them."""
    return base64.b64encode(":".join(credentials).encode()).decode()


def risks(headers: Mapping[str, str], url: Url, *, is_signed: bool) -> tuple[str, ...]:
    """Return what an attacker between this host and the receiver could do, as sentences without the URL.

    Over https, and to a receiver on this host, nothing.
    """
    if url.scheme != "http" or url.host == "localhost" or url.host.startswith("127.") or url.host == "::1":
        return ()
    found = []
    if "authorization" in headers:
        found.append("its token or password is sent over http, unencrypted, so anyone on the way can use it")
    if not is_signed:
        found.append("its requests are sent over http and are not signed, so anyone on the way can change them")
    return tuple(found)


def texts_to_redact(headers: Mapping[str, str], url: Url, proxy: Url | None) -> Iterator[str]:
    """Yield the texts that must not be shown. The receiver or the proxy gets them, and could repeat them in a response.

    These are the values of the headers, the user names and passwords, and every part of the URL after its host, because
    a segment of a path, a query parameter or a query without a name may be an API key.
    """
    for value in headers.values():
        yield value
        yield from value.split()
    for each in (url, proxy):
        if each is not None and each.credentials is not None:
            yield from (*each.credentials, basic_pair(each.credentials))
    path, _, query = url.target.partition("?")
    yield from (url.target, path, query)
    for segment in path.split("/"):
        if segment.lower() not in ORDINARY_SEGMENTS:
            yield from (segment, unquote(segment))
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        secret = value if equals else name
        yield from (secret, unquote_plus(secret))
