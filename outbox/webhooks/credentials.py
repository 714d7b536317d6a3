"""Set the `authorization` header of a webhook, and list the texts that must not appear in errors and logs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_plus

from outbox.errors import RegistrationError
from outbox.webhooks.transport.headers import is_header_value
from outbox.webhooks.transport.url import Url


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
        pair = base64.b64encode(":".join(url.credentials).encode()).decode()
        return headers | {"authorization": f"Basic {pair}"}
    return headers


def texts_to_redact(headers: Mapping[str, str], url: Url, proxy: Url | None) -> Iterator[str]:
    """Yield the texts that must not be shown. The receiver or the proxy gets them, and could repeat them in a response.

    These are the values of the headers, the user names and passwords, and every part of the URL after its host, because
    a path or a query parameter may be an API key.
    """
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
