"""Make clients of Redis with short timeouts, and translate redis-py's errors.

Redis is an extra, and this is the lowest module that imports it: modules that need Redis import this one inside the
functions that use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.errors import SettingsError, Unavailable, describe

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry as RetryPolicy
except ImportError:
    raise SettingsError("redis is not installed: pip install 'dramatiq-outbox[redis]'") from None

# In seconds. They are short: no caller should wait long for a Redis that does not respond.
CONNECT_TIMEOUT = 2.0
RESPONSE_TIMEOUT = 5.0

# Errors that say nothing about the command, only that the server can't be used now. Some have a class of their own in
# redis-py; the others have a code at the start of their text. (NoScriptError: the server was restarted a moment ago.)
UNAVAILABLE_ERRORS = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.NoScriptError,
    redis.exceptions.TryAgainError,
)
UNAVAILABLE_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ")
# Names of this host, which count as equal when addresses are compared.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class CommandRefused(SettingsError):
    """Redis responds, and refuses the command: missing rights, a key of another type, and the like."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(f"Redis refuses a command: {message}")


def make_client(
    url: str, *, response_timeout: float = RESPONSE_TIMEOUT, source: str = "OUTBOX_REDIS_URL"
) -> redis.Redis:
    """Return a client that has short timeouts and never retries: its callers decide whether and when to try again.

    It opens no connection yet, and its connection pool may be used on both sides of a fork.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=min(CONNECT_TIMEOUT, response_timeout),
            socket_timeout=response_timeout,
            retry=RetryPolicy(NoBackoff(), 0),
            health_check_interval=30,
            # With protocol 3, redis-py no longer checks whether a pooled connection still holds an unread reply.
            protocol=2,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # raises, without connecting, for unknown options
    except (ValueError, TypeError):
        # Without redis-py's message: it quotes the URL, and with it perhaps the password.
        raise SettingsError(
            f"{source} can't be read as redis://user:password@host:port/0, rediss:// or unix://; "
            "special characters in a password must be percent-encoded."
        ) from None
    return client


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a client connects to. It has no credentials, because errors show it."""

    place: str
    db: int

    def __str__(self) -> str:
        return f"{self.place}, database {self.db}"


def address_of(client: redis.Redis) -> RedisAddress | None:
    """Return where a client connects to, or None if that is known only when it connects (Sentinel)."""
    if hasattr(client.connection_pool, "sentinel_manager"):
        return None
    options = client.connection_pool.connection_kwargs
    host = options.get("host", "localhost")
    host = "localhost" if host in LOCAL_NAMES else host
    place = options["path"] if "path" in options else f"{host}:{options.get('port', 6379)}"
    return RedisAddress(str(place), int(options.get("db") or 0))


def is_unavailable(error: Exception) -> bool:
    """Return whether the error means that the server can't be used now, and is not about the command."""
    return isinstance(error, UNAVAILABLE_ERRORS) or server_message(error).startswith(UNAVAILABLE_CODES)


def server_message(error: Exception) -> str:
    """Return the server's own message, without the text that redis-py puts before it for a command in a pipeline."""
    return str(error).rpartition("of pipeline caused error: ")[2]


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise redis-py's errors as Unavailable if the server can't be used now, or else as CommandRefused."""
    try:
        yield
    except redis.RedisError as error:
        if is_unavailable(error):
            raise Unavailable(describe(error)) from error
        raise CommandRefused(server_message(error)) from error
