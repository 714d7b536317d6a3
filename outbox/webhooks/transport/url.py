"""Parse the URL of a receiver or a proxy, once, when the webhook is made.

The parts are kept apart: what may be shown (scheme, host, port), what is sent (path and query), and the credentials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from outbox.errors import RegistrationError

DEFAULT_PORTS = {"http": 80, "https": 443}
# Characters that are not percent-encoded. The percent sign is one of them, so that what the user has encoded is not
# encoded a second time.
_SAFE = "/?%:@!$&'()*+,;=~-._[]"
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Url:
    """An http or https URL. Its text and its repr show only the host: paths, queries and users may be secret."""

    scheme: str
    host: str  # ASCII; an IPv6 address without its brackets
    port: int
    target: str = field(repr=False)  # path and query
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: object, what: str) -> Self:
        """Return the parsed URL; raise RegistrationError if it is invalid. `what` names the parameter in the error.

        The error quotes no part of the URL: in a mistyped URL the password may be in any part.
        """
        if not isinstance(text, str):
            raise RegistrationError(f"{what} must be text: 'https://example.com/hook'.")
        if any(character.isspace() or not character.isprintable() or character == "\\" for character in text):
            raise RegistrationError(f"{what} contains a space, a backslash or a control character: percent-encode it.")
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise RegistrationError(f"{what} can't be read: it should look like 'https://example.com/hook'.") from None
        if port == 0:
            raise RegistrationError(f"{what} has the port 0, which can't be connected to.")
        if parts.scheme not in DEFAULT_PORTS:
            raise RegistrationError(f"{what} must begin with http:// or https://.")
        if "#" in text:
            raise RegistrationError(f"{what} has a fragment ('#…'), which is never sent: leave it out.")
        path = parts.path if parts.path != "" else "/"
        return cls(
            scheme=parts.scheme,
            host=_ascii(host, what),
            port=DEFAULT_PORTS[parts.scheme] if port is None else port,
            target=quote(f"{path}?{parts.query}" if parts.query else path, safe=_SAFE),
            credentials=_credentials(parts.username, parts.password, what),
        )

    @property
    def authority(self) -> str:
        """Return host and port as the Host header has them: without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def _ascii(host: str | None, what: str) -> str:
    if not host:
        raise RegistrationError(f"{what} has no host: it should look like 'https://example.com/hook'.")
    try:
        encoded = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        encoded = ""
    if not _HOST.fullmatch(encoded):
        raise RegistrationError(f"{what} has an invalid host: it must be a name or an IP address.")
    return encoded


def _credentials(user: str | None, password: str | None, what: str) -> tuple[str, str] | None:
    """Return user and password for Basic authentication. The user name can't have a colon: a colon would end it."""
    if user is None:
        return None
    user = unquote(user)
    password = unquote(password) if password is not None else ""
    if ":" in user or not (user + password).isprintable():
        raise RegistrationError(f"{what} has a user name or password that can't be sent.")
    return user, password
