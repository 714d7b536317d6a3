"""How a webhook says who it is, and what of that, and of its URL, must never be shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_plus

from outbox.errors import RegistrationError
from outbox.webhooks.transport import headers as header
from outbox.webhooks.transport.url import Url


def with_authorization(headers: dict[str, str], url: Url, token: object) -> dict[str, str]:
    """The headers, and in them who we are: by a token, by the URL's user, or by what the headers say already."""
    if token is not None and not (header.is_value(token) and len(str(token).split()) == 1):
        raise RegistrationError("token must be visible ASCII characters without spaces.")
    if [token is not None, url.credentials is not None, "authorization" in headers].count(True) > 1:
        raise RegistrationError("Only one of token, the header 'authorization' and a user in the URL can be sent.")
    if token is not None:
        return headers | {"authorization": f"Bearer {token}"}
    if url.credentials is not None:
        pair = base64.b64encode(":".join(url.credentials).encode()).decode()
        return headers | {"authorization": f"Basic {pair}"}
    return headers


def confidential(headers: Mapping[str, str], url: Url, proxy: Url | None) -> Iterator[str]:
    """What a receiver was told and may repeat. Any part of a URL may be a key, but for its host."""
    for value in headers.values():
        yield value
        yield from value.split()
    for each in (url, proxy):
        if each is not None and each.credentials is not None:
            yield from each.credentials
    path, _, query = url.target.partition("?")
    yield from (url.target, path, query)
    for pair in query.split("&"):
        _, _, value = pair.partition("=")
        yield from (value, unquote_plus(value))
