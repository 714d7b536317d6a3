"""Find the passwords in the URLs of message brokers, so that no error shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlsplit


def passwords_in(urls: Iterable[str], *, user_is_token: bool = False) -> Iterator[str]:
    """Yield the password of each URL, as it is written (percent-encoded) and decoded.

    `user_is_token`: also a user without a password, as in `nats://token@host`.
    """
    for url in urls:
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        secret = parts.password
        if secret is None and user_is_token:
            secret = parts.username
        if secret:
            yield from (secret, unquote(secret))
